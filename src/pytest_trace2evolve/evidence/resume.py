"""Finished simulations by the key of everything that could have changed their trace.

A run that was stopped, or is started again, takes from here what it would otherwise make again. Only traces
are kept: their scores are derived anew.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_trace2evolve._canonical import digest
from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.atomic import write_atomic
from pytest_trace2evolve.evidence.journal import Journal, journal_path, remove_journal
from pytest_trace2evolve.evidence.results import decode
from pytest_trace2evolve.records.base import complaint
from pytest_trace2evolve.records.trace import Simulation

FORMAT = 1
"""Raised when a stored trace would no longer be what a fresh one is."""


def simulation_key(parts: dict[str, Any]) -> str:
    """The key of a simulation.

    Args:
        parts: Everything that can change its trace, as JSON: candidate, task, policy, tools, agent and user
            with their settings, endpoint, seed, trial, budgets.
    """
    return digest({"format": FORMAT, **parts})


def simulation_text(simulation: Simulation) -> str:
    """What is stored of a simulation."""
    record = simulation.model_dump(mode="json", exclude_unset=True)
    return json.dumps(record, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class FinishedStore:
    """A folder of simulations, a file each; writers of many processes do not disturb one another.

    The simulations of suites lie in a `draws.DrawStore`.
    """

    folder: Path

    def holds(self, key: str) -> bool:
        """Whether there is a simulation of a key."""
        return self._path(key).exists()

    def get(self, key: str) -> Simulation | None:
        """The simulation of a key; None where there is none.

        Raises:
            ResultsError: the file is damaged; it is named, and never passed over.
        """
        path = self._path(key)
        if not path.exists():
            return None
        try:
            return Simulation.model_validate(decode(path))
        except ValidationError as error:
            raise ResultsError(
                f"{path}: damaged at {complaint(error)}; delete the file to run it again"
            ) from None

    def begin(self, key: str) -> Journal | None:
        """The journal of a simulation; None if the simulation is there.

        Raises:
            BlockingIOError: another process is making it.
            OSError: the journal cannot be opened.
            ResultsError: it was changed.
        """
        journal = Journal(journal_path(self.folder, key), key, must_exist=False, remedy="delete it")
        if not self.holds(key):
            return journal
        journal.remove()
        return None

    def put(self, key: str, simulation: Simulation) -> None:
        """Keep a simulation; its journal is removed.

        Raises:
            OSError: it could not be written.
        """
        write_atomic(self._path(key), simulation_text(simulation))
        remove_journal(self.folder, key)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
