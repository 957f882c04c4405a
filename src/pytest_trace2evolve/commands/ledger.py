"""`trace2evolve ledger`: the story of the splits, and whether it can be trusted."""

import argparse
import json
import sys
from typing import Any

from pytest_trace2evolve.commands.common import project_of


def add(commands: Any) -> None:
    """Declare the command."""
    ledger = commands.add_parser("ledger", help="who looked at which split, and what was judged on it")
    ledger.add_argument("--suite", metavar="NAME", help="only this suite")
    ledger.add_argument("--split", metavar="SPLIT", help="only this split")
    ledger.add_argument("--json", action="store_true", help="print JSON")
    ledger.set_defaults(command=_ledger)


def _ledger(options: argparse.Namespace) -> int:
    from pytest_trace2evolve._sanitize import sanitize_line
    from pytest_trace2evolve.report.ledger import ledger_json, ledger_text
    from pytest_trace2evolve.workflow.judging.ledger import Looks
    from pytest_trace2evolve.workflow.judging.story import stories

    project = project_of(options)
    looks = Looks(project)
    told = stories(project, looks, options.suite, options.split)
    print(json.dumps(ledger_json(looks, told), indent=2) if options.json else ledger_text(looks, told))
    for problem in looks.problems:
        print(f"trace2evolve: {sanitize_line(problem)}", file=sys.stderr)
    return 1 if looks.problems else 0
