"""The content of a model card: where the weights come from, and shares that were measured of them."""

from statistics import NormalDist
from typing import Any, Literal

from pydantic import Field

from pytest_trace2evolve.records.base import Record

_Z = NormalDist().inv_cdf(0.975)


class Share(Record):
    """How often something was the case."""

    hits: int = Field(ge=0)
    total: int = Field(ge=0)

    @property
    def estimate(self) -> float | None:
        """The share; None of nothing."""
        return self.hits / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval at 95 %; from 0 to 1 for a share of nothing."""
        if not self.total:
            return 0.0, 1.0
        share, width = self.hits / self.total, _Z**2 / self.total
        middle = (share + width / 2) / (1 + width)
        half = (share * (1 - share) * width + width**2 / 4) ** 0.5 / (1 + width)
        return max(0.0, middle - half), min(1.0, middle + half)


class RuleEffect(Record):
    """What a rule in the prompt changes.

    Attributes:
        without: How often the model shows the behaviour that the rule names without the rule.
        seen: The same with the rule, in a wording of training.
        unseen: The same with the rule, in a wording that was not trained on.
    """

    rule: str
    without: Share
    seen: Share
    unseen: Share


class Card(Record):
    """A model card.

    Attributes:
        training: The content of `training.json` next to the weights.
        weights: Digest of the weights, tokenizer and settings of which everything here was measured.
        temperature: At which its answers were sampled.
        cases: Held-out cases for each capability, and for each arm of a rule.
        capabilities: Share of cases passed under the policy alone, by kind of case.
        candidates: Share of cases passed under a candidate's instruction, by candidate.
        habits: How often a rule's behaviour shows under each candidate, by rule and candidate.
    """

    schema_version: Literal[1] = 1
    training: dict[str, Any]
    weights: str
    weight_bytes: int
    temperature: float
    cases: int
    capabilities: dict[str, Share]
    rules: tuple[RuleEffect, ...]
    candidates: dict[str, Share]
    habits: dict[str, dict[str, Share]]


def difference(new: Share, old: Share) -> tuple[float, float, float]:
    """The difference of two shares with Newcombe's interval at 95 % (method 10 of Newcombe, 1998).

    Raises:
        ValueError: one of them is of nothing.
    """
    if new.estimate is None or old.estimate is None:
        raise ValueError("a share of nothing has no difference")
    (low_new, high_new), (low_old, high_old) = new.interval, old.interval
    found = new.estimate - old.estimate
    down = ((new.estimate - low_new) ** 2 + (high_old - old.estimate) ** 2) ** 0.5
    up = ((high_new - new.estimate) ** 2 + (old.estimate - low_old) ** 2) ** 0.5
    return found, found - down, found + up
