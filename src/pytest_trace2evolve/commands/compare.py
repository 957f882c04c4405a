"""`trace2evolve compare`: the gate on two sets of evidence."""

import argparse
import json
from pathlib import Path
from typing import Any

from pytest_trace2evolve.commands.common import (
    judge_of,
    judge_options,
    nearest_project,
    project_of,
    worlds_of,
)
from pytest_trace2evolve.errors import ConfigError


def add(commands: Any) -> None:
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
    from pytest_trace2evolve.report.compare import comparison_text
    from pytest_trace2evolve.workflow.judging.finish import EXIT_STATUS
    from pytest_trace2evolve.workflow.recorded.compare import compare

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
