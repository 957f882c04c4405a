"""Conversations from logs: validated chat messages in OpenAI's form, with tool calls as objects."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_trace2evolve.importing.names import word_set
from pytest_trace2evolve.utils.reading import parse_json

MALFORMED = "malformed_arguments"
"""The name under which a call's arguments are kept if they are not a JSON object."""

ROLES = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
    "ai": "assistant", "model": "assistant", "tool": "tool", "function": "tool",
}  # fmt: skip
"""Roles in logs, each with the corresponding role of OpenAI's messages."""

TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
CALL_PARTS = ("tool_use", "tool_call", "function", "function_call")
RESULT_PARTS = ("tool_result", "tool_call_response")
IGNORED_PARTS = word_set("reasoning thinking redacted_thinking compaction reasoningContent cachePoint")
BLOCKS = word_set("text json toolUse toolResult image document video audio reasoningContent cachePoint")
"""Content blocks of Bedrock and Strands: objects with one of these keys in place of a type."""

_CALL_ITEMS = ("function_call", "custom_tool_call", "mcp_call")
_FAILED_STATUSES = ("ERROR", "FAILED", "INCOMPLETE", "2")


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
        sample: What the conversation is a repetition of, such as a sample that was run in several epochs.
    """

    place: str
    turns: tuple[Turn, ...]
    metadata: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sample: str = ""


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
        names = ("messages", "input", "prompt")
        request = next((request[name] for name in names if request.get(name) is not None), None)
    if isinstance(request, int | float):
        raise DamagedError(f"'messages' is {kind_name(request)}, not a list")
    if isinstance(answer, dict):
        choices = answer.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            answer = choices[0].get("message")
        elif isinstance(answer.get("messages", answer.get("output")), list):
            answer = answer.get("messages", answer.get("output"))
    return turns_of([*_messages_of(request, "user"), *_messages_of(answer, "assistant")])


def _messages_of(value: Any, role: str) -> list[Any]:
    """Return a list of messages from a list, one message, or a text."""
    if isinstance(value, str) and value:
        return [{"role": role, "content": value}]
    if isinstance(value, dict):
        is_message = not value.keys().isdisjoint(("role", "content", "tool_calls", "parts", "type"))
        return [value if "type" in value else {"role": role, **value}] if is_message else []
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
            for turn in turns_of_message(message):
                last = turns[-1] if turns else Turn("")
                if _type_of(message) in _CALL_ITEMS and turn.role == last.role == "assistant":
                    turns[-1] = replace(last, calls=(*last.calls, *turn.calls))
                else:
                    turns.append(turn)
        except DamagedError as error:
            raise DamagedError(f"message {number} {error}") from None
    return turns


def turns_of_message(message: Any) -> list[Turn]:
    """Parse one chat message of OpenAI, Anthropic, LangChain, Inspect or OpenTelemetry's conventions, or one
    item of OpenAI's Responses API. An item of another type without a role or content has no turns.

    Raises:
        DamagedError: the value is not such a message.
    """
    if not isinstance(message, dict):
        raise DamagedError(f"is {kind_name(message)}, not an object")
    kind = _type_of(message)
    role_name = message.get("role", kind or None)
    role = ROLES.get(role_name) if isinstance(role_name, str) else None
    content = message.get("parts", message.get("content"))
    if role is None or kind in _CALL_ITEMS:
        return _turns_of_item(message, kind)
    if "parts" in message and not isinstance(content, list):
        raise DamagedError("has 'parts' that are no list of objects")
    call_id = message.get("tool_call_id", message.get("id"))
    if role == "tool" and "parts" not in message and not _has_parts(content):
        return [_result(message, call_id, content)]
    text, parsed_calls, results = _read_content(content)
    if role == "tool" and not results and not parsed_calls:
        return [_result(message, call_id, text)]
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise DamagedError(f"has 'tool_calls' of {kind_name(calls)}, not a list")
    parsed_calls += map(call_of, calls)
    if results and not text and not parsed_calls:
        return results
    return [*results, Turn("assistant" if role == "tool" else role, text, tuple(parsed_calls))]


def _turns_of_item(item: dict[str, Any], kind: str) -> list[Turn]:
    """Parse an item of the Responses API that is no message."""
    if kind in _CALL_ITEMS:
        is_custom = kind == "custom_tool_call"
        call = call_of({**item, "arguments": {"input": item.get("input")}} if is_custom else item)
        turn = Turn("assistant", calls=(call,))
        is_answered = kind == "mcp_call" and (item.get("output") is not None or call.failed)
        return [turn, _result(item, call.id, item.get("output"))] if is_answered else [turn]
    if kind in ("function_call_output", "custom_tool_call_output"):
        return [_result(item, item.get("call_id"), item.get("output"))]
    if not kind or "role" in item or item.get("content"):
        problem = "has an unknown role" if "role" in item or kind else "has no role"
        raise DamagedError(f"{problem}; known are {', '.join(ROLES)}")
    # A tool that the provider runs, such as `web_search_call`, is kept as a text for the reader.
    return [Turn("assistant", f"[{kind}]")] if kind.endswith("_call") else []


def _result(item: dict[str, Any], call_id: Any, output: Any) -> Turn:
    """Make the turn of a call's result. A result is a text, a list of parts, or any other value."""
    is_text = output is None or isinstance(output, str) or _has_parts(output)
    text = _read_content(output)[0] if is_text else json.dumps(output, ensure_ascii=False)
    value = inner_json(text)
    says_error = text.lstrip().startswith("Error") or (isinstance(value, dict) and _has_flag(value))
    return Turn("tool", text, id=id_of(call_id), error=has_failed(item) or says_error)


