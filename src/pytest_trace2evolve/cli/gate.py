"""The commands that gate a change, and those that evaluate evidence given as files, such as compare."""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.cli.common import (
    judge_of,
    nearest_project,
    project_of,
    worlds_of,
)
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.utils.crashes import EXIT_CRASH
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.gate.agents import Agent
    from pytest_trace2evolve.gate.power import Plan
    from pytest_trace2evolve.project.project import Project
    from pytest_trace2evolve.records.verdict import Estimand


def gate(options: argparse.Namespace) -> int:
    """Gate everything that differs from a commit, and return the exit status of the worst verdict."""
    from pytest_trace2evolve.session.gate_plan import plan_gate

    project = project_of(options)
    stamp = f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}"
    folder = Path.cwd() / (options.output or project.root / ".trace2evolve" / "gate" / stamp)
    plan = plan_gate(project, options.against, options.arguments)
    for note in plan.notes:
        print(f"note: {sanitize_line(note)}")
    if not plan.commands:
        print(f"nothing that a run depends on differs from commit {plan.commit[:12]}")
    for candidate, command in plan.commands.items():
        print(f"{candidate} differs from commit {plan.commit[:12]}: {', '.join(plan.reasons[candidate])}")
        print(f"  {shlex.join(command)}")
    for candidate, command in plan.new_tasks.items():
        print(f"{candidate} on the new and changed tasks, which decide nothing")
        print(f"  {shlex.join(command)}")
    sys.stdout.flush()
    if options.dry_run:
        return 0
    if plan.commands or options.output:
        folder.mkdir(parents=True, exist_ok=True)
    statuses = {
        candidate: _gate_candidate(
            candidate, command, project.root, folder / candidate, keeps_run=options.output is None
        )
        for candidate, command in plan.commands.items()
    }
    for candidate, command in plan.new_tasks.items():
        name = f"{candidate}-new-tasks"
        (folder / name).mkdir(exist_ok=True)
        status = _run_session(command, project.root, folder / name, keeps_run=options.output is None)
        if status not in (0, 1):  # failed tasks are no trouble
            statuses[name] = status
    for candidate, status in statuses.items() if len(statuses) > 1 else ():
        print(f"{candidate}: exit status {status}")
    return max(statuses.values(), key=_rank, default=0)


def _rank(status: int) -> int:
    """Return the rank of an exit status, the worst last. No verdict is worse than any verdict."""
    return (0, 10, 1).index(status) if status in (0, 10, 1) else 3


def _gate_candidate(
    candidate: str, command: Sequence[str], root: Path, folder: Path, *, keeps_run: bool
) -> int:
    """Run the session of a candidate, write its results to a folder, and return its exit status.

    If `keeps_run` is set, the run itself stays in its usual folder.
    """
    from pytest_trace2evolve.records.verdict import EXIT_STATUS, Decision, RunSummary
    from pytest_trace2evolve.report.summary import read_summary, write_summary

    folder.mkdir(exist_ok=True)
    summary_path = folder / "summary.json"
    summary_path.unlink(missing_ok=True)
    summaries = [f"--t2e-summary={path}" for path in (summary_path, folder / "summary.md")]
    status = _run_session([*command, *summaries], root, folder, keeps_run=keeps_run)
    if not summary_path.exists():
        status = status if status > 1 else EXIT_CRASH
        trouble = f"the run ended before its verdict (exit status {status}): see its output"
        write_summary(summary_path, RunSummary(candidate=candidate, trouble=trouble))
    elif status <= 1 and read_summary(summary_path).decision is None:
        status = EXIT_STATUS[Decision.INCONCLUSIVE]
    return status


def _run_session(command: Sequence[str], root: Path, folder: Path, *, keeps_run: bool) -> int:
    """Run a session of pytest, write its JUnit file and its run to a folder, and return its exit status."""
    outputs = [f"--junitxml={folder / 'junit.xml'}"]
    outputs += [] if keeps_run else [f"--t2e-run-folder={folder / 'run'}"]
    return run_session([*command, *outputs], root)


