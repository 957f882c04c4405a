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
from typing import TYPE_CHECKING

from pytest_trace2evolve.agents.chat import ChatAgent, system_prompt
from pytest_trace2evolve.engine.live import model_folder, names_folder
from pytest_trace2evolve.environments.environment import (
    DIFFICULTIES,
    EASIEST,
    ScenarioEnvironment,
    count_lost,
    roll_groups,
)
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError, GeneratorError
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.candidates import Candidates
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.environment import TOP, Calibration, DifficultyResult, Figures, Outcome
from pytest_trace2evolve.records.protocols import Agent, Model
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import read_record
from pytest_trace2evolve.utils.resources import embedded_model, template

if TYPE_CHECKING:
    from pytest_trace2evolve.environments.on_cluster import Players

SEEDS, ROLLOUTS = 100, 16  # scenarios of a full calibration, and rollouts of each
LOCAL_SEEDS = 30  # default for a model in a folder, because the machine may have no accelerator
AT_ONCE = 64  # concurrent rollouts by default
FIRST_ROLLOUT_SEED = 1  # further rollouts add their number
MAX_ADJUSTMENTS = 5  # changes of the difficulty before the user must decide

# Targets of the figures
MIN_MEAN, MAX_MEAN = 0.2, 0.6  # reward
MIN_STD = 0.05  # within a group, averaged over groups
MAX_SAME = 0.2  # share of groups with only top rewards, and of groups with only rewards of 0
MIN_INFORMATIVE = 0.5  # share of groups whose rewards differ

KS = (1, 4, 8, 16)  # of pass@k
ANSWERS_PER_ROLLOUT = 3  # a rough figure, for the estimate before the measurement


def figures(groups: Sequence[Sequence[float]], lost: int = 0) -> Figures:
    """Compute the figures of groups of rewards, one group per scenario.

    Groups of fewer than two rewards are left out.

    Raises:
        ValueError: no group holds two rewards.
    """
    whole = [group for group in groups if len(group) > 1]
    if not whole:
        raise ValueError("no group holds two rewards")
    rewards = [reward for group in whole for reward in group]
    pass_at_k = {}
    for k in KS:
        if large := [group for group in whole if len(group) >= k]:
            pass_at_k[k] = fmean(pass_at(len(group), group.count(TOP), k) for group in large)
    return Figures(
        groups=len(whole),
        rollouts=len(rewards),
        lost=lost,
        mean=fmean(rewards),
        std=fmean(map(pstdev, whole)),
        all_top=fmean(min(group) == TOP for group in whole),
        all_zero=fmean(max(group) == 0 for group in whole),
        informative=fmean(min(group) < max(group) for group in whole),
        pass_at=pass_at_k,
    )


def pass_at(total: int, passed: int, k: int) -> float:
    """The unbiased estimate of pass@k, the chance that at least one of k rollouts passes.

    Computes 1 − C(n − c, k) / C(n, k) with n = `total` and c = `passed` (Chen et al. 2021, "Evaluating Large
    Language Models Trained on Code", eq. 1).

    Raises:
        ValueError: pass@k is not defined for these numbers.
    """
    if not (1 <= k <= total and 0 <= passed <= total):
        raise ValueError(f"pass@{k} of {passed} in {total} rollouts is not defined")
    return 1 - math.comb(total - passed, k) / math.comb(total, k)


def missed_targets(found: Figures) -> tuple[str, ...]:
    """The targets that the figures miss, one phrase each; empty if a model can learn here."""
    missed = []
    if not MIN_MEAN <= found.mean <= MAX_MEAN:
        missed.append(f"mean reward {found.mean:.2f}, target {MIN_MEAN:g} to {MAX_MEAN:g}")
    if found.std < MIN_STD:
        missed.append(f"spread within a group {found.std:.3f}, target {MIN_STD:g} or more")
    if found.all_top > MAX_SAME:
        missed.append(f"{found.all_top:.0%} of the groups all at the top, target {MAX_SAME:.0%} at most")
    if found.all_zero > MAX_SAME:
        missed.append(f"{found.all_zero:.0%} of the groups all at 0, target {MAX_SAME:.0%} at most")
    if found.informative < MIN_INFORMATIVE:
        missed.append(f"{found.informative:.0%} of the groups differ, target {MIN_INFORMATIVE:.0%} or more")
    return tuple(missed)


def direction(found: Figures) -> int:
    """Return 1 if scenarios must become harder, or -1 if easier, by the figure furthest from its target."""
    too_high = max(found.mean - MAX_MEAN, found.all_top - MAX_SAME)
    too_low = max(MIN_MEAN - found.mean, found.all_zero - MAX_SAME)
    if max(too_high, too_low) <= 0:
        return 1 if found.mean > (MIN_MEAN + MAX_MEAN) / 2 else -1
    return 1 if too_high >= too_low else -1


