"""Gate policies: the built-in ones, and a project's own files, each of which modifies a built-in one.

base = "calibrated"
alpha = 0.05
estimand = "tasks"            # or "suite": exactly these tasks
suspected = "list"            # or "block"
confirm = 640                 # maximum number of fresh simulations in a live run

[checks.reward]
margin = 0.10                 # the largest loss that still counts as not worse
[checks.action_match]
alpha = 0.01                  # a separate level for this check
[checks.read_action_match]
watch = false                 # omit this check
[checks.latency]              # a check of a plugin, by its id
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError

from pytest_trace2evolve.errors import PolicyError, nearest
from pytest_trace2evolve.gate.calibrated import CALIBRATED, DROP, Calibrated
from pytest_trace2evolve.gate.columns import INVARIANTS, Counts, Flags, Floats
from pytest_trace2evolve.gate.pairs import (
    MAX_STEPS,
    METRICS,
    REGRESSIONS,
    REWARD,
    Comparisons,
    Pairs,
    Tally,
    mean_of,
    means_line,
)
from pytest_trace2evolve.gate.protocols import (
    FAIL,
    NOT_APPLICABLE,
    PASS,
    STATUSES,
    Check,
    Judgement,
    Policy,
    Question,
    run_check,
)
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.verdict import CheckResult, CheckStatus, Goal
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.reading import problem_in, read_toml

TOLERANCE = 1e-9
"""Differences up to this size are rounding errors, not effects."""


@dataclass(frozen=True)
class PointCheck:
    """A check of a point estimate.

    Attributes:
        id: The check's name.
        estimate: Returns the estimate of each comparison; NaN if the check does not apply.
        passes: Returns whether an estimate passes.
        detail: Returns a line that explains the estimate of one comparison.
        absent: The reason that is reported if the check does not apply.
    """

    id: str
    estimate: Callable[[Comparisons], Floats]
    passes: Callable[[Floats], Flags]
    detail: Callable[[Pairs], str]
    absent: str = "nothing was measured on both sides"

    def answers(self, compared: Comparisons) -> Counts:
        """`PASS`, `FAIL` or `NOT_APPLICABLE` by comparison."""
        found = self.estimate(compared)
        return np.where(np.isnan(found), NOT_APPLICABLE, np.where(self.passes(found), PASS, FAIL))

    def evaluate(self, pairs: Pairs) -> CheckResult:
        """The answer of one comparison, with its figures."""
        status = STATUSES[self.answers(pairs.compared)[0]]
        if status is CheckStatus.NOT_APPLICABLE:
            return CheckResult(id=self.id, status=status, detail=self.absent)
        estimate = float(self.estimate(pairs.compared)[0])
        return CheckResult(
            id=self.id, status=status, estimate=estimate, threshold=0.0, detail=self.detail(pairs)
        )


def _rises(change: Floats) -> Flags:
    return np.asarray(change > TOLERANCE)


def _does_not_decline(change: Floats) -> Flags:
    return np.asarray(change >= -TOLERANCE)


def _is_none(count: Floats) -> Flags:
    return np.asarray(count == 0)


def _mean_check(
    name: str,
    figure: Callable[[Tally], Floats],
    passes: Callable[[Floats], Flags] = _does_not_decline,
    absent: str = PointCheck.absent,
) -> PointCheck:
    """A check of the change of a figure's mean, over the tasks that have it on both sides."""

    def change(compared: Comparisons) -> Floats:
        by_task = figure(compared.candidate) - figure(compared.baseline)
        known = ~np.isnan(by_task)
        return mean_of(np.where(known, by_task, 0.0).sum(axis=1), known.sum(axis=1))

    return PointCheck(name, change, passes, lambda pairs: means_line(*map(figure, pairs.sides)), absent)


def _share_check(kind: str, actions: str) -> PointCheck:
    absent = f"no gold {actions} checked"
    return _mean_check(f"{kind}_not_worse", lambda side: side.figure(kind), absent=absent)


def _broken(compared: Comparisons) -> Floats:
    return np.where(compared.both.any(axis=1), compared.broken.sum(axis=1), np.nan)


def _max_steps(compared: Comparisons) -> Floats:
    hits = compared.candidate.max_steps
    return np.where(hits.shape[1] > 0, hits.sum(axis=1), np.nan)


