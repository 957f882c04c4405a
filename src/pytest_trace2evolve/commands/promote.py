"""`trace2evolve promote`: a promoted candidate becomes the baseline, as one change to commit."""

import argparse
from pathlib import Path
from typing import Any

from pytest_trace2evolve.commands.common import project_of


def add(commands: Any) -> None:
    """Declare the command."""
    promote = commands.add_parser("promote", help="make a promoted run the baseline of its suites")
    promote.add_argument("run", metavar="RUN", help="a run's folder, or the beginning of its id")
    promote.add_argument("--name", help="name of the baseline (default: the candidate's id)")
    promote.add_argument(
        "--suite",
        action="append",
        metavar="NAME",
        help="only this suite (repeatable; default: all judged ones)",
    )
    promote.add_argument("--dry-run", action="store_true", help="check and print; write nothing")
    promote.set_defaults(command=_promote)


def _promote(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.report.promote import promotion_text
    from pytest_trace2evolve.workflow.judging.promote import promote

    project, here = project_of(options), Path.cwd()
    done = promote(
        project,
        options.run,
        name=options.name,
        suites=options.suite or (),
        here=here,
        dry_run=options.dry_run,
    )
    print(promotion_text(done, project, here, dry_run=options.dry_run))
    return 0
