"""`GRPOTrainer` whose rollouts hold a customer, and whose steps follow from their numbers alone.

trl ends a rollout at the first text without a tool call; here the customer answers it, and the rollout goes
on until its environment says that it is over. What comes back, tools' results and customer's turns, is
appended as tokens of the server's own template and learnt from by nobody.

What of trl's private methods is overridden stands in `OVERRIDDEN`, with their parameters: a test holds that
table to the trl that is installed, so that an update fails loudly and not silently.
"""

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from trl import GRPOTrainer

from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.training.grpo.batches import groups_of, joined
from pytest_trace2evolve.training.grpo.played import Rollout, Told
from pytest_trace2evolve.training.grpo.protocols import Played, Sampler, Talk, Wish
from pytest_trace2evolve.training.grpo.recipe import Recipe
from pytest_trace2evolve.training.grpo.shared import can_share, rows_of, shared_logps

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
        if not all(map(math.isfinite, rewards)):
            raise TrainingError(
                f"step {self.number + 1}: an environment gave a reward of {min(rewards)!r}; mend its grade"
            )
        return rewards

    # Rollouts

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Play the step's groups; those of equal rewards are drawn anew as often as the recipe says."""
        recipe, step = self._course.recipe, self.number
        self.told = Told(step + 1)
        # trl shuffles what it learns from: in an order that follows from the step, too.
        torch.manual_seed(recipe.seed * 1_000_003 + step)
        began = time.perf_counter()
        wanted = len(inputs) // recipe.rollouts
        parts: list[dict[str, Any]] = []
        equal: list[dict[str, Any]] = []
        played, differing, rewards = 0, 0, 0.0
        for turn in range(recipe.redraws + 1):
            missing = self._most(wanted - len(parts))
            if missing == 0:
                break
            found = super()._generate_and_score_completions(self._rows(step, turn, missing))
            rewards += sum(one._reward() for one in self.environments)
            self.told.tokens += float((found["completion_mask"] * found["tool_mask"]).sum())
            played += missing
            for group in groups_of(found, recipe.rollouts):
                differs = bool(group["advantages"].abs().max() > 0)
                differing += differs
                (parts if differs else equal).append(group)
            del parts[wanted:]
        parts += equal[: wanted - len(parts)]
        batch = joined(parts, self._tokenizer.pad_token_id)
        own = batch["completion_mask"] * batch["tool_mask"]
        batch["num_items_in_batch"] = self.accelerator.gather(own.sum()).sum()
        told = self.told
        told.rollouts = played * recipe.rollouts
        told.reward, told.informative = rewards / told.rollouts, differing / played
        told.tokens /= told.rollouts
        told.seconds["rollouts"] = time.perf_counter() - began
        return batch

    def _most(self, missing: int) -> int:
        """As many as the process lacks that lacks the most: all must play equally many."""
        mine = torch.tensor([missing], device=self.accelerator.device)
        return int(self.accelerator.gather(mine).max())

    def _rows(self, step: int, turn: int, groups: int) -> list[dict[str, Any]]:
        """The rows of a step: its scenarios follow from the seed and the numbers alone."""
        recipe, names = self._course.recipe, self._course.names
        rank = int(self.accelerator.process_index)
        rows = []
        for place in range(groups):
            drawn = random.Random(f"{recipe.seed}/{step}/{turn}/{rank}/{place}")
            name = names[(step * recipe.groups + turn + rank + place) % len(names)]
            seed = recipe.first_scenario + drawn.randrange(recipe.scenarios)
            # trl wants a prompt in every row; the real one is the environment's history.
            row = {"prompt": [{"role": "user", "content": ""}], "environment": name, "seed": seed}
            rows += [row] * recipe.rollouts
        self._draws = (step * (recipe.redraws + 1) + turn) * 1_000_003 + rank * 10_007
        return rows

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
            self._open = self._played(prompt_ids)
            return [one.first for one in self._open], None
        with self._timed("drawing"):
            # What is drawn follows from the step alone, wherever a run was interrupted.
            torch.manual_seed((self._course.recipe.seed * 1_000_003 + self._draws) % (1 << 63))
            self._draws += 1
            found: tuple[list[list[int]], Any] = super()._generate_single_turn(
                prompt_ids, images, multimodal_fields, num_generations, has_tool_images
            )
            return found

    def _played(self, prompt_ids: list[list[int]]) -> list[Rollout]:
        """Play all rollouts to their end with the sampler."""
        recipe, sampler = self._course.recipe, self._course.sampler
        assert sampler is not None
        opened = [Rollout(row, list(prompt)) for row, prompt in enumerate(prompt_ids)]
        number = recipe.seed * 1_000_000_007 + self._draws

        def wish(one: Rollout) -> Wish:
            seed = (number + one.row + len(one.ids) * 1_009) % (1 << 63)
            return Wish(one.prompt + one.ids, seed, recipe.answer_tokens)

        def then(row: int, answer: list[int]) -> Wish | None:
            one = opened[row]
            one.take(answer)
            return wish(one) if self._answered(one) else None

        before = self.told.seconds.get("environments", 0.0)
        with self._timed("drawing"):
            sampler.play(
                self.accelerator.unwrap_model(self.model),
                [wish(one) for one in opened],
                then,
                temperature=recipe.temperature,
                fresh=self._sampled != self.number,
            )
        self._sampled = self.number
        self.told.seconds["drawing"] -= self.told.seconds.get("environments", 0.0) - before
        return opened

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
            self._open = self._in_turns(prompt_ids, completion_ids, logprobs)
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

    def _in_turns(
        self, prompt_ids: list[list[int]], answers: list[list[int]], logprobs: Any
    ) -> list[Rollout]:
        """Play all rollouts to their end, whose first answers are there: a turn of all at a time."""
        opened = [Rollout(row, list(prompt)) for row, prompt in enumerate(prompt_ids)]
        going = opened
        while going:
            for place, one in enumerate(going):
                one.take(answers[place], logprobs[place] if logprobs is not None else None)
            going = [one for one in going if self._answered(one)]
            if going:
                answers, logprobs = self._generate_single_turn(
                    [one.prompt + one.ids for one in going], None, {}, num_generations=1
                )
        return opened

    def _answered(self, one: Rollout) -> bool:
        """Let the environment answer a rollout; whether the agent is to go on."""
        with self._timed("environments"):
            talk, environment = self._course.talk, self.environments[one.row]
            before = one.prompt + one.ids[: len(one.ids) - len(one.answer)]
            message = talk.said(before, one.answer, self._batch_environments[one.row])
            if message is None:  # whoever says nothing ends the rollout, as in the server's own path
                return False
            back = environment._step(message)
            one.hear(message, back)
            if environment._done or not back:
                return False
            ended = bool(one.answer) and one.answer[-1] in self.eos_token_ids
            suffix = talk.following(message, back, ended=ended)
            length, answer = len(one.ids) + len(suffix), self._course.recipe.answer_tokens
            if length + answer > self._course.recipe.rollout_tokens or not self._fits(
                len(one.prompt) + length + answer
            ):
                return False
            one.follow(suffix)
            return True

    def _fits(self, tokens: int) -> bool:
        """Whether the model has room for so many tokens."""
        most = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return most is None or tokens <= most

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
            with self._asked(own), self._timed("divergence"):
                self.told.kl = self._divergence(model, inputs, own)
        # A rollout without an advantage has no gradient: its log-probabilities are not needed.
        taught = own if recipe.beta else own * (inputs["advantages"] != 0).unsqueeze(-1)
        with self._asked(taught), self._timed("log-probabilities"):
            loss: torch.Tensor = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not bool(torch.isfinite(loss)):
            raise TrainingError(
                f"step {self.number + 1}: the loss is {float(loss)}: the training came apart; lower the rate"
            )
        self.told.loss += float(loss.detach())
        return loss

    @contextmanager
    def _asked(self, wanted: torch.Tensor) -> Iterator[None]:
        """Only these tokens are asked about: what nobody learns from need not be foreseen."""
        self._wanted = wanted
        try:
            yield
        finally:
            self._wanted = None

    def _divergence(self, model: Any, inputs: Mapping[str, Any], own: torch.Tensor) -> float:
        """KL divergence from the base on these rollouts, nats a token of the agent's.

        The estimator exp(d) − d − 1 with d = log p_base − log p (Schulman 2020, "Approximating KL
        divergence", k3): never negative, without bias.
        """
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        width = inputs["completion_ids"].size(1)
        adapted = self.accelerator.unwrap_model(model)
        with torch.no_grad():
            now, *_ = self._get_per_token_logps_and_entropies(model, ids, mask, width)
            with adapted.disable_adapter():
                base, *_ = self._get_per_token_logps_and_entropies(model, ids, mask, width)
        apart = (base - now) * own
        each = (torch.exp(apart) - apart - 1) * own
        return float(each.sum() / own.sum().clamp(min=1))

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = self.told.seconds
            spent[what] = spent.get(what, 0.0) + time.perf_counter() - began
