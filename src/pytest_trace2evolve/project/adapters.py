"""The adapters of a project: weights with their manifests, and which of them the gate promoted."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from pathlib import Path

from pytest_trace2evolve.errors import AdapterError, nearest
from pytest_trace2evolve.records.adapter import (
    ADAPTER_WEIGHTS,
    MANIFEST,
    AdapterManifest,
    AdapterState,
    Skill,
)
from pytest_trace2evolve.utils.canonical import DIGEST_LENGTH
from pytest_trace2evolve.utils.reading import open_regular, read_record, reported


def unfinished(path: Path) -> Path:
    """Where an adapter is while it is made: beside the folder that it will have, with a dot, and none yet."""
    return path.with_name(f".{path.name}.unfinished")


@dataclass(frozen=True)
class Adapter:
    """One trained adapter: its name, its folder, and what its manifest says."""

    name: str
    path: Path
    manifest: AdapterManifest

    @cached_property
    def digest(self) -> str:
        """Digest of the weights.

        Raises:
            AdapterError: they cannot be read.
        """
        with (
            reported(self.path / ADAPTER_WEIGHTS, AdapterError, "train it again"),
            open_regular(self.path / ADAPTER_WEIGHTS) as file,
        ):
            return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_LENGTH]

    @property
    def trained_on(self) -> date | None:
        """The day of its training, after which its weights do not change; None where it is not known."""
        told = self.manifest.created_at
        return None if told is None else datetime.fromisoformat(told).date()

    @property
    def promoted(self) -> bool:
        """Whether the gate promoted it."""
        return self.manifest.state is AdapterState.PROMOTED

    @property
    def skill(self) -> Skill | None:
        """Its line of a router's table, under its own name; None where it cannot be routed to."""
        told = self.manifest.skill
        return None if told is None else told.model_copy(update={"name": self.name})

    @property
    def promoted_at(self) -> tuple[str, str, str]:
        """When it was promoted, for sorting: its verdict's run, and where that is not noted its training."""
        verdict = self.manifest.verdict
        return "" if verdict is None else verdict.time, self.manifest.created_at or "", self.name


class Adapters:
    """All adapters of a folder that have a manifest, by the names of their folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __iter__(self) -> Iterator[str]:
        # Folders with a dot are `unfinished`.
        return iter(sorted(path.parent.name for path in self.folder.glob(f"[!.]*/{MANIFEST}")))

    def __getitem__(self, name: str) -> Adapter:
        """An adapter by its name.

        Raises:
            AdapterError: it is unknown, or its manifest is damaged.
        """
        path = self.folder / name
        if name not in set(self):
            raise AdapterError(f"unknown adapter {name!r}; {nearest(name, self)} in {self.folder}")
        return Adapter(
            name, path, read_record(path / MANIFEST, AdapterManifest, AdapterError, "train it again")
        )

    def routed(self) -> list[Adapter]:
        """What a router chooses from, by name: of promoted adapters of one base for the same capabilities the
        one that was promoted last. Two would be described alike, and share what is chosen.

        Raises:
            AdapterError: a manifest is damaged.
        """
        promoted = self.promoted()
        bases = sorted({one.manifest.base_digest for one in promoted})
        last = [
            one
            for base in bases
            for one in last_promoted([each for each in promoted if each.manifest.base_digest == base])
        ]
        return sorted(last, key=lambda one: one.name)

    def promoted(self) -> list[Adapter]:
        """The promoted adapters, by name.

        Raises:
            AdapterError: a manifest is damaged.
        """
        found = [self[name] for name in self]
        return [one for one in found if one.promoted]


def last_promoted(adapters: Iterable[Adapter]) -> list[Adapter]:
    """Of adapters for the same capabilities the one that was promoted last, by name."""
    last = {
        frozenset(one.manifest.environments): one for one in sorted(adapters, key=lambda one: one.promoted_at)
    }
    return sorted(last.values(), key=lambda one: one.name)
