"""Reads the answers that the recording proxy passes on: their usage, and whether they are answers at all."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_trace2evolve.models.api import NoAnswerError, is_failed, read_completion
from pytest_trace2evolve.models.api_errors import MAX_ERROR_LENGTH, error_text, is_overflow
from pytest_trace2evolve.records.completion import Usage, read_usage

STREAM_TYPE = "text/event-stream"

_NO_MESSAGE = "a choice has no message, or an error"


def usage_of_answer(kind: str, content: bytes) -> Usage:
    """Read the usage from an answer of the chat-completions or the responses API, streamed or not."""
    if not kind.startswith(STREAM_TYPE):
        return read_usage(_usage_of(parse_object(content) or {}))
    usages = [usage for event in _stream_events(content) if (usage := _usage_of(event))]
    return read_usage(usages[-1] if usages else None)


def _usage_of(record: Mapping[str, Any]) -> Any:
    """The usage in an answer, or in an event of the responses API."""
    response = record.get("response")
    return record.get("usage") or (response.get("usage") if isinstance(response, dict) else None)


_FULL = re.compile(rb'"finish_reason":\s*"(length|model_length|model_context_window_exceeded)"')


def is_full(content: bytes) -> bool:
    """Whether an answer says that the conversation does not fit, rather than that it was cut short."""
    match = _FULL.search(content)
    if match is None or match[1] != b"length":
        return match is not None
    try:
        return is_overflow(read_completion(parse_object(content), 0.0))
    except NoAnswerError:
        return False


def answer_fault(name: str, kind: str, content: bytes, *, is_stream: bool, needs_json: bool) -> str:
    """Describe why the body of a successful response is no answer; empty if it is one.

    A body that is cut short, a gateway's page, an error and an answer without a message are no answers. The
    built-in agent `chat` does not use them either.
    """
    if name and is_stream:
        return stream_fault(name, content)
    if kind.startswith(STREAM_TYPE) and not name:
        return ""
    record: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(content)
    if not name:
        needs_json = needs_json or "json" in kind
        return "" if isinstance(record, dict | list) or not needs_json else "it is not JSON, or cut short"
    if not isinstance(record, dict):
        return "it is not a JSON object, or cut short"
    items, status = record.get(name), record.get("status")
    is_open = status in ("queued", "in_progress", "incomplete")  # a response that may have no output yet
    if record.get("error") or status == "failed" or not isinstance(items, list) or not (items or is_open):
        return _words_of(record) or f"it has no {name}"
    return "" if name != "choices" or all(_has_message(item, "message") for item in items) else _NO_MESSAGE


def stream_fault(name: str, content: bytes) -> str:
    """Describe why a stream is no answer; empty if it is one. `name` is that of an answer's list."""
    started: set[str] = set()
    finished: set[str] = set()
    for block in _EVENT_END.split(content):
        lines = [line.removeprefix(b"data:") for line in block.splitlines() if line.startswith(b"data:")]
        data = b"\n".join(lines).strip()
        if data.startswith(b"[DONE]"):
            return "" if started else f"the stream has no {name}"
        event = parse_object(data) if data else {}
        if event is None:
            return "the stream is cut short"
        kind, choices = event.get("type"), event.get("choices")
        if event.get("error") or kind in ("error", "response.failed"):
            return _words_of(event) or "the stream contains an error"
        if kind in ("response.completed", "response.incomplete"):
            return ""
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict) or is_failed(choice):
                return _NO_MESSAGE
            index = str(choice.get("index"))
            # A choice without a delta may hold the results of a content filter only.
            started |= {index} if _has_message(choice, "delta") else set()
            finished |= {index} if choice.get("finish_reason") else set()
    return (
        "" if started and started <= finished else _words_of(parse_object(content)) or "the stream ends early"
    )


def _has_message(choice: Any, name: str) -> bool:
    """Whether a choice has no error, and a message of this name (or a text, as in the older API)."""
    has_text = isinstance(choice, dict) and (isinstance(choice.get(name), dict) or "text" in choice)
    return has_text and not is_failed(choice)


def is_complete(kind: str, content: bytes) -> bool:
    """Whether an answer is not cut short, so that other runs may use it."""
    events = list(_stream_events(content)) if kind.startswith(STREAM_TYPE) else [parse_object(content) or {}]
    for event in events:
        for choice in event.get("choices") or ():
            if isinstance(choice, dict) and choice.get("finish_reason") in ("length", "content_filter"):
                return False
        inner = event.get("response")
        response = inner if isinstance(inner, dict) else event
        if response.get("object") == "response" and response.get("status") in ("failed", "incomplete"):
            return False
    return True


_EVENT_END = re.compile(rb"\r?\n\r?\n")


def _stream_events(content: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream's events."""
    for line in content.splitlines():
        if line.startswith(b"data:") and (event := parse_object(line.removeprefix(b"data:").strip())):
            yield event


def without_usage_event(content: bytes) -> bytes:
    """A stream without the event that holds only the usage, which the agent did not ask for."""
    events = _EVENT_END.split(content)
    return b"\n\n".join(event for event in events if not _is_usage_event(event))


def _is_usage_event(event: bytes) -> bool:
    record = next(_stream_events(event), None)
    return record is not None and record.get("choices") == [] and bool(record.get("usage"))


def parse_object(content: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None if the bytes hold anything else."""
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(content)
        return record if isinstance(record, dict) else None
    return None


def _words_of(record: dict[str, Any] | None) -> str:
    """The words of an error in an answer; empty if there is none."""
    has_words = record is not None and record.keys() & {"error", "detail", "message"}
    return error_text(record)[:MAX_ERROR_LENGTH] if has_words else ""
