"""Gate policies: the built-in ones, and a project's own files, each of which modifies a built-in one.

base = "calibrated"
alpha = 0.05
estimand = "tasks"            # or "suite": exactly these tasks; by default, the suite decides
suspected = "list"            # or "block"
confirm = 640                 # maximum number of fresh simulations in a live run

[checks.reward]
margin = 0.10                 # the largest loss that still counts as not worse
[checks.action_match]
alpha = 0.01                  # a separate level for this check
[checks.read_action_match]
watch = false                 # omit this check
[checks.cost]                 # or tokens, turns, latency
max_increase = 1.5            # the largest ratio of the candidate's cost to the baseline's
[checks.cheaper]              # a check of a plugin, by its id
[checks.asks_first]           # one of the project's own checks, by its id
watch = false
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError

from pytest_trace2evolve.errors import PolicyError, name_suggestion
from pytest_trace2evolve.gate.calibrated import (
    CALIBRATED,
    REWARD_DROP,
    Calibrated,
    format_agent_errors,
    format_check_counts,
    own_check_without_figures,
    ungated_check_results,
)
from pytest_trace2evolve.gate.columns import (
    AGENT_ERRORS,
    CHECK_PREFIX,
    INVARIANTS,
    USAGE_METRICS,
    Counts,
    Flags,
    Floats,
)
from pytest_trace2evolve.gate.pairs import Comparisons, Pairs, format_means
from pytest_trace2evolve.gate.protocols import (
    FAIL,
    NOT_APPLICABLE,
    PASS,
    STATUSES,
    UNDECIDED,
    Check,
    Judgement,
    Policy,
    Question,
    run_check,
)
from pytest_trace2evolve.gate.tallies import MAX_STEPS, METRICS, REGRESSIONS, REWARD, Tally, mean_of
from pytest_trace2evolve.gate.usage import increase_result
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.verdict import (
    COVERAGE_CHECKS,
    SHARE_UNIT,
    CheckResult,
    CheckStatus,
    Estimand,
    Goal,
)
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.reading import first_problem, read_toml

TOLERANCE = 1e-9
"""Differences up to this size are rounding errors, not effects."""


@dataclass(frozen=True)
class PointCheck:
    """A check of a point estimate.

    Attributes:
        id: The check's name.
        estimate: Returns the estimate of each comparison; NaN if the check does not apply.
        passes: Returns whether an estimate passes.
        format_detail: Returns a line that explains the estimate of one comparison.
        not_applicable_reason: The reason that is reported if the check does not apply.
    """

    id: str
    estimate: Callable[[Comparisons], Floats]
    passes: Callable[[Floats], Flags]
    format_detail: Callable[[Pairs], str]
    not_applicable_reason: str = "nothing was measured on both sides"

    def status_codes(self, comparisons: Comparisons) -> Counts:
        """The status code of each comparison: `PASS`, `FAIL` or `NOT_APPLICABLE`."""
        estimates = self.estimate(comparisons)
        return np.where(np.isnan(estimates), NOT_APPLICABLE, np.where(self.passes(estimates), PASS, FAIL))

    def evaluate(self, pairs: Pairs) -> CheckResult:
        """The result of the check on one comparison, with its figures."""
        status = STATUSES[self.status_codes(pairs.comparisons)[0]]
        if status is CheckStatus.NOT_APPLICABLE:
            return CheckResult(id=self.id, status=status, detail=self.not_applicable_reason)
        estimate = float(self.estimate(pairs.comparisons)[0])
        return CheckResult(
            id=self.id, status=status, estimate=estimate, threshold=0.0, detail=self.format_detail(pairs)
        )


def _is_no_decline(change: Floats) -> Flags:
    return np.asarray(change >= -TOLERANCE)


def _is_not_positive(count: Floats) -> Flags:
    return np.asarray(count <= 0)


def _mean_check(
    name: str,
    figure: Callable[[Tally], Floats],
    passes: Callable[[Floats], Flags] = _is_no_decline,
    not_applicable_reason: str = PointCheck.not_applicable_reason,
) -> PointCheck:
    """A check of the change of a figure's mean, over the tasks that have it on both sides."""

    def change(comparisons: Comparisons) -> Floats:
        task_differences = figure(comparisons.candidate) - figure(comparisons.baseline)
        is_known = ~np.isnan(task_differences)
        return mean_of(np.where(is_known, task_differences, 0.0).sum(axis=1), is_known.sum(axis=1))

    return PointCheck(
        name, change, passes, lambda pairs: format_means(*map(figure, pairs.sides)), not_applicable_reason
    )


