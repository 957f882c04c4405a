"""The adapters of a project, with their weights, their manifests, and the selection of promoted ones."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from pathlib import Path

from pytest_trace2evolve.agents.probe import PROBE_FILE
from pytest_trace2evolve.errors import AdapterError, name_suggestion
from pytest_trace2evolve.records.adapter import (
    MANIFEST_NAME,
    WEIGHTS_NAME,
    AdapterManifest,
    AdapterState,
)
from pytest_trace2evolve.utils.canonical import DIGEST_LENGTH
from pytest_trace2evolve.utils.reading import convert_failures, open_regular, read_record


def unfinished_folder(path: Path) -> Path:
    """Return the folder of an adapter during training, which is not listed as an adapter."""
    return path.with_name(f".{path.name}.unfinished")


@dataclass(frozen=True)
class Adapter:
    """A trained adapter: its name, its folder, and its manifest."""

    name: str
    path: Path
    manifest: AdapterManifest

    @cached_property
    def digest(self) -> str:
        return _file_digest(self.path / WEIGHTS_NAME)

    @property
    def training_date(self) -> date | None:
        """The day on which the adapter's training ended; None if it was not recorded."""
        time = self.manifest.created_at
        return None if time is None else datetime.fromisoformat(time).date()

    @property
    def is_promoted(self) -> bool:
        return self.manifest.state is AdapterState.PROMOTED

    @property
    def promotion_key(self) -> tuple[str, str, str]:
        """The sort key of promotions: the start of the judged run, the time of training, and the name."""
        verdict = self.manifest.verdict
        return "" if verdict is None else verdict.time, self.manifest.created_at or "", self.name


class Adapters:
    """All adapters of a folder that have a manifest, by the names of their folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __iter__(self) -> Iterator[str]:
        # Folders with a leading dot are `unfinished_folder`.
        return iter(sorted(path.parent.name for path in self.folder.glob(f"[!.]*/{MANIFEST_NAME}")))

    def __getitem__(self, name: str) -> Adapter:
        path = self.folder / name
        if name not in set(self):
            raise AdapterError(f"unknown adapter {name!r}; {name_suggestion(name, self)} in {self.folder}")
        return Adapter(
            name, path, read_record(path / MANIFEST_NAME, AdapterManifest, AdapterError, "train it again")
        )

    @property
    def router_digest(self) -> str:
        """The digest of the router's file; empty if there is none."""
        path = self.folder / PROBE_FILE
        return _file_digest(path) if path.exists() else ""

    def routed_adapters(self) -> list[Adapter]:
        """The adapters that a router chooses from, sorted by name.

        Of several promoted adapters of one base with the same capabilities, only the latest counts.
        """
        by_base: dict[str, list[Adapter]] = {}
        for adapter in filter(lambda adapter: adapter.is_promoted, map(self.__getitem__, self)):
            by_base.setdefault(adapter.manifest.base_digest, []).append(adapter)
        latest = [adapter for adapters in by_base.values() for adapter in latest_promotions(adapters)]
        return sorted(latest, key=lambda adapter: adapter.name)


def _file_digest(path: Path) -> str:
    with convert_failures(path, AdapterError, "train it again"), open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_LENGTH]


def latest_promotions(adapters: Iterable[Adapter]) -> list[Adapter]:
    """Return the adapter that was promoted last for each set of capabilities, sorted by name."""
    latest = {
        frozenset(adapter.manifest.environments): adapter
        for adapter in sorted(adapters, key=lambda adapter: adapter.promotion_key)
    }
    return sorted(latest.values(), key=lambda adapter: adapter.name)
