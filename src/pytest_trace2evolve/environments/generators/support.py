"""Base class of generators for the support world, and an agent's trajectory through a scenario.

A generator draws a scene, the teacher plays it, and the start of that dialogue becomes the history. The gold
actions are the teacher's calls, so an agent continues from the history towards the same actions. The teacher
follows its whole rulebook with one exception: it reads the account only if it needs data from there, which
keeps scenarios short. The teacher uses the wordings on which the embedded model was trained.
"""

import functools
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pytest_trace2evolve.cases.content import SeededChoices, lesson_words
from pytest_trace2evolve.cases.expert import Intent
from pytest_trace2evolve.cases.scene import Scene, Sketch, UserTurn, assemble
from pytest_trace2evolve.cases.teacher import Teacher, all_habits
from pytest_trace2evolve.environments.environment import EASIEST, HARDEST, Episode, check_difficulty
from pytest_trace2evolve.errors import GeneratorError
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import SCRIPT_KEY, Action, Content, Task
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.worlds.support.tools import TOOL_TYPES
from pytest_trace2evolve.worlds.support.world import SupportWorld

CACHED_SCENARIOS = 256  # a group of rollouts requests the same scenario many times

MAX_SPARE_CALLS = 3
"""Maximum number of calls beyond the expert's; an agent that reads everything or repeats calls exceeds it."""


@dataclass(frozen=True)
class MadeCall:
    """One call of the agent.

    Attributes:
        index: The index of the call's message in the trace.
        has_failed: Whether the tool returned an error.
    """

    index: int
    name: str
    arguments: dict[str, object]
    has_failed: bool

    def matches(self, action: Action) -> bool:
        """Whether the call does the same as a gold action; the order of items does not matter."""
        return self.name == action.name and _sort_items(self.arguments) == _sort_items(action.arguments)

    def reads_record(self, record: str) -> bool:
        """Whether the call reads a record successfully."""
        return self.name.startswith("get_") and not self.has_failed and record in self.arguments.values()


class Trajectory:
    """The calls and texts of an agent in a scenario. The trace includes the history."""

    def __init__(self, task: Task, trace: Sequence[Message]) -> None:
        self.task = task
        self.trace = trace
        self._turn_start = len(task.history)

    @cached_property
    def calls(self) -> list[MadeCall]:
        """All calls of the agent, including those of the history."""
        return list(_iter_calls(self.trace))

    @cached_property
    def own_calls(self) -> list[MadeCall]:
        """The calls since the agent's turn began."""
        return [call for call in self.calls if call.index >= self._turn_start]

    @cached_property
    def changes(self) -> list[MadeCall]:
        """The changes that the agent tried on its turn, successful or not."""
        return [call for call in self.own_calls if is_write(call.name)]

    @cached_property
    def gold_changes(self) -> list[Action]:
        return remaining_changes(self.task)

    @cached_property
    def texts(self) -> list[tuple[int, str]]:
        """The agent's messages to the customer on its turn, each with its index in the trace."""
        return [
            (index, message.content or "")
            for index, message in enumerate(self.trace)
            if index >= self._turn_start and message.role == "assistant" and not message.tool_calls
        ]

    @property
    def makes_too_many_calls(self) -> bool:
        """Whether the agent made more calls than the expert's remaining ones plus `MAX_SPARE_CALLS`."""
        history_call_count = len(self.calls) - len(self.own_calls)
        return len(self.own_calls) > len(self.task.actions) - history_call_count + MAX_SPARE_CALLS

    @property
    def first_change_fits(self) -> bool:
        """Whether the first change has the tool and the order of the expert's next change."""
        if not self.changes or not self.gold_changes:
            return False
        first_change, gold = self.changes[0], self.gold_changes[0]
        return (
            first_change.name == gold.name
            and first_change.arguments.get("order_id") == gold.arguments["order_id"]
        )

    def has_read(self, record: str, before: int | None = None) -> bool:
        """Whether a record was read, in the history or later, before the trace index `before` if given."""
        return any(call.reads_record(record) for call in self.calls if before is None or call.index < before)

    def has_discovered(self, record: str) -> bool:
        """Whether the agent read a record on its turn that was not read in the history."""
        return self.has_read(record) and not self.has_read(record, before=self._turn_start)


