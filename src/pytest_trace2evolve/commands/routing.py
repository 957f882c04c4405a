"""`trace2evolve routing`: how often the router is right, on content that it never saw."""

import argparse
import contextlib
from pathlib import Path
from typing import Any

from pytest_trace2evolve.commands.common import at_least, environments_of, nearest_project, progress_bar
from pytest_trace2evolve.option_types import integer


def add(commands: Any) -> None:
    """Declare the command."""
    routing = commands.add_parser("routing", help="hold the router against oracle labels on held-out content")
    routing.add_argument(
        "capability",
        nargs="*",
        metavar="NAME",
        help="capabilities of the table (default: those of the promoted adapters of this base)",
    )
    routing.add_argument("--base", type=Path, metavar="DIR", help="the model (default: the embedded one)")
    routing.add_argument("--tasks", type=integer, metavar="N", help="openings a label (default: 50)")
    routing.add_argument("--json", action="store_true", help="as JSON")
    routing.set_defaults(command=_routing)


def _routing(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.report.routing import routed_json, routed_text
    from pytest_trace2evolve.serving.folder import read_model
    from pytest_trace2evolve.shipped import embedded_model
    from pytest_trace2evolve.workflow.routing.measure import TASKS, openings_of, route_locally, table_of

    tasks = TASKS if options.tasks is None else at_least("--tasks", options.tasks, 1)
    base = read_model(options.base or embedded_model())
    project = nearest_project(options)
    with contextlib.closing(environments_of(project)) as environments:
        table = table_of(environments, options.capability, project, base)
        openings = openings_of(environments, table, tasks)
        with progress_bar("routing", len(openings)) as show:
            found = route_locally(base, table, openings, told=show)
    names = [row.name for row in table]
    print(routed_json(found, names) if options.json else routed_text(found, base.name), end="")
    return 0