def _share_check(kind: str, actions: str) -> PointCheck:
    reason = f"no gold {actions} checked"
    return _mean_check(f"{kind}_not_worse", lambda side: side.figure(kind), _is_no_decline, reason)


def _count_broken(comparisons: Comparisons) -> Floats:
    return np.where(comparisons.measured_on_both.any(axis=1), comparisons.is_broken.sum(axis=1), np.nan)


def _count_max_steps(comparisons: Comparisons) -> Floats:
    hits = comparisons.candidate.max_steps
    return np.where(hits.shape[1] > 0, hits.sum(axis=1), np.nan)


def _format_max_steps(pairs: Pairs) -> str:
    old_count, new_count = (int(side.max_steps.sum()) for side in pairs.sides)
    return f"{old_count} → {new_count} simulations"


def _agent_error_rise(comparisons: Comparisons) -> Floats:
    old, new = (side.agent_errors.sum(axis=1) for side in (comparisons.baseline, comparisons.candidate))
    return np.where(old + new > 0, (new - old).astype(np.float64), np.nan)


REWARD_IMPROVED = _mean_check(
    "reward_improved", lambda side: side.figure(REWARD), lambda change: change > TOLERANCE
)
REWARD_NOT_WORSE = _mean_check("reward_not_worse", lambda side: side.figure(REWARD))

WATCHED_CHECKS: tuple[Check, ...] = (
    _mean_check("pass_rate_not_worse", lambda side: side.pass_indicator),
    _share_check("action_match", "actions"),
    _share_check("read_action_match", "read actions"),
    _share_check("write_action_match", "write actions"),
    PointCheck(
        "no_task_regressions",
        _count_broken,
        _is_not_positive,
        lambda pairs: f"{len(pairs.broken_tasks())} broken, {len(pairs.fixed_tasks())} fixed",
    ),
    PointCheck(
        "no_max_steps",
        _count_max_steps,
        _is_not_positive,
        _format_max_steps,
        not_applicable_reason="no task was compared",
    ),
)
"""The checks of the policy `strict` besides those of the reward."""

NO_MORE_AGENT_ERRORS = PointCheck(
    "no_more_agent_errors",
    _agent_error_rise,
    _is_not_positive,
    format_agent_errors,
    not_applicable_reason="no simulation ended in an agent error",
)
"""A check of the policy `strict` that is absent from verdicts on evidence without agent errors."""


def _own_check_codes(comparisons: Comparisons, check_id: str) -> Counts:
    """The status code of one of the project's own checks, by comparison.

    The check fails if its rate worsens even if trials without a result count in favour of the candidate. It
    passes if its rate does not worsen even if they count against the candidate. Otherwise it is undecided.
    """

    def worsens(is_favourable: bool) -> Flags:
        task_differences = comparisons.check_difference(check_id, is_favourable=is_favourable)
        is_known = ~np.isnan(task_differences)
        change = mean_of(np.where(is_known, task_differences, 0.0).sum(axis=1), is_known.sum(axis=1))
        return np.asarray(change < -TOLERANCE)

    codes = np.where(worsens(True), FAIL, np.where(worsens(False), UNDECIDED, PASS))
    return np.where(comparisons.measured_on_both.any(axis=1), codes, NOT_APPLICABLE)


def _own_check_result(pairs: Pairs, check_id: str) -> CheckResult:
    code = int(_own_check_codes(pairs.comparisons, check_id)[0])
    if code == NOT_APPLICABLE:
        detail = PointCheck.not_applicable_reason
        return CheckResult(id=check_id, status=STATUSES[code], unit=SHARE_UNIT, detail=detail)
    if result := own_check_without_figures(pairs, check_id, code):
        return result
    difference = pairs.comparisons.difference(CHECK_PREFIX + check_id)
    known_differences = difference[~np.isnan(difference)]
    return CheckResult(
        id=check_id,
        status=STATUSES[code],
        estimate=-float(known_differences.mean()) if known_differences.size else None,
        threshold=0.0,
        unit=SHARE_UNIT,
        detail=format_check_counts(pairs, check_id),
    )


