"""What is asked of a policy, and what it answers."""

from dataclasses import dataclass
from typing import Protocol

from pytest_trace2evolve.gate.pairs import Pairs
from pytest_trace2evolve.records.verdict import CheckResult, Goal, Settling


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        goal: `improve`, `hold` for "nothing worse", or `no-regression` for "no harm shown".
        guard: The split is a guard: it can block or discard, and promotes nothing.
        share: The share of its level that the claim may use: the k-th test of a sealed split has less, and so
            has each further analysis of a test.
        next_share: The share that an analysis with more trials would have.
        stage_alpha: Level of one stage of several at growing numbers of trials; None without stages.
        schedule: Trials of all these stages, from which the level of the claim at a share follows; empty if
            the claim has its share of `stage_alpha`.
        filled: Missing simulations are filled in at their worst: the answer is a bound.
    """

    goal: Goal
    guard: bool = False
    share: float = 1.0
    next_share: float = 1.0
    stage_alpha: float | None = None
    schedule: tuple[int, ...] = ()
    filled: bool = False


@dataclass(frozen=True)
class Sensitivity:
    """The drop of the mean reward that a comparison could have detected.

    Attributes:
        drop: The smallest that four of five comparisons would have detected, 0 to 1; None: no drop at all.
        tasks: How many tasks of the same spread and trials would detect a drop of 20 points; None: more than
            2,000.
    """

    drop: float | None
    tasks: int | None


@dataclass(frozen=True)
class Judgement:
    """The answers, and the broken tasks that were confirmed or are only suspected.

    `sensitivity` is None if the policy states no uncertainty.
    """

    results: tuple[CheckResult, ...]
    regressions: tuple[str, ...] = ()
    suspected: tuple[str, ...] = ()
    settling: tuple[Settling, ...] = ()
    alpha: float | None = None
    sensitivity: Sensitivity | None = None


class Policy(Protocol):
    """Decides what a comparison must show.

    Attributes:
        name: Under which it is chosen.
        confirms: Whether a live run tries a flagged task again before it counts as a regression.
        confirm: Most fresh simulations of a run, both sides together.
        equal_trials: Whether both sides must have the same number of trials of a task.
        alpha: Level at which a task is confirmed as a regression.
    """

    @property
    def name(self) -> str: ...

    @property
    def confirms(self) -> bool: ...

    @property
    def confirm(self) -> int: ...

    @property
    def equal_trials(self) -> bool: ...

    @property
    def alpha(self) -> float: ...

    def judge(self, pairs: Pairs, question: Question) -> Judgement:
        """Answer every check of the policy."""
