"""Messages in the shape of the chat-completions API, and back."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_trace2evolve.records.completion import MOST_DOLLARS, MOST_TOKENS, NOTHING_USED, Completion, Usage
from pytest_trace2evolve.records.message import (
    MALFORMED,
    Message,
    Requestor,
    ToolCall,
    unstorable,
)
from pytest_trace2evolve.utils.sanitize import storable_text

LARGE_TEXT = 100_000
"""Characters of a text from which an endpoint may refuse it for its length."""

_COMMON_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of tools that every endpoint takes."""


def to_wire(message: Message, role: str | None = None) -> dict[str, Any]:
    """A message as the API takes it; `role` replaces its own (a user simulator speaks as the assistant)."""
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.id, "content": message.content or ""}
    record: dict[str, Any] = {"role": role or message.role, "content": message.content}
    if message.tool_calls:
        record["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return record


def from_completion(completion: Completion, role: Requestor) -> Message:
    """A model's answer as a message of the agent or of the user, in tau2's shape."""
    calls = [
        ToolCall(
            id=storable_text(call.id),
            name=storable_text(call.name),
            arguments=_arguments(call.arguments),
            requestor=role,
        )
        for call in completion.tool_calls
    ]
    usage = completion.usage
    told: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
    }
    if usage.cached_tokens:
        told["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    fields: dict[str, Any] = {
        "role": role,
        "content": None if completion.content is None else storable_text(completion.content),
        "tool_calls": calls or None,
        "cost": usage.cost,
        "usage": told,
        "generation_time_seconds": completion.seconds,
    }
    if completion.cached:
        fields["cached"] = True
    return Message.model_validate(fields)


def usage_of(trace: Iterable[Message], role: Requestor) -> Usage:
    """What one side's messages of a trace say that they used; no calls where none says anything."""
    total = NOTHING_USED
    for message in trace:
        told = getattr(message, "usage", None)
        if message.role == role and isinstance(told, dict):
            total += Usage(
                prompt_tokens=token_count(told.get("prompt_tokens")),
                completion_tokens=token_count(told.get("completion_tokens")),
                cached_tokens=cached_tokens(told),
                cost=dollars(getattr(message, "cost", None)),
            )
    return total


def cached_tokens(usage: Mapping[str, Any]) -> int:
    """The prompt tokens of an API's `usage` that the endpoint had seen before."""
    details = usage.get("prompt_tokens_details")
    return token_count(details.get("cached_tokens")) if isinstance(details, dict) else 0


def token_count(value: object) -> int:
    """A count of tokens from whatever an endpoint or a file says; 0 where it says none."""
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else 0


def dollars(value: object) -> float | None:
    """An amount from whatever an endpoint or a file says; None where it says none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_DOLLARS:
        return None
    return float(value)


def uncommon_part(history: Iterable[Message], role: Requestor) -> str:
    """What one side wrote that an endpoint may refuse to take back, for messages; empty if nothing."""
    for message in history:
        if message.role != role:
            continue
        if len(message.content or "") > LARGE_TEXT:
            return f"a message of {len(message.content or ''):,} characters"
        if "\0" in (message.content or ""):
            return "a message with the character NUL"
        for call in message.tool_calls or ():
            if not _COMMON_NAME.fullmatch(call.name):
                return f"a call of a tool named {call.name[:100]!r}"
            if MALFORMED in call.arguments or len(str(call.arguments)) > LARGE_TEXT:
                return f"a call of {call.name!r} with malformed or very long arguments"
    return ""


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError, MemoryError):
        return {MALFORMED: storable_text(text)}
    if not isinstance(arguments, dict) or unstorable(arguments):
        return {MALFORMED: storable_text(text)}
    return arguments
