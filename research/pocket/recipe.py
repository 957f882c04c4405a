"""What the pocket model's weights follow from: its size, and the stages of its training.

A network this small finds out what a rule of its prompt means only where little else stands between the rule
and what it decides: in short dialogues, with few wordings, at low rates. So it learns to talk first, then
what rules do in the beginnings of dialogues, then their other wordings, and whole prompts at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import Self

from research.pocket.network import Size


class Prompt(StrEnum):
    """How much of their prompts dialogues have."""

    NONE = "none"
    RULES = "rules"
    WHOLE = "whole"


@dataclass(frozen=True)
class Stage:
    """Steps that learn alike.

    Attributes:
        steps: How many.
        prompt: What of their prompts the dialogues have.
        rates: Shares of the recipe's learning rates at the first step and at the end; between, on a line.
        wordings: How many of each rule's wordings prompts are made of; 0: all. The first two of `survey`,
            which are told together now and then, count as one.
        reach: Tokens after its prompt within which a dialogue is cut, behind a message of the agent's; 0:
            nowhere.
        decided: Weight of the first tokens of a message that a rule can change, against 1 of the agent's
            others.
        context: Share of the tokens that are not the agent's which are learnt from: they teach to copy, and
            few of them can be foreseen.
    """

    steps: int
    prompt: Prompt
    rates: tuple[float, float]
    wordings: int = 0
    reach: int = 0
    decided: float = 1.0
    context: float = 0.04


COURSE = (
    Stage(500, Prompt.NONE, (0.5, 0.25), context=0.35),
    Stage(500, Prompt.RULES, (0.15, 0.12), wordings=1, reach=250, decided=15),
    Stage(500, Prompt.RULES, (0.12, 0.12), wordings=1, reach=600, decided=6),
    Stage(500, Prompt.RULES, (0.12, 0.1), wordings=3, reach=600, decided=6),
    Stage(500, Prompt.RULES, (0.1, 0.08), decided=6),
    Stage(900, Prompt.WHOLE, (0.08, 0.01), decided=6),
)


@dataclass(frozen=True)
class Recipe:
    """Everything that the weights follow from, on one machine.

    Attributes:
        stages: What is learnt, one after the other.
        rate: The learning rate of embeddings and norms (AdamW), of which stages take shares.
        matrix_rate: The same of all other matrices (Muon).
        warm: Steps over which the rates rise at the beginning.
        threads: Of torch; the order of sums depends on it.
    """

    seed: int = 1
    stages: Sequence[Stage] = COURSE
    rate: float = 3e-3
    matrix_rate: float = 0.02
    warm: int = 50
    decay: float = 0.05
    threads: int = 2
    size: Size = field(default_factory=Size)

    @property
    def steps(self) -> int:
        """Steps of the optimiser, a group of dialogues each."""
        return sum(stage.steps for stage in self.stages)

    def shortened(self, steps: int) -> Self:
        """The same in fewer or more steps, the stages in proportion."""
        ends = [
            end * steps // self.steps for end in accumulate((one.steps for one in self.stages), initial=0)
        ]
        lengths = (end - start for start, end in pairwise(ends))
        return replace(
            self,
            stages=tuple(replace(one, steps=count) for one, count in zip(self.stages, lengths, strict=True)),
        )

    def at(self, step: int) -> tuple[Stage, float]:
        """The stage of a step, and the share of the learning rates there."""
        start = 0
        for stage in self.stages:
            if step < start + stage.steps:
                first, last = stage.rates
                share = first + (last - first) * (step - start) / stage.steps
                return stage, share * min(1.0, (step + 1) / self.warm)
            start += stage.steps
        raise IndexError(f"step {step} of {self.steps}")
