"""Answers of a model in training, drawn by the server's engine in this process."""

from collections.abc import Callable, Sequence
from typing import Any

from pytest_trace2evolve.serving.engine import Engine, Job
from pytest_trace2evolve.serving.live import FoldedModel
from pytest_trace2evolve.training.grpo.protocols import Wish

PREFIX_BYTES = 1 << 30
"""What is kept of ended rows; all of a step's rollouts fit for a small model."""


class EngineSampler:
    """Draws answers; what was worked out of prompts is used again until the weights change.

    Args:
        base: The base, before an adapter was put on it.
        ends: Tokens that end an answer.
        rows: Rows that are decoded together at most.
    """

    def __init__(self, base: Any, ends: frozenset[int], rows: int = 256) -> None:
        self._model = FoldedModel(base, ends)
        self._rows = rows
        self._engine: Engine | None = None

    def sample(
        self, model: Any, wishes: Sequence[Wish], *, temperature: float, fresh: bool
    ) -> list[list[int]]:
        """Answers in the order of the wishes, each with the token that ended it.

        Raises:
            EngineError: the model gave no numbers.
        """
        if fresh or self._engine is None:
            self.close()
            self._model.fold(model)
            self._engine = Engine(self._model, rows=self._rows, prefix_bytes=PREFIX_BYTES)
            self._read([list(one.prompt) for one in wishes])
        engine = self._engine
        jobs = [
            Job(one.prompt, most=one.most, temperature=temperature, seed=one.seed) for one in wishes
        ]
        futures = [engine.submit(one) for one in jobs]
        return [future.result().tokens for future in futures]

    def close(self) -> None:
        """End the engine's thread, and forget what was worked out."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _read(self, prompts: Sequence[list[int]]) -> None:
        """Work each prompt of a group out once, the first alone: all begin with what it begins with."""
        assert self._engine is not None
        different = [list(one) for one in dict.fromkeys(map(tuple, prompts))]
        for part in (different[:1], different[1:]):
            futures = [self._engine.submit(Job(one, seed=0)) for one in part]
            for future in futures:
                future.result()


def sampler_of(ends: frozenset[int]) -> Callable[[Any], EngineSampler]:
    """Makes the sampler of a base."""
    return lambda base: EngineSampler(base, ends)
