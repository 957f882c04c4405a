"""The scheduler: one thread that decodes all rows together, a step at a time.

Requests join between two steps and leave when they end, whoever else is under way. Prompts are worked out in
groups that need about as many new tokens; what an earlier row held of a prompt is taken from it.
"""

import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from transformers.cache_utils import Cache

from pytest_trace2evolve.serving.kv_cache import BatchCache, Kept, KeysValues, Prefixes
from pytest_trace2evolve.serving.sampling import Draw, TokenLogprob, draw, logprobs

PREFILL_TOKENS = 8192
"""New tokens of one group of prompts, at most, where it has more than one."""

MAX_PROMPT = 1 << 20
"""Tokens of a prompt, whatever the model's context."""

GATHER_SECONDS = 0.01
"""How long a request waits for others to be worked out with, while rows are decoded: a group costs little
more than one."""

GATHERED = 8
"""So many requests wait for no more."""


class Decoder(Protocol):
    """A model as the scheduler sees it; `loading.LoadedModel` is one.

    Attributes:
        device: Where it runs.
        batched: Whether rows can be decoded side by side.
        layers: How many layers keep keys and values.
        ends: Tokens that end an answer.
        vocabulary: How many tokens it knows: those from 0 to one less.
    """

    device: torch.device
    batched: bool
    layers: int
    ends: frozenset[int]
    vocabulary: int

    def past(self, layers: Sequence[KeysValues] | None = None) -> Cache:
        """A cache for a prefill: empty, or with what was kept, (rows, heads, slots, width) a layer."""

    def forward(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        past: Cache,
        adapters: Sequence[str | None],
    ) -> torch.Tensor:
        """Logits (rows, vocabulary) after the last token of each row."""


class BusyError(Exception):
    """So many requests wait already that no more are taken."""


class EngineError(Exception):
    """The engine cannot go on with a request, or has been closed."""


class PromptError(Exception):
    """The tokens of a prompt are none of the model's, or too many."""


@dataclass(frozen=True)
class Job:
    """One request as the scheduler sees it.

    Attributes:
        prompt: Its tokens, one at least.
        adapter: The adapter's name; None is the base.
        most: New tokens at most, one at least.
        seed: None draws differently each time.
        logprobs: How many of the likeliest tokens are told of each token; None tells nothing.
        stopped: Whether the tokens drawn so far hold a text that ends the answer.
    """

    prompt: Sequence[int]
    adapter: str | None = None
    most: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    logprobs: int | None = None
    stopped: Callable[[Sequence[int]], bool] | None = None


