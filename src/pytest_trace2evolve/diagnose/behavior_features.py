"""Features for the labelling rules: an agent's behavior, compared with the task's gold actions.

Tools are classified by their types. The world's rules declare which argument of a tool names a record. For
a tool without such a declaration, the first argument whose name ends in `_id` names the record.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import takewhile, zip_longest
from typing import Any

from pytest_trace2evolve.records.capability import TraceExample, TraceOutcome
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import World, rules_of
from pytest_trace2evolve.records.rules import Finding, Rules, Writing, id_at
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Action, RewardBasis, Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.utils.canonical import texts_in

MIN_REPEATS = 3
"""Minimum number of equal calls that count as a loop."""

NO_RULES = Rules(identify={}, customers="", owner="", status="", ids={}, reads={}, writes={})
"""Empty rules, for a world that declares none."""


class Match(StrEnum):
    """The outcome of a write that the task requires; calls are matched in this order."""

    EXACT = "exact"  # made as required
    DIFFERING = "differing"  # the tool and the record are right, and other arguments are wrong
    FAILED = "failed"  # tried, and rejected by the tool
    OTHER_TOOL = "other tool"  # a different change was made to the record
    REFUSED = "refused"  # a different change to the record was tried, and rejected by the tool
    OTHER_RECORD = "other record"  # made or tried on a record for which the task does not require the write
    MISSING = "missing"  # no such call was tried


@dataclass(frozen=True)
class AgentCall:
    """One tool call of the agent with its result; `message` is the index of its message in the trace."""

    message: int
    id: str
    name: str
    arguments: Mapping[str, Any]
    has_failed: bool
    result: str
    record: str

    @property
    def texts(self) -> set[str]:
        """The strings among the argument values."""
        return set(texts_in(self.arguments, include_names=False))

    def equals(self, action: Action) -> bool:
        """Whether a gold action is the same call, regardless of the order in lists."""
        call_arguments, gold_arguments = (
            normalize_arguments(self.arguments),
            normalize_arguments(action.arguments),
        )
        return self.name == action.name and call_arguments == gold_arguments


@dataclass(frozen=True)
class ExpectedWrite:
    """A write that the task requires, its outcome, and the call that shows the outcome."""

    action: Action
    record: str
    match: Match
    call: AgentCall | None = None

    @property
    def differing_arguments(self) -> set[str]:
        """The names of the arguments that differ from those of the gold action."""
        if self.call is None:
            return set()
        call_arguments, gold_arguments = map(
            normalize_arguments, (self.call.arguments, self.action.arguments)
        )
        return {
            name
            for name in {*call_arguments, *gold_arguments}
            if call_arguments.get(name) != gold_arguments.get(name)
        }


@dataclass(frozen=True)
class RequiredAnswer:
    """A text that the agent must say, and the index of its first message with the text (None if never)."""

    text: str
    message: int | None


def normalize_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Sort the lists in a call's arguments. Lists of equal length (items and replacements) stay aligned."""
    lists = {name: value for name, value in arguments.items() if isinstance(value, list) and value}
    normalized = dict(arguments)
    for length in {len(value) for value in lists.values()}:
        names = sorted(name for name, value in lists.items() if len(value) == length)
        rows = sorted(zip(*(lists[name] for name in names), strict=True), key=repr)
        normalized |= {name: [row[index] for row in rows] for index, name in enumerate(names)}
    return normalized


def target_record_id(tool: str, arguments: Mapping[str, Any], rules: Rules) -> str:
    """The id of the record that a call concerns; empty if the call names no record."""
    if declaration := rules.writes.get(tool) or rules.reads.get(tool):
        values = [arguments.get(declaration.argument)]
    else:
        values = [value for name, value in arguments.items() if name.endswith("_id")]
    return values[0] if values and isinstance(values[0], str) else ""


