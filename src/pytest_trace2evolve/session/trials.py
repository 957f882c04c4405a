"""Runs tasks: makes, scores and stores their trials, and fresh trials if a task may have regressed."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor as ThreadExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from pytest_trace2evolve.engine.conversation import Assignment, Limits
from pytest_trace2evolve.engine.engine import Engine, Job
from pytest_trace2evolve.errors import BudgetError, EndpointError, LedgerError, LockError, StorageError
from pytest_trace2evolve.evidence.run_folder import RunStore, simulation_record
from pytest_trace2evolve.project.candidates import AgentFactory
from pytest_trace2evolve.project.lock import LOCK_NAME, RENEW_REMEDY
from pytest_trace2evolve.records.evidence import FreshTrials, SimulationEvidence
from pytest_trace2evolve.records.failure import Failure
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.score import Score, Status
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import AgentError, Simulation, TerminationReason
from pytest_trace2evolve.records.trace_check import CheckOutcome
from pytest_trace2evolve.scoring.failures import explain_failure
from pytest_trace2evolve.scoring.metrics import Trials, is_success
from pytest_trace2evolve.session.draws import Draws
from pytest_trace2evolve.session.estimate import ExpectedUsage, max_fresh_simulations
from pytest_trace2evolve.session.evidence_sources import RecordedRuns, score_simulation
from pytest_trace2evolve.session.plan import FIRST_FRESH_TRIAL, SIDES, Plan, PlannedSuite, SideName
from pytest_trace2evolve.session.provenance import compare_with_baseline, provenance_of, sealed_split_name
from pytest_trace2evolve.session.trace_checks import CheckFailure, describe_check_failures
from pytest_trace2evolve.session.traces import record_first_accesses, sealed_splits_of_task
from pytest_trace2evolve.worlds.registry import Worlds

T = TypeVar("T")


@dataclass(frozen=True)
class TaskRun:
    """The trials of one task in a run.

    Attributes:
        records: The evidence of each trial.
        left_out_reason: Says that recorded simulations were not compared because their task differs from the
            lock; empty if all were compared.
        absent_reason: Says that the replayed files lack the task; empty otherwise.
        unfinished_reason: The reason why some trials of the task were not made; empty if all were made.
        fresh_trials: Fresh trials of both sides; None if none were made.
        unconfirmed_reason: The reason why a task that may have regressed has no fresh trials; else empty.
        agent_error: The first error of the agent that ended a trial; None if there is none.
        failure: The explanation of the first failed trial, if the task failed and its traces may be read.
    """

    records: tuple[SimulationEvidence, ...] = ()
    left_out_reason: str = ""
    absent_reason: str = ""
    unfinished_reason: str = ""
    fresh_trials: FreshTrials | None = None
    unconfirmed_reason: str = ""
    agent_error: AgentError | None = None
    failure: Failure | None = None

    @property
    def lost_trials(self) -> list[SimulationEvidence]:
        """The trials that infrastructure ended."""
        return [record for record in self.records if record.status is Status.INFRASTRUCTURE_ERROR]

    @property
    def unmeasured_trials(self) -> list[SimulationEvidence]:
        """The trials that ran but have no reward."""
        return [record for record in self.records if record.status is Status.NOT_MEASURED]


@dataclass
class TaskRunner:
    """Runs the tasks of a plan.

    Attributes:
        engine: Makes the simulations that are not replayed.
        draws: Stores the simulations, and declares each draw before a simulation of it can be seen.
        factories: Agent factories by suite and side; empty if an executor has its own.
        scorer: The threads in which simulations are scored and stored.
        tasks: The tasks in order.
        on_simulation: Called in a scoring thread, with the suite, the evidence of a simulation, and whether
            it is fresh.
        check_failures: Receives each failure of one of the project's own checks to give a
            result, with the suite.
    """

    plan: Plan
    worlds: Worlds
    engine: Engine
    draws: Draws
    factories: Mapping[tuple[str, SideName], AgentFactory]
    expected: ExpectedUsage
    scorer: ThreadExecutor
    tasks: Sequence[tuple[str, str]]
    on_simulation: Callable[[str, SimulationEvidence, bool], None]
    check_failures: list[tuple[str, CheckFailure]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._failed_trials: dict[tuple[str, str], tuple[Simulation, Task, Score]] = {}
        self._failure: Exception | None = None
        suites = self.plan.suites.items()
        self._talks = {name: provenance_of(self.plan, suite).is_conversational for name, suite in suites}

    async def run_all(self, on_run: Callable[[str, str, TaskRun], None]) -> None:
        """Run all tasks. They start in order, and enough of them run at once to use all slots.

        Args:
            on_run: Called with the suite, the task's id and its trials.

        Raises:
            EndpointError: the endpoint rejects a request that every further simulation would repeat.
            StorageError: a trace cannot be stored, or a stored one was changed.
            Exception: a callback raised it.
        """
        await self._run_concurrently(self.tasks, self._run_task, on_run)

    async def confirm_all(
        self, runs: Mapping[tuple[str, str], TaskRun], on_run: Callable[[str, str, TaskRun], None]
    ) -> None:
        """Add fresh trials, or the reason for their absence, to the runs of tasks that may have regressed.

        Args:
            runs: The runs by suite and task, in order. They are confirmed one after the other if there may
                be too few fresh simulations for all, so that the order decides which get them.
            on_run: Called with the suite, the task's id and its trials.

        Raises:
            StorageError: see `run_all`.
            Exception: a callback raised it.
        """

        async def confirm(planned: PlannedSuite, task_id: str) -> TaskRun:
            run = await self._confirm_regression(planned, task_id, runs[planned.name, task_id])
            return await self._run_in_thread(compare_with_baseline, self.plan, planned, task_id, run)

        confirmation = self.plan.confirmation
        is_scarce = confirmation is not None and max_fresh_simulations(self.plan) == confirmation.budget
        for group in [[name] for name in runs] if is_scarce else [list(runs)]:
            await self._run_concurrently(group, confirm, on_run)

    async def _run_concurrently(
        self,
        tasks: Iterable[tuple[str, str]],
        run_task: Callable[[PlannedSuite, str], Awaitable[TaskRun]],
        on_run: Callable[[str, str, TaskRun], None],
    ) -> None:
        task_slots = asyncio.Semaphore(2 * self.engine.loop.slots)

        async def run(suite: str, task_id: str) -> None:
            try:
                task_run = await run_task(self.plan.suites[suite], task_id)
                if self._failure is not None:
                    raise self._failure
                on_run(suite, task_id, task_run)
            finally:
                task_slots.release()

        try:
            async with asyncio.TaskGroup() as group:
                for task_name in tasks:
                    await task_slots.acquire()
                    group.create_task(run(*task_name))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _run_task(self, planned: PlannedSuite, task_id: str) -> TaskRun:
        """Make or replay every trial of a task, score each, and store its trace.

        An exception that does not end the run, for example in the world, turns every trial into an
        infrastructure error without a score.
        """
        try:
            if planned.recorded_runs is not None:
                run = await self._run_in_thread(self._replay_trials, planned, planned.recorded_runs, task_id)
            else:
                run = await self._make_trials(planned, task_id)
            run = await self._run_in_thread(self._explain_failure, planned, task_id, run)
            return await self._run_in_thread(compare_with_baseline, self.plan, planned, task_id, run)
        except (EndpointError, StorageError):
            raise
        except Exception as error:
            digest = planned.lock.tasks[task_id]
            trials = range(max(1, planned.trials_of(task_id)))
            return TaskRun(tuple(lost_trial(task_id, digest, trial, error) for trial in trials))

    def _explain_failure(self, planned: PlannedSuite, task_id: str, run: TaskRun) -> TaskRun:
        """Add the explanation of the first failed trial to a failed task whose traces may be read."""
        failed_trial = self._failed_trials.pop((planned.name, task_id), None)
        if (
            failed_trial is None
            or Trials(run.records).passes is not False
            or sealed_splits_of_task(self.plan.project, planned.suite.domain, task_id)
        ):
            return run
        simulation, task, result = failed_trial
        try:
            domain, trial = planned.suite.domain, simulation.trial or 0
            record_first_accesses(self.plan.project, domain, {task_id: trial}, self.plan.run_id)
        except LedgerError as error:
            return replace(run, failure=Failure(trial, problem=str(error)))
        world = self._world(planned)
        check_failures = [
            failure
            for suite, failure in sorted(self.check_failures, key=lambda entry: entry[1][3])
            if (suite, failure[2]) == (planned.name, task_id)
        ]
        check_errors = describe_check_failures(check_failures, lambda task: False, self.plan.project.root)
        try:
            failure = explain_failure(simulation, task, world, result.nl_assertions)
        except Exception:  # a failed trial without an explanation still counts as failed
            return run
        return replace(run, failure=replace(failure, check_errors=tuple(check_errors)))

    def _replay_trials(self, planned: PlannedSuite, recorded_runs: RecordedRuns, task_id: str) -> TaskRun:
        recorded = recorded_runs.by_task.get(task_id)
        if not recorded:
            return TaskRun(absent_reason="the replayed files hold no simulation of this task")
        is_solo, locked_digest = planned.suite.solo, planned.lock.tasks[task_id]
        matching = [pair for pair in recorded if pair[1].digest_in(solo=is_solo) == locked_digest]
        left_out_reason = ""
        if len(matching) < len(recorded):
            count_text = f"{len(recorded) - len(matching)} of {len(recorded)} simulations: "
            left_out_reason = f"{count_text if matching else ''}the recorded task differs from the lock"
        by_trial = {
            pair[0].trial or 0: pair for pair in sorted(matching, key=lambda pair: pair[0].trial or 0)
        }
        records = tuple(
            self._score_and_report(planned, task, trial, simulation)
            for trial, (simulation, task) in by_trial.items()
        )
        errors = filter(None, (simulation.agent_error for simulation, _ in by_trial.values()))
        return TaskRun(records, left_out_reason=left_out_reason, agent_error=next(errors, None))

    async def _make_trials(self, planned: PlannedSuite, task_id: str) -> TaskRun:
        task = self._world(planned).tasks()[task_id]
        if task.digest_in(solo=planned.suite.solo) != planned.lock.tasks[task_id]:
            raise LockError(
                f"{planned.path}: the content of task {task_id!r} changed "
                f"since {LOCK_NAME} was written; {RENEW_REMEDY}"
            )
        trials = planned.trial_numbers(task_id)
        made = await self._gather(self._make_trial(planned, task, trial) for trial in trials)
        unfinished_reason = next((str(result) for result in made if isinstance(result, BudgetError)), "")
        finished = [result for result in made if not isinstance(result, BudgetError)]
        return TaskRun(
            tuple(record for record, _ in finished),
            unfinished_reason=unfinished_reason,
            agent_error=next((error for _, error in finished if error), None),
        )

    async def _make_trial(
        self, planned: PlannedSuite, task: Task, trial: int
    ) -> tuple[SimulationEvidence, AgentError | None]:
        """Make, score and store a trial, and forget its trace. Errors are those of `_attempt`."""
        simulation = await self._attempt(self.engine.make(self._make_job(planned, task, trial)))
        agent_error = simulation.agent_error if isinstance(simulation, Simulation) else None
        record = await self._run_in_thread(self._score_and_report, planned, task, trial, simulation)
        return record, agent_error

    @staticmethod
    async def _gather(trials: Iterable[Awaitable[T]]) -> list[T | BudgetError]:
        """Await trials together. An error other than a spent budget is raised after all have ended."""
        tasks = [asyncio.ensure_future(trial) for trial in trials]
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:  # a trial may also return an error: see `_attempt`
            if (error := task.exception()) is not None and not isinstance(error, BudgetError):
                raise error
        return [task.exception() or task.result() for task in tasks]  # type: ignore[misc]  # as above

    @staticmethod
    async def _attempt(simulation: Awaitable[Simulation]) -> Simulation | Exception:
        """Return a simulation, or the error that lost it. Errors that end the run are raised."""
        try:
            return await simulation
        except (BudgetError, EndpointError, StorageError):
            raise
        except Exception as error:
            return error

    def _make_job(self, planned: PlannedSuite, task: Task, trial: int, *, baseline: bool = False) -> Job:
        plan, suite = self.plan, planned.suite
        side: SideName = "baseline" if baseline else "candidate"
        is_stored = plan.live is not None
        return Job(
            Assignment(
                task=task,
                world=self._world(planned),
                factory=self.factories.get((planned.name, side)),
                candidate=plan.setup_of(planned.name, baseline=baseline).candidate,
                trial=trial,
                limits=Limits(suite.max_steps, suite.max_errors, suite.timeout),
                solo=suite.solo,
                cache_partition=sealed_split_name(plan, planned, task.id) if is_stored else "",
                suite=planned.name,
                side=side,
            ),
            declare=partial(self.draws.declare_draw, planned.name, task.id),
            location=self.draws.location_of(planned.name, task.id, trial, baseline=baseline)
            if is_stored
            else None,
            expected_usage=self.expected.usage_of(planned.name, task.id),
            is_baseline=baseline,
        )

    async def _confirm_regression(self, planned: PlannedSuite, task_id: str, run: TaskRun) -> TaskRun:
        """Add fresh trials, or the reason for their absence, to the run of a task that may have regressed."""
        confirmation = self.plan.confirmation
        assert confirmation is not None
        refusal_reason = confirmation.refusal_reasons.get(planned.name, "")
        if refusal_reason or confirmation.budget == 0:
            return replace(run, unconfirmed_reason=refusal_reason or "t2e_max_reruns 0")
        from pytest_trace2evolve.gate.confirm import next_step_trials, passes_of_sides

        task = self._world(planned).tasks()[task_id]
        fresh_records: dict[SideName, list[SimulationEvidence]] = {side: [] for side in SIDES}
        done_count = 0
        try:
            while next_count := next_step_trials(
                *passes_of_sides(fresh_records["baseline"], fresh_records["candidate"]), done_count
            ):
                if not self.engine.reserve_fresh(
                    f"{planned.name}\n{task_id}\n{done_count}",
                    len(SIDES) * next_count,
                    confirmation.budget,
                ):
                    reason = f"the {confirmation.budget} fresh simulations of t2e_max_reruns are spent"
                    return replace(run, unconfirmed_reason=reason)
                for side, records in (
                    await self._make_fresh_trials(planned, task, done_count, next_count)
                ).items():
                    fresh_records[side] += records
                done_count += next_count
        except (BudgetError, EndpointError) as error:
            # Either error ends the run, as other tasks report. The main trials of this task are complete.
            return replace(run, unconfirmed_reason=str(error))
        fresh_trials = FreshTrials(
            baseline=tuple(fresh_records["baseline"]), candidate=tuple(fresh_records["candidate"])
        )
        return replace(run, fresh_trials=fresh_trials)

    async def _make_fresh_trials(
        self, planned: PlannedSuite, task: Task, done_count: int, next_count: int
    ) -> dict[SideName, list[SimulationEvidence]]:
        """Make the next fresh trials of both sides."""
        first = {side: FIRST_FRESH_TRIAL[side] + done_count for side in SIDES}
        side_trials = [(side, first[side] + number) for side in SIDES for number in range(next_count)]
        jobs = [
            self._make_job(planned, task, trial, baseline=side == "baseline") for side, trial in side_trials
        ]
        results = await self._gather(self._attempt(self.engine.make(job, urgent=True)) for job in jobs)
        records: dict[SideName, list[SimulationEvidence]] = {side: [] for side in SIDES}
        score = partial(self._run_in_thread, self._score_and_report, planned, task)
        for (side, trial), job, result in zip(side_trials, jobs, results, strict=True):
            if isinstance(result, BudgetError):
                raise result
            folder = self.plan.fresh_folder(planned.name, side)
            record = await score(trial, result, folder)
            # A lost trial is retried once if a journal lets it resume. A plugin's agent has no journal, so
            # its retry would be a second draw, which could be picked for its result.
            if (
                record.status is not Status.MEASURED
                and job.location is not None
                and not self.plan.plays_recordings
            ):
                retried = await self._attempt(self.engine.retry(job))
                record = await score(trial, retried, folder)
            records[side].append(record)
        return records

    def _score_and_report(
        self,
        planned: PlannedSuite,
        task: Task,
        trial: int,
        simulation: Simulation | Exception,
        folder: Path | None = None,
    ) -> SimulationEvidence:
        """Score a simulation, store its trace and report it."""
        record = self._score_and_store(planned, task, trial, simulation, folder)
        try:
            self.on_simulation(planned.name, record, folder is not None)
        except Exception as error:  # an error of the callback ends the run, and loses no trial
            self._failure = self._failure or error
        return record

    def _score_and_store(
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
            scored = score_simulation(
                simulation,
                task,
                self._world(planned),
                self.plan.judge,
                self.plan.trace_checks,
                solo=planned.suite.solo,
                talks=self._talks[planned.name],
            )
            result, check_results = scored.score, scored.check_results
            content = simulation_record(simulation, result, scored.findings, check_results)
            if folder is None and result.reward is not None and not is_success(result.reward):
                first = self._failed_trials.get((planned.name, task.id))
                if first is None or trial < (first[0].trial or 0):
                    self._failed_trials[planned.name, task.id] = simulation, task, result
        except Exception as error:
            return lost_trial(task.id, planned.lock.tasks[task.id], trial, error)
        self.check_failures.extend(
            (planned.name, (name, check_result, task.id, trial))
            for name, check_result in check_results.items()
            if check_result.outcome is CheckOutcome.ERROR
        )
        store = RunStore(folder or self.plan.suite_folder(planned.name))
        try:
            store.write_simulation(content)
        except OSError as error:
            raise StorageError.from_os_error(error, store.folder) from None
        return scored.record

    def _world(self, planned: PlannedSuite) -> World:
        return self.plan.project.world(planned.suite, self.worlds)

    async def _run_in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.scorer, partial(function, *arguments))


def lost_trial(task_id: str, task_digest: str, trial: int, error: Exception) -> SimulationEvidence:
    """Return the record of a trial that was lost to infrastructure: no reward, and a note on the error."""
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