@dataclass
class Answer:
    """What was drawn: all tokens, that which ended it included, and `stop` or `length`."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str = "length"
    reused: int = 0


@dataclass(eq=False)
class _Row:
    """A request under way."""

    job: Job
    future: Future[Answer]
    numbers: random.Random
    prompt: np.ndarray
    answer: Answer = field(default_factory=Answer)
    kept: Kept | None = None
    came: float = field(default_factory=time.monotonic)

    @property
    def new(self) -> int:
        """Tokens of the prompt that nobody has worked out."""
        return len(self.prompt) - self.answer.reused


class Engine:
    """Decodes requests; its methods may be called from any thread.

    Args:
        model: Who answers.
        rows: How many rows are decoded together, at most.
        waiting: How many requests may wait beside them.
        prefix_bytes: How much of what ended rows held is kept; 0: nothing.
    """

    def __init__(
        self, model: Decoder, *, rows: int = 64, waiting: int = 1024, prefix_bytes: int = 1 << 28
    ) -> None:
        self._model = model
        self._most_rows = rows
        self._most_waiting = waiting
        self._prefixes = Prefixes(prefix_bytes if model.batched else 0)
        self._waiting: deque[_Row] = deque()
        self._rows: list[_Row] = []
        self._batch = BatchCache(model.layers)
        self._alone: list[tuple[_Row, Cache]] = []
        self._news = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="trace2evolve-engine", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """Requests that are decoded now."""
        return len(self._rows) + len(self._alone)

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def submit(self, job: Job) -> Future[Answer]:
        """Hand a request in; cancelling the future gives it up, also under way.

        Raises:
            BusyError: too many wait.
            EngineError: the engine was closed.
            PromptError: a token of the prompt is none of the model's, or they are too many: the model would
                fail for all who are worked out with it, on a GPU for ever.
        """
        tokens = self._tokens(job.prompt)
        row = _Row(job, Future(), random_of(job), tokens)
        with self._news:
            if self._closed:
                raise EngineError("the server is ending")
            if len(self._waiting) >= self._most_waiting:
                self._waiting = deque(one for one in self._waiting if not one.future.cancelled())
            if len(self._waiting) >= self._most_waiting:
                raise BusyError(f"{len(self._waiting)} requests wait already")
            self._waiting.append(row)
            self._news.notify()
        return row.future

    def _tokens(self, prompt: Sequence[int]) -> np.ndarray:
        if not 0 < len(prompt) <= MAX_PROMPT:
            raise PromptError(f"a prompt has from 1 to {MAX_PROMPT:,} tokens, and this one {len(prompt):,}")
        tokens = np.asarray(prompt)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise PromptError("the tokens of a prompt must be whole numbers")
        for end in (int(tokens.min()), int(tokens.max())):
            if not 0 <= end < self._model.vocabulary:
                raise PromptError(
                    f"token {end} of the prompt is none of the model's: they are from 0 to "
                    f"{self._model.vocabulary - 1}"
                )
        return tokens.astype(np.int64)

    def close(self) -> None:
        """End the thread; what is under way is given up."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._news:
                while not (self._waiting or self.running or self._closed):
                    self._news.wait()
                if self._closed:
                    break
                joining = self._admitted()
            self._work(joining)
        for row in [*self._waiting, *self._rows, *(row for row, _ in self._alone)]:
            _fail(row, EngineError("the server is ending"))

    def _admitted(self) -> list[_Row]:
        """The requests for which there is room, in the order in which they came; none while they gather."""
        rows: list[_Row] = []
        few = self.running and 0 < len(self._waiting) < GATHERED
        if few and time.monotonic() - self._waiting[0].came < GATHER_SECONDS:
            return rows
        while self._waiting and self.running + len(rows) < self._most_rows:
            row = self._waiting.popleft()
            if not row.future.cancelled():
                rows.append(row)
        return rows

    def _work(self, joining: list[_Row]) -> None:
        """Take new rows in and make one step of all."""
        for group in self._groups(joining):
            try:
                self._join(group)
            except Exception as error:  # a row's trouble is not another group's
                for row in group:
                    _fail(row, error)
        try:
            if self._rows:
                self._step()
        except Exception as error:
            self._give_up(error)
        for row, past in list(self._alone):
            try:
                self._step_alone(row, past)
            except Exception as error:
                _fail(row, error)
                self._alone.remove((row, past))

    def _give_up(self, error: Exception) -> None:
        """Fail all rows under way, and begin with empty buffers."""
        for row in self._rows:
            _fail(row, error)
        self._rows, self._batch = [], BatchCache(self._model.layers)

    def _groups(self, joining: list[_Row]) -> list[list[_Row]]:
        """Rows to be worked out together: those whose prompts need about as many new tokens."""
        if not self._model.batched:
            return [[row] for row in joining]
        for row in joining:
            row.kept, row.answer.reused = self._prefixes.longest(row.job.adapter, row.prompt)
        groups: list[list[_Row]] = []
        for row in sorted(joining, key=lambda row: row.new):
            group = groups[-1] if groups else None
            near = group is not None and row.new <= 2 * group[0].new + 16
            if group is not None and near and row.new * (len(group) + 1) <= PREFILL_TOKENS:
                group.append(row)
            else:
                groups.append([row])
        return groups

    def _join(self, group: list[_Row]) -> None:
        """Work prompts out, draw each row's first token, and take in those that go on."""
        new = max(row.new for row in group)
        for row in group:  # as many for all, so that no row has a gap
            row.answer.reused = max(0, len(row.prompt) - new)
        held = max(row.answer.reused for row in group)
        past = self._past(group, held)
        tokens = torch.zeros((len(group), new), dtype=torch.long)
        lengths = [len(row.prompt) for row in group]
        for number, row in enumerate(group):
            fresh = row.prompt[row.answer.reused :]
            tokens[number, new - len(fresh) :] = torch.from_numpy(fresh)
        slots = torch.arange(held + new)
        filled = torch.tensor(lengths).unsqueeze(-1)
        mask = (slots >= held + new - filled).long()
        positions = (slots[held:] - (held + new - filled)).clamp(min=0)
        logits = self._forward(tokens, mask, positions, past, group)
        ended = self._drawn(group, logits)
        if not self._model.batched:
            self._alone += [(row, past) for row in group if row not in ended]
            return
        held_by: list[Any] = past.layers
        layers: list[KeysValues] = [(layer.keys, layer.values) for layer in held_by]
        on = [number for number, row in enumerate(group) if row not in ended]
        for number, row in enumerate(group):
            if row in ended and self._prefixes.keeps:
                own = slice(held + new - lengths[number], None)
                self._kept_of(
                    row, [(k[number, :, own].clone(), v[number, :, own].clone()) for k, v in layers]
                )
            row.kept = None
        if on:
            picked = layers if len(on) == len(group) else [(keys[on], values[on]) for keys, values in layers]
            try:
                self._batch.join(picked, [lengths[number] for number in on])
            except Exception as error:  # some layers may have been moved already, and others not
                self._give_up(error)
                raise
            self._rows += [group[number] for number in on]

    def _past(self, group: list[_Row], held: int) -> Cache:
        """A cache that holds what is taken from earlier rows, all ending at one slot."""
        if not held:
            return self._model.past()
        like = next(row.kept for row in group if row.kept is not None)
        layers: list[KeysValues] = []
        for place, pair in enumerate(like.layers):
            buffers = [one.new_zeros((len(group), one.shape[0], held, one.shape[2])) for one in pair]
            for number, row in enumerate(group):
                if row.kept is not None and (count := row.answer.reused):
                    for buffer, part in zip(buffers, row.kept.layers[place], strict=True):
                        buffer[number, :, held - count :] = part[:, :count]
            layers.append((buffers[0], buffers[1]))
        return self._model.past(layers)

    def _step(self) -> None:
        """One token more for every row."""
        batch, rows = self._batch, self._rows
        self._leave([row for row in rows if row.future.cancelled()])
        if not rows:
            return
        batch.make_room()
        lengths = torch.tensor(batch.lengths).unsqueeze(-1)
        mask = (torch.arange(batch.width + 1) >= batch.width - lengths).long()
        tokens = torch.tensor([[row.answer.tokens[-1]] for row in rows])
        logits = self._forward(tokens, mask, lengths, batch.cache, rows)
        batch.advance()
        self._leave(self._drawn(rows, logits))

    def _step_alone(self, row: _Row, past: Cache) -> None:
        """One token more for a row of a model whose rows cannot be decoded side by side."""
        if row.future.cancelled():
            self._alone.remove((row, past))
            return
        place = len(row.prompt) + len(row.answer.tokens) - 1
        token = torch.tensor([[row.answer.tokens[-1]]])
        ones = torch.ones((1, place + 1), dtype=torch.long)
        logits = self._forward(token, ones, torch.tensor([[place]]), past, [row])
        if self._drawn([row], logits):
            self._alone.remove((row, past))

    def _leave(self, rows: Sequence[_Row]) -> None:
        for row in rows:
            number = self._rows.index(row)
            if self._prefixes.keeps:
                self._kept_of(row, self._batch.row(number))
            self._batch.leave(number)
            last = self._rows.pop()
            if last is not row:
                self._rows[number] = last

    def _kept_of(self, row: _Row, layers: list[KeysValues]) -> None:
        held = layers[0][0].shape[1]
        tokens = itertools.islice(itertools.chain(row.job.prompt, row.answer.tokens), held)
        self._prefixes.keep(row.job.adapter, list(tokens), layers)

    def _forward(
        self,
        tokens: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        past: Cache,
        rows: Sequence[_Row],
    ) -> torch.Tensor:
        device = self._model.device
        adapters = [row.job.adapter for row in rows]
        return self._model.forward(tokens.to(device), mask.to(device), positions.to(device), past, adapters)

    def _drawn(self, rows: Sequence[_Row], logits: torch.Tensor) -> list[_Row]:
        """Give every row its next token; returns those that ended with it, their futures fulfilled."""
        draws = [Draw(row.job.temperature, row.job.top_p, row.numbers.random()) for row in rows]
        tokens = draw(logits, draws)
        told = logprobs(logits, tokens, [row.job.logprobs for row in rows])
        ended = []
        for row, token, one in zip(rows, tokens, told, strict=True):
            answer, job = row.answer, row.job
            answer.tokens.append(token)
            if one is not None:
                answer.logprobs.append(one)
            if token in self._model.ends or (job.stopped is not None and job.stopped(answer.tokens)):
                answer.finish = "stop"
            elif len(answer.tokens) < job.most:
                continue
            ended.append(row)
        for row in ended:
            with suppress(InvalidStateError):  # given up meanwhile
                row.future.set_result(row.answer)
        return ended


def random_of(job: Job) -> random.Random:
    """A request's random numbers: they follow from its seed and what it asks of whom.

    From the seed alone every turn of a dialogue, and every task of a trial, would draw the same numbers.
    """
    if job.seed is None:
        return random.Random()
    return random.Random(f"{job.seed}/{job.adapter or ''}/{list(job.prompt)}")


def _fail(row: _Row, error: Exception) -> None:
    told = error if isinstance(error, EngineError) else EngineError(f"{type(error).__name__}: {error}")
    with suppress(InvalidStateError):
        row.future.set_exception(told)
