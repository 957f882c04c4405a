"""The options of a run, and the plan that is made from them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pytest_trace2evolve.engine.live import DEFAULT_CONCURRENCY, LiveSettings, Party, RaySettings
from pytest_trace2evolve.evidence.saving import SaveMode, Saving
from pytest_trace2evolve.gate.alpha_spending import Stage, stage_alpha
from pytest_trace2evolve.gate.protocols import Policy
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.project.project import LockedSuite, Project
from pytest_trace2evolve.records.budget import NO_BUDGETS, Budgets
from pytest_trace2evolve.records.evidence import REFERENCE_AGENTS, REPLAY, Identity, SimulationEvidence
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.session.baselines import Baseline
from pytest_trace2evolve.session.evidence_sources import RecordedRuns

SCRIPTED = REFERENCE_AGENTS | {REPLAY}
"""Agents that have no fresh trials, because their simulations do not depend on chance."""

SideName = Literal["baseline", "candidate"]

SIDES: tuple[SideName, ...] = ("baseline", "candidate")

MAX_FRESH = 32
"""The largest number of fresh simulations of one task, both sides together."""

FIRST_FRESH_TRIAL: Mapping[SideName, int] = {"candidate": 10_000, "baseline": 20_000}
"""The number of the first fresh trial, by side. Seeds of fresh trials thus differ from those of a suite's
trials and of the other side."""


@dataclass(frozen=True)
class Endpoint:
    """The user's endpoint for the baseline's model; None stands for the value of this run's agent."""

    url: str | None = None
    api_key_env: str | None = None


AS_THE_AGENT = Endpoint()


@dataclass(frozen=True)
class Confirm:
    """How a run confirms regressions of tasks.

    Attributes:
        budget: Fresh simulations that all processes of the run may make together; 0 for none.
        sides: The parties that rerun the baseline, by suite.
        refused: Why the baseline cannot be rerun, by suite. Every suite with a baseline is in `sides` or in
            `refused`.
    """

    budget: int
    sides: Mapping[str, Party] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def possible(self) -> bool:
        """Whether any fresh trial can be made."""
        return self.budget > 0 and bool(self.sides)


@dataclass(frozen=True)
class Options:
    """The options of a run as plain values; None means not given.

    Attributes:
        embedded: The embedded model, if no option names an agent.
        unused: An option of live runs that was given without a model; empty if there is none.
        fresh: Whether the run makes every simulation, and reuses none of an earlier run.
        confirm: Fresh simulations that the run may make to confirm regressions.
        stages: Trials per task after each stage.
        concurrency: Simulations that run at once.
        ray: The Ray cluster that makes the simulations; None if this process makes them.
    """

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
    unused: str = ""
    fresh: bool = False
    budgets: Budgets = NO_BUDGETS
    confirm: int | None = None
    stages: tuple[int, ...] = ()
    baseline_endpoint: Endpoint = AS_THE_AGENT
    concurrency: int = DEFAULT_CONCURRENCY
    ray: RaySettings | None = None
    invocation_dir: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True)
class PlannedSuite(LockedSuite):
    """One suite of a run, with its agent, recorded runs and baseline.

    Attributes:
        guidelines: Digest of the text that a simulated user follows, in a live run.
    """

    agent: str
    trials: int
    recorded: RecordedRuns | None = None
    baseline: Baseline | None = None
    guidelines: str | None = None
    identity: Identity = field(default_factory=Identity)

    def trials_of(self, task_id: str) -> int:
        """The number of simulations of a task that this run makes or replays."""
        if self.recorded is None:
            return self.trials
        return len(self.recorded.by_task.get(task_id, ()))


@dataclass(frozen=True)
class Plan:
    """One run, ready to start.

    Attributes:
        lineage: The candidate and its ancestors.
        policy: The gate's policy; None if the gate is off.
        schedule: Trials per task after each stage; empty for a run of one stage.
        stage: The stage that this plan is for; None in a run of one stage.
        stage_folders: The run folder of each stage.
        agent: The agent of cases that belong to no suite; None if no agent was named.
        draw: The id of the run's draw, for simulations outside the store.
        ray: The Ray cluster that makes simulations; None if this process makes them.
    """

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
    schedule: tuple[int, ...] = ()
    stage: Stage | None = None
    stage_folders: tuple[Path, ...] = ()
    agent: str | None = None
    draw: str = ""
    concurrency: int = DEFAULT_CONCURRENCY
    ray: RaySettings | None = None

    @property
    def alpha(self) -> float:
        """The significance level of the gate's tests."""
        assert self.policy is not None
        return self.policy.alpha if self.stage is None else self.stage.alpha

    @property
    def all_live(self) -> list[LiveSettings]:
        """The settings of all models, including those of the baseline's side."""
        sides = self.baseline_sides.values()
        return [live for live in (self.live, *(party.live for party in sides)) if live is not None]

    @property
    def baseline_sides(self) -> Mapping[str, Party]:
        """The parties that make fresh trials of the baseline, by suite; empty if none can be made."""
        return self.confirm.sides if self.confirm is not None and self.confirm.possible else {}

    @property
    def plays(self) -> bool:
        """Whether the run plays a cassette back, or replays recorded simulations of a suite."""
        played = self.live is not None and self.live.cassette is not None
        return played or any(suite.recorded is not None for suite in self.suites.values())

    def party(self, suite: str, *, baseline: bool = False) -> Party:
        """The party that makes the simulations of one side of a suite."""
        if not baseline:
            return Party(self.candidate, self.live)
        assert self.confirm is not None
        return self.confirm.sides[suite]

    def fresh_folder(self, suite: str, side: SideName) -> Path:
        """The folder of a side's fresh trials, separate from trials that enter estimates."""
        return self.suite_folder(suite) / "fresh" / side

    def suite_folder(self, name: str) -> Path:
        """The folder of a suite's simulations: the run folder, or a subfolder if there are several suites."""
        return self.run_folder if len(self.suites) == 1 else self.run_folder / name

    def stages(self) -> list["Plan"]:
        """The plan of each stage, with equal trials on both sides; only this plan if there are no stages."""
        if not self.schedule:
            return [self]
        return [self._at_stage(number) for number in range(1, len(self.schedule) + 1)]

    def _at_stage(self, number: int) -> "Plan":
        assert self.policy is not None
        level = stage_alpha(self.policy.alpha, self.schedule)
        trials, last = self.schedule[number - 1], self.schedule[-1]
        stage = Stage(number, len(self.schedule), trials, level, last, self.schedule)
        suites = {
            name: replace(
                suite,
                trials=trials,
                baseline=suite.baseline and _first_trials(suite.baseline, trials),
            )
            for name, suite in self.suites.items()
        }
        return replace(self, stage=stage, suites=suites, run_folder=self.stage_folders[number - 1])


def _first_trials(baseline: Baseline, trials: int) -> Baseline:
    """Reduce a baseline to the first trials of each task, by trial number."""
    by_task = records_by_task(baseline.evidence.simulations)
    first = {
        id(record)
        for records in by_task.values()
        for record in sorted(records, key=lambda record: record.trial)[:trials]
    }
    simulations = tuple(record for record in baseline.evidence.simulations if id(record) in first)
    return replace(baseline, evidence=baseline.evidence.model_copy(update={"simulations": simulations}))


def records_by_task(records: Iterable[SimulationEvidence]) -> dict[str, list[SimulationEvidence]]:
    """Group records by task id."""
    groups: dict[str, list[SimulationEvidence]] = {}
    for record in records:
        groups.setdefault(record.task_id, []).append(record)
    return groups
