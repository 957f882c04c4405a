"""How the learning rate goes: up over the first steps, then down on a line towards a tenth."""

from pytest_trace2evolve.training.grpo.recipe import Recipe

LAST_SHARE = 0.1
"""Of the rate: what it would come to one step after the last."""


def share(recipe: Recipe, step: int) -> float:
    """The share of the recipe's rate at a step, from 0."""
    if step < recipe.warm:
        return (step + 1) / (recipe.warm + 1)
    left = max(0.0, 1.0 - (step - recipe.warm) / max(1, recipe.steps - recipe.warm))
    return LAST_SHARE + (1.0 - LAST_SHARE) * left
