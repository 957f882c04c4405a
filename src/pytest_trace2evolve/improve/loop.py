"""The improvement loop: from the failures of a run to adapters that the gate has judged.

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
from pytest_trace2evolve.improve.planner import read_source
from pytest_trace2evolve.improve.routing import openings_of, route_locally, table_of
from pytest_trace2evolve.improve.trainings import (
    OnLine,
    Training,
    adapter_names,
    record_evidence,
    rollouts_of,
    run_trainings,
    trainings_of,
)
from pytest_trace2evolve.records.adapter import AdapterState
from pytest_trace2evolve.records.improvement import CandidateOutcome, Evolution, Stage
from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.session.events import Event, TaskDecided
from pytest_trace2evolve.session.evidence_sources import expand
from pytest_trace2evolve.session.ledger import ProjectLedger
from pytest_trace2evolve.session.planner import Resources, make_plan
from pytest_trace2evolve.session.promote import gate_decision, record_adapter_verdict, state_by_gate
from pytest_trace2evolve.session.run_verdict import read_verdict
from pytest_trace2evolve.session.session import run as run_session
from pytest_trace2evolve.utils.files import lock_file, write_atomic
from pytest_trace2evolve.utils.reading import read_record

OPENINGS = 20
"""Openings per label in the measurement of the router."""

_STORE_EVERY = 60.0
"""Seconds between updates of a running stage's stored minutes; a killed process loses at most this time."""

_PARTS_SHOWN = 10
"""Lines of progress per run."""

_STATE = "state.json"
_LOCK = "lock"

OnProgress = Callable[[Stage, str], None]
"""Called with a stage and a line about it."""

Trainer = Callable[[list[Training], int, int, OnLine], None]
"""Runs trainings; see `run_trainings`."""


def evolve(
    plan: EvolutionPlan,
    resources: Resources,
    environments: Environments,
    on_progress: OnProgress = lambda stage, line: None,
    train: Trainer = run_trainings,
) -> Evolution:
    """Run all stages of a plan that are not done yet, and return the final state.

    `on_progress` may be called from other threads; `train` runs the trainings.

    Raises:
        ConfigError: nothing failed, no capability is missing, the budget of minutes is spent, or another
            process works on the evolution.
        TrainingError: a training failed, or a run was not complete.
        ResultsError: stored evidence is damaged or was edited, or two runs cannot be compared.
        EndpointError, ModelFolderError, StorageError: a run failed; see `session.run`.
        OSError: something cannot be written.
    """
    return _Loop(plan, resources, environments, on_progress, train).run()


