"""What a step of `trace2evolve train` costs on the embedded model, and where its time goes.

    python benchmarks/training.py [--capability conditional_detail_retrieval] [--steps 3] [--repeats 1]
        [--autocast on|off]

Trains from the recipe's defaults with one thread, from the same seed each time, and keeps nothing. Times are
of the processor, seconds a step, so that what else the machine does counts less (it still does, by its use of
caches and of the other half of a core). The part that draws answers runs in a thread of its own. Also prints
how many tokens answers have as they were drawn, and how many are read for the gradient.
"""

import argparse
import functools
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_trace2evolve.serving.server import QUIET_THREADS

os.environ.update(QUIET_THREADS)  # before torch is loaded

import accelerate

from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.serving.engine import Engine
from pytest_trace2evolve.serving.folder import read_model
from pytest_trace2evolve.training import shared_prefixes as shared
from pytest_trace2evolve.training.recipe import read_recipe
from pytest_trace2evolve.training.rollouts import Game
from pytest_trace2evolve.training.run import train
from pytest_trace2evolve.training.train import Order, plan_of
from pytest_trace2evolve.training.trainer import CustomerTrainer
from pytest_trace2evolve.utils.resources import embedded_model

PARTS = {
    "drawing answers": (Engine, "_run"),
    "  prompts, tools' results": (Engine, "_join"),
    "  decoding": (Engine, "_step"),
    "environments": (Game, "_answered"),
    "log-probabilities and loss": (CustomerTrainer, "compute_loss"),
    "backward pass": (accelerate.Accelerator, "backward"),
}
"""What is timed, each in its own thread; what is indented is part of what stands above it."""


def timed(spent: Counter[str], part: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; adds its thread's processor seconds to a part."""

    @functools.wraps(run)
    def timing(*given: Any, **named: Any) -> Any:
        began = time.thread_time()
        try:
            return run(*given, **named)
        finally:
            spent[part] += time.thread_time() - began

    return timing


def counted(spent: Counter[str]) -> None:
    """Count tokens of answers, and those that are read of them."""
    whole = shared.trees_of

    def trees(rows: Any, *given: Any) -> Any:
        spent["drawn"] += sum(map(len, rows.values()))
        for tree in whole(rows, *given):
            spent["read"] += len(tree.tokens)
            yield tree

    shared.trees_of = trees


def main() -> None:
    """Measure and print."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--capability", default="conditional_detail_retrieval")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--autocast", choices=["on", "off"], help="(default: the recipe's own)")
    options = parser.parse_args()
    spent: Counter[str] = Counter()
    for part, (owner, name) in PARTS.items():
        setattr(owner, name, timed(spent, part, getattr(owner, name)))
    counted(spent)
    autocast = None if options.autocast is None else options.autocast == "on"
    recipe = read_recipe("pocket", steps=options.steps, threads=1, kl_every=0, autocast=autocast)
    name = options.capability
    order = Order([name], name, read_model(embedded_model()), Path(name), recipe, {name: 1})
    for _ in range(options.repeats):
        spent.clear()
        with tempfile.TemporaryDirectory() as scratch:
            curve = train(plan_of(Environments(), order, Path(scratch) / "kept")).curve
        whole = [one["seconds"]["processor"] for one in curve]
        told = ", ".join(f"{one:.1f}" for one in whole)
        print(f"{sum(one['rollouts'] for one in curve)} rollouts; load {os.getloadavg()[0]:.1f}")
        print(f"{'a step':28} {sum(whole) / len(whole):6.2f} s  ({told})")
        for part in PARTS:
            print(f"{part:28} {spent[part] / len(curve):6.2f} s")
        steps = len(curve)
        print(f"{'tokens of answers':28} {spent['drawn'] / steps:6.0f}, read {spent['read'] / steps:.0f}\n")


if __name__ == "__main__":
    main()
