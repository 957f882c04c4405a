"""Calibration: a model plays an environment, whose difficulty is changed until it can learn there.

What a command line asks to be calibrated, as plain values, and what that will cost.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pytest_trace2evolve.agents.chat import ChatAgent, system_prompt
from pytest_trace2evolve.engine.live import model_folder, names_folder
from pytest_trace2evolve.environments.calibration import (
    ADJUSTMENTS,
    LOST_MOST,
    MEAN,
    ROLLOUTS,
    SEEDS,
    direction,
    figures,
    outside,
)
from pytest_trace2evolve.environments.generators.scenario import EASIEST, HARDEST
from pytest_trace2evolve.environments.registry import Environments, played
from pytest_trace2evolve.environments.rollouts import Rollout, roll_groups
from pytest_trace2evolve.errors import ConfigError, InfrastructureError
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.candidates import Candidates
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.environment import Calibration, Figures, Outcome, Tried
from pytest_trace2evolve.records.protocols import Agent, Model
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.utils.resources import embedded_model, template

LOCAL_SEEDS = 30
"""Scenarios for a model in a folder, where nothing else is said: the machine may have no accelerator."""

AT_ONCE = 64
"""Rollouts at once."""

CALLS = 3
"""Answers of a model in a rollout, about, for the estimate before anything is measured."""


@dataclass(frozen=True)
class Ask:
    """What is measured, and how.

    Attributes:
        settings: Which model, and at which temperature.
        candidate: Whose instruction its agent gets; empty for none.
        instruction: That instruction.
        seeds: Scenarios.
        rollouts: Rollouts of each.
        start: The difficulty to begin with.
        adjust: Whether the difficulty is changed where figures lie outside.
        content: Whose words.
        at_once: Rollouts at once.
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
    ask: Ask,
    *,
    told: Callable[[int, int], None] = lambda difficulty, done: None,
) -> Calibration:
    """Measure a model in an environment, and look for a difficulty at which it can learn.

    Args:
        environments: Those that are known.
        name: The capability.
        model: Who answers.
        ask: What is measured.
        told: Hears at which difficulty how many rollouts are done.

    Raises:
        GeneratorError: the environment is unknown or breaks its promises.
        InfrastructureError: too many rollouts were lost: of the others alone nothing is said.
        EndpointError: the model cannot be asked.
    """
    difficulty, tried = ask.start, list[Tried]()
    while True:
        tried.append(await _measure(environments, name, difficulty, model, ask, told))
        if not tried[-1].outside or not ask.adjust or len(tried) > ADJUSTMENTS:
            break
        following = next_difficulty(difficulty, tried[-1].figures)
        if not EASIEST <= following <= HARDEST or following in [one.difficulty for one in tried]:
            break
        difficulty = following
    last = tried[-1]
    return Calibration(
        capability=name,
        digest=last.digest,
        model=ask.settings.model,
        weights=ask.settings.weights,
        candidate=ask.candidate,
        content=ask.content.value,
        temperature=ask.settings.temperature,
        seeds=ask.seeds,
        group=ask.rollouts,
        outcome=Outcome.ASK if last.outside else Outcome.FITS,
        difficulty=last.difficulty,
        tried=tuple(tried),
        advice=_advice(tried) if last.outside else "",
    )


def next_difficulty(difficulty: int, found: Figures) -> int:
    """The difficulty to measure next; one that does not exist where there is no further way to go."""
    way = direction(found)
    if not EASIEST <= difficulty + way <= HARDEST and MEAN[0] <= found.mean <= MEAN[1]:
        # The reward fits and groups are too much alike: another mix of scenarios may tell them apart.
        way = -way
    return difficulty + way


