"""What a command line asks to be evolved, as plain values."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from pytest_trace2evolve.environments.generators.scenario import EASIEST
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.evidence.results import read_results
from pytest_trace2evolve.improve.addopts import in_place, with_addopts
from pytest_trace2evolve.improve.options import SUITE, read_session, values_of
from pytest_trace2evolve.improve.order import EvolveOrder
from pytest_trace2evolve.improve.runs import refuse_undecided
from pytest_trace2evolve.improve.session import (
    gate_of,
    policy_told,
    refuse_other_agent,
    refuse_several_domains,
    suites_of,
)
from pytest_trace2evolve.project.candidates import DEFAULT_CANDIDATE, WITH
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.evidence import Provenance
from pytest_trace2evolve.serving.folder import expanded, read_model
from pytest_trace2evolve.session.sources import expand, mode_of, provenance
from pytest_trace2evolve.session.traces import find_run
from pytest_trace2evolve.training.recipe import MOST, read_recipe
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.optional import require
from pytest_trace2evolve.utils.resources import embedded_model


def read_order(
    options: argparse.Namespace, project: Project, environments: Environments, here: Path
) -> EvolveOrder:
    """What the options of `evolve` ask for.

    Raises:
        ConfigError: a value is wrong, the run is unknown or empty, no environment has the tools of its world,
            or the evolution could not end.
        CandidateError: there is no such candidate.
        ModelFolderError: the base is no model's folder.
        MissingExtraError: a package that training needs is not installed.
        ResultsError: the run is damaged.
    """
    _refuse_small(options)
    session = [in_place(one, here) for one in read_session(options.session)]
    session = with_addopts(project, session, based=options.base is not None)
    recipe = read_recipe(options.preset, options.config, seed=options.seed, steps=options.steps)
    for module, extra in (("trl", "train"), ("peft", "train"), ("matplotlib", "plot")):
        require(module, extra=extra)
    run = None if options.from_run is None else find_run(options.from_run, project, here)
    origins = [] if run is None else _origins(run)
    for origin in origins:
        environments.require_tools_of(f"run {options.from_run}", (origin.provider, origin.domain))
    candidate = options.candidate or (DEFAULT_CANDIDATE if run is None else _candidate_of(run, origins))
    if WITH in candidate:
        text = candidate.partition(WITH)[0]
        raise ConfigError(
            f"candidate {candidate!r} talks with an adapter, and adapters are trained on the base alone: "
            f"evolve {text!r}"
        )
    _ = project.candidates[candidate]
    base = embedded_model()
    if options.base is not None:
        # Sessions and trainings stand in the project's folder, and not where the user does.
        base = (here / expanded(options.base)).resolve()
        session.append(f"--t2e-model={base}")
    if run is None:
        refuse_several_domains(suites_of(project, session))
    else:
        session += _suites_of_run(run, origins, session)
    suites = suites_of(project, session)
    refuse_undecided(project, suites)
    for suite in suites:
        environments.require_tools_of(f"suite {suite.name}", (suite.provider, suite.domain))
    if options.base is None:
        refuse_other_agent(project, suites)
    # One more than cores: where three are trained on two, no core is idle while the third is.
    at_once = min(options.most, (os.cpu_count() or 1) + 1)
    return EvolveOrder(
        candidate=candidate,
        run=run,
        base=read_model(base),
        recipe=recipe,
        preset=options.preset,
        content=content_of(project, environments, candidate, run, session),
        session=tuple(session),
        most=options.most,
        heldout=options.heldout,
        rollouts=options.heldout_rollouts,
        parallel=options.parallel or (at_once if options.preset == "pocket" else 1),
        max_rollouts=options.max_rollouts,
        max_minutes=options.max_minutes,
    )


def content_of(
    project: Project, environments: Environments, candidate: str, run: Path | None, session: Sequence[str]
) -> str:
    """Digest of what an evolution works on: where it has changed, what was begun is another evolution.

    That is the candidate's text, the simulations of the run, the locks of the suites, the environments and
    the gate's policy.

    Raises:
        ConfigError: the gate is off.
        CandidateError: there is no such candidate.
        SuiteError: a suite is unknown or broken.
        ResultsError: the run is damaged.
    """
    files = [] if run is None else [read_results(path) for path in expand([run])]
    return digest(
        {
            "candidate": project.candidates[candidate].digest,
            "run": sorted(
                [provenance(one).run_id or "", *sorted(sim.id for sim in one.simulations)] for one in files
            ),
            "suites": {one.name: project.lock.suites[one.name].digest for one in suites_of(project, session)},
            "environments": {
                name: environments.generator(name, EASIEST).digest for name in environments.names
            },
            "gate": policy_told(project, gate_of(project, session)),
        }
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
        if value is not None and value > MOST and option != "--max-rollouts":
            raise ConfigError(f"{option} {value}: must be {MOST} or less")
    if options.max_minutes is not None and not 0 < options.max_minutes < float("inf"):
        raise ConfigError(f"--max-minutes {options.max_minutes:g}: must be more than 0")


def _origins(run: Path) -> list[Provenance]:
    """Where the files of a run come from, in one domain."""
    files = [read_results(path) for path in expand([run])]
    if not files:
        raise ConfigError(f"{run}: holds no results: it is no run, or nothing was measured in it")
    if len({mode_of(one) for one in files}) > 1:
        names = ", ".join(sorted(f"{one.path.name} ({mode_of(one).brief})" for one in files))
        raise ConfigError(
            f"run {run.name} is of several domains: {names}; capabilities are learnt from one: give the "
            f"folder of its suite, as in --from-run {files[0].path}"
        )
    return [provenance(one) for one in files]


def _candidate_of(run: Path, origins: Sequence[Provenance]) -> str:
    found = {one.candidate.id for one in origins if one.candidate is not None}
    if len(found) != 1:
        raise ConfigError(f"{run}: is of {len(found)} candidates; name one with --candidate")
    return found.pop()


def _suites_of_run(run: Path, origins: Sequence[Provenance], session: Sequence[str]) -> list[str]:
    """The option by which the adapters' sessions run the suites of a run: of others it holds nothing that
    they could be compared with."""
    held = sorted({one.suite for one in origins if one.suite is not None})
    named = values_of(session, SUITE)
    for name in named:
        if held and name not in held:
            raise ConfigError(
                f"{SUITE} {name}: run {run.name} is of {', '.join(held)}, and with that an adapter is "
                "compared; name those, or none"
            )
    return [] if named else [f"{SUITE}={name}" for name in held]