def next_difficulty(difficulty: int, found: Figures) -> int:
    """The difficulty to measure next; outside of `DIFFICULTIES` if the scale ends here."""
    step = direction(found)
    if difficulty + step not in DIFFICULTIES and MIN_MEAN <= found.mean <= MAX_MEAN:
        # The mean fits, but groups are too similar: a different mix of scenarios may tell them apart.
        step = -step
    return difficulty + step


@dataclass(frozen=True)
class CalibrationSpec:
    """The settings of a calibration.

    Attributes:
        settings: The model to measure.
        candidate: The candidate whose instruction the agent gets; empty for none.
        start: The first difficulty.
        adjust: Whether the difficulty is changed if figures miss their targets.
        first: Seed of the first scenario.
    """

    settings: ModelSettings
    candidate: str = ""
    instruction: str = ""
    seeds: int = SEEDS
    rollouts: int = ROLLOUTS
    start: int = EASIEST
    adjust: bool = True
    content: Content = Content.TRAIN
    at_once: int = AT_ONCE
    first: int = 0


async def calibrate(
    environments: Environments,
    name: str,
    model: Model,
    spec: CalibrationSpec,
    *,
    on_progress: Callable[[int, int], None] = lambda difficulty, done: None,
    players: "Players | None" = None,
) -> Calibration:
    """Measure a model in an environment, and search for a difficulty at which it can learn.

    Args:
        on_progress: Called with the difficulty and the number of finished rollouts.
        players: Plays the rollouts on a cluster; None to play them in this process.

    Raises:
        InfrastructureError: so many rollouts were lost that the others alone prove nothing.
    """
    difficulty, tried = spec.start, list[DifficultyResult]()
    while True:
        tried.append(await _measure(environments, name, difficulty, model, spec, on_progress, players))
        if not tried[-1].outside or not spec.adjust or len(tried) > MAX_ADJUSTMENTS:
            break
        following = next_difficulty(difficulty, tried[-1].figures)
        if following not in DIFFICULTIES or following in [level.difficulty for level in tried]:
            break
        difficulty = following
    last = tried[-1]
    return Calibration(
        capability=name,
        digest=last.digest,
        model=spec.settings.model,
        weights=spec.settings.weights,
        candidate=spec.candidate,
        content=spec.content.value,
        temperature=spec.settings.temperature,
        seeds=spec.seeds,
        group=spec.rollouts,
        outcome=Outcome.ASK if last.outside else Outcome.FITS,
        difficulty=last.difficulty,
        tried=tuple(tried),
        advice=_advice(tried) if last.outside else "",
    )


async def _measure(
    environments: Environments,
    name: str,
    difficulty: int,
    model: Model,
    spec: CalibrationSpec,
    on_progress: Callable[[int, int], None],
    players: "Players | None",
) -> DifficultyResult:
    started = time.perf_counter()
    generator, world = environments.generator(name, difficulty, spec.content), environments.world(name)
    prompt, tools = system_prompt(world.policy(), spec.instruction), world.tools("assistant")

    def make_agent(number: int) -> Agent:
        return ChatAgent(model, prompt, tools, trial=number)

    groups = await roll_groups(
        lambda: ScenarioEnvironment(generator, world),
        make_agent,
        range(spec.first, spec.first + spec.seeds),
        spec.rollouts,
        at_once=spec.at_once,
        on_progress=lambda done: on_progress(difficulty, done),
        play=None if players is None else players.of(name, difficulty, spec.content, spec.instruction),
    )
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    found = figures([group.rewards for group in groups], count_lost(f"environment {name!r}", groups))
    tokens = [rollout.tokens for rollout in rollouts if rollout.reward is not None and rollout.tokens]
    return DifficultyResult(
        difficulty=difficulty,
        digest=generator.digest,
        figures=found,
        outside=missed_targets(found),
        tokens=fmean(tokens) if tokens else None,
        calls=fmean(rollout.usage.calls for rollout in rollouts),
        seconds=time.perf_counter() - started,
    )


def _advice(tried: Sequence[DifficultyResult]) -> str:
    """The advice to the user if no difficulty fits."""
    levels = ", ".join(str(level.difficulty) for level in tried)
    if direction(tried[-1].figures) < 0:
        remedy = "the model needs easier scenarios, or to be taught by examples first"
    else:
        remedy = "the model can do this already: train another capability, or make harder scenarios"
    return f"no difficulty fits (measured: {levels}); {remedy}"


# Calibrations of a project


class _Calibrations(Record):
    """A file of calibrations, one per model, candidate and content."""

    calibrations: tuple[Calibration, ...]


def read_calibrations(folder: Path, capability: str) -> tuple[Calibration, ...]:
    """The stored calibrations of a capability, one per model, candidate and content."""
    path = folder / f"{capability}.json"
    if not os.path.lexists(path):
        return ()
    return read_record(path, _Calibrations, GeneratorError, "delete it, and calibrate again").calibrations


