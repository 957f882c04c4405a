"""What a command line asks to be calibrated, as plain values, and what that will cost."""

import argparse
from pathlib import Path

from pytest_trace2evolve.candidates import Candidates
from pytest_trace2evolve.environments.calibration import ADJUSTMENTS, ROLLOUTS, SEEDS
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.script import Content
from pytest_trace2evolve.shipped import embedded_model, template
from pytest_trace2evolve.workflow.environments.calibrate import CALLS, LOCAL_SEEDS, Ask
from pytest_trace2evolve.workflow.environments.generator import EASIEST
from pytest_trace2evolve.workflow.planning.local import model_folder, names_folder
from pytest_trace2evolve.workflow.project import Project

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
