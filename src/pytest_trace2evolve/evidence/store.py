"""Run folders: every simulation of a run in a file of its own, in tau2's folder form."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic_core

from pytest_trace2evolve.evidence.results import SIMULATIONS
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.files import write_atomic

_SAFE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")


@dataclass(frozen=True)
class RunStore:
    """One suite's part of a run folder: `results.json` and `simulations/`.

    Workers write simulations, the controller writes the header; no two write one file.
    """

    folder: Path

    def write_simulation(self, record: dict[str, Any]) -> Path:
        """Write one simulation; returns its file.

        Raises:
            OSError: the file could not be written; nothing is left behind.
        """
        path = self.folder / SIMULATIONS / f"{record['id']}.json"
        write_atomic(path, _readable(record))
        return path

    def write_header(self, record: dict[str, Any]) -> Path:
        """Write `results.json`, the header and index of all simulations.

        Raises:
            OSError: the file could not be written; an older one is left as it was.
        """
        path = self.folder / "results.json"
        (self.folder / SIMULATIONS).mkdir(parents=True, exist_ok=True)
        write_atomic(path, _readable(record))
        return path

    def stored(self, records: Iterable[SimulationEvidence]) -> list[SimulationEvidence]:
        """Those of `records` whose trace lies in the folder."""
        present = {path.stem for path in (self.folder / SIMULATIONS).glob("*.json")}
        return [record for record in records if record.id in present]

    def drop_unreported(self, records: Iterable[SimulationEvidence]) -> list[str]:
        """Set aside traces that a killed worker wrote and never reported; returns their ids.

        They go to `unreported/`, so that the index and the folder agree and no trace is lost.
        """
        known = {record.id for record in records}
        dropped = []
        for path in sorted((self.folder / SIMULATIONS).glob("*.json")):
            if path.stem not in known:
                aside = self.folder / "unreported" / path.name
                aside.parent.mkdir(exist_ok=True)
                path.replace(aside)
                dropped.append(path.stem)
        return dropped


def _readable(record: dict[str, Any]) -> str:
    """Indented JSON; pydantic's encoder, since the standard library's is slow once it indents."""
    return pydantic_core.to_json(record, indent=1, inf_nan_mode="strings").decode("utf-8")


def safe_id(name: str) -> str:
    """A simulation id that is a file name: the id itself, or a digest of one that could not be."""
    return name if _SAFE_NAME.match(name) else f"id-{digest_text(name)}"
