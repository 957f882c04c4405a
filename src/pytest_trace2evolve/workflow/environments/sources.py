"""The digest of what scenarios and rewards of the built-in environments depend on: the code itself."""

import functools
import importlib.resources
from collections.abc import Iterator
from importlib import metadata
from importlib.resources.abc import Traversable

from pytest_trace2evolve._canonical import digest

_PARTS = (
    "_canonical.py",
    "cases",
    "environments",
    "records",
    "scoring",
    "training/pocket",
    "users",
    "workflow/environments",
    "workflow/pocket",
    "worlds/merge.py",
    "worlds/overlay.py",
    "worlds/retail_rules.py",
    "worlds/support",
)
"""Folders and files of the package; a change in one that changes nothing is taken for a change, never the
reverse."""


PACKAGES = ("torch", "transformers", "tokenizers", "trl", "peft", "gepa")
"""Packages by which models are trained and asked."""


def versions() -> list[str]:
    """The versions of `PACKAGES`; of one that is not installed nothing, and whatever needs it says so."""
    return [_version(name) for name in PACKAGES]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@functools.cache
def sources_digest(more: tuple[str, ...] = ()) -> str:
    """Digest of the sources and of the words that scenarios are made of.

    Args:
        more: Further folders and files of the package, for what depends on them too.
    """
    package = importlib.resources.files("pytest_trace2evolve")
    texts = {}
    for part in (*_PARTS, *more):
        for name, file in _files(package.joinpath(part), part):
            texts[name] = file.read_text(encoding="utf-8")
    return digest(texts)


def _files(place: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    if not place.is_dir():
        yield name, place
        return
    for one in sorted(place.iterdir(), key=lambda one: one.name):
        if one.name != "__pycache__" and (one.is_dir() or one.name.endswith((".py", ".toml", ".md"))):
            yield from _files(one, f"{name}/{one.name}")