def is_write(tool: str) -> bool:
    """Whether a tool of the support world changes something."""
    return TOOL_TYPES.get(tool) is ToolType.WRITE


def say(text: str) -> Message:
    """A message to the customer."""
    return Message(role="assistant", content=text)


def call_message(action: Action, number: int = 0) -> Message:
    """The message with a gold action's call."""
    call = ToolCall(id=f"call_{number}", name=action.name, arguments=action.arguments)
    return Message(role="assistant", content=None, tool_calls=[call])


def with_arguments(action: Action, **arguments: object) -> Action:
    """A copy of the action with some arguments replaced."""
    return action.model_copy(update={"arguments": {**action.arguments, **arguments}})


def remaining_actions(task: Task) -> list[Action]:
    """Return the gold actions that the history does not contain yet."""
    return task.actions[sum(len(message.tool_calls or ()) for message in task.history) :]


def remaining_changes(task: Task) -> list[Action]:
    """Return the gold changes that the history does not contain yet."""
    return [action for action in remaining_actions(task) if is_write(action.name)]


def read_messages_before_change(task: Task) -> list[Message]:
    """Return messages with the expert's calls before its next change; the calls read the needed records."""
    messages = []
    for number, action in enumerate(remaining_actions(task)):
        if is_write(action.name):
            break
        messages.append(call_message(action, number))
    return messages


def messages_without_order_reads(task: Task) -> list[Message]:
    """Return messages with the expert's remaining calls, without those that read an order."""
    actions = enumerate(remaining_actions(task))
    return [call_message(action, number) for number, action in actions if action.name != "get_order_details"]


def opening_text(task: Task) -> str:
    """The customer's first message."""
    text: str = task.user_scenario[SCRIPT_KEY]["turns"][0]["says"]
    return text


def gold_order_id(task: Task) -> str:
    """The id of the order that the customer means, which is the last order that the expert reads."""
    reads = [action for action in task.actions if action.name == "get_order_details"]
    return str(reads[-1].arguments["order_id"])


def _iter_calls(trace: Sequence[Message]) -> Iterator[MadeCall]:
    pending_calls: list[tuple[int, ToolCall]] = []
    for index, message in enumerate(trace):
        if message.role == "tool" and pending_calls:
            call_index, call = pending_calls.pop(0)
            yield MadeCall(call_index, call.name, call.arguments, bool(message.error))
        else:
            pending_calls = [(index, call) for call in message.tool_calls or ()]


def _sort_items(arguments: dict[str, object]) -> dict[str, object]:
    """Return the arguments with sorted items; each item stays paired with its new item."""
    item_ids, new_item_ids = arguments.get("item_ids"), arguments.get("new_item_ids")
    if not isinstance(item_ids, list):
        return arguments
    if isinstance(new_item_ids, list) and len(new_item_ids) == len(item_ids):
        pairs = sorted(zip(item_ids, new_item_ids, strict=True), key=json.dumps)
        items = {"item_ids": [item for item, _ in pairs], "new_item_ids": [item for _, item in pairs]}
        return {**arguments, **items}
    return {**arguments, "item_ids": sorted(item_ids, key=json.dumps)}


@dataclass(frozen=True)
class Draft:
    """A sketch of a scene that requires a capability, and the point at which the scenario starts.

    Attributes:
        decisive_record: Id of the record that the agent must decide to read; the history ends before it is
            read. Empty if everything is read before the decision.
        turn_index: The index of the customer's turn that requires the decision.
        reads_account: Whether the expert always reads the account.
        asks_first: Whether the expert asks the customer all its questions before the decision.
    """

    sketch: Sketch
    decisive_record: str = ""
    turn_index: int = 0
    reads_account: bool = False
    asks_first: bool = False


