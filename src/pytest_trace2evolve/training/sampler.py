"""Draws answers from a model in training, with the server's engine in this process."""

import copy
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.serving.engine import Engine, EngineError, Generation, Job
from pytest_trace2evolve.serving.loading import Decoder

MAX_PREFIX_BYTES = 1 << 30
"""Maximum bytes of stored prefixes of ended rows; for a small model, all rollouts of a step fit."""

MAX_ROWS = 256
"""Maximum number of rows that are decoded together."""


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
        self._engine: Engine | None = None

    def play(
        self, model: Any, requests: Sequence[Job], on_answer: OnAnswer, *, weights_changed: bool
    ) -> None:
        """Draw answers until no rollout requests more; rollouts do not wait for each other.

        Args:
            model: The model in training, a `PeftModel`.
            requests: The first request of each rollout.
            on_answer: Called with each answer, always in the calling thread.
            weights_changed: Whether the weights changed since the last call.

        Raises:
            TrainingError: the model returned NaN, or memory is insufficient.
        """
        if weights_changed or self._engine is None:
            self.close()
            self._model.merge_adapter(model)
            # The engine rejects no request, because there are never more requests than rollouts.
            self._engine = Engine(
                self._model,
                max_rows=MAX_ROWS,
                max_waiting=max(1, len(requests)),
                prefix_bytes=MAX_PREFIX_BYTES,
            )
        try:
            _play_rollouts(self._engine, requests, on_answer)
        except EngineError as error:
            raise TrainingError(
                f"answers cannot be drawn: {error}; lower the rate if the model returns NaN, or groups or "
                "rollouts if memory is insufficient"
            ) from None

    def close(self) -> None:
        """End the engine's thread and drop its prefixes."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def _play_rollouts(engine: Engine, requests: Sequence[Job], on_answer: OnAnswer) -> None:
    # Each prompt is prefilled once, and the first one alone, because all prompts share its beginning.
    prompts = list(dict.fromkeys(tuple(request.prompt) for request in requests))
    for batch in (prompts[:1], prompts[1:]):
        for future in [engine.submit(Job(prompt, seed=0)) for prompt in batch]:
            future.result()
    answers: queue.SimpleQueue[tuple[int, Future[Generation]]] = queue.SimpleQueue()

    def submit(rollout: int, request: Job) -> None:
        engine.submit(request).add_done_callback(lambda future: answers.put((rollout, future)))

    for rollout, request in enumerate(requests):
        submit(rollout, request)
    running_count = len(requests)
    while running_count:
        rollout, future = answers.get()
        next_request = on_answer(rollout, future.result().tokens)
        if next_request is None:
            running_count -= 1
        else:
            submit(rollout, next_request)
