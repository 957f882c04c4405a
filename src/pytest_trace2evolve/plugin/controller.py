"""The controller of a pytest session, which plans the run, starts its session and reports the result."""

import signal
import threading
from collections.abc import Generator
from contextlib import ExitStack
from typing import Any, NoReturn

import pytest

from pytest_trace2evolve.engine.budget import Account
from pytest_trace2evolve.errors import (
    ConfigError,
    ModelFolderError,
    StorageError,
    Trace2EvolveError,
)
from pytest_trace2evolve.plugin.items import ItemHooks, ItemResult, SuiteTasks, TaskItem
from pytest_trace2evolve.plugin.options import has_options
from pytest_trace2evolve.plugin.results import OVERRIDABLE_STATUSES, exit_status, item_result
from pytest_trace2evolve.plugin.settings import (
    Selection,
    context_of,
    narrowing_note,
    resources_of,
    select_tests,
    split_arguments,
    usage_error,
)
from pytest_trace2evolve.plugin.summary_writers import (
    command_of,
    finish_junit,
    print_failures,
    write_failures,
    write_page,
    write_summaries,
)
from pytest_trace2evolve.plugin.worker import WORKER_INPUT
from pytest_trace2evolve.records.task_revision import revision_name
from pytest_trace2evolve.records.verdict import EXIT_STATUS, Decision, RunSummary
from pytest_trace2evolve.report.evidence import baseline_line
from pytest_trace2evolve.report.progress import ProgressDisplay, ProgressTracker, forecast_text, totals_text
from pytest_trace2evolve.report.verdict import run_report
from pytest_trace2evolve.session.baselines import BaselineFacts, planned_baselines
from pytest_trace2evolve.session.events import Event, Run, TaskDecided, TaskName
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.session.planner import make_plan
from pytest_trace2evolve.session.session import Session
from pytest_trace2evolve.session.settings import check_not_empty, read_judge, read_options
from pytest_trace2evolve.session.summary import summarize_run
from pytest_trace2evolve.utils.crashes import shorten_internal_error, write_traceback
from pytest_trace2evolve.utils.sanitize import sanitize_line

NO_WORKERS = "trace2evolve: -n starts no workers here: all tests are tasks, which this process runs at once"


