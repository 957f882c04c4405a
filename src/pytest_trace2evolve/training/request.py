"""What a command line asks to be trained, as plain values."""

import argparse
import re
from dataclasses import replace
from pathlib import Path

from pytest_trace2evolve.diagnose.diagnosis import missing_of
from pytest_trace2evolve.environments.calibration import fitting
from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.project.candidates import ROUTED, Candidates
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.routing import NONE
from pytest_trace2evolve.serving.folder import folder_digest, read_model
from pytest_trace2evolve.training.recipe import MOST, read_recipe
from pytest_trace2evolve.training.train import Order
from pytest_trace2evolve.utils.resources import embedded_model, template

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def orders_of(
    environments: Environments, options: argparse.Namespace, project: Project | None, here: Path
) -> list[Order]:
    """What the options of `train` ask for: one adapter, or one for each capability that a run lacks.

    Raises:
        ConfigError: neither capabilities nor a run were named, or a name or a value is wrong; no environment
            has the tools of the run's world, nothing failed, or nothing is missing that has an environment.
        GeneratorError: a capability has no environment, or not of this difficulty.
        ModelFolderError: the base is no model's folder.
        CandidateError: there is no such candidate.
        ResultsError: the run is damaged.
    """
    if (options.capability is None) == (options.from_run is None):
        raise ConfigError("name what is trained: either --capability NAME…, or --from-run RUN")
    if options.from_run is None:
        return [_order(environments, options, project, here, list(dict.fromkeys(options.capability)))]
    if project is None:
        raise ConfigError(
            f"--from-run {options.from_run}: no project here says which tasks decide; give --root"
        )
    for option, value in (("--name", options.name), ("--out", options.out)):
        if value is not None:
            raise ConfigError(f"{option} does not go with --from-run, which names its adapters by capability")
    learnt = missing_of(project, options.from_run, here, environments)
    names = [one.name for one in learnt.trainable]
    orders = [_order(environments, options, project, here, [name]) for name in names]
    return [replace(one, evidence=learnt.runs, informed_by=learnt.splits) for one in orders]


def _order(
    environments: Environments,
    options: argparse.Namespace,
    project: Project | None,
    here: Path,
    capabilities: list[str],
) -> Order:
    """One adapter.

    Raises:
        GeneratorError: a capability has no environment, or not of this difficulty.
        ModelFolderError: the base is no model's folder.
        CandidateError: there is no such candidate.
        ConfigError: a name is missing or wrong, or a value of the recipe.
    """
    for name in capabilities:
        environments.offer(name)
    name = _name(options.name, capabilities)
    recipe = read_recipe(options.preset, options.config, seed=options.seed, steps=options.steps)
    for option, value, least in (
        ("--heldout", options.heldout, 0),
        ("--heldout-others", options.heldout_others, 0),
        ("--heldout-rollouts", options.heldout_rollouts, 1),
    ):
        if value is not None and value < least:
            raise ConfigError(f"{option} {value}: must be {least} or more")
        if value is not None and value > MOST:
            raise ConfigError(f"{option} {value}: must be {MOST} or less")
    base = read_model(options.base or embedded_model())
    root = here if project is None else project.root
    kept = root / ".trace2evolve"
    weights = folder_digest(base.path)
    difficulties = {}
    for one in dict.fromkeys((*capabilities, *environments.names)):
        found = fitting(environments, one, weights, kept / "environments")
        difficulties[one] = EASIEST if found is None else found.difficulty
    if options.difficulty is not None:
        difficulties |= dict.fromkeys(capabilities, options.difficulty)
    for one in capabilities:
        environments.generator(one, difficulties[one])
    instruction = ""
    if options.candidate is not None:
        known = Candidates(template() / "candidates") if project is None else project.candidates
        instruction = known[options.candidate].instruction
    return Order(
        capabilities=capabilities,
        name=name,
        base=base,
        out=(here / options.out) if options.out is not None else root / "adapters" / name,
        recipe=recipe,
        difficulties=difficulties,
        candidate=options.candidate or "",
        instruction=instruction,
        heldout=options.heldout,
        others=options.heldout // 2 if options.heldout_others is None else options.heldout_others,
        rollouts=options.heldout_rollouts,
        kept=kept / "heldout",
    )


def _name(given: str | None, capabilities: list[str]) -> str:
    if given is None and len(capabilities) > 1:
        raise ConfigError(
            f"--capability {' '.join(capabilities)}: several make one adapter, which needs a --name"
        )
    name = given or capabilities[0]
    if not _NAME.fullmatch(name):
        raise ConfigError(f"--name {name}: must be in snake_case, as refunds_and_returns")
    if name in (ROUTED, NONE):
        raise ConfigError(f"--name {name}: is what a router's choice is called; choose another")
    return name
