"""Messages in the shape of the chat-completions API, and back."""

import json
from typing import Any

from pytest_trace2evolve.records.completion import Completion
from pytest_trace2evolve.records.message import Message, Requestor, ToolCall

MALFORMED = "malformed_arguments"
"""The one argument of a call whose arguments were no JSON object: the tool refuses it, live and in replay."""


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
        ToolCall(id=call.id, name=call.name, arguments=_arguments(call.arguments), requestor=role)
        for call in completion.tool_calls
    ]
    usage = completion.usage
    fields: dict[str, Any] = {
        "role": role,
        "content": completion.content,
        "tool_calls": calls or None,
        "cost": usage.cost,
        "usage": {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens},
        "generation_time_seconds": completion.seconds,
    }
    return Message.model_validate(fields)


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text or "{}")
    except ValueError:
        return {MALFORMED: text}
    return arguments if isinstance(arguments, dict) else {MALFORMED: text}
