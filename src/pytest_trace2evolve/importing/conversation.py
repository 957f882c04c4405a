"""Conversations from logs: validated chat messages in OpenAI's form, with tool calls as objects."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_trace2evolve.utils.reading import parse_json

MALFORMED = "malformed_arguments"
"""The name under which a call's arguments are kept if they are not a JSON object."""

ROLES = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant", "model": "assistant",
    "tool": "tool",
}  # fmt: skip
"""Roles in logs, each with the corresponding role of OpenAI's messages."""

TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
CALL_PARTS = ("tool_use", "tool_call")
RESULT_PARTS = ("tool_result", "tool_call_response")
IGNORED_PARTS = ("reasoning", "thinking", "redacted_thinking", "reasoningContent", "cachePoint")
BLOCKS = (
    "text", "json", "toolUse", "toolResult", "image", "document", "video", "audio", "reasoningContent",
    "cachePoint",
)  # fmt: skip
"""Content blocks of Bedrock and Strands: objects with one of these keys in place of a type."""


class DamagedError(ValueError):
    """A conversation is malformed. The error quotes nothing from the conversation."""


@dataclass(frozen=True)
class Call:
    """A tool call; `failed` is whether the log says so of the call itself, not of its result."""

    name: str
    arguments: dict[str, Any]
    id: str = ""
    failed: bool = False


@dataclass(frozen=True)
class Turn:
    """One message, with a role, a text and tool calls.

    A message with role `tool` is the result of the call `id`; `error` is whether the call failed.
    """

    role: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    id: str = ""
    error: bool = False

    @property
    def content(self) -> tuple[Any, ...]:
        """The role, the text and the calls, without ids, which differ between copies of a message."""
        calls = tuple((call.name, json.dumps(call.arguments, sort_keys=True)) for call in self.calls)
        return self.role, " ".join(self.text.split()), calls


@dataclass(frozen=True)
class Conversation:
    """A conversation of a log.

    Attributes:
        place: The place of the conversation in the file, such as `line 3`.
        turns: The messages, except system messages.
        metadata: Further fields of the log, such as a user's id.
        notes: What a reviewer must know of the conversation.
    """

    place: str
    turns: tuple[Turn, ...]
    metadata: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Damage:
    """A conversation that cannot be read: its place and the cause."""

    place: str
    cause: str


def inner_json(text: str) -> Any:
    """Return the object or list that a text holds as JSON; None if it holds none."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return parse_json(text)
    except ValueError:
        return None


def conversation_of(
    place: str, turns: Sequence[Turn], metadata: dict[str, Any] | None = None
) -> Conversation:
    """Make a conversation from turns, without system messages and the calls of others than the agent.

    Raises:
        DamagedError: the user says nothing.
    """
    dialogue_turns = tuple(
        turn if turn.role == "assistant" else replace(turn, calls=())
        for turn in turns
        if turn.role != "system"
    )
    if not any(turn.role == "user" and turn.text.strip() for turn in dialogue_turns):
        raise DamagedError("has no message of a user")
    return Conversation(place, dialogue_turns, metadata or {})


def turns_of_model_call(request: Any, answer: Any) -> list[Turn]:
    """Parse a request to a model and its answer, in the shapes that APIs and SDKs record.

    A request is a text, a list of messages, or an object with either. An answer is a text, messages, a
    completion, or a response.

    Raises:
        DamagedError: a message is malformed.
    """
    if isinstance(request, dict) and "role" not in request:
        request = request.get("messages", request.get("input"))
    if isinstance(request, int | float):
        raise DamagedError(f"'messages' is {kind_name(request)}, not a list")
    if isinstance(answer, dict):
        choices = answer.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            answer = choices[0].get("message")
        else:
            answer = answer.get("output", answer)
    return turns_of([*_messages_of(request, "user"), *_messages_of(answer, "assistant")])


def _messages_of(value: Any, role: str) -> list[Any]:
    """Return a list of messages from a list, one message, or a text."""
    if isinstance(value, str) and value:
        return [{"role": role, "content": value}]
    if isinstance(value, dict):
        return [value] if "role" in value or "type" in value else []
    return value if isinstance(value, list) else []


def turns_of(messages: Any) -> list[Turn]:
    """Parse a list of messages or items, in any of the forms that `turns_of_message` reads.

    Raises:
        DamagedError: the value is not a list of such messages.
    """
    if not isinstance(messages, list):
        raise DamagedError(f"'messages' is {kind_name(messages)}, not a list")
    turns: list[Turn] = []
    for number, message in enumerate(messages, 1):
        try:
            new_turns = turns_of_message(message)
        except DamagedError as error:
            raise DamagedError(f"message {number} {error}") from None
        if _type_of(message) == "function_call" and turns and turns[-1].role == "assistant":
            turns[-1] = replace(turns[-1], calls=(*turns[-1].calls, *new_turns[0].calls))
        else:
            turns += new_turns
    return turns


def turns_of_message(message: Any) -> list[Turn]:
    """Parse one chat message of OpenAI, Anthropic, Inspect or OpenTelemetry's conventions, or one item of
    OpenAI's Responses API. The call of a tool that the provider runs becomes a text such as
    `[web_search_call]`; other items without a role or content have no turns.

    Raises:
        DamagedError: the value is not such a message.
    """
    if not isinstance(message, dict):
        raise DamagedError(f"is {kind_name(message)}, not an object")
    kind = _type_of(message)
    if kind == "function_call":
        return [Turn("assistant", calls=(call_of(message),))]
    if kind == "function_call_output":
        return [_result(message, message.get("call_id"), message.get("output"))]
    if kind in IGNORED_PARTS or (kind and "role" not in message and not message.get("content")):
        return [Turn("assistant", f"[{kind}]")] if kind.endswith("_call") else []
    role = ROLES.get(str(message.get("role")))
    if role is None:
        problem = "has an unknown role" if "role" in message or kind else "has no role"
        raise DamagedError(f"{problem}; known are {', '.join(ROLES)}")
    content = _typed_parts(message.get("parts", message.get("content")))
    if "parts" in message and not isinstance(content, list):
        raise DamagedError("has 'parts' that are no list of objects")
    has_results = _has_parts(content) and any(_type_of(part) in RESULT_PARTS for part in content)
    is_result = role == "tool" and not has_results
    if is_result and isinstance(content, dict) and "function" in content and "tool_call_id" not in message:
        return []  # Langfuse's handler of LangChain adds the definitions of the tools to the messages
    if is_result:
        return [_result(message, message.get("tool_call_id", message.get("id")), content)]
    text, parsed_calls, results = _read_content(content)
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise DamagedError(f"has 'tool_calls' of {kind_name(calls)}, not a list")
    parsed_calls += map(call_of, calls)
    if results and not parsed_calls and (role == "tool" or not text):
        return results
    return [*results, Turn(role, text, tuple(parsed_calls))]


def _result(item: dict[str, Any], call_id: Any, output: Any) -> Turn:
    """Make the turn of a call's result. A result is a text, a list of parts, or any other value."""
    output = _typed_parts(output)
    is_text = output is None or isinstance(output, str) or _has_parts(output)
    text = _read_content(output)[0] if is_text else json.dumps(output, ensure_ascii=False)
    value = inner_json(text)
    says_error = text.lstrip().startswith("Error") or (isinstance(value, dict) and _has_flag(value))
    return Turn("tool", text, id=_id_of(call_id), error=says_error or has_failed(item))


