"""`trace2evolve pocket`: trains the embedded model from a seed, and measures it."""

import argparse
import os
from pathlib import Path
from typing import Any

from pytest_trace2evolve._optional import require
from pytest_trace2evolve.commands.common import at_least, progress_bar
from pytest_trace2evolve.option_types import integer


def add(commands: Any) -> None:
    """Declare the command and what it can do."""
    pocket = commands.add_parser("pocket", help="train the embedded model, or measure it")
    parts = pocket.add_subparsers(required=True, metavar="ACTION")
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


def _train(options: argparse.Namespace) -> int:
    # Before torch is loaded. Its threads meet some thousand times a step: to sleep each time costs up to a
    # third of the speed, to spin for long costs the core that something else wants.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    from pytest_trace2evolve.training.pocket.recipe import Recipe
    from pytest_trace2evolve.training.pocket.run import Progress
    from pytest_trace2evolve.workflow.pocket.course import make

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
    from pytest_trace2evolve.workflow.pocket.card import write_card
    from pytest_trace2evolve.workflow.pocket.measure import CASES

    count = CASES if cases is None else at_least("--cases", cases, 1)
    with progress_bar("measuring", None) as show:
        text = write_card(folder, cases=count, told=lambda done, total: show(done, "", total))
    print(text)
    return 0
