"""What an environment must be before anything is trained in it: it shares nothing with what decides."""

import secrets
from collections.abc import Sequence

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.training.grpo.recipe import Recipe
from pytest_trace2evolve.workflow.environments.admit import admit, held_out_of
from pytest_trace2evolve.workflow.environments.registry import Environments
from pytest_trace2evolve.workflow.project import Project

CHECKED = 60
"""Scenarios of each environment that are held against held-out content."""


def require_admitted(
    environments: Environments, names: Sequence[str], project: Project, first: int = 0
) -> None:
    """Hold environments against the held-out content of a project.

    Args:
        first: The first scenario that is looked at; see `a_first`.

    Raises:
        ConfigError: one is not admitted: nothing may be trained in it.
    """
    held_out = held_out_of(project)
    for name in names:
        admission = admit(environments, name, seeds=CHECKED, held_out=held_out, first=first)
        if not admission.passed:
            why = next(f"{one.check}: {one.detail}" for one in admission.checks if not one.passed)
            raise ConfigError(
                f"environment {name!r} is not admitted, and nothing is trained in it: {why}; "
                f"see trace2evolve environment check {name}"
            )


def a_first(recipe: Recipe) -> int:
    """A drawn first scenario of those that are trained in: code that was written to pass known scenarios does
    not know which are looked at."""
    return recipe.first_scenario + secrets.randbelow(max(1, recipe.scenarios - CHECKED + 1))
