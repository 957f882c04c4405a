"""Drafts written tasks from conversations. Personal data are replaced first."""

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_trace2evolve.importing.conversation import MALFORMED, Conversation, Turn
from pytest_trace2evolve.importing.records import Table, find_records, tables_of
from pytest_trace2evolve.importing.redact import Redactor, Scope
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.utils.canonical import digest

_READ_ALL = "Read every line for personal data that was missed."
NOTE = "expect.calls is what the agent did, not what is right: correct it."

MAX_GOAL = 500

_READ_VERBS = re.compile(
    "get|list|find|search|lookup|look|read|check|show|fetch|query|retrieve|view|describe|calculate|compute|think"
    "|verify|validate|count|browse|load|select|inspect|track|estimate|compare|is|has|can"
)
"""Words that begin the names of tools that only read."""

_CHANGE_VERBS = re.compile(
    "add|apply|approve|book|buy|cancel|change|clear|close|create|delete|edit|email|insert|join|mark|modify|move"
    "|pay|place|post|put|refund|register|remove|reply|reserve|reset|save|send|set|share|submit|transfer|update"
    "|write"
)
"""Words that keep a tool with a server's name from being a read."""


Draft = dict[str, Any]
"""A written task with the key `draft`."""


def drafts_of(
    conversations: Iterable[Conversation],
    redactor: Redactor,
    source: str,
    format: str,
    until: int = 1,
    world: World | None = None,
) -> list[Draft]:
    """Draft a task from each conversation. Records of the world's tables go into the task's data.

    Args:
        conversations: The conversations of a log.
        redactor: What replaces personal data.
        source: The name of the log.
        format: The format of the log.
        until: The number of the customer's message that opens the task. Earlier messages become the history.
        world: The project's world, if it has one.
    """
    tables = tables_of(world)
    conversation_list = list(conversations)
    scopes = [redactor.learn(_draft_values(conversation)) for conversation in conversation_list]
    origin = {"source": redactor.redact(source, redactor.learn(source)), "format": format}
    drafts: list[Draft] = []
    n_drafts_by_id: Counter[str] = Counter()
    for conversation, scope in zip(conversation_list, scopes, strict=True):
        turns = tuple(_redacted_turn(turn, redactor, scope) for turn in conversation.turns)
        place = redactor.redact(conversation.place, scope)
        conversation = Conversation(place, turns, notes=conversation.notes)
        draft = _draft_task(conversation, origin, until, _named_records(turns, tables))
        n_drafts_by_id[draft["id"]] += 1
        if (number := n_drafts_by_id[draft["id"]]) > 1:
            draft["id"] += f"-{number}"
        drafts.append(draft)
    return drafts


def _draft_values(conversation: Conversation) -> dict[str, Any]:
    """Return the values of a conversation in which personal data is looked for."""
    return {
        "metadata": conversation.metadata,
        "place": conversation.place,
        "messages": [
            {"content": turn.text, "calls": [{"arguments": call.arguments} for call in turn.calls]}
            for turn in conversation.turns
        ],
    }


def _redacted_turn(turn: Turn, redactor: Redactor, scope: Scope) -> Turn:
    text = redactor.redact(turn.text, scope)
    calls = tuple(
        replace(call, arguments=redactor.redact_fields(call.arguments, scope)) for call in turn.calls
    )
    return Turn(turn.role, text, calls, turn.id, turn.error)


def _draft_task(
    conversation: Conversation, origin: Mapping[str, str], until: int, data: Mapping[str, Any]
) -> Draft:
    turns = conversation.turns
    user_places = [place for place, turn in enumerate(turns) if turn.role == "user" and turn.text.strip()]
    opening_place = user_places[min(until, len(user_places)) - 1]
    successful_calls = _successful_calls(turns[opening_place:])
    changes = [call for call in successful_calls if not _only_reads(call["name"])]
    texts = " ".join(turn.text for turn in turns if turn.role == "user")
    identity = digest([turn.content for turn in turns])
    main_call = (changes or successful_calls or [{"name": "talk"}])[0]["name"]
    name = re.sub(r"[^a-z0-9]+", "-", main_call.casefold()).strip("-")
    opening = turns[opening_place].text
    said = " ".join(turn.text for turn in turns[opening_place:] if turn.role == "user")
    user: dict[str, Any] = {
        "goal": textwrap.shorten(said, MAX_GOAL, placeholder="…"),
        "opening": opening,
        "knows": _known_facts(successful_calls, texts),
    }
    draft: Draft = {
        "id": f"{name[:40] or 'talk'}-{identity[:8]}",
        "user": {key: value for key, value in user.items() if value},
        "expect": {"calls": changes} if changes else {"data": {}},
        "data": data,
        "history": _messages(turns[:opening_place]),
        "draft": {
            **origin,
            "place": conversation.place or "whole file",
            "digest": identity,
            "notes": [*conversation.notes, NOTE if changes else _NO_CHANGE, _READ_ALL],
        },
    }
    return {key: value for key, value in draft.items() if value}


