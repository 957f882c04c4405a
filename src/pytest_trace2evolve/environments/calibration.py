"""Calibration: finds the difficulty of an environment at which a model can learn.

GRPO learns from differences within a group of rollouts of one scenario. If all rollouts of a group get the
same reward, there is nothing to learn, so a base model must neither always succeed nor always fail. The
targets come from Trace2Evolve's training design (TRACE, arXiv 2604.05336, calibrates on 100 seeds × 16
rollouts). A project stores its calibrations in `.trace2evolve/environments/<capability>.json`.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev

from pytest_trace2evolve.agents.chat import ChatAgent, system_prompt
from pytest_trace2evolve.engine.live import is_model_folder, read_model_folder
from pytest_trace2evolve.environments.environment import (
    DIFFICULTIES,
    EASIEST,
    ScenarioEnvironment,
    count_lost_rollouts,
    play_groups,
)
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError, GeneratorError
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.candidates import Candidates
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.environment import (
    MAX_GRADE,
    Calibration,
    CalibrationOutcome,
    DifficultyResult,
    RolloutFigures,
)
from pytest_trace2evolve.records.protocols import Agent, Model
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import read_record
from pytest_trace2evolve.utils.resources import embedded_model, template_folder

SEEDS, ROLLOUTS = 100, 16  # scenarios of a full calibration, and rollouts of each
LOCAL_SEEDS = 30  # default for a model in a folder, because the machine may have no accelerator
DEFAULT_CONCURRENCY = 64  # concurrent rollouts by default
FIRST_ROLLOUT_SEED = 1  # each rollout adds its number
MAX_ADJUSTMENTS = 5  # changes of the difficulty before the user must decide

# Targets of the figures
MIN_MEAN, MAX_MEAN = 0.2, 0.6  # mean reward
MIN_STD = 0.05  # standard deviation within a group, averaged over groups
MAX_UNIFORM_SHARE = 0.2  # share of groups with only top rewards, and of groups with only rewards of 0
MIN_INFORMATIVE = 0.5  # share of groups whose rewards differ

PASS_AT_KS = (1, 4, 8, 16)  # values of k in pass@k
ANSWERS_PER_ROLLOUT = 3  # a rough figure, for the estimate before the measurement


def compute_figures(groups: Sequence[Sequence[float]], lost: int = 0) -> RolloutFigures:
    """Compute the figures of groups of rewards, one group per scenario.

    Groups of fewer than two rewards are left out.

    Raises:
        ValueError: no group has two rewards.
    """
    full_groups = [group for group in groups if len(group) > 1]
    if not full_groups:
        raise ValueError("no group has two rewards")
    rewards = [reward for group in full_groups for reward in group]
    estimates = {}
    for k in PASS_AT_KS:
        if large_groups := [group for group in full_groups if len(group) >= k]:
            estimates[k] = fmean(
                estimate_pass_at_k(len(group), group.count(MAX_GRADE), k) for group in large_groups
            )
    return RolloutFigures(
        groups=len(full_groups),
        rollouts=len(rewards),
        lost=lost,
        mean=fmean(rewards),
        std=fmean(map(pstdev, full_groups)),
        all_top=fmean(min(group) == MAX_GRADE for group in full_groups),
        all_zero=fmean(max(group) == 0 for group in full_groups),
        informative=fmean(min(group) < max(group) for group in full_groups),
        pass_at=estimates,
    )


def estimate_pass_at_k(total: int, passed_count: int, k: int) -> float:
    """The unbiased estimate of pass@k, the chance that at least one of k rollouts passes.

    Computes 1 − C(n − c, k) / C(n, k) with n = `total` and c = `passed_count` (Chen et al. 2021, "Evaluating
    Large Language Models Trained on Code", eq. 1).

    Raises:
        ValueError: pass@k is not defined for these numbers.
    """
    if not (1 <= k <= total and 0 <= passed_count <= total):
        raise ValueError(f"pass@{k} of {passed_count} in {total} rollouts is not defined")
    return 1 - math.comb(total - passed_count, k) / math.comb(total, k)


def missed_targets(figures: RolloutFigures) -> tuple[str, ...]:
    """The targets that the figures miss, one phrase each; empty if a model can learn at this difficulty."""
    misses = []
    if not MIN_MEAN <= figures.mean <= MAX_MEAN:
        misses.append(f"mean reward {figures.mean:.2f}, target {MIN_MEAN:g} to {MAX_MEAN:g}")
    if figures.std < MIN_STD:
        misses.append(f"spread within a group {figures.std:.3f}, target {MIN_STD:g} or more")
    if figures.all_top > MAX_UNIFORM_SHARE:
        misses.append(
            f"{figures.all_top:.0%} of the groups all at the top, target {MAX_UNIFORM_SHARE:.0%} at most"
        )
    if figures.all_zero > MAX_UNIFORM_SHARE:
        misses.append(
            f"{figures.all_zero:.0%} of the groups all at 0, target {MAX_UNIFORM_SHARE:.0%} at most"
        )
    if figures.informative < MIN_INFORMATIVE:
        misses.append(f"{figures.informative:.0%} of the groups differ, target {MIN_INFORMATIVE:.0%} or more")
    return tuple(misses)


def difficulty_step(figures: RolloutFigures) -> int:
    """Return 1 for harder scenarios or -1 for easier ones, by the figure that is furthest from its target."""
    too_high = max(figures.mean - MAX_MEAN, figures.all_top - MAX_UNIFORM_SHARE)
    too_low = max(MIN_MEAN - figures.mean, figures.all_zero - MAX_UNIFORM_SHARE)
    if max(too_high, too_low) <= 0:
        return 1 if figures.mean > (MIN_MEAN + MAX_MEAN) / 2 else -1
    return 1 if too_high >= too_low else -1


def next_difficulty(difficulty: int, figures: RolloutFigures) -> int:
    """The difficulty to measure next; outside `DIFFICULTIES` if the scale has no further one."""
    step = difficulty_step(figures)
    if difficulty + step not in DIFFICULTIES and MIN_MEAN <= figures.mean <= MAX_MEAN:
        # The mean fits, but groups are too similar: a different mix of scenarios may separate them.
        step = -step
    return difficulty + step


@dataclass(frozen=True)
class CalibrationSpec:
    """The settings of a calibration.

    Attributes:
        settings: The model to measure.
        candidate: The candidate whose instruction the agent gets; empty for none.
        start_difficulty: The first difficulty.
        can_adjust: Whether the difficulty is changed if figures miss their targets.
    """

    settings: ModelSettings
    candidate: str = ""
    instruction: str = ""
    seeds: int = SEEDS
    rollouts: int = ROLLOUTS
    start_difficulty: int = EASIEST
    can_adjust: bool = True
    content: Content = Content.TRAIN
    concurrency: int = DEFAULT_CONCURRENCY


async def calibrate(
    environments: Environments,
    name: str,
    model: Model,
    spec: CalibrationSpec,
    *,
    on_progress: Callable[[int, int], None] = lambda difficulty, done: None,
) -> Calibration:
    """Measure a model in an environment, and search for a difficulty at which it can learn.

    Args:
        on_progress: Called with the difficulty and the number of finished rollouts.

    Raises:
        InfrastructureError: so many rollouts were lost that the others alone prove nothing.
    """
    difficulty, results = spec.start_difficulty, list[DifficultyResult]()
    while True:
        results.append(await _measure(environments, name, difficulty, model, spec, on_progress))
        if not results[-1].outside or not spec.can_adjust or len(results) > MAX_ADJUSTMENTS:
            break
        new_difficulty = next_difficulty(difficulty, results[-1].figures)
        if new_difficulty not in DIFFICULTIES or new_difficulty in [result.difficulty for result in results]:
            break
        difficulty = new_difficulty
    last_result = results[-1]
    return Calibration(
        capability=name,
        digest=last_result.digest,
        model=spec.settings.model,
        weights=spec.settings.weights,
        candidate=spec.candidate,
        content=spec.content.value,
        temperature=spec.settings.temperature,
        seeds=spec.seeds,
        group=spec.rollouts,
        outcome=CalibrationOutcome.ASK if last_result.outside else CalibrationOutcome.FITS,
        difficulty=last_result.difficulty,
        tried=tuple(results),
        advice=_advice(results) if last_result.outside else "",
    )


async def _measure(
    environments: Environments,
    name: str,
    difficulty: int,
    model: Model,
    spec: CalibrationSpec,
    on_progress: Callable[[int, int], None],
) -> DifficultyResult:
    start = time.perf_counter()
    generator, world = environments.generator(name, difficulty, spec.content), environments.world(name)
    prompt, tools = system_prompt(world.policy(), spec.instruction), world.tools("assistant")

    def make_agent(number: int) -> Agent:
        return ChatAgent(model, prompt, tools, trial=number)

    groups = await play_groups(
        lambda: ScenarioEnvironment(generator, world),
        make_agent,
        range(spec.seeds),
        spec.rollouts,
        concurrency=spec.concurrency,
        on_progress=lambda done: on_progress(difficulty, done),
    )
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    figures = compute_figures(
        [group.rewards for group in groups], count_lost_rollouts(f"environment {name!r}", groups)
    )
    token_counts = [rollout.tokens for rollout in rollouts if rollout.reward is not None and rollout.tokens]
    return DifficultyResult(
        difficulty=difficulty,
        digest=generator.digest,
        figures=figures,
        outside=missed_targets(figures),
        tokens=fmean(token_counts) if token_counts else None,
        calls=fmean(rollout.usage.calls for rollout in rollouts),
        seconds=time.perf_counter() - start,
    )


def _advice(results: Sequence[DifficultyResult]) -> str:
    """The advice to the user if no difficulty fits."""
    levels = ", ".join(str(result.difficulty) for result in results)
    if difficulty_step(results[-1].figures) < 0:
        remedy = "the model needs easier scenarios, or training on examples first"
    else:
        remedy = "the model already has this capability: train a different one, or make harder scenarios"
    return f"no difficulty fits (measured: {levels}); {remedy}"


# Calibrations of a project


class _CalibrationFile(Record):
    """A file of calibrations, one per model, candidate and content."""

    calibrations: tuple[Calibration, ...]


def read_calibrations(folder: Path, capability: str) -> tuple[Calibration, ...]:
    """The stored calibrations of a capability, one per model, candidate and content."""
    path = folder / f"{capability}.json"
    if not os.path.lexists(path):
        return ()
    return read_record(path, _CalibrationFile, GeneratorError, "delete it, and calibrate again").calibrations


def find_calibration(
    environments: Environments, capability: str, weights: str, folder: Path
) -> Calibration | None:
    """The calibration that found a difficulty for the current version of an environment; None if none did.

    `weights` is the digest of the model's folder.
    """
    for calibration in read_calibrations(folder, capability):
        digest = environments.generator(capability, calibration.difficulty).digest
        is_current = calibration.weights == weights and calibration.digest == digest
        if is_current and calibration.outcome is CalibrationOutcome.FITS:
            return calibration
    return None


def store_calibration(folder: Path, calibration: Calibration) -> None:
    """Store a calibration, replacing an earlier one of the same model, candidate and content."""

    def identity(record: Calibration) -> Sequence[str | None]:
        return record.model, record.weights, record.candidate, record.content

    stored_calibrations = read_calibrations(folder, calibration.capability)
    others = [other for other in stored_calibrations if identity(other) != identity(calibration)]
    records = [record.model_dump(mode="json") for record in (*others, calibration)]
    text = json.dumps({"calibrations": records}, indent=1)
    write_atomic(folder / f"{calibration.capability}.json", f"{text}\n")


@dataclass(frozen=True)
class EnvironmentStatus:
    """An environment with its stored calibrations.

    Attributes:
        pays: The rewarded behavior, in one line.
        digest: The digest of the current version at the easiest difficulty.
        is_stale: Whether a calibration belongs to a different version of the environment.
    """

    name: str
    pays: str
    digest: str
    calibrations: Sequence[Calibration]
    is_stale: bool

    @property
    def record(self) -> dict[str, object]:
        """The status as an object for JSON."""
        return {
            "environment": self.name,
            "capability": self.name,
            "digest": self.digest,
            "pays": self.pays,
            "stale": self.is_stale,
            "calibrations": [calibration.model_dump(mode="json") for calibration in self.calibrations],
        }


def environment_statuses(environments: Environments, folder: Path) -> list[EnvironmentStatus]:
    """The status of every environment, with the calibrations stored in a folder."""
    statuses = []
    for name in environments.names:
        calibrations = read_calibrations(folder, name)
        is_stale = any(
            environments.generator(name, calibration.difficulty, Content(calibration.content)).digest
            != calibration.digest
            for calibration in calibrations
        )
        digest = environments.generator(name, EASIEST).digest
        statuses.append(
            EnvironmentStatus(name, environments.offer(name).pays, digest, calibrations, is_stale)
        )
    return statuses


# Options of `environment tune`


def read_spec(options: argparse.Namespace, project: Project | None, base_folder: Path) -> CalibrationSpec:
    """Read the calibration spec from the options of `environment tune`."""
    settings = _model_settings(options, base_folder)
    instruction = ""
    if options.candidate is not None:
        candidates = Candidates(template_folder() / "candidates") if project is None else project.candidates
        instruction = candidates[options.candidate].instruction
    return CalibrationSpec(
        settings=settings,
        candidate=options.candidate or "",
        instruction=instruction,
        seeds=options.seeds or (SEEDS if settings.folder is None else LOCAL_SEEDS),
        rollouts=options.rollouts,
        start_difficulty=options.difficulty or EASIEST,
        can_adjust=options.difficulty is None,
    )


def _model_settings(options: argparse.Namespace, base_folder: Path) -> ModelSettings:
    """The settings of a model at an endpoint or in a folder."""
    if options.base_url is not None and options.model is None:
        raise ConfigError("--base-url has no effect without --model")
    model = str(embedded_model()) if options.model is None else options.model
    if options.base_url is not None or not is_model_folder(model, base_folder):
        return ModelSettings(
            model=model,
            base_url=options.base_url,
            api_key_env=options.api_key_env,
            temperature=1.0,
            url_option="--base-url",
            seed=FIRST_ROLLOUT_SEED,
            max_connections=DEFAULT_CONCURRENCY,
        )
    folder, weights = read_model_folder(model, base_folder, {})
    return ModelSettings(
        model=folder.name,
        base_url="",
        temperature=folder.temperature,
        folder=folder.path,
        weights=weights,
        seed=FIRST_ROLLOUT_SEED,
        max_connections=DEFAULT_CONCURRENCY,
    )


def estimate_line(spec: CalibrationSpec, environment_count: int) -> str:
    """The estimated number of rollouts and answers, in one line, with a warning if figures will be rough."""
    total = spec.seeds * spec.rollouts * environment_count
    line = (
        f"calibrating {environment_count} environments: {spec.seeds} seeds × {spec.rollouts} rollouts "
        f"= {total:,} rollouts, about {ANSWERS_PER_ROLLOUT * total:,} answers of {spec.settings.model}"
    )
    if spec.can_adjust:
        line += f"; the same again for each of up to {MAX_ADJUSTMENTS} changes of difficulty"
    if spec.seeds < SEEDS or spec.rollouts < ROLLOUTS:
        line += f". Fewer than {SEEDS} × {ROLLOUTS}: the figures are rough"
    return line
