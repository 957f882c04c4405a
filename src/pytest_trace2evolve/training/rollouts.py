"""Chooses the scenarios of a step, plays their rollouts, and splits trl's batches into groups."""

import bisect
import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from trl.trainer.utils import pad

from pytest_trace2evolve.environments.environment import ScenarioEnvironment
from pytest_trace2evolve.environments.generators.whole_tasks import FAMILY_NAMES
from pytest_trace2evolve.records.adapter import WHOLE_TASKS
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.serving.engine import Job
from pytest_trace2evolve.training.chat_encoding import ChatEncoder
from pytest_trace2evolve.training.recipe import Recipe
from pytest_trace2evolve.training.sampler import EngineSampler

LEFT_PADDED_TENSORS = ("prompt_ids", "prompt_mask")
"""The tensors of a batch that are padded on the left; all others are padded on the right."""

DrawAnswers = Callable[[list[list[int]], int], tuple[list[list[int]], Any]]
"""Draws an answer to each prompt, each of which stands a number of times in a row; returns the tokens of each
answer, and their log-probabilities or None."""


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
    def measure_time(self, part: str) -> Iterator[None]:
        """Add the duration of the block to a part of the step."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - start


@dataclass(frozen=True)
class Scenario:
    """The environment and the seed of a rollout."""

    environment: str
    seed: int


def choose_scenarios(
    recipe: Recipe, names: Sequence[str], step: int, turn: int, rank: int, group_count: int
) -> list[Scenario]:
    """Return the scenario of each rollout of `group_count` groups; they depend only on the arguments.

    Environments alternate. `step` and `turn` count from 0, and each replacement of groups is a new turn.
    `rank` is the rank of this process among those that train together.
    """
    scenarios = []
    families = _draw_families(recipe, f"{recipe.seed}/{step}/{turn}/{rank}", group_count)
    for index in range(group_count):
        rng = random.Random(f"{recipe.seed}/{step}/{turn}/{rank}/{index}")
        name = names[(step * recipe.groups + turn + rank + index) % len(names)]
        seed = recipe.first_scenario + rng.randrange(recipe.scenarios)
        if name == WHOLE_TASKS:
            seed += (families[index] - seed) % len(FAMILY_NAMES)
        scenarios += [Scenario(name, seed)] * recipe.rollouts
    return scenarios


def _draw_families(recipe: Recipe, seed: str, count: int) -> list[int]:
    """Return the family of each whole task, in random order, each family as often as its weight asks for."""
    weights = [recipe.families.get(name, 0.0) if recipe.families else 1.0 for name in FAMILY_NAMES]
    bounds = list(itertools.accumulate(weights))
    rng = random.Random(f"families/{seed}")
    # One random offset for all of them (systematic sampling), so that steps have nearly the same mix.
    offset = rng.random()
    families = [bisect.bisect(bounds, (index + offset) / count * bounds[-1]) for index in range(count)]
    rng.shuffle(families)
    return families


def derive_turn_seed(recipe: Recipe, step: int, turn: int, rank: int) -> int:
    """Return the number from which the seeds of a turn's answers are derived."""
    return (step * (recipe.redraws + 1) + turn) * 1_000_003 + rank * 10_007


