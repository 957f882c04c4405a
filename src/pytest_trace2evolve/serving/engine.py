"""The scheduler: one thread that decodes all rows together, one step at a time.

Requests join between two steps and leave when they end, independently of other running requests. Prompts
that need about the same number of new tokens are prefilled together, and equal prompts once. Prefixes that
earlier rows computed are reused.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache

from pytest_trace2evolve.serving.attention import Group, StepLayout, step_layout
from pytest_trace2evolve.serving.kv_cache import (
    BatchCache,
    CachedPrefix,
    KeysValues,
    PrefixCache,
    common_length,
)
from pytest_trace2evolve.serving.loading import Decoder
from pytest_trace2evolve.serving.sampling import SamplingSettings, TokenLogprob, sample_tokens, token_logprobs

MAX_PREFILL_TOKENS = 8192
"""Maximum number of new tokens in a prefill group of more than one prompt."""

MAX_BATCH_WAIT_SECONDS = 0.01
"""Seconds that a request waits for others to join its prefill while rows are decoded. Prefilling a group
costs little more than prefilling a single prompt."""

MIN_SHARED_TOKENS = 64
"""Number of tokens with which rows must begin alike to read their common beginning together."""

MIN_FULL_GROUP = 8
"""Number of waiting requests that are admitted without waiting for more."""


class BusyError(Exception):
    """Too many requests are waiting, so the engine rejects another one."""


class EngineError(Exception):
    """The engine failed on a request, or has been closed."""


class PromptError(Exception):
    """A prompt is empty, or has tokens that the model does not know."""


@dataclass(frozen=True)
class Job:
    """One request as the scheduler sees it.

    Attributes:
        prompt: The tokens of the prompt; at least one.
        adapter: The adapter's name; None is the base.
        max_tokens: Maximum number of new tokens; at least one.
        temperature: The sampling temperature.
        top_p: Tokens are sampled from the smallest set of likeliest tokens that has at least this
            probability.
        seed: The seed of the draws; None draws differently each time.
        logprobs: Number of likeliest tokens reported per token; None reports no log-probabilities.
        is_stopped: A predicate of the tokens drawn so far that is true if they contain a text that ends the
            answer.
    """

    prompt: Sequence[int]
    adapter: str | None = None
    max_tokens: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    logprobs: int | None = None
    is_stopped: Callable[[Sequence[int]], bool] | None = None


@dataclass
class Generation:
    """All drawn tokens, including the token that ended the answer; `finish_reason` is `stop` or `length`.

    Attributes:
        reused_tokens: Tokens of the prompt that were taken from an earlier row.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = "length"
    reused_tokens: int = 0