def _max_steps_line(pairs: Pairs) -> str:
    before, after = (int(side.max_steps.sum()) for side in pairs.sides)
    return f"{before} → {after} simulations"


REWARD_IMPROVED = _mean_check("reward_improved", lambda side: side.figure(REWARD), _rises)
REWARD_NOT_WORSE = _mean_check("reward_not_worse", lambda side: side.figure(REWARD))

WATCHED: tuple[Check, ...] = (
    _mean_check("pass_rate_not_worse", lambda side: side.majority),
    _share_check("action_match", "actions"),
    _share_check("read_action_match", "read actions"),
    _share_check("write_action_match", "write actions"),
    PointCheck(
        "no_task_regressions",
        _broken,
        _is_none,
        lambda pairs: f"{len(pairs.broken())} broken, {len(pairs.fixed())} fixed",
    ),
    PointCheck("no_max_steps", _max_steps, _is_none, _max_steps_line, absent="no task was compared"),
)
"""The checks of `strict` besides the reward."""


@dataclass(frozen=True)
class Strict(Policy):
    """A policy on point estimates: one check of the reward for each goal, and further checks."""

    name: str
    improve: Check
    hold: Check
    watched: tuple[Check, ...]
    confirms: bool = False
    confirm: int = 0
    alpha: float = 0.05

    equal_trials = False

    def checks(self, goal: Goal) -> tuple[Check, ...]:
        """The checks in the order in which they are printed."""
        return (self.improve if goal is Goal.IMPROVE else self.hold, *self.watched)

    def judge(self, pairs: Pairs, question: Question) -> Judgement:
        """Answer every check."""
        return Judgement(tuple(run_check(check, pairs) for check in self.checks(question.goal)))

    def detects(self, compared: Comparisons, question: Question, drop: float) -> Flags:
        """True for every comparison, because a policy on point estimates states no uncertainty."""
        return np.ones(len(compared.both), dtype=np.bool_)

    def answers(self, compared: Comparisons, question: Question) -> Counts:
        """Answers of every check by comparison, shape (checks, R); checks of plugins are left out."""
        checks = self.checks(question.goal)
        return np.stack([check.answers(compared) for check in checks if isinstance(check, PointCheck)])


STRICT = Strict("strict", REWARD_IMPROVED, REWARD_NOT_WORSE, WATCHED)
"""Trace2Evolve's rule, based on point estimates."""

POLICIES: Mapping[str, Policy] = {policy.name: policy for policy in (CALIBRATED, STRICT)}
DEFAULT_POLICY = CALIBRATED.name

_STRICT_CHECKS = (REWARD_IMPROVED, *WATCHED, REWARD_NOT_WORSE)

_RESERVED = {*METRICS, DROP, "measured", "compared", "worst_case", "best_case", "lost_again"}.union(
    check.id for check in _STRICT_CHECKS
)
"""Ids that no check of a plugin may have."""

Level = Annotated[float, Field(gt=0, lt=0.5, strict=True)]


class _CheckSettings(Record):
    margin: Annotated[float, Field(gt=0, lt=1, strict=True)] | None = None
    alpha: Level | None = None
    watch: Annotated[bool, Field(strict=True)] = True


class _Settings(Record):
    base: Literal["calibrated", "strict"] = "calibrated"
    alpha: Level | None = None
    estimand: Literal["tasks", "suite"] | None = None
    suspected: Literal["list", "block"] | None = None
    confirm: Annotated[int, Field(ge=0, strict=True)] | None = None
    checks: dict[str, _CheckSettings] = Field(default_factory=dict)


