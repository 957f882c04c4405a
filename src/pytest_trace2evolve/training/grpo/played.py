"""What is noted while rollouts are played: each rollout as it grows, and what a whole step was like."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pytest_trace2evolve.records.message import Message


@dataclass
class Told:
    """What a step was like.

    Attributes:
        step: Its number, from 1.
        reward: Mean reward of all rollouts that were played, those of redrawn groups included.
        informative: Share of groups whose rewards differ, among all that were played.
        rollouts: How many were played.
        loss: Of the step.
        kl: Divergence from the base in nats a token, where it was measured at this step.
        tokens: The agent's own tokens, a rollout on average.
        seconds: By the clock: of drawing answers, of environments, of all rollouts, of log-probabilities
            for the loss and for the divergence, and of the step; what is left is the backward pass. And of
            the processor, all threads, for the step.
    """

    step: int
    reward: float = 0.0
    informative: float = 0.0
    rollouts: int = 0
    loss: float = 0.0
    kl: float | None = None
    tokens: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the time that passes inside to what a part of the step takes."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - began


@dataclass
class Rollout:
    """A rollout under way.

    Attributes:
        row: Its place in the batch.
        prompt: Tokens before the agent's turn.
        ids: Tokens since.
        mask: 1 where they are the agent's own.
        answer, first: The agent's last answer, and its first.
        heard: What came back, as trl keeps it.
    """

    row: int
    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    heard: list[dict[str, str]] = field(default_factory=list)
    calls: int = 0
    failed: int = 0

    def take(self, answer: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Take the agent's next answer."""
        self.answer = list(answer)
        self.first = self.first or self.answer
        self.ids += self.answer
        self.mask += [1] * len(self.answer)
        self.logprobs += [0.0] * len(self.answer) if logprobs is None else list(logprobs)

    def hear(self, said: Message, back: Sequence[Message]) -> None:
        """Take note of what an answer did."""
        self.calls += len(said.tool_calls or ())
        self.failed += sum(one.role == "tool" and bool(one.error) for one in back)
        self.heard += [{"role": one.role, "content": one.content or ""} for one in back]

    def follow(self, suffix: Sequence[int]) -> None:
        """Append what the agent does not say."""
        self.ids += suffix
        self.mask += [0] * len(suffix)
        self.logprobs += [0.0] * len(suffix)
