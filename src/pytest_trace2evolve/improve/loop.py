"""Runs the improvement loop: trains adapters for the failures of a run and passes them through the gate.

The stages run one after another. The state is stored after each stage, so the same plan resumes after any
interruption.
"""

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pytest_trace2evolve.diagnose.diagnosis import diagnose_run
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError, ResultsError, TrainingError
from pytest_trace2evolve.evidence.integrity import check_promotion
from pytest_trace2evolve.evidence.results import read_results
from pytest_trace2evolve.improve.environments import prepare_environments
from pytest_trace2evolve.improve.plan import EvolutionPlan
from pytest_trace2evolve.improve.planner import read_source_run
from pytest_trace2evolve.improve.routing import make_openings, make_router_table, route_locally
from pytest_trace2evolve.improve.trainings import (
    OnLine,
    Training,
    adapter_names,
    count_rollouts,
    plan_trainings,
    record_evidence,
    run_trainings,
)
from pytest_trace2evolve.records.adapter import AdapterState
from pytest_trace2evolve.records.improvement import CandidateOutcome, Evolution, Stage
from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.session.events import Event, TaskDecided
from pytest_trace2evolve.session.evidence_sources import expand_run_folders
from pytest_trace2evolve.session.ledger import ProjectLedger
from pytest_trace2evolve.session.planner import Resources, make_plan
from pytest_trace2evolve.session.promote import gate_decision, gate_state, record_adapter_verdict
from pytest_trace2evolve.session.run_verdict import read_verdict
from pytest_trace2evolve.session.session import run as run_session
from pytest_trace2evolve.utils.files import lock_file, write_atomic
from pytest_trace2evolve.utils.reading import read_record

OPENINGS_PER_LABEL = 20
"""Openings per label in the measurement of the router."""

_STORE_INTERVAL_SECONDS = 60.0
"""Seconds between updates of a running stage's stored minutes; a killed process loses at most this time."""

_PROGRESS_LINES = 10
"""Maximum number of progress lines per run."""

_STATE_FILE = "state.json"
_LOCK_FILE = "lock"

OnProgress = Callable[[Stage, str], None]
"""Called with a stage and a line about it."""

Trainer = Callable[[list[Training], int, int, OnLine], None]
"""Runs training processes; see `run_trainings`."""


def evolve(
    plan: EvolutionPlan,
    resources: Resources,
    environments: Environments,
    on_progress: OnProgress = lambda stage, line: None,
    train: Trainer = run_trainings,
) -> Evolution:
    """Run all stages of a plan that are not done yet, and return the final state.

    `on_progress` may be called from other threads; `train` runs the training processes.

    Raises:
        ConfigError: nothing failed, no capability is missing, the budget of minutes is spent, or another
            process works on the evolution.
        TrainingError: a training run failed, or an evaluation run was not complete.
        ResultsError: stored evidence is damaged or was edited, or two runs cannot be compared.
        EndpointError, ModelFolderError, StorageError: a run failed; see `session.run`.
        OSError: a file cannot be written.
    """
    return _Loop(plan, resources, environments, on_progress, train).run()


