"""`python -m research.trace`: ways to spend equal rollouts, compared on the embedded model."""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from research.common import REPOSITORY, progress_bar, run

DEFAULT_OUT = REPOSITORY / ".trace2evolve" / "experiments" / "trace"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment, or what is left of it; returns the exit status."""
    return run(make_parser(), arguments)


def make_parser() -> argparse.ArgumentParser:
    """The options of the experiment."""
    parser = argparse.ArgumentParser(
        prog="python -m research.trace", description="Compare ways to spend equal rollouts."
    )
    parser.add_argument("--capability", nargs="+", metavar="NAME", help="selected ones (default: three)")
    parser.add_argument("--control", metavar="NAME", help="one that was not selected")
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds of everything (default: 3)")
    parser.add_argument(
        "--rollouts",
        type=int,
        metavar="B",
        help="training rollouts an arm and seed (default: 1,024 a capability)",
    )
    parser.add_argument("--tasks", type=int, metavar="N", help="held-out tasks a cell (default: 40)")
    parser.add_argument("--parallel", type=int, default=2, metavar="P", help="processes (default: 2)")
    parser.add_argument(
        "--out",
        type=Path,
        default=DEFAULT_OUT,
        metavar="DIR",
        help="(default: .trace2evolve/experiments/trace in the repository)",
    )
    parser.add_argument("--json", action="store_true", help="the results as JSON")
    parser.set_defaults(command=_run)
    return parser


def _run(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.serving.server import PASSIVE_THREAD_VARIABLES

    # Before torch is loaded, here and in every process that is started from here.
    os.environ.update({name: os.environ.get(name, value) for name, value in PASSIVE_THREAD_VARIABLES.items()})
    from pytest_trace2evolve.environments.registry import Environments
    from pytest_trace2evolve.training.recipe import check_count
    from pytest_trace2evolve.utils.files import write_together
    from pytest_trace2evolve.utils.resources import embedded_model
    from research.trace import report
    from research.trace.plan import CAPABILITIES, CONTROL, resumed_plan
    from research.trace.results import earlier_seeds, results_of
    from research.trace.run import plan_for
    from research.trace.run import run as run_experiment

    base, out = embedded_model(), Path.cwd() / options.out
    check_count("--parallel", options.parallel, 1, 256)
    check_count("--seeds", options.seeds, 1, 1000)
    check_count("--rollouts", options.rollouts, 1)
    check_count("--tasks", options.tasks, 2)
    with contextlib.closing(Environments()) as environments:
        plan = plan_for(
            environments,
            base,
            capabilities=tuple(options.capability or CAPABILITIES),
            control=options.control or CONTROL,
            seeds=options.seeds,
            rollouts=options.rollouts,
            tasks=options.tasks,
        )
    plan = resumed_plan(plan, out, seeds_given=options.seeds is not None)
    print(report.plan_text(plan), file=sys.stderr, flush=True)
    with progress_bar("experiment") as show:
        seeds = run_experiment(plan, base, out, options.parallel, lambda done, total: show(done, total, ""))
    results = results_of(seeds, earlier=earlier_seeds(out / report.RESULTS, plan.seeds))
    record = results.model_dump_json(indent=1) + "\n"
    write_together(
        {
            out / report.RESULTS: record,
            out / report.REPORT: report.results_markdown(results),
            out / report.CURVE: report.curve_svg(results).decode(),
            out / report.ADAPTERS: report.adapters_svg(results).decode(),
        }
    )
    print(record if options.json else f"{report.results_text(results)}\n{out / report.REPORT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
