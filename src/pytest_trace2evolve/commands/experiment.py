"""`trace2evolve experiment`: ways to spend equal rollouts, compared on the embedded model."""

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from pytest_trace2evolve.commands.common import at_least, nearest_project, progress_bar
from pytest_trace2evolve.option_types import integer


def add(commands: Any) -> None:
    """Declare the command and what it can do."""
    experiment = commands.add_parser("experiment", help="compare ways to spend equal rollouts")
    parts = experiment.add_subparsers(required=True, metavar="ACTION")
    trace = parts.add_parser("trace", help="routed adapters against the rest; goes on where it was")
    trace.add_argument("--capability", nargs="+", metavar="NAME", help="selected ones (default: three)")
    trace.add_argument("--control", metavar="NAME", help="one that was not selected")
    trace.add_argument("--seeds", type=integer, metavar="N", help="seeds of everything (default: 3)")
    trace.add_argument(
        "--rollouts",
        type=integer,
        metavar="B",
        help="training rollouts an arm and seed (default: 1,024 a capability)",
    )
    trace.add_argument("--tasks", type=integer, metavar="N", help="held-out tasks a cell (default: 40)")
    trace.add_argument("--parallel", type=integer, default=2, metavar="P", help="processes (default: 2)")
    trace.add_argument(
        "--out", type=Path, metavar="DIR", help="(default: .trace2evolve/experiments/trace in the project)"
    )
    trace.add_argument("--json", action="store_true", help="the results as JSON")
    trace.set_defaults(command=_trace, goes_on=True)


def _trace(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.serving.run import QUIET_THREADS

    # Before torch is loaded, here and in every process that is started from here.
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET_THREADS.items()})
    from pytest_trace2evolve.evidence.atomic import write_together
    from pytest_trace2evolve.report.experiment import (
        REPORT,
        RESULTS,
        plan_text,
        results_markdown,
        results_text,
    )
    from pytest_trace2evolve.report.experiment_picture import ADAPTERS, CURVE, adapters_svg, curve_svg
    from pytest_trace2evolve.shipped import embedded_model
    from pytest_trace2evolve.workflow.environments.registry import Environments
    from pytest_trace2evolve.workflow.experiments.course import plan_for, run
    from pytest_trace2evolve.workflow.experiments.figures import results_of
    from pytest_trace2evolve.workflow.experiments.plan import CAPABILITIES, CONTROL, plan_in
    from pytest_trace2evolve.workflow.experiments.results import earlier_seeds

    base = embedded_model()
    parallel = at_least("--parallel", options.parallel, 1, 256)
    with contextlib.closing(Environments()) as environments:
        plan = plan_for(
            environments,
            base,
            capabilities=tuple(options.capability or CAPABILITIES),
            control=options.control or CONTROL,
            seeds=None if options.seeds is None else at_least("--seeds", options.seeds, 1, 1000),
            rollouts=None if options.rollouts is None else at_least("--rollouts", options.rollouts, 1),
            tasks=None if options.tasks is None else at_least("--tasks", options.tasks, 2),
        )
    out = _out(options)
    plan = plan_in(plan, out, seeds_given=options.seeds is not None)
    print(plan_text(plan), file=sys.stderr, flush=True)
    with progress_bar("experiment", None) as show:
        seeds = run(plan, base, out, parallel, lambda done, whole: show(done, "", whole))
    results = results_of(seeds, earlier=earlier_seeds(out / RESULTS, plan.seeds))
    record = results.model_dump_json(indent=1) + "\n"
    pictures = {CURVE: curve_svg(results), ADAPTERS: adapters_svg(results)}
    write_together(
        {
            out / RESULTS: record,
            out / REPORT: results_markdown(results),
            **{out / name: picture.decode() for name, picture in pictures.items()},
        }
    )
    print(record if options.json else f"{results_text(results)}\n{out / REPORT}")
    return 0


def _out(options: argparse.Namespace) -> Path:
    project = nearest_project(options)
    root = Path.cwd() if project is None else project.root
    return Path.cwd() / options.out if options.out else root / ".trace2evolve" / "experiments" / "trace"
