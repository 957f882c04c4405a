"""Drafts of written tasks from conversations, with personal data replaced before anything else happens."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_trace2evolve.importing.conversation import MALFORMED, Call, Conversation, Turn
from pytest_trace2evolve.importing.names import word_set
from pytest_trace2evolve.importing.redact import CUSTOMER, Facts, Redactor, Scope
from pytest_trace2evolve.utils.canonical import digest

NOTES = (
    "expect.calls is what the agent did, not what is right: correct it.",
    "Read every line for personal data that was missed.",
)

MAX_GOAL = 200
MAX_METADATA = 20

_READING = word_set(
    "get list find search lookup look read check show fetch query retrieve view describe calculate compute "
    "think verify validate count browse load select inspect track estimate compare is has can"
)
"""First words of the names of tools that change nothing."""


@dataclass(frozen=True)
class DraftSettings:
    """How drafts are made.

    Attributes:
        source: The name of the log.
        format: The format of the log.
        until: The number of the customer's message that opens the task; what came before becomes its history.
        all_calls: Whether to expect all calls, not only those of tools that seem to change something.
    """

    source: str
    format: str
    until: int = 1
    all_calls: bool = False


Draft = dict[str, Any]
"""A written task with the key `draft`."""


def drafts_of(
    conversations: Iterable[Conversation], redactor: Redactor, settings: DraftSettings
) -> list[Draft]:
    """Draft a task from each conversation."""
    known = list(conversations)
    scopes = [redactor.learn(_texts_of(conversation)) for conversation in known]
    source_scope = redactor.learn(settings.source)
    source = redactor.redact(settings.source, source_scope)
    drafts: list[Draft] = []
    used: set[str] = set()
    for conversation, scope in zip(known, scopes, strict=True):
        facts: Facts = {}
        turns = tuple(_redacted_turn(turn, redactor, scope, facts) for turn in conversation.turns)
        metadata = redactor.redact(_small(conversation.metadata), scope)
        clean = Conversation(redactor.redact_text(conversation.place, scope), turns, metadata)
        draft = _draft(clean, facts, settings, source)
        draft["id"] = _unused(draft["id"], used)
        drafts.append(draft)
    return drafts


def _texts_of(conversation: Conversation) -> dict[str, Any]:
    """All values of a conversation that a draft may hold."""
    return {
        "metadata": conversation.metadata,
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
        Call(call.name, redactor.redact_fields(call.arguments, scope), call.id) for call in turn.calls
    )
    return Turn(turn.role, text, calls, turn.id, turn.error)


def _small(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The short scalar values of metadata."""
    found = {
        str(key): value
        for key, value in metadata.items()
        if isinstance(value, int | float | str) and len(str(value)) <= 200
    }
    return dict(list(found.items())[:MAX_METADATA])


def _draft(conversation: Conversation, facts: Facts, settings: DraftSettings, source: str) -> Draft:
    turns = conversation.turns
    said = [place for place, turn in enumerate(turns) if turn.role == "user" and turn.text.strip()]
    opening = said[min(settings.until, len(said)) - 1]
    history, rest = turns[:opening], turns[opening:]
    done = _successful_calls(rest)
    changes = [call for call in done if settings.all_calls or not _only_reads(call["name"])]
    texts = " ".join(turn.text for turn in turns if turn.role == "user")
    identity = digest([_without_numbers(turn) for turn in turns])
    name = re.sub(r"[^a-z0-9]+", "-", (changes or done or [{"name": "talk"}])[0]["name"].casefold()).strip(
        "-"
    )
    draft: Draft = {
        "id": f"{name[:40] or 'talk'}-{identity[:8]}",
        "user": {"goal": _goal([turns[place].text for place in said[said.index(opening) :]])},
        "expect": {"calls": changes} if changes else {"data": {}},
    }
    draft["user"]["opening"] = turns[opening].text
    known = _knows(facts, done, texts)
    if known:
        draft["user"]["knows"] = known
    if opening:
        draft["history"] = _messages(history)
    draft["draft"] = {
        "source": source,
        "format": settings.format,
        "place": conversation.place or "whole file",
        "digest": identity,
        "notes": list(NOTES if changes else (_NO_CHANGE, *NOTES[1:])),
    }
    if conversation.metadata:
        draft["draft"]["metadata"] = conversation.metadata
    return draft


