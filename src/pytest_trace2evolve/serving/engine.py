"""The scheduler: one thread that decodes all rows together, one step at a time.

Requests join between two steps and leave when they end, independently of other running requests. Prompts
that need about the same number of new tokens are prefilled together. Prefixes that earlier rows computed are
reused.
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

from pytest_trace2evolve.serving.kv_cache import BatchCache, CachedPrefix, KeysValues, PrefixCache
from pytest_trace2evolve.serving.loading import Decoder
from pytest_trace2evolve.serving.sampling import Draw, TokenLogprob, draw, token_logprobs

MAX_PREFILL = 8192
"""Maximum new tokens of a group of more than one prompt."""

MAX_PROMPT = 1 << 20
"""Maximum tokens of a prompt, regardless of the model's context length."""

GATHER_SECONDS = 0.01
"""Seconds that a request waits for others to join its prefill while rows are decoded. Prefilling a group
costs little more than prefilling a single prompt."""

GATHERED = 8
"""Number of waiting requests that are admitted without waiting for more."""


class BusyError(Exception):
    """Too many requests are waiting, so the engine rejects another one."""


class EngineError(Exception):
    """The engine failed on a request, or has been closed."""


class PromptError(Exception):
    """A prompt is empty, has too many tokens, or has tokens that the model does not know."""


@dataclass(frozen=True)
class Job:
    """One request as the scheduler sees it.

    Attributes:
        prompt: The tokens of the prompt; at least one.
        adapter: The adapter's name; None is the base.
        max_tokens: Maximum number of new tokens; at least one.
        temperature: The sampling temperature.
        top_p: The draw is from the likeliest tokens that together have at least this probability.
        seed: The seed of the draws; None draws differently each time.
        logprobs: Number of likeliest tokens reported per token; None reports no log-probabilities.
        is_stopped: A predicate of the tokens drawn so far that is true if a text in them ends the answer.
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
    """All drawn tokens, including the token that ended the answer; `finish` is `stop` or `length`.

    Attributes:
        reused: Tokens of the prompt that were taken from an earlier row.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str = "length"
    reused: int = 0


