"""A `GRPOTrainer` whose rollouts include a customer, and whose random draws depend only on the step number.

trl ends a rollout at the first text without a tool call. Here the customer answers that text, and the rollout
continues until its environment ends it. So trl gets whole rollouts from its `rollout_func`. Tool results and
customer turns are appended as tokens of the server's own template, and the model does not learn from these
tokens.

`PRIVATE_METHODS` lists the private methods of trl that are overridden or called, with their parameters. A
test compares the list with the installed trl, so an incompatible update fails the test.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from trl import GRPOTrainer

from pytest_trace2evolve.environments.environment import ScenarioEnvironment
from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.training.chat_encoding import ChatEncoder
from pytest_trace2evolve.training.recipe import Recipe
from pytest_trace2evolve.training.rollouts import (
    RolloutPlayer,
    Scenario,
    StepStats,
    choose_scenarios,
    derive_turn_seed,
    join_groups,
    split_groups,
)
from pytest_trace2evolve.training.sampler import EngineSampler
from pytest_trace2evolve.training.shared_prefixes import can_share, shared_logps, unpadded_rows

PRIVATE_METHODS: Mapping[str, tuple[str, ...]] = {
    "_generate_single_turn": (
        *("prompt_ids", "images", "multimodal_fields", "num_generations", "has_tool_images"),
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
        environments: Factories of the environments, which alternate, by name.
        encoder: Converts conversations to tokens.
        sampler: Draws answers; None lets trl draw them.
        steps_done: The number of steps that an earlier process completed.
        options: Arguments of `GRPOTrainer`.

    Attributes:
        played: The environments of the rollouts that were played last.
    """

    def __init__(
        self,
        recipe: Recipe,
        environments: Mapping[str, Callable[[], ScenarioEnvironment]],
        encoder: ChatEncoder,
        sampler: EngineSampler | None,
        steps_done: int,
        **options: Any,
    ) -> None:
        self._recipe = recipe
        self._factories = environments
        self._encoder = encoder
        self._sampler = sampler
        self._steps_done = steps_done
        self._selected_tokens: torch.Tensor | None = None
        self._turn_seed = 0
        self._sampled_step = -1
        self._scenarios: Sequence[Scenario] = ()
        self.played: list[ScenarioEnvironment] = []
        self.stats = StepStats(steps_done + 1)
        super().__init__(reward_funcs=[self._collect_rewards], rollout_func=self._play, **options)
        # The layers of a model that is wrapped for several processes must not be called directly.
        is_single_process = self.accelerator.num_processes == 1
        self._can_share_prefixes = recipe.shared and is_single_process and can_share(self.model.config)

    @property
    def step(self) -> int:
        """The current step, from 0, including the steps of earlier processes."""
        return self._steps_done + int(self.state.global_step)

    def _collect_rewards(self, **columns: object) -> list[float]:
        """Return the rewards of the rollouts; trl calls this method as its reward function."""
        rewards = [environment.reward() for environment in self.played]
        for scenario, reward in zip(self._scenarios, rewards, strict=True):
            if not math.isfinite(reward):
                raise TrainingError(
                    f"step {self.step + 1}: environment {scenario.environment!r} gave the reward {reward!r}, "
                    "which is not finite; fix its grade"
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
            self._scenarios = choose_scenarios(recipe, list(self._factories), step, turn, rank, missing_count)
            # trl requires a prompt in every row, and passes it on to `_play`.
            batch = super()._generate_and_score_completions([{"prompt": ""}] * len(self._scenarios))
            rewards = [environment.reward() for environment in self.played]
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

    def _play(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Play the chosen scenarios; trl calls this method as its rollout function."""
        names = [scenario.environment for scenario in self._scenarios]
        self.played = [self._factories[name]() for name in names]
        with self.stats.measure_time("environments"):
            prompts_by_key: dict[tuple[str, str], list[int]] = {}
            ids = []
            for scenario, environment in zip(self._scenarios, self.played, strict=True):
                history = environment.reset(scenario.seed)
                key = scenario.environment, repr(history)
                if key not in prompts_by_key:
                    prompts_by_key[key] = self._encoder.prompt(scenario.environment, history)
                ids.append(prompts_by_key[key])
        player = RolloutPlayer(
            self._recipe,
            self._encoder,
            self.played,
            names,
            end_tokens=self.eos_token_ids,
            context_length=getattr(self.model.config.get_text_config(), "max_position_embeddings", None),
            stats=self.stats,
        )
        if self._sampler is None:
            rollouts = player.play_in_lockstep(ids, self._draw_answers)
        else:
            model = self.accelerator.unwrap_model(self.model)
            weights_changed = self._sampled_step != self.step
            rollouts = player.play_concurrently(
                self._sampler, model, ids, self._turn_seed, weights_changed=weights_changed
            )
            self._sampled_step = self.step
        return {
            "prompt_ids": ids,
            "completion_ids": [rollout.ids for rollout in rollouts],
            "env_mask": [rollout.mask for rollout in rollouts],
            "logprobs": [rollout.logprobs for rollout in rollouts] if self.use_vllm else None,
        }

    def _draw_answers(self, prompts: list[list[int]], copies: int) -> tuple[list[list[int]], Any]:
        """Let trl draw an answer to each prompt; each prompt stands `copies` times in a row."""
        with self.stats.measure_time("drawing"):
            # The seed depends on the step, so a resumed training run draws the same answers.
            torch.manual_seed((self._recipe.seed * 1_000_003 + self._turn_seed) % (1 << 63))
            self._turn_seed += 1
            answers: tuple[list[list[int]], Any] = self._generate_single_turn(prompts, None, {}, copies)
            return answers

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
