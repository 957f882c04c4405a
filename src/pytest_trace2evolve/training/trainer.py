"""A `GRPOTrainer` whose rollouts include a customer, and whose random draws depend only on the step number.

trl ends a rollout at the first text without a tool call. Here the customer answers that text, and the rollout
continues until its environment ends it. Tool results and customer turns are appended as tokens of the
server's own template, and the model does not learn from these tokens.

`OVERRIDDEN_METHODS` lists the private methods of trl that are overridden, with their parameters. A test
compares the list with the installed trl, so an incompatible update fails the test.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from trl import GRPOTrainer

from pytest_trace2evolve.environments.trl_environment import TrlEnvironment
from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.training.chat_encoding import ChatEncoder
from pytest_trace2evolve.training.recipe import Recipe
from pytest_trace2evolve.training.rollouts import (
    Rollout,
    RolloutPlayer,
    StepStats,
    derive_turn_seed,
    join_groups,
    scenario_rows,
    split_groups,
)
from pytest_trace2evolve.training.sampler import EngineSampler
from pytest_trace2evolve.training.shared_prefixes import can_share, shared_logps, unpadded_rows

OVERRIDDEN_METHODS: Mapping[str, tuple[str, ...]] = {
    "_tokenize_prompts": ("prompts",),
    "_generate_single_turn": (
        *("prompt_ids", "images", "multimodal_fields", "num_generations", "has_tool_images"),
    ),
    "_tool_call_loop": (
        *("prompts", "prompt_ids", "completion_ids", "completions", "logprobs", "images"),
        *("multimodal_fields",),
    ),
    "_generate_and_score_completions": ("inputs",),
    "_get_per_token_logps_and_entropies": (
        *("model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"),
        *("compute_aux_loss", "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask"),
        *("spatial_shapes", "num_tiles", "image_sizes", "token_type_ids", "mm_token_type_ids"),
        *("image_position_ids",),
    ),
}

Logps = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""Log-probabilities of answers, entropies, and trl's auxiliary loss."""


