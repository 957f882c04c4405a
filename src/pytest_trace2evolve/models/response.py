"""What an endpoint's answer says: a completion, the likeliest first tokens, how long to wait."""

import json
import math
from typing import Any

import openai

from pytest_trace2evolve.records.completion import Completion, RequestedCall, Usage
from pytest_trace2evolve.records.wire import cached_tokens, dollars, token_count


def read_completion(record: Any, seconds: float) -> Completion:
    """A completion from whatever JSON the endpoint sent.

    Raises:
        ValueError: it holds no message, or a tool call without a name.
    """
    choice = _inside(record, "choices", 0)
    message = _inside(choice, "message")
    if not isinstance(message, dict):
        raise ValueError("the answer holds no message")
    calls = []
    for position, call in enumerate(message.get("tool_calls") or ()):
        name, arguments = _inside(call, "function", "name"), _inside(call, "function", "arguments")
        if not isinstance(name, str):
            raise ValueError("the answer holds a tool call without a name")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
        calls.append(RequestedCall(id=str(call.get("id") or f"call_{position}"), name=name, arguments=text))
    content, finish = message.get("content"), choice.get("finish_reason")
    return Completion(
        content=content if isinstance(content, str) else None,
        tool_calls=tuple(calls),
        finish_reason=finish if isinstance(finish, str) else None,
        usage=_usage(record.get("usage")),
        seconds=seconds,
    )


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


def retry_after(error: openai.APIStatusError) -> float | None:
    """Seconds that the endpoint asks to wait; None where it says none."""
    headers = error.response.headers
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
    return None
