"""Gate policies by name: which checks a comparison must pass."""

import difflib
from dataclasses import dataclass

from pytest_trace2evolve.errors import PolicyError
from pytest_trace2evolve.gate.checks import REWARD_IMPROVED, REWARD_NOT_WORSE, WATCHED, Check
from pytest_trace2evolve.records.verdict import Goal

MIN_MEASURED = 0.9
"""Below this share of measured simulations on a side nothing is promoted."""


@dataclass(frozen=True)
class Policy:
    """A named set of checks."""

    name: str
    improve: Check
    hold: Check
    watched: tuple[Check, ...]

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
    near = difflib.get_close_matches(name, POLICIES, n=1)
    mend = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(POLICIES))}"
    raise PolicyError(f"unknown gate policy {name!r}; {mend}")
