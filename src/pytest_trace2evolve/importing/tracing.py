"""Reads conversations from traces of model calls: OpenTelemetry's GenAI spans, and exports of Langfuse.

A model call records the messages that it was sent, which repeat the conversation so far, and its answer. The
calls of one conversation are merged by the id of the conversation or session, or else of the trace.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_trace2evolve.importing.conversation import (
    Call,
    Conversation,
    Damage,
    DamagedError,
    ModelCall,
    Turn,
    conversation_of,
    has_failed,
    joined,
    kind_name,
    merged,
    model_call_of,
    turns_of,
    turns_of_message,
)
from pytest_trace2evolve.importing.documents import Document
from pytest_trace2evolve.utils.reading import parse_json

Conversations = Iterator[Conversation | Damage]
Item = dict[str, Any]


@dataclass
class _Group:
    """The model calls of one conversation, the outcomes of its tools, and the place of the first call."""

    place: str
    model_calls: list[ModelCall] = field(default_factory=list)
    tools: list[tuple[str, str, str, bool]] = field(default_factory=list)
    metadata: Item = field(default_factory=dict)
    damage: str = ""


def _read_groups(groups: dict[str, _Group]) -> Conversations:
    calls = joined([replace(call, group=key) for key, group in groups.items() for call in group.model_calls])
    snapshots: dict[str, list[list[Turn]]] = {}
    for call in sorted(calls.values(), key=lambda call: call.start):
        snapshots.setdefault(call.group, []).append(call.turns)
    for key, group in groups.items():
        if group.damage:
            yield Damage(group.place, group.damage)
        elif key in snapshots:
            turns = _with_failures(merged(snapshots[key]), sorted(group.tools))
            try:
                yield conversation_of(group.place, turns, group.metadata)
            except DamagedError as error:
                yield Damage(group.place, str(error))


def _with_failures(turns: list[Turn], tools: list[tuple[str, str, str, bool]]) -> list[Turn]:
    """Mark the calls whose tools failed.

    `tools` holds a start, a name, the id of the call, and whether it failed. Tools without an id are those of
    the last calls of the name, in the same order.
    """
    failed_ids = {call_id for _, _, call_id, failed in tools if call_id and failed}
    outcomes: dict[str, list[bool]] = {}
    for _, name, call_id, failed in tools:
        if not call_id:
            outcomes.setdefault(name, []).append(failed)
    marked_turns: list[Turn] = []
    for turn in reversed(turns):
        calls: list[Call] = []
        for call in reversed(turn.calls):
            has_failed = outcomes[call.name].pop() if outcomes.get(call.name) else call.id in failed_ids
            calls.insert(0, replace(call, failed=call.failed or has_failed))
        marked_turns.insert(0, replace(turn, calls=tuple(calls)))
    return marked_turns


# ---- OpenTelemetry


def is_otel(item: Item) -> bool:
    """Whether an object is a span, a log record, or an export of them."""
    if "resourceSpans" in item or "resourceLogs" in item or "resource_spans" in item:
        return True
    has_context = isinstance(item.get("context"), dict) and "trace_id" in item["context"]
    return (has_context or "traceId" in item or "trace_id" in item) and "attributes" in item


def read_otel(documents: Iterable[Document | Damage]) -> Conversations:
    """Yield the conversations of spans, from an OTLP export or from the SDK's console exporter."""
    groups: dict[str, _Group] = {}
    traces: dict[str, str] = {}
    spans: list[tuple[str, Item]] = []
    for document in documents:
        if isinstance(document, Damage):
            yield document
            continue
        try:
            spans += [(document.place, span) for span in _spans(document.value)]
        except DamagedError as error:
            yield Damage(document.place, str(error))
    for _, span in spans:
        identity = span["attributes"].get("gen_ai.conversation.id") or span["attributes"].get("session.id")
        if isinstance(identity, str) and identity:
            traces.setdefault(span["trace"], identity)
    n_calls = 0
    for _, span in spans:
        if span["is_log"] and not span["id"]:  # a choice ends a call of the model
            span["id"] = f"record {n_calls}"
            n_calls += span["name"] == "gen_ai.choice" or span["name"] not in _EVENT_ROLES
    events = _events_by_span(spans)
    known_ids = {(span["trace"], span["id"]) for _, span in spans if not span["is_log"]}
    for number, (place, span) in enumerate(spans, 1):
        attributes = span["attributes"]
        key = traces.get(span["trace"]) or span["trace"]
        location = ", ".join(part for part in (place, f"span {number}") if part)
        identity = span["trace"], span["id"]
        if span["is_log"] and identity in known_ids:
            continue
        known_ids.add(identity)  # the events of a span that is not in the log stand for the span
        if "gen_ai.tool.name" in attributes and not span["is_log"]:
            marks = {**attributes, "status": span["status"]}
            tool = _tool(attributes, span["start"], has_failed(marks))
            groups.setdefault(key, _Group(location)).tools.append(tool)
        try:
            turns = _turns_of_span(attributes, events.get(identity, []))
        except DamagedError as error:
            group = groups.setdefault(key, _Group(location))
            group.damage = group.damage or f"{location}: {error}" if group.place != location else str(error)
            continue
        if turns:
            group = groups.setdefault(key, _Group(location))
            group.model_calls.append(ModelCall(location, turns, span["start"]))
            group.metadata |= {
                name: value
                for name, value in attributes.items()
                if name.startswith(("user.", "enduser.", "client."))
            }
    yield from _read_groups(groups)


