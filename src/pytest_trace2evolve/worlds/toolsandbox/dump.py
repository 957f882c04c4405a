"""Reads the export of ToolSandbox: its scenarios, and the splits of a suite."""

import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.scoring.milestones import Graph
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.reading import convert_failures, read_record, read_text

FOLDER_VARIABLE = "TRACE2EVOLVE_TOOLSANDBOX"
"""The environment variable that names the folder of the export."""

MANIFEST = "manifest.json"
SCENARIOS = "scenarios.json"

_REMEDY = "clone https://github.com/apple/ToolSandbox and `trace2evolve import CLONE --format toolsandbox`"

_STEM = re.compile(
    r"(_alt|_implicit|_multiple_user_turn|_insufficient_information|_low_battery_mode)+$|_\d+$"
)
"""Ends of scenarios' names after which the request stays the same."""


class Manifest(Record):
    """How an export was made.

    Attributes:
        commit: The commit of the clone; empty if it is not a git repository.
        clock: The frozen time, as a POSIX timestamp.
        scenarios: Digest of the scenarios.
        source: Digest of ToolSandbox's own Python files.
        clone, python: The folder of the clone and the interpreter of its environment.
    """

    version: Literal[1] = 1
    commit: str
    clock: float
    seed: int
    scenarios: str
    source: str
    clone: str
    python: str


class Base(Record):
    """A scenario without its variants' tools."""

    messages: tuple[dict[str, Any], ...]
    tables: dict[str, tuple[dict[str, Any], ...]]
    milestones: Graph
    minefields: Graph


class Scenario(Record):
    """A variant of a base.

    Attributes:
        tools: For each side, the name that it sees, the tool's own name, and the number of its schema.
    """

    base: str
    tools: dict[Literal["assistant", "user"], tuple[tuple[str, str, int], ...]]
    categories: tuple[str, ...]


class Dump(Record):
    """All scenarios.

    Attributes:
        tools: The schemas of tools, shared by scenarios.
        network: The tools that ask RapidAPI.
    """

    bases: dict[str, Base]
    scenarios: dict[str, Scenario]
    tools: tuple[ToolSchema, ...]
    network: tuple[str, ...]

    def names_of(self, scenario: str) -> Mapping[str, str]:
        """The tools' own names by the names that the agent sees."""
        return {seen: own for seen, own, _ in self.scenarios[scenario].tools["assistant"]}

    def schemas_of(self, scenario: str, side: Literal["assistant", "user"]) -> list[ToolSchema]:
        """The tools of a side, as a model sees them."""
        return [self.tools[number] for _, _, number in self.scenarios[scenario].tools[side]]

    def needs_network(self, base: str) -> bool:
        """Whether a base, without distraction tools, has a tool that asks RapidAPI."""
        return not {own for _, own, _ in self.scenarios[base].tools["assistant"]}.isdisjoint(self.network)

    def splits(self, *, offline: bool) -> dict[str, list[str]]:
        """Assign scenarios to splits by the request of their base.

        Discovery and heldout hold bases only. Transfer holds bases and their seven variants.
        """
        splits: dict[str, list[str]] = {"discovery": [], "heldout": [], "transfer": []}
        for base in self.bases:
            if offline and self.needs_network(base):
                continue
            number = int(digest(stem_of(base))[:8], 16) % 7
            if number:
                splits["discovery" if number < 4 else "heldout"].append(base)
            else:
                splits["transfer"] += [name for name, item in self.scenarios.items() if item.base == base]
        return splits


def stem_of(name: str) -> str:
    """The name of a base without the ends that mark another wording of the same request."""
    while (shorter := _STEM.sub("", name)) != name:
        name = shorter
    return name


def export_folder() -> Path:
    """The folder of the export: the one that `FOLDER_VARIABLE` names, or one in the user's cache."""
    if value := os.environ.get(FOLDER_VARIABLE):
        return Path(value).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "trace2evolve" / "toolsandbox"


def read_manifest(folder: Path) -> Manifest:
    """Read how an export was made.

    Raises:
        WorldError: there is no export, or it is damaged or incomplete.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise WorldError(f"ToolSandbox is not exported to {folder}: {_REMEDY}")
    manifest = read_record(path, Manifest, WorldError, _REMEDY)
    missing: Sequence[str] = [name for name in (manifest.clone, manifest.python) if not Path(name).exists()]
    if missing:
        raise WorldError(f"ToolSandbox's export in {folder} needs {missing[0]}, which is missing: {_REMEDY}")
    return manifest


@functools.lru_cache(maxsize=2)
def read_dump(folder: Path, expected: str) -> Dump:
    """Read the scenarios, whose digest the manifest holds.

    Raises:
        WorldError: the file is damaged or was changed.
    """
    path = folder / SCENARIOS
    text = read_text(path, WorldError, _REMEDY, max_bytes=64 << 20)
    if digest_text(text) != expected:
        raise WorldError(f"{path} was changed after its export: {_REMEDY}")
    with convert_failures(path, WorldError, _REMEDY):
        return Dump.model_validate_json(text)
