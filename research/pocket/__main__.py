"""`python -m research.pocket`: trains the embedded model from a seed, and measures it."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_trace2evolve.cli.common import at_least, progress_bar
from pytest_trace2evolve.cli.main import run
from pytest_trace2evolve.cli.parser import Parser
from pytest_trace2evolve.utils.option_types import integer
from pytest_trace2evolve.utils.optional import require


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one action; returns its exit status."""
    parser = Parser(prog="python -m research.pocket", description="Train the embedded model, or measure it.")
    parts = parser.add_subparsers(required=True, metavar="ACTION")
    train = parts.add_parser("train", help="train it from a seed, and write its card; goes on where it was")
    train.add_argument("--out", type=Path, required=True, metavar="DIR", help="the model's folder")
    train.add_argument("--seed", type=integer, default=1, metavar="N", help="(default: 1)")
    train.add_argument("--steps", type=integer, metavar="N", help="groups of dialogues to learn from")
    train.add_argument(
        "--threads", type=integer, default=2, metavar="N", help="threads of torch (default: 2)"
    )
    train.add_argument(
        "--cases", type=integer, metavar="N", help="held-out cases a row of the card; 0: no card"
    )
    train.set_defaults(command=_train)
    card = parts.add_parser("card", help="measure a model on held-out content, and write its card")
    card.add_argument("model", type=Path, metavar="DIR", help="a folder that 'pocket train' made")
    card.add_argument("--cases", type=integer, metavar="N", help="held-out cases a row")
    card.set_defaults(command=_card)
    return run(parser, arguments)


def _train(options: argparse.Namespace) -> int:
    # Before torch is loaded. Its threads meet some thousand times a step: to sleep each time costs up to a
    # third of the speed, to spin for long costs the core that something else wants.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    from research.pocket.make import make
    from research.pocket.recipe import Recipe
    from research.pocket.train import Progress

    cases = None if options.cases is None else at_least("--cases", options.cases, 0)
    if cases != 0:
        require("matplotlib", extra="plot")  # for the card, which comes an hour later
    recipe = Recipe(seed=options.seed, threads=at_least("--threads", options.threads, 1, 1024))
    if options.steps is not None:
        recipe = recipe.shortened(at_least("--steps", options.steps, 1))
    with progress_bar("training", recipe.steps) as show:

        def told(progress: Progress) -> None:
            recent = progress.losses[-20:]
            show(progress.step, f"loss {sum(recent) / len(recent):.3f}")

        progress = make(recipe, options.out, told=told)
    print(f"{options.out}: {progress.step} steps in {progress.seconds / 60:.1f} minutes")
    return 0 if cases == 0 else _measure(options.out, cases)


def _card(options: argparse.Namespace) -> int:
    return _measure(options.model, options.cases)


def _measure(folder: Path, cases: int | None) -> int:
    from research.pocket.card import write_card
    from research.pocket.measure import CASES

    count = CASES if cases is None else at_least("--cases", cases, 1)
    with progress_bar("measuring", None) as show:
        text = write_card(folder, cases=count, told=lambda done, total: show(done, "", total))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
