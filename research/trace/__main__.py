"""`python -m research.trace`: ways to spend equal rollouts, compared on the embedded model."""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_trace2evolve.cli.common import at_least, nearest_project, progress_bar
from pytest_trace2evolve.cli.main import run as run_command
from pytest_trace2evolve.cli.parser import Parser
from pytest_trace2evolve.utils.option_types import integer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment, or what is left of it; returns the exit status."""
    return run_command(parser_of_experiment(), arguments)


def parser_of_experiment() -> argparse.ArgumentParser:
    """The options of the experiment."""
    parser = Parser(prog="python -m research.trace", description="Compare ways to spend equal rollouts.")
    parser.add_argument("--capability", nargs="+", metavar="NAME", help="selected ones (default: three)")
    parser.add_argument("--control", metavar="NAME", help="one that was not selected")
    parser.add_argument("--seeds", type=integer, metavar="N", help="seeds of everything (default: 3)")
    parser.add_argument(
        "--rollouts",
        type=integer,
        metavar="B",
        help="training rollouts an arm and seed (default: 1,024 a capability)",
    )
    parser.add_argument("--tasks", type=integer, metavar="N", help="held-out tasks a cell (default: 40)")
    parser.add_argument("--parallel", type=integer, default=2, metavar="P", help="processes (default: 2)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="(default: .trace2evolve/experiments/trace in the project)"
    )
    parser.add_argument("--json", action="store_true", help="the results as JSON")
    parser.add_argument("--root", type=Path, metavar="DIR", help="project folder (default: the nearest)")
    parser.set_defaults(command=_trace, resumable=True)
    return parser


def _trace(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.serving.server import QUIET_THREADS

    # Before torch is loaded, here and in every process that is started from here.
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET_THREADS.items()})
    from pytest_trace2evolve.environments.registry import Environments
    from pytest_trace2evolve.utils.files import write_together
    from pytest_trace2evolve.utils.resources import embedded_model
    from research.trace.figures import results_of
    from research.trace.pictures import ADAPTERS, CURVE, adapters_svg, curve_svg
    from research.trace.plan import CAPABILITIES, CONTROL, plan_in
    from research.trace.report import REPORT, RESULTS, plan_text, results_markdown, results_text
    from research.trace.results import earlier_seeds
    from research.trace.run import plan_for, run

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


if __name__ == "__main__":
    sys.exit(main())