def run_session(command: Sequence[str], root: Path) -> int:
    """Run a session of pytest in a folder, and return its exit status."""
    with subprocess.Popen([sys.executable, "-m", *command], cwd=root) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the session is interrupted too, and stores what it has measured
            process.wait()
            raise


def compare(options: argparse.Namespace) -> int:
    """Compare two sets of evidence, and return the exit status of the verdict."""
    from pytest_trace2evolve.records.verdict import EXIT_STATUS, Goal
    from pytest_trace2evolve.report.verdict import comparison_summary, comparison_text
    from pytest_trace2evolve.session.compare import compare

    if options.split and not options.suite:
        raise ConfigError("--split needs --suite; name the suite of the split")
    project = project_of(options) if options.suite else nearest_project(options)
    baseline_paths, candidate_paths = (
        _paths_of(_names_of(side), options, project) for side in (options.baseline, options.candidate)
    )
    comparison = compare(
        baseline_paths,
        candidate_paths,
        policy=options.policy,
        goal=Goal(options.goal),
        provider=options.provider,
        project=project,
        suite=options.suite,
        split=options.split,
        judge=judge_of(options),
        keeps_evidence=options.report is not None,
    )
    if options.report is not None:
        from pytest_trace2evolve.report.page import write_page
        from pytest_trace2evolve.session.page_data import compared_facts

        facts = compared_facts(comparison, project, worlds_of(project))
        write_page(options.report, comparison_summary(comparison), facts)
    print(
        json.dumps(comparison.to_json(), indent=2)
        if options.json
        else comparison_text(comparison, is_verbose=options.verbose)
    )
    assert comparison.verdict.decision is not None
    return EXIT_STATUS[comparison.verdict.decision]


def _paths_of(names: Iterable[str], options: argparse.Namespace, project: "Project | None") -> list[Path]:
    from pytest_trace2evolve.session.evidence_sources import find_evidence
    from pytest_trace2evolve.session.figures import forget_figures

    if options.rescore:
        forget_figures()
    return [find_evidence(name, project, Path.cwd(), getattr(options, "suite", None)) for name in names]


def _names_of(side: str) -> list[str]:
    """Return the names of a side of a comparison, which several files form if commas separate them."""
    return [side] if Path(side).exists() else side.split(",")


def calibrate(options: argparse.Namespace) -> int:
    """Print the error rates of each policy on recorded trials."""
    from pytest_trace2evolve.report.calibration import calibration_json, calibration_text
    from pytest_trace2evolve.session.calibrate import CalibrationSettings, calibrate_files

    settings = CalibrationSettings(
        policies=tuple(options.policy or ()),
        trials=options.trials,
        margin=options.margin,
        resamples=options.resamples,
        is_live=options.live,
    )
    project = nearest_project(options)
    calibration = calibrate_files(
        _paths_of(options.results, options, project),
        worlds_of(project),
        settings,
        project=project,
        provider=options.provider,
        judge=judge_of(options),
    )
    print(
        json.dumps(calibration_json(calibration), indent=2) if options.json else calibration_text(calibration)
    )
    return 0


def show_power(options: argparse.Namespace) -> int:
    """Print the changes that given numbers of tasks and trials can detect."""
    from pytest_trace2evolve.gate.agents import Design
    from pytest_trace2evolve.gate.power import Plan, simulate_power
    from pytest_trace2evolve.project.policies import find_policy
    from pytest_trace2evolve.report.calibration import power_json, power_text
    from pytest_trace2evolve.session.calibrate import policy_to_calibrate

    project = project_of(options) if options.suite else nearest_project(options)
    policy = find_policy(options.policy or "calibrated", project).for_suite(_estimand(options, project))
    adjusted_policy = policy_to_calibrate(policy, margin=options.margin)
    limit = policy.max_fresh_simulations
    plan = Plan(
        agent=_parse_agent(options.agent_profile),
        design=Design(options.tasks, options.trials, is_live=options.live, max_fresh_simulations=limit),
        policy=adjusted_policy.policy,
        margin=adjusted_policy.margin,
        rows=options.resamples,
    )
    if options.baseline_trials is not None:
        return _show_stages(options, plan)
    result = simulate_power(plan)
    print(json.dumps(power_json(plan, result), indent=2) if options.json else power_text(plan, result))
    return 0