def find_calibration(
    environments: Environments, capability: str, weights: str, folder: Path
) -> Calibration | None:
    """The calibration that found a difficulty in the environment's current version; None if there is none.

    `weights` is the digest of the model's folder.
    """
    for calibration in read_calibrations(folder, capability):
        digest = environments.generator(capability, calibration.difficulty).digest
        is_current = calibration.weights == weights and calibration.digest == digest
        if is_current and calibration.outcome is Outcome.FITS:
            return calibration
    return None


def store_calibration(folder: Path, calibration: Calibration) -> None:
    """Store a calibration, replacing an earlier one of the same model, candidate and content."""

    def key(stored: Calibration) -> Sequence[str | None]:
        return stored.model, stored.weights, stored.candidate, stored.content

    stored = read_calibrations(folder, calibration.capability)
    others = [other for other in stored if key(other) != key(calibration)]
    records = [record.model_dump(mode="json") for record in (*others, calibration)]
    text = json.dumps({"calibrations": records}, indent=1)
    write_atomic(folder / f"{calibration.capability}.json", f"{text}\n")


@dataclass(frozen=True)
class EnvironmentStatus:
    """An environment with its stored calibrations.

    Attributes:
        pays: The rewarded behavior, in one line.
        digest: The digest of the current version at the easiest difficulty.
        stale: Whether a calibration is of a different version of the environment.
    """

    name: str
    pays: str
    digest: str
    calibrations: Sequence[Calibration]
    stale: bool

    @property
    def record(self) -> dict[str, object]:
        """The status as an object for JSON."""
        return {
            "environment": self.name,
            "capability": self.name,
            "digest": self.digest,
            "pays": self.pays,
            "stale": self.stale,
            "calibrations": [calibration.model_dump(mode="json") for calibration in self.calibrations],
        }


def environment_statuses(environments: Environments, folder: Path) -> list[EnvironmentStatus]:
    """The status of every environment, with the calibrations stored in a folder."""
    found = []
    for name in environments.names:
        stored = read_calibrations(folder, name)
        stale = any(
            environments.generator(name, past.difficulty, Content(past.content)).digest != past.digest
            for past in stored
        )
        digest = environments.generator(name, EASIEST).digest
        found.append(EnvironmentStatus(name, environments.offer(name).pays, digest, stored, stale))
    return found


# Options of `environment tune`


def read_spec(options: argparse.Namespace, project: Project | None, here: Path) -> CalibrationSpec:
    """Read the calibration spec from the options of `environment tune`."""
    if options.temperature is not None and not 0 <= options.temperature <= 2:
        raise ConfigError(f"--temperature {options.temperature:g}: must be from 0 to 2")
    settings = _model_settings(options, here)
    instruction = ""
    if options.candidate is not None:
        candidates = Candidates(template() / "candidates") if project is None else project.candidates
        instruction = candidates[options.candidate].instruction
    return CalibrationSpec(
        settings=settings,
        candidate=options.candidate or "",
        instruction=instruction,
        seeds=options.seeds or (SEEDS if settings.folder is None else LOCAL_SEEDS),
        rollouts=options.rollouts,
        start=options.difficulty or EASIEST,
        adjust=options.difficulty is None,
        content=Content(options.content),
        at_once=options.concurrency,
        first=options.first_seed,
    )


def _model_settings(options: argparse.Namespace, here: Path) -> ModelSettings:
    """The settings of a model at an endpoint or in a folder."""
    if options.base_url is not None and options.model is None:
        raise ConfigError("--base-url has no effect without --model")
    model = str(embedded_model()) if options.model is None else options.model
    shared = {"seed": FIRST_ROLLOUT_SEED, "max_connections": options.concurrency}
    temperature = options.temperature
    if options.base_url is not None or not names_folder(model, here):
        return ModelSettings(
            model=model,
            base_url=options.base_url,
            api_key_env=options.api_key_env,
            temperature=1.0 if temperature is None else temperature,
            url_option="--base-url",
            **shared,
        )
    folder, weights = model_folder(model, here, {})
    return ModelSettings(
        model=folder.name,
        base_url="",
        temperature=folder.temperature if temperature is None else temperature,
        folder=folder.path,
        weights=weights,
        **shared,
    )


def estimate(spec: CalibrationSpec, environments: int) -> str:
    """The estimated number of rollouts and answers, in one line, with a warning if figures will be rough."""
    total = spec.seeds * spec.rollouts * environments
    line = (
        f"calibrating {environments} environments: {spec.seeds} seeds × {spec.rollouts} rollouts "
        f"= {total:,} rollouts, about {ANSWERS_PER_ROLLOUT * total:,} answers of {spec.settings.model}"
    )
    if spec.adjust:
        line += f"; as much again for each of up to {MAX_ADJUSTMENTS} changes of difficulty"
    if spec.seeds < SEEDS or spec.rollouts < ROLLOUTS:
        line += f". Fewer than {SEEDS} × {ROLLOUTS}: the figures are rough"
    return line