async def _measure(
    environments: Environments,
    name: str,
    difficulty: int,
    model: Model,
    ask: Ask,
    told: Callable[[int, int], None],
) -> Tried:
    started = time.perf_counter()
    generator, world = environments.generator(name, difficulty, ask.content), environments.world(name)
    prompt, tools = system_prompt(world.policy(), ask.instruction), world.tools("assistant")

    def agent(number: int) -> Agent:
        return ChatAgent(model, prompt, tools, trial=number)

    groups = await roll_groups(
        lambda: played(generator, world),
        agent,
        range(ask.first, ask.first + ask.seeds),
        ask.rollouts,
        at_once=ask.at_once,
        told=lambda done: told(difficulty, done),
    )
    rollouts = [one for group in groups for one in group.rollouts]
    lost = [one for one in rollouts if one.reward is None]
    if len(lost) > LOST_MOST * len(rollouts):
        raise InfrastructureError(
            f"environment {name!r}: {len(lost)} of {len(rollouts)} rollouts were lost, more than "
            f"{LOST_MOST:.0%}, and nothing is said of the others; first: {lost[0].trouble}"
        )
    found = figures([group.rewards for group in groups], len(lost))
    return Tried(
        difficulty=difficulty,
        digest=generator.digest,
        figures=found,
        outside=outside(found),
        tokens=_mean_tokens(rollouts),
        calls=fmean(one.usage.calls for one in rollouts),
        seconds=time.perf_counter() - started,
    )


def _mean_tokens(rollouts: Sequence[Rollout]) -> float | None:
    told = [one.tokens for one in rollouts if one.reward is not None and one.tokens]
    return fmean(told) if told else None


def _advice(tried: Sequence[Tried]) -> str:
    """What to do where no difficulty fits."""
    last = tried[-1]
    levels = ", ".join(str(one.difficulty) for one in tried)
    if direction(last.figures) < 0:
        mend = "the model needs easier scenarios, or to be taught by examples first"
    else:
        mend = "the model can do this already: train another capability, or make harder scenarios"
    return f"no difficulty fits (measured: {levels}); {mend}"


SEED = 1
"""Of the first rollout; each further one adds its number."""


def read_ask(options: argparse.Namespace, project: Project | None, here: Path) -> Ask:
    """What the options of `environment calibrate` ask for.

    Raises:
        ConfigError: the temperature is out of range.
        CandidateError: there is no such candidate.
        ModelFolderError: the folder that is named holds no model.
    """
    if options.temperature is not None and not 0 <= options.temperature <= 2:
        raise ConfigError(f"--temperature {options.temperature:g}: must be from 0 to 2")
    settings = _settings(options, here)
    local = settings.folder is not None
    return Ask(
        settings=settings,
        candidate=options.candidate or "",
        instruction=_instruction(options.candidate, project),
        seeds=options.seeds or (LOCAL_SEEDS if local else SEEDS),
        rollouts=options.rollouts,
        start=options.difficulty or EASIEST,
        adjust=options.difficulty is None,
        content=Content(options.content),
        at_once=options.concurrency,
        first=options.first,
    )


def _settings(options: argparse.Namespace, here: Path) -> ModelSettings:
    """A folder's model, or one at an endpoint."""
    if options.base_url is not None and options.model is None:
        raise ConfigError("--base-url says nothing without --model")
    named = str(embedded_model()) if options.model is None else options.model
    settings = ModelSettings(
        model=named,
        base_url=options.base_url,
        key_var=options.key_var,
        temperature=1.0 if options.temperature is None else options.temperature,
        seed=SEED,
        max_connections=options.concurrency,
        url_option="--base-url",
    )
    if options.base_url is not None or not names_folder(named, here):
        return settings
    folder, weights = model_folder(named, here, {})
    return ModelSettings(
        model=folder.name,
        base_url="",
        temperature=folder.temperature if options.temperature is None else options.temperature,
        seed=SEED,
        max_connections=options.concurrency,
        folder=folder.path,
        weights=weights,
    )


def _instruction(candidate: str | None, project: Project | None) -> str:
    if candidate is None:
        return ""
    candidates = Candidates(template() / "candidates") if project is None else project.candidates
    return candidates[candidate].instruction


def budget(ask: Ask, environments: int) -> str:
    """What a calibration will ask of a model, in one line; and whether that is less than the full measure."""
    each = ask.seeds * ask.rollouts
    total = each * environments
    told = (
        f"calibrating {environments} environments: {ask.seeds} seeds × {ask.rollouts} rollouts "
        f"= {total:,} rollouts, "
        f"about {CALLS * total:,} answers of {ask.settings.model}"
    )
    if ask.adjust:
        told += f"; as much again for each of up to {ADJUSTMENTS} changes of difficulty"
    if ask.seeds < SEEDS or ask.rollouts < ROLLOUTS:
        told += f". Fewer than {SEEDS} × {ROLLOUTS}: the figures are rough"
    return told
