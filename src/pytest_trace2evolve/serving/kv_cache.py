"""Keys and values of the rows that are decoded together, and of ended rows whose beginnings come again.

In `BatchCache` rows lie next to each other and end at one slot, so a step appends one column, whatever their
lengths. The last row takes the place of one that leaves, and a joining row is copied to the end: neither
moves the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

KeysValues = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of one layer; of one row, (heads, length, width)."""

SPARE_SLOTS = 64
"""Minimum of free slots in a new buffer."""


@dataclass
class _Region:
    """The part of the buffers that is in use: the first `rows` rows, the slots from `start` to `end`."""

    rows: int = 0
    start: int = 0
    end: int = 0

    @property
    def width(self) -> int:
        return self.end - self.start


class _Layer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # theirs
    """One layer of `BatchCache`, in the form that transformers takes; `held` are its two buffers."""

    is_sliding = False

    def __init__(self, used: _Region) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # theirs
        self.held: tuple[torch.Tensor, ...] = ()
        self._used = used
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: buffers are made when rows join."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> KeysValues:
        """Write what a step adds to every row; returns all that the rows hold."""
        used = self._used
        end = used.end + key_states.shape[-2]
        keys, values = self.held
        keys[: used.rows, :, used.end : end] = key_states
        values[: used.rows, :, used.end : end] = value_states
        return keys[: used.rows, :, used.start : end], values[: used.rows, :, used.start : end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many slots a step sees, and where they begin."""
        return self._used.width + query_length, 0

    def get_seq_length(self) -> int:
        """Slots in use."""
        return self._used.width

    def get_max_length(self) -> int:
        """No limit."""
        return -1


class BatchCache:
    """The cache of all rows.

    Attributes:
        cache: What a model's forward takes as `cache`.
        lengths: Tokens that each row holds.
    """

    def __init__(self, layers: int) -> None:
        self._used = _Region()
        self._layers = [_Layer(self._used) for _ in range(layers)]
        self._size = (0, 0)
        self.cache = Cache(layers=[*self._layers])
        self.lengths: list[int] = []

    @property
    def width(self) -> int:
        """Slots in use."""
        return self._used.width

    def join(self, layers: Sequence[KeysValues], lengths: Sequence[int]) -> None:
        """Add rows.

        Args:
            layers: Keys and values of each layer, (rows, heads, slots, width), the rows ending at the last
                slot.
            lengths: Tokens of each row.
        """
        used, longest = self._used, max(lengths)
        first = used.rows
        self._reserve(first + len(lengths), longest, layers)
        for layer, pair in zip(self._layers, layers, strict=True):
            for buffer, states in zip(layer.held, pair, strict=True):
                for number, length in enumerate(lengths):
                    part = states[number, :, states.shape[2] - length :]
                    buffer[first + number, :, used.end - length : used.end] = part
        used.rows += len(lengths)
        self.lengths += lengths
        used.start = min(used.start, used.end - longest)

    def make_room(self) -> None:
        """Make sure that a step can append a column."""
        if self._used.end >= self._size[1]:
            self._reserve(self._used.rows, self.width, [layer.held for layer in self._layers], anew=True)

    def advance(self) -> None:
        """Count the column that a step has appended."""
        self._used.end += 1
        self.lengths = [length + 1 for length in self.lengths]

    def row(self, number: int) -> list[KeysValues]:
        """A copy of what a row holds, layer by layer."""
        own = slice(self._used.end - self.lengths[number], self._used.end)
        return [
            (keys[number, :, own].clone(), values[number, :, own].clone())
            for keys, values in (layer.held for layer in self._layers)
        ]

    def leave(self, number: int) -> None:
        """Remove a row; the last one takes its number."""
        used = self._used
        last = used.rows - 1
        if number != last:
            own = slice(used.end - self.lengths[last], used.end)
            for layer in self._layers:
                for buffer in layer.held:
                    buffer[number, :, own] = buffer[last, :, own]
            self.lengths[number] = self.lengths[last]
        self.lengths.pop()
        used.rows = last
        used.start = used.end - max(self.lengths, default=0)

    def _reserve(
        self, rows: int, longest: int, like: Sequence[Sequence[torch.Tensor]], *, anew: bool = False
    ) -> None:
        """Make room for so many rows, and for the longest of them before the slot at which all end."""
        used, (max_rows, slots) = self._used, self._size
        if not anew and rows <= max_rows and longest <= used.end < slots:
            return
        end = max(longest, used.width)
        old, new = slice(used.start, used.end), slice(end - used.width, end)
        rows, slots = max(rows, min(2 * max_rows, rows + 8)), end + max(SPARE_SLOTS, end // 2)
        self._size = (rows, slots)
        for layer, pair in zip(self._layers, like, strict=True):
            # Of zeros: a slot that is masked out must still hold a number.
            buffers = tuple(
                states.new_zeros((rows, states.shape[1], slots, states.shape[3])) for states in pair
            )
            for buffer, held in zip(buffers, layer.held, strict=False):
                buffer[: used.rows, :, new] = held[: used.rows, :, old]
            layer.held = buffers
        used.start, used.end = new.start, end


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
