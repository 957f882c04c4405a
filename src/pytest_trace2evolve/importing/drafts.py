"""Drafts written tasks from conversations. Personal data are replaced first."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_trace2evolve.importing.conversation import MALFORMED, Conversation, Turn
from pytest_trace2evolve.importing.names import word_set
from pytest_trace2evolve.importing.records import Table, find_records, tables_of
from pytest_trace2evolve.importing.redact import CUSTOMER, Facts, Redactor, Scope
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.utils.canonical import digest

NOTES = (
    "expect.calls is what the agent did, not what is right: correct it.",
    "Read every line for personal data that was missed.",
)

MAX_GOAL = 200
MAX_METADATA = 20

_READ_VERBS = word_set(
    "get list find search lookup look read check show fetch query retrieve view describe calculate compute "
    "think verify validate count browse load select inspect track estimate compare is has can"
)
"""Words that begin the names of tools that only read."""

_PREFIXED_READ_VERBS = word_set("get find search lookup fetch retrieve describe read")
"""Words that may follow a server's name, which nothing sets apart in `github_get_issue`."""

_CHANGE_VERBS = word_set(
    "add apply approve book buy cancel change clear close create delete edit email insert join mark modify "
    "move pay place post put refund register remove reply reserve reset save send set share submit transfer "
    "update write"
)
"""Words that keep a tool with a server's name from being a read."""


@dataclass(frozen=True)
class DraftSettings:
    """How drafts are made.

    Attributes:
        source: The name of the log.
        format: The format of the log.
        until: The number of the customer's message that opens the task. Earlier messages become the history.
    """

    source: str
    format: str
    until: int = 1


Draft = dict[str, Any]
"""A written task with the key `draft`."""


def drafts_of(
    conversations: Iterable[Conversation],
    redactor: Redactor,
    settings: DraftSettings,
    world: World | None = None,
) -> list[Draft]:
    """Draft a task from each conversation. Records of the world's tables go into the task's data."""
    tables = tables_of(world)
    conversation_list = list(conversations)
    scopes = [redactor.learn(_draft_values(conversation)) for conversation in conversation_list]
    source_scope = redactor.learn(settings.source)
    source = redactor.redact(settings.source, source_scope)
    drafts: list[Draft] = []
    used_ids: set[str] = set()
    for conversation, scope in zip(conversation_list, scopes, strict=True):
        facts: Facts = {}
        turns = tuple(_redacted_turn(turn, redactor, scope, facts) for turn in conversation.turns)
        metadata = redactor.redact(_short_values(conversation.metadata), scope)
        place = redactor.redact_text(conversation.place, scope)
        redacted_conversation = Conversation(place, turns, metadata, conversation.notes)
        data = _named_records(turns, tables)
        draft = _draft_task(redacted_conversation, facts, settings, source, data)
        draft["id"] = _unused_id(draft["id"], used_ids)
        drafts.append(draft)
    return drafts


def _draft_values(conversation: Conversation) -> dict[str, Any]:
    """Return all values of a conversation that a draft may contain."""
    return {
        "metadata": conversation.metadata,
        "place": conversation.place,
        "messages": [
            {
                CUSTOMER if turn.role == "user" else "content": turn.text,
                "calls": [{"arguments": call.arguments} for call in turn.calls],
            }
            for turn in conversation.turns
        ],
    }


def _redacted_turn(turn: Turn, redactor: Redactor, scope: Scope, facts: Facts) -> Turn:
    text = redactor.redact_text(turn.text, scope, facts if turn.role == "user" else None)
    calls = tuple(
        replace(call, arguments=redactor.redact_fields(call.arguments, scope)) for call in turn.calls
    )
    return Turn(turn.role, text, calls, turn.id, turn.error)