class CustomerTrainer(GRPOTrainer):  # type: ignore[misc]  # trl has few type hints
    """A `GRPOTrainer` with a customer in its rollouts; see the module's docstring.

    Args:
        recipe: The recipe.
        names: The names of the environments, which alternate.
        encoder: Converts conversations to tokens.
        sampler: Draws answers; None lets trl draw them.
        steps_done: The number of steps that an earlier process completed.
        options: Arguments of `GRPOTrainer`; `environment_factory` maps names to environments.
    """

    def __init__(
        self,
        recipe: Recipe,
        names: Sequence[str],
        encoder: ChatEncoder,
        sampler: EngineSampler | None,
        steps_done: int,
        **options: Any,
    ) -> None:
        self._recipe = recipe
        self._names = names
        self._encoder = encoder
        self._sampler = sampler
        self._steps_done = steps_done
        self._selected_tokens: torch.Tensor | None = None
        self._turn_seed = 0
        self._sampled_step = -1
        self._rollouts: list[Rollout] = []
        self.stats = StepStats(steps_done + 1)
        super().__init__(reward_funcs=[self._collect_rewards], **options)
        # The layers of a model that is wrapped for several processes must not be called directly.
        is_single_process = self.accelerator.num_processes == 1
        self._can_share_prefixes = recipe.shared and is_single_process and can_share(self.model.config)

    def close(self) -> None:
        """Close the sampler, if there is one."""
        if self._sampler is not None:
            self._sampler.close()

    @property
    def step(self) -> int:
        """The current step, from 0, including the steps of earlier processes."""
        return self._steps_done + int(self.state.global_step)

    def _collect_rewards(self, environments: Sequence[TrlEnvironment], **columns: object) -> list[float]:
        """Return the environments' rewards; trl calls this method as its reward function."""
        rewards = [environment._reward() for environment in environments]
        for name, reward in zip(self._batch_environments, rewards, strict=True):
            if not math.isfinite(reward):
                raise TrainingError(
                    f"step {self.step + 1}: environment {name!r} gave the reward {reward!r}, which is not "
                    "finite; fix its grade"
                )
        return rewards

    # Rollouts

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Play a step's groups, and replace groups with equal rewards up to `recipe.redraws` times."""
        recipe, step, rank = self._recipe, self.step, int(self.accelerator.process_index)
        stats = self.stats = StepStats(step + 1)
        self._divergence_sums = torch.zeros(2, device=self.accelerator.device)
        torch.manual_seed(recipe.seed * 1_000_003 + step)  # trl shuffles the batch
        start = time.perf_counter()
        group_count = len(inputs) // recipe.rollouts
        informative_groups: list[dict[str, Any]] = []
        equal_groups: list[dict[str, Any]] = []
        # Sums of groups, of groups whose rewards differ, of rewards, and of the agent's tokens.
        sums = torch.zeros(4, dtype=torch.float64)
        for turn in range(recipe.redraws + 1):
            missing_count = self._max_over_processes(group_count - len(informative_groups))
            if missing_count == 0:
                break
            self._turn_seed = derive_turn_seed(recipe, step, turn, rank)
            rows = scenario_rows(recipe, self._names, step, turn, rank, missing_count)
            batch = super()._generate_and_score_completions(rows)
            rewards = [environment._reward() for environment in self.environments]
            token_sum = float((batch["completion_mask"] * batch["tool_mask"]).sum())
            sums += torch.tensor([missing_count, 0, sum(rewards), token_sum])
            for index, group in enumerate(split_groups(batch, recipe.rollouts)):
                group_rewards = rewards[index * recipe.rollouts : (index + 1) * recipe.rollouts]
                if max(group_rewards) > min(group_rewards):
                    sums[1] += 1
                    informative_groups.append(group)
                else:
                    # In float32 the mean of equal rewards may differ from each reward in the last place.
                    group["advantages"] = torch.zeros_like(group["advantages"])
                    equal_groups.append(group)
            del informative_groups[group_count:]
        batch = join_groups(
            informative_groups + equal_groups[: group_count - len(informative_groups)],
            self._tokenizer.pad_token_id,
        )
        own_tokens = batch["completion_mask"] * batch["tool_mask"]
        batch["num_items_in_batch"] = self.accelerator.gather(own_tokens.sum()).sum()
        sums = self.accelerator.reduce(sums.float().to(self.accelerator.device), "sum")
        group_sum, informative_sum, reward_sum, token_sum = sums.tolist()
        stats.rollouts = int(group_sum) * recipe.rollouts
        stats.reward, stats.tokens = reward_sum / stats.rollouts, token_sum / stats.rollouts
        stats.informative = informative_sum / group_sum
        stats.seconds["rollouts"] = time.perf_counter() - start
        return batch

    def _max_over_processes(self, number: int) -> int:
        """Return the largest number of all processes, because all must play the same number of groups."""
        return int(self.accelerator.gather(torch.tensor([number], device=self.accelerator.device)).max())

    def _tokenize_prompts(self, prompts: list[Any]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Return the tokens of each conversation before the agent's turn, in the server's format."""
        prompts_by_key: dict[tuple[str, str], list[int]] = {}
        ids = []
        for name, environment in zip(self._batch_environments, self.environments, strict=True):
            history = environment._history()
            key = name, repr(history)
            if key not in prompts_by_key:
                prompts_by_key[key] = self._encoder.prompt(name, history)
            ids.append(list(prompts_by_key[key]))
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

        A sampler plays whole rollouts, each at its own pace. trl then gets the first answers from this method
        and the rest from `_tool_call_loop`.
        """
        if self._sampler is not None:
            model = self.accelerator.unwrap_model(self.model)
            weights_changed = self._sampled_step != self.step
            self._rollouts = self._make_player().play_concurrently(
                self._sampler, model, prompt_ids, self._turn_seed, weights_changed=weights_changed
            )
            self._sampled_step = self.step
            return [rollout.first_answer for rollout in self._rollouts], None
        with self.stats.measure_time("drawing"):
            # The seed depends on the step, so a resumed training run draws the same answers.
            torch.manual_seed((self._recipe.seed * 1_000_003 + self._turn_seed) % (1 << 63))
            self._turn_seed += 1
            answers: tuple[list[list[int]], Any] = super()._generate_single_turn(
                prompt_ids, images, multimodal_fields, num_generations, has_tool_images
            )
            return answers

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
        """Alternate between environments and the agent until all rollouts have ended."""
        if self._sampler is None:
            self._rollouts = self._make_player().play_in_lockstep(
                prompt_ids,
                completion_ids,
                logprobs,
                lambda prompts: self._generate_single_turn(prompts, None, {}, num_generations=1),
            )
        rollouts = self._rollouts
        return (
            [rollout.mask for rollout in rollouts],
            completions,
            [rollout.ids for rollout in rollouts],
            [rollout.logprobs for rollout in rollouts] if logprobs is not None else None,
            # The numbers of tool calls and of failed tool calls, which trl only reports.
            *(0, 0),
            [[] for _ in rollouts],
        )

    def _make_player(self) -> RolloutPlayer:
        return RolloutPlayer(
            self._recipe,
            self._encoder,
            self.environments,
            self._batch_environments,
            end_tokens=self.eos_token_ids,
            context_length=getattr(self.model.config.get_text_config(), "max_position_embeddings", None),
            stats=self.stats,
        )

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
        **kwargs: Any,
    ) -> Logps:
        """Return the log-probabilities of answers (rows, width), computing common beginnings of rows once."""
        if not self._can_share_prefixes or compute_aux_loss:
            result: Logps = super()._get_per_token_logps_and_entropies(
                model,
                input_ids,
                attention_mask,
                logits_to_keep,
                batch_size,
                compute_entropy,
                compute_aux_loss,
                **kwargs,
            )
            return result
        rows = unpadded_rows(input_ids, attention_mask, logits_to_keep, self._selected_tokens)
        network = self.accelerator.unwrap_model(model).get_base_model()
        with self.accelerator.autocast():
            logps, entropies = shared_logps(
                network, rows, self._recipe.temperature, entropies=compute_entropy
            )
        return logps, entropies, None

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Return trl's loss, which must be finite.

        Raises:
            TrainingError: the loss is not finite.
        """
        recipe = self._recipe
        own_mask = inputs["completion_mask"] * inputs["tool_mask"]
        if recipe.kl_every and self.step % recipe.kl_every == 0:
            with self._select_tokens(own_mask), self.stats.measure_time("divergence"):
                divergence_sums = self._measure_divergence(model, inputs, own_mask)
                # A step may have several backward passes.
                self._divergence_sums += self.accelerator.reduce(divergence_sums, "sum")
                self.stats.kl = float(self._divergence_sums[0] / self._divergence_sums[1].clamp(min=1))
        # A rollout without an advantage has no gradient, so its log-probabilities are not needed.
        learned_mask = own_mask if recipe.beta else own_mask * (inputs["advantages"] != 0).unsqueeze(-1)
        with self._select_tokens(learned_mask), self.stats.measure_time("log-probabilities"):
            loss: torch.Tensor = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not bool(torch.isfinite(loss)):
            raise TrainingError(
                f"step {self.step + 1}: the loss is {float(loss)}, so the training diverged; lower the rate"
            )
        self.stats.loss += float(self.accelerator.reduce(loss.detach(), "mean"))
        return loss

    @contextmanager
    def _select_tokens(self, mask: torch.Tensor) -> Iterator[None]:
        """Within the block, compute log-probabilities only of the tokens that `mask` selects."""
        self._selected_tokens = mask
        try:
            yield
        finally:
            self._selected_tokens = None

    def _measure_divergence(
        self, model: Any, inputs: Mapping[str, Any], own_mask: torch.Tensor
    ) -> torch.Tensor:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        width = inputs["completion_ids"].size(1)
        with torch.no_grad():
            logps, *_ = self._get_per_token_logps_and_entropies(model, ids, mask, width)
            with self.accelerator.unwrap_model(model).disable_adapter():
                base_logps, *_ = self._get_per_token_logps_and_entropies(model, ids, mask, width)
        return kl_divergence(logps, base_logps, own_mask)


def kl_divergence(logps: torch.Tensor, base_logps: torch.Tensor, own_mask: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the KL divergence from the base in nats, and the number of the agent's tokens.

    The divergence is summed over these tokens. The estimator is exp(d) − d − 1 with d = log p_base − log p
    (Schulman 2020, "Approximating KL divergence", k3). It is unbiased and never negative.

    Args:
        logps, base_logps: Of shape (rows, width): log-probabilities of the tokens under the model and under
            its base.
        own_mask: Of shape (rows, width): 1 for the agent's own tokens.
    """
    difference = (base_logps - logps) * own_mask
    per_token = (torch.exp(difference) - difference - 1) * own_mask
    return torch.stack([per_token.sum(), own_mask.sum().to(per_token.dtype)])
