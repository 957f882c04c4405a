"""Conversations from logs: validated chat messages in OpenAI's form, with tool calls as objects."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_trace2evolve.utils.canonical import storable_text
from pytest_trace2evolve.utils.reading import parse_json

MALFORMED = "malformed_arguments"
"""The name under which a call's arguments are kept if they are not a JSON object."""

ROLES = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
    "ai": "assistant", "model": "assistant", "tool": "tool", "function": "tool",
}  # fmt: skip
"""Roles in logs, each with the corresponding role of OpenAI's messages."""

TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
IGNORED_PARTS = ("reasoning", "thinking", "redacted_thinking", "compaction")


class DamagedError(ValueError):
    """A conversation is malformed. The error quotes nothing from the conversation."""


@dataclass(frozen=True)
class Call:
    """A tool call."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


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
    """

    place: str
    turns: tuple[Turn, ...]
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Damage:
    """A conversation that cannot be read: its place and the cause."""

    place: str
    cause: str


def conversation_of(
    place: str, turns: Sequence[Turn], metadata: dict[str, Any] | None = None
) -> Conversation:
    """Make a conversation from turns.

    Raises:
        DamagedError: the user says nothing.
    """
    dialogue_turns = tuple(turn for turn in turns if turn.role != "system")
    if not any(turn.role == "user" and turn.text.strip() for turn in dialogue_turns):
        raise DamagedError("has no message of a user")
    return Conversation(place, dialogue_turns, metadata or {})


def turns_of(messages: Any) -> list[Turn]:
    """Parse a list of chat messages in the form of OpenAI's APIs, LangChain or Inspect.

    Raises:
        DamagedError: the value is not a list of such messages.
    """
    if not isinstance(messages, list):
        raise DamagedError(f"'messages' is {kind_name(messages)}, not a list")
    turns: list[Turn] = []
    for number, message in enumerate(messages, 1):
        try:
            turns.append(turn_of(message))
        except DamagedError as error:
            raise DamagedError(f"message {number} {error}") from None
    return turns


def turn_of(message: Any) -> Turn:
    """Parse one chat message.

    Raises:
        DamagedError: the value is not a chat message.
    """
    if not isinstance(message, dict):
        raise DamagedError(f"is {kind_name(message)}, not an object")
    kind = message.get("type")
    if kind == "function_call":  # OpenAI's Responses API
        return Turn("assistant", calls=(call_of(message),))
    if kind == "function_call_output":
        return Turn("tool", text_of(message.get("output")), id=_id_of(message.get("call_id")))
    role_name = message.get("role", kind)
    role = ROLES.get(role_name) if isinstance(role_name, str) else None
    if role is None:
        problem = "has no role" if role_name is None else "has an unknown role"
        raise DamagedError(f"{problem}; known are {', '.join(ROLES)}")
    text = text_of(message.get("content"))
    if role == "tool":
        call_id = message.get("tool_call_id", message.get("id"))
        has_failed = bool(message.get("error")) or message.get("status") == "error"
        return Turn(role, text, id=_id_of(call_id), error=has_failed or text.lstrip().startswith("Error"))
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise DamagedError(f"has 'tool_calls' of {kind_name(calls)}, not a list")
    parsed_calls = [call_of(call) for call in calls]
    if isinstance(message.get("function_call"), dict):
        parsed_calls.append(call_of(message["function_call"]))
    if isinstance(message.get("content"), list):
        parsed_calls += [call_of(part) for part in message["content"] if _type_of(part) == "tool_use"]
    return Turn(role, text, tuple(parsed_calls))


def text_of(content: Any) -> str:
    """Return the text of a message's content, with a placeholder such as `[image]` for each image or file.

    Raises:
        DamagedError: the content is neither text, an object, nor a list of valid parts.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return storable_text(content)
    if isinstance(content, dict):
        return json.dumps(content, ensure_ascii=False)
    if not isinstance(content, list):
        raise DamagedError(f"has a content of {kind_name(content)}, not text")
    texts: list[str] = []
    for part in content:
        kind = _type_of(part)
        if isinstance(part, str):
            texts.append(storable_text(part))
        elif kind in TEXT_PARTS or (
            kind == "" and isinstance(part, dict) and isinstance(part.get("text"), str)
        ):
            text = part.get("text", part.get("refusal"))
            if not isinstance(text, str):
                raise DamagedError(f"has a part whose text is {kind_name(text)}")
            texts.append(storable_text(text))
        elif kind and kind not in (*IGNORED_PARTS, "tool_use"):
            texts.append(f"[{'image' if 'image' in kind else 'file'}]")
        elif not kind:
            raise DamagedError(f"has a part of {kind_name(part)} without a type")
    return "\n".join(text for text in texts if text)


def _type_of(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""


def call_of(call: Any) -> Call:
    """Parse a tool call in the form of OpenAI, LangChain, Anthropic, Inspect or τ².

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
    return Call(storable_text(name), arguments_of(arguments), _id_of(call.get("id", call.get("call_id"))))


def arguments_of(arguments: Any) -> dict[str, Any]:
    """Return a call's arguments from an object or its JSON. Any other value is kept under `MALFORMED`."""
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            parsed = parse_json(arguments)
        except ValueError:
            return {MALFORMED: storable_text(arguments)}
        return parsed if isinstance(parsed, dict) else {MALFORMED: storable_text(arguments)}
    return arguments if isinstance(arguments, dict) else {MALFORMED: json.dumps(arguments, default=str)}


def _id_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def kind_name(value: Any) -> str:
    """Return the JSON type of a value, for an error message."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return "missing" if value is None else names.get(type(value), type(value).__name__)


def merged(snapshots: Sequence[Sequence[Turn]]) -> list[Turn]:
    """Join snapshots of conversations, one for each model call. Snapshots repeat earlier messages.

    A snapshot that begins with all earlier messages replaces them. A snapshot that overlaps with the end of
    the earlier messages, or continues them, extends them. Any other snapshot starts a conversation of its
    own, such as that of a sub-agent. Only the longest conversation is returned; of several, the first.
    """
    threads: list[list[Turn]] = []
    for snapshot in snapshots:
        turns = [turn for turn in snapshot if turn.role != "system"]
        if turns and not any(_extend(thread, turns) for thread in threads):
            threads.append(turns)
    return max(threads, key=len, default=[])


def _extend(thread: list[Turn], turns: list[Turn]) -> bool:
    """Add new turns to a thread. Return False if the turns belong to a different conversation."""
    old, new = [turn.content for turn in thread], [turn.content for turn in turns]
    if new[: len(old)] == old or old[: len(new)] == new:
        thread[:] = turns if len(turns) > len(thread) else thread
        return True
    n_overlapping = next(
        (size for size in range(min(len(old), len(new)), 0, -1) if old[-size:] == new[:size]), 0
    )
    n_shared = sum(1 for _ in _common_start(old, new))
    if n_overlapping:
        thread += turns[n_overlapping:]
    elif n_shared and len(new) > n_shared:
        thread[n_shared:] = turns[n_shared:]  # the same conversation, after a retry or an edit
    elif new[0][0] == "tool" or (old[-1][0] == "assistant" and len(new) <= 2 and not old[-1][2]):
        thread += turns
    else:
        return False
    return True


def _common_start(first: Sequence[Any], second: Sequence[Any]) -> Sequence[Any]:
    size = 0
    while size < min(len(first), len(second)) and first[size] == second[size]:
        size += 1
    return first[:size]
