"""Keys and values of the rows that are decoded together, and of ended rows whose beginnings come again.

In `BatchCache` rows lie next to each other and end at one slot, so a step appends one column, whatever their
lengths. The last row takes the place of one that leaves, and a joining row is copied to the end: neither
moves the rest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

KeysValues = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of one layer; of one row, (heads, length, width)."""

SPARE_SLOTS = 64
"""Minimum of free slots in a new buffer."""


class _Layer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # theirs
    """One layer of a `BatchCache`, in the form that transformers takes; `held` are its two buffers."""

    is_sliding = False

    def __init__(self, batch: "BatchCache") -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # theirs
        self.held: tuple[torch.Tensor, ...] = ()
        self._batch = batch
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: buffers are made when rows join."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> KeysValues:
        """Write what a step adds to every row; returns all that the rows hold."""
        batch = self._batch
        rows, start, end = len(batch.lengths), batch.end - batch.width, batch.end + key_states.shape[-2]
        keys, values = self.held
        keys[:rows, :, batch.end : end] = key_states
        values[:rows, :, batch.end : end] = value_states
        return keys[:rows, :, start:end], values[:rows, :, start:end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many slots a step sees, and where they begin."""
        return self._batch.width + query_length, 0

    def get_seq_length(self) -> int:
        """Slots in use."""
        return self._batch.width

    def get_max_length(self) -> int:
        """No limit."""
        return -1


class BatchCache:
    """The cache of all rows: the first rows of its buffers are in use, up to slot `end`.

    Attributes:
        cache: What a model's forward takes as `cache`.
        lengths: Tokens that each row holds.
        end: The slot at which all rows end.
    """

    def __init__(self, layers: int) -> None:
        self.lengths: list[int] = []
        self.end = 0
        self._size = (0, 0)
        self._layers = [_Layer(self) for _ in range(layers)]
        self.cache = Cache(layers=[*self._layers])

    @property
    def width(self) -> int:
        """Slots in use."""
        return max(self.lengths, default=0)

    @property
    def layers(self) -> list[tuple[torch.Tensor, ...]]:
        """The buffers of each layer: keys and values, (rows, heads, slots, width)."""
        return [layer.held for layer in self._layers]

    def slots(self, row: int) -> slice:
        """The slots that a row holds."""
        return slice(self.end - self.lengths[row], self.end)

    def join(self, layers: Sequence[KeysValues], lengths: Mapping[int, int]) -> None:
        """Add rows.

        Args:
            layers: Keys and values of each layer, (rows, heads, slots, width), all ending at the last slot.
            lengths: Tokens of each row that is added, by its number in `layers`.
        """
        first = len(self.lengths)
        self._reserve(first + len(lengths), max(lengths.values()), layers)
        for buffers, pair in zip(self.layers, layers, strict=True):
            for buffer, states in zip(buffers, pair, strict=True):
                for place, (number, length) in enumerate(lengths.items(), first):
                    part = states[number, :, states.shape[2] - length :]
                    buffer[place, :, self.end - length : self.end] = part
        self.lengths += lengths.values()

    def make_room(self) -> None:
        """Make sure that a step can append a column."""
        self._reserve(len(self.lengths), self.width, self.layers)

    def advance(self) -> None:
        """Count the column that a step has appended."""
        self.end += 1
        self.lengths = [length + 1 for length in self.lengths]

    def leave(self, row: int) -> None:
        """Remove a row; the last one takes its number."""
        last = len(self.lengths) - 1
        if row != last:
            own = self.slots(last)
            for buffers in self.layers:
                for buffer in buffers:
                    buffer[row, :, own] = buffer[last, :, own]
            self.lengths[row] = self.lengths[last]
        self.lengths.pop()

    def _reserve(self, rows: int, longest: int, like: Sequence[Sequence[torch.Tensor]]) -> None:
        """Make room for so many rows, for the longest of them before `end`, and for a column after it."""
        max_rows, slots = self._size
        if rows <= max_rows and longest <= self.end < slots:
            return
        used, width = len(self.lengths), self.width
        end = max(longest, width)
        old, new = slice(self.end - width, self.end), slice(end - width, end)
        rows, slots = max(rows, min(2 * max_rows, rows + 8)), end + max(SPARE_SLOTS, end // 2)
        self._size = (rows, slots)
        for layer, pair in zip(self._layers, like, strict=True):
            # Of zeros: a slot that is masked out must still hold a number.
            buffers = tuple(
                states.new_zeros((rows, states.shape[1], slots, states.shape[3])) for states in pair
            )
            for buffer, held in zip(buffers, layer.held, strict=False):
                buffer[:used, :, new] = held[:used, :, old]
            layer.held = buffers
        self.end = end


@dataclass(eq=False)
class CachedPrefix:
    """What an ended row held: its tokens, and their keys and values layer by layer."""

    adapter: str | None
    tokens: np.ndarray
    layers: list[KeysValues]
    size: int


class PrefixCache:
    """The rows that were used last, as many as fit.

    Every turn of a conversation sends all of it again, and all conversations of a candidate share its
    instructions: most of a prompt was computed before.

    Args:
        max_bytes: Size of all of them; 0 keeps none.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._prefixes: list[CachedPrefix] = []

    @property
    def enabled(self) -> bool:
        """Whether anything is kept."""
        return self._max_bytes > 0

    def longest(self, adapter: str | None, prompt: np.ndarray) -> tuple[CachedPrefix | None, int]:
        """The longest common beginning with a prompt, and its length without the prompt's last token."""
        best, length = None, 0
        for prefix in reversed(self._prefixes):
            # A longer one must agree in the next token: that rules nearly all of them out.
            if length >= min(len(prefix.tokens), len(prompt)) or prefix.tokens[length] != prompt[length]:
                continue
            if prefix.adapter == adapter and (common := _common_length(prefix.tokens, prompt)) > length:
                best, length = prefix, common
        if best is not None:  # the least recently used goes first
            self._prefixes.remove(best)
            self._prefixes.append(best)
        return best, min(length, len(prompt) - 1)

    def keep(self, adapter: str | None, tokens: Sequence[int], layers: list[KeysValues]) -> None:
        """Keep what a row held; replaces prefixes that it begins with."""
        size = sum(part.numel() * part.element_size() for pair in layers for part in pair)
        if size > self._max_bytes:
            return
        held = np.asarray(tokens, dtype=np.int64)
        for prefix in list(self._prefixes):
            if prefix.adapter == adapter and _begins_with(held, prefix.tokens):
                self._drop(prefix)
        while self._prefixes and self._size + size > self._max_bytes:
            self._drop(self._prefixes[0])
        self._prefixes.append(CachedPrefix(adapter, held, layers, size))
        self._size += size

    def _drop(self, prefix: CachedPrefix) -> None:
        self._prefixes.remove(prefix)
        self._size -= prefix.size


def _begins_with(whole: np.ndarray, part: np.ndarray) -> bool:
    size = len(part)
    return size <= len(whole) and part[-1] == whole[size - 1] and bool((part == whole[:size]).all())


def _common_length(first: np.ndarray, second: np.ndarray) -> int:
    shorter = min(len(first), len(second))
    different = np.flatnonzero(first[:shorter] != second[:shorter])
    return int(different[0]) if len(different) else shorter