class _Loop:
    """Runs an evolution, whose `folder` contains its state, its runs and its training logs."""

    state: Evolution

    def __init__(
        self,
        plan: EvolutionPlan,
        resources: Resources,
        environments: Environments,
        on_progress: OnProgress,
        train: Trainer,
    ) -> None:
        self.plan, self.resources, self.project = plan, resources, resources.project
        self.folder = self.project.root / ".trace2evolve" / "evolving" / plan.name
        self._environments = environments
        self._on_progress = on_progress
        self._train = train
        self._lock = -1
        self._stage = Stage.RUN
        self._last_stored = 0.0
        self._store_lock = threading.RLock()

    def run(self) -> Evolution:
        """Run all stages that are not done yet, and return the final state."""
        stages: Mapping[Stage, Callable[[], int]] = {
            Stage.RUN: self._make_run,
            Stage.CAPABILITIES: self._diagnose,
            Stage.ENVIRONMENTS: self._prepare_environments,
            Stage.ADAPTERS: self._train_adapters,
            Stage.GATE: self._gate_adapters,
            Stage.ROUTER: self._measure_router,
            Stage.ROUTED: self._gate_routed,
        }
        with evolution_lock(self.folder) as self._lock:
            self.state = read_state(self.folder, self.plan.candidate, self.plan.identity)
            if set(self.state.done) == set(Stage):
                self._on_progress(
                    Stage.ROUTED,
                    "this evolution is already complete, so nothing is run; to repeat it, move "
                    f"{self.folder} away",
                )
            for stage, run_stage in stages.items():
                if stage not in self.state.done:
                    self._check_minutes(stage)
                    with self._timed_stage(stage):
                        rollouts = run_stage()
                        self._store(done=(*self.state.done, stage), rollouts=self._rollouts_with(rollouts))
            return self.state

    # ---- stages; each returns the number of its rollouts that it has not stored itself

    def _make_run(self) -> int:
        folder = self.plan.run or self._run_suites("run", self.plan.candidate, baseline=None)
        self._store(folder=str(folder))
        return 0 if self.plan.run is not None else _count_simulations(folder)

    def _diagnose(self) -> int:
        diagnosis = diagnose_run(self.project, self.state.folder, self.project.root, self._environments)
        trainable = diagnosis.trainable_capabilities
        for missing in diagnosis.missing:
            if missing not in trainable:
                self._report(f"{missing.name} has no environment in this world, so it is skipped")
        selected = trainable[: self.plan.max_adapters]
        self._store(missing=selected, runs=diagnosis.runs, splits=diagnosis.splits)
        names = ", ".join(
            f"{missing.name} (Δ {missing.delta:+.2f})" for missing in selected if missing.delta is not None
        )
        self._report(f"{diagnosis.failed} of {diagnosis.traces} traces failed; missing: {names}")
        return 0

    def _prepare_environments(self) -> int:
        environments = prepare_environments(
            self.plan,
            self._environments,
            [missing.name for missing in self.state.missing or ()],
            self.project,
            on_progress=self._report,
            on_calibrated=lambda rollouts: self._store(rollouts=self._rollouts_with(rollouts)),
        )
        for environment in environments:
            fits = "" if environment.fits else ", which does not fit all targets"
            mean = (
                "calibrated before"
                if environment.mean is None
                else f"mean reward {environment.mean:.2f}{fits}"
            )
            self._report(f"{environment.name}: admitted; difficulty {environment.difficulty}, {mean}")
        self._store(environments={environment.name: environment for environment in environments})
        return 0

    def _train_adapters(self) -> int:
        plan, adapters = self.plan, self.project.adapters
        if self.state.threads is None:
            self._store(threads=1 if plan.max_parallel > 1 else plan.recipe.threads)
        # Store the names before training starts, so that a resumed training run keeps its name.
        self._store(adapters=adapter_names(plan, self.state, adapters, self._environments))
        trainings = plan_trainings(plan, self.state, self.project.root, self.folder)
        self._train(
            trainings, self._lock, plan.max_parallel, lambda name, line: self._report(f"{name}: {line}")
        )
        names = self.state.adapters.values()
        return sum(count_rollouts(record_evidence(name, self.state, adapters)) for name in names)

    def _gate_adapters(self) -> int:
        for name in self.state.adapters.values():
            candidate = f"{self.plan.candidate}+{name}"
            if candidate not in self.state.judged:
                self._gate(f"gate-{name}", candidate)
        return 0

    def _measure_router(self) -> int:
        outcomes = (
            self.state.judged.get(f"{self.plan.candidate}+{name}") for name in self.state.adapters.values()
        )
        if not any(outcome is not None and outcome.state is AdapterState.PROMOTED for outcome in outcomes):
            self._report("no adapter was promoted, so there is nothing to route to")
            return 0
        # The routed candidate chooses from all promoted adapters, including those of earlier evolutions.
        table = make_router_table(self._environments, (), self.project, self.plan.base)
        openings = make_openings(self._environments, table, OPENINGS_PER_LABEL)
        routing = route_locally(
            self.plan.base,
            table,
            openings,
            on_progress=lambda finished: self._report(f"{finished}/{len(openings)}"),
        )
        self._store(confusion=routing.confusion)
        return 0

    def _gate_routed(self) -> int:
        if self.state.confusion is not None:
            self._gate("gate-routed", f"{self.plan.candidate}+routed")
        return 0

    # ---- helpers of the stages

    def _run_suites(self, name: str, candidate: str, *, baseline: str | None) -> Path:
        """Run the suites with a candidate, and return the run's folder."""
        folder = unused_path(self.folder / name)
        options = replace(self.plan.options, candidate=candidate, baseline=baseline, run_folder=folder)
        plan = make_plan(options, self.resources, suite_names=self.plan.suites, judge=self.plan.judge)
        task_count = sum(len(suite.lock.tasks) for suite in plan.suites.values())
        finished_count = 0

        def on_event(event: Event) -> None:
            nonlocal finished_count
            if isinstance(event, TaskDecided) and event.run is not None:
                finished_count += 1
                if (
                    finished_count * _PROGRESS_LINES // task_count
                    > (finished_count - 1) * _PROGRESS_LINES // task_count
                ):
                    self._report(f"{candidate}: {finished_count} of {task_count} tasks")

        session_result = run_session(plan, self.resources, on_event)
        for note in session_result.notes:
            self._report(f"{candidate}: {note}")
        if baseline is None:
            source = read_source_run(folder)
            source.check_origins(candidate, self.plan.base)
            source.check_tasks(plan)
        return folder

    def _gate(self, name: str, candidate: str) -> None:
        """Run a candidate with the source run as its baseline, and store the outcome.

        A promotion counts only if it is recorded in the ledger.

        Raises:
            TrainingError: the run ended early, so it has no verdict yet.
        """
        folder = self._run_suites(name, candidate, baseline=self.state.folder)
        verdict_record = read_verdict(folder)
        if verdict_record.partial:
            raise TrainingError(
                f"the run of {candidate} is not complete: "
                f"{verdict_record.stopped or 'some tasks did not run'} "
                f"(see {folder}); finished simulations are kept: fix the cause, and rerun the same command "
                "to resume"
            )
        decision = gate_decision(verdict_record)
        if decision is Decision.PROMOTE:
            suites = [name for name, suite in verdict_record.suites.items() if suite.verdict is not None]
            check_promotion(folder, verdict_record, ProjectLedger(self.project).entries, suites)
        state, reason = gate_state(decision), ""
        if adapter := record_adapter_verdict(self.project, verdict_record):
            state, verdict = adapter.manifest.state, adapter.manifest.verdict
            reason = "" if verdict is None else verdict.why
        outcome = CandidateOutcome(
            candidate=candidate, gate=decision, state=state, run=verdict_record.run, why=reason
        )
        rollouts_by_stage = self._rollouts_with(_count_simulations(folder))
        self._store(judged={**self.state.judged, candidate: outcome}, rollouts=rollouts_by_stage)
        self._report(f"{candidate}: {state.value}{f' ({reason})' if reason else ''}")

    def _rollouts_with(self, rollouts: int) -> dict[Stage, int]:
        """Return the rollouts by stage, with `rollouts` added to this stage."""
        counts = self.state.rollouts
        return {**counts, self._stage: counts.get(self._stage, 0) + rollouts}

    def _store(self, **changes: object) -> None:
        """Store changes of the state, and the minutes spent so far."""
        with self._store_lock:
            now = time.monotonic()
            spent_minutes = self.state.minutes.get(self._stage, 0.0) + (now - self._last_stored) / 60
            self._last_stored = now
            minutes = {**self.state.minutes, self._stage: spent_minutes}
            self.state = self.state.model_copy(update={**changes, "minutes": minutes})
            write_state(self.folder, self.state)

    def _report(self, line: str) -> None:
        """Report progress of this stage, and store its minutes at intervals."""
        self._on_progress(self._stage, line)
        if time.monotonic() - self._last_stored > _STORE_INTERVAL_SECONDS:
            self._store()

    @contextmanager
    def _timed_stage(self, stage: Stage) -> Iterator[None]:
        self._stage, self._last_stored = stage, time.monotonic()
        try:
            yield
        finally:
            self._store()

    def _check_minutes(self, stage: Stage) -> None:
        max_minutes, spent_minutes = self.plan.max_minutes, sum(self.state.minutes.values())
        if max_minutes is not None and spent_minutes >= max_minutes:
            raise ConfigError(
                f"--max-minutes {max_minutes:g}: {spent_minutes:.1f} minutes were spent before stage "
                f"{stage.value!r}; finished "
                "stages are kept: rerun the same command with a higher limit to resume"
            )


