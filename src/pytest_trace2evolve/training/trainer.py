"""`GRPOTrainer` whose rollouts hold a customer, and whose steps follow from their numbers alone.

trl ends a rollout at the first text without a tool call; here the customer answers it, and the rollout goes
on until its environment says that it is over. What comes back, tools' results and customer's turns, is
appended as tokens of the server's own template and learnt from by nobody.

What of trl's private methods is overridden stands in `overridden.py`, with their parameters: a test holds
that table to the trl that is installed, so that an update fails loudly and not silently.

How the learning rate goes: up over the first steps, then down on a line towards a tenth.

How far a model has moved from its base on the tokens that it drew.

trl's private methods that `CustomerTrainer` overrides: a test holds them to the trl that is installed.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from trl import GRPOTrainer

from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.training.protocols import Played
from pytest_trace2evolve.training.recipe import Recipe
from pytest_trace2evolve.training.rollouts import Course, Game, Rollout, Told, groups_of, joined
from pytest_trace2evolve.training.shared_prefixes import can_share, rows_of, shared_logps

LAST_SHARE = 0.1
"""Of the rate: what it would come to one step after the last."""


def share(recipe: Recipe, step: int) -> float:
    """The share of the recipe's rate at a step, from 0."""
    if step < recipe.warm:
        return (step + 1) / (recipe.warm + 1)
    left = max(0.0, 1.0 - (step - recipe.warm) / max(1, recipe.steps - recipe.warm))
    return LAST_SHARE + (1.0 - LAST_SHARE) * left


