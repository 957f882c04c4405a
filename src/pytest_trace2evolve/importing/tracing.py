"""Reads conversations from traces of model calls: OpenTelemetry's GenAI spans, and exports of Langfuse.

A model call records the messages that it was sent, which repeat the conversation so far, and its answer. The
calls of one conversation are merged by the id of the conversation or session, or else of the trace.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_trace2evolve.importing.conversation import (
    Conversation,
    Damage,
    DamagedError,
    Turn,
    conversation_of,
    has_failed,
    inner_json,
    is_block,
    kind_name,
    turns_of,
    turns_of_message,
    turns_of_model_call,
)
from pytest_trace2evolve.importing.documents import Document
from pytest_trace2evolve.utils.reading import parse_json

Conversations = Iterator[Conversation | Damage]
Item = dict[str, Any]


@dataclass
class _Group:
    """The model calls of one conversation, and the place of the first.

    Attributes:
        model_calls: The start and the turns of each call.
        failed_ids: The ids of the tool calls that failed.
    """

    place: str
    model_calls: list[tuple[str, list[Turn]]] = field(default_factory=list)
    failed_ids: set[str] = field(default_factory=set)
    metadata: Item = field(default_factory=dict)
    damage: str = ""


def _read_groups(groups: dict[str, _Group]) -> Conversations:
    for group in groups.values():
        if group.damage:
            yield Damage(group.place, group.damage)
        elif group.model_calls:
            snapshots = [turns for _, turns in sorted(group.model_calls, key=lambda call: call[0])]
            turns: list[Turn] = []
            for turn in _merged(snapshots):
                calls = (
                    replace(call, failed=call.failed or call.id in group.failed_ids) for call in turn.calls
                )
                turns.append(replace(turn, calls=tuple(calls)))
            try:
                yield conversation_of(group.place, turns, group.metadata)
            except DamagedError as error:
                yield Damage(group.place, str(error))


def _merged(snapshots: Sequence[Sequence[Turn]]) -> list[Turn]:
    """Join snapshots of conversations, one for each model call. Snapshots repeat earlier messages.

    A snapshot that begins with all earlier messages replaces them, and one that begins with the result of a
    call extends them. Any other snapshot starts a conversation of its own, such as that of a sub-agent. Only
    the longest conversation is returned; of several, the first.
    """
    threads: list[list[Turn]] = []
    for snapshot in snapshots:
        turns = [turn for turn in snapshot if turn.role != "system"]
        contents = [turn.content for turn in turns]
        for thread in threads:
            old = [turn.content for turn in thread]
            if contents[: len(old)] == old or old[: len(contents)] == contents:
                thread[:] = turns if len(turns) > len(thread) else thread
                break
            if turns[0].role == "tool":
                thread += turns
                break
        else:
            threads.append(turns)
    return max(threads, key=len, default=[])


# ---- OpenTelemetry


def is_otel(item: Item) -> bool:
    """Whether an object is a span, a log record, or an export of them."""
    if not item.keys().isdisjoint(outer for outer, *_ in _EXPORTS):
        return True
    has_context = isinstance(item.get("context"), dict) and "trace_id" in item["context"]
    return (has_context or "traceId" in item or "trace_id" in item) and "attributes" in item


def read_otel(documents: Iterable[Document | Damage]) -> Conversations:
    """Yield the conversations of spans, from an OTLP export or from the SDK's console exporter."""
    spans: list[tuple[str, Item]] = []
    for document in documents:
        if isinstance(document, Damage):
            yield document
            continue
        try:
            spans += [(document.place, span) for span in _spans(document.value)]
        except DamagedError as error:
            yield Damage(document.place, str(error))
    conversations: dict[str, str] = {}
    events: dict[tuple[str, str], list[tuple[str, Item]]] = {}
    for _, span in spans:
        identity = span["attributes"].get("gen_ai.conversation.id") or span["attributes"].get("session.id")
        if isinstance(identity, str) and identity:
            conversations.setdefault(span["trace"], identity)
        events.setdefault((span["trace"], span["id"]), []).extend(span["events"])
    groups: dict[str, _Group] = {}
    for number, (place, span) in enumerate(spans, 1):
        attributes = span["attributes"]
        location = ", ".join(part for part in (place, f"span {number}") if part)
        key = conversations.get(span["trace"]) or str(span["trace"])
        if span["failed_id"]:
            groups.setdefault(key, _Group(location)).failed_ids.add(span["failed_id"])
        try:
            # The events of a span that is not in the log stand for the span.
            turns = _turns_of_span(attributes, events.pop((span["trace"], span["id"]), []))
        except DamagedError as error:
            group = groups.setdefault(key, _Group(location))
            group.damage = group.damage or f"{location}: {error}" if group.place != location else str(error)
            continue
        if turns:
            group = groups.setdefault(key, _Group(location))
            group.model_calls.append((span["start"], turns))
            names = (name for name in attributes if name.startswith(("user.", "enduser.", "client.")))
            group.metadata |= {name: attributes[name] for name in names}
    yield from _read_groups(groups)


