"""Running one task: its trials, scored and stored, each trial either evidence or a named loss."""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from pytest_trace2evolve.agents.nop import NopAgent
from pytest_trace2evolve.agents.oracle import OracleAgent
from pytest_trace2evolve.candidates import Candidate
from pytest_trace2evolve.errors import EndpointError, LockError
from pytest_trace2evolve.evidence.resume import FinishedStore
from pytest_trace2evolve.evidence.store import RunStore
from pytest_trace2evolve.evidence.tau2_format import simulation_record
from pytest_trace2evolve.lock import LOCK_NAME, RENEW
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.protocols import Agent, User, World
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.rollout.conversation import Limits, converse
from pytest_trace2evolve.scoring.evidence import as_evidence
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.users.gold import GoldUser
from pytest_trace2evolve.workflow.live import Pool
from pytest_trace2evolve.workflow.plan import Plan, PlannedSuite
from pytest_trace2evolve.worlds.registry import Worlds

AgentFactory = Callable[[Task, World, Candidate, int], tuple[Agent, User]]
"""Makes the two who talk in one simulation, of a task's trial: the agent of a candidate, and a user."""

BUILT_IN_AGENTS: dict[str, AgentFactory] = {
    "oracle": lambda task, world, candidate, trial: (OracleAgent(task), GoldUser(task)),
    "nop": lambda task, world, candidate, trial: (NopAgent(), GoldUser(task)),
}


@dataclass(frozen=True)
class TaskRun:
    """What came of one task.

    Attributes:
        records: One a trial.
        left_out: Which of its recorded simulations were not compared, since their task differs from the lock;
            empty where all were.
        absent: Why there was nothing to run: the replayed files hold no simulation of it.
    """

    records: tuple[SimulationEvidence, ...] = ()
    left_out: str = ""
    absent: str = ""

    @property
    def lost(self) -> list[SimulationEvidence]:
        """The trials that infrastructure took."""
        return [record for record in self.records if record.status is Status.INFRASTRUCTURE_ERROR]

    @property
    def unmeasured(self) -> list[SimulationEvidence]:
        """The trials that ran and have no reward."""
        return [record for record in self.records if record.status is Status.NOT_MEASURED]


class Runner:
    """Runs tasks of a plan; one in each process.

    Args:
        plan: What to run.
        worlds: Opens worlds.
        agents: Who can talk, by name.
        pool: Where simulations run; shared with whatever the agents need closed.
    """

    def __init__(self, plan: Plan, worlds: Worlds, agents: Mapping[str, AgentFactory], pool: Pool) -> None:
        self._plan = plan
        self._worlds = worlds
        self._agents = agents
        self._pool = pool
        self._started: dict[tuple[str, str], list[Future[Simulation]]] = {}
        self._finished = FinishedStore(plan.project.finished_folder)

    @property
    def room(self) -> bool:
        """Whether further simulations may be started ahead of their items."""
        waiting = sum(not future.done() for futures in self._started.values() for future in futures)
        return waiting < 2 * self._pool.concurrency

    def start(self, suite: str, task_id: str) -> None:
        """Start a task's trials, unless they are replayed or were started before."""
        planned = self._plan.suites[suite]
        if planned.recorded is None and (suite, task_id) not in self._started:
            self._started[suite, task_id] = self._talk(planned, task_id)

    def run(self, suite: str, task_id: str) -> TaskRun:
        """Finish (or replay) every trial of a task, score each and store its trace.

        A trial that is lost (an exception in the world, a trace that could not be stored) becomes an
        infrastructure error; nothing is scored for it.

        Raises:
            EndpointError: the endpoint refuses what every further simulation would ask too.
            LockError: the world's task differs from the lock.
        """
        planned = self._plan.suites[suite]
        if planned.recorded is not None:
            return self._replay(planned, task_id)
        self.start(suite, task_id)
        futures = self._started.pop((suite, task_id))
        task = self._world(planned).tasks()[task_id]
        records = [
            self._trial(planned, task, trial, lambda wanted: futures[wanted].result())
            for trial in range(planned.trials)
        ]
        return TaskRun(tuple(records))

    def close(self) -> None:
        """Give up what is running and close what was opened."""
        self._pool.close()

    def _world(self, planned: PlannedSuite) -> World:
        return self._worlds.open(planned.suite.provider, planned.suite.domain)

    def _talk(self, planned: PlannedSuite, task_id: str) -> list[Future[Simulation]]:
        world = self._world(planned)
        task = world.tasks()[task_id]
        if task.digest != planned.lock.tasks[task_id]:
            raise LockError(
                f"{planned.path}: the content of task {task_id!r} changed "
                f"since {LOCK_NAME} was written; {RENEW}"
            )
        make = self._agents[planned.agent]
        limits = Limits(max_steps=planned.suite.max_steps, max_errors=planned.suite.max_errors)

        async def simulate(trial: int) -> Simulation:
            key = self._key(planned, task, trial)
            known = None if key is None or self._plan.fresh else self._finished.get(key)
            if known is not None:
                return known
            agent, user = make(task, world, self._plan.candidate, trial)
            simulation = await converse(task, world, agent, user, limits=limits, trial=trial, seed=trial)
            if key is not None:
                # In a thread: a flush to the disk would hold up every other conversation.
                await asyncio.to_thread(self._finished.put, key, simulation)
            return simulation

        return [self._pool.submit(partial(simulate, trial)) for trial in range(planned.trials)]

    def _key(self, planned: PlannedSuite, task: Task, trial: int) -> str | None:
        """The key under which a live simulation is kept; None for agents that cost nothing to run again."""
        live = self._plan.live
        if live is None:
            return None
        lock = planned.lock
        return self._finished.key(
            {
                "candidate": self._plan.candidate.digest,
                "task": task.digest,
                "task_id": task.id,
                "world": [lock.provider, lock.domain, lock.policy, lock.tools, lock.data],
                "agent": live.agent_settings().model_dump(mode="json"),
                "user": live.user_settings().model_dump(mode="json"),
                "trial": trial,
                "budgets": [planned.suite.max_steps, planned.suite.max_errors],
            }
        )

    def _replay(self, planned: PlannedSuite, task_id: str) -> TaskRun:
        assert planned.recorded is not None
        recorded = planned.recorded.by_task.get(task_id)
        if not recorded:
            return TaskRun(absent="the replayed files hold no simulation of this task")
        same = [one for one in recorded if one.task.digest == planned.lock.tasks[task_id]]
        left_out = ""
        if len(same) < len(recorded):
            share = "" if not same else f"{len(recorded) - len(same)} of {len(recorded)} simulations: "
            left_out = f"{share}the recorded task differs from the lock"
        by_trial = {one.simulation.trial or 0: one for one in same}
        records = [
            self._trial(planned, one.task, trial, lambda wanted: by_trial[wanted].simulation)
            for trial, one in sorted(by_trial.items())
        ]
        return TaskRun(tuple(records), left_out=left_out)

    def _trial(
        self, planned: PlannedSuite, task: Task, trial: int, simulate: Callable[[int], Simulation]
    ) -> SimulationEvidence:
        try:
            world = self._world(planned)
            simulation = simulate(trial)
            result = score(simulation, task, world, self._plan.judge)
            record = as_evidence(simulation, task, result, world.tool_types())
            store = RunStore(self._plan.suite_folder(planned.suite.name))
            store.write_simulation(simulation_record(simulation, result))
        except EndpointError:
            raise
        except Exception as error:
            return lost_trial(task.id, planned.lock.tasks[task.id], trial, f"{type(error).__name__}: {error}")
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
