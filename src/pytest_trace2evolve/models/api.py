"""Builds the request bodies of the chat-completions API and reads the answers, without a client library."""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.completion import (
    Completion,
    RequestedCall,
    read_usage,
)
from pytest_trace2evolve.records.message import MAX_DEPTH, to_storable
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.utils.canonical import is_deeper, storable_text

MAX_DIGITS = 4_000
"""Maximum number of digits of an integer; Python parses at most 4,300."""

MAX_CONTAINERS = 500_000
"""Maximum number of lists and objects in an answer, including brackets in strings. Each takes at least 200
bytes of memory, and an answer within the byte limit could hold five million."""

MAX_COMMAS = 1_000_000
"""Maximum number of commas in an answer, including commas in strings. A larger answer of tiny values would
take ten seconds to read."""

_MESSAGE_FIELDS = frozenset({"role", "content", "tool_calls", "function_call"})
_CALL_FIELDS = frozenset({"id", "type", "function", "index"})
_FUNCTION_FIELDS = frozenset({"name", "arguments"})

_EMPTY_ANSWER: Mapping[str, Any] = {"choices": [{"message": {}}]}


def request_body(
    settings: ModelSettings,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[ToolSchema],
    trial: int,
    tool_choice: str = "auto",
) -> dict[str, Any]:
    """The complete body of a chat-completions request, including the model's name and the seed."""
    request: dict[str, Any] = {"model": settings.model, "messages": list(messages)}
    if tools:
        functions = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in tools
        ]
        request["tools"] = [{"type": "function", "function": function} for function in functions]
        request["tool_choice"] = tool_choice
    if settings.temperature is not None:
        request["temperature"] = settings.temperature
    if settings.seed is not None:
        request["seed"] = settings.seed + trial
    if settings.reasoning_effort is not None:
        request["reasoning_effort"] = settings.reasoning_effort
    if parameters := settings.parameters:
        names = parameters.keys() if tools else parameters.keys() - {"tool_choice", "parallel_tool_calls"}
        request |= {name: parameters[name] for name in names}
    return {**request, **settings.extra_body}


def read_body(body: bytes) -> Any:
    """Parse JSON from an endpoint, with any text of a model in it.

    Invalid bytes become U+FFFD, and integers with too many digits become infinite. An answer that
    is nested too deeply, or contains too many values, counts as an empty answer.

    Raises:
        ValueError: the body is not JSON.
    """
    if body.count(b"{") + body.count(b"[") > MAX_CONTAINERS or body.count(b",") > MAX_COMMAS:
        return _EMPTY_ANSWER
    try:
        text = body.decode(json.detect_encoding(body), "replace")
        answer_json = json.loads(text, parse_int=_parse_int)
    except RecursionError:
        return _EMPTY_ANSWER
    return _EMPTY_ANSWER if is_deeper(answer_json, MAX_DEPTH) else answer_json


class NoAnswerError(ValueError):
    """An answer that contains an error, or no message. `record` is its JSON, or its body."""

    def __init__(self, record: Any) -> None:
        super().__init__("the answer contains an error or no message")
        self.record = record


def is_failed(choice: Mapping[str, Any]) -> bool:
    """Whether a gateway reports in a choice that the provider failed."""
    return bool(choice.get("error")) or choice.get("finish_reason") == "error"


def read_completion(record: Any, seconds: float) -> Completion:
    """Read a completion from JSON of any shape.

    Faults inside a message are attributed to the model. A call without a name gets an empty name, so that its
    tool is not found. Content that is not text is dropped.

    Raises:
        NoAnswerError: the JSON contains an error, or no message.
    """
    choice = _value_at(record, "choices", 0)
    message = _value_at(choice, "message")
    if not isinstance(message, dict) or record.get("error") or is_failed(choice):
        raise NoAnswerError(record)
    finish_reason = choice.get("finish_reason")
    return Completion(
        content=_read_content(message.get("content")),
        provider_fields=read_provider_fields(message, _MESSAGE_FIELDS),
        tool_calls=_read_calls(message.get("tool_calls")),
        finish_reason=storable_text(finish_reason) if isinstance(finish_reason, str) else None,
        usage=read_usage(record.get("usage")),
        seconds=seconds,
    )


def read_first_tokens(record: Any) -> dict[str, float] | None:
    """Log-probabilities of an answer's likeliest first tokens; None if the endpoint sends no such values."""
    tokens = _value_at(record, "choices", 0, "logprobs", "content", 0, "top_logprobs")
    logprobs: dict[str, float] = {}
    for entry in tokens if isinstance(tokens, list) else ():
        text, logprob = _value_at(entry, "token"), _value_at(entry, "logprob")
        if isinstance(text, str) and isinstance(logprob, int | float) and logprob <= 0:
            logprobs[text] = max(float(logprob), logprobs.get(text, -math.inf))
    return logprobs or None


def _parse_int(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_DIGITS else math.inf


def _read_content(content: Any) -> str | None:
    if isinstance(content, list):  # some endpoints send a list of parts
        parts = [_value_at(part, "text") for part in content]
        content = "".join(part for part in parts if isinstance(part, str)) or None
    return storable_text(content) if isinstance(content, str) else None


def _read_calls(sent_calls: Any) -> tuple[RequestedCall, ...]:
    calls = []
    for call in sent_calls if isinstance(sent_calls, list) else [sent_calls] if sent_calls else []:
        call_id, function = _value_at(call, "id"), _value_at(call, "function")
        name, arguments = _value_at(function, "name"), _value_at(function, "arguments")
        fields = {
            **read_provider_fields(call, _CALL_FIELDS),
            **({"function": inner} if (inner := read_provider_fields(function, _FUNCTION_FIELDS)) else {}),
        }
        calls.append(
            RequestedCall(
                id=storable_text(call_id) if isinstance(call_id, str) else "",
                name=storable_text(name) if isinstance(name, str) else "",
                # Some endpoints send arguments as an object instead of a string.
                arguments=storable_text(arguments)
                if isinstance(arguments, str)
                else json.dumps(arguments or {}),
                provider_fields=fields,
            )
        )
    return tuple(calls)


def read_provider_fields(record: Any, known_fields: frozenset[str]) -> dict[str, Any]:
    """The fields of an answer that the API does not define, which some endpoints need in later requests.

    Without values that cannot be stored, and without null and empty lists, which say nothing.
    """
    if not isinstance(record, dict) or record.keys() <= known_fields:
        return {}
    fields = {}
    for name, value in record.items():
        if name not in known_fields and value is not None and value != []:
            with contextlib.suppress(ValueError):
                fields[storable_text(name)] = to_storable(value)
    return fields


def _value_at(value: Any, *path: str | int) -> Any:
    """The value at a path of keys and positions; None if anything on the way is missing."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and len(value) > step else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value
