"""An agent's tool calls, held against the writes that a task asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pytest_trace2evolve._canonical import texts_in
from pytest_trace2evolve.records.message import ToolCall
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.task import Action


class Match(StrEnum):
    """What became of a write that the task asks for.

    Attributes:
        EXACT: It was made as it should be.
        DIFFERING: The tool and the record are right, other arguments are not.
        OTHER_TOOL: Something else was done to the record.
        OTHER_RECORD: It was done, or tried, on a record for which the task does not ask for it.
        FAILED: It was tried, and the tool refused.
        REFUSED: Something else was tried on the record, and the tool refused.
        MISSING: Nothing of the kind was tried.
    """

    EXACT = "exact"
    DIFFERING = "differing"
    OTHER_TOOL = "other tool"
    OTHER_RECORD = "other record"
    FAILED = "failed"
    REFUSED = "refused"
    MISSING = "missing"


@dataclass(frozen=True)
class Act:
    """One tool call of the agent with what came of it; `message` is its place in the trace."""

    message: int
    call: ToolCall
    error: bool
    result: str
    record: str = ""

    @property
    def values(self) -> set[str]:
        """The texts among its arguments."""
        return set(texts_in(self.call.arguments, names=False))


@dataclass(frozen=True)
class Wanted:
    """A write that the task asks for, what became of it, and the act that shows it."""

    action: Action
    record: str
    match: Match
    act: Act | None = None

    @property
    def differing(self) -> set[str]:
        """The arguments that are not as they should be."""
        if self.act is None:
            return set()
        mine, gold = in_one_order(self.act.call.arguments), in_one_order(self.action.arguments)
        return {name for name in {*mine, *gold} if mine.get(name) != gold.get(name)}


_ORDER = (
    Match.EXACT,
    Match.DIFFERING,
    Match.FAILED,
    Match.OTHER_TOOL,
    Match.REFUSED,
    Match.OTHER_RECORD,
)
"""What is looked for first."""


def matched(gold_writes: Sequence[Action], writes: Sequence[Act], rules: Rules | None) -> tuple[Wanted, ...]:
    """What became of each write that a task asks for; an act answers for one of them.

    Args:
        gold_writes: The writes that are asked for.
        writes: Those that the agent made, in vain or not.
        rules: The world's rules; None where it declares none.
    """
    left = list(writes)
    found: dict[int, Wanted] = {}
    records = [record_of(one.name, one.arguments, rules) for one in gold_writes]
    asked = {(one.name, record) for one, record in zip(gold_writes, records, strict=True)}
    for match in _ORDER:
        for place, (gold, record) in enumerate(zip(gold_writes, records, strict=True)):
            if place in found:
                continue
            act = next((one for one in left if _fits(match, gold, record, one, asked)), None)
            if act is not None:
                left.remove(act)
                found[place] = Wanted(gold, record, match, act)
    return tuple(
        found.get(place) or Wanted(gold, record, Match.MISSING)
        for place, (gold, record) in enumerate(zip(gold_writes, records, strict=True))
    )


def _fits(match: Match, gold: Action, record: str, act: Act, asked: set[tuple[str, str]]) -> bool:
    same_tool, same_record = act.call.name == gold.name, act.record == record
    if match is Match.FAILED:
        return act.error and same_tool and same_record
    if match is Match.REFUSED:
        return act.error and same_record and (act.call.name, act.record) not in asked
    if match is Match.OTHER_RECORD:
        return same_tool and bool(act.record) and (act.call.name, act.record) not in asked
    if act.error:
        return False
    if match is Match.EXACT:
        return same_tool and in_one_order(act.call.arguments) == in_one_order(gold.arguments)
    if match is Match.DIFFERING:
        return same_tool and same_record
    return same_record and (act.call.name, act.record) not in asked


def in_one_order(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments, its lists sorted; those of one length together, as items and what replaces them."""
    lists = {name: value for name, value in arguments.items() if isinstance(value, list) and value}
    found = dict(arguments)
    for length in {len(value) for value in lists.values()}:
        names = sorted(name for name, value in lists.items() if len(value) == length)
        rows = sorted(zip(*(lists[name] for name in names), strict=True), key=repr)
        found |= {name: [row[place] for row in rows] for place, name in enumerate(names)}
    return found


def record_of(tool: str, arguments: Mapping[str, Any], rules: Rules | None) -> str:
    """The id of the record that a call is about; empty where it names none."""
    declared = None
    if rules is not None:
        declared = rules.writes.get(tool) or rules.reads.get(tool)
    if declared is not None:
        return _text(arguments.get(declared.argument))
    return next((_text(value) for name, value in arguments.items() if name.endswith("_id")), "")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
