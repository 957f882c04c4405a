"""Chooses the scenarios of a step, plays their rollouts, and splits trl's batches into groups."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from trl.trainer.utils import pad

from pytest_trace2evolve.environments.trl_environment import TrlEnvironment
from pytest_trace2evolve.serving.engine import Job
from pytest_trace2evolve.training.chat_encoding import ChatEncoder
from pytest_trace2evolve.training.recipe import Recipe
from pytest_trace2evolve.training.sampler import EngineSampler

LEFT_PADDED = ("prompt_ids", "prompt_mask")
"""The tensors of a batch that are padded on the left; all others are padded on the right."""

DrawAnswers = Callable[[list[list[int]]], tuple[list[list[int]], Any]]
"""Draws an answer to each prompt; returns the tokens of each answer, and their log-probabilities or None."""


@dataclass
class StepStats:
    """Figures of one step.

    Attributes:
        step: The step's number, from 1.
        reward: Mean reward of all rollouts that were played, including replaced groups.
        informative: Share of played groups whose rewards differ.
        rollouts: The number of rollouts that were played.
        kl: Divergence from the base in nats per token, if measured at this step.
        tokens: Mean number of the agent's own tokens per rollout.
        seconds: Wall time by part: drawing answers, environments, all rollouts, log-probabilities for the
            loss and for the divergence, and the whole step. The remainder is the backward pass. `processor`
            is the processor time of all threads.
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
    def timed(self, part: str) -> Iterator[None]:
        """Add the duration of the block to a part of the step."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began


def scenario_rows(
    recipe: Recipe, names: Sequence[str], step: int, turn: int, rank: int, groups: int
) -> list[dict[str, Any]]:
    """Return trl's rows for `groups` groups, with scenarios that depend only on the recipe and these numbers.

    Environments alternate. `step` and `turn` count from 0, and each replacement of groups is a new turn.
    `rank` is the rank of this process among those that train together.
    """
    rows = []
    for place in range(groups):
        random_ = random.Random(f"{recipe.seed}/{step}/{turn}/{rank}/{place}")
        name = names[(step * recipe.groups + turn + rank + place) % len(names)]
        seed = recipe.first_scenario + random_.randrange(recipe.scenarios)
        # trl requires a prompt in every row; the real prompt is the environment's history.
        row = {"prompt": [{"role": "user", "content": ""}], "environment": name, "seed": seed}
        rows += [row] * recipe.rollouts
    return rows


def draw_number(recipe: Recipe, step: int, turn: int, rank: int) -> int:
    """Return the number from which the seeds of a turn's answers are derived."""
    return (step * (recipe.redraws + 1) + turn) * 1_000_003 + rank * 10_007


