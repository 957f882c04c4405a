"""What came of one task, as its item reports it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pytest_trace2evolve.records.evidence import Fresh, SimulationEvidence
from pytest_trace2evolve.records.score import Status


@dataclass(frozen=True)
class TaskRun:
    """What came of one task.

    Attributes:
        records: One a trial.
        left_out: Which of its recorded simulations were not compared, since their task differs from the lock;
            empty where all were.
        absent: Why there was nothing to run: the replayed files hold no simulation of it.
        unfinished: Why not all of its trials were made; empty where they were.
        fresh: Fresh trials of both sides, where the task fell and they were made.
        unconfirmed: Why there are none, where it fell and they could have told more; otherwise empty.
        crash: What the agent's code raised in the first trial in which it did, as `Type: message`.
        frames: The frames of that exception's traceback, as text.
    """

    records: tuple[SimulationEvidence, ...] = ()
    left_out: str = ""
    absent: str = ""
    unfinished: str = ""
    fresh: Fresh | None = None
    unconfirmed: str = ""
    crash: str = ""
    frames: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, for the report that carries it to the controller."""
        return {
            "records": [record.model_dump(mode="json") for record in self.records],
            "left_out": self.left_out,
            "absent": self.absent,
            "unfinished": self.unfinished,
            "fresh": None if self.fresh is None else self.fresh.model_dump(mode="json"),
            "unconfirmed": self.unconfirmed,
            "crash": self.crash,
            "frames": self.frames,
        }

    @classmethod
    def from_json(cls, payload: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        records = tuple(SimulationEvidence.model_validate(record) for record in payload["records"])
        fresh = None if payload["fresh"] is None else Fresh.model_validate(payload["fresh"])
        return cls(**{**payload, "records": records, "fresh": fresh})

    @property
    def lost(self) -> list[SimulationEvidence]:
        """The trials that infrastructure took."""
        return [record for record in self.records if record.status is Status.INFRASTRUCTURE_ERROR]

    @property
    def unmeasured(self) -> list[SimulationEvidence]:
        """The trials that ran and have no reward."""
        return [record for record in self.records if record.status is Status.NOT_MEASURED]