class Controller(ItemHooks):
    """The plugin object of the process that the user started.

    Attributes:
        resources: The resources that the project and its plugins offer.
        plan: The plan of the run; None if no suite and no pressure test is selected.
        session: The session that runs the plan; None without a plan, or if items are only listed.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.resources = resources_of(config)
        for split in self.resources.project.splits.values():
            config.addinivalue_line("markers", f"{split.name}: trace2evolve split: {split.description}")
        self.suites: SuiteTasks = {}
        self.suites_folder = self.resources.project.suites_folder
        self.plan: Plan | None = None
        self.session: Session | None = None
        self.selection: Selection | None = None
        self._tracker: ProgressTracker | None = None
        self._result: Run | None = None
        self._summary: RunSummary | None = None
        self._trouble = ""
        self._notes: list[str] = []
        self._has_other_failures = False
        self._has_task_errors = False
        self._has_crashed = False
        self._was_interrupted = False
        self._reported_tasks: set[TaskName] = set()
        self._has_reported_refusal = False
        self._cassette_message = ""
        self._write_errors: list[str] = []
        self._exit_status: int | None = None
        self._failures: dict[TaskName, ItemResult] = {}
        self._task_arguments: list[str] = []
        self._worker_arguments: list[str] = []

    @property
    def agent(self) -> str | None:
        """The agent that runs cases; None if no agent is named."""
        return None if self.plan is None else self.plan.agent

    @property
    def has_plan(self) -> bool:
        """Whether any suite or pressure test is selected."""
        return self.plan is not None

    def open_case_plan(self, stack: ExitStack) -> tuple[Plan, Account]:
        """Return the plan for running cases in this process, and the account of the run."""
        assert self.session is not None
        return self.session.plan, self.session.account

    def end_collection(self, reason: str) -> NoReturn:
        """End the session because its options do not fit the collected tests.

        Raises:
            pytest.UsageError: always.
        """
        raise usage_error(f"trace2evolve: {reason}")

    # ---- before the tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Plan the run before any worker starts, so that an error is reported once.

        Raises:
            pytest.UsageError: an option or a file of the user is invalid.
        """
        if self.config.option.help or self.config.option.version:
            return
        if has_options(self.config) and self.config.args_source is not pytest.Config.ArgsSource.ARGS:
            self.config.args[:] = [str(self.suites_folder)]
        try:
            check_not_empty(self.config.option)
            self._plan_run()
            self._task_arguments, self._worker_arguments = split_arguments(
                self.config, self.resources.project, self.suites
            )
        except StorageError as error:
            pytest.exit(sanitize_line(f"trace2evolve: {error}"), pytest.ExitCode.INTERNAL_ERROR)
        except (Trace2EvolveError, OSError) as error:
            raise usage_error(error) from None

    def _plan_run(self) -> None:
        self.selection = select_tests(self.config, self.resources.project)
        if not self._has_tests(self.selection):
            return
        is_dry_run = bool(self.config.option.t2e_dry_run)
        is_listing = is_dry_run or bool(self.config.option.collectonly)
        options = read_options(
            self.config.option, context_of(self.config), can_embed=self.selection.may_embed
        )
        plan = make_plan(
            options,
            self.resources,
            suite_names=self.selection.suites,
            judge=read_judge(self.config.option),
            is_listing=is_listing,
        )
        self.plan = plan
        self.suites = {name: planned.planned_splits for name, planned in plan.suites.items()}
        if is_dry_run:
            _end_dry_run(self.config, plan)
        if is_listing:
            return
        try:
            self.session = Session(plan, self.resources, self._on_event)
        except ModelFolderError as error:
            if options.embedded_settings is None or plan.live is None:
                raise
            raise ConfigError(
                f"no agent is named, and the embedded model cannot be served: {error}; correct this, or name "
                "an agent with --t2e-agent or --t2e-model"
            ) from None

    def _has_tests(self, selection: Selection) -> bool:
        """Whether any suite or pressure test is selected.

        Raises:
            ConfigError: the options ask for a run, but there is nothing to run.
        """
        suites, has_pressure = selection.suites, selection.has_pressure
        project, has_run_options = self.resources.project, has_options(self.config)
        if not suites and not has_run_options and not has_pressure:
            return False
        if not project.suite_names and not has_pressure:
            raise ConfigError(
                f"no suites in {project.suites_folder}; set the ini key t2e_suites to the folder of the "
                "suites"
            )
        if not suites and not has_pressure:
            paths_text = ", ".join(str(argument) for argument in self.config.args)
            raise ConfigError(
                f"the options request a run, but {paths_text} contains no suite; also "
                f"name {project.suites_folder.name}/ (is a path meant for --t2e-results?)"
            )
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Pass the paths of the user's own tests, and the run, to an xdist worker."""
        plan, splits = None, self.resources.project.splits.values()
        if self.plan is not None:
            plan = {
                "suites": list(self.suites),
                "suites_folder": str(self.suites_folder),
                "arguments": self._worker_arguments,
                "agent": self.plan.agent,
                "run": None if self.session is None else self.session.worker_data(),
            }
        descriptions = {split.name: split.description for split in splits}
        node.workerinput[WORKER_INPUT] = {"splits": descriptions, "plan": plan}

    def pytest_report_header(self) -> list[str]:
        """Return header lines: candidate, suites, baselines, warnings and cost estimate."""
        plan = self.plan
        if plan is None:
            return []
        if getattr(self.config.option, "numprocesses", None) and self.config.option.dist == "no":
            return [NO_WORKERS, *self._plan_header(plan)]
        return self._plan_header(plan)

    def _plan_header(self, plan: Plan) -> list[str]:
        if not plan.suites:
            agent_text = f" (agent {plan.agent})" if plan.agent else ""
            return [f"trace2evolve: candidate {plan.candidate.id} on cases{agent_text}"]
        parts = []
        for name, planned in plan.suites.items():
            baseline_text = f", baseline {planned.baseline.name}" if planned.baseline else ""
            revision = planned.lock.task_revision
            tasks_text = f", tasks of {revision_name(revision)}" if revision else ""
            parts.append(f"{name} (agent {planned.agent}{baseline_text}{tasks_text})")
        lines = [f"candidate {plan.candidate.id} on {', '.join(parts)}"]
        lines += [
            baseline_line(baseline, names_suite=len(plan.suites) > 1) for baseline in _baseline_facts(plan)
        ]
        lines.append(self._forecast_text(plan))
        if limits := plan.live.answer_limits if plan.live is not None else []:
            limits_text = " or ".join(f"{limit:,}" for limit in limits)
            lines.append(f"answers end after {limits_text} tokens (t2e_max_answer_tokens)")
        return [f"trace2evolve: {line}" for line in lines if line]

    def _forecast_text(self, plan: Plan) -> str:
        if self.session is None or self.session.forecast is None:
            return ""
        text = forecast_text(self.session.forecast, plan.budgets)
        option = self.config.option
        filters = [name for name, value in (("-m", option.markexpr), ("-k", option.keyword)) if value]
        return f"{text} (before {' and '.join(filters)})" if filters else text

    # ---- the tests

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Start the session."""
        items = [item for item in session.items if isinstance(item, TaskItem)]
        self._start_session([(item.suite, item.name) for item in items])

    @pytest.hookimpl(wrapper=True, trylast=True, specname="pytest_runtestloop")
    def pytest_trace2evolve_tasks(self, session: pytest.Session) -> Generator[None, object, object]:
        """Run the tasks in this process if workers of xdist run all other tests."""
        if not self.config.pluginmanager.hasplugin("dsession") or not self._task_arguments:
            return (yield)
        # This starts the session, next to the workers' tests.
        items = session.perform_collect(self._task_arguments)
        result = yield
        session.testscollected += len(items)
        for item, next_item in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
        return result

    def _start_session(self, tasks: list[TaskName]) -> None:
        if self.session is None or self.session.is_started or not tasks:
            return
        self._tracker = ProgressTracker(self.session.engine, self.session.plan.suites)
        self._tracker.total = self.session.count_simulations(tasks)
        try:
            self.session.start(tasks, narrowing=narrowing_note(self.config))
        except OSError as error:
            folder = self.session.plan.run_folder
            raise usage_error(
                f"cannot write to {folder}: {error.strerror}; choose a different folder with --t2e-run-folder"
            ) from None

    def _on_event(self, event: Event) -> None:
        """Pass a decided task to the progress display; called in the session's thread."""
        if isinstance(event, TaskDecided) and self._tracker is not None and event.run is not None:
            self._tracker.add_task(event.suite, event.task_id, event.run.records)

    def wait_for_result(self, suite: str, task_id: str) -> ItemResult:
        """Wait for the result of a task."""
        assert self.session is not None
        return self._item_result(self.session.wait(suite, task_id))

    def _item_result(self, event: TaskDecided) -> ItemResult:
        assert self.session is not None
        refusal = "" if self._has_reported_refusal or event.run is not None else self.session.refusal
        self._has_reported_refusal = self._has_reported_refusal or bool(refusal)
        result = item_result(event, refusal)
        if result.failure and not result.expected_failure:
            self._failures[event.suite, event.task_id] = result
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Show the progress of a live run while items run."""
        if self.session is None or self.session.plan.live is None or not self.session.plan.suites:
            return (yield)
        self._tracker = self._tracker or ProgressTracker(self.session.engine, self.session.plan.suites)
        display = ProgressDisplay(
            self.config.pluginmanager.getplugin("terminalreporter"), self._read_progress
        )
        display.start()
        is_main = threading.current_thread() is threading.main_thread()
        handles_sigterm = is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if handles_sigterm:
            signal.signal(signal.SIGTERM, _interrupt)
        try:
            return (yield)
        finally:
            if handles_sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            display.stop()
            self._notes += [display.trouble] if display.trouble else []

    def _read_progress(self) -> Any:
        assert self._tracker is not None
        return self._tracker.read()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record failures of other tests, and which tasks were reported."""
        if self.plan is None:
            return
        task = self._parse_node_id(report.nodeid)
        if task is None:
            self._has_other_failures = self._has_other_failures or report.failed
            return
        self._has_task_errors = self._has_task_errors or (report.failed and report.when != "call")
        if getattr(report, "trace2evolve_reported", False):
            self._reported_tasks.add(task)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record that a file could not be collected.

        Raises:
            pytest.UsageError: a worker sent the report to end the session.
        """
        if refusal := getattr(report, "trace2evolve_refusal", ""):
            raise usage_error(f"trace2evolve: {refusal}")
        self._has_other_failures = self._has_other_failures or report.failed

    def _parse_node_id(self, nodeid: str) -> TaskName | None:
        """Return the suite and task of a node id; None if the test is not a task."""
        parts = nodeid.split("::", 2)
        if len(parts) != 3:
            return None
        prefix = self.suites_folder.relative_to(self.config.rootpath).as_posix()
        for name, splits in self.suites.items():
            if parts[0] == (f"{name}.toml" if prefix == "." else f"{prefix}/{name}.toml"):
                return (name, parts[2]) if parts[2] in splits.get(parts[1], ()) else None
        return None

    # ---- after the tests

    def pytest_keyboard_interrupt(self) -> None:
        """Record an interrupt, which the exit status of `pytest.exit(returncode=...)` does not show."""
        self._was_interrupted = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: object, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Invalidate the verdict, and report an error of this package in one line."""
        # After the internal error of a worker, xdist fails a second time.
        shorten_internal_error(excrepr, excinfo.value, self.config.rootpath, is_consequence=self._has_crashed)
        self._has_crashed = True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(
        self, session: pytest.Session, exitstatus: int | pytest.ExitCode
    ) -> Generator[None, object, object]:
        """Judge and store the run, and set the exit status of its verdict."""
        if self.session is not None:
            is_early = self._has_ended_early(session, exitstatus)
            if is_early or self.session.is_started:
                self._finish_session(session, exitstatus, is_early=is_early)
            self._export_cassette(session, is_early=is_early)
        if (summary := self._summarize()) is not None:
            assert self.plan is not None
            folder = self.plan.project.root / (summary.evidence or self.plan.run_folder)
            failures = {} if self.session is None else self.session.failures
            page, self._write_errors = write_page(self.config, self.resources, folder, summary, failures)
            self._summary = summary = summary.model_copy(update={"page": page})
            self._write_errors += write_summaries(self.config, self.plan, summary)
            self._write_errors += write_failures(folder, summary, self._failures)
        if self._has_crashed and session.exitstatus in (
            *OVERRIDABLE_STATUSES,
            EXIT_STATUS[Decision.INCONCLUSIVE],
        ):
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        # Pytest passes the status from before the verdict to the terminal summary.
        self._exit_status = int(session.exitstatus)
        result = yield
        if self.plan is not None:
            finish_junit(self.config, None if self._result is None else self._result.decision)
        return result

    def _has_ended_early(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> bool:
        """Whether the pytest session ended early."""
        is_cut_off = exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
        is_stopped = bool(session.shouldstop or session.shouldfail)
        return is_stopped or self._was_interrupted or self._has_crashed or is_cut_off

    def _finish_session(
        self, session: pytest.Session, exitstatus: int | pytest.ExitCode, *, is_early: bool
    ) -> None:
        assert self.session is not None
        if is_early:
            self.session.stop("the session was stopped")
            if not self.session.has_begun and not self.session.storage_error:
                return
        try:
            result = self.session.finish(
                is_early=is_early, others_failed=self._has_other_failures, reported_tasks=self._reported_tasks
            )
        except Exception as error:
            cause = sanitize_line(f"{type(error).__name__}: {error}")
            if not isinstance(error, Trace2EvolveError | OSError):
                cause = f"{cause}; {write_traceback(error, self.config.rootpath)}"
            self._trouble = (
                f"the evidence could not be stored completely ({cause}); the verdict does not count"
            )
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            return
        self._result = result
        status, self._trouble = exit_status(
            result,
            exitstatus,
            has_other_failures=self._has_other_failures,
            has_task_errors=self._has_task_errors,
        )
        if status != exitstatus:
            session.exitstatus = status
            if result.decision is None and status == pytest.ExitCode.OK:
                self._notes.append("tasks failed, but the exit status is 0 because the baseline is saved")

    def _export_cassette(self, session: pytest.Session, *, is_early: bool) -> None:
        assert self.session is not None
        try:
            self._cassette_message = self.session.export_cassette(is_early=is_early)
        except Trace2EvolveError as error:
            self._cassette_message = str(error)
            if session.exitstatus in OVERRIDABLE_STATUSES:
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def _summarize(self) -> RunSummary | None:
        """Return the summary of the run; None if nothing was run."""
        if self.session is None or not (self._result or self._trouble):
            return None
        outcomes = () if self._result is None else self._result.outcomes
        notes = self.session.notes if self._result is None else self._result.notes
        if not outcomes and not self._trouble:
            return None
        is_live = self._result is not None and self.session.plan.live is not None
        usage_text = totals_text(self.session.engine.totals()) if is_live else ""
        return summarize_run(
            self.session.plan,
            outcomes,
            notes=(*notes, *self._notes),
            decision=None if self._result is None else self._result.decision,
            trouble=self._trouble,
            used=usage_text,
            command=command_of(self.config, self.session.plan),
            against=getattr(self.config.option, "t2e_against", None),
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print notes and the report of the run."""
        if self._cassette_message:
            terminalreporter.write_line(f"trace2evolve: {self._cassette_message}")
        for line in self._write_errors:
            terminalreporter.write_line(f"trace2evolve: {line}")
        if self.selection is not None and self.selection.left_out:
            terminalreporter.write_line(
                f"trace2evolve: left out because no agent is named: {', '.join(self.selection.left_out)}; "
                "give --t2e-agent or --t2e-model, or set the ini key t2e_agent or [tool.trace2evolve] agent"
            )
        if self._summary is None:
            return
        terminalreporter.ensure_newline()
        outcomes = () if self._result is None else self._result.outcomes
        print_failures(terminalreporter, self._summary, self._failures)
        text = run_report(
            self._summary,
            [(suite.name, split, found) for suite in outcomes for split, found in suite.metrics.items()],
            width=terminalreporter._tw.fullwidth,
            has_colour=terminalreporter._tw.hasmarkup,
            verbosity=self.config.get_verbosity(),
            exit_status=self._exit_status,
        )
        terminalreporter.write(text + "\n")

    def pytest_unconfigure(self) -> None:
        """Stop the threads and servers of the session."""
        if self.session is not None:
            self.session.close()


def _interrupt(signal_number: int, frame: object) -> None:
    """Interrupt the session as SIGINT does, so that it is reported. A second SIGTERM ends the process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise KeyboardInterrupt


def _baseline_facts(plan: Plan) -> list[BaselineFacts]:
    return planned_baselines(
        {name: planned.baseline for name, planned in plan.suites.items()}, plan.started_at
    )


def _end_dry_run(config: pytest.Config, plan: Plan) -> NoReturn:
    """Print what a run costs and can show, and end pytest: with status 2 if a suite cannot decide."""
    from pytest_trace2evolve.report.calibration import preflight_text
    from pytest_trace2evolve.session.preflight import preflight_splits

    splits = preflight_splits(plan)
    if reporter := config.pluginmanager.getplugin("terminalreporter"):
        reporter.write_line(preflight_text(splits).rstrip())
        reporter.flush()
    undecided = [f"{found.suite}::{found.split}" for found in splits if found.obstacle]
    reason = f"{', '.join(undecided)} cannot decide" if undecided else "no simulation was started"
    pytest.exit(f"--t2e-dry-run: {reason}", 2 if undecided else 0)
