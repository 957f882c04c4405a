"""Target tasks: whole conversations that call for one capability, or for two of one customer.

They are cases, not scenarios of the environments: they begin with the customer's first message, and earn none
of the environments' rewards. Both are made of the same scenes and words."""

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from pytest_trace2evolve.cases.case import CAPABILITIES, Case, to_case
from pytest_trace2evolve.cases.content import ChoiceSource, SeededChoices, Vocabulary, lesson_words
from pytest_trace2evolve.cases.scene import Scene, Sketch, UserTurn, assemble
from pytest_trace2evolve.cases.store import JsonRecord
from pytest_trace2evolve.errors import CaseError
from pytest_trace2evolve.records.task import Content

MAX_REPEATS = 100
"""Draws in a row without a new task after which a cell counts as exhausted."""


@dataclass(frozen=True)
class Cell:
    """A kind of target task.

    Attributes:
        capabilities: What its tasks call for: one, or two.
    """

    capabilities: tuple[str, ...]

    @property
    def name(self) -> str:
        """In snake_case."""
        return "_with_".join(self.capabilities)


@dataclass(frozen=True)
class Target:
    """One target task.

    Attributes:
        labels: The capability that each of the customer's turns calls for.
    """

    cell: Cell
    case: Case
    labels: tuple[str, ...]


def cells_of(capabilities: Sequence[str]) -> tuple[Cell, ...]:
    """All kinds of target task: each capability alone, then each pair."""
    return tuple(map(Cell, [*((name,) for name in capabilities), *combinations(capabilities, 2)]))


def targets_of(cell: Cell, seed: str, count: int, content: Content) -> tuple[Target, ...]:
    """Different tasks of a cell; the same seed gives the same ones.

    Raises:
        CaseError: the cell gives no new task any more.
    """
    found: dict[str, Target] = {}
    place = repeats = 0
    while len(found) < count:
        target = target_of(cell, f"{seed}/{place}", content)
        repeats = repeats + 1 if target.case.id in found else 0
        found.setdefault(target.case.id, target)
        place += 1
        if repeats == MAX_REPEATS:
            raise CaseError(f"{cell.name!r} gave no new task after {len(found)} of {count}; ask for fewer")
    return tuple(found.values())


def target_of(cell: Cell, seed: str, content: Content) -> Target:
    """The task of a seed; those of training content have the ever new words of the environments."""
    name = f"target/{cell.name}/{content.value}/{seed}"
    words = lesson_words(random.Random(name)) if content is Content.TRAIN else None
    families = [CAPABILITIES[capability] for capability in cell.capabilities]
    methods = tuple(dict.fromkeys(method for family in families for method in family.methods))
    scene = _LongScene(SeededChoices(name), content, methods, words, wishes=len(families))
    if len(families) > 1 and scene.draw_bool():
        families.reverse()
    turns: list[UserTurn] = []
    labels: list[str] = []
    for family in families:
        scene.begin()
        own = family.sketch(scene).turns
        turns += own
        labels += [family.name] * len(own)
    return Target(cell, to_case(assemble(cell.name, Sketch(scene, turns))), tuple(labels))


class _LongScene(Scene):
    """A scene on which families play one after another, with one customer.

    Irrelevant records come with the last: a product that the customer names must not be among them.
    """

    def __init__(
        self,
        choices: ChoiceSource,
        content: Content,
        methods: Sequence[str],
        words: Vocabulary | None,
        *,
        wishes: int,
    ) -> None:
        super().__init__(choices, content, methods, words)
        self._wishes, self._begun = wishes, 0
        self._add_all_distractors = self.store.add_distractors
        self.store.add_distractors = self._add_distractors  # type: ignore[method-assign]  # families ask the store

    def begin(self) -> None:
        """Start the next family."""
        self._begun += 1

    def opening_message(self, *requests: str) -> str:
        """The customer's first message; with a later wish they do not greet or identify themselves again."""
        if self._begun == 1:
            return super().opening_message(*requests)
        return self.say("then", request=" ".join(requests))

    def _add_distractors(self, user: JsonRecord, max_count: int = 2) -> None:
        self._add_all_distractors(user, max_count if self._begun == self._wishes else 0)


@functools.cache
def heldout_targets(cells: tuple[Cell, ...], count: int) -> tuple[Target, ...]:
    """The evaluated tasks: `count` of each cell, of content that no training sees."""
    return tuple(
        target for cell in cells for target in targets_of(cell, "evaluation", count, Content.HELDOUT)
    )


@functools.cache
def validation_targets(cells: tuple[Cell, ...], count: int) -> tuple[Target, ...]:
    """The tasks for choices: of training content that no training is given."""
    return tuple(target for cell in cells for target in targets_of(cell, "validation", count, Content.TRAIN))
