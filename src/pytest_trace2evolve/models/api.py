"""What an endpoint's answer says: a completion, the likeliest first tokens, how long to wait.

The body of one request, as it is sent to an endpoint.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.completion import Completion, RequestedCall, Usage
from pytest_trace2evolve.records.message import is_deep
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.records.wire import cached_tokens, dollars, token_count
from pytest_trace2evolve.utils.sanitize import storable_text

if TYPE_CHECKING:
    import openai


def request_body(
    settings: ModelSettings,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[ToolSchema],
    trial: int,
    tool_choice: str = "auto",
) -> dict[str, Any]:
    """What a chat completion is asked for with, as JSON: all of it, the model's name and seed too."""
    request: dict[str, Any] = {"model": settings.model, "messages": list(messages)}
    if tools:
        request["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            }
            for tool in tools
        ]
        request["tool_choice"] = tool_choice
    if settings.temperature is not None:
        request["temperature"] = settings.temperature
    if settings.seed is not None:
        request["seed"] = settings.seed + trial
    if settings.reasoning_effort is not None:
        request["reasoning_effort"] = settings.reasoning_effort
    return {**request, **settings.extra_body}


MAX_DIGITS = 4_000
"""Digits of a whole number that is read; Python reads no more than 4,300."""

MAX_CONTAINERS = 500_000
"""Lists and objects of an answer, those in texts included. One takes 200 bytes of memory and more, and an
answer within the limit of its bytes could hold five million."""


def read_body(body: bytes) -> Any:
    """JSON from an endpoint, whatever a model wrote into it.

    Bytes that are no text become U+FFFD, and numbers of too many digits infinite. An answer that is nested
    too deeply to be read, or holds too many lists and objects, is one of a model that said nothing.

    Raises:
        ValueError: it is no JSON.
    """
    if body.count(b"{") + body.count(b"[") > MAX_CONTAINERS:
        return _SILENT
    try:
        text = body.decode(json.detect_encoding(body), "replace")
        record = json.loads(text, parse_int=_whole_number)
    except RecursionError:
        return _SILENT
    return _SILENT if is_deep(record) else record


_SILENT: Mapping[str, Any] = {"choices": [{"message": {}}]}


def _whole_number(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_DIGITS else math.inf


def read_completion(record: Any, seconds: float) -> Completion:
    """A completion from whatever JSON the endpoint sent.

    What is wrong inside a message is the model's: a call without a name gets an empty one, so that its tool
    is not found, and content that is no text is left out.

    Raises:
        ValueError: it holds no message.
    """
    choice = _inside(record, "choices", 0)
    message = _inside(choice, "message")
    if not isinstance(message, dict):
        raise ValueError("the answer holds no message")
    content, finish = _content(message.get("content")), choice.get("finish_reason")
    return Completion(
        content=content,
        tool_calls=_calls(message.get("tool_calls")),
        finish_reason=storable_text(finish) if isinstance(finish, str) else None,
        usage=_usage(record.get("usage")),
        seconds=seconds,
    )


def _content(told: Any) -> str | None:
    """A message's text; some endpoints send a list of parts."""
    if isinstance(told, list):
        parts = [_inside(part, "text") for part in told]
        told = "".join(part for part in parts if isinstance(part, str)) or None
    return storable_text(told) if isinstance(told, str) else None


def _calls(told: Any) -> tuple[RequestedCall, ...]:
    asked = told if isinstance(told, list) else [told] if told else []
    calls: dict[str, RequestedCall] = {}
    for position, call in enumerate(asked):
        name, own_id = _inside(call, "function", "name"), _inside(call, "id")
        call_id = storable_text(own_id) if isinstance(own_id, str) else ""
        if not call_id or call_id in calls:
            call_id = f"call_{position}" if not call_id else f"{call_id}_{position}"
        calls[call_id] = RequestedCall(
            id=call_id,
            name=storable_text(name) if isinstance(name, str) else "",
            arguments=_arguments(_inside(call, "function", "arguments")),
        )
    return tuple(calls.values())


def _arguments(told: Any) -> str:
    """The arguments of a call as text; some endpoints send them as JSON inside the JSON."""
    return storable_text(told) if isinstance(told, str) else json.dumps(told or {})


def read_first_tokens(record: Any) -> dict[str, float] | None:
    """The likeliest first tokens of an answer; None where the endpoint does not tell them."""
    told = _inside(record, "choices", 0, "logprobs", "content", 0, "top_logprobs")
    found: dict[str, float] = {}
    for one in told if isinstance(told, list) else ():
        text, logprob = _inside(one, "token"), _inside(one, "logprob")
        if isinstance(text, str) and isinstance(logprob, int | float) and logprob <= 0:
            found[text] = max(float(logprob), found.get(text, -math.inf))
    return found or None


def _inside(value: Any, *path: str | int) -> Any:
    """What lies at a path of keys and positions; None where anything on the way is missing."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and len(value) > step else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def _usage(told: Any) -> Usage:
    """What an endpoint says that a completion used; some say the cost too."""
    if not isinstance(told, dict):
        return Usage()
    return Usage(
        prompt_tokens=token_count(told.get("prompt_tokens")),
        completion_tokens=token_count(told.get("completion_tokens")),
        cached_tokens=cached_tokens(told),
        cost=dollars(told.get("cost")),
    )


def retry_after(error: "openai.APIStatusError") -> float | None:
    """Seconds that the endpoint asks to wait; None where it says none."""
    headers = error.response.headers
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
    return None
