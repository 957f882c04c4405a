"""Keys and values of all rows that are decoded together: one buffer a layer, all rows ending at one slot.

Rows lie side by side and end together, so a step appends one column, whatever their lengths. A row that
leaves is replaced by the last one, and a row that joins is copied beside the others: neither moves the rest.

Keys and values of rows that have ended, kept for prompts that begin alike.

Every turn of a conversation sends all of it again, and all conversations of a candidate share its
instructions: most of a prompt was worked out before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

KeysValues = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of one layer: of one row, (heads, length, width)."""

SPARE = 64
"""Slots beside those in use, at least, in a buffer that is made anew."""


@dataclass
class _Place:
    """Which part of the buffers is in use: the first `rows` rows, the slots from `start` to `end`."""

    rows: int = 0
    start: int = 0
    end: int = 0


class _Layer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # theirs
    """One layer; the place in use is the batch's.

    Attributes:
        held: Buffers of keys and values, (rows, heads, slots, width); none before the first row joined.
    """

    is_sliding = False

    def __init__(self, place: _Place) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # theirs
        self.held: tuple[torch.Tensor, ...] = ()
        self._place = place
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: buffers are made when rows join."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> KeysValues:
        """Write what a step adds to every row; returns all that the rows hold."""
        place = self._place
        end = place.end + key_states.shape[-2]
        found = []
        for buffer, states in zip(self.held, (key_states, value_states), strict=True):
            buffer[: place.rows, :, place.end : end] = states
            found.append(buffer[: place.rows, :, place.start : end])
        return found[0], found[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many slots a step sees, and where they begin."""
        return self._place.end - self._place.start + query_length, 0

    def get_seq_length(self) -> int:
        """Slots in use."""
        return self._place.end - self._place.start

    def get_max_length(self) -> int:
        """There is no limit."""
        return -1


class BatchCache:
    """The cache of all rows.

    Attributes:
        cache: What a model's forward takes as `cache`.
        lengths: Tokens that each row holds.
    """

    def __init__(self, layers: int) -> None:
        self._place = _Place()
        self._layers = [_Layer(self._place) for _ in range(layers)]
        self._room = (0, 0)
        self.cache = Cache(layers=[*self._layers])
        self.lengths: list[int] = []

    @property
    def width(self) -> int:
        """Slots in use."""
        return self._place.end - self._place.start

    def join(self, layers: Sequence[KeysValues], lengths: Sequence[int]) -> None:
        """Take rows in.

        Args:
            layers: Of each layer keys and values, (rows, heads, slots, width), the rows ending at the last
                slot.
            lengths: Tokens of each row.
        """
        place, longest = self._place, max(lengths)
        first = place.rows
        self._reserve(first + len(lengths), longest, layers)
        for layer, (keys, values) in zip(self._layers, layers, strict=True):
            for buffer, states in zip(layer.held, (keys, values), strict=True):
                for number, length in enumerate(lengths):
                    part = states[number, :, states.shape[2] - length :]
                    buffer[first + number, :, place.end - length : place.end] = part
        place.rows += len(lengths)
        self.lengths += lengths
        place.start = min(place.start, place.end - longest)

    def make_room(self) -> None:
        """See that a step can append a column."""
        if self._place.end >= self._room[1]:
            self._reserve(self._place.rows, self.width, [layer.held for layer in self._layers], anew=True)

    def advance(self) -> None:
        """A step has appended a column."""
        self._place.end += 1
        self.lengths = [length + 1 for length in self.lengths]

    def row(self, number: int) -> list[KeysValues]:
        """A copy of what a row holds, layer by layer."""
        place, length = self._place, self.lengths[number]
        held = slice(place.end - length, place.end)
        return [
            (keys[number, :, held].clone(), values[number, :, held].clone())
            for keys, values in (layer.held for layer in self._layers)
        ]

    def leave(self, number: int) -> None:
        """Give a row up; the last one takes its number."""
        place = self._place
        last = place.rows - 1
        if number != last:
            held = slice(place.end - self.lengths[last], place.end)
            for layer in self._layers:
                for buffer in layer.held:
                    buffer[number, :, held] = buffer[last, :, held]
            self.lengths[number] = self.lengths[last]
        self.lengths.pop()
        place.rows = last
        place.start = place.end - max(self.lengths, default=0)

    def _reserve(
        self, rows: int, longest: int, like: Sequence[Sequence[torch.Tensor]], *, anew: bool = False
    ) -> None:
        """Have room for so many rows, and for the longest of them before the slot at which all end."""
        place, (most_rows, slots) = self._place, self._room
        if not anew and rows <= most_rows and longest <= place.end < slots:
            return
        end = max(longest, self.width)
        old, kept = slice(place.start, place.end), slice(end - self.width, end)
        self._room = (max(rows, min(2 * most_rows, rows + 8)), end + max(SPARE, end // 2))
        for layer, pair in zip(self._layers, like, strict=True):
            grown = tuple(self._empty(states) for states in pair)
            for new, buffer in zip(grown, layer.held, strict=False):
                new[: place.rows, :, kept] = buffer[: place.rows, :, old]
            layer.held = grown
        place.start, place.end = kept.start, end

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        """A buffer; of zeros, since a slot that is masked out still counts where it holds no number."""
        rows, slots = self._room
        return like.new_zeros((rows, like.shape[1], slots, like.shape[3]))


@dataclass(eq=False)
class Kept:
    """What one row held: its tokens, and their keys and values layer by layer."""

    adapter: str | None
    tokens: np.ndarray
    layers: list[KeysValues]
    size: int


class Prefixes:
    """The rows that ended last, as many as fit.

    Args:
        most: Bytes that all of them take at most; 0 keeps none.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._kept: list[Kept] = []

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._most > 0

    def longest(self, adapter: str | None, prompt: np.ndarray) -> tuple[Kept | None, int]:
        """What begins most like a prompt, and in how many tokens; the prompt's last is always worked out."""
        best, most = None, 0
        for one in reversed(self._kept):
            # Whoever is to begin more alike must agree in the next token: that rules nearly all of them out.
            if most >= min(len(one.tokens), len(prompt)) or one.tokens[most] != prompt[most]:
                continue
            if one.adapter == adapter and (alike := _alike(one.tokens, prompt)) > most:
                best, most = one, alike
        if best is not None:  # used last, given up last
            self._kept.remove(best)
            self._kept.append(best)
        return best, min(most, len(prompt) - 1)

    def keep(self, adapter: str | None, tokens: Sequence[int], layers: list[KeysValues]) -> None:
        """Keep what a row held, instead of what it goes on from."""
        size = sum(part.numel() * part.element_size() for pair in layers for part in pair)
        if size > self._most:
            return
        held = np.asarray(tokens, dtype=np.int64)
        for one in [one for one in self._kept if one.adapter == adapter and _begins(held, one.tokens)]:
            self._drop(one)
        while self._kept and self._size + size > self._most:
            self._drop(self._kept[0])
        self._kept.append(Kept(adapter, held, layers, size))
        self._size += size

    def _drop(self, one: Kept) -> None:
        self._kept.remove(one)
        self._size -= one.size


def _begins(whole: np.ndarray, part: np.ndarray) -> bool:
    """Whether a row begins with another."""
    size = len(part)
    return size <= len(whole) and part[-1] == whole[size - 1] and bool((part == whole[:size]).all())


def _alike(one: np.ndarray, other: np.ndarray) -> int:
    """How many tokens two rows begin with alike."""
    shorter = min(len(one), len(other))
    differing = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differing[0]) if len(differing) else shorter
