"""`trace2evolve train`: an adapter for one capability or several, by GRPO in their environments."""

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.commands.common import environments_of, nearest_project, progress_bar
from pytest_trace2evolve.option_types import integer

if TYPE_CHECKING:
    from pytest_trace2evolve.workflow.environments.registry import Environments
    from pytest_trace2evolve.workflow.training.course import Order


def add(commands: Any) -> None:
    """Declare the command."""
    train = commands.add_parser("train", help="train an adapter for a capability; goes on where it was")
    train.add_argument(
        "--capability", nargs="+", metavar="NAME", help="what is trained; several: one adapter"
    )
    train.add_argument(
        "--from-run", metavar="RUN", help="train an adapter for each capability that its failures lack"
    )
    train.add_argument("--name", metavar="NAME", help="the adapter's name (default: the capability)")
    train.add_argument("--base", type=Path, metavar="DIR", help="the base model (default: the embedded one)")
    train.add_argument("--preset", default="pocket", help="pocket or gpu (default: pocket)")
    train.add_argument("--config", type=Path, metavar="FILE", help="TOML with values of the recipe")
    train.add_argument("--seed", type=integer, metavar="N", help="(default: 1)")
    train.add_argument("--steps", type=integer, metavar="N", help="steps of the optimiser")
    train.add_argument(
        "--difficulty",
        type=integer,
        metavar="D",
        help="from 1 to 5 (default: what calibration found, else 1)",
    )
    train.add_argument("--candidate", metavar="ID", help="whose instruction the agent gets (default: none)")
    train.add_argument(
        "--out", type=Path, metavar="DIR", help="the adapter's folder (default: adapters/NAME)"
    )
    train.add_argument(
        "--heldout", type=integer, metavar="N", default=100, help="held-out scenarios (default: 100; 0: none)"
    )
    train.add_argument(
        "--heldout-others",
        type=integer,
        metavar="M",
        help="of each environment that is not trained (default: half as many; 0: none)",
    )
    train.add_argument(
        "--heldout-rollouts", type=integer, metavar="K", default=4, help="of each scenario (default: 4)"
    )
    train.set_defaults(command=_train, goes_on=True)


def _train(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.serving.run import QUIET_THREADS

    # Before torch is loaded.
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET_THREADS.items()})
    from pytest_trace2evolve.workflow.environments.required import a_first, require_admitted
    from pytest_trace2evolve.workflow.training.course import refuse
    from pytest_trace2evolve.workflow.training.ordering import orders_of

    project = nearest_project(options)
    with contextlib.closing(environments_of(project)) as environments:
        orders = orders_of(environments, options, project, Path.cwd())
        if options.from_run is not None:
            orders = _left(orders)
        for order in orders:
            refuse(order)
            if project is not None:
                require_admitted(environments, order.capabilities, project, a_first(order.recipe))
        for order in orders:
            _trained(environments, order)
    return 0


def _left(orders: "list[Order]") -> "list[Order]":
    """Those whose adapters are not there yet: a command that was interrupted goes on with them."""
    from pytest_trace2evolve.records.adapter import MANIFEST

    for order in orders:
        if (order.out / MANIFEST).is_file():
            print(f"{order.out}: is there already and stays as it is", file=sys.stderr)
    return [order for order in orders if not (order.out / MANIFEST).is_file()]


def _trained(environments: "Environments", order: "Order") -> None:
    from pytest_trace2evolve.report.training import heldout_text, step_word
    from pytest_trace2evolve.workflow.training.course import make

    recipe = order.recipe
    print(
        f"training {order.name} on {order.base.name}: {recipe.steps} steps × {recipe.groups} groups × "
        f"{recipe.rollouts} rollouts, difficulty "
        + ", ".join(str(order.difficulties[name]) for name in order.capabilities),
        file=sys.stderr,
    )
    curve: list[dict[str, Any]] = []
    total = 2 * order.measured.count
    with progress_bar(order.name, recipe.steps) as show:

        def stepped(step: Any) -> None:
            curve.append({"reward": step.reward, "informative": step.informative, "kl": step.kl})
            show(step.step, step_word(curve))

        made = make(
            environments,
            order,
            stepped=stepped,
            told=lambda done: show(done, "held out", total),
        )
    if made is None:
        return
    trained = made.trained
    print(
        f"{order.out}: {len(trained.curve)} steps, {trained.rollouts} rollouts "
        f"in {trained.seconds / 60:.1f} minutes"
    )
    if made.after:
        print(heldout_text(order.capabilities, made.before, made.after))
