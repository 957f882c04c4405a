"""What an agent did in a simulation, compared with the task's gold actions: the features of labels by rules.

Tools are known by their types, and records by the world's rules if it declares some; otherwise the argument
whose name ends in `_id` names the record.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import takewhile, zip_longest
from typing import Any

from pytest_trace2evolve.records.capability import Outcome, Shown
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import World, rules_of
from pytest_trace2evolve.records.rules import Finding, Rules, Writing, id_at
from pytest_trace2evolve.records.score import Score, ToolType
from pytest_trace2evolve.records.task import Action, RewardBasis, Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.utils.canonical import texts_in

MIN_REPEATS = 3
"""How often a call is made before it counts as a loop."""


class Match(StrEnum):
    """What became of a write that the task asks for.

    Attributes:
        EXACT: It was made as it should be.
        DIFFERING: The tool and the record are right, other arguments are not.
        OTHER_TOOL: Something else was done to the record.
        OTHER_RECORD: It was done, or tried, on a record for which the task does not ask for it.
        FAILED: It was tried, and the tool rejected it.
        REFUSED: Something else was tried on the record, and the tool rejected it.
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
class AgentCall:
    """One tool call of the agent with its result; `message` is its place in the trace."""

    message: int
    call: ToolCall
    error: bool
    result: str
    record: str = ""

    @property
    def name(self) -> str:
        """The tool."""
        return self.call.name

    @property
    def texts(self) -> set[str]:
        """The texts among its arguments."""
        return set(texts_in(self.call.arguments, names=False))

    def equals(self, action: Action) -> bool:
        """Whether a gold action is the same call, whatever the order of its lists."""
        mine, gold = self.call.arguments, action.arguments
        return self.name == action.name and normalize_arguments(mine) == normalize_arguments(gold)


@dataclass(frozen=True)
class ExpectedWrite:
    """A write that the task asks for, what became of it, and the call that shows it."""

    action: Action
    record: str
    match: Match
    call: AgentCall | None = None

    @property
    def differing(self) -> set[str]:
        """The arguments that are not as they should be."""
        if self.call is None:
            return set()
        mine = normalize_arguments(self.call.call.arguments)
        gold = normalize_arguments(self.action.arguments)
        return {name for name in {*mine, *gold} if mine.get(name) != gold.get(name)}


@dataclass(frozen=True)
class Answer:
    """Something that must be said, and the place of the agent's message that says it; None: none does."""

    text: str
    message: int | None