def _short_values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first short scalar values of metadata."""
    values = {
        str(key): value
        for key, value in metadata.items()
        if isinstance(value, int | float | str) and len(str(value)) <= 200
    }
    return dict(list(values.items())[:MAX_METADATA])


def _draft_task(
    conversation: Conversation,
    facts: Facts,
    settings: DraftSettings,
    source: str,
    data: Mapping[str, Any],
) -> Draft:
    turns = conversation.turns
    user_places = [place for place, turn in enumerate(turns) if turn.role == "user" and turn.text.strip()]
    opening_place = user_places[min(settings.until, len(user_places)) - 1]
    history, later_turns = turns[:opening_place], turns[opening_place:]
    successful_calls = _successful_calls(later_turns)
    changes = [call for call in successful_calls if not _only_reads(call["name"])]
    texts = " ".join(turn.text for turn in turns if turn.role == "user")
    identity = digest([_without_numbers(turn) for turn in turns])
    name = re.sub(
        r"[^a-z0-9]+", "-", (changes or successful_calls or [{"name": "talk"}])[0]["name"].casefold()
    ).strip("-")
    draft: Draft = {
        "id": f"{name[:40] or 'talk'}-{identity[:8]}",
        "user": {
            "goal": _goal([turns[place].text for place in user_places[user_places.index(opening_place) :]])
        },
        "expect": {"calls": changes} if changes else {"data": {}},
    }
    draft["user"]["opening"] = turns[opening_place].text
    known_facts = _known_facts(facts, successful_calls, texts)
    if known_facts:
        draft["user"]["knows"] = known_facts
    if data:
        draft["data"] = data
    if opening_place:
        draft["history"] = _messages(history)
    draft["draft"] = {
        "source": source,
        "format": settings.format,
        "place": conversation.place or "whole file",
        "digest": identity,
        "notes": [*conversation.notes, *(NOTES if changes else (_NO_CHANGE, *NOTES[1:]))],
    }
    if conversation.metadata:
        draft["draft"]["metadata"] = conversation.metadata
    return draft


def _named_records(turns: Sequence[Turn], tables: Mapping[str, Table]) -> dict[str, dict[str, Any]]:
    """Return the records that tools returned before the agent changed them, by table and id."""
    calls = [call for turn in turns if turn.role == "assistant" for call in turn.calls]
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


_SMALL_TALK = word_set(
    "hi hello hey good morning afternoon evening day there dear team support thanks thank please yes no ok "
    "okay sure i i'm im am are is it's its it this that here speaking can could would you me my we help need "
    "want have has like some assistance question problem issue request with about for a an the to of and in "
    "on your how doing well today right correct what who be do so just name email number id account"
)
"""Words of greetings and identifications, which say nothing about what the customer wants."""

_IDENTIFICATION = re.compile(
    r"(?i:\b(?:my|the)(?: [a-z-]+){0,2} (?:name|surname|id|number|code|reference|e-?mail|address|phone"
    r"|username|birthday|birth) (?:is|:))\s*[^\s,.;!?]+(?:\s+(?:[A-Z]\w*|\d\S*))*"
    r"|(?i:\bname|\buser)\d\S*"
)
"""A phrase by which customers identify themselves, with the value, and replaced names and addresses."""


def _goal(texts: Sequence[str]) -> str:
    """Return the first message that says more than a greeting or an identification, as one line."""
    goal_text = next((text for text in texts if _says_more(text)), texts[0])
    line = " ".join(goal_text.split())
    return line if len(line) <= MAX_GOAL else f"{line[: MAX_GOAL - 1].rstrip()}…"


def _says_more(text: str) -> bool:
    words = [word.strip('.,;:!?"()').casefold() for word in _IDENTIFICATION.sub(" ", text).split()]
    others = [word for word in words if word.isalpha() and word not in _SMALL_TALK]
    return bool(others) and len(text.split()) > 2


def _successful_calls(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return the calls whose arguments are an object, and of which neither the call nor its result failed."""
    calls = [call for turn in turns if turn.role == "assistant" for call in turn.calls]
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
        if turn.role == "assistant":
            unanswered += range(len(ids), len(ids) + len(turn.calls))
            ids += [call.id for call in turn.calls]
        elif turn.role == "tool":
            has_id = turn.id and turn.id in ids
            candidates = [number for number in unanswered if not has_id or ids[number] == turn.id]
            if candidates:
                answered[index] = candidates[0]
                unanswered.remove(candidates[0])
    return answered


