"""Target tasks: whole conversations that call for one capability, or for two of one customer.

They are cases, not scenarios of the environments: they begin with the customer's first message, and nothing
of what the environments pay is paid here. Both kinds are made of the same scenes and words.
"""

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from pytest_trace2evolve.cases.case import CAPABILITIES, Case, case_of
from pytest_trace2evolve.cases.content import Draws, SeededDraws, Vocabulary, lesson_words
from pytest_trace2evolve.cases.scene import Scene, Sketch, UserTurn, assemble
from pytest_trace2evolve.cases.store import Data
from pytest_trace2evolve.errors import CaseError
from pytest_trace2evolve.records.task import Content

_LINK = "_with_"
"""Between the capabilities in a cell's name."""

TRIES_MOST = 100
"""Draws in a row without a new task, after which a cell counts as used up."""


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
        return _LINK.join(self.capabilities)


@dataclass(frozen=True)
class Target:
    """One target task.

    Attributes:
        labels: By the customer's turn, the capability that it calls for.
    """

    cell: Cell
    case: Case
    labels: tuple[str, ...]


def cells_of(capabilities: Sequence[str]) -> tuple[Cell, ...]:
    """All kinds of target task: each capability alone, then each pair."""
    alone = [(one,) for one in capabilities]
    return tuple(map(Cell, [*alone, *combinations(capabilities, 2)]))


def targets_of(cell: Cell, seed: str, count: int, content: Content) -> tuple[Target, ...]:
    """Different tasks of a cell; the same seed gives the same ones.

    Raises:
        CaseError: the cell gives no new task any more.
    """
    found: dict[str, Target] = {}
    place = missed = 0
    while len(found) < count:
        made = target_of(cell, f"{seed}/{place}", content)
        missed = missed + 1 if made.case.id in found else 0
        found.setdefault(made.case.id, made)
        place += 1
        if missed == TRIES_MOST:
            raise CaseError(f"{cell.name!r} gave no new task after {len(found)} of {count}; ask for fewer")
    return tuple(found.values())


def target_of(cell: Cell, seed: str, content: Content) -> Target:
    """The task of a seed; those of training content have the ever new words of the environments."""
    name = f"target/{cell.name}/{content.value}/{seed}"
    words = lesson_words(random.Random(name)) if content is Content.TRAIN else None
    sketch, labels = _sketched(cell, SeededDraws(name), content, words)
    return Target(cell, case_of(assemble(cell.name, sketch)), labels)


def _sketched(
    cell: Cell, draws: Draws, content: Content, words: Vocabulary | None
) -> tuple[Sketch, tuple[str, ...]]:
    families = [CAPABILITIES[one] for one in cell.capabilities]
    methods = tuple(dict.fromkeys(method for family in families for method in family.methods))
    scene = _LongScene(draws, content, methods, words, wishes=len(families))
    turns: list[UserTurn] = []
    labels: list[str] = []
    order = list(families)
    if len(order) > 1 and scene.chance():
        order.reverse()
    for family in order:
        scene.begin()
        told = family.sketch(scene).turns
        turns += told
        labels += [family.name] * len(told)
    return Sketch(scene, turns), tuple(labels)


class _LongScene(Scene):
    """A scene on which families play one after another, with one customer.

    What is beside the point comes with the last: a product that the customer names must not be in it.
    """

    def __init__(
        self,
        draws: Draws,
        content: Content,
        methods: Sequence[str],
        words: Vocabulary | None,
        *,
        wishes: int,
    ) -> None:
        super().__init__(draws, content, methods, words)
        self._wishes, self._begun = wishes, 0
        self._around = self.store.surroundings
        self.store.surroundings = self._surroundings  # type: ignore[method-assign]  # families ask the store

    def begin(self) -> None:
        """The next family plays."""
        self._begun += 1

    def opening(self, *requests: str) -> str:
        """The customer's first message; with a later wish they neither greet nor say again who they are."""
        if self._begun == 1:
            return super().opening(*requests)
        return self.say("then", request=" ".join(requests))

    def _surroundings(self, user: Data, most: int = 2) -> None:
        self._around(user, most if self._begun == self._wishes else 0)


@functools.cache
def heldout_targets(cells: tuple[Cell, ...], count: int) -> tuple[Target, ...]:
    """What is evaluated: `count` tasks of each cell, of content that no training sees."""
    return tuple(one for cell in cells for one in targets_of(cell, "evaluation", count, Content.HELDOUT))


@functools.cache
def validation_targets(cells: tuple[Cell, ...], count: int) -> tuple[Target, ...]:
    """What choices are made on: tasks of training content that no training is given."""
    return tuple(one for cell in cells for one in targets_of(cell, "validation", count, Content.TRAIN))