def split_groups(batch: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    """Split a batch into groups of `size` rollouts."""
    tensors = {name: value for name, value in batch.items() if torch.is_tensor(value) and value.dim()}
    return [
        {name: value[start : start + size] for name, value in tensors.items()}
        for start in range(0, len(batch["advantages"]), size)
    ]


def join_groups(groups: Sequence[Mapping[str, Any]], pad_token: int) -> dict[str, Any]:
    """Join groups into one batch, padded to the longest row."""
    batch: dict[str, Any] = {}
    for name in groups[0]:
        rows = [row for group in groups for row in group[name]]
        if rows[0].dim() == 0:
            batch[name] = torch.stack(rows)
            continue
        padding = pad_token if name in ("prompt_ids", "completion_ids") else int(name == "tool_mask")
        padding_side = "left" if name in LEFT_PADDED_TENSORS else "right"
        batch[name] = pad(rows, padding_value=padding, padding_side=padding_side)
    return batch


@dataclass
class Rollout:
    """A rollout that is being played.

    Attributes:
        row: The rollout's place in the batch.
        prompt: Tokens before the agent's first turn.
        ids: Tokens after the prompt.
        mask: 1 for each token of `ids` that the agent wrote, 0 for the others.
        last_answer: The agent's latest answer.
    """

    row: int
    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    last_answer: list[int] = field(default_factory=list)

    def add_answer(self, answer: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Append the agent's next answer."""
        self.last_answer = list(answer)
        self.ids += self.last_answer
        self.mask += [1] * len(self.last_answer)
        self.logprobs += [0.0] * len(self.last_answer) if logprobs is None else list(logprobs)

    def add_foreign_tokens(self, tokens: Sequence[int]) -> None:
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
        end_tokens: Tokens that end an answer.
        context_length: The model's context length in tokens; None if unknown.
        stats: Collects the wall times.
    """

    recipe: Recipe
    encoder: ChatEncoder
    environments: Sequence[ScenarioEnvironment]
    names: Sequence[str]
    end_tokens: Sequence[int]
    context_length: int | None
    stats: StepStats
    _parsed: dict[tuple[Any, ...], Message | None] = field(default_factory=dict, init=False)
    _continued: dict[tuple[Any, ...], list[int]] = field(default_factory=dict, init=False)

    def play_concurrently(
        self,
        sampler: EngineSampler,
        model: Any,
        prompts: Sequence[Sequence[int]],
        turn_seed: int,
        *,
        weights_changed: bool,
    ) -> list[Rollout]:
        """Play all rollouts from their first prompts, each at its own pace.

        `turn_seed` is the result of `derive_turn_seed`.
        """
        rollouts = [Rollout(row, list(prompt)) for row, prompt in enumerate(prompts)]
        first_seed = self.recipe.seed * 1_000_000_007 + turn_seed

        def next_request(rollout: Rollout) -> Job:
            seed = (first_seed + rollout.row + len(rollout.ids) * 1_009) % (1 << 63)
            return Job(
                rollout.prompt + rollout.ids,
                max_tokens=self.recipe.answer_tokens,
                temperature=self.recipe.temperature,
                seed=seed,
            )

        def on_answer(row: int, answer: list[int]) -> Job | None:
            rollouts[row].add_answer(answer)
            return next_request(rollouts[row]) if self._reply_to(rollouts[row]) else None

        seconds = self.stats.seconds
        environment_seconds = seconds.get("environments", 0.0)
        with self.stats.measure_time("drawing"):
            first_requests = [next_request(rollout) for rollout in rollouts]
            sampler.play(model, first_requests, on_answer, weights_changed=weights_changed)
        seconds["drawing"] -= seconds.get("environments", 0.0) - environment_seconds
        return rollouts

    def play_in_lockstep(self, prompts: Sequence[Sequence[int]], draw_answers: DrawAnswers) -> list[Rollout]:
        """Play all rollouts in lockstep, one answer each at a time."""
        rollouts = [Rollout(row, list(prompt)) for row, prompt in enumerate(prompts)]
        running_rollouts, copies = rollouts, self.recipe.rollouts
        while running_rollouts:
            answers, logprobs = draw_answers(
                [rollout.prompt + rollout.ids for rollout in running_rollouts], copies
            )
            for index, rollout in enumerate(running_rollouts):
                rollout.add_answer(answers[index], logprobs[index] if logprobs is not None else None)
            running_rollouts, copies = [rollout for rollout in running_rollouts if self._reply_to(rollout)], 1
        return rollouts

    def _reply_to(self, rollout: Rollout) -> bool:
        """Let the environment reply to a rollout's last answer; return whether the agent has another turn."""
        with self.stats.measure_time("environments"):
            environment, answer = self.environments[rollout.row], rollout.last_answer
            # Rollouts of a group are often equal for a while, so what was parsed is kept.
            key = self.names[rollout.row], tuple(rollout.prompt), tuple(rollout.ids)
            if key not in self._parsed:
                tokens_before = rollout.prompt + rollout.ids[: len(rollout.ids) - len(answer)]
                self._parsed[key] = self.encoder.parse(tokens_before, answer, self.names[rollout.row])
            if (message := self._parsed[key]) is None:  # an empty answer ends a rollout, as with the server
                return False
            reaction = environment.step(message)
            if reaction.done or not reaction.messages:
                return False
            reply_key = *key, repr(reaction.messages)
            if reply_key not in self._continued:
                has_end_token = bool(answer) and answer[-1] in self.end_tokens
                self._continued[reply_key] = self.encoder.continuation(
                    message, reaction.messages, has_end_token=has_end_token
                )
            tokens = self._continued[reply_key]
            length = len(rollout.ids) + len(tokens) + self.recipe.answer_tokens
            if length > self.recipe.rollout_tokens:
                return False
            if self.context_length is not None and len(rollout.prompt) + length > self.context_length:
                return False
            rollout.add_foreign_tokens(tokens)
            return True
