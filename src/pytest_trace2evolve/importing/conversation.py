"""Conversations from logs: validated chat messages in OpenAI's form, with tool calls as objects."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
CALL_PARTS = ("tool_use", "tool_call", "function", "function_call")
RESULT_PARTS = ("tool_result", "tool_call_response", "function_response")
_GOOGLE_PARTS = (
    "functionCall",
    "function_call",
    "functionResponse",
    "function_response",
    "inlineData",
    "fileData",
)
IGNORED_PARTS = ("reasoning", "thinking", "redacted_thinking", "compaction")

_CALL_ITEMS = ("function_call", "custom_tool_call", "mcp_call")
_IGNORED_ITEMS = (
    *(
        *IGNORED_PARTS,
        "compaction_trigger",
        "item_reference",
        "program",
        "program_output",
        "tool_search_output",
    ),
    *("additional_tools", "configuration_update", "mcp_list_tools", "mcp_approval_request"),
    "mcp_approval_response",
)
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
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict | list) else None


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
    """Parse one chat message of OpenAI, Anthropic, Google, LangChain, Inspect or τ², or of OpenTelemetry's
    conventions, or one item of OpenAI's Responses API. An ignored item has no turns.

    Raises:
        DamagedError: the value is not such a message.
    """
    if not isinstance(message, dict):
        raise DamagedError(f"is {kind_name(message)}, not an object")
    kind = _type_of(message)
    if kind in _IGNORED_ITEMS:
        return []
    if kind in _CALL_ITEMS:
        is_custom = kind == "custom_tool_call"
        call = call_of({**message, "arguments": {"input": message.get("input")}} if is_custom else message)
        turn = Turn("assistant", calls=(call,))
        is_answered = kind == "mcp_call" and (message.get("output") is not None or call.failed)
        return [turn, _result(message, call.id, message.get("output"))] if is_answered else [turn]
    if kind in ("function_call_output", "custom_tool_call_output"):
        return [_result(message, message.get("call_id"), message.get("output"))]
    if kind.endswith("_call"):  # a tool that the provider runs, such as `web_search_call`
        return [Turn("assistant", f"[{kind}]")]
    if kind.endswith("_call_output"):
        return []
    role_name = message.get("role", kind or None)
    role = ROLES.get(role_name) if isinstance(role_name, str) else None
    if role is None:
        problem = "has no role" if role_name is None else "has an unknown role"
        if kind and "role" not in message:
            raise DamagedError("has an unknown type and no role")
        raise DamagedError(f"{problem}; known are {', '.join(ROLES)}")
    content = message.get("parts", message.get("content"))
    if "parts" in message and not isinstance(content, list):
        raise DamagedError("has 'parts' that are no list of objects")
    call_id = message.get("tool_call_id", message.get("id"))
    if role == "tool" and "parts" not in message and not _has_parts(content):
        return [_result(message, call_id, content)]
    text, parsed_calls, results = _read_content(content)
    if role == "tool" and not results and not parsed_calls:
        return [_result(message, call_id, text)]
    extra = message.get("additional_kwargs")
    calls = message.get("tool_calls") or (extra.get("tool_calls") if isinstance(extra, dict) else None) or []
    if not isinstance(calls, list):
        raise DamagedError(f"has 'tool_calls' of {kind_name(calls)}, not a list")
    parsed_calls += [call_of(call) for call in calls]
    if isinstance(message.get("function_call"), dict):
        parsed_calls.append(call_of(message["function_call"]))
    if results and not text and not parsed_calls:
        return results
    return [*results, Turn("assistant" if role == "tool" else role, text, tuple(parsed_calls))]


def _result(item: dict[str, Any], call_id: Any, output: Any) -> Turn:
    """Make the turn of a call's result. A result is a text, a list of parts, or any other value."""
    is_text = output is None or isinstance(output, str) or _has_parts(output)
    text = _read_content(output)[0] if is_text else json.dumps(output, ensure_ascii=False)
    value = inner_json(text)
    says_error = text.lstrip().startswith("Error") or (isinstance(value, dict) and _has_flag(value))
    return Turn("tool", text, id=id_of(call_id), error=has_failed(item) or says_error)


def _has_parts(content: Any) -> bool:
    return isinstance(content, list) and all(isinstance(part, str) or _type_of(part) for part in content)


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
        return storable_text(content or ""), calls, results
    if isinstance(content, dict):
        return json.dumps(content, ensure_ascii=False), calls, results
    if not isinstance(content, list):
        raise DamagedError(f"has a content of {kind_name(content)}, not text")
    texts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(storable_text(part))
            continue
        kind = _type_of(part)
        if not kind and isinstance(part, dict):  # Google's parts have a key in place of a type
            key = next((key for key in part if key in ("text", *_GOOGLE_PARTS)), "")
            kind = re.sub(r"([A-Z])", r"_\1", key).lower()
            part = {**part[key], "type": kind} if isinstance(part.get(key), dict) else part
        if kind in TEXT_PARTS:
            text = part.get("text", part.get("refusal", part.get("content")))
            if not isinstance(text, str):
                raise DamagedError(f"has a part whose text is {kind_name(text)}")
            texts.append(storable_text(text))
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
    call_id = id_of(call.get("call_id") or call.get("id"))
    return Call(storable_text(name), arguments_of(arguments), call_id, has_failed(call))


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


