"""`trace2evolve show`: opens a trace, and records that it was looked at."""

import argparse
import sys
from pathlib import Path
from typing import Any

from pytest_trace2evolve.commands.common import project_of
from pytest_trace2evolve.option_types import integer


def add(commands: Any) -> None:
    """Declare the command."""
    show = commands.add_parser("show", help="open a trace; a look at a sealed split is recorded")
    show.add_argument(
        "run", metavar="RUN", help="a run's id or how it begins, a run folder or a results file"
    )
    show.add_argument("task", metavar="TASK", help="the task's id")
    show.add_argument("--trial", type=integer, metavar="N", help="which trial (default: the first)")
    show.add_argument("--suite", default="", metavar="NAME", help="which suite of a run over several")
    show.add_argument("--full", action="store_true", help="cut nothing")
    show.set_defaults(command=_show)


def _show(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.report.trace import trace_text
    from pytest_trace2evolve.workflow.project import find_root
    from pytest_trace2evolve.workflow.recorded.baselines import is_path
    from pytest_trace2evolve.workflow.recorded.show import open_trace

    here = Path.cwd()
    if options.root is None:
        # A run belongs to the project that it lies in, wherever its reader stands.
        place = (here / options.run).resolve() if is_path(here / options.run) else here
        options.root = find_root(place) or find_root(here)
    opened = open_trace(
        options.run,
        options.task,
        project=project_of(options) if options.root is not None else None,
        here=here,
        trial=options.trial,
        suite=options.suite,
    )
    text = trace_text(opened, full=options.full)
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
    return 0