@dataclass(eq=False)
class _Row:
    """A running request; `past` is its own cache if rows cannot be decoded together."""

    job: Job
    future: Future[Generation]
    random: random.Random
    prompt: np.ndarray
    output: Generation = field(default_factory=Generation)
    prefix: CachedPrefix | None = None
    past: Cache | None = None
    arrived: float = field(default_factory=time.monotonic)

    @property
    def new(self) -> int:
        """Number of the prompt's tokens that must be computed."""
        return len(self.prompt) - self.output.reused

    def fail(self, error: Exception) -> None:
        if not isinstance(error, EngineError):
            error = EngineError(f"{type(error).__name__}: {error}")
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class Engine:
    """Decodes requests; its methods may be called from any thread.

    Args:
        model: The model.
        rows: Maximum number of rows that are decoded together.
        waiting: Maximum number of further requests that wait.
        prefix_bytes: Maximum bytes of keys and values that are kept of ended rows; 0 keeps nothing.
    """

    def __init__(
        self, model: Decoder, *, rows: int = 64, waiting: int = 1024, prefix_bytes: int = 1 << 28
    ) -> None:
        self._model = model
        self._max_rows = rows
        self._max_waiting = waiting
        self._prefixes = PrefixCache(prefix_bytes if model.batched else 0)
        self._waiting: deque[_Row] = deque()
        self._rows: list[_Row] = []
        self._batch = BatchCache(model.layers)
        # Rows of a model whose rows cannot be decoded together.
        self._single: list[_Row] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="trace2evolve-engine", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """Number of requests that are being decoded."""
        return len(self._rows) + len(self._single)

    @property
    def waiting(self) -> int:
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
        row = _Row(job, Future(), seeded_random(job), self._check_prompt(job.prompt))
        with self._changed:
            if self._closed:
                raise EngineError("the server is ending")
            if len(self._waiting) >= self._max_waiting:
                self._waiting = deque(row for row in self._waiting if not row.future.cancelled())
            if len(self._waiting) >= self._max_waiting:
                raise BusyError(f"{len(self._waiting)} requests wait already")
            self._waiting.append(row)
            self._changed.notify()
        return row.future

    def close(self) -> None:
        """End the thread; running and waiting requests fail."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _check_prompt(self, prompt: Sequence[int]) -> np.ndarray:
        if not 0 < len(prompt) <= MAX_PROMPT:
            raise PromptError(f"a prompt has from 1 to {MAX_PROMPT:,} tokens, and this one {len(prompt):,}")
        tokens = np.asarray(prompt)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise PromptError("the tokens of a prompt must be whole numbers")
        for token in (int(tokens.min()), int(tokens.max())):
            if not 0 <= token < self._model.vocabulary:
                raise PromptError(
                    f"the model does not know token {token} of the prompt: it has tokens 0 to "
                    f"{self._model.vocabulary - 1}"
                )
        return tokens.astype(np.int64)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self.running or self._closed):
                    self._changed.wait()
                if self._closed:
                    break
                joining = self._admit()
            self._work(joining)
        for row in [*self._waiting, *self._rows, *self._single]:
            row.fail(EngineError("the server is ending"))

    def _admit(self) -> list[_Row]:
        """Take waiting requests in order of arrival, up to the free rows; none while requests gather."""
        few = self.running and 0 < len(self._waiting) < GATHERED
        if few and time.monotonic() - self._waiting[0].arrived < GATHER_SECONDS:
            return []
        rows: list[_Row] = []
        while self._waiting and self.running + len(rows) < self._max_rows:
            row = self._waiting.popleft()
            if not row.future.cancelled():
                rows.append(row)
        return rows

    def _work(self, joining: list[_Row]) -> None:
        """Prefill new rows, then decode one step of all rows."""
        for group in self._groups(joining):
            try:
                self._join(group)
            except Exception as error:  # other groups are not affected
                for row in group:
                    row.fail(error)
        try:
            if self._rows:
                self._step()
        except Exception as error:
            self._fail_all(error)
        for row in list(self._single):
            try:
                length = len(row.prompt) + len(row.output.tokens) - 1
                ended = row.future.cancelled() or bool(self._decode([row], [length], row.past))
            except Exception as error:
                row.fail(error)
                ended = True
            if ended:
                self._single.remove(row)

    def _fail_all(self, error: Exception) -> None:
        """Fail all running rows and start with empty buffers."""
        for row in self._rows:
            row.fail(error)
        self._rows, self._batch = [], BatchCache(self._model.layers)

    def _groups(self, joining: list[_Row]) -> list[list[_Row]]:
        """Group the rows whose prompts need about the same number of new tokens, for a joint prefill."""
        if not self._model.batched:
            return [[row] for row in joining]
        for row in joining:
            row.prefix, row.output.reused = self._prefixes.longest(row.job.adapter, row.prompt)
        groups: list[list[_Row]] = []
        for row in sorted(joining, key=lambda row: row.new):
            group = groups[-1] if groups else []
            near = bool(group) and row.new <= 2 * group[0].new + 16
            if near and row.new * (len(group) + 1) <= MAX_PREFILL:
                group.append(row)
            else:
                groups.append([row])
        return groups

    def _join(self, group: list[_Row]) -> None:
        """Prefill prompts, draw each row's first token, and add the rows that have not ended."""
        new = max(row.new for row in group)
        for row in group:  # the same number of new tokens for all rows, which leaves no gaps
            row.output.reused = max(0, len(row.prompt) - new)
        held = max(row.output.reused for row in group)
        past = self._prefilled(group, held)
        tokens = torch.zeros((len(group), new), dtype=torch.long)
        lengths = [len(row.prompt) for row in group]
        for number, row in enumerate(group):
            fresh = row.prompt[row.output.reused :]
            tokens[number, new - len(fresh) :] = torch.from_numpy(fresh)
        slots = torch.arange(held + new)
        filled = torch.tensor(lengths).unsqueeze(-1)
        mask = (slots >= held + new - filled).long()
        positions = (slots[held:] - (held + new - filled)).clamp(min=0)
        ended = self._draw(group, tokens, mask, positions, past)
        staying = [row for row in group if row not in ended]
        if not self._model.batched:
            for row in staying:
                row.past = past
            self._single += staying
            return
        cached: list[Any] = past.layers
        layers: list[KeysValues] = [(layer.keys, layer.values) for layer in cached]
        for number, row in enumerate(group):
            if row in ended:
                self._keep(row, layers, number, slice(held + new - lengths[number], None))
            row.prefix = None
        if not staying:
            return
        try:
            self._batch.join(layers, {n: lengths[n] for n, row in enumerate(group) if row not in ended})
        except Exception as error:  # some layers may have been enlarged already, but not others
            self._fail_all(error)
            raise
        self._rows += staying

    def _prefilled(self, group: list[_Row], held: int) -> Cache:
        """A cache that holds the reused prefixes of earlier rows, all ending at one slot."""
        if not held:
            return self._model.past()
        like = next(row.prefix for row in group if row.prefix is not None)
        layers: list[KeysValues] = []
        for place, pair in enumerate(like.layers):
            keys, values = (part.new_zeros((len(group), part.shape[0], held, part.shape[2])) for part in pair)
            for number, row in enumerate(group):
                if row.prefix is not None and (count := row.output.reused):
                    for buffer, part in zip((keys, values), row.prefix.layers[place], strict=True):
                        buffer[number, :, held - count :] = part[:, :count]
            layers.append((keys, values))
        return self._model.past(layers)

    def _step(self) -> None:
        """Draw one more token for every row."""
        batch, rows = self._batch, self._rows
        self._leave([row for row in rows if row.future.cancelled()])
        if not rows:
            return
        batch.make_room()
        ended = self._decode(rows, batch.lengths, batch.cache)
        batch.advance()
        self._leave(ended)

    def _decode(self, rows: Sequence[_Row], lengths: Sequence[int], past: Cache | None) -> list[_Row]:
        """Draw one more token for rows that end at the same cache slot; returns the finished rows."""
        width = max(lengths)
        positions = torch.tensor(lengths).unsqueeze(-1)
        mask = (torch.arange(width + 1) >= width - positions).long()
        tokens = torch.tensor([[row.output.tokens[-1]] for row in rows])
        return self._draw(rows, tokens, mask, positions, past)

    def _leave(self, rows: Sequence[_Row]) -> None:
        for row in rows:
            number = self._rows.index(row)
            self._keep(row, self._batch.layers, number, self._batch.slots(number))
            self._batch.leave(number)
            last = self._rows.pop()
            if last is not row:
                self._rows[number] = last

    def _keep(self, row: _Row, layers: Sequence[Sequence[torch.Tensor]], number: int, slots: slice) -> None:
        """Keep the keys and values of row `number` of a cache at these slots."""
        if not self._prefixes.enabled:
            return
        held = [(keys[number, :, slots].clone(), values[number, :, slots].clone()) for keys, values in layers]
        tokens = [*row.job.prompt, *row.output.tokens][: held[0][0].shape[1]]
        self._prefixes.keep(row.job.adapter, tokens, held)

    def _draw(
        self,
        rows: Sequence[_Row],
        tokens: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        past: Cache | None,
    ) -> list[_Row]:
        """Draw the next token of every row and fulfil the futures of finished rows; returns those rows."""
        logits = self._model.forward(tokens, mask, positions, past, [row.job.adapter for row in rows])
        draws = [Draw(row.job.temperature, row.job.top_p, row.random.random()) for row in rows]
        drawn = draw(logits, draws)
        logprobs = token_logprobs(logits, drawn, [row.job.logprobs for row in rows])
        ended = []
        for row, token, logprob in zip(rows, drawn, logprobs, strict=True):
            output, job = row.output, row.job
            output.tokens.append(token)
            if logprob is not None:
                output.logprobs.append(logprob)
            if token in self._model.ends or (job.is_stopped is not None and job.is_stopped(output.tokens)):
                output.finish = "stop"
            elif len(output.tokens) < job.max_tokens:
                continue
            ended.append(row)
        for row in ended:
            with suppress(InvalidStateError):  # cancelled meanwhile
                row.future.set_result(row.output)
        return ended


def seeded_random(job: Job) -> random.Random:
    """A request's random numbers, which depend on its seed, its adapter and its prompt.

    If the numbers depended on the seed alone, every turn of a dialogue and every task of a trial would draw
    the same numbers.
    """
    if job.seed is None:
        return random.Random()
    return random.Random(f"{job.seed}/{job.adapter or ''}/{list(job.prompt)}")
