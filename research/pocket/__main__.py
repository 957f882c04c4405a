"""`python -m research.pocket`: trains the embedded model from a seed, and measures it."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_trace2evolve.training.recipe import check_count
from pytest_trace2evolve.utils.optional import check_installed
from research.common import progress_bar, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m research.pocket", description="Train the embedded model, or measure it."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    train = commands.add_parser("train", help="train it from a seed; resumes")
    train.add_argument("--out", type=Path, required=True, metavar="DIR", help="the model's folder")
    train.add_argument("--seed", type=int, default=1, metavar="N", help="(default: 1)")
    train.add_argument("--threads", type=int, default=2, metavar="N", help="threads of torch (default: 2)")
    train.set_defaults(command=_train)
    card = commands.add_parser("card", help="measure a model on held-out content, and write its card")
    card.add_argument("model", type=Path, metavar="DIR", help="a folder that 'train' made")
    card.add_argument("--cases", type=int, default=60, metavar="N", help="cases a row (default: 60)")
    card.set_defaults(command=_write_card)
    return run(parser, arguments)


def _train(options: argparse.Namespace) -> int:
    check_count("--threads", options.threads, 1, 1024)
    for package in ("torch", "transformers", "safetensors"):
        check_installed(package, extra="local")
    # Before torch is loaded. Its threads meet some thousand times a step: sleeping each time costs up to a
    # third of the speed, and spinning for long costs a core that something else needs.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    from research.pocket.recipe import Recipe
    from research.pocket.train import Progress, train_model

    recipe = Recipe(seed=options.seed, threads=options.threads)
    with progress_bar("training") as show:

        def on_step(progress: Progress) -> None:
            recent = progress.losses[-20:]
            show(progress.step, recipe.steps, f"loss {sum(recent) / len(recent):.3f}")

        progress = train_model(recipe, options.out, on_step=on_step)
    print(f"{options.out}: {progress.step} steps in {progress.seconds / 60:.1f} minutes")
    return 0


def _write_card(options: argparse.Namespace) -> int:
    from research.pocket.card import write_card

    check_count("--cases", options.cases, 1)
    with progress_bar("measuring") as show:
        print(write_card(options.model, options.cases, lambda done, total: show(done, total, "")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
