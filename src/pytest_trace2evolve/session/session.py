"""Runs a plan, from its first simulation to its verdict."""

import asyncio
import contextlib
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.engine.budget import Account
from pytest_trace2evolve.engine.engine import Engine
from pytest_trace2evolve.engine.factories import open_answer_stores
from pytest_trace2evolve.engine.function_agent import FunctionFactory, make_factory
from pytest_trace2evolve.engine.live import LiveSettings
from pytest_trace2evolve.engine.loop import LoopThread
from pytest_trace2evolve.errors import ConfigError, EndpointError, ResultsError, StorageError
from pytest_trace2evolve.evidence.answer_store import remove_answer_file
from pytest_trace2evolve.evidence.baselines import write_evidence
from pytest_trace2evolve.gate.decide import worst_decision
from pytest_trace2evolve.project.candidates import AgentFactory
from pytest_trace2evolve.project.project import LockedSuite
from pytest_trace2evolve.records.budget import SimulationState
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.failure import Failure
from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.session.candidate_models import export_cassette, recording_path
from pytest_trace2evolve.session.draws import Draws
from pytest_trace2evolve.session.estimate import (
    Estimate,
    ExpectedUsage,
    check_affordable,
    estimate,
    expected_usage,
)
from pytest_trace2evolve.session.events import (
    Event,
    Run,
    SimulationFinished,
    StageFinished,
    TaskDecided,
    TaskName,
    VerdictReached,
    ignore_event,
)
from pytest_trace2evolve.session.finish import agent_error_notes, store_run
from pytest_trace2evolve.session.ledger import ProjectLedger
from pytest_trace2evolve.session.plan import Plan, SideName, use_run_folder
from pytest_trace2evolve.session.planner import Resources
from pytest_trace2evolve.session.provenance import (
    check_comparable,
    check_mergeable,
    check_unedited,
    is_sealed_task,
    is_suspected,
    may_have_regressed,
)
from pytest_trace2evolve.session.servers import LocalServers, model_folders, use_servers
from pytest_trace2evolve.session.trace_checks import CheckFailure, describe_check_failures
from pytest_trace2evolve.session.trials import TaskRun, TaskRunner
from pytest_trace2evolve.session.verdicts import (
    NO_EFFECT,
    SuiteOutcome,
    SuiteRun,
    confirmation_matters,
    futility_note,
    judge_suite,
)
from pytest_trace2evolve.utils.files import ScratchFolder

if TYPE_CHECKING:
    from pytest_trace2evolve.engine.ray_executor import RayExecutor

_STOP_SECONDS = 30.0
"""Maximum wait in seconds for simulations to stop, because an agent may ignore its cancellation."""

_SCORER_THREADS = 8
"""Number of scoring threads if a judge is called over the network; without a judge, one thread is used."""


