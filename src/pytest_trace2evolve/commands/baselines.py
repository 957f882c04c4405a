"""`trace2evolve baselines`: what is saved, how old it is, and whether it still holds."""

import argparse
import json
import sys
from typing import Any

from pytest_trace2evolve.commands.common import project_of


def add(commands: Any) -> None:
    """Declare the command."""
    baselines = commands.add_parser("baselines", help="list saved baselines: age, candidate, lock, lineage")
    baselines.add_argument("--json", action="store_true", help="print JSON")
    baselines.set_defaults(command=_baselines)


def _baselines(options: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    from pytest_trace2evolve.report.baselines import baselines_table
    from pytest_trace2evolve.workflow.recorded.listing import saved_baselines

    project = project_of(options)
    found = saved_baselines(project, datetime.now(UTC))
    if options.json:
        print(json.dumps({"baselines": [one.to_json() for one in found]}, indent=2))
    elif found:
        print(baselines_table(found))
    else:
        print(f"no baselines in {project.baselines_folder}; save one with pytest --t2e-save-baseline NAME")
    damaged = [one.error for one in found if one.error]
    for error in damaged:
        print(f"trace2evolve: {error}", file=sys.stderr)
    return 1 if damaged else 0
