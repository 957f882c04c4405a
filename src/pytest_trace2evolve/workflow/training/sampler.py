"""Answers of a model in training, drawn by the server's engine in this process."""

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.serving.engine import Answer, Engine, EngineError, Job
from pytest_trace2evolve.serving.live import FoldedModel
from pytest_trace2evolve.training.grpo.protocols import Then, Wish

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

    def play(
        self, model: Any, wishes: Sequence[Wish], then: Then, *, temperature: float, fresh: bool
    ) -> None:
        """Draw answers until nobody wishes any more; see `Sampler`.

        Raises:
            TrainingError: the model gave no numbers, or there is no memory for them.
        """
        try:
            self._play(model, wishes, then, temperature=temperature, fresh=fresh)
        except EngineError as error:
            raise TrainingError(
                f"answers cannot be drawn: {error}; lower the rate where these are no numbers, and groups or "
                "rollouts where memory is short"
            ) from None

    def _play(
        self, model: Any, wishes: Sequence[Wish], then: Then, *, temperature: float, fresh: bool
    ) -> None:
        if fresh or self._engine is None:
            self.close()
            self._model.fold(model)
            # Nobody is turned away: there are never more requests than rollouts.
            self._engine = Engine(
                self._model, rows=self._rows, waiting=max(1, len(wishes)), prefix_bytes=PREFIX_BYTES
            )
        engine = self._engine
        self._read([one.prompt for one in wishes])
        ready: queue.SimpleQueue[tuple[int, Future[Answer]]] = queue.SimpleQueue()

        def submit(place: int, wish: Wish) -> None:
            job = Job(wish.prompt, most=wish.most, temperature=temperature, seed=wish.seed)
            engine.submit(job).add_done_callback(lambda done: ready.put((place, done)))

        for place, wish in enumerate(wishes):
            submit(place, wish)
        going = len(wishes)
        while going:
            place, done = ready.get()
            following = then(place, done.result().tokens)
            if following is None:
                going -= 1
            else:
                submit(place, following)

    def close(self) -> None:
        """End the engine's thread, and forget what was worked out."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _read(self, prompts: Sequence[Sequence[int]]) -> None:
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