def normalize_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments, its lists sorted; those of one length together, as items and their replacements."""
    lists = {name: value for name, value in arguments.items() if isinstance(value, list) and value}
    found = dict(arguments)
    for length in {len(value) for value in lists.values()}:
        names = sorted(name for name, value in lists.items() if len(value) == length)
        rows = sorted(zip(*(lists[name] for name in names), strict=True), key=repr)
        found |= {name: [row[place] for row in rows] for place, name in enumerate(names)}
    return found


def record_of(tool: str, arguments: Mapping[str, Any], rules: Rules | None) -> str:
    """The id of the record that a call is about; empty if it names none."""
    declared = (rules.writes.get(tool) or rules.reads.get(tool)) if rules is not None else None
    if declared is not None:
        values = [arguments.get(declared.argument)]
    else:
        values = [value for name, value in arguments.items() if name.endswith("_id")]
    return values[0] if values and isinstance(values[0], str) else ""


@dataclass(frozen=True)
class Behavior:
    """The features of one simulation.

    Attributes:
        simulation, task, score: One scored simulation.
        passed: Whether the reward is 1.
        rules: The world's rules; None if it declares none.
        types: The type of each tool.
        calls: The agent's tool calls in order.
        gold_reads: Reads among the gold actions, except those that identify the customer.
        gold_writes: Writes among the gold actions that have an effect, and those without one that the agent
            made otherwise.
        findings: The broken invariants.
        run: The run of the simulation.
    """

    simulation: Simulation
    task: Task
    score: Score
    passed: bool
    rules: Rules | None
    types: Mapping[str, ToolType]
    calls: tuple[AgentCall, ...]
    gold_reads: tuple[Action, ...]
    gold_writes: tuple[Action, ...]
    findings: tuple[Finding, ...] = ()
    run: str = ""

    @property
    def outcome(self) -> Outcome:
        """The trace as the contrast sees it."""
        return Outcome(**self._identity, passed=self.passed)

    def shown(self, message: int | None, why: str) -> Shown:
        """A place in the trace that shows something."""
        return Shown(**self._identity, message=message, why=why)

    @property
    def _identity(self) -> dict[str, Any]:
        trial = self.simulation.trial or 0
        return {"trace": self.simulation.id, "run": self.run, "task": self.task.id, "trial": trial}

    @property
    def trace(self) -> Sequence[Message]:
        """All messages."""
        return self.simulation.trace

    @cached_property
    def last_agent_message(self) -> int:
        """The place of the agent's last message; 0 if it said nothing."""
        return max((place for place, one in enumerate(self.trace) if one.role == "assistant"), default=0)

    @cached_property
    def customer_words(self) -> str:
        """Everything that the customer said, in lower case."""
        return " ".join((one.content or "") for one in self.trace if one.role == "user").lower()

    def writing(self, tool: str) -> Writing | None:
        """What the world's rules say of a tool that writes."""
        return self.rules.writes.get(tool) if self.rules is not None else None

    @cached_property
    def writes(self) -> tuple[AgentCall, ...]:
        """Calls of tools that write, successful or not."""
        return tuple(call for call in self.calls if self.types.get(call.name) is ToolType.WRITE)

    @cached_property
    def reads(self) -> tuple[AgentCall, ...]:
        """Successful calls of tools that read."""
        return tuple(
            call for call in self.calls if self.types.get(call.name) is ToolType.READ and not call.error
        )

    def first_read(self, record: str, before: int | None = None) -> AgentCall | None:
        """The first successful read that names a record, before a place in the trace."""
        return next(
            (
                call
                for call in self.reads
                if record in call.texts and (before is None or call.message < before)
            ),
            None,
        )

    def was_shown(self, record: str, before: int) -> bool:
        """Whether the result of a call that identified the customer, or created the record, showed it."""
        return any(
            call.message < before and not call.error and record == self._new_record(call)
            for call in self.calls
        )

    def creates(self, call: AgentCall) -> bool:
        """Whether a call is of a tool that creates a record."""
        writing = self.writing(call.name)
        return writing is not None and writing.creates

    def _new_record(self, call: AgentCall) -> str | None:
        """The record that the result of a call shows although its arguments need not name it."""
        if self.rules is None:
            return None
        writing = self.writing(call.name)
        if writing is not None and writing.creates:
            return call.record or id_at(call.result, writing.id_path)
        path = self.rules.identify.get(call.name)
        return id_at(call.result, path) if path else None

    def was_told(self, text: str, before: int | None = None) -> bool:
        """Whether a text occurs, as words of its own, in the tools' answers or the customer's messages."""
        pattern = re.compile(rf"(?<![\w.]){re.escape(text.lower())}(?![\w]|\.\d)")
        return any(
            pattern.search((one.content or "").lower())
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
        called = {call.name for call in self.reads}
        found = []
        for action in self.gold_reads:
            record = record_of(action.name, action.arguments, self.rules)
            if (self.first_read(record) is None) if record else (action.name not in called):
                found.append(action)
        return tuple(found)

    def is_gold(self, call: AgentCall) -> bool:
        """Whether the expert makes the same call, successful or not."""
        return any(call.equals(action) for action in self.task.actions)

    @cached_property
    def undone_by_user(self) -> tuple[Action, ...]:
        """Gold actions of the customer that nobody carried out: the agent has to ask for them."""
        made = [call for message in self.trace for call in message.tool_calls or ()]
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
    def expected_writes(self) -> tuple[ExpectedWrite, ...]:
        """Each write that the task asks for, and what became of it; a call answers for one of them."""
        left = list(self.writes)
        records = [record_of(gold.name, gold.arguments, self.rules) for gold in self.gold_writes]
        expected = list(zip(self.gold_writes, records, strict=True))
        asked = {(gold.name, record) for gold, record in expected}
        found: dict[int, ExpectedWrite] = {}
        for match in _SEARCH_ORDER:
            for place, (gold, record) in enumerate(expected):
                if place in found:
                    continue
                call = next((call for call in left if _fits(match, call, gold, record, asked)), None)
                if call is not None:
                    left.remove(call)
                    found[place] = ExpectedWrite(gold, record, match, call)
        return tuple(
            found.get(place) or ExpectedWrite(gold, record, Match.MISSING)
            for place, (gold, record) in enumerate(expected)
        )

    @cached_property
    def unexpected_writes(self) -> tuple[AgentCall, ...]:
        """Successful writes that the task does not ask for, if its end state is compared."""
        criteria = self.task.evaluation_criteria
        if criteria is None or RewardBasis.DB not in criteria.basis:
            return ()
        used = [write.call for write in self.expected_writes if write.call is not None]
        return tuple(call for call in self.writes if not call.error and call not in used)

    @cached_property
    def repeated(self) -> tuple[AgentCall, ...]:
        """Calls that were made `MIN_REPEATS` times or more, each once."""
        keys = [(call.name, repr(sorted(call.call.arguments.items()))) for call in self.calls]
        counts = Counter(keys)
        first = dict(zip(reversed(keys), reversed(self.calls), strict=True))
        return tuple(first[key] for key, count in counts.items() if count >= MIN_REPEATS)


_SEARCH_ORDER = (
    Match.EXACT,
    Match.DIFFERING,
    Match.FAILED,
    Match.OTHER_TOOL,
    Match.REFUSED,
    Match.OTHER_RECORD,
)


def _fits(match: Match, call: AgentCall, gold: Action, record: str, asked: set[tuple[str, str]]) -> bool:
    """Whether a call stands for an expected write in this way."""
    same_tool, same_record = call.name == gold.name, call.record == record
    unasked = (call.name, call.record) not in asked
    if match is Match.FAILED:
        return call.error and same_tool and same_record
    if match is Match.REFUSED:
        return call.error and same_record and unasked
    if match is Match.OTHER_RECORD:
        return same_tool and bool(call.record) and unasked
    if call.error:
        return False
    if match is Match.EXACT:
        return call.equals(gold)
    return same_record and (same_tool if match is Match.DIFFERING else unasked)


def read_behavior(
    simulation: Simulation,
    task: Task,
    score: Score,
    world: World,
    *,
    passed: bool,
    findings: Sequence[Finding] = (),
    run: str = "",
) -> Behavior:
    """Read the features of a simulation.

    Args:
        simulation, task, score: One scored simulation.
        world: Its domain; the gold actions are tried on it, since those that fail have no effect.
        passed: Whether its reward is 1.
        findings: The broken invariants.
        run: The run of the simulation.

    Raises:
        WorldError: the task's initial state does not fit the world.
    """
    rules, types = rules_of(world), world.tool_types()
    calls = tuple(_agent_calls(simulation.trace, rules))
    reads, writes = _gold_actions(task, world, types, rules, calls)
    return Behavior(
        simulation=simulation,
        task=task,
        score=score,
        passed=passed,
        rules=rules,
        types=types,
        calls=calls,
        gold_reads=tuple(reads),
        gold_writes=tuple(writes),
        findings=tuple(findings),
        run=run,
    )


def _gold_actions(
    task: Task, world: World, types: Mapping[str, ToolType], rules: Rules | None, calls: Sequence[AgentCall]
) -> tuple[list[Action], list[Action]]:
    session = world.open()
    session.initialise(task.initial_state)
    reads: list[Action] = []
    writes: list[Action] = []
    for action in task.actions:
        if action.requestor != "assistant":
            session.perform(action)
            continue
        result = session.call(action.name, action.arguments, "assistant")
        if rules is not None and action.name in rules.identify:
            continue
        if result.error and not _made_otherwise(action, calls, rules):
            continue
        if types.get(action.name) is ToolType.WRITE:
            writes.append(action)
        elif types.get(action.name) is ToolType.READ:
            reads.append(action)
    return reads, writes


def _made_otherwise(action: Action, calls: Sequence[AgentCall], rules: Rules | None) -> bool:
    """Whether the agent made a change that the gold action, rejected by its tool, only tried."""
    target = (action.name, record_of(action.name, action.arguments, rules))
    return any(
        not call.error and (call.name, call.record) == target and not call.equals(action) for call in calls
    )


def _agent_calls(trace: Sequence[Message], rules: Rules | None) -> Iterator[AgentCall]:
    for place, message in enumerate(trace):
        if message.role != "assistant":
            continue
        # By their order, not by their ids: some agents use ids again.
        answers = takewhile(lambda answer: answer.role == "tool", trace[place + 1 :])
        for call, answer in zip_longest(message.tool_calls or (), answers):
            if call is not None:
                yield AgentCall(
                    message=place,
                    call=call,
                    error=answer is None or bool(answer.error),
                    result=(answer.content or "") if answer is not None else "",
                    record=record_of(call.name, call.arguments, rules),
                )