def _show_stages(options: argparse.Namespace, plan: "Plan") -> int:
    """Print what runs in stages against a saved baseline cost and show; 2 if they cannot decide."""
    from pytest_trace2evolve.gate.calibrated import Calibrated
    from pytest_trace2evolve.gate.power import preflight
    from pytest_trace2evolve.report.calibration import stages_text
    from pytest_trace2evolve.utils.option_types import DEFAULT_STAGES

    if not isinstance(plan.policy, Calibrated):
        raise ConfigError("--baseline-trials needs a policy based on calibrated, which states chances")
    design = replace(plan.design, baseline_trials=options.baseline_trials, is_live=True)
    schedule = [*(trials for trials in DEFAULT_STAGES if trials < design.trials), design.trials]
    result = preflight(plan.agent, design, plan.policy, schedule, rows=min(plan.rows, 1000))
    print(json.dumps(asdict(result), indent=2) if options.json else stages_text(result).rstrip())
    return 0 if result.smallest_gain is not None else 2


def _estimand(options: argparse.Namespace, project: "Project | None") -> "Estimand":
    """Return the estimand of the suite that the options name, or of all suites of the project."""
    from pytest_trace2evolve.records.verdict import Estimand

    names = () if project is None else [options.suite] if options.suite else project.suite_names
    estimands = {name: project.suite(name).estimand_of(options.trials) for name in names if project}
    if len(set(estimands.values())) > 1:
        listed = ", ".join(f"{name} {estimand.value}" for name, estimand in estimands.items())
        raise ConfigError(f"the suites have different estimands ({listed}); name one with --suite")
    return next(iter(estimands.values()), Estimand.TASKS)


def _parse_agent(profile: str | None) -> "Agent":
    """Return the agent that `--agent-profile` names, or describes by its mean rate and the rates' spread."""
    from pytest_trace2evolve.gate.agents import AGENTS, fit_agent

    if profile is None or profile in AGENTS:
        return AGENTS[profile or "medium"]
    try:
        rate, spread = map(float, profile.split(","))
        return fit_agent(rate, spread)
    except ValueError:
        raise ConfigError(
            f"--agent-profile {profile}: expected {', '.join(AGENTS)} or RATE,SPREAD, with the rate between "
            "0 and 1, and the spread between 0 and sqrt(rate × (1 − rate))"
        ) from None


def judge_agreement(options: argparse.Namespace) -> int:
    """Measure and record how well a judge agrees with hand labels."""
    from pytest_trace2evolve.report.calibration import agreement_json, agreement_text
    from pytest_trace2evolve.session.agreement import measure_agreements

    judge = judge_of(options)
    assert judge is not None  # the option is required
    results = measure_agreements(options.labels, project_of(options), judge)
    print(json.dumps(agreement_json(results), indent=2) if options.json else agreement_text(results))
    return 0


def score(options: argparse.Namespace) -> int:
    """Rescore recorded runs, and print the rewards and rates."""
    from pytest_trace2evolve.report.evidence import score_json, score_tables
    from pytest_trace2evolve.session.evidence_sources import find_evidence, rescore_files
    from pytest_trace2evolve.session.trace_checks import plan_trace_checks

    project, judge = nearest_project(options), judge_of(options)
    trace_checks = plan_trace_checks(
        {} if project is None else project.extensions.trace_checks, project, judge
    )
    paths = [find_evidence(name, project, Path.cwd()) for name in options.files]
    scored_files = rescore_files(paths, worlds_of(project), options.provider, judge, trace_checks)
    print(json.dumps(score_json(scored_files), indent=2) if options.json else score_tables(scored_files))
    return 0
