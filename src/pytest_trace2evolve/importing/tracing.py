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

_LACKS_CALLS = "The log has spans of tools, but its messages hold no calls: add the expected calls."


@dataclass
class _Group:
    """The model calls of one conversation, and the place of the first.

    Attributes:
        model_calls: The start and the turns of each call.
        failed_ids: The ids of the tool calls that failed.
        has_tools: Whether a span of a tool belongs to the conversation.
        damage: Why the first damaged model call cannot be read; empty if there is none.
    """

    place: str
    model_calls: list[tuple[str, list[Turn]]] = field(default_factory=list)
    failed_ids: set[str] = field(default_factory=set)
    metadata: Item = field(default_factory=dict)
    has_tools: bool = False
    damage: str = ""


def _read_groups(groups: dict[str, _Group]) -> Conversations:
    for group in groups.values():
        snapshots = [turns for _, turns in sorted(group.model_calls, key=lambda call: call[0])]
        turns: list[Turn] = []
        for turn in _merged(snapshots):
            calls = (replace(call, failed=call.failed or call.id in group.failed_ids) for call in turn.calls)
            turns.append(replace(turn, calls=tuple(calls)))
        lacks_calls = group.has_tools and not any(turn.calls for turn in turns)
        try:
            if group.damage:
                raise DamagedError(group.damage)
            if turns:
                conversation = conversation_of(group.place, turns, group.metadata)
                yield replace(conversation, notes=(_LACKS_CALLS,)) if lacks_calls else conversation
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

_EXPORTS = (("resourceSpans", "scopeSpans", "spans"), ("resourceLogs", "scopeLogs", "logRecords"))


@dataclass
class _Span:
    """A span, or a log record, which has one event and no attributes of its own."""

    place: str
    key: tuple[str, str]
    start: str
    attributes: Item
    events: list[tuple[str, Item]]


def read_otel(documents: Iterable[Document | Damage]) -> Conversations:
    """Yield the conversations of spans, from an OTLP export or from the SDK's console exporter."""
    spans: list[_Span] = []
    for document in documents:
        if isinstance(document, Damage):
            yield document
            continue
        try:
            for record in _records_in(document.value):
                place = ", ".join(filter(None, (document.place, f"span {len(spans) + 1}")))
                spans.append(_span(place, record))
        except DamagedError as error:
            yield Damage(document.place, str(error))
    conversations: dict[str, str] = {}
    events: dict[tuple[str, str], list[tuple[str, Item]]] = {}
    for span in spans:
        identity = span.attributes.get("gen_ai.conversation.id") or span.attributes.get("session.id")
        if isinstance(identity, str) and identity:
            conversations.setdefault(span.key[0], identity)
        events.setdefault(span.key, []).extend(span.events)
    groups: dict[str, _Group] = {}
    for span in spans:
        group = groups.setdefault(conversations.get(span.key[0], span.key[0]), _Group(span.place))
        group.has_tools |= span.attributes.get("gen_ai.operation.name") == "execute_tool"
        if has_failed(span.attributes):
            group.failed_ids.add(str(span.attributes.get("gen_ai.tool.call.id")))
        try:
            # The events of a span that is not in the log stand for the span.
            turns = _turns_of_span(span.attributes, events.pop(span.key, []))
        except DamagedError as error:
            group.damage = group.damage or str(error)
            continue
        if turns:
            group.model_calls.append((span.start, turns))
            names = (name for name in span.attributes if name.startswith(("user.", "enduser.", "client.")))
            group.metadata |= {name: span.attributes[name] for name in names}
    yield from _read_groups(groups)


def _records_in(value: Any) -> Iterator[Any]:
    """The spans and log records of a document."""
    if isinstance(value, list):
        for item in value:
            yield from _records_in(item)
    elif isinstance(value, dict) and any(outer in value for outer, *_ in _EXPORTS):
        for outer, scope, inner in _EXPORTS:
            for resource in _list(value, outer):
                for scope_item in _list(resource, scope):
                    yield from _list(scope_item, inner)
    else:
        yield value


def _list(value: Any, name: str) -> list[Any]:
    items = value.get(name, []) if isinstance(value, dict) else value
    if not isinstance(items, list):
        raise DamagedError(f"has {name!r} of {kind_name(items)}, not a list")
    return items


