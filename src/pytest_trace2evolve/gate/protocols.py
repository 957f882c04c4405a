"""The interfaces of checks and policies, their questions and their answers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

from pytest_trace2evolve.errors import PolicyError
from pytest_trace2evolve.gate.columns import Counts, Flags
from pytest_trace2evolve.gate.intervals import Sensitivity
from pytest_trace2evolve.gate.pairs import Comparisons, Pairs
from pytest_trace2evolve.records.verdict import CheckResult, CheckStatus, Goal, Settling

NOT_APPLICABLE, PASS, UNDECIDED, FAIL = range(4)
"""Array codes for a check's answer; each is an index into `STATUSES`."""

STATUSES = (CheckStatus.NOT_APPLICABLE, CheckStatus.PASS, CheckStatus.UNDECIDED, CheckStatus.FAIL)


class Check(Protocol):
    """One question that a policy asks of the pairs."""

    @property
    def id(self) -> str:
        """The name under which the check is printed and configured."""

    def evaluate(self, pairs: Pairs) -> CheckResult:
        """Answer pass, fail, undecided or not applicable, with the estimate."""


def run_check(check: Check, pairs: Pairs) -> CheckResult:
    """Evaluate a check, which may come from a plugin, and validate its answer.

    Raises:
        PolicyError: the check raised an exception, or its answer is not a `CheckResult`, has a different id,
            or holds an impossible p-value.
    """
    try:
        result: object = check.evaluate(pairs)
    except Exception as error:
        first = str(error).partition("\n")[0]
        raise PolicyError(
            f"check {check.id!r} failed with {type(error).__name__}: {first!r}; fix it"
        ) from None
    if not isinstance(result, CheckResult):
        raise PolicyError(f"check {check.id!r} answered {type(result).__name__}, not a CheckResult; fix it")
    if result.id != check.id:
        raise PolicyError(f"check {check.id!r} answered for {result.id!r}; it answers for itself alone")
    if result.p is not None and not 0 <= result.p <= 1:
        raise PolicyError(f"check {check.id!r} answered p = {result.p:g}; a p-value lies between 0 and 1")
    return result


@dataclass(frozen=True)
class Question:
    """A question to a policy.

    Attributes:
        goal: `improve`, `hold` for "nothing worse", or `no-regression` for "no harm shown".
        guard: Whether the split is a guard, which can block or discard but never promotes.
        share: The share of its level that the claim may use. Later tests of a sealed split, and further
            analyses of a test, get smaller shares.
        next_share: The share that an analysis with more trials would have.
        stage_alpha: The level of one stage, if an analysis has several stages with growing numbers of trials;
            None without stages.
        schedule: The trials of all these stages, which determine the level of the claim at a share; empty if
            the level is the claim's share of `stage_alpha`.
        filled: Whether missing simulations are filled in at their worst, so that the answer is a bound.
    """

    goal: Goal
    guard: bool = False
    share: float = 1.0
    next_share: float = 1.0
    stage_alpha: float | None = None
    schedule: tuple[int, ...] = ()
    filled: bool = False


@dataclass(frozen=True)
class Judgement:
    """A policy's answers, with the broken tasks that were confirmed or are only suspected.

    `sensitivity` is None if the policy states no uncertainty.
    """

    results: tuple[CheckResult, ...]
    regressions: tuple[str, ...] = ()
    suspected: tuple[str, ...] = ()
    settling: tuple[Settling, ...] = ()
    alpha: float | None = None
    sensitivity: Sensitivity | None = None


class Policy(ABC):
    """Decides what a comparison must show.

    Attributes:
        name: The name that selects the policy.
        confirms: Whether a live run reruns a flagged task before the task counts as a regression.
        confirm: Maximum number of fresh simulations in a run, both sides together.
        equal_trials: Whether both sides must have the same number of trials of a task.
        alpha: Level at which a task is confirmed as a regression.
    """

    name: str
    confirms: bool
    confirm: int
    equal_trials: bool
    alpha: float

    @abstractmethod
    def judge(self, pairs: Pairs, question: Question) -> Judgement:
        """Answer every check of the policy."""

    @abstractmethod
    def answers(self, compared: Comparisons, question: Question) -> Counts:
        """The answers of every check by comparison, shape (checks, R), without the checks of plugins."""

    @abstractmethod
    def detects(self, compared: Comparisons, question: Question, drop: float) -> Flags:
        """Whether each comparison would have detected a drop of the mean reward, shape (R,)."""
