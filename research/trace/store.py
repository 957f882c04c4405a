"""What an experiment keeps: a file per piece, and a folder per adapter."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.adapter import MANIFEST_NAME, AdapterManifest
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.serving.folder import ADAPTER_CONFIG_FILE
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import read_record
from research.trace.identity import read_manifest
from research.trace.plan import ARMS, POINTS, Piece, Plan, Training, adapter_at, pieces_of

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Job:
    """The training of one adapter of one seed.

    Attributes:
        base: The base model's folder.
        folder: Where adapters of this seed are.
    """

    plan: Plan
    training: Training
    seed: int
    base: Path
    folder: Path

    @property
    def out(self) -> Path:
        """The adapter's folder."""
        return self.folder / self.training.name

    def at(self, point: float) -> Path:
        """The folder of the adapter as it was after a share of its steps."""
        return self.folder / adapter_at(self.training, point)

    @property
    def done(self) -> bool:
        """Whether all of it exists."""
        return (self.out / MANIFEST_NAME).is_file() and all(
            (self.at(point) / ADAPTER_CONFIG_FILE).is_file() for point in POINTS
        )

    def manifest(self) -> AdapterManifest:
        """The finished adapter's manifest; see `identity.read_manifest`."""
        return read_manifest(self.plan, self.training, self.seed, self.out)


@dataclass(frozen=True)
class Seed:
    """One seed of an experiment.

    Attributes:
        base: The base model's folder.
        out: The experiment's folder.
    """

    plan: Plan
    number: int
    base: Path
    out: Path

    @property
    def folder(self) -> Path:
        """Where all of it is kept."""
        return self.out / f"seed-{self.number}"

    @property
    def adapters(self) -> Path:
        """Where its adapters are."""
        return self.folder / "adapters"

    @property
    def jobs(self) -> list[Job]:
        """Its trainings."""
        return [
            Job(self.plan, training, self.number, self.base, self.adapters)
            for training in self.plan.trainings()
        ]

    def evaluation(self, piece: Piece) -> Path:
        """The file of an evaluation on target tasks."""
        return self.folder / "targets" / f"{piece.name}.json"

    def environmental(self, arm: str) -> Path:
        """The file of an arm's rewards in environments."""
        return self.folder / "environments" / f"{arm}.json"

    @property
    def chosen(self) -> Path:
        """The file of what was chosen on validation tasks."""
        return self.folder / "chosen.json"

    @property
    def found(self) -> Path:
        """The file of what prompt evolution found."""
        return self.folder / "gepa.json"

    @property
    def files(self) -> list[Path]:
        """All files besides adapters."""
        evaluations = [self.evaluation(piece) for piece in pieces_of(self.plan)]
        return [self.chosen, self.found, *evaluations, *map(self.environmental, ARMS)]

    @property
    def done(self) -> int:
        """How many pieces exist, of `len(jobs) + len(files)`."""
        return sum(job.done for job in self.jobs) + sum(file.is_file() for file in self.files)


def read_or_make(file: Path, kind: type[R], make: Callable[[], R]) -> R:
    """A piece from its file; made and written if there is none.

    Raises:
        ConfigError: the file is damaged.
        OSError: it cannot be written.
    """
    if file.is_file():
        return read(file, kind)
    made = make()
    write_atomic(file, made.model_dump_json(indent=1) + "\n")
    return made


def read(file: Path, kind: type[R]) -> R:
    """A piece from its file.

    Raises:
        ConfigError: the file is damaged.
    """
    return read_record(file, kind, ConfigError, "remove it, and it is made again")
