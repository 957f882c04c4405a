"""The commands that evaluate evidence given as files: compare, calibrate, power and score."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.cli.common import (
    check_plot,
    judge_of,
    nearest_project,
    project_of,
    worlds_of,
)
from pytest_trace2evolve.errors import ConfigError

if TYPE_CHECKING:
    from pytest_trace2evolve.gate.power import Agent
    from pytest_trace2evolve.project.project import Project


def compare(options: argparse.Namespace) -> int:
    """Gate two sets of evidence; the exit status follows from the verdict."""
    from pytest_trace2evolve.records.verdict import EXIT_STATUS, Goal
    from pytest_trace2evolve.report.verdict import comparison_text
    from pytest_trace2evolve.session.compare import compare

    baseline, candidate = _sides(options)
    if options.split and not options.suite:
        raise ConfigError("--split names a split of a suite: give --suite too")
    project = project_of(options) if options.suite else nearest_project(options)
    comparison = compare(
        [_named(path, project) for path in baseline],
        [_named(path, project) for path in candidate],
        worlds_of(project),
        policy=options.policy,
        goal=Goal(options.goal),
        provider=options.provider,
        project=project,
        suite=options.suite,
        split=options.split,
        judge=judge_of(options),
    )
    print(
        json.dumps(comparison.to_json(), indent=2)
        if options.json
        else comparison_text(comparison, verbose=options.verbose)
    )
    assert comparison.verdict.decision is not None
    return EXIT_STATUS[comparison.verdict.decision]


def _named(path: Path, project: "Project | None") -> Path:
    """A path, or the file of the project's baseline that has this name."""
    if project is None or path.exists():
        return path
    stored = project.baselines_folder / f"{path}.json"
    return stored if stored.is_file() else path


def _sides(options: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    """The paths of both sides, given as two positional arguments or as any number of options."""
    positional = list(options.sides)
    baseline, candidate = list(options.baseline_results or ()), list(options.candidate_results or ())
    if not baseline and positional:
        baseline = [positional.pop(0)]
    if not candidate and positional:
        candidate = [positional.pop(0)]
    if not baseline or not candidate or positional:
        raise ConfigError(
            "compare takes BASELINE and CANDIDATE, or --baseline-results FILE… and --candidate-results FILE…"
        )
    return baseline, candidate


def calibrate(options: argparse.Namespace) -> int:
    """Print the error rates of each policy on a suite's own trials."""
    from pytest_trace2evolve.report.calibration import calibration_json, calibration_picture, calibration_text
    from pytest_trace2evolve.session.calibrate import CalibrationSettings, calibrate_files

    settings = CalibrationSettings(
        policies=tuple(options.policy or ()),
        trials=options.trials,
        margin=options.margin,
        effects=tuple(options.effect or (0.05, 0.10)),
        resamples=options.resamples,
        seed=options.seed,
        live=options.live,
    )
    check_plot(options.plot)
    project = nearest_project(options)
    found = calibrate_files(
        options.results,
        worlds_of(project),
        settings,
        project=project,
        provider=options.provider,
        judge=judge_of(options),
    )
    if options.plot is not None:
        file_format = options.plot.suffix[1:].lower()
        options.plot.write_bytes(calibration_picture(found, file_format=file_format))
    print(json.dumps(calibration_json(found), indent=2) if options.json else calibration_text(found))
    return 0


def power(options: argparse.Namespace) -> int:
    """Print the changes that a number of tasks and trials could show."""
    from pytest_trace2evolve.gate.power import Design, Plan, power_of
    from pytest_trace2evolve.project.policies import find_policy
    from pytest_trace2evolve.report.calibration import power_json, power_text
    from pytest_trace2evolve.session.calibrate import at_levels

    if options.alpha is not None and not 0 < options.alpha < 0.5:
        raise ConfigError(f"--alpha {options.alpha:g}: must lie between 0 and 0.5")
    policy = find_policy(options.policy or "calibrated", nearest_project(options))
    judged = at_levels(policy, margin=options.margin, alpha=options.alpha)
    plan = Plan(
        agent=_agent(options),
        design=Design(options.tasks, options.trials, live=options.live, confirm=policy.confirm),
        policy=judged.policy,
        margin=judged.margin,
        rows=options.comparisons,
        seed=options.seed,
    )
    found = power_of(plan)
    print(json.dumps(power_json(plan, found), indent=2) if options.json else power_text(plan, found))
    return 0


def _agent(options: argparse.Namespace) -> "Agent":
    """The named agent profile, or an agent with the given rate and spread."""
    from pytest_trace2evolve.gate.power import AGENTS, agent_of

    given = options.rate is not None, options.spread is not None
    if options.agent_profile is not None and any(given):
        raise ConfigError("give --agent-profile, or --rate and --spread")
    if not any(given):
        return AGENTS[options.agent_profile or "medium"]
    if not all(given):
        raise ConfigError("--rate and --spread go together: give both")
    try:
        return agent_of(options.rate, options.spread)
    except ValueError:
        raise ConfigError(
            f"--rate {options.rate:g} --spread {options.spread:g}: a rate lies between 0 and 1, and a spread "
            "between 0 and sqrt(rate × (1 − rate))"
        ) from None


def score(options: argparse.Namespace) -> int:
    """Rescore recorded runs."""
    from pytest_trace2evolve.report.evidence import score_json, score_tables
    from pytest_trace2evolve.session.evidence_sources import rescore_files

    worlds = worlds_of(nearest_project(options))
    scored = rescore_files(options.files, worlds, options.provider, judge_of(options))
    print(json.dumps(score_json(scored), indent=2) if options.json else score_tables(scored))
    return 0
