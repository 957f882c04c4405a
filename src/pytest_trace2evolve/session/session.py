"""A session: one run of a plan, from its first simulation to its verdict."""

import asyncio
import contextlib
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from pytest_trace2evolve.engine.budget import Account
from pytest_trace2evolve.engine.engine import Engine
from pytest_trace2evolve.engine.loop import LoopThread
from pytest_trace2evolve.engine.participants import ChatFactory
from pytest_trace2evolve.errors import (
    ConfigError,
    EndpointError,
    ResultsError,
    StorageError,
)
from pytest_trace2evolve.evidence.answers import remove
from pytest_trace2evolve.evidence.baselines import write_evidence
from pytest_trace2evolve.gate.alpha_spending import Stage
from pytest_trace2evolve.gate.decide import worst
from pytest_trace2evolve.project.candidates import AgentFactory
from pytest_trace2evolve.records.evidence import CHAT
from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.session.access_log import Looks
from pytest_trace2evolve.session.cassettes import export, recording
from pytest_trace2evolve.session.confirmation import SideName
from pytest_trace2evolve.session.draws import Draws
from pytest_trace2evolve.session.estimate import (
    Estimate,
    Expected,
    estimate,
    expected_usage,
    refuse_impossible,
)
from pytest_trace2evolve.session.finish import keep, keep_totals, record_verdicts
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.session.planner import Resources
from pytest_trace2evolve.session.run_verdict import keep_evidence, refuse_unmergeable, write_verdict
from pytest_trace2evolve.session.servers import LocalServers, at_servers, folders
from pytest_trace2evolve.session.trials import TaskRun, TaskRunner, lost_trial
from pytest_trace2evolve.session.verdicts import (
    SuiteOutcome,
    SuiteRun,
    outcome,
    refuse_edited,
    refuse_incomparable,
)
from pytest_trace2evolve.utils.files import Scratch

TaskName = tuple[str, str]
"""A suite and a task of it."""

_STOP_SECONDS = 30.0
"""How long a stop waits for simulations: an agent may ignore that it is cancelled."""

_JUDGED_AT_ONCE = 8
"""Threads that score simulations if a judge is asked over the network; without one a single thread scores."""


@dataclass(frozen=True)
class TaskDecided:
    """The trials of a task are made and scored, and a fall is confirmed or not.

    Attributes:
        plan: The plan of the last stage that ran.
        run: The trials; None if the run ended before them.
        why: Why the run ended before them, in a few words.
    """

    plan: Plan
    suite: str
    task_id: str
    run: TaskRun | None
    why: str = ""


@dataclass(frozen=True)
class StageFinished:
    """A stage of the run ended.

    Attributes:
        stage: The stage.
        is_last: Whether no other one follows.
    """

    stage: Stage
    is_last: bool
    outcomes: tuple[SuiteOutcome, ...]


@dataclass(frozen=True)
class Run:
    """The result of a run.

    Attributes:
        plan: What was run; of a staged run the plan of its last stage.
        outcomes: Figures and verdicts, a suite each.
        notes: What the user should know, a line each.
        is_measured: Whether a simulation was scored.
        error: Why nothing counts: evidence could not be stored. Empty if it could.
        exhausted: Which budget ended the run before its end; empty if none did.
        estimate: What the run had before it, if it was live.
    """

    plan: Plan
    outcomes: tuple[SuiteOutcome, ...] = ()
    notes: tuple[str, ...] = ()
    is_measured: bool = False
    error: str = ""
    exhausted: str = ""

    @property
    def decision(self) -> Decision | None:
        """The verdict over all suites: the worst of theirs; None if no suite decided."""
        return worst(suite.decision for suite in self.outcomes)


Event = TaskDecided | StageFinished
"""What a session reports while it runs, from a thread of its own."""


def ignore(event: Event) -> None:
    """Take no notice of events."""


