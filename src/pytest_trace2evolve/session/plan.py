"""The options of a run, the plan that is made from them, and the run's own folder."""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pytest_trace2evolve.engine.live import DEFAULT_CONCURRENCY, CandidateSetup, LiveSettings, RaySettings
from pytest_trace2evolve.errors import ConfigError, MissingExtraError
from pytest_trace2evolve.evidence.results import SIMULATIONS_KEY
from pytest_trace2evolve.evidence.saving import SaveMode, SavePlan
from pytest_trace2evolve.gate.alpha_spending import Stage, stage_alpha
from pytest_trace2evolve.gate.protocols import Policy
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.project.project import LockedSuite, Project
from pytest_trace2evolve.records.budget import NO_BUDGETS, Budgets
from pytest_trace2evolve.records.evidence import REFERENCE_AGENTS, REPLAY, Identity
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.verdict import Goal
from pytest_trace2evolve.session.baselines import Baseline
from pytest_trace2evolve.session.candidate_models import check_recordable, recording_path
from pytest_trace2evolve.session.evidence_sources import RecordedRuns
from pytest_trace2evolve.session.trace_checks import NO_TRACE_CHECKS, TraceChecks
from pytest_trace2evolve.utils.files import folder_lock

SCRIPTED_AGENTS = REFERENCE_AGENTS | {REPLAY}
"""Agents that have no fresh trials, because their simulations do not depend on chance."""

SideName = Literal["baseline", "candidate"]

SIDES: tuple[SideName, ...] = ("baseline", "candidate")

MAX_FRESH_SIMULATIONS = 32
"""Maximum number of fresh simulations of one task, for both sides together."""

FIRST_FRESH_TRIAL: Mapping[SideName, int] = {"candidate": 10_000, "baseline": 20_000}
"""The number of the first fresh trial, by side. Seeds of fresh trials thus differ from those of a suite's
trials and of the other side."""


@dataclass(frozen=True)
class Endpoint:
    """The endpoint of the baseline's model; a field that is None has the value of this run's agent."""

    url: str | None = None
    api_key_env: str | None = None


AGENT_ENDPOINT = Endpoint()


@dataclass(frozen=True)
class Confirmation:
    """The settings by which a run confirms regressions of tasks.

    Attributes:
        budget: The maximum number of fresh simulations that all processes of the run may make together.
        sides: The setups that rerun the baseline, by suite.
        refusal_reasons: Why the baseline cannot be rerun, by suite. Every suite with a baseline is in `sides`
            or in `refusal_reasons`.
    """

    budget: int
    sides: Mapping[str, CandidateSetup] = field(default_factory=dict)
    refusal_reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_possible(self) -> bool:
        """Whether any fresh trial can be made."""
        return self.budget > 0 and bool(self.sides)


@dataclass(frozen=True)
class Options:
    """The options of a run as plain values; None means not given.

    Attributes:
        own_agent_settings: The settings of live runs with an agent of the project's own.
        embedded_settings: The settings of the embedded model; None if an option names an agent.
        embedded_problem: The error to raise if the embedded model is used but its packages are missing.
        unused_option: An option of live runs that was given without a model; empty if there is none.
        is_fresh: Whether the run makes every simulation itself instead of reusing those of earlier runs.
        max_reruns: The maximum number of fresh simulations that confirm regressions.
        stages: Trials per task after each stage.
        against: The commit whose saved baselines the run is compared with; None for the current ones.
        concurrency: The maximum number of simulations that run at once.
        ray: The Ray cluster that makes the simulations; None if this process makes them.
    """

    candidate: str | None = None
    suites: tuple[str, ...] = ()
    replays: tuple[Path, ...] = ()
    agent: str | None = None
    default_agent: str | None = None
    trials: int | None = None
    baseline: str | None = None
    against: str | None = None
    save_baseline: str | None = None
    baseline_mode: SaveMode | None = None
    gate: str | None = None
    goal: Goal = Goal.IMPROVE
    run_folder: Path | None = None
    live: LiveSettings | None = None
    own_agent_settings: LiveSettings | None = None
    embedded_settings: LiveSettings | None = None
    embedded_problem: MissingExtraError | None = None
    unused_option: str = ""
    is_fresh: bool = False
    budgets: Budgets = NO_BUDGETS
    max_reruns: int | None = None
    stages: tuple[int, ...] = ()
    baseline_endpoint: Endpoint = AGENT_ENDPOINT
    concurrency: int = DEFAULT_CONCURRENCY
    ray: RaySettings | None = None
    invocation_dir: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True)
