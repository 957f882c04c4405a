"""What a trainer is given beside trl's own, and which scenarios follow from it at each step."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_trace2evolve.training.grpo.protocols import Sampler, Talk
from pytest_trace2evolve.training.grpo.recipe import Recipe


@dataclass(frozen=True)
class Course:
    """What a trainer is given beside trl's own.

    Attributes:
        names: Environments, taken in turn.
        done: Steps made before.
        sampler: Who draws answers; None leaves it to trl.
    """

    recipe: Recipe
    names: Sequence[str]
    talk: Talk
    sampler: Sampler | None = None
    done: int = 0

    def rows(self, step: int, turn: int, rank: int, groups: int) -> list[dict[str, Any]]:
        """trl's rows of some groups: their scenarios follow from the seed and these numbers alone.

        Args:
            step: From 0.
            turn: 0, and then one more each time that groups are drawn anew.
            rank: The process's, of several that train together.
            groups: How many are played.
        """
        recipe, names = self.recipe, self.names
        rows = []
        for place in range(groups):
            drawn = random.Random(f"{recipe.seed}/{step}/{turn}/{rank}/{place}")
            name = names[(step * recipe.groups + turn + rank + place) % len(names)]
            seed = recipe.first_scenario + drawn.randrange(recipe.scenarios)
            # trl wants a prompt in every row; the real one is the environment's history.
            row = {"prompt": [{"role": "user", "content": ""}], "environment": name, "seed": seed}
            rows += [row] * recipe.rollouts
        return rows

    def draws(self, step: int, turn: int, rank: int) -> int:
        """The number from which answers are drawn."""
        return (step * (self.recipe.redraws + 1) + turn) * 1_000_003 + rank * 10_007
