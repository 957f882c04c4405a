"""Runs tasks: makes, scores and stores their trials, and fresh trials if a task may have regressed."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor as ThreadExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from pytest_trace2evolve.engine.conversation import Assignment, Limits
from pytest_trace2evolve.engine.engine import Engine, Job
from pytest_trace2evolve.errors import BudgetError, EndpointError, LockError, StorageError
from pytest_trace2evolve.evidence.run_folder import RunStore, simulation_record
from pytest_trace2evolve.project.candidates import AgentFactory
from pytest_trace2evolve.project.lock import LOCK_NAME, RENEW
from pytest_trace2evolve.records.evidence import FreshTrials, SimulationEvidence
from pytest_trace2evolve.records.protocols import World, rules_of
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.scoring.invariants import breaches_in
from pytest_trace2evolve.scoring.metrics import Trials, as_evidence
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.session.draws import Draws
from pytest_trace2evolve.session.estimate import Expected, most_fresh
from pytest_trace2evolve.session.evidence_sources import RecordedRuns
from pytest_trace2evolve.session.plan import FIRST_FRESH_TRIAL, SIDES, Plan, PlannedSuite, SideName
from pytest_trace2evolve.session.provenance import provenance_of, sealed_place
from pytest_trace2evolve.worlds.registry import Worlds

T = TypeVar("T")


@dataclass(frozen=True)
class TaskRun:
    """The trials of one task in a run.

    Attributes:
        records: The evidence of each trial.
        left_out: A note on recorded simulations that were not compared, because their task differs from the
            lock; empty if all were compared.
        absent: A note if the replayed files hold no simulation of the task; empty otherwise.
        unfinished: Why some trials of the task were not made; empty if all were made.
        fresh: Fresh trials of both sides; None if none were made.
        unconfirmed: Why a task that may have regressed has no fresh trials; empty otherwise.
        crash: The first exception of the agent's code, as `Type: message`.
        frames: The frames of its traceback, as text.
    """

    records: tuple[SimulationEvidence, ...] = ()
    left_out: str = ""
    absent: str = ""
    unfinished: str = ""
    fresh: FreshTrials | None = None
    unconfirmed: str = ""
    crash: str = ""
    frames: str = ""

    @property
    def lost(self) -> list[SimulationEvidence]:
        """The trials that infrastructure ended."""
        return [record for record in self.records if record.status is Status.INFRASTRUCTURE_ERROR]

    @property
    def unmeasured(self) -> list[SimulationEvidence]:
        """The trials that ran and have no reward."""
        return [record for record in self.records if record.status is Status.NOT_MEASURED]


@dataclass
class TaskRunner:
    """Runs the tasks of a plan.

    Attributes:
        engine: Makes the simulations that are not replayed.
        draws: Stores the simulations, and declares each draw before a simulation of it can be seen.
        factories: Agent factories by suite and side; empty if an executor has its own.
        scorer: The threads in which simulations are scored and stored.
        tasks: The tasks in order. The order matters if the fresh simulations may not suffice for all
            regressions.
    """

    plan: Plan
    worlds: Worlds
    engine: Engine
    draws: Draws
    factories: Mapping[tuple[str, SideName], AgentFactory]
    expected: Expected
    scorer: ThreadExecutor
    tasks: Sequence[tuple[str, str]]

    def __post_init__(self) -> None:
        self._rules: dict[str, Rules | None] = {}
        self._ended = {task: asyncio.Event() for task in self.tasks}
        self._before = dict(zip(self.tasks[1:], self.tasks, strict=False))
        confirm = self.plan.confirm
        self._is_scarce = confirm is not None and most_fresh(self.plan) == confirm.budget

    async def run_all(
        self,
        on_simulation: Callable[[str, SimulationEvidence, bool], None],
        on_run: Callable[[str, str, TaskRun], None],
    ) -> None:
        """Run all tasks. They start in order, with enough tasks at once to keep the slots full.

        Args:
            on_simulation: Called with the suite, the evidence of a simulation and whether it is a fresh one,
                in a thread that scores.
            on_run: Called with the suite, the task's id and its trials.

        Raises:
            EndpointError: the endpoint rejects a request that every further simulation would repeat.
            StorageError: a trace cannot be stored, or a stored one was changed.
            Exception: a callback raised it.
        """
        self._on_simulation = on_simulation
        self._failure: Exception | None = None
        window = asyncio.Semaphore(2 * self.engine.loop.slots)

        async def run(suite: str, task_id: str) -> None:
            try:
                task_run = await self._run(self.plan.suites[suite], task_id)
                if self._failure is not None:
                    raise self._failure
                on_run(suite, task_id, task_run)
            finally:
                self._ended[suite, task_id].set()
                window.release()

        try:
            async with asyncio.TaskGroup() as group:
                for name in self.tasks:
                    await window.acquire()
                    group.create_task(run(*name))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _run(self, planned: PlannedSuite, task_id: str) -> TaskRun:
        """Make or replay every trial of a task, score each, store its trace, and confirm a regression.

        Any other exception, for example in the world, makes every trial an infrastructure error without a
        score.
        """
        try:
            if planned.recorded is not None:
                run = await self._in_thread(self._replay, planned, planned.recorded, task_id)
            else:
                run = await self._make(planned, task_id)
            return await self._confirmed(planned, task_id, run)
        except (EndpointError, StorageError):
            raise
        except Exception as error:
            trials, digest = range(max(1, planned.trials_of(task_id))), planned.lock.tasks[task_id]
            return TaskRun(tuple(lost_trial(task_id, digest, trial, error) for trial in trials))

    def _replay(self, planned: PlannedSuite, files: RecordedRuns, task_id: str) -> TaskRun:
        recorded = files.by_task.get(task_id)
        if not recorded:
            return TaskRun(absent="the replayed files hold no simulation of this task")
        solo, locked = planned.suite.solo, planned.lock.tasks[task_id]
        same = [item for item in recorded if item.task.digest_in(solo=solo) == locked]
        left_out = ""
        if len(same) < len(recorded):
            share = "" if not same else f"{len(recorded) - len(same)} of {len(recorded)} simulations: "
            left_out = f"{share}the recorded task differs from the lock"
        by_trial = {item.simulation.trial or 0: item for item in same}
        records = [
            self._record(planned, item.task, trial, item.simulation)
            for trial, item in sorted(by_trial.items())
        ]
        return TaskRun(tuple(records), left_out=left_out)

    async def _make(self, planned: PlannedSuite, task_id: str) -> TaskRun:
        task = self._world(planned).tasks()[task_id]
        if task.digest_in(solo=planned.suite.solo) != planned.lock.tasks[task_id]:
            raise LockError(
                f"{planned.path}: the content of task {task_id!r} changed "
                f"since {LOCK_NAME} was written; {RENEW}"
            )
        trials = range(planned.trials)
        jobs = [self._job(planned, task, trial) for trial in trials]
        results = await self._simulations(jobs, self.engine.make)
        crashes = [result.crash for result in results if isinstance(result, Simulation) and result.crash]
        crash, frames = crashes[0] if crashes else ("", "")
        unfinished = next((str(result) for result in results if isinstance(result, BudgetError)), "")
        records = [
            await self._in_thread(self._record, planned, task, trial, result)
            for trial, result in zip(trials, results, strict=True)
            if not isinstance(result, BudgetError)
        ]
        return TaskRun(tuple(records), unfinished=unfinished, crash=crash, frames=frames)

    async def _simulations(
        self, jobs: Iterable[Job], make: Callable[[Job], Awaitable[Simulation]]
    ) -> list[Simulation | Exception]:
        """Make simulations concurrently; an exception takes the place of a simulation that was not made.

        Raises:
            EndpointError, StorageError: a simulation raised an error that ends the run.
        """
        results = await asyncio.gather(*map(make, jobs), return_exceptions=True)
        made: list[Simulation | Exception] = []
        for result in results:
            if isinstance(result, EndpointError | StorageError):
                raise result
            if not isinstance(result, Simulation | Exception):
                raise result  # the run is cancelled
            made.append(result)
        return made

    def _job(self, planned: PlannedSuite, task: Task, trial: int, *, baseline: bool = False) -> Job:
        plan, suite = self.plan, planned.suite
        side: SideName = "baseline" if baseline else "candidate"
        is_stored = plan.live is not None
        return Job(
            Assignment(
                task=task,
                world=self._world(planned),
                factory=self.factories.get((planned.name, side)),
                candidate=plan.party(planned.name, baseline=baseline).candidate,
                trial=trial,
                limits=Limits(suite.max_steps, suite.max_errors, suite.timeout),
                solo=suite.solo,
                place=sealed_place(plan, planned, task.id) if is_stored else "",
                suite=planned.name,
                side=side,
            ),
            declare=partial(self.draws.declare, planned.name, task.id),
            place=self.draws.place(planned.name, task.id, trial, baseline=baseline) if is_stored else None,
            expected=self.expected.of(planned.name, task.id),
            is_baseline=baseline,
        )

    async def _confirmed(self, planned: PlannedSuite, task_id: str, run: TaskRun) -> TaskRun:
        """Add fresh trials, or the reason for their absence, to the run of a task that may have regressed."""
        confirm = self.plan.confirm
        if confirm is None or run.unfinished or not may_have_fallen(planned, task_id, run):
            return run
        refused = confirm.refused.get(planned.name, "")
        if refused or confirm.budget == 0:
            return replace(run, unconfirmed=refused or "--t2e-max-reruns 0")
        if self._is_scarce and (before := self._before.get((planned.name, task_id))):
            await self._ended[before].wait()
        from pytest_trace2evolve.gate.confirm import next_step, step_passes

        task = self._world(planned).tasks()[task_id]
        made: dict[SideName, list[SimulationEvidence]] = {side: [] for side in SIDES}
        done = 0
        try:
            while more := next_step(*step_passes(made["baseline"], made["candidate"]), done):
                if not self.engine.reserve_fresh(
                    f"{planned.name}\n{task_id}\n{done}", len(SIDES) * more, confirm.budget
                ):
                    why = f"the {confirm.budget} fresh simulations of --t2e-max-reruns are spent"
                    return replace(run, unconfirmed=why)
                for side, records in (await self._fresh(planned, task, done, more)).items():
                    made[side] += records
                done += more
        except (BudgetError, EndpointError) as error:
            # Either error ends the run, as other tasks report. The main trials of this task are complete.
            return replace(run, unconfirmed=str(error))
        fresh = FreshTrials(baseline=tuple(made["baseline"]), candidate=tuple(made["candidate"]))
        return replace(run, fresh=fresh)

    async def _fresh(
        self, planned: PlannedSuite, task: Task, done: int, more: int
    ) -> dict[SideName, list[SimulationEvidence]]:
        """Make the next fresh trials of both sides."""
        places = [(side, FIRST_FRESH_TRIAL[side] + done + number) for side in SIDES for number in range(more)]
        jobs = [self._job(planned, task, trial, baseline=side == "baseline") for side, trial in places]
        results = await self._simulations(jobs, partial(self.engine.make, urgent=True))
        records: dict[SideName, list[SimulationEvidence]] = {side: [] for side in SIDES}
        for (side, trial), job, result in zip(places, jobs, results, strict=True):
            if isinstance(result, BudgetError):
                raise result
            folder = self.plan.fresh_folder(planned.name, side)
            record = await self._in_thread(self._record, planned, task, trial, result, folder)
            # A lost trial is retried once if a journal lets it resume. A user's own agent has no journal, so
            # its retry would be a second draw, which could be picked for its result.
            if record.status is not Status.MEASURED and job.place is not None and not self.plan.plays:
                (again,) = await self._simulations([job], self.engine.retry)
                if isinstance(again, BudgetError):
                    raise again
                record = await self._in_thread(self._record, planned, task, trial, again, folder)
            records[side].append(record)
        return records

    def _record(
        self,
        planned: PlannedSuite,
        task: Task,
        trial: int,
        simulation: Simulation | Exception,
        folder: Path | None = None,
    ) -> SimulationEvidence:
        """Score a simulation, store its trace and report it."""
        record = self._scored(planned, task, trial, simulation, folder)
        try:
            self._on_simulation(planned.name, record, folder is not None)
        except Exception as error:  # an error of the callback ends the run, and loses no trial
            self._failure = self._failure or error
        return record

    def _scored(
        self,
        planned: PlannedSuite,
        task: Task,
        trial: int,
        simulation: Simulation | Exception,
        folder: Path | None,
    ) -> SimulationEvidence:
        try:
            if isinstance(simulation, Exception):
                raise simulation
            world = self._world(planned)
            result = score(simulation, task, world, self.plan.judge)
            found = breaches_in(simulation, result, self._rules_of(planned, world))
            types = world.tool_types()
            record = as_evidence(simulation, task, result, types, solo=planned.suite.solo, found=found)
            content = simulation_record(simulation, result, found or ())
        except Exception as error:
            return lost_trial(task.id, planned.lock.tasks[task.id], trial, error)
        store = RunStore(folder or self.plan.suite_folder(planned.name))
        try:
            store.write_simulation(content)
        except OSError as error:
            raise StorageError.of(error, store.folder) from None
        return record

    def _rules_of(self, planned: PlannedSuite, world: World) -> Rules | None:
        """The rules that apply to a suite's traces; cached, because the provenance digests the whole lock."""
        if planned.name not in self._rules:
            talked = provenance_of(self.plan, planned).conversational
            self._rules[planned.name] = rules_of(world) if talked else None
        return self._rules[planned.name]

    def _world(self, planned: PlannedSuite) -> World:
        return self.plan.project.world(planned.suite, self.worlds)

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.scorer, partial(function, *arguments))