_EXPORTS = (("resourceSpans", "scopeSpans", "spans"), ("resourceLogs", "scopeLogs", "logRecords"))


def _spans(value: Any) -> Iterator[Item]:
    """The spans and log records of a document, as `_span` returns them."""
    if isinstance(value, list):
        for item in value:
            yield from _spans(item)
        return
    if not isinstance(value, dict):
        raise DamagedError(f"is {kind_name(value)}, not a span")
    for outer, scope, inner in _EXPORTS:
        for resource in _list(value, outer):
            for scope_item in _list(resource, scope):
                yield from map(_span, _list(scope_item, inner))
    if value.keys().isdisjoint(outer for outer, *_ in _EXPORTS):
        yield _span(value)


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, dict):
        raise DamagedError(f"holds {kind_name(value)} in place of an object")
    items = value.get(name, [])
    if not isinstance(items, list):
        raise DamagedError(f"has {name!r} of {kind_name(items)}, not a list")
    return items


def _span(span: Any) -> Item:
    """Return a span or log record: its trace, id, start, attributes, named events, and the failed call."""
    if not isinstance(span, dict):
        raise DamagedError(f"holds a span that is {kind_name(span)}, not an object")
    context = span.get("context")
    context = context if isinstance(context, dict) else {}
    trace = _get(span, "traceId", "trace_id") or context.get("trace_id")
    if not isinstance(trace, str) or not trace:
        raise DamagedError("holds a span without a trace id")
    identity = str(_get(span, "spanId", "span_id") or context.get("span_id") or "")
    attributes = _attributes(span.get("attributes"))
    names = "startTimeUnixNano", "start_time_unix_nano", "start_time", "timeUnixNano", "observedTimeUnixNano"
    start = next((span[name] for name in names if span.get(name) not in (None, "", "0")), "")
    failed_id = ""
    if "body" in span and "start_time" not in span:  # a log record
        body = _plain_value(span["body"])
        name = _get(span, "eventName", "event_name") or attributes.get("event.name")
        events = [(str(name), {**attributes, **(body if isinstance(body, dict) else {})})]
        attributes = {}
        if not identity:
            raise DamagedError("holds a log record without a span id")
    else:
        events = [
            (str(event.get("name")), _attributes(event.get("attributes")))
            for event in _list({"events": span.get("events") or []}, "events")
            if isinstance(event, dict)
        ]
        if has_failed({**attributes, "status": span.get("status")}):
            failed_id = str(attributes.get("gen_ai.tool.call.id") or "")
    return {
        "trace": trace, "id": identity, "start": str(start).rjust(20, "0"), "attributes": attributes,
        "events": events, "failed_id": failed_id,
    }  # fmt: skip


def _attributes(value: Any) -> Item:
    """Attributes as a dictionary: OTLP writes a list of keys and typed values."""
    if value is None or isinstance(value, dict):
        return value or {}
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
    return inner if name in ("stringValue", "boolValue", "intValue", "doubleValue", "bytesValue") else value


def _turns_of_span(attributes: Item, events: list[tuple[str, Item]]) -> list[Turn]:
    """The messages that a span records: in attributes, or in events as the older conventions have them."""
    if attributes.get("gen_ai.operation.name") == "execute_tool":
        return []  # the messages of Strands are here the arguments and the result of the call
    sources = (attributes, *(event for _, event in events))
    turns: list[Turn] = []
    for name in ("gen_ai.input.messages", "gen_ai.output.messages"):
        # Events repeat the attributes, or each name has an event of its own.
        turns += next(filter(None, (_messages(source.get(name), name) for source in sources)), [])
    return turns or [
        turn for name, event in events if name in _EVENT_ROLES for turn in _turns_of_event(name, event)
    ]


def _decoded(value: Any) -> Any:
    """Parse a text that holds a JSON object or array; other values stay."""
    inner = inner_json(value) if isinstance(value, str) else None
    return value if inner is None else inner


