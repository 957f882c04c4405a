"""Calibrate gate policies on a suite's own trials."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_trace2evolve.errors import PolicyError, ResultsError
from pytest_trace2evolve.gate.calibrated import CALIBRATED, Calibrated
from pytest_trace2evolve.gate.calibration import (
    Calibration,
    Draw,
    PolicyToCalibrate,
    Pool,
    calibrate,
    pool_of,
)
from pytest_trace2evolve.gate.pairs import REWARD, left_out_lines
from pytest_trace2evolve.gate.policy import POLICIES, Strict
from pytest_trace2evolve.gate.protocols import Policy
from pytest_trace2evolve.project.policies import find_policy
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.task import natural_order
from pytest_trace2evolve.session.compare import read_side
from pytest_trace2evolve.worlds.registry import Worlds

NAMED_TASKS = 3
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
        live: Whether broken tasks get fresh trials, drawn at the tasks' rates.
    """

    policies: tuple[str, ...] = ()
    trials: int | None = None
    margin: float | None = None
    effects: tuple[float, ...] = (0.05, 0.10)
    resamples: int = 2000
    seed: int = 0
    live: bool = False


@dataclass(frozen=True)
class CalibratedFiles:
    """A calibration with the name of its files, notes to print, and left-out tasks, each as `id: reason`."""

    calibration: Calibration
    name: str
    notes: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def calibrate_files(
    paths: Sequence[Path],
    worlds: Worlds,
    settings: CalibrationSettings,
    *,
    project: Project | None = None,
    provider: str | None = None,
    judge: Judge | None = None,
) -> CalibratedFiles:
    """Calibrate policies on comparisons that are resampled from the trials of files.

    Tasks whose trials ran different content under one id are left out and named in the result.

    Raises:
        PolicyError: a policy is unknown or broken.
        ResultsError: the files cannot be read, are of several agents, have no task with two measured trials,
            or have no task with the same content in all trials.
    """
    own = [] if project is None else sorted(path.stem for path in project.policies_folder.glob("*.toml"))
    names = dict.fromkeys(settings.policies or (*POLICIES, *own))
    policies = [at_levels(find_policy(name, project), margin=settings.margin) for name in names]
    side = read_side(paths, worlds, provider, judge, one_agent=True)
    contents = side.columns.contents()
    kept = {name for name, digest in contents.items() if digest}
    mixed = sorted(contents.keys() - kept, key=natural_order)
    if not kept:
        raise ResultsError(
            f"{side.name}: every task ran different content under its id ({_first(mixed)}); give trials of "
            "the same tasks"
        )
    try:
        pool = pool_of(side.columns.of_tasks(kept))
    except ResultsError as error:
        without = f"; left out for differing content: {_first(mixed)}" if mixed else ""
        raise ResultsError(f"{side.name}: {error}{without}") from None
    draw = Draw(settings.trials or pool.usual_trials, live=settings.live, confirm=CALIBRATED.confirm)
    found = calibrate(
        pool, policies, draw, effects=settings.effects, resamples=settings.resamples, seed=settings.seed
    )
    left_out = left_out_lines(dict.fromkeys(mixed, "its trials ran different content under this id"))
    return CalibratedFiles(found, side.name, (*side.notes, *_notes(pool, draw, found)), left_out)


def at_levels(
    policy: Policy, *, margin: float | None = None, alpha: float | None = None
) -> PolicyToCalibrate:
    """A policy to calibrate, with the given margin of the reward and the given level, if any."""
    if isinstance(policy, Calibrated):
        margins = policy.margins if margin is None else {**policy.margins, REWARD: margin}
        policy = replace(policy, margins=margins, alpha=alpha or policy.alpha)
        return PolicyToCalibrate(policy, margins[REWARD], policy.within)
    assert isinstance(policy, Strict), "policies are made from one of the two"
    if alpha is not None:
        raise PolicyError(f"policy {policy.name!r} has no level: leave --alpha out")
    return PolicyToCalibrate(policy, margin or CALIBRATED.margins[REWARD])


def _first(names: Sequence[str]) -> str:
    rest = len(names) - NAMED_TASKS
    return ", ".join(names[:NAMED_TASKS]) + (f" and {rest} more" if rest > 0 else "")


def _notes(pool: Pool, draw: Draw, found: Calibration) -> list[str]:
    """Notes on the data that readers of the figures need."""
    notes = []
    if pool.lost:
        notes.append(f"{pool.lost} simulations without a reward were left out")
    drawn = int((~pool.split(draw.trials)).sum())
    if drawn:
        factor = float(((pool.counts - 1) / pool.counts)[~pool.split(draw.trials)].mean())
        notes.append(
            f"{drawn} of {pool.tasks} tasks have fewer than {2 * draw.trials} trials to split: theirs are "
            f"drawn with replacement, which understates their noise by a factor of {factor:.2f}; for the "
            "reward that is made up for by drawing the tasks' rates towards their mean, for actions it is not"
        )
    if found.impossible:
        sizes = ", ".join(f"{effect:+.3g}" for effect in found.impossible)
        notes.append(f"a pass rate of {pool.pass_rate:.3f} leaves no room for an effect of {sizes}")
    return notes
