"""`trace2evolve compare`: the gate on two sets of evidence.

`trace2evolve calibrate`: how often each policy errs on a suite's own trials.

`trace2evolve power`: what so many tasks and trials would show.

`trace2evolve score`: recorded runs scored again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from pytest_trace2evolve.cli.common import (
    at_least,
    judge_of,
    judge_options,
    nearest_project,
    project_of,
    refuse_picture,
    share,
    worlds_of,
)
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.utils.option_types import MOST_SEED, finite, integer


def add_compare(commands: Any) -> None:
    """Declare the command."""
    compare = commands.add_parser("compare", help="gate two sets of evidence")
    compare.add_argument("sides", nargs="*", type=Path, metavar="BASELINE CANDIDATE")
    compare.add_argument(
        "--baseline", action="append", type=Path, metavar="FILE", help="for several files a side"
    )
    compare.add_argument(
        "--candidate", action="append", type=Path, metavar="FILE", help="for several files a side"
    )
    compare.add_argument("--policy", help="gate policy (default: calibrated)")
    compare.add_argument(
        "--goal",
        choices=("improve", "hold", "no-regression"),
        default="improve",
        help="improve (default), hold (not worse) or no-regression (discard only on shown harm)",
    )
    compare.add_argument("--suite", metavar="NAME", help="compare only this suite's tasks, as locked")
    compare.add_argument("--split", metavar="SPLIT", help="compare only this split of the suite")
    compare.add_argument("--provider", help="the world's provider (default: inspect_evals, or the suite's)")
    compare.add_argument("--json", action="store_true", help="print JSON")
    judge_options(compare)
    compare.set_defaults(command=_compare)


def _compare(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.records.verdict import Goal
    from pytest_trace2evolve.report.run import comparison_text
    from pytest_trace2evolve.session.compare import compare
    from pytest_trace2evolve.session.finish import EXIT_STATUS

    baseline, candidate = _sides(options)
    if options.split and not options.suite:
        raise ConfigError("--split names a split of a suite: give --suite too")
    project = project_of(options) if options.suite else nearest_project(options)
    comparison = compare(
        baseline,
        candidate,
        worlds_of(project),
        policy=options.policy,
        goal=Goal(options.goal),
        provider=options.provider,
        project=project,
        suite=options.suite,
        split=options.split,
        judge=judge_of(options),
    )
    if options.json:
        print(json.dumps(comparison.to_json(), indent=2))
    else:
        print(comparison_text(comparison))
    assert comparison.verdict.decision is not None
    return EXIT_STATUS[comparison.verdict.decision]


def _sides(options: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    """The paths of both sides: two positional ones, or as many as wanted by option."""
    positional = list(options.sides)
    baseline, candidate = list(options.baseline or ()), list(options.candidate or ())
    if not baseline and positional:
        baseline = [positional.pop(0)]
    if not candidate and positional:
        candidate = [positional.pop(0)]
    if not baseline or not candidate or positional:
        raise ConfigError("compare takes BASELINE and CANDIDATE, or --baseline FILE… and --candidate FILE…")
    return baseline, candidate


def add_calibrate(commands: Any) -> None:
    """Declare the command."""
    calibrate = commands.add_parser("calibrate", help="how often each policy errs on a suite's own trials")
    calibrate.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="trials of one agent")
    calibrate.add_argument(
        "--policy",
        action="append",
        metavar="P",
        help="a policy (default: all there are)",
    )
    calibrate.add_argument(
        "--trials", type=integer, metavar="K", help="trials a side (default: as many as most tasks have)"
    )
    calibrate.add_argument("--margin", type=finite, metavar="M", help="margin of the reward under hold")
    calibrate.add_argument(
        "--effect",
        action="append",
        type=finite,
        metavar="E",
        help="a planted effect (default: .05, .10)",
    )
    calibrate.add_argument("--resamples", type=integer, default=2000, metavar="R", help="(default: 2000)")
    calibrate.add_argument("--seed", type=integer, default=0, help="(default: 0)")
    calibrate.add_argument("--live", action="store_true", help="simulate fresh trials of broken tasks too")
    calibrate.add_argument("--provider", help="the world's provider (default: inspect_evals)")
    calibrate.add_argument("--json", action="store_true", help="print JSON")
    calibrate.add_argument("--picture", type=Path, metavar="FILE", help="write a picture (.svg or .png)")
    judge_options(calibrate)
    calibrate.set_defaults(command=_calibrate)


def _calibrate(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.report.calibration import calibration_json, calibration_text
    from pytest_trace2evolve.session.calibrate import Wanted, calibrate_files

    wanted = Wanted(
        policies=tuple(options.policy or ()),
        trials=None if options.trials is None else at_least("--trials", options.trials, 1, 10000),
        margin=None if options.margin is None else share("--margin", options.margin),
        effects=tuple(share("--effect", effect) for effect in options.effect or (0.05, 0.10)),
        resamples=at_least("--resamples", options.resamples, 1, 100000),
        seed=at_least("--seed", options.seed, 0, MOST_SEED),
        live=options.live,
    )
    if options.picture is not None:
        refuse_picture(options.picture)
    project = nearest_project(options)
    findings = calibrate_files(
        options.results,
        worlds_of(project),
        wanted,
        project=project,
        provider=options.provider,
        judge=judge_of(options),
    )
    if options.picture is not None:
        from pytest_trace2evolve.report.plots import calibration_picture

        file_format = options.picture.suffix[1:].lower()
        options.picture.write_bytes(
            calibration_picture(findings.calibration, title=findings.name, file_format=file_format)
        )
    print(json.dumps(calibration_json(findings), indent=2) if options.json else calibration_text(findings))
    return 0


KINDS = ("reliable", "medium", "noisy")


def add_power(commands: Any) -> None:
    """Declare the command."""
    power = commands.add_parser("power", help="what so many tasks and trials would show, by simulation")
    power.add_argument("--tasks", type=integer, required=True, metavar="N", help="tasks compared")
    power.add_argument(
        "--trials", type=integer, required=True, metavar="K", help="trials of each task a side"
    )
    power.add_argument("--agent", choices=KINDS, help="a kind of agent (default: medium)")
    power.add_argument("--rate", type=finite, metavar="P", help="the agent's mean chance of success")
    power.add_argument("--spread", type=finite, metavar="S", help="its standard deviation over tasks")
    power.add_argument("--policy", metavar="P", help="gate policy (default: calibrated)")
    power.add_argument("--margin", type=finite, metavar="M", help="margin of the reward under hold")
    power.add_argument("--alpha", type=finite, metavar="A", help="level of the policy")
    power.add_argument("--live", action="store_true", help="broken tasks get fresh trials")
    power.add_argument(
        "--rows", type=integer, default=2000, metavar="R", help="comparisons a row (default: 2000)"
    )
    power.add_argument("--seed", type=integer, default=0, metavar="N", help="(default: 0)")
    power.add_argument("--json", action="store_true", help="print JSON")
    power.set_defaults(command=_power)


def _power(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.gate.power import Plan, power_of
    from pytest_trace2evolve.gate.simulate import Design
    from pytest_trace2evolve.project.policies import find_policy
    from pytest_trace2evolve.report.power import power_json, power_text
    from pytest_trace2evolve.session.calibrate import at_levels

    tasks, trials = (
        at_least("--tasks", options.tasks, 2, 100000),
        at_least("--trials", options.trials, 1, 10000),
    )
    margin = None if options.margin is None else share("--margin", options.margin)
    if options.alpha is not None and not 0 < options.alpha < 0.5:
        raise ConfigError(f"--alpha {options.alpha:g}: must lie between 0 and 0.5")
    named = find_policy(options.policy or "calibrated", nearest_project(options))
    judged = at_levels(named, margin=margin, alpha=options.alpha)
    plan = Plan(
        agent=_agent(options),
        design=Design(tasks, trials, live=options.live, confirm=named.confirm),
        policy=judged.policy,
        margin=judged.margin,
        rows=at_least("--rows", options.rows, 100, 100000),
        seed=at_least("--seed", options.seed, 0, MOST_SEED),
    )
    found = power_of(plan)
    print(json.dumps(power_json(plan, found), indent=2) if options.json else power_text(plan, found))
    return 0


def _agent(options: argparse.Namespace) -> Any:
    """The kind of agent that was named, or one of a rate and a spread."""
    from pytest_trace2evolve.gate.power import agent_of
    from pytest_trace2evolve.gate.simulate import AGENTS

    given = options.rate is not None, options.spread is not None
    if options.agent is not None and any(given):
        raise ConfigError("give --agent, or --rate and --spread")
    if not any(given):
        return AGENTS[options.agent or "medium"]
    if not all(given):
        raise ConfigError("--rate and --spread go together: give both")
    try:
        return agent_of(options.rate, options.spread)
    except ValueError:
        raise ConfigError(
            f"--rate {options.rate:g} --spread {options.spread:g}: a rate lies between 0 and 1, and a spread "
            "between 0 and sqrt(rate × (1 − rate))"
        ) from None


def add_score(commands: Any) -> None:
    """Declare the command."""
    score = commands.add_parser("score", help="score recorded runs again by tau2's rules")
    score.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results files or folders")
    score.add_argument("--json", action="store_true", help="print JSON")
    score.add_argument("--provider", help="the world's provider (default: inspect_evals)")
    judge_options(score)
    score.set_defaults(command=_score)


def _score(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.report.score import score_json, score_tables
    from pytest_trace2evolve.session.replays import rescore_files

    worlds = worlds_of(nearest_project(options))
    scored = rescore_files(options.files, worlds, options.provider, judge_of(options))
    print(json.dumps(score_json(scored), indent=2) if options.json else score_tables(scored))
    return 0
