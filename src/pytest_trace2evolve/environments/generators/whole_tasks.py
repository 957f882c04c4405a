"""Environment of whole tasks: cases of every family from the greeting to the customer's last word."""

import functools
import random
from collections.abc import Sequence

from pytest_trace2evolve.cases.case import FAMILIES, build_case, sketch_case
from pytest_trace2evolve.cases.content import SeededChoices, lesson_words
from pytest_trace2evolve.cases.scene import assemble
from pytest_trace2evolve.environments.environment import EASIEST, check_difficulty
from pytest_trace2evolve.environments.generators.support import CACHED_SCENARIOS, say
from pytest_trace2evolve.records.adapter import WHOLE_TASKS
from pytest_trace2evolve.records.message import USER_STOP_MARKS, Message
from pytest_trace2evolve.records.task import Content, Task
from pytest_trace2evolve.scoring.invariants import find_breaches
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.worlds.support.world import SupportWorld

FAMILY_NAMES = tuple(FAMILIES)
"""The families in the order of seeds: the remainder of a seed selects the family."""


class WholeTasks:
    """Generates whole tasks: 1 for a task that is solved and has ended without a broken rule, else 0.

    A suite pays for breaches too, and the gate only counts them. An agent that is trained with the suite's
    reward learns to change things without the customer's yes, and the gate then discards it.
    Training content has a vocabulary of its own for each task; held-out content has the words of suites, but
    no case of theirs. See `Generator` in `records.protocols`.
    """

    capability = WHOLE_TASKS
    version = 2
    pays = "solves the whole task, and breaks no rule of the world"

    def __init__(self, difficulty: int = EASIEST, content: Content = Content.TRAIN) -> None:
        check_difficulty(self.capability, difficulty)
        self.content = content
        self._rules = SupportWorld().rules()
        self.digest = digest([self.capability, content.value, self.version])
        self.scenario = functools.lru_cache(maxsize=CACHED_SCENARIOS)(self.make_scenario)

    def make_scenario(self, seed: int) -> Task:
        """Make the scenario of a seed, without the cache."""
        family, choices = FAMILY_NAMES[seed % len(FAMILY_NAMES)], f"whole/{self.content.value}/{seed}"
        if self.content is not Content.TRAIN:
            return build_case(family, SeededChoices(choices), self.content).task
        words = lesson_words(random.Random(choices))
        return assemble(family, sketch_case(family, SeededChoices(choices), self.content, words))

    def grade(self, task: Task, trace: Sequence[Message], *, solved: bool) -> float:
        """1 if the task is solved, no rule is broken and the customer has ended the conversation, else 0."""
        last = trace[-1] if trace else None
        has_ended = (
            last is not None
            and last.role == "user"
            and any(mark in (last.content or "") for mark in USER_STOP_MARKS)
        )
        return float(solved and has_ended and not find_breaches(trace, self._rules))

    def settled(self, task: Task, trace: Sequence[Message]) -> bool:
        """Never before the end: a later message may break what was right."""
        return False

    def shortcut(self, task: Task) -> Sequence[Message]:
        """The message of an agent that does nothing."""
        return [say("I am sorry, I cannot do that.")]
