"""`trace2evolve evolve`: from the failures of a run to adapters that went through the gate."""

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

from pytest_trace2evolve.commands.common import environments_of, project_of
from pytest_trace2evolve.option_types import finite, integer


def add(commands: Any) -> None:
    """Declare the command."""
    evolve = commands.add_parser(
        "evolve", help="train adapters for what failing tests lack, and gate them; goes on where it was"
    )
    evolve.add_argument("--candidate", metavar="ID", help="whose failures (default: that of the run, or v0)")
    evolve.add_argument("--from-run", metavar="RUN", help="learn from this run (default: a new one)")
    evolve.add_argument("--base", type=Path, metavar="DIR", help="the base model (default: the embedded one)")
    evolve.add_argument("--most", type=integer, default=3, metavar="N", help="adapters at most (default: 3)")
    evolve.add_argument("--preset", default="pocket", help="pocket or gpu (default: pocket)")
    evolve.add_argument("--config", type=Path, metavar="FILE", help="TOML with values of the recipe")
    evolve.add_argument("--steps", type=integer, metavar="N", help="steps of each training")
    evolve.add_argument("--seed", type=integer, metavar="N", help="of the trainings (default: 1)")
    evolve.add_argument(
        "--heldout", type=integer, metavar="N", default=60, help="held-out scenarios (default: 60)"
    )
    evolve.add_argument(
        "--heldout-rollouts", type=integer, metavar="K", default=4, help="of each scenario (default: 4)"
    )
    evolve.add_argument(
        "--parallel", type=integer, metavar="P", help="trainings at once (default: cores + 1)"
    )
    evolve.add_argument("--max-rollouts", type=integer, metavar="N", help="refuse a plan that needs more")
    evolve.add_argument("--max-minutes", type=finite, metavar="M", help="begin no stage after so many")
    evolve.add_argument("--dry-run", action="store_true", help="only say what it would take")
    evolve.add_argument("--json", action="store_true", help="the outcome as JSON")
    evolve.add_argument(
        "session", nargs="*", metavar="-- OPTION", help="of each pytest session, as in -- -n 2"
    )
    evolve.set_defaults(command=_evolve, goes_on=True)


def _evolve(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.report.evolving import evolved_text
    from pytest_trace2evolve.workflow.evolving.asking import read_order
    from pytest_trace2evolve.workflow.evolving.order import budget_of, budget_text, refuse_impossible
    from pytest_trace2evolve.workflow.evolving.session import fresh_of, simulations_of
    from pytest_trace2evolve.workflow.evolving.stages import Evolving

    project = project_of(options)
    with contextlib.closing(environments_of(project)) as environments:
        order = read_order(options, project, environments, Path.cwd())
        session = order.session
        budget = budget_of(
            order, environments.names, simulations_of(project, session), fresh_of(project, session)
        )
        print(budget_text(order, budget), file=sys.stderr, flush=True)
        refuse_impossible(order, budget)
        if options.dry_run:
            return 0
        state = Evolving(order, project, environments, _told).run()
    print(
        state.model_dump_json(indent=1)
        if options.json
        else evolved_text(state, project.adapters).rstrip("\n")
    )
    return 0


def _told(stage: Any, text: str) -> None:
    from pytest_trace2evolve._sanitize import sanitize_line

    print(f"{stage.value}: {sanitize_line(text)[:160]}", file=sys.stderr, flush=True)