class Behavior:
    """The features of one simulation.

    Args:
        simulation, task: One scored simulation, and its task.
        world: The task's world, where the gold actions are tried to find out which of them fail.
        passed: Whether the reward is 1.
        findings: The broken invariants.
        run: The id of the simulation's run.

    Attributes:
        rules: The world's rules.
        tool_types: The type of each tool.
        calls: The agent's tool calls in order.
        gold_reads: Reads among the gold actions, except those that identify the customer.
        gold_writes: Writes among the gold actions that have an effect, and failing ones that the agent made
            successfully with different arguments.

    Raises:
        WorldError: the task's initial state does not fit the world.
    """

    def __init__(
        self,
        simulation: Simulation,
        task: Task,
        world: World,
        *,
        passed: bool,
        findings: Sequence[Finding] = (),
        run: str = "",
    ) -> None:
        self.simulation, self.task, self.passed = simulation, task, passed
        self.findings, self.run = findings, run
        self.rules, self.tool_types = rules_of(world) or NO_RULES, world.tool_types()
        self.calls = tuple(_iter_agent_calls(simulation.trace, self.rules))
        gold_actions = self._effective_gold_actions(world)
        self.gold_reads = [
            action for action in gold_actions if self.tool_types.get(action.name) is ToolType.READ
        ]
        self.gold_writes = [
            action for action in gold_actions if self.tool_types.get(action.name) is ToolType.WRITE
        ]

    def _effective_gold_actions(self, world: World) -> list[Action]:
        """Try all gold actions in order, and return those of the agent that succeed.

        A failing action is also returned if the agent made it with different arguments. An action that
        identifies the customer is left out.
        """
        session = world.open()
        session.initialise(self.task.initial_state)
        gold_actions = []
        for action in self.task.actions:
            if action.requestor != "assistant":
                session.perform(action)
                continue
            result = session.call(action.name, action.arguments, "assistant")
            if action.name not in self.rules.identify and (
                not result.error or self._was_made_differently(action)
            ):
                gold_actions.append(action)
        return gold_actions

    def _was_made_differently(self, action: Action) -> bool:
        """Whether the agent made the change of a failing gold action with different arguments."""
        target = (action.name, target_record_id(action.name, action.arguments, self.rules))
        return any(
            not call.has_failed and (call.name, call.record) == target and not call.equals(action)
            for call in self.calls
        )

    @property
    def outcome(self) -> TraceOutcome:
        """The identity of the trace and whether it passed, for the contrast."""
        return TraceOutcome(**self._identity, passed=self.passed)

    def to_example(self, message: int | None, why: str) -> TraceExample:
        """Return an example that points to a message of the trace and gives the reason."""
        return TraceExample(**self._identity, message=message, why=why)

    @property
    def _identity(self) -> dict[str, Any]:
        trial = self.simulation.trial or 0
        return {"trace": self.simulation.id, "run": self.run, "task": self.task.id, "trial": trial}

    @property
    def trace(self) -> Sequence[Message]:
        """All messages of the simulation."""
        return self.simulation.trace

    @cached_property
    def last_agent_message(self) -> int:
        """The index of the agent's last message; 0 if there is none."""
        indexes = (index for index, message in enumerate(self.trace) if message.role == "assistant")
        return max(indexes, default=0)

    def lowercase_text(self, role: str, before: int | None = None) -> str:
        """All text of one role before an index of the trace, in lower case."""
        texts = (message.content or "" for message in self.trace[:before] if message.role == role)
        return " ".join(texts).lower()

    @cached_property
    def customer_text(self) -> str:
        """All text of the customer, in lower case."""
        return self.lowercase_text("user")

    def write_declaration(self, tool: str) -> Writing | None:
        """The declaration of a write tool in the world's rules; None if there is none."""
        return self.rules.writes.get(tool)

    @cached_property
    def writes(self) -> tuple[AgentCall, ...]:
        """Calls of tools that write, successful or not."""
        return tuple(call for call in self.calls if self.tool_types.get(call.name) is ToolType.WRITE)

    @cached_property
    def reads(self) -> tuple[AgentCall, ...]:
        """Successful calls of tools that read."""
        return tuple(
            call
            for call in self.calls
            if self.tool_types.get(call.name) is ToolType.READ and not call.has_failed
        )

    def first_read(self, record: str, before: int | None = None) -> AgentCall | None:
        """The first successful read whose arguments name a record; `before` is an index of the trace."""
        for call in self.reads:
            if record in call.texts and (before is None or call.message < before):
                return call
        return None

    def was_returned(self, record: str, before: int) -> bool:
        """Whether a call before a message index created the record, or identified the customer by it."""
        return any(
            call.message < before and not call.has_failed and record == self._returned_record(call)
            for call in self.calls
        )

    def creates_record(self, call: AgentCall) -> bool:
        """Whether the tool of a call creates a record."""
        writing = self.write_declaration(call.name)
        return writing is not None and writing.creates

    def _returned_record(self, call: AgentCall) -> str | None:
        """The id of the record that a call creates or identifies; the arguments need not name it."""
        writing = self.write_declaration(call.name)
        if writing is not None and writing.creates:
            return call.record or id_at(call.result, writing.id_path)
        path = self.rules.identify.get(call.name)
        return id_at(call.result, path) if path else None

    def was_told(self, text: str, before: int | None = None) -> bool:
        """Whether a text occurs as whole words in the tools' results or the customer's messages."""
        pattern = re.compile(rf"(?<![\w.]){re.escape(text.lower())}(?![\w]|\.\d)")
        return any(
            pattern.search((message.content or "").lower())
            for message in self.trace[:before]
            if message.role in ("tool", "user")
        )

    @cached_property
    def required_answers(self) -> tuple[RequiredAnswer, ...]:
        """The texts that the task requires the agent to say, compared with messages as the scorer does."""
        criteria = self.task.evaluation_criteria
        agent_texts = {
            index: message.text.lower().replace(",", "")
            for index, message in enumerate(self.trace)
            if message.role == "assistant" and message.text is not None
        }
        return tuple(
            RequiredAnswer(
                text,
                next(
                    (index for index, agent_text in agent_texts.items() if text.lower() in agent_text), None
                ),
            )
            for text in (criteria.communicate_info or [] if criteria else ())
        )

    @cached_property
    def unread_actions(self) -> tuple[Action, ...]:
        """Reads among the gold actions whose record the agent never read."""
        called_tools = {call.name for call in self.reads}
        actions = []
        for action in self.gold_reads:
            record = target_record_id(action.name, action.arguments, self.rules)
            if (self.first_read(record) is None) if record else (action.name not in called_tools):
                actions.append(action)
        return tuple(actions)

    def is_gold(self, call: AgentCall) -> bool:
        """Whether a call, successful or not, equals a gold action."""
        return any(call.equals(action) for action in self.task.actions)

    @cached_property
    def undone_user_actions(self) -> tuple[Action, ...]:
        """Gold writes of the customer that were not performed; the agent has to request such actions."""
        calls = [call for message in self.trace for call in message.tool_calls or ()]
        return tuple(
            action
            for action in self.task.actions
            if action.requestor == "user"
            and self.tool_types.get(action.name) is ToolType.WRITE
            and not any(
                call.name == action.name
                and all(call.arguments.get(name) == value for name, value in action.arguments.items())
                for call in calls
            )
        )

    @cached_property
    def expected_writes(self) -> tuple[ExpectedWrite, ...]:
        """Each write that the task requires, with its outcome. A call is matched with at most one write."""
        unmatched_calls = list(self.writes)
        records = [target_record_id(gold.name, gold.arguments, self.rules) for gold in self.gold_writes]
        required_writes = list(zip(self.gold_writes, records, strict=True))
        required_targets = {(gold.name, record) for gold, record in required_writes}
        matched_writes: dict[int, ExpectedWrite] = {}
        for match in Match:
            for index, (gold, record) in enumerate(required_writes):
                if index in matched_writes:
                    continue
                call = next(
                    (
                        call
                        for call in unmatched_calls
                        if _has_outcome(match, call, gold, record, required_targets)
                    ),
                    None,
                )
                if call is not None:
                    unmatched_calls.remove(call)
                    matched_writes[index] = ExpectedWrite(gold, record, match, call)
        return tuple(
            matched_writes.get(index) or ExpectedWrite(gold, record, Match.MISSING)
            for index, (gold, record) in enumerate(required_writes)
        )

    @cached_property
    def unexpected_writes(self) -> tuple[AgentCall, ...]:
        """Successful writes that the task does not require; empty if the task's end state is not compared."""
        criteria = self.task.evaluation_criteria
        if criteria is None or RewardBasis.DB not in criteria.basis:
            return ()
        matched_calls = [write.call for write in self.expected_writes if write.call is not None]
        return tuple(call for call in self.writes if not call.has_failed and call not in matched_calls)

    @cached_property
    def repeated_calls(self) -> tuple[AgentCall, ...]:
        """Calls made at least `MIN_REPEATS` times, without duplicates."""
        keys = [(call.name, repr(sorted(call.arguments.items()))) for call in self.calls]
        counts = Counter(keys)
        first_calls = dict(zip(reversed(keys), reversed(self.calls), strict=True))
        return tuple(first_calls[key] for key, count in counts.items() if count >= MIN_REPEATS)


