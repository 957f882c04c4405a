"""The hyperparameters of the pocket model: its size, and the stages of its training.

A network this small finds out what a rule of its prompt means only if little else stands between the rule and
what it decides: in short dialogues, with few wordings, at low rates. So it learns to talk first, then what
rules do at the beginning of dialogues, then their other wordings, and whole prompts at the end."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import Self


@dataclass(frozen=True)
class Size:
    """How large the network is.

    Attributes:
        width: Of the residual stream.
        layers: Blocks of attention and feed-forward.
        heads: Heads of attention, each `width / heads` wide.
        inner: Width within a feed-forward block.
        context: Tokens of a dialogue at most.
    """

    width: int = 128
    layers: int = 3
    heads: int = 4
    inner: int = 384
    context: int = 4096


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
        prompt: The part of their prompts that dialogues have.
        rates: Shares of the recipe's learning rates at the first step and at the end; linear in between.
        wordings: How many of each rule's wordings prompts are made of; 0: all. The first two of `survey`,
            which are used together now and then, count as one.
        reach: Tokens after its prompt within which a dialogue is cut, after a message of the agent; 0: not
            cut.
        decided: Weight of the first tokens of a message that a rule can change, against 1 of the agent's
            others.
        context: Share of the tokens that are not the agent's which are learned: they teach to copy, and few
            of them can be predicted.
    """

    steps: int
    prompt: Prompt
    rates: tuple[float, float]
    wordings: int = 0
    reach: int = 0
    decided: float = 1.0
    context: float = 0.04


STAGES = (
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
        rate: The learning rate of embeddings and norms (AdamW), of which stages take shares.
        matrix_rate: That of all other matrices (Muon).
        warm: Steps over which the rates rise at the beginning.
        threads: Of torch; the order of sums depends on it.
    """

    seed: int = 1
    stages: Sequence[Stage] = STAGES
    rate: float = 3e-3
    matrix_rate: float = 0.02
    warm: int = 50
    decay: float = 0.05
    threads: int = 2
    size: Size = field(default_factory=Size)

    @property
    def steps(self) -> int:
        """Optimizer steps, a group of dialogues each."""
        return sum(stage.steps for stage in self.stages)

    def resized(self, steps: int) -> Self:
        """The same in another number of steps, the stages in proportion."""
        ends = [
            end * steps // self.steps for end in accumulate((stage.steps for stage in self.stages), initial=0)
        ]
        lengths = (end - start for start, end in pairwise(ends))
        stages = zip(self.stages, lengths, strict=True)
        return replace(self, stages=tuple(replace(stage, steps=length) for stage, length in stages))

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