@dataclass(eq=False)
class Row:
    """A running request; `cache` is its own cache if rows cannot be decoded together."""

    job: Job
    future: Future[Generation]
    random: random.Random
    prompt: np.ndarray
    output: Generation = field(default_factory=Generation)
    prefix: CachedPrefix | None = None
    cache: Cache | None = None
    arrival_time: float = field(default_factory=time.monotonic)

    @property
    def new_token_count(self) -> int:
        """Number of the prompt's tokens that must be computed."""
        return len(self.prompt) - self.output.reused_tokens

    @property
    def key(self) -> tuple[str | None, bytes]:
        """Equal for rows of equal prompts."""
        return self.job.adapter, self.prompt.tobytes()

    def fail(self, error: Exception) -> None:
        if not isinstance(error, EngineError):
            error = EngineError(f"{type(error).__name__}: {error}")
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class Engine:
    """Decodes requests in a thread, or in that of a caller who makes rows and calls `process` until all end.

    Args:
        model: The model.
        max_rows: Maximum number of rows that are decoded together.
        max_waiting: Maximum number of further requests that wait.
        prefix_bytes: Maximum bytes of stored keys and values of ended rows; 0 stores none.
    """

    def __init__(
        self, model: Decoder, *, max_rows: int = 64, max_waiting: int = 1024, prefix_bytes: int = 1 << 28
    ) -> None:
        self._model = model
        self._max_rows = max_rows
        self._max_waiting = max_waiting
        self._prefixes = PrefixCache(prefix_bytes if model.can_batch else 0)
        self._waiting: deque[Row] = deque()
        self._rows: list[Row] = []
        self._batch = BatchCache(model.layers)
        self._groups: list[Group] | None = None
        # Rows of a model whose rows cannot be decoded together.
        self._single_rows: list[Row] = []
        self._condition = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="trace2evolve-engine", daemon=True)

    @property
    def running_count(self) -> int:
        """Number of requests that are being decoded."""
        return len(self._rows) + len(self._single_rows)

    @property
    def waiting_count(self) -> int:
        """Number of requests that wait."""
        return len(self._waiting)

    def submit(self, job: Job) -> Future[Generation]:
        """Submit a request; cancelling the future ends the request, even while it runs.

        Raises:
            BusyError: too many requests are waiting.
            EngineError: the engine was closed.
            PromptError: the prompt is invalid. The model would fail on it and on all prompts of its prefill
                group, and on a GPU permanently.
        """
        row = self.make_row(job)
        with self._condition:
            if self._is_closed:
                raise EngineError("the server is shutting down")
            if self._thread.ident is None:
                self._thread.start()
            if len(self._waiting) >= self._max_waiting:
                self._waiting = deque(row for row in self._waiting if not row.future.cancelled())
            if len(self._waiting) >= self._max_waiting:
                raise BusyError(f"{len(self._waiting)} requests are already waiting")
            self._waiting.append(row)
            self._condition.notify()
        return row.future

    def close(self) -> None:
        """End the thread; running and waiting requests fail."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def make_row(self, job: Job) -> Row:
        """Return a row for `process`. Raises `PromptError` like `submit`."""
        return Row(job, Future(), seeded_random(job), self._check_prompt(job.prompt))

    def _check_prompt(self, prompt: Sequence[int]) -> np.ndarray:
        if not len(prompt):
            raise PromptError("the prompt has no tokens; expected 1 or more")
        tokens = np.asarray(prompt)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise PromptError("the tokens of a prompt must be whole numbers")
        for token in (int(tokens.min()), int(tokens.max())):
            if not 0 <= token < self._model.vocabulary:
                raise PromptError(
                    f"token {token} of the prompt is not in the model's vocabulary; expected 0 to "
                    f"{self._model.vocabulary - 1}"
                )
        return tokens.astype(np.int64)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not (self._waiting or self.running_count or self._is_closed):
                    self._condition.wait()
                if self._is_closed:
                    break
                new_rows = self._take_waiting()
            self.process(new_rows)
        for row in [*self._waiting, *self._rows, *self._single_rows]:
            row.fail(EngineError("the server is shutting down"))

    def _take_waiting(self) -> list[Row]:
        """Take waiting requests for which rows are free; none while more may soon join the group."""
        is_small_group = self.running_count and 0 < len(self._waiting) < MIN_FULL_GROUP
        if is_small_group and time.monotonic() - self._waiting[0].arrival_time < MAX_BATCH_WAIT_SECONDS:
            return []
        rows: list[Row] = []
        while self._waiting and self.running_count + len(rows) < self._max_rows:
            row = self._waiting.popleft()
            if not row.future.cancelled():
                rows.append(row)
        return rows

    def process(self, new_rows: Sequence[Row]) -> None:
        """Prefill new rows, then decode one step of all rows; fulfils the futures of rows that end."""
        for group in self._group_rows(new_rows):
            try:
                self._prefill(group)
            except Exception as error:  # other groups are not affected
                for row in group:
                    row.fail(error)
        try:
            if self._rows:
                self._step_batch()
        except Exception as error:
            self._fail_all(error)
        for row in list(self._single_rows):
            try:
                length = len(row.prompt) + len(row.output.tokens) - 1
                has_ended = row.future.cancelled() or bool(self._decode_step([row], [length], row.cache))
            except Exception as error:
                row.fail(error)
                has_ended = True
            if has_ended:
                self._single_rows.remove(row)

    def _fail_all(self, error: Exception) -> None:
        """Fail all running rows and start with empty buffers."""
        for row in self._rows:
            row.fail(error)
        self._rows, self._batch, self._groups = [], BatchCache(self._model.layers), None

    def _group_rows(self, new_rows: Sequence[Row]) -> list[list[Row]]:
        """Group the rows whose prompts need about the same number of new tokens, for a joint prefill."""
        if not self._model.can_batch:
            return [[row] for row in new_rows]
        for row in new_rows:
            row.prefix, row.output.reused_tokens = self._prefixes.find_longest(row.job.adapter, row.prompt)
        groups: list[list[Row]] = []
        for row in sorted(new_rows, key=lambda row: (row.new_token_count, row.key[1])):
            group = groups[-1] if groups else []
            is_similar = bool(group) and row.new_token_count <= 2 * group[0].new_token_count + 16
            fits = row.new_token_count * len({*(other.key for other in group), row.key}) <= MAX_PREFILL_TOKENS
            if is_similar and fits:
                group.append(row)
            else:
                groups.append([row])
        return groups

    def _prefill(self, group: list[Row]) -> None:
        """Prefill prompts, draw each row's first token, and add the rows that have not ended."""
        keys = [row.key for row in group]
        sources = [list(dict.fromkeys(keys)).index(key) for key in keys]  # equal prompts only once
        firsts = [group[sources.index(source)] for source in range(max(sources) + 1)]
        new_count = max(row.new_token_count for row in firsts)
        for row in firsts:  # the same number of new tokens for all rows, which leaves no gaps
            row.output.reused_tokens = max(0, len(row.prompt) - new_count)
        reused_count = max(row.output.reused_tokens for row in firsts)
        cache = self._make_prefill_cache(firsts, reused_count)
        tokens = torch.zeros((len(firsts), new_count), dtype=torch.long)
        lengths = [len(row.prompt) for row in firsts]
        for index, row in enumerate(firsts):
            new_tokens = row.prompt[row.output.reused_tokens :]
            tokens[index, new_count - len(new_tokens) :] = torch.from_numpy(new_tokens)
        slots = torch.arange(reused_count + new_count)
        length_column = torch.tensor(lengths).unsqueeze(-1)
        mask = (slots >= reused_count + new_count - length_column).long()
        positions = (slots[reused_count:] - (reused_count + new_count - length_column)).clamp(min=0)
        logits = self._model.forward(tokens, mask, positions, cache, [row.job.adapter for row in firsts])
        ended_rows = self._sample(group, logits[sources])
        remaining = [pair for pair in zip(group, sources, strict=True) if pair[0] not in ended_rows]
        if not self._model.can_batch:
            for row, _ in remaining:
                row.cache = cache
                self._single_rows.append(row)
            return
        cache_layers: list[Any] = cache.layers
        layers: list[KeysValues] = [(layer.keys, layer.values) for layer in cache_layers]
        for row, source in zip(group, sources, strict=True):
            if row in ended_rows:
                self._store_prefix(
                    row, layers, source, slice(reused_count + new_count - lengths[source], None)
                )
            row.prefix = None
        if not remaining:
            return
        try:
            self._batch.add_rows(layers, [(source, lengths[source]) for _, source in remaining])
        except Exception as error:  # some layers may have been enlarged already, but not others
            self._fail_all(error)
            raise
        self._rows += [row for row, _ in remaining]
        self._groups = None

    def _make_prefill_cache(self, group: list[Row], reused_count: int) -> Cache:
        """Return a cache with the reused prefixes of earlier rows, all ending at the same slot."""
        if not reused_count:
            return self._model.make_cache()
        example_prefix = next(row.prefix for row in group if row.prefix is not None)
        layers: list[KeysValues] = []
        for layer_index, pair in enumerate(example_prefix.layers):
            keys, values = (
                part.new_zeros((len(group), part.shape[0], reused_count, part.shape[2])) for part in pair
            )
            for index, row in enumerate(group):
                if row.prefix is not None and (count := row.output.reused_tokens):
                    for buffer, part in zip((keys, values), row.prefix.layers[layer_index], strict=True):
                        buffer[index, :, reused_count - count :] = part[:, :count]
            layers.append((keys, values))
        return self._model.make_cache(layers)

    def _step_batch(self) -> None:
        """Draw one more token for every row."""
        batch, rows = self._batch, self._rows
        self._remove_rows([row for row in rows if row.future.cancelled()])
        if not rows:
            return
        batch.make_room()
        if self._groups is None:
            self._groups = _group_by_beginning(rows)
        with step_layout(StepLayout([length + 1 for length in batch.lengths], self._groups)):
            ended_rows = self._decode_step(rows, batch.lengths, batch.cache)
        batch.advance_end()
        self._remove_rows(ended_rows)

    def _decode_step(self, rows: Sequence[Row], lengths: Sequence[int], cache: Cache | None) -> list[Row]:
        """Draw one more token for rows that end at the same cache slot; returns the finished rows."""
        width = max(lengths)
        positions = torch.tensor(lengths).unsqueeze(-1)
        mask = (torch.arange(width + 1) >= width - positions).long()
        tokens = torch.tensor([[row.output.tokens[-1]] for row in rows])
        logits = self._model.forward(tokens, mask, positions, cache, [row.job.adapter for row in rows])
        return self._sample(rows, logits)

    def _remove_rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            index = self._rows.index(row)
            self._store_prefix(row, self._batch.layers, index, self._batch.row_slots(index))
            self._batch.remove_row(index)
            last_row = self._rows.pop()
            if last_row is not row:
                self._rows[index] = last_row
            self._groups = None

    def _store_prefix(
        self, row: Row, layers: Sequence[Sequence[torch.Tensor]], index: int, slots: slice
    ) -> None:
        """Store the keys and values that row `index` of a cache has in the given slots."""
        if not self._prefixes.max_bytes:
            return
        row_layers = [
            (keys[index, :, slots].clone(), values[index, :, slots].clone()) for keys, values in layers
        ]
        tokens = [*row.prompt.tolist(), *row.output.tokens][: row_layers[0][0].shape[1]]
        self._prefixes.store(row.job.adapter, tokens, row_layers)

    def _sample(self, rows: Sequence[Row], logits: torch.Tensor) -> list[Row]:
        """Draw the next token of every row and fulfil the futures of finished rows; returns those rows."""
        settings = [SamplingSettings(row.job.temperature, row.job.top_p, row.random.random()) for row in rows]
        next_tokens = sample_tokens(logits, settings)
        logprobs = token_logprobs(logits, next_tokens, [row.job.logprobs for row in rows])
        ended_rows = []
        for row, token, logprob in zip(rows, next_tokens, logprobs, strict=True):
            output, job = row.output, row.job
            output.tokens.append(token)
            if logprob is not None:
                output.logprobs.append(logprob)
            if token in self._model.end_tokens or (
                job.is_stopped is not None and job.is_stopped(output.tokens)
            ):
                output.finish_reason = "stop"
            elif len(output.tokens) < job.max_tokens:
                continue
            ended_rows.append(row)
        for row in ended_rows:
            with suppress(InvalidStateError):  # cancelled meanwhile
                row.future.set_result(row.output)
        return ended_rows


def _group_by_beginning(rows: Sequence[Row]) -> list[Group]:
    """Group the rows whose prompts begin alike under the same adapter, so that their caches do too."""
    indices: dict[tuple[str | None, bytes], list[int]] = {}
    for index, row in enumerate(rows):
        beginning = row.prompt[:MIN_SHARED_TOKENS].tobytes()
        indices.setdefault((row.job.adapter, beginning), []).append(index)
    return [
        Group(
            group, min((common_length(rows[group[0]].prompt, rows[i].prompt) for i in group[1:]), default=0)
        )
        for group in indices.values()
    ]


def seeded_random(job: Job) -> random.Random:
    """Return the generator of a request's random numbers, which depend on the seed, adapter and prompt.

    If the numbers depended on the seed alone, every turn of a dialogue and every task of a trial would draw
    the same numbers.
    """
    if job.seed is None:
        return random.Random()
    return random.Random(f"{job.seed}/{job.adapter or ''}/{list(job.prompt)}")
