"""Calibrate gate policies on a suite's own trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.gate.calibrated import CALIBRATED, Calibrated
from pytest_trace2evolve.gate.calibration import (
    Calibration,
    DrawSettings,
    PolicyToCalibrate,
    Pool,
    calibrate,
    pool_of,
)
from pytest_trace2evolve.gate.pairs import left_out_lines
from pytest_trace2evolve.gate.policy import POLICIES, Strict
from pytest_trace2evolve.gate.protocols import Policy
from pytest_trace2evolve.gate.tallies import REWARD
from pytest_trace2evolve.project.policies import find_policy
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.task import natural_sort_key
from pytest_trace2evolve.records.verdict import Estimand
from pytest_trace2evolve.session.compare import read_side, recorded_suite
from pytest_trace2evolve.worlds.registry import Worlds

MAX_NAMED_TASKS = 3
"""Maximum number of tasks that a message names."""


@dataclass(frozen=True)
class CalibrationSettings:
    """Settings of a calibration.

    Attributes:
        policies: Names of policies; if empty, the built-in policies and the project's own.
        trials: Trials per side; None uses the most common number of trials of a task.
        margin: The loss that `hold` must not promote; None uses each policy's own margin.
        effects: Sizes of the planted effects.
        resamples: Number of resampled comparisons of each kind.
        seed: Seed of the resampling.
        is_live: Whether broken tasks get fresh trials, drawn at the tasks' rates.
    """

    policies: tuple[str, ...] = ()
    trials: int | None = None
    margin: float | None = None
    effects: tuple[float, ...] = (0.05, 0.10)
    resamples: int = 2000
    seed: int = 0
    is_live: bool = False


@dataclass(frozen=True)
class CalibrationResult:
    """A calibration, the name of its files, notes, and the tasks left out, each as `id: reason`.

    `estimands` holds the tasks that each policy's verdicts are about.
    """

    calibration: Calibration
    name: str
    notes: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    estimands: Mapping[str, Estimand | None] = field(default_factory=dict)


def calibrate_files(
    paths: Sequence[Path],
    worlds: Worlds,
    settings: CalibrationSettings,
    *,
    project: Project | None = None,
    provider: str | None = None,
    judge: Judge | None = None,
) -> CalibrationResult:
    """Calibrate policies on comparisons that are resampled from the trials of files.

    Tasks whose trials ran different content under one id are left out and named in the result.

    Raises:
        PolicyError: a policy is unknown or broken.
        ResultsError: the files cannot be read, come from several agents, have no task with two measured
            trials, or have no task with the same content in all trials.
    """
    own_policies = (
        [] if project is None else sorted(path.stem for path in project.policies_folder.glob("*.toml"))
    )
    names = dict.fromkeys(settings.policies or (*POLICIES, *own_policies))
    policies = [find_policy(name, project) for name in names]
    side = read_side(paths, worlds, provider, judge, require_one_agent=True)
    contents = side.columns.content_digests()
    tasks = {name for name, digest in contents.items() if digest}
    mixed_tasks = sorted(contents.keys() - tasks, key=natural_sort_key)
    if not tasks:
        raise ResultsError(
            f"{side.name}: the trials of every task ran different content ({_first_names(mixed_tasks)}); "
            "give trials of the same tasks"
        )
    try:
        pool = pool_of(side.columns.select_tasks(tasks))
    except ResultsError as error:
        left_out_text = (
            f"; left out for differing content: {_first_names(mixed_tasks)}" if mixed_tasks else ""
        )
        raise ResultsError(f"{side.name}: {error}{left_out_text}") from None
    draw = DrawSettings(
        settings.trials or pool.most_common_trials,
        is_live=settings.is_live,
        max_fresh_simulations=CALIBRATED.max_fresh_simulations,
    )
    if suite := recorded_suite(side.provenance, side.provenance, project):
        policies = [policy.for_suite(suite.estimand_of(draw.trials)) for policy in policies]
    calibrated_policies = [policy_to_calibrate(policy, margin=settings.margin) for policy in policies]
    calibration = calibrate(
        pool,
        calibrated_policies,
        draw,
        effects=settings.effects,
        resamples=settings.resamples,
        seed=settings.seed,
    )
    left_out = left_out_lines(dict.fromkeys(mixed_tasks, "its trials ran different content under this id"))
    return CalibrationResult(
        calibration,
        side.name,
        (*side.notes, *_calibration_notes(pool, draw, calibration)),
        left_out,
        {policy.name: policy.estimand for policy in policies},
    )


def policy_to_calibrate(policy: Policy, *, margin: float | None = None) -> PolicyToCalibrate:
    """Return a policy to calibrate; `margin` replaces its reward margin if given."""
    if isinstance(policy, Calibrated):
        margins = policy.margins if margin is None else {**policy.margins, REWARD: margin}
        policy = replace(policy, margins=margins)
        return PolicyToCalibrate(policy, margins[REWARD], bool(policy.has_fixed_tasks))
    assert isinstance(policy, Strict), "policies are made from one of the two"
    return PolicyToCalibrate(policy, margin or CALIBRATED.margins[REWARD])


def _first_names(names: Sequence[str]) -> str:
    rest_count = len(names) - MAX_NAMED_TASKS
    return ", ".join(names[:MAX_NAMED_TASKS]) + (f" and {rest_count} more" if rest_count > 0 else "")


def _calibration_notes(pool: Pool, draw: DrawSettings, calibration: Calibration) -> list[str]:
    """Return notes on properties of the data that affect how the figures can be interpreted."""
    notes = []
    if pool.lost_simulations:
        notes.append(f"{pool.lost_simulations} simulations without a reward were left out")
    resampled_tasks = int((~pool.can_be_split(draw.trials)).sum())
    if resampled_tasks:
        factor = float(((pool.counts - 1) / pool.counts)[~pool.can_be_split(draw.trials)].mean())
        notes.append(
            f"{resampled_tasks} of {pool.tasks} tasks have fewer than {2 * draw.trials} trials to split: "
            "their trials are drawn with replacement, which understates their noise by a factor of "
            f"{factor:.2f}; this is corrected for the reward, by shrinking the tasks' rates towards their "
            "mean, but not for the actions"
        )
    if calibration.unplantable_effects:
        sizes = ", ".join(f"{effect:+.3g}" for effect in calibration.unplantable_effects)
        notes.append(f"a pass rate of {pool.pass_rate:.3f} leaves no room for an effect of {sizes}")
    return notes