def lost_trial(task_id: str, task_digest: str, trial: int, error: Exception) -> SimulationEvidence:
    """The record of a trial that was lost to infrastructure: no reward, and a note on the error."""
    note = f"{type(error).__name__}: {error}"
    return SimulationEvidence(
        id=f"lost-{uuid.uuid4().hex}",
        task_id=task_id,
        trial=trial,
        status=Status.INFRASTRUCTURE_ERROR,
        termination_reason=TerminationReason.INFRASTRUCTURE_ERROR.value,
        task_digest=task_digest,
        # The text of any exception must survive JSON.
        note=" ".join(note.encode("utf-8", "backslashreplace").decode().split())[:500],
    )


def may_have_fallen(planned: PlannedSuite, task_id: str, run: TaskRun) -> bool:
    """Whether a task regressed, or could have regressed if its lost trials had been measured."""
    before = _before(planned, task_id)
    if before is None or not run.records:
        return False
    lost = len(before.records) - len(before.measured)
    passed_before = 2 * (before.passed + lost) > len(before.records)
    return passed_before and 2 * Trials(run.records).passed <= len(run.records)


def is_suspected(plan: Plan, planned: PlannedSuite, split: str, run: TaskRun, task_id: str) -> bool:
    """Whether a task that passed on the baseline and fails now may have regressed by chance.

    Each task is tested alone, at the level of the split divided by the number of tasks that are compared.
    """
    before, after = _before(planned, task_id), Trials(run.records)
    if plan.policy is None or not plan.policy.confirms:
        return False
    if before is None or not before.passes or after.passes is not False:
        return False
    from pytest_trace2evolve.gate.confirm import fresh_result
    from pytest_trace2evolve.gate.significance import fisher

    if run.fresh is not None:
        p = fresh_result(run.fresh).p
    else:
        p = float(fisher(_passed(before), len(before.measured), _passed(after), len(after.measured)))
    compared = sum(_before(planned, name) is not None for name in planned.lock.splits[split])
    return p > plan.alpha / compared


def _before(planned: PlannedSuite, task_id: str) -> Trials | None:
    """The baseline's trials of a task; None if the baseline has none of the same content."""
    if planned.baseline is None:
        return None
    return planned.baseline.trials(task_id, planned.lock.tasks[task_id])


def _passed(trials: Trials) -> int:
    return sum(bool(Trials((record,)).passes) for record in trials.measured)
