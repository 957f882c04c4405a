"""Keys and values of rows that have ended, kept for prompts that begin alike.

Every turn of a conversation sends all of it again, and all conversations of a candidate share its
instructions: most of a prompt was worked out before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_trace2evolve.serving.cache import KeysValues


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
