"""Rollouts played to their end: the agent's answers in turn with what environments say to them.

What is noted while rollouts are played: each rollout as it grows, and what a whole step was like.

trl's batches in groups, and groups as a batch again: some are drawn anew, and not all are as long.

What a trainer is given beside trl's own, and which scenarios follow from it at each step.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from trl.trainer.utils import pad

from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.training.protocols import Played, Sampler, Talk, Wish
from pytest_trace2evolve.training.recipe import Recipe


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


_LEFT = ("prompt_ids", "prompt_mask")
"""What is padded on the left; everything else of a batch on the right."""


def groups_of(batch: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    """A batch in its groups."""
    rows = len(batch["advantages"])
    return [
        {
            name: value[first : first + size]
            for name, value in batch.items()
            if torch.is_tensor(value) and value.dim()
        }
        for first in range(0, rows, size)
    ]


def joined(parts: Sequence[Mapping[str, Any]], filler: int) -> dict[str, Any]:
    """Groups as one batch, padded to the longest."""
    found: dict[str, Any] = {}
    for name in parts[0]:
        rows = [row for part in parts for row in part[name]]
        if rows[0].dim() == 0:
            found[name] = torch.stack(rows)
            continue
        value = filler if name in ("prompt_ids", "completion_ids") else int(name == "tool_mask")
        found[name] = pad(rows, padding_value=value, padding_side="left" if name in _LEFT else "right")
    return found


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


Drawn = Callable[[list[list[int]]], tuple[list[list[int]], Any]]
"""Draws an answer to each prompt: their tokens, and their log-probabilities where there are some."""


@dataclass(frozen=True)
class Game:
    """The rollouts of one turn of a step.

    Attributes:
        environments: One a rollout.
        names: Of each rollout's environment.
        ends: Tokens that end an answer.
        room: Tokens that the model has room for; None: no limit.
        told: Where times are noted.
    """

    course: Course
    environments: Sequence[Played]
    names: Sequence[str]
    ends: Sequence[int]
    room: int | None
    told: Told

    def with_sampler(
        self, model: Any, prompts: Sequence[Sequence[int]], draws: int, *, fresh: bool
    ) -> list[Rollout]:
        """Play all with the sampler, each as fast as it goes.

        Args:
            model: The model as it is trained.
            prompts: Tokens of what was said before, rollout by rollout.
            draws: The number from which answers are drawn.
            fresh: Whether the weights have changed since it was asked last.
        """
        recipe, sampler = self.course.recipe, self.course.sampler
        assert sampler is not None
        opened = [Rollout(row, list(prompt)) for row, prompt in enumerate(prompts)]
        number = recipe.seed * 1_000_000_007 + draws

        def wish(one: Rollout) -> Wish:
            seed = (number + one.row + len(one.ids) * 1_009) % (1 << 63)
            return Wish(one.prompt + one.ids, seed, recipe.answer_tokens)

        def then(row: int, answer: list[int]) -> Wish | None:
            one = opened[row]
            one.take(answer)
            return wish(one) if self._answered(one) else None

        before = self.told.seconds.get("environments", 0.0)
        with self.told.timed("drawing"):
            wishes = [wish(one) for one in opened]
            sampler.play(model, wishes, then, temperature=recipe.temperature, fresh=fresh)
        self.told.seconds["drawing"] -= self.told.seconds.get("environments", 0.0) - before
        return opened

    def in_turns(
        self, prompts: Sequence[Sequence[int]], answers: list[list[int]], logprobs: Any, drawn: Drawn
    ) -> list[Rollout]:
        """Play all, whose first answers are there, a turn of all at a time."""
        opened = [Rollout(row, list(prompt)) for row, prompt in enumerate(prompts)]
        going = opened
        while going:
            for place, one in enumerate(going):
                one.take(answers[place], logprobs[place] if logprobs is not None else None)
            going = [one for one in going if self._answered(one)]
            if going:
                answers, logprobs = drawn([one.prompt + one.ids for one in going])
        return opened

    def _answered(self, one: Rollout) -> bool:
        """Let the environment answer a rollout; whether the agent is to go on."""
        with self.told.timed("environments"):
            talk, environment = self.course.talk, self.environments[one.row]
            before = one.prompt + one.ids[: len(one.ids) - len(one.answer)]
            message = talk.said(before, one.answer, self.names[one.row])
            if message is None:  # whoever says nothing ends the rollout, as in the server's own path
                return False
            back = environment._step(message)
            one.hear(message, back)
            if environment._done or not back:
                return False
            ended = bool(one.answer) and one.answer[-1] in self.ends
            suffix = talk.following(message, back, ended=ended)
            length = len(one.ids) + len(suffix) + self.course.recipe.answer_tokens
            if length > self.course.recipe.rollout_tokens or not self._fits(len(one.prompt) + length):
                return False
            one.follow(suffix)
            return True

    def _fits(self, tokens: int) -> bool:
        return self.room is None or tokens <= self.room