def split_groups(batch: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    """Split a batch into groups of `size` rollouts."""
    tensors = {name: value for name, value in batch.items() if torch.is_tensor(value) and value.dim()}
    return [
        {name: value[first : first + size] for name, value in tensors.items()}
        for first in range(0, len(batch["advantages"]), size)
    ]


def join_groups(groups: Sequence[Mapping[str, Any]], pad_token: int) -> dict[str, Any]:
    """Join groups into one batch, padded to the longest row."""
    batch: dict[str, Any] = {}
    for name in groups[0]:
        rows = [row for group in groups for row in group[name]]
        if rows[0].dim() == 0:
            batch[name] = torch.stack(rows)
            continue
        value = pad_token if name in ("prompt_ids", "completion_ids") else int(name == "tool_mask")
        side = "left" if name in LEFT_PADDED else "right"
        batch[name] = pad(rows, padding_value=value, padding_side=side)
    return batch


@dataclass
class Rollout:
    """A rollout that is being played.

    Attributes:
        row: The rollout's place in the batch.
        prompt: Tokens before the agent's first turn.
        ids: Tokens after the prompt.
        mask: 1 for each of these tokens that is the agent's own, 0 for the others.
        first, answer: The agent's first and latest answer.
    """

    row: int
    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)

    def add_answer(self, answer: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Append the agent's next answer."""
        self.answer = list(answer)
        self.first = self.first or self.answer
        self.ids += self.answer
        self.mask += [1] * len(self.answer)
        self.logprobs += [0.0] * len(self.answer) if logprobs is None else list(logprobs)

    def add_others(self, tokens: Sequence[int]) -> None:
        """Append tokens that the agent did not write."""
        self.ids += tokens
        self.mask += [0] * len(tokens)
        self.logprobs += [0.0] * len(tokens)


@dataclass(frozen=True)
class RolloutPlayer:
    """Plays the rollouts of one turn of a step.

    Attributes:
        environments: One environment per rollout.
        names: The name of each rollout's environment.
        ends: Tokens that end an answer.
        context: The model's context length in tokens; None if unknown.
        stats: Collects the wall times.
    """

    recipe: Recipe
    encoder: ChatEncoder
    environments: Sequence[TrlEnvironment]
    names: Sequence[str]
    ends: Sequence[int]
    context: int | None
    stats: StepStats

    def play_with(
        self,
        sampler: EngineSampler,
        model: Any,
        prompts: Sequence[Sequence[int]],
        number: int,
        *,
        weights_changed: bool,
    ) -> list[Rollout]:
        """Play all rollouts from their first prompts, each at its own pace.

        `number` comes from `draw_number`.
        """
        rollouts = [Rollout(row, list(prompt)) for row, prompt in enumerate(prompts)]
        first_seed = self.recipe.seed * 1_000_000_007 + number

        def request(rollout: Rollout) -> Job:
            seed = (first_seed + rollout.row + len(rollout.ids) * 1_009) % (1 << 63)
            return Job(
                rollout.prompt + rollout.ids,
                max_tokens=self.recipe.answer_tokens,
                temperature=self.recipe.temperature,
                seed=seed,
            )

        def on_answer(row: int, answer: list[int]) -> Job | None:
            rollouts[row].add_answer(answer)
            return request(rollouts[row]) if self._continues(rollouts[row]) else None

        seconds = self.stats.seconds
        before = seconds.get("environments", 0.0)
        with self.stats.timed("drawing"):
            requests = [request(rollout) for rollout in rollouts]
            sampler.play(model, requests, on_answer, weights_changed=weights_changed)
        seconds["drawing"] -= seconds.get("environments", 0.0) - before
        return rollouts

    def play_in_turns(
        self, prompts: Sequence[Sequence[int]], answers: list[list[int]], logprobs: Any, draw: DrawAnswers
    ) -> list[Rollout]:
        """Play all rollouts in lockstep, one answer each at a time; `answers` holds the first answers."""
        rollouts = [Rollout(row, list(prompt)) for row, prompt in enumerate(prompts)]
        running = rollouts
        while running:
            for place, rollout in enumerate(running):
                rollout.add_answer(answers[place], logprobs[place] if logprobs is not None else None)
            running = [rollout for rollout in running if self._continues(rollout)]
            if running:
                answers, logprobs = draw([rollout.prompt + rollout.ids for rollout in running])
        return rollouts

    def _continues(self, rollout: Rollout) -> bool:
        """Let the environment reply to a rollout's last answer; return whether the agent has another turn."""
        with self.stats.timed("environments"):
            environment, answer = self.environments[rollout.row], rollout.answer
            before = rollout.prompt + rollout.ids[: len(rollout.ids) - len(answer)]
            message = self.encoder.parse(before, answer, self.names[rollout.row])
            if message is None:  # an empty answer ends a rollout, as it does with the server
                return False
            replies = environment._step(message)
            if environment._done or not replies:
                return False
            ended = bool(answer) and answer[-1] in self.ends
            tokens = self.encoder.continuation(message, replies, ended=ended)
            length = len(rollout.ids) + len(tokens) + self.recipe.answer_tokens
            if length > self.recipe.rollout_tokens:
                return False
            if self.context is not None and len(rollout.prompt) + length > self.context:
                return False
            rollout.add_others(tokens)
            return True