def single_request_draft(
    scene: Scene, request: str, intent: Intent, *, decisive_record: str = "", reads_account: bool = False
) -> Draft:
    """The draft of a scene in which the customer makes one request, in the first message."""
    sketch = Sketch(scene, [UserTurn(request, [intent])])
    return Draft(sketch, decisive_record=decisive_record, reads_account=reads_account)


class SupportGenerator(ABC):
    """Generates the scenarios of one capability; see `Generator` in `records.protocols`.

    A subclass draws scenes and grades trajectories. By default the first change decides, and the shortcut is
    the expert's read calls followed by `wrong_change`. A higher difficulty gives a shorter history and more
    distractors. The content decides whether a scenario uses words of training or held-out words.

    Attributes:
        pays: The rewarded behavior, in one line.
        version: The version of the scenarios, a part of the digest. Increase it only if the same seed gives a
            different scenario, grade, customer's reply or tool result, because a new version makes
            calibrations stale. `tests/environments/test_golden.py` checks the version.
        methods: Kinds of payment method that the customer has.
    """

    capability: str
    pays: str
    version: int
    methods: tuple[str, ...] = ("credit_card",)

    def __init__(self, difficulty: int = EASIEST, content: Content = Content.TRAIN) -> None:
        check_difficulty(self.capability, difficulty)
        self.difficulty = difficulty
        self.content = content
        self.digest = digest([self.capability, difficulty, content.value, self.version])
        self.scenario = functools.lru_cache(maxsize=CACHED_SCENARIOS)(self.make_scenario)

    @abstractmethod
    def make_draft(self, scene: Scene) -> Draft:
        """Draft a scene that requires the capability."""

    @abstractmethod
    def grade_trajectory(self, trajectory: Trajectory, solved: bool) -> float:
        """The grade of an agent that did not make too many calls."""

    def is_decided(self, trajectory: Trajectory) -> bool:
        """Whether the agent has made the decision that tests the capability, right or wrong."""
        return bool(trajectory.changes)

    def shortcut(self, task: Task) -> Sequence[Message]:
        """The messages of an agent that lacks the capability and makes the most likely mistake."""
        wrong_change = self.wrong_change(task, remaining_changes(task)[0])
        return [*read_messages_before_change(task), call_message(wrong_change, 90)]

    def wrong_change(self, task: Task, gold: Action) -> Action:
        """Return the most likely wrong change in place of the expert's."""
        raise NotImplementedError

    def grade(self, task: Task, trace: Sequence[Message], *, solved: bool) -> float:
        """The grade of a trajectory, by the table of the generator's class; 0 for too many calls."""
        trajectory = Trajectory(task, trace)
        return 0.0 if trajectory.makes_too_many_calls else self.grade_trajectory(trajectory, solved)

    def settled(self, task: Task, trace: Sequence[Message]) -> bool:
        """Whether no further message can change the grade."""
        trajectory = Trajectory(task, trace)
        return trajectory.makes_too_many_calls or self.is_decided(trajectory)

    @property
    def distractors(self) -> int:
        """The maximum number of further orders, and of other customers, in a scene."""
        return self.difficulty - EASIEST

    def make_scenario(self, seed: int) -> Task:
        """Make the scenario of a seed, without the cache."""
        choice_seed = f"environment/{self.capability}/{self.content.value}/{seed}"
        words = lesson_words(random.Random(choice_seed)) if self.content is Content.TRAIN else None
        draft = self.make_draft(Scene(SeededChoices(choice_seed), self.content, self.methods, words))
        expert_episode = self._play_expert(assemble(self.capability, draft.sketch), draft, seed)
        if not expert_episode.is_solved():
            raise GeneratorError(
                f"environment {self.capability!r}: the expert does not solve the scenario of seed {seed}; "
                "fix its scene"
            )
        decision_index = _decision_index(expert_episode.trace, draft)
        turn_starts = [
            index
            for index, message in enumerate(expert_episode.trace[: decision_index + 1])
            if index > 1 and message.role == "assistant"
        ]
        start_index = round((len(turn_starts) - 1) * (HARDEST - self.difficulty) / (HARDEST - EASIEST))
        task_id = f"{self.capability}-{self.content.value}-{self.difficulty}-{seed}"
        return _with_history(expert_episode.task, expert_episode.trace, turn_starts[start_index], task_id)

    def _play_expert(self, task: Task, draft: Draft, seed: int) -> Episode:
        habits = {**all_habits(), "account_always": draft.reads_account}
        teacher = Teacher(draft.sketch, habits, random.Random(seed), self.capability)
        episode = Episode(task, SupportWorld(), seed)
        while episode.end is None:
            episode.step(teacher.reply(episode.trace))
        return episode