class PlannedSuite(LockedSuite):
    """One suite of a run, with its agent, recorded runs and baseline.

    Attributes:
        guidelines: Digest of the text that a simulated user follows, in a live run.
        kept_tasks: The ids of tasks that are not run, because the baseline to which the run adds holds them.
        kept_trials: The same for the numbers of trials, by task.
        claimed_tasks: The ids of the tasks on which the candidate claims a gain; empty for all.
    """

    agent: str
    trials: int
    recorded_runs: RecordedRuns | None = None
    baseline: Baseline | None = None
    guidelines: str | None = None
    identity: Identity = field(default_factory=Identity)
    kept_tasks: Collection[str] = ()
    kept_trials: Mapping[str, Collection[int]] = field(default_factory=dict)
    claimed_tasks: Collection[str] = ()

    @property
    def planned_splits(self) -> dict[str, list[str]]:
        """The ids of the tasks to run, by split; without splits that have none."""
        tasks = {
            split: [task for task in ids if task not in self.kept_tasks]
            for split, ids in self.lock.splits.items()
        }
        return {split: ids for split, ids in tasks.items() if ids}

    @property
    def planned_tasks(self) -> list[str]:
        """The ids of the tasks to run."""
        return [task for tasks in self.planned_splits.values() for task in tasks]

    def trial_numbers(self, task_id: str) -> list[int]:
        """Return the numbers of a task's trials that this run makes."""
        kept_trials = self.kept_trials.get(task_id, ())
        return [trial for trial in range(self.trials) if trial not in kept_trials]

    def trials_of(self, task_id: str) -> int:
        """Return the number of simulations of a task that this run makes or replays."""
        if self.recorded_runs is None:
            return len(self.trial_numbers(task_id))
        return len(self.recorded_runs.by_task.get(task_id, ()))

    @property
    def min_trials(self) -> int:
        """The smallest number of simulations of a task that this run makes or replays."""
        if self.recorded_runs is None:
            return self.trials
        return min((len(records) for records in self.recorded_runs.by_task.values()), default=0)


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
        draw_id: The id of the run's draw, for simulations outside the store.
        ray: The Ray cluster that makes simulations; None if this process makes them.
        trace_checks: The project's own checks that the simulations are measured by.
    """

    project: Project
    candidate: Candidate
    lineage: tuple[Candidate, ...]
    suites: Mapping[str, PlannedSuite]
    policy: Policy | None
    goal: Goal
    run_id: str
    run_folder: Path
    started_at: str
    saving: SavePlan | None
    notes: tuple[str, ...]
    judge: Judge | None = None
    live: LiveSettings | None = None
    is_fresh: bool = False
    budgets: Budgets = NO_BUDGETS
    confirmation: Confirmation | None = None
    schedule: tuple[int, ...] = ()
    stage: Stage | None = None
    stage_folders: tuple[Path, ...] = ()
    agent: str | None = None
    draw_id: str = ""
    concurrency: int = DEFAULT_CONCURRENCY
    ray: RaySettings | None = None
    trace_checks: TraceChecks = NO_TRACE_CHECKS

    @property
    def alpha(self) -> float:
        """The significance level of the gate's tests."""
        assert self.policy is not None
        return self.policy.alpha if self.stage is None else self.stage.alpha

    @property
    def all_live(self) -> list[LiveSettings]:
        """The live settings of the candidate's side and of the baseline's sides."""
        sides = self.baseline_sides.values()
        return [live for live in (self.live, *(setup.live for setup in sides)) if live is not None]

    @property
    def baseline_sides(self) -> Mapping[str, CandidateSetup]:
        """The setups that make fresh trials of the baseline, by suite; empty if none can be made."""
        return (
            self.confirmation.sides if self.confirmation is not None and self.confirmation.is_possible else {}
        )

    @property
    def plays_recordings(self) -> bool:
        """Whether the run plays a cassette back, or replays recorded simulations of a suite."""
        plays_cassette = self.live is not None and self.live.cassette is not None
        return plays_cassette or any(suite.recorded_runs is not None for suite in self.suites.values())

    def setup_of(self, suite: str, *, baseline: bool = False) -> CandidateSetup:
        """Return the setup that makes the simulations of one side of a suite."""
        if not baseline:
            return CandidateSetup(self.candidate, self.live)
        assert self.confirmation is not None
        return self.confirmation.sides[suite]

    def fresh_folder(self, suite: str, side: SideName) -> Path:
        """Return the folder of a side's fresh trials, separate from trials that enter estimates."""
        return self.suite_folder(suite) / "fresh" / side

    def policy_of(self, suite: PlannedSuite) -> Policy | None:
        """Return the policy that judges a suite: the gate's policy with the suite's estimand.

        A policy that sets an estimand itself keeps it.
        """
        if self.policy is None:
            return None
        min_trials = self.schedule[0] if self.schedule else suite.min_trials
        return self.policy.for_suite(suite.suite.estimand_of(min_trials))

    def suite_folder(self, name: str) -> Path:
        """Return the folder of a suite's simulations: the run folder, or a subfolder for several suites."""
        return self.run_folder if len(self.suites) == 1 else self.run_folder / name

    def stage_plans(self) -> list["Plan"]:
        """Return a plan for each stage; this plan if there are no stages."""
        if not self.schedule:
            return [self]
        return [self._stage_plan(number) for number in range(1, len(self.schedule) + 1)]

    def _stage_plan(self, number: int) -> "Plan":
        assert self.policy is not None
        alpha = stage_alpha(self.policy.alpha, self.schedule)
        trials, last_trials = self.schedule[number - 1], self.schedule[-1]
        stage = Stage(number, len(self.schedule), trials, alpha, last_trials, self.schedule)
        suites = {name: replace(suite, trials=trials) for name, suite in self.suites.items()}
        return replace(self, stage=stage, suites=suites, run_folder=self.stage_folders[number - 1])


