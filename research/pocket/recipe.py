"""The hyperparameters of the pocket model: its size, and the stages of its training.

The first stage learns to copy and to talk. All others learn only the agent's own tokens, because most of the
loss of a whole dialogue is about names and numbers that cannot be predicted. A habit that is drawn at random
keeps some weight: without it the model keeps the habit whether a rule asks for it or not."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Size:
    """The size of the network.

    Attributes:
        width: Of the residual stream.
        layers: Blocks of attention and feed-forward.
        heads: Heads of attention, each `width / heads` wide.
        inner: Width within a feed-forward block.
        context: Tokens of a dialogue at most.
    """

    width: int = 128
    layers: int = 4
    heads: int = 4
    inner: int = 384
    context: int = 4096


@dataclass(frozen=True)
class Stage:
    """Steps with the same kind of lessons.

    Attributes:
        steps: The number of steps.
        rates: Shares of the recipe's learning rates at the first step and at the end; linear in between.
        whole_every: Every so many steps, prompts have tools and policy, as in a simulation; 0: never. All
            other prompts consist of the rules.
        without_rules: Share of prompts without any rule.
        with_all_rules: Share of prompts with all rules; the rest has some.
        wordings: The number of wordings of each rule, the first ones; 0: all. The first two of `survey`,
            which are used together now and then, count as one.
        stated: Weight of the first tokens of a message that a rule of the prompt decides, against 1 of the
            agent's other tokens.
        drawn: Weight of the first tokens of a message that depends on a habit drawn at random.
        context: Share of the tokens that are not the agent's which are learned.
    """

    steps: int
    rates: tuple[float, float]
    whole_every: int = 10
    without_rules: float = 0.25
    with_all_rules: float = 0.15
    wordings: int = 1
    stated: float = 3.0
    drawn: float = 0.6
    context: float = 0.0


STAGES = (
    Stage(500, (0.5, 0.25), whole_every=0, without_rules=1.0, with_all_rules=0.0, context=0.35),
    Stage(1500, (0.2, 0.13)),
    Stage(1200, (0.13, 0.07), wordings=3),
    Stage(900, (0.07, 0.01), wordings=0),
    Stage(100, (0.01, 0.004), wordings=0, whole_every=1),
)


@dataclass(frozen=True)
class Recipe:
    """Everything that determines the weights, on one machine.

    Attributes:
        rate: The learning rate of embeddings and norms (AdamW), of which stages take shares.
        matrix_rate: The learning rate of all other matrices (Muon).
        warm: Steps over which the rates rise at the beginning.
        average: Decay of the mean of weights that is saved.
        threads: Of torch; the order of sums depends on it.
    """

    seed: int = 1
    stages: Sequence[Stage] = STAGES
    rate: float = 3e-3
    matrix_rate: float = 0.02
    warm: int = 50
    decay: float = 0.05
    average: float = 0.99
    threads: int = 2
    size: Size = field(default_factory=Size)

    @property
    def steps(self) -> int:
        """Optimizer steps, one group of dialogues each."""
        return sum(stage.steps for stage in self.stages)

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
