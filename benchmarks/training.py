"""What a step of `trace2evolve train` costs on the embedded model, and where its time goes.

    python benchmarks/training.py [--capability conditional_detail_retrieval] [--steps 3] [--repeats 1]
        [--autocast on|off]

Trains with the recipe's defaults and one thread, from the same seed each time, and writes no adapter. Times
are processor seconds per step, so that other work of the machine counts less (it still does, by its use of
caches and of the other half of a core). The part that draws answers runs in a thread of its own. Also prints
how many tokens answers have, and how many are computed for the gradient.
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

from pytest_trace2evolve.serving.server import PASSIVE_THREAD_VARIABLES

os.environ.update(PASSIVE_THREAD_VARIABLES)  # before torch is loaded

import accelerate

from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.serving.engine import Engine
from pytest_trace2evolve.serving.folder import read_model
from pytest_trace2evolve.training import shared_prefixes
from pytest_trace2evolve.training.grpo import train
from pytest_trace2evolve.training.recipe import read_recipe
from pytest_trace2evolve.training.rollouts import RolloutPlayer
from pytest_trace2evolve.training.train import TrainingSpec, make_training_plan
from pytest_trace2evolve.training.trainer import CustomerTrainer
from pytest_trace2evolve.utils.resources import embedded_model

PARTS = {
    "drawing answers": (Engine, "_run"),
    "  prompts, tools' results": (Engine, "_prefill"),
    "  decoding": (Engine, "_step_batch"),
    "environments": (RolloutPlayer, "_reply_to"),
    "log-probabilities and loss": (CustomerTrainer, "compute_loss"),
    "backward pass": (accelerate.Accelerator, "backward"),
}
"""What is timed, each in its own thread; an indented part is included in the one above."""


def timed(spent: Counter[str], part: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; adds its thread's processor seconds to a part."""

    @functools.wraps(run)
    def timing(*args: Any, **options: Any) -> Any:
        began = time.thread_time()
        try:
            return run(*args, **options)
        finally:
            spent[part] += time.thread_time() - began

    return timing


def count_tokens(spent: Counter[str]) -> None:
    """Count tokens of answers, and those of them that are computed."""
    trees_of = shared_prefixes.build_trees

    def counting(rows: Any, *args: Any) -> Any:
        spent["drawn"] += sum(map(len, rows.values()))
        for tree in trees_of(rows, *args):
            spent["computed"] += len(tree.tokens)
            yield tree

    shared_prefixes.build_trees = counting


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
    count_tokens(spent)
    autocast = None if options.autocast is None else options.autocast == "on"
    recipe = read_recipe("pocket", steps=options.steps, threads=1, kl_every=0, autocast=autocast)
    name = options.capability
    spec = TrainingSpec([name], name, read_model(embedded_model()), Path(name), recipe, {name: 1})
    for _ in range(options.repeats):
        spent.clear()
        with tempfile.TemporaryDirectory() as scratch:
            curve = train(make_training_plan(Environments(), spec, Path(scratch) / "checkpoints")).curve
        seconds = [step["seconds"]["processor"] for step in curve]
        each = ", ".join(f"{value:.1f}" for value in seconds)
        print(f"{sum(step['rollouts'] for step in curve)} rollouts; load {os.getloadavg()[0]:.1f}")
        print(f"{'a step':28} {sum(seconds) / len(seconds):6.2f} s  ({each})")
        for part in PARTS:
            print(f"{part:28} {spent[part] / len(curve):6.2f} s")
        steps = len(curve)
        drawn, computed = spent["drawn"] / steps, spent["computed"] / steps
        print(f"{'tokens of answers':28} {drawn:6.0f}, computed {computed:.0f}\n")


if __name__ == "__main__":
    main()
