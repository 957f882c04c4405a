"""The plan of a run: what the user asked for, and what came of it, as settled choices."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.evidence.saving import SaveMode, Saving
from pytest_trace2evolve.gate.judgement import Policy
from pytest_trace2evolve.gate.stages import Stage
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.project.project import LockedSuite, Project
from pytest_trace2evolve.records.budget import NO_BUDGETS, Budgets
from pytest_trace2evolve.records.evidence import Identity
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.session.baselines import Baseline
from pytest_trace2evolve.session.confirmation import AS_THE_AGENT, Confirm, Endpoint, SideName
from pytest_trace2evolve.session.live import LiveSettings, Party
from pytest_trace2evolve.session.sources import RecordedRuns

if TYPE_CHECKING:
    from pytest_trace2evolve.session.live import Address

REPLAY = "replay"
"""The agent that reads recorded runs instead of talking."""


@dataclass(frozen=True)
class Options:
    """What the user asked for, as plain values; None means not said."""

    candidate: str | None = None
    suites: tuple[str, ...] = ()
    replays: tuple[Path, ...] = ()
    agent: str | None = None
    default_agent: str | None = None
    trials: int | None = None
    baseline: str | None = None
    save_baseline: str | None = None
    baseline_mode: SaveMode | None = None
    gate: str | None = None
    goal: Goal = Goal.IMPROVE
    run_folder: Path | None = None
    live: LiveSettings | None = None
    embedded: LiveSettings | None = None
    """The embedded model, where nothing that was said names another agent."""
    unheard: str = ""
    """An option of live runs that was given without a model."""
    fresh: bool = False
    budgets: Budgets = NO_BUDGETS
    confirm: int | None = None
    stages: tuple[int, ...] = ()
    baseline_endpoint: Endpoint = AS_THE_AGENT
    invocation_dir: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True)
class PlannedSuite(LockedSuite):
    """One suite of a run: what it is, who runs it, and against what."""

    agent: str
    trials: int
    recorded: RecordedRuns | None = None
    baseline: Baseline | None = None
    guidelines: str | None = None
    """Digest of the text that a simulated user follows, in a live run."""
    identity: Identity = field(default_factory=Identity)

    def trials_of(self, task_id: str) -> int:
        """How many simulations of a task this run makes or replays."""
        if self.recorded is None:
            return self.trials
        return len(self.recorded.by_task.get(task_id, ()))


@dataclass(frozen=True)
class Plan:
    """One run, ready to start."""

    project: Project
    candidate: Candidate
    lineage: tuple[Candidate, ...]
    suites: Mapping[str, PlannedSuite]
    policy: Policy | None
    goal: Goal
    run_id: str
    run_folder: Path
    started: str
    saving: Saving | None
    notes: tuple[str, ...]
    judge: Judge | None = None
    live: LiveSettings | None = None
    fresh: bool = False
    budgets: Budgets = NO_BUDGETS
    confirm: Confirm | None = None
    stage: Stage | None = None
    talker: str | None = None
    """Who answers cases that no suite holds; None where nobody was named."""
    draw: str = ""
    """The id of the run's draw, if its simulations are not those of the store."""

    @property
    def alpha(self) -> float:
        """The level of the gate's tests."""
        assert self.policy is not None
        return self.policy.alpha if self.stage is None else self.stage.alpha

    @property
    def everyone(self) -> list[LiveSettings]:
        """The settings of all who talk through a model."""
        sides = self.confirm.sides.values() if self.confirm is not None and self.confirm.possible else ()
        return [live for live in (self.live, *(party.live for party in sides)) if live is not None]

    @property
    def plays(self) -> bool:
        """Whether the run plays a cassette back, or replays recorded simulations of a suite."""
        played = self.live is not None and self.live.cassette is not None
        return played or any(suite.recorded is not None for suite in self.suites.values())

    def party(self, suite: str, *, baseline: bool = False) -> Party:
        """Whose simulations those of one side are."""
        if not baseline:
            return Party(self.candidate, self.live)
        assert self.confirm is not None
        return self.confirm.sides[suite]

    def fresh_folder(self, suite: str, side: SideName) -> Path:
        """Where a side's fresh trials go, apart from those that enter estimates."""
        return self.suite_folder(suite) / "fresh" / side

    def suite_folder(self, name: str) -> Path:
        """Where a suite's simulations go: the run folder itself, or a part of it where there are several."""
        return self.run_folder if len(self.suites) == 1 else self.run_folder / name


@dataclass(frozen=True)
class Shared:
    """What the controller settles and its workers take over.

    `account` is where the run's account lies; None where no model is asked. `served` are the addresses of the
    run's own servers, by their models' folders; `identities` are those of the suites by name; `draw` is the
    id of the run's own draw, equal in all its processes and stages.
    """

    run_id: str
    run_folder: Path
    started: str
    baselines: Mapping[str, str]
    account: Path | None = None
    stage: Stage | None = None
    served: Mapping[str, "Address"] = field(default_factory=dict)
    identities: Mapping[str, Identity] = field(default_factory=dict)
    draw: str = ""


def baseline_copy(run_folder: Path, suite: str) -> Path:
    """The copy of a suite's baseline that the controller leaves for its workers and for the record."""
    return run_folder / "baselines" / f"{suite}.json"