def _spans(value: Any) -> Iterator[Item]:
    """The spans and log records of a document: trace, id, start, attributes, events."""
    if isinstance(value, list):
        for item in value:
            yield from _spans(item)
        return
    if not isinstance(value, dict):
        raise DamagedError(f"is {kind_name(value)}, not a span")
    is_export = False
    for outer, scope, inner in (
        ("resourceSpans", "scopeSpans", "spans"),
        ("resource_spans", "scope_spans", "spans"),
        ("resourceLogs", "scopeLogs", "logRecords"),
    ):
        for resource in _list(value, outer):
            is_export = True
            for scope_item in _list(resource, scope) or _list(resource, "instrumentationLibrarySpans"):
                for span in _list(scope_item, inner):
                    yield _span(span, is_log=inner == "logRecords")
        is_export = is_export or outer in value
    if not is_export:
        yield _span(value, is_log="body" in value and "start_time" not in value)


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, dict):
        raise DamagedError(f"holds {kind_name(value)} in place of an object")
    items = value.get(name, [])
    if not isinstance(items, list):
        raise DamagedError(f"has {name!r} of {kind_name(items)}, not a list")
    return items


def _span(span: Any, *, is_log: bool) -> Item:
    if not isinstance(span, dict):
        raise DamagedError(f"holds a span that is {kind_name(span)}, not an object")
    context = span.get("context")
    context = context if isinstance(context, dict) else {}
    attributes = _attributes(span.get("attributes"))
    trace = span.get("traceId") or span.get("trace_id") or context.get("trace_id")
    if not isinstance(trace, str) or not trace:
        raise DamagedError("holds a span without a trace id")
    starts = (
        span.get(name)
        for name in (
            *("startTimeUnixNano", "start_time_unix_nano", "start_time"),
            *("timeUnixNano", "timestamp", "observedTimeUnixNano", "observed_timestamp"),
        )
    )
    start = next((start for start in starts if start and start != "0"), "")
    events = span.get("events") or []
    if not isinstance(events, list):
        raise DamagedError(f"has 'events' of {kind_name(events)}, not a list")
    return {
        "trace": trace,
        "id": str(span.get("spanId") or span.get("span_id") or context.get("span_id") or ""),
        "start": str(start).rjust(20, "0"),
        "status": span.get("status"),
        "attributes": attributes,
        "events": [event for event in events if isinstance(event, dict)],
        "is_log": is_log,
        "name": span.get("eventName")
        or span.get("event_name")
        or attributes.get("event.name")
        or span.get("name"),
        "body": _plain_value(span.get("body")),
    }


def _tool(attributes: Item, start: str, failed: bool) -> tuple[str, str, str, bool]:
    """The start of a tool's execution, its name, the id of its call, and whether it failed."""
    name, call_id = (str(attributes.get(f"gen_ai.tool.{field}") or "") for field in ("name", "call.id"))
    return start, name.removeprefix("execute_tool "), call_id, failed


def _attributes(value: Any) -> Item:
    """Attributes as a dictionary: OTLP writes a list of keys and typed values."""
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    if not isinstance(value, list):
        raise DamagedError(f"has attributes of {kind_name(value)}")
    attributes: Item = {}
    for pair in value:
        if not isinstance(pair, dict) or not isinstance(pair.get("key"), str):
            raise DamagedError("has an attribute without a key")
        attributes[pair["key"]] = _plain_value(pair.get("value"))
    return attributes


