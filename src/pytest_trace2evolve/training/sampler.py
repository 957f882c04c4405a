"""Draws answers from a model in training, with the server's engine in this process."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.serving.engine import Engine, EngineError, Job, Row
from pytest_trace2evolve.serving.loading import Decoder

MAX_PREFIX_BYTES = 1 << 30
"""Maximum bytes of stored prefixes of ended rows; for a small model, all rollouts of a step fit."""

MAX_ROWS = 256
"""Maximum number of rows that are decoded together."""

ADMITTED_SHARE = 0.5
"""Share of the running rows at which waiting rows join them. Small groups cost as much as large ones."""

OnAnswer = Callable[[int, list[int]], Job | None]
"""Called with the rollout's number and the answer's tokens; returns the rollout's next request, or None."""


class MergedModel(Decoder):
    """A copy of the base with the adapter merged into its weights.

    Decoding costs no more than with the base; in a small model, the layers of peft would cost more than the
    model's own layers. Each merge starts from the unchanged base, so nothing accumulates over the steps.

    Args:
        base: The base, before an adapter was added.
        end_tokens: Tokens that end an answer.
    """

    def __init__(self, base: Any, end_tokens: frozenset[int]) -> None:
        super().__init__(copy.deepcopy(base), end_tokens)

    def merge_adapter(self, peft_model: Any) -> None:
        """Merge the current weights of an adapter into the copy; `peft_model` is the `PeftModel`."""
        from peft.tuners.lora import LoraLayer

        device = next(peft_model.parameters()).device
        if device != self.device:  # a trainer moves its model to the training device
            self._model, self.device = self._model.to(device), device
        modules = peft_model.get_base_model().named_modules()
        layers: list[tuple[str, Any]] = [
            named_module for named_module in modules if isinstance(named_module[1], LoraLayer)
        ]
        with torch.no_grad():
            for name, layer in layers:
                delta = sum(layer.get_delta_weight(adapter) for adapter in layer.active_adapters)
                self._model.get_submodule(name).weight.copy_(layer.get_base_layer().weight + delta)


class EngineSampler:
    """Draws answers; prefixes are reused until the weights change.

    Args:
        base: The base, before an adapter was added.
        end_tokens: Tokens that end an answer.
    """

    def __init__(self, base: Any, end_tokens: frozenset[int]) -> None:
        self._model = MergedModel(base, end_tokens)
        self._engine = Engine(self._model, prefix_bytes=MAX_PREFIX_BYTES)

    def play(
        self, model: Any, requests: Sequence[Job], on_answer: OnAnswer, *, weights_changed: bool
    ) -> None:
        """Draw answers until no rollout requests more; rollouts do not wait for each other.

        Args:
            model: The model in training, a `PeftModel`.
            requests: The first request of each rollout.
            on_answer: Called with each answer.
            weights_changed: Whether the weights changed since the last call.

        Raises:
            TrainingError: the model returned NaN, or memory is insufficient.
        """
        if weights_changed:
            self._model.merge_adapter(model)
            self._engine = Engine(self._model, prefix_bytes=MAX_PREFIX_BYTES)
        try:
            self._play(requests, on_answer)
        except EngineError as error:
            raise TrainingError(
                f"answers cannot be drawn: {error}; lower the rate if the model returns NaN, or groups or "
                "rollouts if memory is insufficient"
            ) from None

    def _play(self, requests: Sequence[Job], on_answer: OnAnswer) -> None:
        engine = self._engine
        rollouts = {engine.make_row(request): rollout for rollout, request in enumerate(requests)}
        waiting = list(rollouts)
        while rollouts:
            admitted: list[Row] = []
            if len(waiting) >= ADMITTED_SHARE * engine.running_count:
                count = MAX_ROWS - engine.running_count
                admitted, waiting = waiting[:count], waiting[count:]
            engine.process(admitted)
            for row in [row for row in rollouts if row.future.done()]:
                rollout = rollouts.pop(row)
                if (request := on_answer(rollout, row.future.result().tokens)) is not None:
                    waiting.append(engine.make_row(request))
                    rollouts[waiting[-1]] = rollout
