"""Reads conversations from the logs of OpenAI, OpenTelemetry, Langfuse, Inspect and τ²."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from pytest_trace2evolve.errors import LogError
from pytest_trace2evolve.importing import tracing
from pytest_trace2evolve.importing.conversation import (
    Conversation,
    Damage,
    DamagedError,
    ModelCall,
    Turn,
    conversation_of,
    inner_json,
    joined,
    kind_name,
    model_call_of,
    turns_of,
    turns_of_message,
)
from pytest_trace2evolve.importing.documents import Document, read_documents
from pytest_trace2evolve.records.message import USER_STOP_MARKS
from pytest_trace2evolve.records.trace import FULL_DUPLEX

LogItems = Iterator[Conversation | Damage]
Read = TypeVar("Read")


def read_conversations(path: Path, format: str | None = None) -> tuple[str, LogItems]:
    """Read a log.

    Args:
        path: The file.
        format: One of `FORMATS`; by default, the format is recognised from the file's content.

    Returns:
        The format, and its conversations and damaged places in the order of the file.

    Raises:
        LogError: the file cannot be read, or its format is not clear.
    """
    documents = read_documents(path)
    first_items: list[Document | Damage] = []
    for document in documents:
        first_items.append(document)
        if isinstance(document, Document) and (format or _possible_formats(document)):
            break
    values = [document for document in first_items if isinstance(document, Document)]
    if not values:
        first = next(
            (item for item in first_items if isinstance(item, Damage)), Damage("", "holds no JSON value")
        )
        place = ": ".join(part for part in (str(path), first.place) if part)
        raise LogError(f"{place}: {first.cause}; export the log again")
    if format is None:
        possible_formats = _possible_formats(values[-1])
        if len(possible_formats) != 1:
            raise LogError(f"{path}: its format is not clear; name it with --format {'|'.join(FORMATS)}")
        format = possible_formats[0]
    return format, FORMATS[format](chain(first_items, documents))


def _possible_formats(document: Document) -> list[str]:
    """Return the formats that a document may have."""
    value = document.value
    items = value if isinstance(value, list) else [value]
    flat = [inner for item in items[:20] for inner in (item[:20] if isinstance(item, list) else [item])]
    objects = [item for item in flat if isinstance(item, dict)]
    if document.place.startswith("samples/"):
        return ["inspect"]
    if not objects:
        return []
    return [name for name, is_shown in _SIGNS.items() if any(map(is_shown, objects))]


_SIGNS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "openai": lambda item: (
        (isinstance(item.get("messages"), list) and "observations" not in item and "epoch" not in item)
        or (isinstance(item.get("role"), str) and "content" in item)
        or (isinstance(item.get("request"), dict) and "response" in item)
        or (item.get("object") == "response" and "output" in item)
        or ("input" in item and isinstance(item.get("response"), dict | list | str))
        or (isinstance(item.get("output"), list) and item.get("input") and "traceId" not in item)
        or item.get("type") in ("function_call", "function_call_output")
    ),
    "otel": tracing.is_otel,
    "langfuse": tracing.is_langfuse,
    "inspect": lambda item: (
        ("eval" in item and ("samples" in item or "plan" in item))
        or ("epoch" in item and isinstance(item.get("messages"), list))
    ),
    "tau2": lambda item: isinstance(item.get("simulations"), list),
}


def _read_items(
    documents: Iterable[Document | Damage],
    items: Callable[[Document], Iterable[tuple[str, Callable[[], Read]]]],
) -> Iterator[Read | Damage]:
    """Yield what is read from documents. Each `DamagedError` becomes a `Damage`."""
    for document in documents:
        if isinstance(document, Damage):
            yield document
            continue
        try:
            for place, read in items(document):
                try:
                    yield read()
                except DamagedError as error:
                    yield Damage(place, str(error))
        except DamagedError as error:
            yield Damage(document.place, str(error))


def _place(document: Document, number: int, kind: str) -> str:
    return ", ".join(part for part in (document.place, f"{kind} {number}") if part)


# ---- OpenAI


_CONTINUES = "The conversation continues a response that the log does not hold: its beginning is missing."


def _openai(documents: Iterable[Document | Damage]) -> LogItems:
    items = list(_read_items(documents, _openai_items))
    last_ids: dict[str, str] = {}
    for item in items:
        if isinstance(item, ModelCall) and item.group:  # the provider keeps what its requests do not repeat
            item.previous = item.previous or last_ids.get(item.group, "")
            last_ids[item.group] = item.id
    calls = joined(items)
    for index, item in enumerate(items):
        if isinstance(item, Damage):
            yield item
        elif index in calls:
            call = calls[index]
            try:
                conversation = conversation_of(call.place, call.turns, call.metadata)
                yield replace(conversation, notes=(_CONTINUES,)) if call.previous else conversation
            except DamagedError as error:
                yield Damage(call.place, str(error))


def _openai_items(document: Document) -> Iterator[tuple[str, Callable[[], ModelCall]]]:
    value = document.value
    if isinstance(value, list) and not any(map(_is_message, value)):
        for number, item in enumerate(value, 1):
            place = _place(document, number, "conversation")
            yield place, lambda place=place, item=item: _openai_call(place, item)  # type: ignore[misc]
        return
    yield document.place, lambda: _openai_call(document.place, value)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and ("role" in value or isinstance(value.get("type"), str))


def _openai_call(place: str, value: Any) -> ModelCall:
    if isinstance(value, list):
        return model_call_of(place, value, None)
    if not isinstance(value, dict):
        raise DamagedError(f"is {kind_name(value)}, not an object with 'messages'")
    request = value["request"] if isinstance(value.get("request"), dict) else value
    flat_answer = {key: value[key] for key in ("id", "choices", "output") if key in value}
    names = ("messages", "input", "output", "choices", "response", "body")
    if request is value and value.keys().isdisjoint(names):
        raise DamagedError("'messages' is missing, not a list")
    answer = value.get("response", value.get("events", flat_answer))
    request = _body_of(request)
    call = model_call_of(place, request, _body_of(answer))
    conversation = request.get("conversation") if "input" in request else None
    conversation = conversation.get("id") if isinstance(conversation, dict) else conversation
    call.group = conversation if isinstance(conversation, str) else ""
    call.metadata = {
        key: item
        for key, item in value.items()
        if key not in ("messages", "input", "request", "response", "choices", "output", "tools")
    }
    return call


def _body_of(value: Any) -> Any:
    """The body of a recorded HTTP request or response; other values stay."""
    body = value.get("body") if isinstance(value, dict) else None
    body = inner_json(body) if isinstance(body, str) else body
    return body if isinstance(body, dict) else value


# ---- Inspect


def _inspect(documents: Iterable[Document | Damage]) -> LogItems:
    return _read_items(documents, _inspect_items)


def _inspect_items(document: Document) -> Iterator[tuple[str, Callable[[], Conversation]]]:
    value = document.value
    samples = value.get("samples") if isinstance(value, dict) and "samples" in value else [value]
    if not isinstance(samples, list):
        raise DamagedError(f"has 'samples' of {kind_name(samples)}, not a list")
    for number, sample in enumerate(samples, 1):
        place = document.place if samples == [value] else _place(document, number, "sample")
        yield place, lambda place=place, sample=sample: _sample(place, sample)  # type: ignore[misc]


def _sample(place: str, sample: Any) -> Conversation:
    if not isinstance(sample, dict):
        raise DamagedError(f"is {kind_name(sample)}, not a sample")
    attachments = sample.get("attachments")
    attachments_by_id = attachments if isinstance(attachments, dict) else {}
    messages = _resolve_attachments(_agent_messages(sample), attachments_by_id, 0)
    metadata = sample.get("metadata")
    conversation = conversation_of(place, turns_of(messages), metadata if isinstance(metadata, dict) else {})
    is_repeatable = "epoch" in sample
    return replace(
        conversation, sample=repr((sample.get("id"), sample.get("input"))) if is_repeatable else ""
    )


_AGENT_STATE = "StoredAgentState:"
_CUSTOMER_PROMPT = "Begin the interaction. Remember you are the customer"


def _agent_messages(sample: dict[str, Any]) -> Any:
    """Return the messages of the agent under test.

    In `inspect_evals/tau2`, the sample's messages are those of the simulated customer, whose role is the
    assistant's. The agent's own messages are in the sample's store.
    """
    store = sample.get("store")
    items = store.items() if isinstance(store, dict) else ()
    state = {key: value for key, value in items if key.startswith(_AGENT_STATE)}
    if not state and _CUSTOMER_PROMPT not in str(sample.get("input")):
        return sample.get("messages")
    for key, value in state.items():
        if key.endswith(":messages"):
            return value
    raise DamagedError(
        "is of inspect_evals/tau2 and lacks the agent's messages in its store (its own messages have the "
        "roles of customer and agent exchanged)"
    )


_ATTACHMENT = "attachment://"


def _resolve_attachments(value: Any, attachments: dict[str, Any], depth: int) -> Any:
    """Replace references to attachments, in which Inspect keeps long strings, by the attachments."""
    if isinstance(value, str) and value.startswith(_ATTACHMENT):
        return attachments.get(value.removeprefix(_ATTACHMENT), value)
    if isinstance(value, list):
        return [_resolve_attachments(item, attachments, depth + 1) for item in value]
    if isinstance(value, dict):
        return {key: _resolve_attachments(item, attachments, depth + 1) for key, item in value.items()}
    return value


# ---- τ²


def _tau2(documents: Iterable[Document | Damage]) -> LogItems:
    return _read_items(documents, _tau2_items)


def _tau2_items(document: Document) -> Iterator[tuple[str, Callable[[], Conversation]]]:
    value = document.value
    simulations = value.get("simulations") if isinstance(value, dict) else None
    if not isinstance(simulations, list):
        raise DamagedError("has no list 'simulations'; is it a results file of tau2?")
    for number, simulation in enumerate(simulations, 1):
        place = document.place or f"simulation {number}"
        yield place, lambda place=place, item=simulation: _simulation(place, item)  # type: ignore[misc]


def _simulation(place: str, simulation: Any) -> Conversation:
    if not isinstance(simulation, dict):
        raise DamagedError(f"is {kind_name(simulation)}, not a simulation")
    turns: list[Turn] = []
    if simulation.get("mode") == "full_duplex" or simulation.get("ticks"):
        raise DamagedError(FULL_DUPLEX)
    messages = simulation.get("messages")
    if not isinstance(messages, list):
        raise DamagedError(f"'messages' is {kind_name(messages)}, not a list")
    for number, message in enumerate(messages, 1):
        if isinstance(message, dict) and message.get("requestor") == "user" and message.get("role") == "tool":
            continue  # tools of the customer
        try:
            message_turns = turns_of_message(message)
        except DamagedError as error:
            raise DamagedError(f"message {number} {error}") from None
        for turn in message_turns:
            text = _without_stop(turn.text) if turn.role == "user" else ""
            if turn.role != "user" or text:
                turns.append(Turn("user", text) if text else turn)
    return conversation_of(place, turns)


def _without_stop(text: str) -> str:
    for mark in USER_STOP_MARKS:
        text = text.replace(mark, "")
    return text.strip()


FORMATS: dict[str, Callable[[Iterable[Document | Damage]], LogItems]] = {
    "openai": _openai,
    "otel": tracing.read_otel,
    "langfuse": tracing.read_langfuse,
    "inspect": _inspect,
    "tau2": _tau2,
}
"""The readers of all formats, by name."""