def _plain_value(value: Any) -> Any:
    """Unwrap an OTLP value such as `{"stringValue": "x"}`; other values stay."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    name, inner = next(iter(value.items()))
    if name == "arrayValue" and isinstance(inner, dict):
        return [_plain_value(item) for item in inner.get("values") or []]
    if name == "kvlistValue" and isinstance(inner, dict):
        return _attributes(inner.get("values") or [])
    if name == "intValue" and isinstance(inner, str) and inner.lstrip("-").isdigit():
        return int(inner[:40])
    return inner if name in ("stringValue", "boolValue", "intValue", "doubleValue", "bytesValue") else value


def _events_by_span(spans: list[tuple[str, Item]]) -> dict[tuple[str, str], list[tuple[str, Item]]]:
    """The events of each span: its own, and log records that name the span."""
    events_by_span: dict[tuple[str, str], list[tuple[str, Item]]] = {}
    for _, span in spans:
        events = events_by_span.setdefault((span["trace"], span["id"]), [])
        if span["is_log"]:
            body = span["body"] if isinstance(span["body"], dict) else {}
            events.append((str(span["name"]), {**span["attributes"], **body}))
        for event in span["events"]:
            attributes = _attributes(event.get("attributes"))
            events.append((str(event.get("name")), attributes))
    return events_by_span


def _turns_of_span(attributes: Item, events: list[tuple[str, Item]]) -> list[Turn]:
    """The messages that a span records, in any of the forms of the GenAI conventions."""
    for source in (attributes, *(event for _, event in events)):
        turns = [
            *_messages(source.get("gen_ai.input.messages"), "gen_ai.input.messages"),
            *_messages(source.get("gen_ai.output.messages"), "gen_ai.output.messages"),
        ]
        if turns:
            return turns
    turns = [turn for name, event in events for turn in _turns_of_event(name, event)]
    if turns:
        return turns
    for prompt, completion in (("gen_ai.prompt", "gen_ai.completion"), ("llm.prompts", "llm.completions")):
        turns = [*_indexed_turns(attributes, prompt), *_indexed_turns(attributes, completion)]
        if turns:
            return turns
    model_input, answer = (attributes.get(f"langfuse.observation.{name}") for name in ("input", "output"))
    if attributes.get("langfuse.observation.type") == "generation":
        return model_call_of("", _decode_json(model_input), _decode_json(answer)).turns
    return []


def _decode_json(value: Any) -> Any:
    """Parse a text that holds a JSON object or array; other values stay."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return parse_json(value)
        except ValueError:
            return value
    return value


def _messages(value: Any, name: str) -> list[Turn]:
    """The turns of an attribute with messages: JSON, or a list of objects or of JSON."""
    if value is None or value == "":
        return []
    try:
        value = parse_json(value) if isinstance(value, str) else value
    except ValueError as error:
        raise DamagedError(f"{name}: {error}") from None
    if not isinstance(value, list):
        raise DamagedError(f"{name} is {kind_name(value)}, not a list")
    try:
        return turns_of([_decode_json(message) for message in value])
    except DamagedError as error:
        raise DamagedError(f"{name}: {error}") from None


_EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
    "gen_ai.choice": "assistant",
}


def _turns_of_event(name: str, event: Item) -> Iterator[Turn]:
    """The turns of an event that follows the older conventions."""
    if name in _EVENT_ROLES:
        body = event.get("message", event)
        body = _decode_json(body) if isinstance(body, str) else body
        if not isinstance(body, dict):
            body = {"content": body}
        message = {
            "role": _EVENT_ROLES[name],
            "content": _content(body.get("content")),
            "tool_calls": _decode_json(body.get("tool_calls")),
            "tool_call_id": body.get("id"),
        }
        yield from turns_of_message(message)
    elif name in ("gen_ai.content.prompt", "gen_ai.content.completion"):
        value = _decode_json(event.get("gen_ai.prompt", event.get("gen_ai.completion")))
        if isinstance(value, list):
            yield from turns_of(value)


def _content(value: Any) -> Any:
    return value if value is None or isinstance(value, str | list) else json.dumps(value, ensure_ascii=False)


def _indexed_turns(attributes: Item, prefix: str) -> Iterator[Turn]:
    """The turns of attributes such as `gen_ai.prompt.0.role`, as OpenLLMetry writes them."""
    messages: dict[int, Item] = {}
    for name, value in attributes.items():
        parts = name.removeprefix(f"{prefix}.").split(".")
        if (
            name == prefix
            or not name.startswith(f"{prefix}.")
            or not parts[0].isdecimal()
            or len(parts[0]) > 6
        ):
            continue
        message = messages.setdefault(int(parts[0]), {})
        if len(parts) == 4 and parts[1] == "tool_calls" and parts[2].isdecimal():
            message.setdefault("calls", {}).setdefault(parts[2], {})[parts[3]] = value
        elif len(parts) == 2:
            message[parts[1]] = _decode_json(value) if parts[1] == "content" else value
    for _, message in sorted(messages.items()):
        calls = list(message.pop("calls", {}).values())
        yield from turns_of_message({"role": "assistant", **message, "tool_calls": calls})