def _point_increase_result(pairs: Pairs, metric: str, limit: float) -> CheckResult:
    """The check of a ratio without its bounds: it fails above the limit, and is undecided without a ratio."""
    result = increase_result(pairs, metric, limit, 0.05, has_fixed_tasks=False, must_show=False)
    exceeds = result.estimate is not None and result.estimate > limit + TOLERANCE
    status = CheckStatus.FAIL if exceeds else result.status
    return result.model_copy(update={"status": status, "low": None, "high": None, "p": None})


@dataclass(frozen=True)
class Strict(Policy):
    """A policy on point estimates: one check of the reward for each goal, and further checks.

    `omitted_checks` holds the ids of the project's own checks that are left out, and the id of
    `NO_MORE_AGENT_ERRORS` if it is left out. `max_increases` holds the largest ratios of the candidate's
    cost, tokens, turns or latency to the baseline's.
    """

    name: str
    improve_check: Check
    hold_check: Check
    watched_checks: tuple[Check, ...]
    confirms_regressions: bool = False
    max_fresh_simulations: int = 0
    alpha: float = 0.05
    omitted_checks: frozenset[str] = frozenset()
    max_increases: Mapping[str, float] = field(default_factory=dict)

    def checks(self, goal: Goal) -> tuple[Check, ...]:
        """The checks in the order in which they are printed."""
        return (self.improve_check if goal is Goal.IMPROVE else self.hold_check, *self.watched_checks)

    def judge(self, pairs: Pairs, question: Question) -> Judgement:
        """Evaluate every check."""
        results = [run_check(check, pairs) for check in self.checks(question.checked_goal)]
        agent_error_result = NO_MORE_AGENT_ERRORS.evaluate(pairs)
        if self._watches_agent_errors and agent_error_result.status is not CheckStatus.NOT_APPLICABLE:
            results.append(agent_error_result)
        results += [_own_check_result(pairs, name) for name in self._own_checks(pairs.comparisons)]
        results += [_point_increase_result(pairs, *limit) for limit in self.max_increases.items()]
        return Judgement((*results, *ungated_check_results(pairs)))

    @property
    def _watches_agent_errors(self) -> bool:
        return NO_MORE_AGENT_ERRORS.id not in self.omitted_checks

    def _own_checks(self, comparisons: Comparisons) -> list[str]:
        """The ids of the project's own checks that the policy includes."""
        return [name for name in comparisons.check_ids if name not in self.omitted_checks]

    def rules_out(self, comparisons: Comparisons, question: Question, drop: float) -> Flags:
        """True for every comparison, because a policy on point estimates states no uncertainty."""
        return np.ones(len(comparisons.measured_on_both), dtype=np.bool_)

    def status_codes(self, comparisons: Comparisons, question: Question) -> Counts:
        """The status code of every check by comparison, shape (checks, R), without checks of plugins."""
        checks = self.checks(question.checked_goal)
        codes = [check.status_codes(comparisons) for check in checks if isinstance(check, PointCheck)]
        if self._watches_agent_errors:
            codes.append(NO_MORE_AGENT_ERRORS.status_codes(comparisons))
        codes += [_own_check_codes(comparisons, name) for name in self._own_checks(comparisons)]
        return np.stack(codes)


STRICT = Strict("strict", REWARD_IMPROVED, REWARD_NOT_WORSE, WATCHED_CHECKS)
"""Trace2Evolve's rule, based on point estimates."""

POLICIES: Mapping[str, Policy] = {policy.name: policy for policy in (CALIBRATED, STRICT)}
DEFAULT_POLICY = CALIBRATED.name

_STRICT_CHECKS = (REWARD_IMPROVED, *WATCHED_CHECKS, NO_MORE_AGENT_ERRORS, REWARD_NOT_WORSE)

RESERVED_IDS = frozenset(
    {*METRICS, *USAGE_METRICS, REWARD_DROP, *COVERAGE_CHECKS, *(check.id for check in _STRICT_CHECKS)}
)
"""Ids that neither a plugin's check nor one of the project's own checks may have."""

