"""What a command line asks to be evolved, as plain values."""

import argparse
import os
from pathlib import Path

from pytest_trace2evolve._optional import require
from pytest_trace2evolve.candidates import DEFAULT_CANDIDATE, WITH
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.evidence.results import read_results
from pytest_trace2evolve.serving.folder import read_model
from pytest_trace2evolve.shipped import embedded_model
from pytest_trace2evolve.training.grpo.recipe import read_recipe
from pytest_trace2evolve.workflow.evolving.order import EvolveOrder, refuse_given
from pytest_trace2evolve.workflow.project import Project
from pytest_trace2evolve.workflow.recorded.looks import find_run
from pytest_trace2evolve.workflow.recorded.sides import expand, provenance


def read_order(options: argparse.Namespace, project: Project, here: Path) -> EvolveOrder:
    """What the options of `evolve` ask for.

    Raises:
        ConfigError: a value is wrong, or the run is unknown or empty.
        CandidateError: there is no such candidate.
        ModelFolderError: the base is no model's folder.
        MissingExtraError: a package that training needs is not installed.
        ResultsError: the run is damaged.
    """
    _refuse_small(options)
    refuse_given(options.session)
    recipe = read_recipe(options.preset, options.config, seed=options.seed, steps=options.steps)
    for module, extra in (("trl", "train"), ("peft", "train"), ("matplotlib", "plot")):
        require(module, extra=extra)
    run = None if options.from_run is None else find_run(options.from_run, project, here)
    candidate = options.candidate or (DEFAULT_CANDIDATE if run is None else _candidate_of(run))
    if WITH in candidate:
        text = candidate.partition(WITH)[0]
        raise ConfigError(
            f"candidate {candidate!r} talks with an adapter, and adapters are trained on the base alone: "
            f"evolve {text!r}"
        )
    _ = project.candidates[candidate]
    # One more than cores: where three are trained on two, no core is idle while the third is.
    at_once = min(options.most, (os.cpu_count() or 1) + 1)
    return EvolveOrder(
        candidate=candidate,
        run=run,
        base=read_model(options.base or embedded_model()),
        recipe=recipe,
        preset=options.preset,
        session=tuple(options.session),
        most=options.most,
        heldout=options.heldout,
        rollouts=options.heldout_rollouts,
        parallel=options.parallel or (at_once if options.preset == "pocket" else 1),
        max_rollouts=options.max_rollouts,
        max_minutes=options.max_minutes,
    )


def _refuse_small(options: argparse.Namespace) -> None:
    for option, value, least in (
        ("--most", options.most, 1),
        ("--heldout", options.heldout, 2),
        ("--heldout-rollouts", options.heldout_rollouts, 1),
        ("--parallel", options.parallel, 1),
        ("--max-rollouts", options.max_rollouts, 1),
    ):
        if value is not None and value < least:
            raise ConfigError(f"{option} {value}: must be {least} or more")
    if options.max_minutes is not None and not 0 < options.max_minutes < float("inf"):
        raise ConfigError(f"--max-minutes {options.max_minutes:g}: must be more than 0")


def _candidate_of(run: Path) -> str:
    files = [read_results(path) for path in expand([run])]
    if not files:
        raise ConfigError(f"{run}: holds no results: it is no run, or nothing was measured in it")
    found = {one.candidate.id for one in map(provenance, files) if one.candidate is not None}
    if len(found) != 1:
        raise ConfigError(f"{run}: is of {len(found)} candidates; name one with --candidate")
    return found.pop()
