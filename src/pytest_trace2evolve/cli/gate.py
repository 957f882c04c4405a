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
    """Compare two sets of evidence, and return the exit status of the verdict."""
    from pytest_trace2evolve.records.verdict import EXIT_STATUS, Goal
    from pytest_trace2evolve.report.verdict import comparison_text
    from pytest_trace2evolve.session.compare import compare

    baseline, candidate = _parse_sides(options)
    if options.split and not options.suite:
        raise ConfigError("--split needs --suite; name the suite of the split")
    project = project_of(options) if options.suite else nearest_project(options)
    comparison = compare(
        [_baseline_path(path, project) for path in baseline],
        [_baseline_path(path, project) for path in candidate],
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
        else comparison_text(comparison, is_verbose=options.verbose)
    )
    assert comparison.verdict.decision is not None
    return EXIT_STATUS[comparison.verdict.decision]


def _baseline_path(path: Path, project: "Project | None") -> Path:
    """Return an existing path unchanged; otherwise, return the saved baseline of this name, if any."""
    if project is None or path.exists():
        return path
    stored_path = project.baselines_folder / f"{path}.json"
    return stored_path if stored_path.is_file() else path


def _parse_sides(options: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    """Return the paths of the baseline and the candidate, from positional arguments or from options."""
    positional_paths = list(options.sides)
    baseline, candidate = list(options.baseline_results or ()), list(options.candidate_results or ())
    if not baseline and positional_paths:
        baseline = [positional_paths.pop(0)]
    if not candidate and positional_paths:
        candidate = [positional_paths.pop(0)]
    if not baseline or not candidate or positional_paths:
        raise ConfigError(
            "expected BASELINE and CANDIDATE, or --baseline-results FILE… and --candidate-results FILE…"
        )
    return baseline, candidate


def calibrate(options: argparse.Namespace) -> int:
    """Print the error rates of each policy on recorded trials."""
    from pytest_trace2evolve.report.calibration import calibration_json, calibration_picture, calibration_text
    from pytest_trace2evolve.session.calibrate import CalibrationSettings, calibrate_files

    settings = CalibrationSettings(
        policies=tuple(options.policy or ()),
        trials=options.trials,
        margin=options.margin,
        effects=tuple(options.effect or (0.05, 0.10)),
        resamples=options.resamples,
        seed=options.seed,
        is_live=options.live,
    )
    check_plot(options.plot)
    project = nearest_project(options)
    calibration = calibrate_files(
        options.results,
        worlds_of(project),
        settings,
        project=project,
        provider=options.provider,
        judge=judge_of(options),
    )
    if options.plot is not None:
        file_format = options.plot.suffix[1:].lower()
        options.plot.write_bytes(calibration_picture(calibration, file_format=file_format))
    print(
        json.dumps(calibration_json(calibration), indent=2) if options.json else calibration_text(calibration)
    )
    return 0


def show_power(options: argparse.Namespace) -> int:
    """Print the changes that given numbers of tasks and trials can detect."""
    from pytest_trace2evolve.gate.power import Design, Plan, simulate_power
    from pytest_trace2evolve.project.policies import find_policy
    from pytest_trace2evolve.report.calibration import power_json, power_text
    from pytest_trace2evolve.session.calibrate import policy_to_calibrate

    if options.alpha is not None and not 0 < options.alpha < 0.5:
        raise ConfigError(f"--alpha {options.alpha:g}: must be between 0 and 0.5")
    policy = find_policy(options.policy or "calibrated", nearest_project(options))
    adjusted_policy = policy_to_calibrate(policy, margin=options.margin, alpha=options.alpha)
    plan = Plan(
        agent=_parse_agent(options),
        design=Design(
            options.tasks,
            options.trials,
            is_live=options.live,
            max_fresh_simulations=policy.max_fresh_simulations,
        ),
        policy=adjusted_policy.policy,
        margin=adjusted_policy.margin,
        rows=options.comparisons,
        seed=options.seed,
    )
    result = simulate_power(plan)
    print(json.dumps(power_json(plan, result), indent=2) if options.json else power_text(plan, result))
    return 0


def _parse_agent(options: argparse.Namespace) -> "Agent":
    """Return the agent that `--agent-profile`, or `--rate` and `--spread`, describe."""
    from pytest_trace2evolve.gate.power import AGENTS, fit_agent

    is_given = options.rate is not None, options.spread is not None
    if options.agent_profile is not None and any(is_given):
        raise ConfigError(
            "--agent-profile cannot be combined with --rate and --spread; give one or the other"
        )
    if not any(is_given):
        return AGENTS[options.agent_profile or "medium"]
    if not all(is_given):
        raise ConfigError("--rate and --spread need each other; give both")
    try:
        return fit_agent(options.rate, options.spread)
    except ValueError:
        raise ConfigError(
            f"--rate {options.rate:g} --spread {options.spread:g}: the rate must be between 0 and 1, and "
            "the spread between 0 and sqrt(rate × (1 − rate))"
        ) from None


def judge_agreement(options: argparse.Namespace) -> int:
    """Measure and record how well a judge agrees with hand labels."""
    from pytest_trace2evolve.report.agreement import agreement_json, agreement_text
    from pytest_trace2evolve.session.agreement import measure_agreements

    judge = judge_of(options)
    assert judge is not None  # the option is required
    results = measure_agreements(options.labels, project_of(options), judge)
    print(json.dumps(agreement_json(results), indent=2) if options.json else agreement_text(results))
    return 0


def score(options: argparse.Namespace) -> int:
    """Rescore recorded runs, and print the rewards and rates."""
    from pytest_trace2evolve.report.evidence import score_json, score_tables
    from pytest_trace2evolve.session.evidence_sources import rescore_files
    from pytest_trace2evolve.session.trace_checks import plan_trace_checks

    project, judge = nearest_project(options), judge_of(options)
    trace_checks = plan_trace_checks(
        {} if project is None else project.extensions.trace_checks, project, judge
    )
    scored_files = rescore_files(options.files, worlds_of(project), options.provider, judge, trace_checks)
    print(json.dumps(score_json(scored_files), indent=2) if options.json else score_tables(scored_files))
    return 0