Level = Annotated[float, Field(gt=0, lt=0.5, strict=True)]


class _CheckSettings(Record):
    margin: Annotated[float, Field(gt=0, lt=1, strict=True)] | None = None
    alpha: Level | None = None
    watch: Annotated[bool, Field(strict=True)] = True
    max_increase: Annotated[float, Field(ge=1, le=1000)] | None = None


class _Settings(Record):
    base: Literal["calibrated", "strict"] = "calibrated"
    alpha: Level | None = None
    estimand: Estimand | None = None
    suspected: Literal["list", "block"] | None = None
    confirm: Annotated[int, Field(ge=0, strict=True)] | None = None
    futility: Annotated[float, Field(ge=0, lt=1, strict=True)] | None = None
    checks: dict[str, _CheckSettings] = Field(default_factory=dict)


def get_policy(
    name: str,
    folder: Path | None = None,
    plugin_checks: Mapping[str, Check] | None = None,
    own_checks: Collection[str] = (),
) -> Policy:
    """Return the policy with a name: a built-in one, or `<name>.toml` in a project's folder of policies.

    Args:
        name: The policy's name.
        folder: The folder of the project's own policies.
        plugin_checks: Checks of plugins by their ids; a policy uses the checks that it names.
        own_checks: Ids of the project's own checks, which every policy uses unless it omits them.

    Raises:
        PolicyError: no policy has the name (the message suggests the nearest one), or its file is invalid.
    """
    own_files = {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.toml"))}
    for built_in in POLICIES:
        if built_in in own_files:
            raise PolicyError(f"{own_files[built_in]}: policy {built_in!r} is built in; rename the file")
    if name in POLICIES:
        return POLICIES[name]
    if name in own_files:
        return read_policy(own_files[name], plugin_checks or {}, own_checks)
    raise PolicyError(f"unknown gate policy {name!r}; {name_suggestion(name, [*POLICIES, *own_files])}")


def policy_version(policy: Policy) -> str:
    """Identify a policy by its settings.

    Returns:
        The name of the built-in policy that has these settings. For any other policy: its name, a space, and
        a digest of its settings.
    """
    settings = _settings_of(policy)
    for name, built_in in POLICIES.items():
        if type(built_in) is type(policy) and _settings_of(built_in) == settings:
            return name
    return f"{policy.name} {digest(settings)[:8]}"


def _settings_of(policy: Policy) -> list[object]:
    if isinstance(policy, Calibrated):
        level_settings = [policy.alpha, sorted(policy.margins.items()), sorted(policy.weights.items())]
        return [
            level_settings,
            policy.blocks_on_suspected,
            bool(policy.has_fixed_tasks),
            [check.id for check in policy.plugin_checks],
            *([sorted(policy.max_increases.items())] if policy.max_increases else []),
        ]
    if not isinstance(policy, Strict):
        return []
    further = sorted(policy.omitted_checks), sorted(policy.max_increases.items())
    return [*(check.id for check in policy.watched_checks), *filter(None, further)]


def read_policy(path: Path, plugin_checks: Mapping[str, Check], own_checks: Collection[str] = ()) -> Policy:
    """Read a policy from its file.

    Raises:
        PolicyError: the file cannot be read, holds an unknown key or an impossible value, or names an unknown
            check.
    """
    try:
        settings = _Settings.model_validate(read_toml(path, PolicyError))
    except ValidationError as error:
        raise PolicyError(f"{path}: {first_problem(error)}") from None
    for name in settings.checks.keys() & plugin_checks.keys():
        problem = f"has id {plugin_checks[name].id!r}; register it under its id"
        if name in RESERVED_IDS:
            problem = "has the id of a built-in check; give it a different id"
        if name in RESERVED_IDS or plugin_checks[name].id != name:
            raise PolicyError(f"{path}: check {name!r} of a plugin {problem}")
    if settings.base == "strict":
        return _build_strict(path, settings, plugin_checks, own_checks)
    return _build_calibrated(path, settings, plugin_checks, own_checks)


def _build_strict(
    path: Path, settings: _Settings, plugin_checks: Mapping[str, Check], own_checks: Collection[str]
) -> Strict:
    if unused_settings := settings.model_dump(exclude_unset=True, exclude={"base", "checks"}):
        raise PolicyError(
            f"{path}: {next(iter(unused_settings))!r} has no effect on base 'strict', which has no levels"
        )
    known_ids = [*(check.id for check in _STRICT_CHECKS), *USAGE_METRICS, *plugin_checks, *own_checks]
    for name, check in settings.checks.items():
        if check.margin is not None or check.alpha is not None:
            raise PolicyError(f"{path}: checks.{name}: base 'strict' has neither margins nor levels")
        _check_table(path, name, check, known_ids)
    disabled_ids = {name for name, check in settings.checks.items() if not check.watch}
    if reward_ids := sorted(disabled_ids & {REWARD_IMPROVED.id, REWARD_NOT_WORSE.id}):
        raise PolicyError(f"{path}: checks.{reward_ids[0]}: the reward cannot be left out")
    checks = [*WATCHED_CHECKS, *(plugin_checks[name] for name in settings.checks if name in plugin_checks)]
    return replace(
        STRICT,
        name=path.stem,
        watched_checks=tuple(check for check in checks if check.id not in disabled_ids),
        omitted_checks=frozenset(disabled_ids.intersection([*own_checks, NO_MORE_AGENT_ERRORS.id])),
        max_increases=_max_increases(settings),
    )


def _build_calibrated(
    path: Path, settings: _Settings, plugin_checks: Mapping[str, Check], own_checks: Collection[str]
) -> Calibrated:
    alpha = settings.alpha or CALIBRATED.alpha
    margins, weights = dict(CALIBRATED.margins), {}
    for name, check in settings.checks.items():
        _check_table(path, name, check, [*METRICS, *USAGE_METRICS, *plugin_checks, *own_checks])
        if check.margin is not None:
            no_margin = (REGRESSIONS, MAX_STEPS, AGENT_ERRORS, INVARIANTS, *USAGE_METRICS)
            if name in (*no_margin, *plugin_checks, *own_checks):
                raise PolicyError(f"{path}: checks.{name}: this check has no margin; remove 'margin'")
            margins[name] = check.margin
        if check.alpha is not None:
            if name == REWARD:
                raise PolicyError(
                    f"{path}: checks.{name}.alpha: the claim has the policy's level; set the policy's alpha"
                )
            weights[name] = check.alpha / alpha
        if not check.watch:
            if name == REWARD:
                raise PolicyError(f"{path}: checks.{name}: the reward cannot be left out")
            if check.margin is not None or check.alpha is not None:
                raise PolicyError(
                    f"{path}: checks.{name}: 'watch = false' omits the check; remove its other settings"
                )
            weights[name] = 0.0
    used_plugin_checks = tuple(
        plugin_checks[name]
        for name, settings_of_check in settings.checks.items()
        if name in plugin_checks and settings_of_check.watch
    )
    return Calibrated(
        name=path.stem,
        alpha=alpha,
        margins=margins,
        weights=weights,
        blocks_on_suspected=settings.suspected == "block",
        has_fixed_tasks=None if settings.estimand is None else settings.estimand is Estimand.SUITE,
        max_fresh_simulations=CALIBRATED.max_fresh_simulations
        if settings.confirm is None
        else settings.confirm,
        futility=CALIBRATED.futility if settings.futility is None else settings.futility,
        plugin_checks=used_plugin_checks,
        max_increases=_max_increases(settings),
    )


def _check_table(path: Path, name: str, check: _CheckSettings, known_ids: Sequence[str]) -> None:
    if name not in known_ids:
        raise PolicyError(f"{path}: unknown check {name!r}; {name_suggestion(name, known_ids)}")
    has_limit = check.max_increase is not None and check.watch
    if name in USAGE_METRICS and not has_limit:
        raise PolicyError(f"{path}: checks.{name}: set max_increase, such as 1.5, or remove the table")
    if name not in USAGE_METRICS and check.max_increase is not None:
        raise PolicyError(
            f"{path}: checks.{name}: max_increase belongs to {', '.join(USAGE_METRICS)}; remove it here"
        )


def _max_increases(settings: _Settings) -> dict[str, float]:
    return {
        name: check.max_increase for name, check in settings.checks.items() if check.max_increase is not None
    }
