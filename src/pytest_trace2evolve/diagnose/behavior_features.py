"""What an agent did in a simulation beside what the task's gold actions do: what labels by rules rest on.

Tools are known by their types, and records by the world's rules where it declares some; where it declares
none, the argument whose name ends in `_id` names the record.

An agent's tool calls, held against the writes that a task asks for.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import takewhile, zip_longest
from typing import Any

from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import World, rules_of
from pytest_trace2evolve.records.rules import Finding, Rules, id_at
from pytest_trace2evolve.records.score import Score, ToolType
from pytest_trace2evolve.records.task import Action, RewardBasis, Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.utils.canonical import texts_in


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


@dataclass(frozen=True)
class Answer:
    """Something that must be said, and the place of the agent's message that says it; None: none does."""

    text: str
    message: int | None


@dataclass(frozen=True)
class Conduct:
    """One simulation, read.

    Attributes:
        simulation, task, score: What was read.
        passed: Whether the reward is 1.
        rules: The world's rules; None where it declares none.
        types: What each tool does.
        acts: The agent's tool calls in order.
        gold_reads: Reads among the gold actions, those that identify the customer left out.
        gold_writes: Writes among the gold actions that have an effect, and those without one that the agent
            made otherwise.
        found: What breaks an invariant.
        run: The run that it is of.
    """

    simulation: Simulation
    task: Task
    score: Score
    passed: bool
    rules: Rules | None
    types: Mapping[str, ToolType]
    acts: tuple[Act, ...]
    gold_reads: tuple[Action, ...]
    gold_writes: tuple[Action, ...]
    found: tuple[Finding, ...] = ()
    run: str = ""

    @property
    def trace(self) -> Sequence[Message]:
        """All messages."""
        return self.simulation.trace

    @cached_property
    def last_word(self) -> int:
        """The place of the agent's last message; 0 where it said nothing."""
        return next(
            (place for place in reversed(range(len(self.trace))) if self.trace[place].role == "assistant"), 0
        )

    @cached_property
    def heard(self) -> str:
        """All that the customer said, in lower case."""
        return " ".join((one.content or "") for one in self.trace if one.role == "user").lower()

    @cached_property
    def writes(self) -> tuple[Act, ...]:
        """Calls of tools that write, in vain or not."""
        return tuple(act for act in self.acts if self.types.get(act.call.name) is ToolType.WRITE)

    @cached_property
    def reads(self) -> tuple[Act, ...]:
        """Successful calls of tools that read."""
        return tuple(
            act for act in self.acts if self.types.get(act.call.name) is ToolType.READ and not act.error
        )

    def was_read(self, record: str, before: int | None = None) -> Act | None:
        """The first successful read that names a record, before a place in the trace."""
        return next(
            (act for act in self.reads if record in act.values and (before is None or act.message < before)),
            None,
        )

    def was_shown(self, record: str, before: int) -> bool:
        """Whether the result of a call that identified the customer, or created the record, showed it."""
        return any(
            act.message < before and not act.error and record == self._new_record(act) for act in self.acts
        )

    def creates(self, act: Act) -> bool:
        """Whether an act is of a tool that creates a record."""
        writing = self.rules.writes.get(act.call.name) if self.rules is not None else None
        return writing is not None and writing.creates

    def _new_record(self, act: Act) -> str | None:
        """The record that the result of an act shows although its arguments need not name it."""
        if self.rules is None:
            return None
        writing = self.rules.writes.get(act.call.name)
        if writing is not None and writing.creates:
            return act.record or id_at(act.result, writing.id_path)
        path = self.rules.identify.get(act.call.name)
        return id_at(act.result, path) if path else None

    def told(self, text: str, before: int | None = None) -> bool:
        """Whether a text stands, as words of its own, in what the tools answered or the customer said."""
        wanted = re.compile(rf"(?<![\w.]){re.escape(text.lower())}(?![\w]|\.\d)")
        return any(
            wanted.search((one.content or "").lower())
            for one in self.trace[:before]
            if one.role in ("tool", "user")
        )

    @cached_property
    def answers(self) -> tuple[Answer, ...]:
        """What the task asks the agent to say, found as the scorer finds it."""
        criteria = self.task.evaluation_criteria
        said = {
            place: one.text.lower().replace(",", "")
            for place, one in enumerate(self.trace)
            if one.role == "assistant" and one.text is not None
        }
        return tuple(
            Answer(text, next((place for place, words in said.items() if text.lower() in words), None))
            for text in (criteria.communicate_info or [] if criteria else ())
        )

    @cached_property
    def unread(self) -> tuple[Action, ...]:
        """Reads among the gold actions whose record the agent never read."""
        called = {act.call.name for act in self.reads}
        found = []
        for action in self.gold_reads:
            record = record_of(action.name, action.arguments, self.rules)
            if (self.was_read(record) is None) if record else (action.name not in called):
                found.append(action)
        return tuple(found)

    def as_gold(self, act: Act) -> bool:
        """Whether the expert makes the same call, in vain or not."""
        return any(
            act.call.name == one.name and in_one_order(act.call.arguments) == in_one_order(one.arguments)
            for one in self.task.actions
        )

    @cached_property
    def undone_by_user(self) -> tuple[Action, ...]:
        """Gold actions of the customer that nobody carried out: the agent has to ask for them."""
        made = [call for one in self.trace for call in one.tool_calls or ()]
        return tuple(
            action
            for action in self.task.actions
            if action.requestor == "user"
            and self.types.get(action.name) is ToolType.WRITE
            and not any(
                call.name == action.name
                and all(call.arguments.get(name) == value for name, value in action.arguments.items())
                for call in made
            )
        )

    @cached_property
    def wanted(self) -> tuple[Wanted, ...]:
        """Each write that the task asks for, and what became of it; an act answers for one of them."""
        return matched(self.gold_writes, self.writes, self.rules)

    @cached_property
    def uncalled_for(self) -> tuple[Act, ...]:
        """Successful writes that stand for nothing the task asks for, where its end state is compared."""
        criteria = self.task.evaluation_criteria
        if criteria is None or RewardBasis.DB not in criteria.basis:
            return ()
        used = [one.act for one in self.wanted if one.act is not None]
        return tuple(act for act in self.writes if not act.error and act not in used)

    @cached_property
    def repeated(self) -> tuple[Act, ...]:
        """Calls that were made three times or more, each once."""
        key = [(act.call.name, repr(sorted(act.call.arguments.items()))) for act in self.acts]
        counts = Counter(key)
        first = dict(zip(reversed(key), reversed(self.acts), strict=True))
        return tuple(first[one] for one, count in counts.items() if count >= REPEATED)


