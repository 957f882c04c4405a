"""Gate policies by name: which checks a comparison must pass."""

from dataclasses import dataclass

from pytest_trace2evolve.errors import PolicyError, nearest
from pytest_trace2evolve.gate.checks import REWARD_IMPROVED, REWARD_NOT_WORSE, WATCHED, Check
from pytest_trace2evolve.records.verdict import Goal

MIN_MEASURED = 0.9
"""Below this share of measured simulations on a side nothing is promoted."""


@dataclass(frozen=True)
class Policy:
    """A named set of checks.

    Attributes:
        confirms: Whether a task that fell is only suspected until fresh trials, or its own, confirm it.
        alpha: The level of the policy's tests.
    """

    name: str
    improve: Check
    hold: Check
    watched: tuple[Check, ...]
    confirms: bool = False
    alpha: float = 0.05

    def checks(self, goal: Goal) -> tuple[Check, ...]:
        """The checks in the order in which they are printed."""
        return (self.improve if goal is Goal.IMPROVE else self.hold, *self.watched)


STRICT = Policy("strict", REWARD_IMPROVED, REWARD_NOT_WORSE, WATCHED)
"""Trace2Evolve's rule, on point estimates."""

POLICIES = {policy.name: policy for policy in (STRICT,)}
DEFAULT_POLICY = STRICT.name


def get_policy(name: str) -> Policy:
    """The policy of a name.

    Raises:
        PolicyError: there is none; the message names the nearest.
    """
    if name in POLICIES:
        return POLICIES[name]
    raise PolicyError(f"unknown gate policy {name!r}; {nearest(name, POLICIES)}")
