"""Reads conversations from the logs of OpenAI, OpenTelemetry, Langfuse and Inspect."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from pytest_trace2evolve.errors import LogError
from pytest_trace2evolve.importing import tracing
from pytest_trace2evolve.importing.conversation import (
    Conversation,
    Damage,
    DamagedError,
    Turn,
    conversation_of,
    kind_name,
    turns_of,
    turns_of_model_call,
)
from pytest_trace2evolve.importing.documents import Document, read_documents

LogItems = Iterator[Conversation | Damage]
Item = TypeVar("Item")


def read_conversations(path: Path, format: str | None = None) -> tuple[str, LogItems]:
    """Read a log.

    Args:
        path: The file.
        format: One of `FORMATS`; by default, the fields of the file's first object decide.

    Returns:
        The format, and its conversations and damaged places in the order of the file.

    Raises:
        LogError: the file cannot be read, or holds results of tau2.
    """
    documents = read_documents(path)
    first = next(documents)
    if isinstance(first, Damage):
        raise LogError(f"{path}: {first.place}: {first.cause}; export the log again")
    format = format or _format_of(path, first)
    return format, FORMATS[format](chain([first], documents))


_SIGNS = {
    "openai": ("messages", "role"),
    "otel": ("resourceSpans", "resourceLogs", "attributes"),
    "langfuse": ("observations", "traceId", "meta"),
}
"""The fields by which a format is known, most certain first."""


def _format_of(path: Path, document: Document) -> str:
    value = document.value
    while isinstance(value, list) and value:
        value = value[0]
    fields = value if isinstance(value, dict) else {}
    if "simulations" in fields:
        raise LogError(
            f"{path}: holds results of tau2, which have tasks already; name a log of conversations"
        )
    if document.place.startswith("samples/") or "eval" in fields or "epoch" in fields:
        return "inspect"
    names = (name for name, signs in _SIGNS.items() if not fields.keys().isdisjoint(signs))
    return next(names, "openai")


# ---- OpenAI


@dataclass
class _ModelCall:
    """A request to a model with its response.

    Attributes:
        ids: The ids of the response and of the conversation, by which a later request continues this one.
        continues: The ids of the response and of the conversation that the request continues.
        is_last: Whether no later request of the log continues this one.
    """

    place: str
    turns: list[Turn]
    metadata: dict[str, Any] = field(default_factory=dict)
    ids: tuple[str, ...] = ()
    continues: tuple[str, ...] = ()
    is_last: bool = True


def _openai(documents: Iterable[Document | Damage]) -> LogItems:
    """Yield the conversations of requests, and of responses that continue each other."""
    calls_by_id: dict[str, _ModelCall] = {}
    items = list(_read(documents, _model_call))
    for item in items:
        if isinstance(item, _ModelCall):
            earlier = next((calls_by_id[name] for name in item.continues if name in calls_by_id), None)
            if earlier is not None:  # the provider keeps what its requests do not repeat
                earlier.is_last = False
                item.place, item.metadata = earlier.place, earlier.metadata
                item.turns = [*earlier.turns, *item.turns]
            calls_by_id |= dict.fromkeys(filter(None, item.ids), item)
    for item in items:
        if isinstance(item, Damage):
            yield item
        elif item.is_last:
            try:
                yield conversation_of(item.place, item.turns, item.metadata)
            except DamagedError as error:
                yield Damage(item.place, str(error))


def _read(
    documents: Iterable[Document | Damage], read: Callable[[str, Any], Item]
) -> Iterator[Item | Damage]:
    """Yield what `read` makes of documents, or of the items of a document that lists conversations."""
    for document in documents:
        if isinstance(document, Damage):
            yield document
            continue
        value = document.value
        values = value.get("samples", value) if isinstance(value, dict) else value
        is_list = isinstance(values, list) and not any(map(_is_message, values))
        name = "conversation" if values is value else "sample"
        for number, item in enumerate(values if is_list else [value], 1):
            if isinstance(item, dict) and item.get("epoch", 1) != 1:
                continue  # further epochs of a sample in Inspect repeat its task
            place = ", ".join(filter(None, (document.place, f"{name} {number}" if is_list else "")))
            try:
                yield read(place, item)
            except DamagedError as error:
                yield Damage(place, str(error))


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and ("role" in value or isinstance(value.get("type"), str))


def _model_call(place: str, value: Any) -> _ModelCall:
    if isinstance(value, list):
        return _ModelCall(place, turns_of(value))
    if not isinstance(value, dict):
        raise DamagedError(f"is {kind_name(value)}, not an object with 'messages'")
    request = value["request"] if isinstance(value.get("request"), dict) else value
    answer = value.get("response", {key: value[key] for key in ("id", "choices", "output") if key in value})
    response = answer if isinstance(answer, dict) else {}
    conversation = request.get("conversation")
    conversation = str((conversation.get("id") if isinstance(conversation, dict) else conversation) or "")
    previous = str(response.get("previous_response_id") or request.get("previous_response_id") or "")
    ids = (str(response.get("id") or ""), conversation)
    used = ("messages", "input", "request", "response", "choices", "output", "tools")
    metadata = {key: item for key, item in value.items() if key not in used}
    turns = turns_of_model_call(request, answer)
    return _ModelCall(place, turns, metadata, ids, (previous, conversation))


# ---- Inspect

_CUSTOMER_PROMPT = "Begin the interaction. Remember you are the customer"


def _sample(place: str, sample: Any) -> Conversation:
    if not isinstance(sample, dict):
        raise DamagedError(f"is {kind_name(sample)}, not a sample")
    attachments = sample.get("attachments")
    messages = _resolved(_agent_messages(sample), attachments if isinstance(attachments, dict) else {})
    metadata = sample.get("metadata")
    return conversation_of(place, turns_of(messages), metadata if isinstance(metadata, dict) else {})


def _agent_messages(sample: dict[str, Any]) -> Any:
    """Return the messages of the agent under test.

    In `inspect_evals/tau2`, the sample's messages are those of the simulated customer, whose role is the
    assistant's. The agent's own messages are in the sample's store.
    """
    store = sample.get("store")
    for key, value in store.items() if isinstance(store, dict) else ():
        if key.startswith("StoredAgentState:") and key.endswith(":messages"):
            return value
    if _CUSTOMER_PROMPT in str(sample.get("input")):
        raise DamagedError(
            "is of inspect_evals/tau2 and lacks the agent's messages in its store (its own messages have the "
            "roles of customer and agent exchanged)"
        )
    return sample.get("messages")


def _resolved(value: Any, attachments: dict[str, Any]) -> Any:
    """Replace references to attachments, in which Inspect keeps long strings, by the attachments."""
    if isinstance(value, str):
        return attachments.get(value.removeprefix("attachment://"), value)
    if isinstance(value, list):
        return [_resolved(item, attachments) for item in value]
    if isinstance(value, dict):
        return {key: _resolved(item, attachments) for key, item in value.items()}
    return value


FORMATS: dict[str, Callable[[Iterable[Document | Damage]], LogItems]] = {
    "openai": _openai,
    "otel": tracing.read_otel,
    "langfuse": tracing.read_langfuse,
    "inspect": lambda documents: _read(documents, _sample),
}
"""The readers of all formats, by name."""