REPEATED = 3
"""How often a call is made before it counts as a loop."""


def read_conduct(
    simulation: Simulation,
    task: Task,
    score: Score,
    world: World,
    *,
    passed: bool,
    found: Sequence[Finding] = (),
    run: str = "",
) -> Conduct:
    """Read a simulation.

    Args:
        simulation, task, score: One scored simulation.
        world: Its domain; the gold actions are tried on it, since those that fail have no effect.
        passed: Whether its reward is 1.
        found: What breaks an invariant in it.
        run: The run that it is of.

    Raises:
        WorldError: the task's initial state does not fit the world.
    """
    rules, types = rules_of(world), world.tool_types()
    acts = tuple(_acts(simulation.trace, rules))
    reads, writes = _gold(task, world, types, rules, acts)
    return Conduct(
        simulation=simulation,
        task=task,
        score=score,
        passed=passed,
        rules=rules,
        types=types,
        acts=acts,
        gold_reads=reads,
        gold_writes=writes,
        found=tuple(found),
        run=run,
    )


def _gold(
    task: Task,
    world: World,
    types: Mapping[str, ToolType],
    rules: Rules | None,
    acts: Sequence[Act],
) -> tuple[tuple[Action, ...], tuple[Action, ...]]:
    session = world.open()
    session.initialise(task.initial_state)
    identify = rules.identify if rules is not None else {}
    reads: list[Action] = []
    writes: list[Action] = []
    for action in task.actions:
        if action.requestor != "assistant":
            session.perform(action)
            continue
        result = session.call(action.name, action.arguments, "assistant")
        if action.name in identify:
            continue
        if result.error and not _made_otherwise(action, acts, rules):
            continue
        if types.get(action.name) is ToolType.WRITE:
            writes.append(action)
        elif types.get(action.name) is ToolType.READ:
            reads.append(action)
    return tuple(reads), tuple(writes)


def _made_otherwise(action: Action, acts: Sequence[Act], rules: Rules | None) -> bool:
    """Whether the agent made a change that the gold action, refused by its tool, only tried."""
    record = record_of(action.name, action.arguments, rules)
    return any(
        not act.error
        and (act.call.name, act.record) == (action.name, record)
        and in_one_order(act.call.arguments) != in_one_order(action.arguments)
        for act in acts
    )


def _acts(trace: Sequence[Message], rules: Rules | None) -> Iterator[Act]:
    for place, message in enumerate(trace):
        if message.role != "assistant":
            continue
        # By their order, not by their ids: those of some agents come again.
        answers = takewhile(lambda one: one.role == "tool", trace[place + 1 :])
        for call, answer in zip_longest(message.tool_calls or (), answers):
            if call is not None:
                yield Act(
                    message=place,
                    call=call,
                    error=answer is None or bool(answer.error),
                    result=(answer.content or "") if answer is not None else "",
                    record=record_of(call.name, call.arguments, rules),
                )