class Session:
    """One run.

    Args:
        plan: What to run.
        resources: What the project offers.
        on_event: Called for each event, in a thread of the session.

    Attributes:
        plan: What is run, local models at the addresses of their servers.
        notes: What the user should know, a line each.
        forecast: What a live run has before it; None if nothing is asked of a model.
        refusal: Why the run cannot go on: the endpoint refuses it, or evidence cannot be stored.

    Raises:
        ConfigError: anything that the user wrote is wrong.
        ResultsError: a baseline or a replay was edited, or is not comparable with this run.
        EndpointError: the key of a model is missing.
        ModelFolderError: a local model cannot be served.
        StorageError: stored simulations cannot be read.
    """

    def __init__(self, plan: Plan, resources: Resources, on_event: Callable[[Event], None] = ignore) -> None:
        self.notes = list(plan.notes)
        self.forecast: Estimate | None = None
        self._resources = resources
        self._on_event = on_event
        self._closing = contextlib.ExitStack()
        self._tasks: list[TaskName] = []
        self._decided: dict[TaskName, Future[TaskDecided]] = {}
        self._work: Future[None] | None = None
        self._ended = threading.Event()
        self._deciding = threading.Lock()
        self._narrowed = ""
        self.refusal = ""
        self._unstored = ""
        self._exported = False
        try:
            self._check(plan.stages()[0])
            self._open(plan)
        except BaseException:
            self.close()
            raise

    def _check(self, plan: Plan) -> None:
        """Check that the run can be compared with its baselines, and that nothing it reads was edited."""
        for planned in plan.suites.values():
            if planned.baseline is not None and plan.policy is not None:
                self.notes += refuse_incomparable(plan, planned)
        replays = any(planned.recorded is not None for planned in plan.suites.values())
        if plan.suites and (replays or plan.saving is not None or plan.policy is not None):
            ledger = Looks(plan.project)
            refuse_unmergeable(plan, ledger)
            self.notes += refuse_edited(plan, ledger)

    def _open(self, plan: Plan) -> None:
        self.servers = LocalServers()
        self._closing.callback(self.servers.close)
        if wanted := folders(plan):
            self.servers.start(wanted)
        self.plan = at_servers(plan, self.servers.addresses)
        for live in self.plan.all_live:
            live.require_endpoints()
        try:
            scratch = Scratch()
            self._closing.callback(scratch.close)
            self.folder = scratch.path
            self.account = Account(self.folder / "account.sqlite", self.plan.budgets)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"the account of the run cannot be made in {tempfile.gettempdir()} ({error}); "
                "make room there, or set TMPDIR to another folder"
            ) from None
        self._closing.callback(self.account.close)
        for server in self.servers.running:
            server.watch(self._on_server_end)
        threads = 1 if self.plan.judge is None else _JUDGED_AT_ONCE
        self._scorer = self._closing.enter_context(ThreadPoolExecutor(threads, "trace2evolve-scorer"))
        self._loop = LoopThread(self.plan.concurrency)
        self._closing.callback(self._loop.close)
        self.engine = Engine(self._loop, self.account, self.plan.project.finished_folder)
        self._factories = self._make_factories()
        self._stages = self.plan.stages()
        self._expected = Expected() if self.plan.live is None else expected_usage(self._stages[0])
        self._begin_stage(self._stages[0])
        if self.plan.live is not None and self.plan.suites:
            self._check_store()

    def _make_factories(self) -> dict[tuple[str, SideName], AgentFactory]:
        """Who makes the simulations of each suite and side; replayed suites have nobody."""
        plan, agents = self.plan, dict(self._resources.agents)
        stores = {"cache": plan.project.answers_cache, "recording": recording(plan.run_folder)}
        if plan.live is not None:
            agents[CHAT] = ChatFactory(plan.live, self._loop, self.account, **stores)
        found: dict[tuple[str, SideName], AgentFactory] = {
            (name, "candidate"): agents[planned.agent]
            for name, planned in plan.suites.items()
            if planned.recorded is None
        }
        sides = plan.confirm.sides if plan.confirm is not None and plan.confirm.possible else {}
        for name, party in sides.items():
            if party.live is None or party.live == plan.live:
                found[name, "baseline"] = agents[plan.suites[name].agent]
            else:
                found[name, "baseline"] = ChatFactory(party.live, self._loop, self.account, **stores)
        return found

    def _check_store(self) -> None:
        """Check what earlier runs stored, and estimate what is left to be made."""
        problems = list(self._draws.problems())
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise ResultsError(f"{problems[0]}{more}")
        assert self.plan.live is not None
        if self.plan.live.cassette is None:
            refuse_impossible(self.plan.budgets, self._expected)
            self.forecast = estimate(self._stages[0], self._expected, self._draws)

    def _on_server_end(self, why: str) -> None:
        """A local server ended: every further request would find nobody."""
        with contextlib.suppress(sqlite3.Error):  # the run has ended too
            self.account.stop(why, EndpointError)

    def start(self, tasks: Iterable[TaskName] | None = None, narrowed: str = "") -> None:
        """Begin to make and score the simulations of tasks.

        Args:
            tasks: Suites and ids of tasks, in the order in which they are decided; all, if not given.
            narrowed: Which option narrows the run below whole splits; empty if none does.
        """
        everything = ((name, task) for name, suite in self.plan.suites.items() for task in suite.lock.tasks)
        self._tasks = list(dict.fromkeys(everything if tasks is None else tasks))
        self._narrowed = narrowed
        self._decided = {task: Future() for task in self._tasks}
        self._draws.select(self._tasks)
        self._copy_baselines()
        self._work = self._loop.start(self._run())

    def _copy_baselines(self) -> None:
        """Keep what the run is compared with next to its traces."""
        for name in {suite for suite, _ in self._tasks}:
            planned = self.plan.suites[name]
            if planned.baseline is not None:
                write_evidence(self.plan.run_folder / "baselines" / f"{name}.json", planned.baseline.evidence)

    @property
    def is_started(self) -> bool:
        """Whether the run has begun."""
        return self._work is not None

    def total_of(self, tasks: Iterable[TaskName]) -> int:
        """Simulations of tasks, without fresh ones; of a staged run those of all stages."""
        suites = self._stages[-1].suites
        return sum(suites[suite].trials for suite, _ in tasks)

    def shared(self) -> dict[str, Any]:
        """What a worker of xdist needs to run cases on the same budget, as JSON."""
        return {
            "account": str(self.account.path),
            "run_id": self.plan.run_id,
            "run_folder": str(self.plan.run_folder),
            "started": self.plan.started,
            "draw": self.plan.draw,
            "served": {folder: asdict(address) for folder, address in self.servers.addresses.items()},
        }

    def wait(self, suite: str, task_id: str) -> TaskDecided:
        """Wait until a task is decided.

        Raises:
            KeyError: the session does not run the task.
        """
        return self._decided[suite, task_id].result()

    def stop(self, reason: str) -> None:
        """End the run before its time; what is finished stays."""
        with contextlib.suppress(sqlite3.Error):
            self.account.stop(reason)
        if self._work is not None:
            self._work.cancel()
            # The future is cancelled at once; the coroutine ends when its simulations have.
            self._ended.wait(_STOP_SECONDS)
        self._decide_rest(reason)

    async def _run(self) -> None:
        why = "the run ended before this task"
        try:
            for number, plan in enumerate(self._stages):
                if number:
                    self.engine.forget_lost()
                    self._begin_stage(plan)
                    self._copy_baselines()
                await self._run_tasks()
                if not plan.schedule or self.refusal:
                    break
                is_last = await asyncio.get_running_loop().run_in_executor(self._scorer, self._end_stage)
                if is_last:
                    break
        except EndpointError as error:
            self.refusal, why = str(error), "the endpoint refuses the run"
        except StorageError as error:
            self.refusal = self._unstored = str(error)
            why = "the run cannot store its evidence"
        finally:
            self._decide_rest(why)
            self._ended.set()

    def _begin_stage(self, plan: Plan) -> None:
        self.plan = plan
        self._draws = Draws(plan, self._resources.worlds, self.folder)
        self._draws.select(self._tasks or self._all_tasks(plan))
        self._runs = {name: SuiteRun(planned) for name, planned in plan.suites.items()}

    @staticmethod
    def _all_tasks(plan: Plan) -> list[TaskName]:
        return [(name, task) for name, planned in plan.suites.items() for task in planned.lock.tasks]

    async def _run_tasks(self) -> None:
        """Run all tasks of a stage; they begin in order, and as many at once as keep the slots full."""
        runner = TaskRunner(
            self.plan,
            self._resources.worlds,
            self.engine,
            self._draws,
            self._factories,
            self._expected,
            self._scorer,
            self._tasks,
        )
        window = asyncio.Semaphore(2 * self._loop.slots)

        async def run(name: TaskName) -> None:
            try:
                await self._run_task(runner, *name)
            finally:
                window.release()

        try:
            async with asyncio.TaskGroup() as group:
                for name in self._tasks:
                    await window.acquire()
                    group.create_task(run(name))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _run_task(self, runner: TaskRunner, suite: str, task_id: str) -> None:
        try:
            run = await runner.run(suite, task_id)
        except (EndpointError, StorageError):
            raise
        except Exception as error:
            planned, note = self.plan.suites[suite], f"{type(error).__name__}: {error}"
            trials = range(max(1, planned.trials_of(task_id)))
            digest = planned.lock.tasks[task_id]
            run = TaskRun(tuple(lost_trial(task_id, digest, trial, note) for trial in trials))
        self._runs[suite].add(task_id, run)
        if not self.plan.schedule:
            self._decide(suite, task_id, run)

    def _decide(self, suite: str, task_id: str, run: TaskRun | None, why: str = "") -> None:
        event = TaskDecided(self.plan, suite, task_id, run, why)
        future = self._decided[suite, task_id]
        with self._deciding:  # a stop decides tasks in another thread
            if not future.done():
                self._on_event(event)
                future.set_result(event)

    def _decide_rest(self, why: str) -> None:
        """Decide the tasks that wait for the end: those of a staged run, and those that did not run."""
        for suite, task_id in self._tasks:
            run = self._runs[suite].runs.get(task_id)
            self._decide(suite, task_id, run, "" if run is not None else why)

    def _end_stage(self) -> bool:
        """Judge a stage; returns whether it is the last one."""
        stage = self.plan.stage
        assert stage is not None
        exhausted = self.account.stopped
        outcomes = self._judge(self._ran(stopped=bool(exhausted)), Looks(self.plan.project))
        partial = any(verdict.partial for suite in outcomes for verdict in suite.verdicts)
        undecided = worst(suite.decision for suite in outcomes) is Decision.INCONCLUSIVE
        is_measured = any(figures.measured for suite in outcomes for figures in suite.metrics.values())
        is_last = bool(exhausted) or not is_measured or not undecided or partial or stage.last
        follows = "the last one of this run" if is_last else "it decides nothing, and the next one follows"
        self.notes.append(f"{stage}, tested at {stage.alpha:.4f}: {follows}")
        self._on_event(StageFinished(stage, is_last, outcomes))
        if not is_last:
            self._store(outcomes, Looks(self.plan.project), is_provisional=True)
        return is_last

    def finish(
        self,
        *,
        is_early: bool = False,
        others_failed: bool = False,
        reported: Collection[TaskName] | None = None,
    ) -> Run:
        """Judge what was made, and write the evidence, the ledger and the verdict.

        Args:
            is_early: Whether the front end ended the run before its time: nothing that it measured decides.
            others_failed: Whether a test of the user's that is no task failed.
            reported: The tasks that the front end reported, if a task of which it did not is to count as not
                run.
        """
        if is_early:
            self.stop("the session was stopped")
        elif self._work is not None:
            self._work.result()
        if self.unstored:
            # Nothing is judged or recorded: the same command makes the rest and judges all of it.
            return Run(self.plan, notes=tuple(self.notes), error=self.unstored)
        if reported is not None:
            for name, suite in self._runs.items():
                suite.runs = {task: run for task, run in suite.runs.items() if (name, task) in reported}
        exhausted = "" if self.plan.live is None else self.account.stopped
        stopped = "the session was stopped early" if is_early else exhausted
        ledger = Looks(self.plan.project)
        runs = self._ran(stopped=bool(stopped))
        outcomes = self._judge(runs, ledger, stopped=stopped)
        self.notes += [note for run in runs for note in run.unconfirmed]
        self._store(outcomes, ledger, stopped=stopped, others_failed=others_failed)
        if stopped and not self.plan.fresh and self.plan.live is not None:
            self.notes.append("what is finished is kept: the same command goes on from there")
        is_measured = any(figures.measured for suite in outcomes for figures in suite.metrics.values())
        return Run(self.plan, outcomes, tuple(self.notes), is_measured, exhausted=exhausted)

    def _ran(self, *, stopped: bool) -> list[SuiteRun]:
        return [run for run in self._runs.values() if run.runs or stopped]

    def _judge(
        self, runs: Sequence[SuiteRun], ledger: Looks, *, stopped: str = ""
    ) -> tuple[SuiteOutcome, ...]:
        interrupted = stopped or self._narrowed
        return tuple(
            outcome(self.plan, run, ledger, self._draws, interrupted=interrupted, stopped=bool(stopped))
            for run in runs
        )

    def _store(
        self,
        outcomes: Sequence[SuiteOutcome],
        ledger: Looks,
        *,
        stopped: str = "",
        others_failed: bool = False,
        is_provisional: bool = False,
    ) -> None:
        plan, runs = self.plan, self._ran(stopped=bool(stopped))
        record = keep_evidence(plan, runs, outcomes, stopped=stopped, others_failed=others_failed)
        self.notes += keep(plan, runs, outcomes, self._resources.worlds, ledger, self._draws)
        if plan.live is not None:
            keep_totals(plan, self.engine.totals(), self.account.stopped)
        if record is not None:
            write_verdict(plan.run_folder, record)
            if not is_provisional:
                record_verdicts(plan, runs, outcomes, ledger, self._draws, record)

    @property
    def unstored(self) -> str:
        """Why evidence could not be stored; empty if it could."""
        return self._unstored or self.account.unstored

    @property
    def has_begun(self) -> bool:
        """Whether a task was run, or a simulation begun."""
        return any(run.runs for run in self._runs.values()) or bool(self.engine.totals().states)

    def export_cassette(self, *, is_early: bool = False) -> str:
        """Write the cassette that was asked for, whatever else the run came to; returns a line about it.

        Raises:
            CassetteError: it could not be written.
        """
        live = self.plan.live
        if live is None or live.record is None:
            return ""
        lost = sum(len(run.lost) for suite in self._runs.values() for run in suite.runs.values())
        partial = f"{lost} simulations were lost" if lost else ""
        if is_early:
            partial = "the session was stopped early"
        suites = list(self.plan.suites.values())
        line = export(live, self.plan.candidate, suites, recording(self.plan.run_folder), partial)
        self._exported = True
        return line

    def close(self) -> None:
        """End the threads and the servers, and remove temporary files. Repeated calls do no harm."""
        self._closing.close()
        if self._exported:
            remove(recording(self.plan.run_folder))
            self._exported = False


def run(
    plan: Plan,
    resources: Resources,
    on_event: Callable[[Event], None] = ignore,
    tasks: Iterable[TaskName] | None = None,
) -> Run:
    """Run a plan from its first simulation to its verdict.

    Args:
        plan: What to run.
        resources: What the project offers.
        on_event: Called for each event, in a thread of the session.
        tasks: Suites and ids of tasks; all, if not given.

    Raises:
        ConfigError, ResultsError, EndpointError, ModelFolderError: as `Session`.
        EndpointError: the endpoint refuses what every further simulation would ask too.
        StorageError: the evidence could not be stored.
    """
    session = Session(plan, resources, on_event)
    try:
        session.start(tasks)
        result = session.finish()
        if session.refusal:
            raise EndpointError(session.refusal)
        if result.error:
            raise StorageError(result.error)
        return result
    except KeyboardInterrupt:
        session.stop("the run was interrupted")
        raise
    finally:
        session.close()