def _has_parts(content: Any) -> bool:
    return isinstance(content, list) and content != [] and all(map(_type_of, content))


def is_block(part: Any) -> bool:
    """Whether a part is one of `BLOCKS`."""
    return isinstance(part, dict) and len(part) == 1 and next(iter(part)) in BLOCKS


def _typed_parts(content: Any) -> Any:
    """Return a list of parts with types in place of Bedrock's blocks; other values stay."""
    is_list = isinstance(content, list)
    return [_typed(part) if is_block(part) else part for part in content] if is_list else content


def _typed(block: dict[str, Any]) -> dict[str, Any]:
    ((kind, value),) = block.items()
    if kind == "json":
        return {"type": "text", "text": json.dumps(value, ensure_ascii=False)}
    if kind in ("toolUse", "toolResult") and isinstance(value, dict):
        return {"type": f"tool_{kind[4:].lower()}", "id": value.get("toolUseId"), **value}
    return {"type": kind, kind: value}


def has_failed(item: dict[str, Any]) -> bool:
    """Whether a call, a result or a span is marked as failed: by an error, a flag, or a status."""
    status = item.get("status")
    if isinstance(status, dict):
        status = status.get("code", status.get("status_code"))
    failed = ("ERROR", "FAILED", "INCOMPLETE", "2")
    return _has_flag(item) or str(status).upper().removeprefix("STATUS_CODE_") in failed


def _has_flag(item: dict[str, Any]) -> bool:
    return any(item.get(name) for name in ("error", "is_error", "isError", "error.type"))


def _read_content(content: Any) -> tuple[str, list[Call], list[Turn]]:
    """Return the text, the calls and the results of calls that a message's content holds.

    The text has a placeholder such as `[image_url]` for each part of another type.
    """
    calls: list[Call] = []
    results: list[Turn] = []
    if content is None or isinstance(content, str):
        return content or "", calls, results
    if not isinstance(content, list):
        raise DamagedError(f"has a content of {kind_name(content)}, not text")
    texts: list[str] = []
    for part in content:
        kind = _type_of(part)
        if not kind:
            raise DamagedError(f"has a part of {kind_name(part)} without a type")
        if kind in TEXT_PARTS:
            text = part.get("text", part.get("refusal", part.get("content")))
            if not isinstance(text, str):
                raise DamagedError(f"has a part whose text is {kind_name(text)}")
            texts.append(text)
        elif kind in CALL_PARTS:
            calls.append(call_of(part))
        elif kind in RESULT_PARTS:
            output = next((part[key] for key in ("response", "result", "content") if key in part), None)
            results.append(_result(part, part.get("tool_use_id", part.get("id")), output))
        elif kind not in IGNORED_PARTS:
            texts.append(f"[{kind}]")
    return "\n".join(filter(None, texts)), calls, results


def _type_of(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""


def call_of(call: Any) -> Call:
    """Parse a tool call in the form of OpenAI, Anthropic, Inspect or OpenTelemetry's conventions.

    Raises:
        DamagedError: the call is not an object, or has no name.
    """
    if not isinstance(call, dict):
        raise DamagedError(f"has a tool call that is {kind_name(call)}, not an object")
    inner = call.get("function")
    body = inner if isinstance(inner, dict) else call
    name = body.get("name", inner)
    if not isinstance(name, str) or not name:
        raise DamagedError("has a tool call without a name")
    arguments = body.get("arguments", body.get("input", body.get("args")))
    value = inner_json(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(value, dict):
        value = {MALFORMED: json.dumps(arguments)} if arguments else {}
    return Call(name, value, _id_of(call.get("call_id") or call.get("id")), has_failed(call))


def _id_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def kind_name(value: Any) -> str:
    """Return the JSON type of a value, for an error message."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean"}
    return "missing" if value is None else names.get(type(value), "a number")
