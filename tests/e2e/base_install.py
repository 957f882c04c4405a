"""Hides distributions from a process, which imports this file before anything else."""

import importlib.metadata
import sys
from collections.abc import Collection, Iterator
from typing import Any


class _Finder:
    """A finder that finds no hidden package and only the visible distributions."""

    def __init__(self, inner: Any, hidden: Collection[str], visible: Collection[str]) -> None:
        self._inner, self._hidden, self._visible = inner, hidden, visible

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return None if name.partition(".")[0] in self._hidden else self._inner.find_spec(name, path, target)

    def find_distributions(self, *args: Any) -> Iterator[importlib.metadata.Distribution]:
        find = getattr(self._inner, "find_distributions", lambda *_: ())
        return (found for found in find(*args) if canonical(found.name or "") in self._visible)


def canonical(name: str) -> str:
    """The form of a distribution's name in which names are compared."""
    return name.lower().replace("_", "-").replace(".", "-")


def hide(hidden: Collection[str], visible: Collection[str]) -> None:
    """Hide packages by their names, and all distributions but the visible ones."""
    sys.meta_path[:] = [_Finder(finder, hidden, visible) for finder in sys.meta_path]
