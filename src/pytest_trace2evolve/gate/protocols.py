"""The interfaces of checks and policies, and the questions and judgements of policies."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

from pytest_trace2evolve.errors import PolicyError
from pytest_trace2evolve.gate.columns import Counts, Flags
from pytest_trace2evolve.gate.intervals import Sensitivity
from pytest_trace2evolve.gate.pairs import Comparisons, Pairs
from pytest_trace2evolve.records.verdict import CheckResult, CheckStatus, Estimand, Goal, NeededEvidence

NOT_APPLICABLE, PASS, UNDECIDED, FAIL = range(4)
"""Status codes of checks in arrays; each is an index into `STATUSES`."""

STATUSES = (CheckStatus.NOT_APPLICABLE, CheckStatus.PASS, CheckStatus.UNDECIDED, CheckStatus.FAIL)


class Check(Protocol):
    """A check of paired evidence that a policy can use."""

    @property
    def id(self) -> str:
        """The name under which the check is printed and configured."""

    def evaluate(self, pairs: Pairs) -> CheckResult:
        """Return pass, fail, undecided or not applicable, with the estimate."""


def run_check(check: Check, pairs: Pairs) -> CheckResult:
    """Evaluate a check, which may come from a plugin, and validate its result.

    Raises:
        PolicyError: the check raised an exception, or its result is not a `CheckResult`, has a different id,
            or has an impossible p-value.
    """
    try:
        result: object = check.evaluate(pairs)
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        raise PolicyError(
            f"check {check.id!r} failed with {type(error).__name__}: {first_line!r}; fix the check"
        ) from None
    if not isinstance(result, CheckResult):
        raise PolicyError(
            f"check {check.id!r} returned {type(result).__name__}, expected CheckResult; fix the check"
        )
    if result.id != check.id:
        raise PolicyError(
            f"check {check.id!r} returned a result with id {result.id!r}; the ids must be equal"
        )
    if result.p is not None and not 0 <= result.p <= 1:
        raise PolicyError(f"check {check.id!r} returned p = {result.p:g}; p must be between 0 and 1")
    return result


@dataclass(frozen=True)
class Question:
    """The goal and the levels at which a policy judges a comparison.

    Attributes:
        goal: `improve`, `hold` for "nothing worse", or `no-regression` for "no harm shown".
        is_guard: Whether the split is a guard, which can block or discard but never promotes.
        share: The share of its level that the claim may use. Later tests of a sealed split, and further
            analyses of a test, get smaller shares.
        next_share: The share that an analysis with more trials would have.
        stage_alpha: The level of one stage, if an analysis has several stages with growing numbers of trials;
            None without stages.
        schedule: The numbers of trials of all stages, from which the level of the claim is computed; empty if
            that level is the claim's share of `stage_alpha`.
        is_filled: Whether missing simulations are filled in at their worst, so that the answer is a bound.
    """

    goal: Goal
    is_guard: bool = False
    share: float = 1.0
    next_share: float = 1.0
    stage_alpha: float | None = None
    schedule: tuple[int, ...] = ()
    is_filled: bool = False

    @property
    def checked_goal(self) -> Goal:
        """The goal that the checks ask about. A guard never has to show an improvement."""
        return Goal.HOLD if self.is_guard and self.goal is Goal.IMPROVE else self.goal


@dataclass(frozen=True)
class Judgement:
    """The results of a policy's checks, with the broken tasks that are confirmed or only suspected.

    `sensitivity` is None if the policy states no uncertainty.
    """

    results: tuple[CheckResult, ...]
    regressions: tuple[str, ...] = ()
    suspected: tuple[str, ...] = ()
    needed_evidence: tuple[NeededEvidence, ...] = ()
    alpha: float | None = None
    sensitivity: Sensitivity | None = None


class Policy(ABC):
    """A set of checks that decides what a comparison must show.

    Attributes:
        name: The name that selects the policy.
        confirms_regressions: Whether a live run reruns a flagged task before the task counts as a regression.
        max_fresh_simulations: Maximum number of fresh simulations in a run, both sides together.
        alpha: Significance level at which a task is confirmed as a regression.
    """

    name: str
    confirms_regressions: bool
    max_fresh_simulations: int
    alpha: float

    @property
    def estimand(self) -> Estimand | None:
        """The tasks that the policy's verdicts are about; None if the policy states no uncertainty."""
        return None

    def for_suite(self, estimand: Estimand) -> "Policy":
        """Return the policy for a suite with this estimand; unchanged if the policy sets its own estimand."""
        return self

    @abstractmethod
    def judge(self, pairs: Pairs, question: Question) -> Judgement:
        """Evaluate every check of the policy."""

    @abstractmethod
    def status_codes(self, comparisons: Comparisons, question: Question) -> Counts:
        """Return the status codes by check and comparison, shape (checks, R), without checks of plugins."""

    @abstractmethod
    def rules_out(self, comparisons: Comparisons, question: Question, drop: float) -> Flags:
        """Whether each comparison excludes a drop of the mean reward or would have detected it, (R,)."""