class _Loop:
    """An evolution; `folder` holds its state, its runs and the logs of its trainings."""

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
        self._since = 0.0
        self._storing = threading.RLock()

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
        with locked(self.folder) as self._lock:
            self.state = read_state(self.folder, self.plan.candidate, self.plan.identity)
            if set(self.state.done) == set(Stage):
                self._on_progress(
                    Stage.ROUTED,
                    "all of this was done before, and nothing is done now; to evolve anew, move "
                    f"{self.folder} away",
                )
            for stage, work in stages.items():
                if stage not in self.state.done:
                    self._check_minutes(stage)
                    with self._timed(stage):
                        rollouts = work()
                        self._store(done=(*self.state.done, stage), rollouts=self._with(rollouts))
            return self.state

    # ---- stages; each returns the number of its rollouts that it has not stored itself

    def _make_run(self) -> int:
        folder = self.plan.run or self._run_suites("run", self.plan.candidate, baseline=None)
        self._store(folder=str(folder))
        return 0 if self.plan.run is not None else _simulations_in(folder)

    def _diagnose(self) -> int:
        learnt = diagnose_run(self.project, self.state.folder, self.project.root, self._environments)
        trainable = learnt.trainable
        for missing in learnt.missing:
            if missing not in trainable:
                self._report(f"{missing.name} has no environment in this world and is left out")
        chosen = trainable[: self.plan.max_adapters]
        self._store(missing=chosen, runs=learnt.runs, splits=learnt.splits)
        names = ", ".join(
            f"{missing.name} (Δ {missing.delta:+.2f})" for missing in chosen if missing.delta is not None
        )
        self._report(f"{learnt.failed} of {learnt.traces} traces failed; missing: {names}")
        return 0

    def _prepare_environments(self) -> int:
        ready = prepare_environments(
            self.plan,
            self._environments,
            [missing.name for missing in self.state.missing or ()],
            self.project,
            on_progress=self._report,
            on_calibrated=lambda rollouts: self._store(rollouts=self._with(rollouts)),
        )
        for environment in ready:
            fits = "" if environment.fits else ", which does not fit all targets"
            mean = (
                "calibrated before"
                if environment.mean is None
                else f"mean reward {environment.mean:.2f}{fits}"
            )
            self._report(f"{environment.name}: admitted; difficulty {environment.difficulty}, {mean}")
        self._store(environments={environment.name: environment for environment in ready})
        return 0

    def _train_adapters(self) -> int:
        plan, adapters = self.plan, self.project.adapters
        if self.state.threads is None:
            self._store(threads=1 if plan.parallel > 1 else plan.recipe.threads)
        # Stored before the trainings begin, so that a resumed training keeps its name.
        self._store(adapters=adapter_names(plan, self.state, adapters, self._environments))
        trainings = trainings_of(plan, self.state, self.project.root, self.folder)
        self._train(trainings, self._lock, plan.parallel, lambda name, line: self._report(f"{name}: {line}"))
        names = self.state.adapters.values()
        return sum(rollouts_of(record_evidence(name, self.state, adapters)) for name in names)

    def _gate_adapters(self) -> int:
        for name in self.state.adapters.values():
            candidate = f"{self.plan.candidate}+{name}"
            if candidate not in self.state.judged:
                self._gate(f"gate-{name}", candidate)
        return 0

    def _measure_router(self) -> int:
        judged = (
            self.state.judged.get(f"{self.plan.candidate}+{name}") for name in self.state.adapters.values()
        )
        if not any(entry is not None and entry.state is AdapterState.PROMOTED for entry in judged):
            self._report("no adapter was promoted: there is nothing to route to")
            return 0
        # The routed candidate chooses from all promoted adapters, including those of earlier evolutions.
        table = table_of(self._environments, (), self.project, self.plan.base)
        openings = openings_of(self._environments, table, OPENINGS)
        routed = route_locally(
            self.plan.base, table, openings, on_progress=lambda done: self._report(f"{done}/{len(openings)}")
        )
        self._store(confusion=routed.confusion)
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
        total = sum(len(suite.lock.tasks) for suite in plan.suites.values())
        done = 0

        def on_event(event: Event) -> None:
            nonlocal done
            if isinstance(event, TaskDecided) and event.run is not None:
                done += 1
                if done * _PARTS_SHOWN // total > (done - 1) * _PARTS_SHOWN // total:
                    self._report(f"{candidate}: {done} of {total} tasks")

        result = run_session(plan, self.resources, on_event)
        for note in result.notes:
            self._report(f"{candidate}: {note}")
        if baseline is None:
            source = read_source(folder)
            source.check_origins(candidate, self.plan.base)
            source.check_tasks(plan)
        return folder

    def _gate(self, name: str, candidate: str) -> None:
        """Run a candidate with the source run as its baseline, and store the outcome.

        A promotion counts only if the ledger holds it.

        Raises:
            TrainingError: the run ended early, so it has no verdict yet.
        """
        folder = self._run_suites(name, candidate, baseline=self.state.folder)
        record = read_verdict(folder)
        if record.partial:
            raise TrainingError(
                f"the run of {candidate} was not whole: {record.stopped or 'tasks were left out'} "
                f"(see {folder}); finished simulations are kept: give it what it lacks, and rerun the same "
                "command to resume"
            )
        gate = gate_decision(record)
        if gate is Decision.PROMOTE:
            suites = [name for name, suite in record.suites.items() if suite.verdict is not None]
            check_promotion(folder, record, ProjectLedger(self.project).entries, suites)
        state, why = state_by_gate(gate), ""
        if adapter := record_adapter_verdict(self.project, record):
            state, verdict = adapter.manifest.state, adapter.manifest.verdict
            why = "" if verdict is None else verdict.why
        judged = CandidateOutcome(candidate=candidate, gate=gate, state=state, run=record.run, why=why)
        rollouts = self._with(_simulations_in(folder))
        self._store(judged={**self.state.judged, candidate: judged}, rollouts=rollouts)
        self._report(f"{candidate}: {state.value}{f' ({why})' if why else ''}")

    def _with(self, rollouts: int) -> dict[Stage, int]:
        """The rollouts by stage, with `rollouts` added to this stage."""
        counts = self.state.rollouts
        return {**counts, self._stage: counts.get(self._stage, 0) + rollouts}

    def _store(self, **changes: object) -> None:
        """Store changes of the state, and the minutes spent so far."""
        with self._storing:
            now = time.monotonic()
            spent = self.state.minutes.get(self._stage, 0.0) + (now - self._since) / 60
            self._since = now
            minutes = {**self.state.minutes, self._stage: spent}
            self.state = self.state.model_copy(update={**changes, "minutes": minutes})
            write_state(self.folder, self.state)

    def _report(self, line: str) -> None:
        """Report progress of this stage, and store its minutes at intervals."""
        self._on_progress(self._stage, line)
        if time.monotonic() - self._since > _STORE_EVERY:
            self._store()

    @contextmanager
    def _timed(self, stage: Stage) -> Iterator[None]:
        self._stage, self._since = stage, time.monotonic()
        try:
            yield
        finally:
            self._store()

    def _check_minutes(self, stage: Stage) -> None:
        limit, spent = self.plan.max_minutes, sum(self.state.minutes.values())
        if limit is not None and spent >= limit:
            raise ConfigError(
                f"--max-minutes {limit:g}: {spent:.1f} were spent before stage {stage.value!r}; finished "
                "stages are kept: rerun the same command with more minutes to resume"
            )