def get_policy(name: str, folder: Path | None = None, further: Mapping[str, Check] | None = None) -> Policy:
    """Return the policy with a name: a built-in one, or `<name>.toml` in a project's folder of policies.

    Args:
        name: The policy's name.
        folder: The folder of the project's own policies.
        further: Checks of plugins by their ids; a policy uses the checks that it names.

    Raises:
        PolicyError: no policy has the name (the message suggests the nearest one), or its file is invalid.
    """
    own = {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.toml"))}
    for known in POLICIES:
        if known in own:
            raise PolicyError(f"{own[known]}: policy {known!r} is built in; give yours another name")
    if name in POLICIES:
        return POLICIES[name]
    if name in own:
        return read_policy(own[name], further or {})
    raise PolicyError(f"unknown gate policy {name!r}; {nearest(name, [*POLICIES, *own])}")


def version_of(policy: Policy) -> str:
    """Identify a policy by its settings.

    Returns:
        The name of the built-in policy that has these settings. For any other policy: its name, a space, and
        a digest of its settings.
    """
    settings = _settings_of(policy)
    for name, known in POLICIES.items():
        if type(known) is type(policy) and _settings_of(known) == settings:
            return name
    return f"{policy.name} {digest(settings)[:8]}"


def _settings_of(policy: Policy) -> list[object]:
    if isinstance(policy, Calibrated):
        levels = [policy.alpha, sorted(policy.margins.items()), sorted(policy.weights.items())]
        return [levels, policy.block_suspected, policy.within, [check.id for check in policy.further]]
    return [check.id for check in getattr(policy, "watched", ())]


def read_policy(path: Path, further: Mapping[str, Check]) -> Policy:
    """Read a policy from its file.

    Raises:
        PolicyError: the file cannot be read, holds an unknown key or an impossible value, or names an unknown
            check.
    """
    try:
        settings = _Settings.model_validate(read_toml(path, PolicyError))
    except ValidationError as error:
        raise PolicyError(f"{path}: {problem_in(error)}") from None
    for name in settings.checks.keys() & further.keys():
        if name in _RESERVED or further[name].id != name:
            other = "is built in" if name in _RESERVED else f"calls itself {further[name].id!r}"
            raise PolicyError(f"{path}: check {name!r} of a plugin {other}; give it an id of its own")
    if settings.base == "strict":
        return _strict(path, settings, further)
    return _calibrated(path, settings, further)


def _strict(path: Path, settings: _Settings, further: Mapping[str, Check]) -> Strict:
    if given := settings.model_dump(exclude_unset=True, exclude={"base", "checks"}):
        raise PolicyError(
            f"{path}: {next(iter(given))!r} has no effect on base 'strict', which has no levels"
        )
    known = [*(check.id for check in _STRICT_CHECKS), *further]
    for name, check in settings.checks.items():
        if check.margin is not None or check.alpha is not None:
            raise PolicyError(f"{path}: checks.{name}: base 'strict' has neither margins nor levels")
        if name not in known:
            raise PolicyError(f"{path}: unknown check {name!r}; {nearest(name, known)}")
    off = {name for name, check in settings.checks.items() if not check.watch}
    if reward := sorted(off & {REWARD_IMPROVED.id, REWARD_NOT_WORSE.id}):
        raise PolicyError(f"{path}: checks.{reward[0]}: the reward cannot be left out")
    watched = [*WATCHED, *(further[name] for name in settings.checks if name in further)]
    return replace(STRICT, name=path.stem, watched=tuple(check for check in watched if check.id not in off))


def _calibrated(path: Path, settings: _Settings, further: Mapping[str, Check]) -> Calibrated:
    alpha = settings.alpha or CALIBRATED.alpha
    margins, weights = dict(CALIBRATED.margins), {}
    for name, check in settings.checks.items():
        if name not in METRICS and name not in further:
            raise PolicyError(f"{path}: unknown check {name!r}; {nearest(name, [*METRICS, *further])}")
        if check.margin is not None:
            if name in (REGRESSIONS, MAX_STEPS, INVARIANTS) or name in further:
                raise PolicyError(f"{path}: checks.{name}: has no margin; leave 'margin' out")
            margins[name] = check.margin
        if check.alpha is not None:
            if name == REWARD:
                raise PolicyError(
                    f"{path}: checks.{name}.alpha: the claim's level is the policy's; set alpha above"
                )
            weights[name] = check.alpha / alpha
        if not check.watch:
            if name == REWARD:
                raise PolicyError(f"{path}: checks.{name}: the reward cannot be left out")
            if check.margin is not None or check.alpha is not None:
                raise PolicyError(f"{path}: checks.{name}: 'watch = false' leaves it out; remove the rest")
            weights[name] = 0.0
    added = tuple(further[name] for name, one in settings.checks.items() if name in further and one.watch)
    return Calibrated(
        name=path.stem,
        alpha=alpha,
        margins=margins,
        weights=weights,
        block_suspected=settings.suspected == "block",
        within=settings.estimand == "suite",
        confirm=CALIBRATED.confirm if settings.confirm is None else settings.confirm,
        further=added,
    )