class Session:
    """One run of a plan.

    Args:
        plan: The plan to run.
        resources: The resources of the project.
        on_event: Called for each event, in a thread of the session.
        executor: Makes the simulations elsewhere; None selects the plan's executor, or this process.
        servers: Servers of local models that outlive the session; None for servers of its own.

    Attributes:
        plan: The plan, with local models at the addresses of their servers.
        notes: Notes for the user, a line each.
        forecast: The estimated work of a live run; None if no model is called.
        refusal: Why the run cannot continue: the endpoint rejects it, or evidence cannot be stored.

    Raises:
        ConfigError: an option or a file of the user is invalid.
        ResultsError: a baseline or a replay was edited, or is not comparable with this run.
        EndpointError: the key of a model is missing.
        ModelFolderError: a local model cannot be served.
        StorageError: stored simulations cannot be read.
    """

    def __init__(
        self,
        plan: Plan,
        resources: Resources,
        on_event: Callable[[Event], None] = ignore_event,
        executor: "RayExecutor | None" = None,
        servers: LocalServers | None = None,
    ) -> None:
        self.notes = list(plan.notes)
        self.forecast: Estimate | None = None
        self.refusal = ""
        self.servers = LocalServers() if servers is None else servers
        self._owns_servers = servers is None
        self._resources = resources
        self._executor = executor
        if executor is None and plan.ray is not None:
            from pytest_trace2evolve.engine.ray_executor import RayExecutor

            self._executor = RayExecutor(plan.ray.address, pip=plan.ray.pip or (), env=plan.ray.env)
        self._on_event = on_event
        self._exit_stack = contextlib.ExitStack()
        self._tasks: list[TaskName] = []
        self._decisions: dict[TaskName, Future[TaskDecided]] = {}
        self._regressions: set[TaskName] = set()
        self._decision_lock = threading.Lock()
        self._run_future: Future[None] | None = None
        self._end_event = threading.Event()
        self._narrowing = ""
        self._storage_error = ""
        self._check_failures: list[tuple[str, CheckFailure]] = []
        self._is_exported = False
        try:
            self._check_plan(plan.stage_plans()[0])
            self._open_resources(plan)
            self._estimate_work()
        except BaseException:
            self.close()
            raise

    # ---- before the first simulation

    def _check_plan(self, plan: Plan) -> None:
        """Check that the run can be compared with its baselines, and that nothing it reads was edited."""
        for planned in plan.suites.values():
            if planned.baseline is not None and plan.policy is not None:
                self.notes += check_comparable(plan, planned)
        has_replays = any(planned.recorded_runs is not None for planned in plan.suites.values())
        if plan.suites and (has_replays or plan.saving is not None or plan.policy is not None):
            ledger = ProjectLedger(plan.project)
            check_mergeable(plan)
            self.notes += check_unedited(plan, ledger)

    def _open_resources(self, plan: Plan) -> None:
        """Start the servers, the threads and the account of the run."""
        self._exit_stack.enter_context(use_run_folder(plan))
        if self._owns_servers:
            self._exit_stack.callback(self.servers.close)
        self.servers.start(model_folders(plan))
        self.plan = plan = use_servers(plan, self.servers.addresses)
        for live in plan.all_live:
            live.require_endpoints()
        try:
            scratch = ScratchFolder()
            self._exit_stack.callback(scratch.close)
            self.folder = scratch.path
            self.account = Account(self.folder / "account.sqlite", plan.budgets)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"the account of the run cannot be created in {tempfile.gettempdir()} ({error}); "
                "make room there, or set TMPDIR to a different folder"
            ) from None
        self._exit_stack.callback(self.account.close)
        self.servers.watch(self._on_server_end)
        threads = 1 if plan.judge is None else _SCORER_THREADS
        self._scorer = self._exit_stack.enter_context(ThreadPoolExecutor(threads, "trace2evolve-scorer"))
        cache, record = plan.project.answers_cache, recording_path(plan.run_folder)
        first_live = next(iter(plan.all_live), None)
        self._stores = self._exit_stack.enter_context(open_answer_stores(first_live, cache, record))
        self._loop = LoopThread(plan.concurrency)
        self._exit_stack.callback(self._loop.close)
        if self._executor is None:
            self.engine = Engine(self._loop, self.account, plan.project.finished_folder)
            self._factories: Mapping[tuple[str, SideName], AgentFactory] = self._make_factories()
            self._check_agent()
        else:
            self._open_executor(self._executor)

    def _open_executor(self, executor: "RayExecutor") -> None:
        """Let an executor make the simulations in processes that have their own agents and models."""
        from pytest_trace2evolve.engine.ray_actor import RemoteSuite, Side
        from pytest_trace2evolve.engine.ray_cluster import RunContext

        self._exit_stack.callback(executor.close)
        plan = self.plan
        suites = {
            name: RemoteSuite(
                LockedSuite(suite.suite, suite.path, suite.lock), suite.agent, plan.candidate, suite.identity
            )
            for name, suite in plan.suites.items()
            if suite.recorded_runs is None
        }
        sides: dict[Side, LiveSettings | None] = {(name, "candidate"): plan.live for name in suites}
        sides |= {(name, "baseline"): setup.live for name, setup in plan.baseline_sides.items()}
        executor.open(
            RunContext(plan.project, self.account, plan.concurrency, suites, sides, stores=self._stores)
        )
        executor.start(self._loop)
        self.engine = Engine(self._loop, self.account, plan.project.finished_folder, executor.simulate)
        self._factories = {}

    def _make_factories(self) -> dict[tuple[str, SideName], AgentFactory]:
        """Return the agent factory of each suite and side, except for replayed suites."""
        plan, agents = self.plan, dict(self._resources.agents)
        on_close, stores = self._loop.on_close, self._stores
        if plan.live is not None:
            agents[plan.live.agent_name] = make_factory(plan.live, on_close, self.account, **stores)
        factories: dict[tuple[str, SideName], AgentFactory] = {
            (name, "candidate"): agents[planned.agent]
            for name, planned in plan.suites.items()
            if planned.recorded_runs is None
        }
        for name, setup in plan.baseline_sides.items():
            if setup.live is None or setup.live == plan.live:
                factories[name, "baseline"] = agents[plan.suites[name].agent]
            else:
                factories[name, "baseline"] = make_factory(setup.live, on_close, self.account, **stores)
        return factories

    def _check_agent(self) -> None:
        """Check that the project's own agent can be imported or reached, before any simulation.

        Raises:
            ConfigError: the agent cannot be imported or reached.
        """
        for (_, side), factory in self._factories.items():
            if side == "candidate" and isinstance(factory, FunctionFactory):
                self._loop.run(factory.check())
                return  # all suites share the agent

    def _estimate_work(self) -> None:
        """Check the stored simulations of earlier runs, and estimate the remaining work."""
        self._stages = self.plan.stage_plans()
        live = self.plan.live
        self._expected = ExpectedUsage() if live is None else expected_usage(self._stages[0])
        self._begin_stage(self._stages[0])
        if live is None or not self.plan.suites:
            return
        if problems := list(self._draws.find_problems()):
            more_text = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise ResultsError(f"{problems[0]}{more_text}")
        if live.cassette is None:
            check_affordable(self.plan.budgets, self._expected)
            self.forecast = estimate(self._stages[0], self._expected, self._draws)

    def _on_server_end(self, reason: str) -> None:
        with contextlib.suppress(sqlite3.Error):  # the run has ended as well
            self.account.stop(reason, EndpointError)

    def count_simulations(self, tasks: Iterable[TaskName]) -> int:
        """Return the number of simulations of tasks, without fresh ones, over all stages of the run."""
        suites = self._stages[-1].suites
        return sum(suites[suite].trials_of(task) for suite, task in tasks)

    def worker_data(self) -> dict[str, Any]:
        """Return the data that a worker of xdist needs to run cases on the same budget, as JSON."""
        return {
            "account": str(self.account.path),
            "run_id": self.plan.run_id,
            "run_folder": str(self.plan.run_folder),
            "started": self.plan.started_at,
            "draw": self.plan.draw_id,
            "served": {folder: asdict(address) for folder, address in self.servers.addresses.items()},
        }

    # ---- the simulations

    def start(self, tasks: Iterable[TaskName] | None = None, narrowing: str = "") -> None:
        """Start making and scoring the simulations of tasks.

        Args:
            tasks: Suites and ids of tasks, in the order in which they start; all tasks by default.
            narrowing: The option that narrows the run below whole splits; empty if none does.
        """
        all_tasks = ((name, task) for name, suite in self.plan.suites.items() for task in suite.planned_tasks)
        self._tasks = list(dict.fromkeys(all_tasks if tasks is None else tasks))
        self._narrowing = narrowing
        self._decisions = {task: Future() for task in self._tasks}
        self._draws.select_tasks(self._tasks)
        self._copy_baselines()
        self._run_future = self._loop.start(self._run_stages())

    @property
    def is_started(self) -> bool:
        """Whether the run has begun."""
        return self._run_future is not None

    @property
    def has_begun(self) -> bool:
        """Whether a task was run or a simulation was started."""
        return any(run.runs for run in self._runs.values()) or bool(self.engine.totals().states)

    def wait(self, suite: str, task_id: str) -> TaskDecided:
        """Wait until a task is decided.

        Raises:
            KeyError: the session does not run the task.
        """
        return self._decisions[suite, task_id].result()

    def stop(self, reason: str) -> None:
        """End the run early; finished simulations are kept."""
        with contextlib.suppress(sqlite3.Error):
            self.account.stop(reason)
        if self._run_future is not None:
            self._run_future.cancel()
            # The future is cancelled at once, but the coroutine ends only after its simulations.
            self._end_event.wait(_STOP_SECONDS)
        self._decide_open_tasks(reason)

    async def _run_stages(self) -> None:
        reason = "the run ended before this task"
        try:
            for number, plan in enumerate(self._stages):
                if number:
                    self.engine.forget_lost()
                    self._begin_stage(plan)
                    self._draws.select_tasks(self._tasks)
                    self._copy_baselines()
                runner = self._make_runner()
                await runner.run_all(self._on_task_run)
                await self._confirm_regressions(runner)
                if self.refusal:
                    break
                end = self._end_stage if plan.schedule else self._find_regressions
                if await asyncio.get_running_loop().run_in_executor(self._scorer, end):
                    break
        except EndpointError as error:
            self.refusal, reason = str(error), "the endpoint rejects the run"
        except StorageError as error:
            self.refusal = self._storage_error = str(error)
            reason = "the run cannot store its evidence"
        finally:
            self._decide_open_tasks(reason)
            self._end_event.set()

    def _begin_stage(self, plan: Plan) -> None:
        self.plan = plan
        self._check_failures.clear()  # a later stage checks the earlier trials again
        self._draws = Draws(plan, self._resources.worlds, self.folder)
        self._runs = {name: SuiteRun(planned) for name, planned in plan.suites.items()}

    def _copy_baselines(self) -> None:
        """Copy the evidence of the baselines into the run folder, next to the run's traces."""
        for name in {suite for suite, _ in self._tasks}:
            planned = self.plan.suites[name]
            if planned.baseline is not None:
                write_evidence(self.plan.run_folder / "baselines" / f"{name}.json", planned.baseline.evidence)

    def _make_runner(self) -> TaskRunner:
        return TaskRunner(
            self.plan,
            self._resources.worlds,
            self.engine,
            self._draws,
            self._factories,
            self._expected,
            self._scorer,
            self._tasks,
            self._on_simulation,
            self._check_failures,
        )

    async def _confirm_regressions(self, runner: TaskRunner) -> None:
        """Make fresh trials of the tasks that may have regressed, if they could change a suite's decision."""
        confirmation = self.plan.confirmation
        for name, suite in self._runs.items():
            runs = {
                (name, task): suite.runs[task]
                for suite_name, task in self._tasks
                if suite_name == name and self._may_be_confirmed(name, task)
            }
            if confirmation is None or not runs:
                continue
            if confirmation.budget > 0 and name not in confirmation.refusal_reasons:
                matters = partial(confirmation_matters, self.plan, suite, [task for _, task in runs])
                ledger = ProjectLedger(self.plan.project)
                judge = partial(matters, ledger, self._draws, interruption=self._narrowing)
                if not await asyncio.get_running_loop().run_in_executor(self._scorer, judge):
                    for task_name, run in runs.items():
                        self._on_confirmed_run(*task_name, replace(run, unconfirmed_reason=NO_EFFECT))
                    continue
            await runner.confirm_all(runs, self._on_confirmed_run)

    def _may_be_confirmed(self, suite: str, task_id: str) -> bool:
        """Return whether fresh trials may confirm that a task regressed."""
        run = self._runs[suite].runs.get(task_id)
        if run is None or run.unfinished_reason or self.plan.confirmation is None:
            return False
        return may_have_regressed(self.plan.suites[suite], task_id, run)

    def _on_simulation(self, suite: str, record: SimulationEvidence, is_fresh: bool) -> None:
        self._on_event(SimulationFinished(self.plan, suite, record, is_fresh))

    def _on_task_run(self, suite: str, task_id: str, run: TaskRun) -> None:
        self._runs[suite].runs[task_id] = run
        if not self._may_be_confirmed(suite, task_id):
            self._on_confirmed_run(suite, task_id, run)

    def _on_confirmed_run(self, suite: str, task_id: str, run: TaskRun) -> None:
        self._runs[suite].runs[task_id] = run
        # The verdict may confirm a suspected task, because it judges all tasks together.
        if not self.plan.schedule and not self._is_suspected(suite, task_id):
            self._decide_task(suite, task_id, run)

    def _is_suspected(self, suite: str, task_id: str) -> bool:
        planned, run = self.plan.suites[suite], self._runs[suite].runs.get(task_id)
        if run is None or (suite, task_id) in self._regressions:
            return False
        split = next(name for name, tasks in planned.lock.splits.items() if task_id in tasks)
        return is_suspected(self.plan, planned, split, run, task_id)

    def _decide_task(self, suite: str, task_id: str, run: TaskRun | None, reason: str = "") -> None:
        event = TaskDecided(self.plan, suite, task_id, run, reason, self._is_suspected(suite, task_id))
        future = self._decisions[suite, task_id]
        with self._decision_lock:  # `stop` decides tasks in a different thread
            if not future.done():
                self._on_event(event)
                future.set_result(event)

    def _decide_open_tasks(self, reason: str) -> None:
        """Decide all tasks that are still open: those of a staged run, and those that did not run."""
        for suite, task_id in self._tasks:
            run = self._runs[suite].runs.get(task_id)
            self._decide_task(suite, task_id, run, "" if run is not None else reason)

    # ---- verdicts

    def _find_regressions(self) -> bool:
        """Find the regressions that the verdict confirms, and return that no further stage follows."""
        if any(not decision.done() for decision in self._decisions.values()):
            self._judge(self._suite_runs(""), ProjectLedger(self.plan.project), self._narrowing)
        return True

    def _end_stage(self) -> bool:
        """Judge a stage, and return whether it is the last one."""
        stage = self.plan.stage
        assert stage is not None
        exhausted_budget = self.account.stop_reason
        runs, ledger = self._suite_runs(exhausted_budget), ProjectLedger(self.plan.project)
        outcomes = self._judge(runs, ledger, self._narrowing)
        is_partial = any(verdict.partial for suite in outcomes for verdict in suite.verdicts)
        is_undecided = worst_decision(suite.decision for suite in outcomes) is Decision.INCONCLUSIVE
        futility = futility_note(self.plan, outcomes) if is_undecided and not stage.is_last else ""
        is_last = (
            bool(exhausted_budget)
            or not _is_measured(outcomes)
            or not is_undecided
            or is_partial
            or stage.is_last
            or bool(futility)
        )
        consequence = "the last stage of this run" if is_last else "undecided, so the next stage follows"
        consequence = futility or consequence
        self.notes.append(f"{stage}, tested at {stage.alpha:.4f}: {consequence}")
        self._on_event(StageFinished(stage, is_last, outcomes))
        if not is_last:
            self._store_results(runs, outcomes, ledger, is_provisional=True)
        return is_last

    def finish(
        self,
        *,
        is_early: bool = False,
        others_failed: bool = False,
        reported_tasks: Collection[TaskName] | None = None,
    ) -> Run:
        """Judge the simulations, and write the evidence, the ledger and the verdict.

        Args:
            is_early: Whether the front end ended the run early. The run's measurements then decide nothing.
            others_failed: Whether a test of the user that is not a task failed.
            reported_tasks: The tasks that the front end reported (None for all); all others count as not run.
        """
        if is_early:
            self.stop("the session was stopped")
        elif self._run_future is not None:
            self._run_future.result()
        if self.storage_error:
            # Nothing is judged or recorded. Rerunning the same command makes the rest and judges everything.
            return Run(self.plan, notes=tuple(self.notes), error=self.storage_error)
        if reported_tasks is not None:
            for name, suite in self._runs.items():
                suite.runs = {task: run for task, run in suite.runs.items() if (name, task) in reported_tasks}
        exhausted_budget = "" if self.plan.live is None else self.account.stop_reason
        stop_reason = "the session was stopped early" if is_early else exhausted_budget
        runs, ledger = self._suite_runs(stop_reason), ProjectLedger(self.plan.project)
        outcomes = self._judge(runs, ledger, stop_reason or self._narrowing, is_stopped=bool(stop_reason))
        self.notes += [note for run in runs for note in run.unconfirmed_notes]
        self.notes += [
            f"{outcome.name}: {note}"
            for outcome in outcomes
            if outcome.compared is not None and (note := outcome.compared.undeclared_model_note)
        ]
        self.notes += agent_error_notes(self.plan, runs)
        self.notes += self._check_failure_notes()
        if self.plan.live is not None and (count := self.account.unmetered_calls):
            names = " and ".join(dict.fromkeys(repr(model.model) for model in self.plan.live.models))
            self.notes.append(f"{count} answers of {names} came without usage: tokens and cost are too low")
        self.notes += [] if self._executor is None else self._executor.notes
        has_saved_baselines = self._store_results(
            runs, outcomes, ledger, stop_reason=stop_reason, others_failed=others_failed
        )
        if not stop_reason and not self.refusal and not self.engine.totals().states.get(SimulationState.LOST):
            try:
                self._draws.end()
            except (OSError, ResultsError) as error:  # everything else is stored, so the verdict counts
                self.notes.append(f"the next run may reuse these simulations: {error}; give it --t2e-fresh")
        if stop_reason and not self.plan.is_fresh and self.plan.live is not None:
            self.notes.append("finished simulations are kept; rerun the same command to resume")
        run = Run(
            self.plan,
            outcomes,
            tuple(self.notes),
            _is_measured(outcomes),
            exhausted_budget=exhausted_budget,
            has_saved_baselines=has_saved_baselines,
        )
        self._on_event(VerdictReached(run))
        return run

    def _check_failure_notes(self) -> list[str]:
        """Describe the simulations that the project's own checks have no result for."""
        notes = []
        for name, planned in self.plan.suites.items():
            failures = [failure for suite, failure in self._check_failures if suite == name]
            is_sealed = partial(is_sealed_task, self.plan, planned)
            lines = describe_check_failures(failures, is_sealed, self.plan.project.root)
            notes += [f"{name}: {line}" for line in lines]
        return notes

    def _suite_runs(self, stop_reason: str) -> list[SuiteRun]:
        """Return the suites in which a task ran, or all suites if the run was stopped."""
        return [run for run in self._runs.values() if run.runs or stop_reason]

    def _judge(
        self,
        runs: Sequence[SuiteRun],
        ledger: ProjectLedger,
        incomplete_reason: str,
        *,
        is_stopped: bool = False,
    ) -> tuple[SuiteOutcome, ...]:
        plan, draws = self.plan, self._draws
        outcomes = tuple(
            judge_suite(plan, run, ledger, draws, interruption=incomplete_reason, is_stopped=is_stopped)
            for run in runs
        )
        verdicts = [(outcome.name, verdict) for outcome in outcomes for verdict in outcome.verdicts]
        self._regressions = {(suite, task) for suite, verdict in verdicts for task in verdict.regressions}
        return outcomes

    def _store_results(
        self,
        runs: Sequence[SuiteRun],
        outcomes: Sequence[SuiteOutcome],
        ledger: ProjectLedger,
        **settings: Any,
    ) -> bool:
        """Store a stage or the run, and return whether all requested baselines are saved."""
        totals = None if self.plan.live is None else (self.engine.totals(), self.account.stop_reason)
        worlds = self._resources.worlds
        notes, has_saved_baselines = store_run(
            self.plan, runs, outcomes, worlds, ledger, self._draws, totals=totals, **settings
        )
        self.notes += notes
        return has_saved_baselines

    @property
    def failures(self) -> dict[TaskName, Failure]:
        """The explanations of failed tasks, as far as there are any."""
        runs = ((name, *item) for name, suite in self._runs.items() for item in suite.runs.items())
        return {(name, task): run.failure for name, task, run in runs if run.failure is not None}

    @property
    def storage_error(self) -> str:
        """Why evidence could not be stored; empty if it could."""
        return self._storage_error or self.account.storage_failure

    def export_cassette(self, *, is_early: bool = False) -> str:
        """Write the requested cassette with any verdict, and return a line about it.

        Raises:
            CassetteError: the cassette could not be written.
        """
        live = self.plan.live
        if live is None or live.record is None:
            return ""
        lost_count = sum(len(run.lost_trials) for suite in self._runs.values() for run in suite.runs.values())
        partial_reason = f"{lost_count} simulations were lost" if lost_count else ""
        if is_early:
            partial_reason = "the session was stopped early"
        suites = list(self.plan.suites.values())
        line = export_cassette(
            live, self.plan.candidate, suites, recording_path(self.plan.run_folder), partial_reason
        )
        self._is_exported = True
        return line

    def close(self) -> None:
        """End the threads and the servers, and remove temporary files. Further calls have no effect."""
        self._exit_stack.close()
        if self._is_exported:
            remove_answer_file(recording_path(self.plan.run_folder))
            self._is_exported = False


def _is_measured(outcomes: Iterable[SuiteOutcome]) -> bool:
    return any(figures.measured for suite in outcomes for figures in suite.metrics.values())


def run(
    plan: Plan,
    resources: Resources,
    on_event: Callable[[Event], None] = ignore_event,
    tasks: Iterable[TaskName] | None = None,
    executor: "RayExecutor | None" = None,
    servers: LocalServers | None = None,
) -> Run:
    """Run a plan from its first simulation to its verdict.

    Arguments and errors are those of `Session` and `Session.start`.

    Raises:
        EndpointError: the endpoint rejects a request that every further simulation would repeat.
        StorageError: the evidence could not be stored.
    """
    session = Session(plan, resources, on_event, executor, servers)
    try:
        session.start(tasks)
        result = session.finish()
        if result.error:
            raise StorageError(result.error)
        if session.refusal:
            raise EndpointError(session.refusal)
        return result
    except KeyboardInterrupt:
        session.stop("the run was interrupted")
        raise
    finally:
        session.close()