# ---- Langfuse

_MODEL_CALL = "GENERATION"


def is_langfuse(item: Item) -> bool:
    """Whether an object is a trace with observations, an observation, or a page of either."""
    if isinstance(item.get("observations"), list):
        return True
    page = item.get("data")
    if isinstance(page, list) and "meta" in item:
        return any(isinstance(entry, dict) and is_langfuse(entry) for entry in page)
    has_type = item.get("type") in ("GENERATION", "SPAN", "EVENT", "AGENT", "TOOL", "CHAIN")
    return has_type and ("traceId" in item or "trace_id" in item)


def read_langfuse(documents: Iterable[Document | Damage]) -> Conversations:
    """Yield the conversations of traces with observations, or of observations alone."""
    groups: dict[str, _Group] = {}
    number = 0
    for document in documents:
        if isinstance(document, Damage):
            yield document
            continue
        for item in _entries(document.value):
            number += 1
            location = ", ".join(part for part in (document.place, f"entry {number}") if part)
            if not isinstance(item, dict):
                yield Damage(location, f"is {kind_name(item)}, not a trace or an observation")
            elif isinstance(item.get("observations"), list):
                _add_trace(groups, location, item)
            elif item.get("type") in (_MODEL_CALL, "TOOL"):
                trace = _get(item, "traceId", "trace_id")
                key = _get(item, "sessionId", "session_id") or trace
                if not isinstance(key, str):
                    yield Damage(location, "is an observation without a trace id")
                    continue
                _add_observation(groups.setdefault(key, _Group(location)), item)
                _add_metadata(groups[key], item)
            elif "type" not in item and "observations" in item:
                yield Damage(location, f"has 'observations' of {kind_name(item['observations'])}, not a list")
    yield from _read_groups(groups)


def _entries(value: Any) -> list[Any]:
    if isinstance(value, dict) and isinstance(value.get("data"), list) and "observations" not in value:
        return list(value["data"])
    return value if isinstance(value, list) else [value]


def _add_trace(groups: dict[str, _Group], location: str, trace: Item) -> None:
    if isinstance(trace.get("trace"), dict):  # as the page of a trace exports it
        trace = {**trace["trace"], "observations": trace["observations"]}
    key = _get(trace, "sessionId", "session_id") or _get(trace, "id")
    group = groups.setdefault(str(key or location), _Group(location))
    _add_metadata(group, trace)
    for observation in trace["observations"]:
        if not isinstance(observation, dict):
            group.damage = (
                group.damage or f"has an observation that is {kind_name(observation)}, not an object"
            )
        else:
            _add_observation(group, observation)
    if not group.model_calls and not group.damage:
        _add_observation(group, {**trace, "type": _MODEL_CALL})


def _add_observation(group: _Group, observation: Item) -> None:
    start = str(_get(observation, "startTime", "start_time", "timestamp") or "")
    if observation.get("type") == "TOOL":
        metadata = _decode_json(observation.get("metadata"))
        attributes = metadata.get("attributes") if isinstance(metadata, dict) else None
        known = {
            "gen_ai.tool.name": observation.get("name"),
            **(attributes if isinstance(attributes, dict) else {}),
        }
        group.tools.append(_tool(known, start, has_failed(observation)))
    if observation.get("type") != _MODEL_CALL:
        return
    request, answer = (_decode_json(observation.get(name)) for name in ("input", "output"))
    try:
        model_call = model_call_of(group.place, request, answer, start)
    except DamagedError as error:
        group.damage = group.damage or str(error)
        return
    if model_call.turns:
        group.model_calls.append(model_call)


def _add_metadata(group: _Group, item: Item) -> None:
    user = _get(item, "userId", "user_id")
    if user:
        group.metadata["user_id"] = user
    metadata = _decode_json(item.get("metadata"))
    if isinstance(metadata, dict):
        group.metadata |= {
            key: value for key, value in metadata.items() if key not in ("resourceAttributes", "scope")
        }


def _get(item: Item, *names: str) -> Any:
    return next((item[name] for name in names if item.get(name) is not None), None)
