"""Follows a training: the curve of its steps, when it stops, and when it is stored."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from transformers import TrainerCallback

from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.training.recipe import Recipe
from pytest_trace2evolve.training.rollouts import Told
from pytest_trace2evolve.training.trainer import CustomerTrainer

COLLAPSED = 0.05
"""Share of groups with differing rewards, over the recipe's patience, below which nothing is learnt."""

SOLVED = 0.9
"""Mean reward from which on equal groups are a success, and no fault."""


class Watch(TrainerCallback):
    """Hears of each step.

    Args:
        recipe: What is trained.
        curve: What earlier steps were like; grows.
        told: Hears what a step was like.
        kept: Keeps the training as it is after a number of steps.
    """

    def __init__(
        self,
        recipe: Recipe,
        curve: list[dict[str, Any]],
        told: Callable[[Told], None],
        kept: Callable[[int], None],
    ) -> None:
        self._recipe, self._curve, self._told, self._kept = recipe, curve, told, kept
        self._began, self._worked = time.perf_counter(), time.process_time()
        self.trainer: CustomerTrainer | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Before a step."""
        self._began, self._worked = time.perf_counter(), time.process_time()

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Before weights change: a gradient that is no number must not reach them.

        Raises:
            TrainingError: it is none.
        """
        norms = [one.grad.norm() for one in model.parameters() if one.grad is not None]
        if norms and not bool(torch.isfinite(torch.stack(norms)).all()):
            raise TrainingError(
                f"step {self._now.step}: the gradient is no number: the training came apart; lower the rate"
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """After a step: it is told of, kept where it is time, and may be the last.

        Raises:
            TrainingError: nothing is learnt any more.
        """
        now = self._now
        now.seconds["step"] = time.perf_counter() - self._began
        now.seconds["processor"] = time.process_time() - self._worked
        self._curve.append({name: value for name, value in asdict(now).items() if value is not None})
        self._told(now)
        if now.step % self._recipe.keep_every == 0 or now.step == self._recipe.steps:
            self._kept(now.step)
        self.judge()

    @property
    def _now(self) -> Told:
        assert self.trainer is not None
        return self.trainer.told

    def judge(self) -> None:
        """See that the last steps had something to learn from.

        Raises:
            TrainingError: they had not.
        """
        recipe, recent = self._recipe, self._curve[-self._recipe.patience :]
        if len(recent) < recipe.patience:
            return
        informative = math.fsum(one["informative"] for one in recent) / len(recent)
        reward = math.fsum(one["reward"] for one in recent) / len(recent)
        step = recent[-1]["step"]
        if reward >= SOLVED or informative > COLLAPSED:
            return
        if not any(one["informative"] for one in self._curve):
            raise TrainingError(
                f"step {step}: rewards differed in no group so far (mean reward {reward:.2f}): there is "
                "nothing to learn from; calibrate the environment, or change its difficulty"
            )
        raise TrainingError(
            f"step {step}: rewards differed in {informative:.1%} of the groups of {recipe.patience} steps "
            f"(mean reward {reward:.2f}): nothing is learnt any more; lower the rate, or change the "
            "difficulty"
        )
