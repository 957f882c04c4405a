"""Scenarios of the support world: a scene is drawn, the teacher plays it, and a part of that is the history.

The gold actions are the teacher's calls, so that whoever goes on from the history goes on along them. The
teacher keeps all its habits but one: it fetches the account only where something stands there that it needs,
which keeps scenarios short. Its words are those that the embedded model was trained to hear.
"""

import functools
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_trace2evolve.cases.content import SeededDraws, lesson_words
from pytest_trace2evolve.cases.scene import Scene, Sketch, assemble
from pytest_trace2evolve.cases.teacher import Teacher, every_habit
from pytest_trace2evolve.environments.environment import Play
from pytest_trace2evolve.environments.generators.trajectory import Deeds, is_write
from pytest_trace2evolve.errors import GeneratorError
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import SCRIPT, Content, Task, script_of
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.worlds.support.world import SupportWorld

EASIEST, HARDEST = 1, 5
"""The difficulties. At the first all is played up to the decision, at the last only the first message."""

KEPT = 256
"""Scenarios that a generator remembers: a group of rollouts asks for the same one many times."""


@dataclass(frozen=True)
class Drawn:
    """A scene on which a capability is needed.

    Attributes:
        sketch: What the customer wants.
        reads: Record whose reading is the decision: the history ends before it at the latest. Empty where all
            is read before the decision falls.
        turn: The customer's turn at which it falls.
        account: Whether the expert fetches the account in any case.
        asked: Whether all that the customer must be asked is asked before the decision falls.
    """

    sketch: Sketch
    reads: str = ""
    turn: int = 0
    account: bool = False
    asked: bool = False


class SupportGenerator(ABC):
    """Scenarios of one capability; see `Generator` in `records.protocols`.

    Args:
        difficulty: From 1 to 5: how little is played before it is the agent's turn, and how much is beside
            the point.
        content: Whose words the scenarios are made of: what is trained on, or what only measures.

    Attributes:
        version: Version of the scenarios, which the digest holds. It must be raised when the same seed gives
            another scenario, another grade, or another answer of the customer or of a tool, and only then: a
            calibration of an earlier version is stale. `tests/environments/test_golden.py` says when.

    Raises:
        GeneratorError: there is no such difficulty.
    """

    capability: str
    pays: str
    version: int
    methods: tuple[str, ...] = ("credit_card",)

    def __init__(self, difficulty: int = EASIEST, content: Content = Content.TRAIN) -> None:
        if not EASIEST <= difficulty <= HARDEST:
            raise GeneratorError(
                f"environment {self.capability!r}: difficulty {difficulty}: "
                f"must be from {EASIEST} to {HARDEST}"
            )
        self.difficulty = difficulty
        self.content = content
        self.digest = digest([self.capability, difficulty, content.value, self.version])
        self.scenario = functools.lru_cache(maxsize=KEPT)(self._scenario)

    @abstractmethod
    def draw(self, scene: Scene) -> Drawn:
        """A scene on which the capability is needed."""

    @abstractmethod
    def paid(self, deeds: Deeds, solved: bool) -> float:
        """The grade of what was done, where the agent did not simply do a great deal."""

    @abstractmethod
    def decided(self, deeds: Deeds) -> bool:
        """Whether what the capability is about has happened, well or badly."""

    @abstractmethod
    def shortcut(self, task: Task) -> Sequence[Message]:
        """What an agent does that lacks the capability and takes the nearest wrong way."""

    def grade(self, task: Task, trace: Sequence[Message], *, solved: bool) -> float:
        """How far the capability was exercised; see the table of the generator's own class."""
        deeds = Deeds(task, trace)
        return 0.0 if deeds.lavish else self.paid(deeds, solved)

    def settled(self, task: Task, trace: Sequence[Message]) -> bool:
        """Whether nothing that may follow changes the grade."""
        deeds = Deeds(task, trace)
        return deeds.lavish or self.decided(deeds)

    def _scenario(self, seed: int) -> Task:
        name = f"environment/{self.capability}/{self.content.value}/{seed}"
        drawn = random.Random(name)
        words = lesson_words(drawn) if self.content is Content.TRAIN else None
        scene = Scene(SeededDraws(name), self.content, self.methods, words)
        found = self.draw(scene)
        task = assemble(self.capability, found.sketch)
        trace, solved = self._played(task, found, seed)
        if not solved:
            raise GeneratorError(
                f"environment {self.capability!r}: the expert does not solve the scenario of seed {seed}; "
                "mend its scene"
            )
        decision = _decision(trace, found)
        starts = [
            place for place, one in enumerate(trace[: decision + 1]) if place > 1 and one.role == "assistant"
        ]
        kept = round((len(starts) - 1) * (HARDEST - self.difficulty) / (HARDEST - EASIEST))
        name = f"{self.capability}-{self.content.value}-{self.difficulty}-{seed}"
        return _with_history(task, trace, starts[kept], name)

    def _played(self, task: Task, drawn: Drawn, seed: int) -> tuple[list[Message], bool]:
        """The expert's whole dialogue, and whether it solved the task."""
        script = script_of(task)
        assert script is not None
        habits = {**every_habit(), "account_always": drawn.account}
        teacher = Teacher(drawn.sketch, habits, random.Random(seed), self.capability)
        play = Play(task, SupportWorld(), ScriptedUser(script, seed=seed))
        while play.end is None:
            play.step(teacher.reply(play.trace))
        return play.trace, play.solved()

    @property
    def most(self) -> int:
        """How many orders of the customer, and how many other customers, may be there beside the point."""
        return self.difficulty - EASIEST