def _count_simulations(run_folder: Path) -> int:
    """Return the number of simulations of a run, including the reruns that confirm regressions."""
    rerun_folders = [path.parent for path in run_folder.glob("**/fresh/*/results.json")]
    return sum(
        len(read_results(path).simulations) for path in (*expand_run_folders([run_folder]), *rerun_folders)
    )


# The folder of an evolution


def read_state(folder: Path, candidate: str, identity: str) -> Evolution:
    """Read the state of an evolution; returns a new state if the evolution has not begun.

    Raises:
        ResultsError: the state is damaged, or belongs to a different evolution.
    """
    path = folder / _STATE_FILE
    if not os.path.lexists(path):
        return Evolution(candidate=candidate, identity=identity)
    state = read_record(path, Evolution, ResultsError, "move the folder away")
    if state.identity != identity:
        raise ResultsError(
            f"{path}: belongs to a different evolution, {state.identity}; move the folder away"
        )
    return state


def write_state(folder: Path, state: Evolution) -> None:
    """Store the state of an evolution.

    Raises:
        OSError: the state cannot be written.
    """
    write_atomic(folder / _STATE_FILE, state.model_dump_json(indent=1) + "\n")


def unused_path(path: Path) -> Path:
    """Return the first of `path`, `path-2`, `path-3`, … that does not exist."""
    numbered_paths = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(
        possible_path
        for possible_path in itertools.chain([path], numbered_paths)
        if not possible_path.exists()
    )


@contextmanager
def evolution_lock(folder: Path) -> Iterator[int]:
    """Hold the lock of an evolution, and yield the handle of the lock file.

    Training processes inherit the handle. One that outlives a killed evolution holds the lock until it ends.

    Raises:
        ConfigError: another process holds the lock.
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            lock_file(handle, wait=False)
        except BlockingIOError:
            raise ConfigError(
                f"{folder}: in use by another process or by a training that it started; wait for it to end"
            ) from None
        yield handle
    finally:
        os.close(handle)