def id_of(value: Any) -> str:
    """Return an id as a text. Microsoft's agent framework writes a list of two ids."""
    return value if isinstance(value, str) else json.dumps(value) if value else ""


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


# ---- model calls


@dataclass
class ModelCall:
    """A call of a model: its place in the file and its messages, which may repeat earlier ones.

    `id` is that of the response, and `previous` that of the response that the call continues without a
    repetition. `start` orders the calls of one conversation, which `group` names.
    """

    place: str
    turns: list[Turn]
    start: str = ""
    id: str = ""
    previous: str = ""
    group: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


def model_call_of(place: str, request: Any, answer: Any, start: str = "") -> ModelCall:
    """Parse a request to a model and its answer, in the shapes that APIs and SDKs record.

    A request is a text, a list of messages, or an object with either. An answer is a text, messages, a
    completion, a response, or the events of a stream.

    Raises:
        DamagedError: a message is malformed.
    """
    answer = _last_event(answer)
    ids: list[str] = []
    for name in ("id", "previous_response_id"):
        values = [item.get(name) for item in (answer, request) if isinstance(item, dict)]
        ids.append(next((value for value in values if isinstance(value, str)), ""))
    if isinstance(request, dict) and "role" not in request and not _type_of(request):
        names = ("messages", "input", "prompt", "contents")
        request = next((request[name] for name in names if request.get(name) is not None), None)
    if isinstance(request, str):
        turns = [Turn("user", storable_text(request))]
    elif isinstance(request, dict):
        turns = turns_of([request]) if "role" in request or _type_of(request) else []
    else:
        turns = [] if request is None else turns_of(request)
    return ModelCall(place, turns + _answer_turns(answer), start, ids[0], ids[1])


def _last_event(answer: Any) -> Any:
    """Return the response that the events of a stream end with, also as text; other values stay."""
    if isinstance(answer, str) and answer.startswith(("event:", "data:")):
        lines = (inner_json(line.removeprefix("data:")) for line in answer.splitlines())
        answer = [event for event in lines if event is not None]
    events = answer if isinstance(answer, list) else [answer]
    if not any(_type_of(event).startswith("response.") for event in events):
        return answer
    events = [event for event in events if isinstance(event, dict)]
    responses = [event["response"] for event in events if isinstance(event.get("response"), dict)]
    done = [event.get("item") for event in events if _type_of(event) == "response.output_item.done"]
    last = responses[-1] if responses else {}
    return last if last.get("output") else {**last, "output": done}


def _answer_turns(answer: Any) -> list[Turn]:
    if isinstance(answer, dict) and answer.get("object") == "response":
        return turns_of(answer.get("output"))
    if isinstance(answer, dict):
        choices = answer.get("choices") or answer.get("candidates")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            choice = choices[0]
            answer = [choice.get("message", choice.get("content"))]
        elif isinstance(answer.get("content"), dict) and "role" not in answer:
            answer = [answer["content"]]
        else:
            lists = (answer.get(name) for name in ("output", "messages"))
            answer = next((value for value in lists if isinstance(value, list)), answer)
    if isinstance(answer, str) and answer:
        return [Turn("assistant", storable_text(answer))]
    if isinstance(answer, dict):
        is_message = not answer.keys().isdisjoint(("role", "content", "tool_calls", "parts"))
        answer = [{"role": "assistant", **answer}] if is_message or _type_of(answer) else []
    return turns_of(answer) if isinstance(answer, list) else []


def joined(calls: Sequence[ModelCall | Damage]) -> dict[int, ModelCall]:
    """Join each call with the earlier calls that it continues, in any order of the log.

    Returns:
        The last call of each chain, by its index, with the messages of all. Its place is that of the first.
    """
    by_id = {call.id: call for call in calls if isinstance(call, ModelCall) and call.id}
    continued = {call.previous for call in calls if isinstance(call, ModelCall)} & by_id.keys()
    last_calls: dict[int, ModelCall] = {}
    seen: set[str] = set()

    def add(index: int, call: ModelCall) -> None:
        chain, ids = [call], {call.id}
        while (earlier := by_id.get(chain[-1].previous)) is not None and earlier.id not in ids:
            ids.add(earlier.id)
            chain.append(earlier)
        seen.update(ids)
        turns: list[Turn] = []
        for link in reversed(chain):
            n_shared = len(_common_start(turns, link.turns))
            turns += link.turns[n_shared if n_shared == len(turns) else 0 :]
        last_calls[index] = replace(chain[-1], turns=turns, start=call.start)

    for is_last in (True, False):  # if calls continue each other in a circle, none of them is the last
        for index, call in enumerate(calls):
            if not isinstance(call, ModelCall) or is_last == (call.id in continued):
                continue
            if is_last or call.id not in seen:
                add(index, call)
    return last_calls


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
    n_shared = len(_common_start(thread, turns))
    if n_overlapping:
        thread += turns[n_overlapping:]
    elif n_shared and len(new) > n_shared:
        thread[n_shared:] = turns[n_shared:]  # the same conversation, after a retry or an edit
    elif new[0][0] == "tool" or (
        old[-1][0] == "assistant" and not old[-1][2] and all(role == "assistant" for role, *_ in new[1:])
    ):
        thread += turns
    else:
        return False
    return True


def _common_start(first: Sequence[Turn], second: Sequence[Turn]) -> Sequence[Turn]:
    size = 0
    while size < min(len(first), len(second)) and first[size].content == second[size].content:
        size += 1
    return first[:size]
