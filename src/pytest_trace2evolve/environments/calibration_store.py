"""Calibrations that a project keeps: `.trace2evolve/environments/<capability>.json`, one entry a model.

What environments there are, and what is known of them in a project.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from pytest_trace2evolve.environments.generators.scenario import EASIEST
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import GeneratorError
from pytest_trace2evolve.records.environment import Calibration, Outcome
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import complaint, read_json


def kept_in(folder: Path, capability: str) -> list[Calibration]:
    """The calibrations of a capability; none where none was made.

    Raises:
        GeneratorError: the file is damaged.
    """
    path = folder / f"{capability}.json"
    mend = "delete it, and calibrate again"
    if not os.path.lexists(path):
        return []
    found = read_json(path, GeneratorError, mend, unique=True)
    records = found.get("calibrations") if isinstance(found, dict) else None
    if not isinstance(records, list):
        raise GeneratorError(f"{path}: damaged: has no list 'calibrations'; {mend}")
    try:
        return [Calibration.model_validate(one) for one in records]
    except ValidationError as error:
        raise GeneratorError(f"{path}: {complaint(error)}; {mend}") from None


def fitting(environments: Environments, capability: str, weights: str, folder: Path) -> Calibration | None:
    """The calibration that found a difficulty for a model, of the environment as it is now; None without one.

    Args:
        weights: Digest of the model's folder.

    Raises:
        GeneratorError: the file is damaged, or the environment is unknown.
    """
    for one in kept_in(folder, capability):
        now = environments.generator(capability, one.difficulty).digest
        if one.weights == weights and one.outcome is Outcome.FITS and one.digest == now:
            return one
    return None


def keep(folder: Path, calibration: Calibration) -> Path:
    """Keep a calibration in place of an earlier one of the same model, candidate and content.

    Raises:
        GeneratorError: what is there is damaged.
        OSError: it cannot be written.
    """
    others = [one for one in kept_in(folder, calibration.capability) if _whose(one) != _whose(calibration)]
    path = folder / f"{calibration.capability}.json"
    folder.mkdir(parents=True, exist_ok=True)
    records = [one.model_dump(mode="json") for one in (*others, calibration)]
    write_atomic(path, json.dumps({"calibrations": records}, indent=1) + "\n")
    return path


def _whose(one: Calibration) -> Sequence[str | None]:
    return one.model, one.weights, one.candidate, one.content


@dataclass(frozen=True)
class Listed:
    """One environment of the list; `calibrations` are those that are kept of it."""

    name: str
    pays: str
    digest: str
    calibrations: Sequence[Calibration]
    stale: bool = False

    @property
    def record(self) -> dict[str, object]:
        """The same as JSON."""
        return {
            "environment": self.name,
            "capability": self.name,
            "digest": self.digest,
            "pays": self.pays,
            "stale": self.stale,
            "calibrations": [one.model_dump(mode="json") for one in self.calibrations],
        }


def listed(environments: Environments, folder: Path) -> list[Listed]:
    """All environments, each with the calibrations that a folder keeps of it.

    Args:
        environments: Those that are known.
        folder: Where calibrations are kept.

    Raises:
        GeneratorError: one cannot be made, or a file of calibrations is damaged.
    """
    found = []
    for name in environments.names:
        kept = kept_in(folder, name)
        stale = any(
            environments.generator(name, one.difficulty, Content(one.content)).digest != one.digest
            for one in kept
        )
        digest = environments.generator(name, EASIEST).digest
        found.append(Listed(name, environments.offer(name).pays, digest, kept, stale))
    return found