def _messages(value: Any, name: str) -> list[Turn]:
    """The turns of an attribute with messages: JSON, or a list of objects or of JSON."""
    if value is None or value == "":
        return []
    try:
        value = parse_json(value) if isinstance(value, str) else value
        if not isinstance(value, list):
            raise DamagedError(f"{name} is {kind_name(value)}, not a list")
        return turns_of(list(map(_decoded, value)))
    except ValueError as error:
        raise DamagedError(str(error) if str(error).startswith(name) else f"{name}: {error}") from None


_EVENT_ROLES = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
_EVENT_ROLES["gen_ai.choice"] = "assistant"


def _turns_of_event(name: str, event: Item) -> list[Turn]:
    """The turns of an event that follows the older conventions."""
    body = _decoded(event.get("message", event))
    body = body if isinstance(body, dict) else {"content": body}
    content = body.get("content")
    blocks = _decoded(content)
    if isinstance(blocks, list) and blocks and all(map(is_block, blocks)):
        content = blocks
    elif content is not None and not isinstance(content, str | list):
        content = json.dumps(content, ensure_ascii=False)
    calls = _decoded(body.get("tool_calls"))
    message = {"role": _EVENT_ROLES[name], "content": content, "tool_calls": calls}
    return turns_of_message({**message, "tool_call_id": body.get("id")})


# ---- Langfuse


def is_langfuse(item: Item) -> bool:
    """Whether an object is a trace with observations, an observation, or a page of either."""
    page = item.get("data")
    if isinstance(page, list) and "meta" in item:
        return any(isinstance(entry, dict) and is_langfuse(entry) for entry in page)
    has_type = item.get("type") in ("GENERATION", "SPAN", "EVENT", "AGENT", "TOOL", "CHAIN")
    return isinstance(item.get("observations"), list) or (
        has_type and ("traceId" in item or "trace_id" in item)
    )


def read_langfuse(documents: Iterable[Document | Damage]) -> Conversations:
    """Yield the conversations of traces with observations, or of observations alone."""
    groups: dict[str, _Group] = {}
    number = 0
    for document in documents:
        if isinstance(document, Damage):
            yield document
            continue
        value = document.value
        page = value.get("data") if isinstance(value, dict) and "observations" not in value else None
        for item in page if isinstance(page, list) else value if isinstance(value, list) else [value]:
            number += 1
            location = ", ".join(part for part in (document.place, f"entry {number}") if part)
            try:
                _add_entry(groups, location, item)
            except DamagedError as error:
                yield Damage(location, str(error))
    yield from _read_groups(groups)


def _add_entry(groups: dict[str, _Group], location: str, item: Any) -> None:
    """Add a trace with observations, or one observation."""
    if not isinstance(item, dict):
        raise DamagedError(f"is {kind_name(item)}, not a trace or an observation")
    if isinstance(item.get("trace"), dict):  # as the page of a trace exports it
        item = {**item["trace"], "observations": item.get("observations")}
    observations = item.get("observations", [item])
    if not isinstance(observations, list):
        raise DamagedError(f"has 'observations' of {kind_name(observations)}, not a list")
    trace = _get(item, "id") if "observations" in item else _get(item, "traceId", "trace_id")
    key = _get(item, "sessionId", "session_id") or trace
    if key is None and "observations" not in item:
        raise DamagedError("is an observation without a trace id")
    group = groups.setdefault(str(key or location), _Group(location))
    user, metadata = _get(item, "userId", "user_id"), _decoded(item.get("metadata"))
    group.metadata |= {"user_id": user} if user else {}
    if isinstance(metadata, dict):
        group.metadata |= {
            name: metadata[name] for name in metadata if name not in ("resourceAttributes", "scope")
        }
    for observation in observations:
        try:
            _add_observation(group, observation)
        except DamagedError as error:
            group.damage = group.damage or str(error)


def _add_observation(group: _Group, observation: Any) -> None:
    if not isinstance(observation, dict):
        raise DamagedError(f"has an observation that is {kind_name(observation)}, not an object")
    start = str(_get(observation, "startTime", "start_time", "timestamp") or "")
    if observation.get("type") == "GENERATION":
        request, answer = (_decoded(observation.get(name)) for name in ("input", "output"))
        if turns := turns_of_model_call(request, answer):
            group.model_calls.append((start, turns))


def _get(item: Item, *names: str) -> Any:
    return next((item[name] for name in names if item.get(name) is not None), None)
