"""Caches of keys and values, for the rows that are decoded together and for the prefixes of ended rows.

In a `BatchCache`, all rows end at the same slot, so a step appends one column for all lengths of rows. If
a row leaves, the last row takes its place; a joining row is copied to the end. The other rows do not move.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

KeysValues = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of one layer; those of a single row have the shape (heads, length, width)."""

SPARE_SLOTS = 64
"""Minimum number of free slots in a new buffer."""


class _Layer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # of transformers
    """One layer of a `BatchCache`, in the form that transformers expects; `buffers` are its keys and
    values."""

    is_sliding = False

    def __init__(self, batch: "BatchCache") -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of transformers
        self.buffers: tuple[torch.Tensor, ...] = ()
        self._batch = batch
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing, because buffers are made when rows join."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> KeysValues:
        """Append a step's keys and values to every row; returns all keys and values of the rows."""
        batch = self._batch
        rows, start, end = len(batch.lengths), batch.end - batch.width, batch.end + key_states.shape[-2]
        keys, values = self.buffers
        keys[:rows, :, batch.end : end] = key_states
        values[:rows, :, batch.end : end] = value_states
        return keys[:rows, :, start:end], values[:rows, :, start:end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of slots that a step attends to, and the offset of the first."""
        return self._batch.width + query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of slots in use."""
        return self._batch.width

    def get_max_length(self) -> int:
        """Return -1, which means no limit."""
        return -1


class BatchCache:
    """The cache of all running requests, which occupy the first rows of the buffers up to slot `end`.

    Attributes:
        cache: The `cache` argument of a model's `forward`.
        lengths: The number of tokens of each row.
        end: The slot at which all rows end.
    """

    def __init__(self, layers: int) -> None:
        self.lengths: list[int] = []
        self.end = 0
        self._buffer_shape = (0, 0)
        self._layers = [_Layer(self) for _ in range(layers)]
        self.cache = Cache(layers=[*self._layers])

    @property
    def width(self) -> int:
        """Number of slots in use."""
        return max(self.lengths, default=0)

    @property
    def layers(self) -> list[tuple[torch.Tensor, ...]]:
        """The buffers of each layer: keys and values, (rows, heads, slots, width)."""
        return [layer.buffers for layer in self._layers]

    def row_slots(self, row: int) -> slice:
        """Return the slots that a row occupies."""
        return slice(self.end - self.lengths[row], self.end)

    def add_rows(self, layers: Sequence[KeysValues], rows: Sequence[tuple[int, int]]) -> None:
        """Add rows.

        Args:
            layers: Keys and values of each layer, (rows, heads, slots, width), all ending at the last slot.
            rows: The number in `layers` and the number of tokens of each row to add.
        """
        first_row = len(self.lengths)
        lengths = [length for _, length in rows]
        self._reserve(first_row + len(rows), max(lengths), layers)
        for buffers, pair in zip(self.layers, layers, strict=True):
            for buffer, states in zip(buffers, pair, strict=True):
                for row, (source_row, length) in enumerate(rows, first_row):
                    part = states[source_row, :, states.shape[2] - length :]
                    buffer[row, :, self.end - length : self.end] = part
        self.lengths += lengths

    def make_room(self) -> None:
        """Ensure that a step can append a column."""
        self._reserve(len(self.lengths), self.width, self.layers)

    def advance_end(self) -> None:
        """Count the column that a step has appended."""
        self.end += 1
        self.lengths = [length + 1 for length in self.lengths]

    def remove_row(self, row: int) -> None:
        """Remove a row; the last row takes the removed row's number."""
        last_row = len(self.lengths) - 1
        if row != last_row:
            last_slots = self.row_slots(last_row)
            for buffers in self.layers:
                for buffer in buffers:
                    buffer[row, :, last_slots] = buffer[last_row, :, last_slots]
            self.lengths[row] = self.lengths[last_row]
        self.lengths.pop()

    def _reserve(self, rows: int, max_length: int, examples: Sequence[Sequence[torch.Tensor]]) -> None:
        """Make room for `rows` rows of up to `max_length` tokens before `end`, and for one more column."""
        max_rows, slots = self._buffer_shape
        if rows <= max_rows and max_length <= self.end < slots:
            return
        row_count, width = len(self.lengths), self.width
        needed = max(max_length, width)
        end = needed + needed // 4  # room for longer rows that join
        old_slots, new_slots = slice(self.end - width, self.end), slice(end - width, end)
        rows, slots = max(rows, min(2 * max_rows, rows + 8)), end + max(SPARE_SLOTS, needed // 2)
        self._buffer_shape = (rows, slots)
        for layer, pair in zip(self._layers, examples, strict=True):
            # Filled with zeros, because a masked slot must still contain a number.
            buffers = tuple(
                states.new_zeros((rows, states.shape[1], slots, states.shape[3])) for states in pair
            )
            for buffer, old_buffer in zip(buffers, layer.buffers, strict=False):
                buffer[:row_count, :, new_slots] = old_buffer[:row_count, :, old_slots]
            layer.buffers = buffers
        self.end = end


@dataclass(eq=False)
class CachedPrefix:
    """The tokens of an ended row, with their keys and values by layer."""

    adapter: str | None
    tokens: np.ndarray
    layers: list[KeysValues]
    size: int


class PrefixCache:
    """Keeps the keys and values of the most recently used rows, as many as fit.

    Most of a prompt was computed before, because every turn of a conversation sends the whole conversation
    again, and all conversations of a candidate share its instructions.

    Args:
        max_bytes: Maximum size of all stored rows; 0 stores none.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._size = 0
        self._prefixes: list[CachedPrefix] = []

    def find_longest(self, adapter: str | None, prompt: np.ndarray) -> tuple[CachedPrefix | None, int]:
        """Return the stored row that shares the longest prefix with a prompt, or None, and the prefix's
        length.

        The length excludes the prompt's last token, which must always be computed.
        """
        best_prefix, length = None, 0
        for prefix in reversed(self._prefixes):
            # A longer prefix must agree in the next token, which rules out nearly all rows.
            if length >= min(len(prefix.tokens), len(prompt)) or prefix.tokens[length] != prompt[length]:
                continue
            if prefix.adapter == adapter and (shared_length := common_length(prefix.tokens, prompt)) > length:
                best_prefix, length = prefix, shared_length
        if best_prefix is not None:  # the least recently used row comes first
            self._prefixes.remove(best_prefix)
            self._prefixes.append(best_prefix)
        return best_prefix, min(length, len(prompt) - 1)

    def store(self, adapter: str | None, tokens: Sequence[int], layers: list[KeysValues]) -> None:
        """Store a row's keys and values; replaces stored rows that are prefixes of it."""
        size = sum(part.numel() * part.element_size() for pair in layers for part in pair)
        if size > self.max_bytes:
            return
        token_array = np.asarray(tokens, dtype=np.int64)
        for prefix in list(self._prefixes):
            if prefix.adapter == adapter and _begins_with(token_array, prefix.tokens):
                self._drop(prefix)
        while self._prefixes and self._size + size > self.max_bytes:
            self._drop(self._prefixes[0])
        self._prefixes.append(CachedPrefix(adapter, token_array, layers, size))
        self._size += size

    def _drop(self, prefix: CachedPrefix) -> None:
        self._prefixes.remove(prefix)
        self._size -= prefix.size


def _begins_with(whole: np.ndarray, part: np.ndarray) -> bool:
    size = len(part)
    return size <= len(whole) and part[-1] == whole[size - 1] and bool((part == whole[:size]).all())


def common_length(first: np.ndarray, second: np.ndarray) -> int:
    """Return the number of tokens with which both begin."""
    min_length = min(len(first), len(second))
    differences = np.flatnonzero(first[:min_length] != second[:min_length])
    return int(differences[0]) if len(differences) else min_length