def _simulations_in(run: Path) -> int:
    """The number of simulations of a run, including the reruns that confirm regressions."""
    fresh = [path.parent for path in run.glob("**/fresh/*/results.json")]
    return sum(len(read_results(path).simulations) for path in (*expand([run]), *fresh))


# The folder of an evolution


def read_state(folder: Path, candidate: str, identity: str) -> Evolution:
    """Read the state of an evolution; returns a new state if the evolution has not begun.

    Raises:
        ResultsError: the state is damaged, or belongs to a different evolution.
    """
    path = folder / _STATE
    if not os.path.lexists(path):
        return Evolution(candidate=candidate, identity=identity)
    state = read_record(path, Evolution, ResultsError, "move the folder away")
    if state.identity != identity:
        raise ResultsError(f"{path}: is of another evolution, {state.identity}; move the folder away")
    return state


def write_state(folder: Path, state: Evolution) -> None:
    """Store the state of an evolution.

    Raises:
        OSError: the state cannot be written.
    """
    write_atomic(folder / _STATE, state.model_dump_json(indent=1) + "\n")


def unused_path(path: Path) -> Path:
    """The path, or the first of `path-2`, `path-3`, … that does not exist."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(found for found in itertools.chain([path], numbered) if not found.exists())


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the lock of an evolution; yields the handle of the lock file.

    Trainings inherit the handle. A training that outlives a killed evolution holds the lock until it ends.

    Raises:
        ConfigError: another process holds the lock.
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            lock_file(handle, wait=False)
        except BlockingIOError:
            raise ConfigError(
                f"{folder}: another process works on it, or one that it started; wait for it to end"
            ) from None
        yield handle
    finally:
        os.close(handle)