def _span(place: str, record: Any) -> _Span:
    """Parse a span or a log record in the form of OTLP JSON or of the console exporters."""
    if not isinstance(record, dict):
        raise DamagedError(f"holds a span that is {kind_name(record)}, not an object")
    context = record.get("context")
    ids = {**record, **context} if isinstance(context, dict) else record
    trace, identity = _first(ids, "traceId", "trace_id"), _first(ids, "spanId", "span_id")
    if not isinstance(trace, str) or not trace:
        raise DamagedError("holds a span without a trace id")
    attributes = _attributes(record.get("attributes"))
    start = _first(record, "startTimeUnixNano", "start_time", "observedTimeUnixNano", "observed_timestamp")
    if "body" in record:  # a log record
        body = _plain_value(record["body"])
        name = _first(record, "eventName", "event_name") or attributes.get("event.name")
        events = [(str(name), {**attributes, **(body if isinstance(body, dict) else {})})]
        attributes = {}
        if not identity:
            raise DamagedError("holds a log record without a span id")
    else:
        events = [
            (str(event.get("name")), _attributes(event.get("attributes")))
            for event in _list(record, "events")
            if isinstance(event, dict)
        ]
    attributes = {**attributes, "status": record.get("status")}
    return _Span(place, (trace, str(identity)), str(start).rjust(20, "0"), attributes, events)


def _first(item: Item, *names: str) -> Any:
    return next((item[name] for name in names if item.get(name)), None)


def _attributes(value: Any) -> Item:
    """Attributes as a dictionary: OTLP writes a list of keys and typed values."""
    if value is None or isinstance(value, dict):
        return value or {}
    if not isinstance(value, list):
        raise DamagedError(f"has attributes of {kind_name(value)}")
    if not all(isinstance(pair, dict) and isinstance(pair.get("key"), str) for pair in value):
        raise DamagedError("has an attribute without a key")
    return {pair["key"]: _plain_value(pair.get("value")) for pair in value}


def _plain_value(value: Any) -> Any:
    """Unwrap an OTLP value such as `{"stringValue": "x"}`; other values stay."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    name, inner = next(iter(value.items()))
    if name == "arrayValue" and isinstance(inner, dict):
        return [_plain_value(item) for item in inner.get("values") or []]
    if name == "kvlistValue" and isinstance(inner, dict):
        return _attributes(inner.get("values"))
    return inner if name.endswith("Value") else value


def _turns_of_span(attributes: Item, events: list[tuple[str, Item]]) -> list[Turn]:
    """The messages that a span records: in attributes, or in events, such as one for each message."""
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
    """The turns of an attribute with messages: a list, or its JSON."""
    if value is None or value == "":
        return []
    try:
        value = parse_json(value) if isinstance(value, str) else value
        if not isinstance(value, list):
            raise DamagedError(f"is {kind_name(value)}, not a list")
        return turns_of(list(map(_decoded, value)))
    except ValueError as error:
        raise DamagedError(f"{name}: {error}") from None


_EVENT_ROLES = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
_EVENT_ROLES["gen_ai.choice"] = "assistant"


def _turns_of_event(name: str, event: Item) -> list[Turn]:
    """The turns of an event for one message."""
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


def read_langfuse(documents: Iterable[Document | Damage]) -> Conversations:
    """Yield the conversations of traces with observations, or of observations alone."""
    groups: dict[str, _Group] = {}
    number = 0
    for document in documents:
        if isinstance(document, Damage):
            yield document
            continue
        value = document.value
        entries = value.get("data", value) if isinstance(value, dict) else value
        for item in entries if isinstance(entries, list) else [entries]:
            number += 1
            place = ", ".join(filter(None, (document.place, f"entry {number}")))
            try:
                _add_entry(groups, place, item)
            except DamagedError as error:
                yield Damage(place, str(error))
    yield from _read_groups(groups)


def _add_entry(groups: dict[str, _Group], place: str, item: Any) -> None:
    """Add a trace with observations, or one observation."""
    if not isinstance(item, dict):
        raise DamagedError(f"is {kind_name(item)}, not a trace or an observation")
    observations = _list({"observations": [item], **item}, "observations")
    key = item.get("sessionId") or item.get("id" if "observations" in item else "traceId")
    if key is None and "observations" not in item:
        raise DamagedError("is an observation without a trace id")
    group = groups.setdefault(str(key or place), _Group(place))
    user, metadata = item.get("userId"), _decoded(item.get("metadata"))
    group.metadata |= {"user_id": user} if user else {}
    fields = metadata.items() if isinstance(metadata, dict) else ()
    group.metadata |= {name: item for name, item in fields if name not in ("resourceAttributes", "scope")}
    for observation in observations:
        if not isinstance(observation, dict):
            raise DamagedError(f"has an observation that is {kind_name(observation)}, not an object")
        if observation.get("type") != "GENERATION":
            continue
        request, answer = (_decoded(observation.get(name)) for name in ("input", "output"))
        try:
            if turns := turns_of_model_call(request, answer):
                group.model_calls.append((str(observation.get("startTime") or ""), turns))
        except DamagedError as error:
            group.damage = group.damage or str(error)
