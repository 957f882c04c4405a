"""Rollouts played to their end: the agent's answers in turn with what environments say to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_trace2evolve.training.grpo.course import Course
from pytest_trace2evolve.training.grpo.played import Rollout, Told
from pytest_trace2evolve.training.grpo.protocols import Played, Wish

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