def _has_parts(content: Any) -> bool:
    return isinstance(content, list) and all(
        isinstance(part, str) or _type_of(part) or is_block(part) for part in content
    )


def is_block(part: Any) -> bool:
    """Whether a part is one of `BLOCKS`."""
    return isinstance(part, dict) and len(part) == 1 and next(iter(part)) in BLOCKS


def _typed(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block of Bedrock with a type, as other parts have it."""
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
    names = {str(value).upper().removeprefix("STATUS_CODE_") for value in (status, item.get("level"))}
    return _has_flag(item) or not names.isdisjoint(_FAILED_STATUSES)


def _has_flag(item: dict[str, Any]) -> bool:
    return any(item.get(name) for name in ("error", "is_error", "isError", "error.type"))


def _read_content(content: Any) -> tuple[str, list[Call], list[Turn]]:
    """Return the text, the calls and the results of calls that a message's content holds.

    The text has a placeholder such as `[image]` for each image or file.
    """
    calls: list[Call] = []
    results: list[Turn] = []
    if content is None or isinstance(content, str):
        return content or "", calls, results
    if isinstance(content, dict):
        return json.dumps(content, ensure_ascii=False), calls, results
    if not isinstance(content, list):
        raise DamagedError(f"has a content of {kind_name(content)}, not text")
    texts: list[str] = []
    for part in (_typed(part) if is_block(part) else part for part in content):
        kind = _type_of(part)
        if isinstance(part, str):
            texts.append(part)
        elif kind in TEXT_PARTS:
            text = part.get("text", part.get("refusal", part.get("content")))
            if not isinstance(text, str):
                raise DamagedError(f"has a part whose text is {kind_name(text)}")
            texts.append(text)
        elif kind in CALL_PARTS:
            calls.append(call_of(part))
        elif kind in RESULT_PARTS:
            output = next((part[key] for key in ("response", "result", "content") if key in part), None)
            results.append(_result(part, part.get("tool_use_id", part.get("id")), output))
        elif not kind:
            raise DamagedError(f"has a part of {kind_name(part)} without a type")
        elif kind not in IGNORED_PARTS:
            is_image = "image" in kind or part.get("modality") == "image"
            texts.append("[image]" if is_image else "[file]")
    return "\n".join(filter(None, texts)), calls, results


def _type_of(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""


def call_of(call: Any) -> Call:
    """Parse a tool call in the form of OpenAI, LangChain, Anthropic or Inspect.

    Raises:
        DamagedError: the call is not an object, or has no name.
    """
    if not isinstance(call, dict):
        raise DamagedError(f"has a tool call that is {kind_name(call)}, not an object")
    inner = call.get("function")
    body = inner if isinstance(inner, dict) else call
    name = body.get("name", inner if isinstance(inner, str) else None)
    if not isinstance(name, str) or not name:
        raise DamagedError("has a tool call without a name")
    arguments = next((body[key] for key in ("arguments", "args", "input", "parameters") if key in body), None)
    return Call(
        name, _arguments_of(arguments), id_of(call.get("call_id") or call.get("id")), has_failed(call)
    )


def _arguments_of(arguments: Any) -> dict[str, Any]:
    """Return a call's arguments from an object or its JSON. Any other value is kept under `MALFORMED`."""
    value = inner_json(arguments) if isinstance(arguments, str) else arguments
    if isinstance(value, dict):
        return value
    if not arguments:
        return {}
    return {MALFORMED: arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)}


def id_of(value: Any) -> str:
    """Return an id as a text. Microsoft's agent framework writes a list of two ids."""
    return value if isinstance(value, str) else json.dumps(value) if value else ""


def kind_name(value: Any) -> str:
    """Return the JSON type of a value, for an error message."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean"}
    return "missing" if value is None else names.get(type(value), "a number")