def _named_records(turns: Sequence[Turn], tables: Mapping[str, Table]) -> dict[str, dict[str, Any]]:
    """Return the records that tools returned before the agent changed them, by table and id."""
    calls = [call for turn in turns for call in turn.calls]
    changed_text = ""
    data: dict[str, dict[str, Any]] = {}
    for index, number in sorted(_answered_calls(turns).items()):
        call = calls[number]
        if not _only_reads(call.name):
            changed_text += json.dumps(call.arguments, ensure_ascii=False)
        elif not turns[index].error:
            for table, record_id, record in find_records(turns[index].text, call.arguments, tables):
                if record_id not in changed_text and record != tables[table].get(record_id):
                    data.setdefault(table, {}).setdefault(record_id, record)
    return data


_NO_CHANGE = "The agent called no tool that changes something, so the data must stay: say if that is right."


def _successful_calls(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return the calls whose arguments are an object, and of which neither the call nor its result failed."""
    calls = [call for turn in turns for call in turn.calls]
    failed = {number for index, number in _answered_calls(turns).items() if turns[index].error}
    return [
        {"name": call.name, "arguments": call.arguments}
        for number, call in enumerate(calls)
        if MALFORMED not in call.arguments and not call.failed and number not in failed
    ]


def _answered_calls(turns: Sequence[Turn]) -> dict[int, int]:
    """Return the number of the call that each result answers, by the index of the result in `turns`.

    A result whose id is that of no call answers the first call without a result.
    """
    ids: list[str] = []
    unanswered: list[int] = []
    answered: dict[int, int] = {}
    for index, turn in enumerate(turns):
        unanswered += range(len(ids), len(ids) + len(turn.calls))
        ids += [call.id for call in turn.calls]
        has_id = turn.id != "" and turn.id in ids
        candidates = [number for number in unanswered if not has_id or ids[number] == turn.id]
        if turn.role == "tool" and candidates:
            answered[index] = candidates[0]
            unanswered.remove(candidates[0])
    return answered


def _only_reads(name: str) -> bool:
    """Whether a tool seems to only read: by the first word of its name, without a prefix for its server.

    SDKs write `mcp__SERVER__TOOL`, `server.tool`, `server:tool`, `server/tool` and `server_tool`.
    """
    tool_name = next((part for part in reversed(re.split(r"__|[.:/]", name)) if part), "")
    words = [word.casefold() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", tool_name)]
    if words and _READ_VERBS.fullmatch(words[0]):
        return True
    return any(map(_READ_VERBS.fullmatch, words[1:-1])) and not any(map(_CHANGE_VERBS.fullmatch, words))


def _known_facts(calls: Sequence[Mapping[str, Any]], texts: str) -> dict[str, Any]:
    """Return the arguments of calls that the customer's texts hold, by name."""
    known: dict[str, Any] = {}
    for call in calls:
        for name, value in call["arguments"].items():
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                continue
            text = str(value)
            if 2 <= len(text) <= 200 and re.search(rf"(?i)(?<!\w){re.escape(text)}(?!\w)", texts):
                known.setdefault(name, value)
    return known


def _messages(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Convert turns to OpenAI's messages, with new call ids.

    Results follow their calls in the order of the calls. Results without a call are left out.
    """
    results = {number: turns[index].text for index, number in _answered_calls(turns).items()}
    messages: list[dict[str, Any]] = []
    n_calls = 0
    for turn in turns:
        if turn.role == "tool" or not (turn.text or turn.calls):
            continue
        message: dict[str, Any] = {"role": turn.role, "content": turn.text}
        messages.append(message)
        for number, call in enumerate(turn.calls, n_calls):
            call_id = f"call_{number + 1}"
            function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
            message.setdefault("tool_calls", []).append(
                {"id": call_id, "type": "function", "function": function}
            )
            if number in results:
                messages.append({"role": "tool", "content": results[number], "tool_call_id": call_id})
        n_calls += len(turn.calls)
    return messages