def _has_outcome(
    match: Match, call: AgentCall, gold: Action, record: str, required_targets: set[tuple[str, str]]
) -> bool:
    """Whether a call matches an expected write with this outcome."""
    is_same_tool, is_same_record = call.name == gold.name, call.record == record
    is_unexpected = (call.name, call.record) not in required_targets
    match match:
        case Match.EXACT:
            return not call.has_failed and call.equals(gold)
        case Match.DIFFERING:
            return not call.has_failed and is_same_record and is_same_tool
        case Match.FAILED:
            return call.has_failed and is_same_record and is_same_tool
        case Match.OTHER_TOOL:
            return not call.has_failed and is_same_record and is_unexpected
        case Match.REFUSED:
            return call.has_failed and is_same_record and is_unexpected
        case Match.OTHER_RECORD:
            return bool(call.record) and is_same_tool and is_unexpected
        case Match.MISSING:
            return False


def _iter_agent_calls(trace: Sequence[Message], rules: Rules) -> Iterator[AgentCall]:
    for index, message in enumerate(trace):
        if message.role != "assistant":
            continue
        # Results are matched by order rather than by id, because some agents reuse ids.
        results = takewhile(lambda result_message: result_message.role == "tool", trace[index + 1 :])
        for call, result_message in zip_longest(message.tool_calls or (), results):
            if call is not None:
                yield AgentCall(
                    message=index,
                    id=call.id,
                    name=call.name,
                    arguments=call.arguments,
                    has_failed=result_message is None or bool(result_message.error),
                    result=(result_message.content or "") if result_message is not None else "",
                    record=target_record_id(call.name, call.arguments, rules),
                )