def _only_reads(name: str) -> bool:
    """Whether a tool seems to only read: by the first word of its name, without a prefix for its server.

    SDKs write `mcp__SERVER__TOOL`, `server.tool`, `server:tool`, `server/tool` and `server_tool`.
    """
    tool_name = next((part for part in reversed(re.split(r"__|[.:/]", name)) if part), "")
    words = [word.casefold() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", tool_name)]
    if words[:1] and words[0] in _READ_VERBS:
        return True
    return not _CHANGE_VERBS.intersection(words) and (
        not _PREFIXED_READ_VERBS.isdisjoint(words[1:-1])
        or ("list" in words[1:-1] and words[-1].endswith("s"))
    )


def _known_facts(facts: Facts, calls: Sequence[Mapping[str, Any]], texts: str) -> dict[str, Any]:
    """Return the facts that the customer gave, by slot; arguments of calls come before other facts."""
    known: dict[str, Any] = {}
    folded_texts = texts.casefold()
    for call in calls:
        for slot, value in call["arguments"].items():
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                continue
            text = str(value).casefold()
            if 2 <= len(text) <= 200 and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", folded_texts):
                known.setdefault(slot, value)
    covered = {str(value).casefold() for value in known.values()}
    for label, value in facts.items():
        if value.casefold() not in covered and not any(value.casefold() in text for text in covered):
            known.setdefault(label, value)
            covered.add(value.casefold())
    return known


def _messages(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Convert turns to OpenAI's messages, with new call ids. Results without a call are left out."""
    messages: list[dict[str, Any]] = []
    numbers = _answered_calls(turns)
    n_calls, order = 0, {"": -1}
    for index, turn in enumerate(turns):
        if turn.role != "tool" and not turn.text and not turn.calls:
            continue
        message: dict[str, Any] = {"role": turn.role, "content": turn.text}
        if turn.role == "assistant" and turn.calls:
            message["tool_calls"] = []
            for call in turn.calls:
                new_id = f"call_{n_calls + 1}"
                order[new_id] = n_calls
                n_calls += 1
                arguments = json.dumps(call.arguments, ensure_ascii=False)
                function = {"name": call.name, "arguments": arguments}
                message["tool_calls"].append({"id": new_id, "type": "function", "function": function})
        elif turn.role == "tool":
            if index not in numbers:
                continue
            message["tool_call_id"] = f"call_{numbers[index] + 1}"
            # A task has the results in the order of the calls, but parallel calls end in any order.
            position = len(messages)
            while order[messages[position - 1].get("tool_call_id", "")] > numbers[index]:
                position -= 1
            messages.insert(position, message)
            continue
        messages.append(message)
    return messages


_REPLACEMENT = re.compile(
    r"(?i)user\d+@example\.com|\bName\d+|\d{3,} Example Street|secret\d+"
    r"|\d[\d ().:/-]{2,}\d|\d+|\b[0-9A-F:]{6,}\b"
)


def _without_numbers(turn: Turn) -> list[Any]:
    """Return the content of a turn without numbers and replacements of personal data.

    A conversation's digest is computed from these contents. Otherwise, somebody could find a personal value
    by trying all possible values.
    """
    role, text, calls = turn.content
    return [
        role,
        _REPLACEMENT.sub("*", text),
        [[name, _REPLACEMENT.sub("*", arguments)] for name, arguments in calls],
    ]


def _unused_id(name: str, used_ids: set[str]) -> str:
    number, new_id = 1, name
    while new_id in used_ids:
        number += 1
        new_id = f"{name}-{number}"
    used_ids.add(new_id)
    return new_id