def _decision(trace: Sequence[Message], drawn: Drawn) -> int:
    """The place of the agent's message with which the decision falls."""
    says = drawn.sketch.turns[drawn.turn].says
    begins = next(place for place, one in enumerate(trace) if one.role == "user" and one.content == says)
    if drawn.asked:
        return _proposal(trace, begins)
    for place in range(begins + 1, len(trace)):
        calls = trace[place].tool_calls or ()
        if drawn.reads:
            if any(drawn.reads in call.arguments.values() for call in calls):
                return place
        elif _speaks(trace[place]) and not any(map(_reads, trace[place:])):
            # The first word to the customer after the last reading: a proposal, a question or an answer.
            return place
    raise AssertionError("the expert decides nothing")


def _proposal(trace: Sequence[Message], begins: int) -> int:
    """The place of the agent's last word to the customer before its next change."""
    places = range(begins + 1, len(trace))
    change = next(
        place for place in places if any(is_write(one.name) for one in trace[place].tool_calls or ())
    )
    return next(place for place in range(change, begins, -1) if _speaks(trace[place]))


def _speaks(message: Message) -> bool:
    return message.role == "assistant" and not message.tool_calls


def _reads(message: Message) -> bool:
    return any(call.name.startswith(("get_", "find_")) for call in message.tool_calls or ())


def _with_history(task: Task, trace: Sequence[Message], cut: int, name: str) -> Task:
    """The task with a part of the dialogue before it, and with the dialogue's calls as gold actions."""
    record: dict[str, Any] = task.model_dump(mode="json")
    calls = [call for message in trace for call in message.tool_calls or ()]
    record["id"] = name
    record["initial_state"]["message_history"] = [
        one.model_dump(mode="json", exclude_none=True) for one in trace[:cut]
    ]
    record["evaluation_criteria"]["actions"] = [
        {"action_id": str(place), "name": call.name, "arguments": call.arguments}
        for place, call in enumerate(calls)
    ]
    turns = record["user_scenario"][SCRIPT]["turns"]
    for turn, count in zip(turns, _calls_by_turn(trace, [turn["says"] for turn in turns]), strict=True):
        turn["actions"] = count
    return Task.model_validate(record)


def _calls_by_turn(trace: Sequence[Message], says: Sequence[str]) -> list[int]:
    """How many of the calls belong to each of the customer's turns."""
    counts, turn = [0] * len(says), 0
    for message in trace:
        if message.role == "user" and message.content in says[turn + 1 :]:
            turn = says.index(message.content, turn + 1)
        counts[turn] += len(message.tool_calls or ())
    return counts