def divergence(now: torch.Tensor, base: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """KL divergence from the base: (2,), nats over all tokens of the agent's, and how many these are.

    The estimator exp(d) − d − 1 with d = log p_base − log p (Schulman 2020, "Approximating KL divergence",
    k3): never negative, without bias.

    Args:
        now, base: (rows, width), log-probabilities of the tokens under the model and under its base.
        own: (rows, width), 1 where they are the agent's own.
    """
    apart = (base - now) * own
    each = (torch.exp(apart) - apart - 1) * own
    return torch.stack([each.sum(), own.sum().to(each.dtype)])


OVERRIDDEN: Mapping[str, tuple[str, ...]] = {
    "_tokenize_prompts": ("prompts",),
    "_generate_single_turn": (
        "prompt_ids",
        "images",
        "multimodal_fields",
        "num_generations",
        "has_tool_images",
    ),
    "_tool_call_loop": (
        "prompts",
        "prompt_ids",
        "completion_ids",
        "completions",
        "logprobs",
        "images",
        "multimodal_fields",
    ),
    "_generate_and_score_completions": ("inputs",),
    "_get_per_token_logps_and_entropies": (
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
        "compute_entropy",
        "compute_aux_loss",
        "pixel_values",
        "image_grid_thw",
        "num_images",
        "pixel_attention_mask",
        "spatial_shapes",
        "num_tiles",
        "image_sizes",
        "token_type_ids",
        "mm_token_type_ids",
        "image_position_ids",
    ),
}
"""trl's private methods that are overridden, and the parameters they must have."""


class CustomerTrainer(GRPOTrainer):  # type: ignore[misc]  # trl exports it, and types little
    """See the top of this file.

    Args:
        course: What is trained, and by whom answers are drawn.
        given: As trl takes it; `environment_factory` is a table of environments by name.
    """

    def __init__(self, course: Course, **given: Any) -> None:
        self._course = course
        self._wanted: torch.Tensor | None = None
        self._draws = 0
        self._sampled = -1
        self._open: list[Rollout] = []
        self.told = Told(course.done + 1)
        super().__init__(reward_funcs=[self._paid], **given)
        # On top of what wraps a model for several processes, its layers must not be called by themselves.
        alone = self.accelerator.num_processes == 1
        self._shares = course.recipe.shared and alone and can_share(self.model.config)

    def close(self) -> None:
        """Give back what the sampler holds."""
        if self._course.sampler is not None:
            self._course.sampler.close()

    @property
    def number(self) -> int:
        """The step at hand, from 0, over all runs."""
        return self._course.done + int(self.state.global_step)

    def _paid(self, environments: Sequence[Played], **columns: object) -> list[float]:
        """The environments' rewards; named to trl as a reward function."""
        rewards = [one._reward() for one in environments]
        for name, reward in zip(self._batch_environments, rewards, strict=True):
            if not math.isfinite(reward):
                raise TrainingError(
                    f"step {self.number + 1}: environment {name!r} gave a reward of {reward!r}; mend its "
                    "grade"
                )
        return rewards

    # Rollouts

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Play the step's groups; those of equal rewards are drawn anew as often as the recipe says."""
        recipe, step, rank = self._course.recipe, self.number, int(self.accelerator.process_index)
        self.told = Told(step + 1)
        self._diverged = torch.zeros(2, device=self.accelerator.device)
        # trl shuffles what it learns from: in an order that follows from the step, too.
        torch.manual_seed(recipe.seed * 1_000_003 + step)
        began = time.perf_counter()
        wanted = len(inputs) // recipe.rollouts
        parts: list[dict[str, Any]] = []
        equal: list[dict[str, Any]] = []
        played, differing, rewards, tokens = 0, 0, 0.0, 0.0
        for turn in range(recipe.redraws + 1):
            missing = self._most(wanted - len(parts))
            if missing == 0:
                break
            self._draws = self._course.draws(step, turn, rank)
            found = super()._generate_and_score_completions(self._course.rows(step, turn, rank, missing))
            paid = [one._reward() for one in self.environments]
            rewards += sum(paid)
            tokens += float((found["completion_mask"] * found["tool_mask"]).sum())
            played += missing
            for place, group in enumerate(groups_of(found, recipe.rollouts)):
                own = paid[place * recipe.rollouts : (place + 1) * recipe.rollouts]
                differs = max(own) > min(own)
                if not differs:
                    # In float32 the mean of equal rewards may differ from them in the last place.
                    group["advantages"] = torch.zeros_like(group["advantages"])
                differing += differs
                (parts if differs else equal).append(group)
            del parts[wanted:]
        parts += equal[: wanted - len(parts)]
        batch = joined(parts, self._tokenizer.pad_token_id)
        own = batch["completion_mask"] * batch["tool_mask"]
        batch["num_items_in_batch"] = self.accelerator.gather(own.sum()).sum()
        self._tell(played * recipe.rollouts, rewards, tokens, differing, played)
        self.told.seconds["rollouts"] = time.perf_counter() - began
        return batch

    def _tell(self, rollouts: int, rewards: float, tokens: float, differing: int, groups: int) -> None:
        """Note what was played, by all processes together."""
        mine = torch.tensor(
            [rollouts, rewards, tokens, differing, groups],
            device=self.accelerator.device,
            dtype=torch.float32,
        )
        told, sums = self.told, self.accelerator.reduce(mine, "sum").tolist()
        told.rollouts = int(sums[0])
        told.reward, told.tokens, told.informative = sums[1] / sums[0], sums[2] / sums[0], sums[3] / sums[4]

    def _most(self, missing: int) -> int:
        """As many as the process lacks that lacks the most: all must play equally many."""
        mine = torch.tensor([missing], device=self.accelerator.device)
        return int(self.accelerator.gather(mine).max())

    def _tokenize_prompts(self, prompts: list[Any]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """The server's tokens of what was said before the agent's turn."""
        found: dict[tuple[str, str], list[int]] = {}
        ids = []
        for name, one in zip(self._batch_environments, self.environments, strict=True):
            history = one._history()
            key = name, repr(history)
            if key not in found:
                found[key] = self._course.talk.prompt(name, history)
            ids.append(list(found[key]))
        return ids, None, {}

    def _generate_single_turn(
        self,
        prompt_ids: list[list[int]],
        images: Any,
        multimodal_fields: Any,
        num_generations: int,
        has_tool_images: bool = False,
    ) -> tuple[list[list[int]], Any]:
        """Draw an answer to each prompt.

        A sampler plays rollouts to their end, each as fast as it goes: trl then asks for the first answers
        alone, and finds the rest in `_tool_call_loop`.
        """
        if self._course.sampler is not None:
            model, fresh = self.accelerator.unwrap_model(self.model), self._sampled != self.number
            self._open = self._game().with_sampler(model, prompt_ids, self._draws, fresh=fresh)
            self._sampled = self.number
            return [one.first for one in self._open], None
        with self.told.timed("drawing"):
            # What is drawn follows from the step alone, wherever a run was interrupted.
            torch.manual_seed((self._course.recipe.seed * 1_000_003 + self._draws) % (1 << 63))
            self._draws += 1
            found: tuple[list[list[int]], Any] = super()._generate_single_turn(
                prompt_ids, images, multimodal_fields, num_generations, has_tool_images
            )
            return found

    def _tool_call_loop(
        self,
        prompts: Any,
        prompt_ids: list[list[int]],
        completion_ids: list[list[int]],
        completions: list[Any],
        logprobs: Any,
        images: Any,
        multimodal_fields: Any,
    ) -> tuple[list[list[int]], list[Any], list[list[int]], Any, int, int, list[list[Any]]]:
        """Let environments answer, and draw the agent's next answers, until all rollouts are over."""
        if self._course.sampler is None:
            self._open = self._game().in_turns(
                prompt_ids,
                completion_ids,
                logprobs,
                lambda prompts: self._generate_single_turn(prompts, None, {}, num_generations=1),
            )
        opened = self._open
        calls = sum(one.calls for one in opened)
        failed = sum(one.failed for one in opened)
        for said, one in zip(completions, opened, strict=True):
            said += one.heard
        return (
            [one.mask for one in opened],
            completions,
            [one.ids for one in opened],
            [one.logprobs for one in opened] if logprobs is not None else None,
            calls,
            failed,
            [[] for _ in opened],
        )

    def _game(self) -> Game:
        room = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        ends = self.eos_token_ids
        return Game(self._course, self.environments, self._batch_environments, ends, room, self.told)

    # The loss

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **others: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Log-probabilities (rows, width) of answers; what rows begin with alike is read once."""
        if not self._shares or compute_aux_loss:
            found: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None] = (
                super()._get_per_token_logps_and_entropies(
                    model,
                    input_ids,
                    attention_mask,
                    logits_to_keep,
                    batch_size,
                    compute_entropy,
                    compute_aux_loss,
                    **others,
                )
            )
            return found
        rows = rows_of(input_ids, attention_mask, logits_to_keep, self._wanted)
        network = self.accelerator.unwrap_model(model).get_base_model()
        with self.accelerator.autocast():
            logps, spread = shared_logps(
                network, rows, self._course.recipe.temperature, entropies=compute_entropy
            )
        return logps, spread, None

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """trl's loss; it must be a number.

        Raises:
            TrainingError: it is none.
        """
        recipe = self._course.recipe
        own = inputs["completion_mask"] * inputs["tool_mask"]
        if recipe.kl_every and self.number % recipe.kl_every == 0:
            with self._asked(own), self.told.timed("divergence"):
                # A step may have several backward passes.
                self._diverged += self._together(self._divergence(model, inputs, own), "sum")
                self.told.kl = float(self._diverged[0] / self._diverged[1].clamp(min=1))
        # A rollout without an advantage has no gradient: its log-probabilities are not needed.
        taught = own if recipe.beta else own * (inputs["advantages"] != 0).unsqueeze(-1)
        with self._asked(taught), self.told.timed("log-probabilities"):
            loss: torch.Tensor = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not bool(torch.isfinite(loss)):
            raise TrainingError(
                f"step {self.number + 1}: the loss is {float(loss)}: the training came apart; lower the rate"
            )
        self.told.loss += float(self._together(loss.detach(), "mean"))
        return loss

    def _together(self, mine: torch.Tensor, how: str) -> torch.Tensor:
        """What all processes have of something, summed or averaged."""
        found: torch.Tensor = self.accelerator.reduce(mine, how)
        return found

    @contextmanager
    def _asked(self, wanted: torch.Tensor) -> Iterator[None]:
        """Only these tokens are asked about: what nobody learns from need not be foreseen."""
        self._wanted = wanted
        try:
            yield
        finally:
            self._wanted = None

    def _divergence(self, model: Any, inputs: Mapping[str, Any], own: torch.Tensor) -> torch.Tensor:
        """KL divergence from the base on these rollouts: (2,), nats over the agent's tokens, and those."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        width = inputs["completion_ids"].size(1)
        adapted = self.accelerator.unwrap_model(model)
        with torch.no_grad():
            now, *_ = self._get_per_token_logps_and_entropies(model, ids, mask, width)
            with adapted.disable_adapter():
                base, *_ = self._get_per_token_logps_and_entropies(model, ids, mask, width)
        return divergence(now, base, own)