_NO_CHANGE = "The agent called no tool that changes something, so the data must stay: say if that is right."


def _goal(texts: Sequence[str]) -> str:
    """The first message that says more than a greeting, in one line."""
    long = next((text for text in texts if len(text.split()) > 3), texts[0])
    line = " ".join(long.split())
    return line if len(line) <= MAX_GOAL else f"{line[: MAX_GOAL - 1].rstrip()}…"


def _successful_calls(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """The calls whose arguments were an object and whose result, if there is one, is no error."""
    failed = {turn.id for turn in turns if turn.role == "tool" and turn.error and turn.id}
    return [
        {"name": call.name, "arguments": call.arguments}
        for turn in turns
        if turn.role == "assistant"
        for call in turn.calls
        if MALFORMED not in call.arguments and call.id not in failed
    ]


def _only_reads(name: str) -> bool:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name.rpartition(".")[2])
    return bool(words) and words[0].casefold() in _READING


def _knows(facts: Facts, calls: Sequence[Mapping[str, Any]], texts: str) -> dict[str, Any]:
    """What the customer said, by slot: the arguments of calls that the customer named, and further facts."""
    known: dict[str, Any] = {}
    plain = texts.casefold()
    for call in calls:
        for slot, value in call["arguments"].items():
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                continue
            text = str(value).casefold()
            if 2 <= len(text) <= 200 and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", plain):
                known.setdefault(slot, value)
    covered = {str(value).casefold() for value in known.values()}
    for label, value in facts.items():
        if value.casefold() not in covered and not any(value.casefold() in text for text in covered):
            known.setdefault(label, value)
            covered.add(value.casefold())
    return known


def _messages(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Turns as OpenAI's messages, with new ids of calls; results without a call are left out."""
    messages: list[dict[str, Any]] = []
    renamed: dict[str, str] = {}
    waiting: list[str] = []
    number = 0
    for turn in turns:
        message: dict[str, Any] = {"role": turn.role, "content": turn.text}
        if turn.role == "assistant" and turn.calls:
            made = []
            for call in turn.calls:
                number += 1
                new = f"call_{number}"
                renamed[call.id] = new
                waiting.append(new)
                arguments = json.dumps(call.arguments, ensure_ascii=False)
                function = {"name": call.name, "arguments": arguments}
                made.append({"id": new, "type": "function", "function": function})
            message["tool_calls"] = made
        elif turn.role == "tool":
            answered = renamed.get(turn.id) if turn.id else None
            answered = answered if answered in waiting else next(iter(waiting), None)
            if answered is None:
                continue
            waiting.remove(answered)
            message["tool_call_id"] = answered
        messages.append(message)
    return messages


_REPLACEMENT = re.compile(
    r"(?i)user\d+@example\.com|\bName\d+|\d{3,} Example Street|secret\d+"
    r"|\d[\d ().:/-]{2,}\d|\d+|\b[0-9A-F:]{6,}\b"
)


def _without_numbers(turn: Turn) -> list[Any]:
    """The content of a turn without numbers and replacements.

    The digest of the original is made of it, so that no personal value can be found by trying them all.
    """
    role, text, calls = turn.content
    return [role, _REPLACEMENT.sub("*", text), [[name, _REPLACEMENT.sub("*", made)] for name, made in calls]]


def _unused(name: str, used: set[str]) -> str:
    number, new = 1, name
    while new in used:
        number += 1
        new = f"{name}-{number}"
    used.add(new)
    return new