def _decision_index(trace: Sequence[Message], draft: Draft) -> int:
    """The index of the expert's message that makes the decision."""
    turn_text = draft.sketch.turns[draft.turn_index].says
    turn_start = next(
        index
        for index, message in enumerate(trace)
        if message.role == "user" and message.content == turn_text
    )
    if draft.asks_first:
        return _proposal_index(trace, turn_start)
    for index in range(turn_start + 1, len(trace)):
        calls = trace[index].tool_calls or ()
        if draft.decisive_record:
            if any(draft.decisive_record in call.arguments.values() for call in calls):
                return index
        elif _is_text(trace[index]) and not any(map(_has_read_call, trace[index:])):
            # The first text to the customer after the last read call: a proposal, a question or an answer.
            return index
    raise AssertionError("the expert decides nothing")


def _proposal_index(trace: Sequence[Message], turn_start: int) -> int:
    """The index of the expert's last text to the customer before its next change."""
    change_index = next(
        index
        for index in range(turn_start + 1, len(trace))
        if any(is_write(call.name) for call in trace[index].tool_calls or ())
    )
    return next(index for index in range(change_index, turn_start, -1) if _is_text(trace[index]))


def _is_text(message: Message) -> bool:
    return message.role == "assistant" and not message.tool_calls


def _has_read_call(message: Message) -> bool:
    return any(call.name.startswith(("get_", "find_")) for call in message.tool_calls or ())


def _with_history(task: Task, trace: Sequence[Message], history_length: int, task_id: str) -> Task:
    """The task with the start of the dialogue as history and the dialogue's calls as gold actions."""
    task_json: dict[str, Any] = task.model_dump(mode="json")
    calls = [call for message in trace for call in message.tool_calls or ()]
    task_json["id"] = task_id
    task_json["initial_state"]["message_history"] = [
        message.model_dump(mode="json", exclude_none=True) for message in trace[:history_length]
    ]
    task_json["evaluation_criteria"]["actions"] = [
        {"action_id": str(index), "name": call.name, "arguments": call.arguments}
        for index, call in enumerate(calls)
    ]
    turns = task_json["user_scenario"][SCRIPT_KEY]["turns"]
    for turn, count in zip(turns, _count_calls_by_turn(trace, [turn["says"] for turn in turns]), strict=True):
        turn["actions"] = count
    return Task.model_validate(task_json)


def _count_calls_by_turn(trace: Sequence[Message], turn_texts: Sequence[str]) -> list[int]:
    """The number of calls in each of the customer's turns."""
    counts, turn_index = [0] * len(turn_texts), 0
    for message in trace:
        if message.role == "user" and message.content in turn_texts[turn_index + 1 :]:
            turn_index = turn_texts.index(message.content, turn_index + 1)
        counts[turn_index] += len(message.tool_calls or ())
    return counts