def first_names(names: Sequence[str]) -> str:
    """Return the first three names for a message."""
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def check_folders_unused(live: LiveSettings | None, suites: Iterable[str], folders: Sequence[Path]) -> None:
    """Check that no folder of a run holds a run or a recording. The first folder is the run's own.

    Raises:
        ConfigError: a folder is used.
    """
    run_folder, names = folders[0], list(suites)
    for folder in folders:
        for path in (folder, *(folder / suite for suite in names)):
            if (path / SIMULATIONS_KEY).exists():
                raise ConfigError(f"{path} already holds a run; choose a different --t2e-run-folder")
    if live is not None and live.record is not None:
        check_recordable(live.record)
        if recording_path(run_folder).exists():
            raise ConfigError(f"{run_folder} already holds a recording; choose a different --t2e-run-folder")


@contextlib.contextmanager
def use_run_folder(plan: Plan) -> Iterator[None]:
    """Make the run's folder and hold its lock; a new folder that stays empty is removed at the end.

    Raises:
        ConfigError: another run uses the folder, or has used it since the plan was made, or it is not
            writable.
    """
    is_new = not plan.run_folder.exists()
    with contextlib.ExitStack() as stack:
        try:
            plan.run_folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(folder_lock(plan.run_folder, wait=False, ignore_unsupported=True))
        except BlockingIOError:
            raise ConfigError(
                f"{plan.run_folder}: another run uses this folder; choose a different --t2e-run-folder"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"cannot write to {plan.run_folder}: {error.strerror}; choose a different folder with "
                "--t2e-run-folder"
            ) from None
        check_folders_unused(plan.live, plan.suites, [plan.run_folder, *plan.stage_folders])
        try:
            yield
        finally:
            if is_new:
                with contextlib.suppress(OSError):
                    plan.run_folder.rmdir()
