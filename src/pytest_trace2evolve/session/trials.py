"""Running one task: its trials, scored and stored, each trial either evidence or a named loss."""

import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path

from pytest_trace2evolve.engine.pool import Job
from pytest_trace2evolve.engine.simulations import Simulations
from pytest_trace2evolve.errors import BudgetError, EndpointError, LockError, StorageError
from pytest_trace2evolve.evidence.account import Account
from pytest_trace2evolve.evidence.run_folder import RunStore, simulation_record
from pytest_trace2evolve.project.lock import LOCK_NAME, RENEW
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.protocols import World, rules_of
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.scoring.invariants import found_in
from pytest_trace2evolve.scoring.metrics import as_evidence
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.session.fresh_trials import Confirmer
from pytest_trace2evolve.session.plan import Plan, PlannedSuite
from pytest_trace2evolve.session.provenance import provenance_of
from pytest_trace2evolve.session.task_run import TaskRun
from pytest_trace2evolve.worlds.registry import Worlds


class Runner:
    """Runs tasks of a plan; one in each process.

    Args:
        plan: What to run.
        worlds: Opens worlds.
        simulations: Makes what is not replayed.
        account: Counts the run's fresh trials; None where none can be made.
    """

    def __init__(
        self, plan: Plan, worlds: Worlds, simulations: Simulations, account: Account | None = None
    ) -> None:
        self._plan = plan
        self._worlds = worlds
        self._simulations = simulations
        self._confirmer = Confirmer(plan, simulations, account)
        self._held: dict[str, Rules | None] = {}

    def run(self, suite: str, task_id: str) -> TaskRun:
        """Finish (or replay) every trial of a task, score each and store its trace; confirm a fall.

        A trial that is lost (an exception in the world) becomes an infrastructure error; nothing is scored
        for it.

        Raises:
            EndpointError: the endpoint refuses what every further simulation would ask too.
            LockError: the world's task differs from the lock.
            StorageError: its trace cannot be stored, or a stored one was changed.
        """
        planned = self._plan.suites[suite]
        run = (self._make if planned.recorded is None else self._replay)(planned, task_id)
        return self._confirmer.confirmed(planned, task_id, run, self._measure_fresh)

    def _make(self, planned: PlannedSuite, task_id: str) -> TaskRun:
        task = self._world(planned).tasks()[task_id]
        if task.digest_in(solo=planned.suite.solo) != planned.lock.tasks[task_id]:
            raise LockError(
                f"{planned.path}: the content of task {task_id!r} changed "
                f"since {LOCK_NAME} was written; {RENEW}"
            )
        records, unfinished, crashes = [], "", []

        def made(job: Job) -> Simulation:
            simulation = self._simulations.outcome(job)
            crashes.extend([simulation.crash] if simulation.crash else [])
            return simulation

        for job in self._simulations.need(planned.name, task_id):
            try:
                records.append(self._trial(planned, task, job.trial, partial(made, job)))
            except BudgetError as error:
                unfinished = str(error)
        crash, frames = crashes[0] if crashes else ("", "")
        return TaskRun(tuple(records), unfinished=unfinished, crash=crash, frames=frames)

    def _measure_fresh(self, job: Job) -> SimulationEvidence:
        planned = self._plan.suites[job.suite]
        task = self._world(planned).tasks()[job.task_id]
        folder = self._plan.fresh_folder(job.suite, "baseline" if job.baseline else "candidate")
        return self._trial(planned, task, job.trial, partial(self._simulations.outcome, job), folder)

    def select(self, tasks: Iterable[tuple[str, str]]) -> None:
        """Take note of the tasks, each with its suite, that the run selects."""
        self._simulations.draws.select(tasks)

    @property
    def shared(self) -> bool:
        """Whether any process of the run can make the simulations of any task."""
        return self._simulations.shared

    def ahead(self, tasks: Iterator[tuple[str, str]]) -> None:
        """Make simulations of these tasks (suite and id), in this order, while nothing is waited for."""
        self._simulations.ahead(
            job
            for suite, task_id in tasks
            if self._plan.suites[suite].recorded is None
            for job in self._simulations.jobs(suite, task_id)
        )

    def drain(self) -> None:
        """Start nothing more, and wait for what runs: another process may need it."""
        self._simulations.drain()

    def close(self) -> None:
        """End the thread in which simulations run."""
        self._simulations.close()

    def first_to_tell(self) -> bool:
        """Whether this process is the first of the run to report what stopped it."""
        return self._simulations.first_to_tell()

    def _world(self, planned: PlannedSuite) -> World:
        return self._plan.project.world(planned.suite, self._worlds)

    def _rules(self, planned: PlannedSuite, world: World) -> Rules | None:
        """What a suite's traces are held against; settled once, since the origin digests the whole lock."""
        if planned.name not in self._held:
            talked = provenance_of(self._plan, planned).conversational
            self._held[planned.name] = rules_of(world) if talked else None
        return self._held[planned.name]

    def _replay(self, planned: PlannedSuite, task_id: str) -> TaskRun:
        assert planned.recorded is not None
        recorded = planned.recorded.by_task.get(task_id)
        if not recorded:
            return TaskRun(absent="the replayed files hold no simulation of this task")
        solo, locked = planned.suite.solo, planned.lock.tasks[task_id]
        same = [one for one in recorded if one.task.digest_in(solo=solo) == locked]
        left_out = ""
        if len(same) < len(recorded):
            share = "" if not same else f"{len(recorded) - len(same)} of {len(recorded)} simulations: "
            left_out = f"{share}the recorded task differs from the lock"
        by_trial = {one.simulation.trial or 0: one for one in same}
        records = [
            self._trial(planned, one.task, trial, partial(attrgetter("simulation"), one))
            for trial, one in sorted(by_trial.items())
        ]
        return TaskRun(tuple(records), left_out=left_out)

    def _trial(
        self,
        planned: PlannedSuite,
        task: Task,
        trial: int,
        simulate: Callable[[], Simulation],
        folder: Path | None = None,
    ) -> SimulationEvidence:
        try:
            world = self._world(planned)
            simulation = simulate()
            result = score(simulation, task, world, self._plan.judge)
            found = found_in(simulation, result, self._rules(planned, world))
            types = world.tool_types()
            record = as_evidence(simulation, task, result, types, solo=planned.suite.solo, found=found)
            content = simulation_record(simulation, result, found or ())
        except (BudgetError, EndpointError, StorageError):
            raise
        except Exception as error:
            return lost_trial(task.id, planned.lock.tasks[task.id], trial, f"{type(error).__name__}: {error}")
        store = RunStore(folder or self._plan.suite_folder(planned.suite.name))
        try:
            store.write_simulation(content)
        except OSError as error:
            raise StorageError.of(error, store.folder) from None
        return record


def lost_trial(task_id: str, task_digest: str, trial: int, note: str) -> SimulationEvidence:
    """The record of a trial that was lost to infrastructure: no reward, and a note that says why."""
    return SimulationEvidence(
        id=f"lost-{uuid.uuid4().hex}",
        task_id=task_id,
        trial=trial,
        status=Status.INFRASTRUCTURE_ERROR,
        termination_reason=TerminationReason.INFRASTRUCTURE_ERROR.value,
        task_digest=task_digest,
        # Whatever an exception says must survive JSON and the wire between processes.
        note=" ".join(note.encode("utf-8", "backslashreplace").decode().split())[:500],
    )
