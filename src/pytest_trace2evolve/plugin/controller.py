"""The controller of a pytest session: plans the run, starts its session, and reports the result."""

from collections.abc import Generator, Sequence
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
from pytest_trace2evolve.plugin.results import OVERRIDABLE, exit_status, item_result
from pytest_trace2evolve.plugin.settings import (
    Selection,
    context_of,
    max_age,
    narrowing_option,
    resources_of,
    select,
    usage_error,
)
from pytest_trace2evolve.plugin.summary_writers import sanitize_junit, write_summaries
from pytest_trace2evolve.plugin.worker import WORKER_INPUT, write_result
from pytest_trace2evolve.records.verdict import EXIT_STATUS, Decision
from pytest_trace2evolve.report.evidence import age_warnings, baseline_line
from pytest_trace2evolve.report.live_display import Display
from pytest_trace2evolve.report.progress import Watch, forecast, totals_text
from pytest_trace2evolve.report.verdict import run_report
from pytest_trace2evolve.session.baselines import BaselineFacts, planned_baselines
from pytest_trace2evolve.session.events import Event, Run, TaskDecided, TaskName
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.session.planner import make_plan
from pytest_trace2evolve.session.session import Session
from pytest_trace2evolve.session.settings import check_values, read_judge, read_options
from pytest_trace2evolve.session.summary import RunReport, report_of
from pytest_trace2evolve.utils.crashes import shorten, traceback_note
from pytest_trace2evolve.utils.sanitize import sanitize_line


class Controller(ItemHooks):
    """The plugin object of the process that the user started.

    Attributes:
        resources: The resources that the project and its plugins offer.
        plan: The plan of the run; None if neither a suite nor a pressure test takes part.
        session: The session; None without a plan, or if items are only listed.
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
        self._watch: Watch | None = None
        self._warnings: list[str] = []
        self._result: Run | None = None
        self._report: RunReport | None = None
        self._trouble = ""
        self._notes: list[str] = []
        self._others_failed = False
        self._has_crashed = False
        self._was_interrupted = False
        self._reported: set[TaskName] = set()
        self._reported_refusal = False
        self._cassette = ""
        self._unwritten: list[str] = []
        self._exit_status: int | None = None

    @property
    def agent(self) -> str | None:
        """The agent of cases; None if no agent is named."""
        return None if self.plan is None else self.plan.agent

    @property
    def has_plan(self) -> bool:
        """Whether any suite or pressure test takes part."""
        return self.plan is not None

    def plan_of_cases(self, closing: ExitStack) -> tuple[Plan, Account]:
        """The plan for running cases in this process, and the account of the run."""
        assert self.session is not None
        return self.session.plan, self.session.account

    def end_collection(self, refusal: str) -> NoReturn:
        """End the session, because the options do not fit the tests.

        Raises:
            pytest.UsageError: always.
        """
        raise usage_error(f"trace2evolve: {refusal}")

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
            check_values(self.config.option)
            self._prepare()
        except StorageError as error:
            pytest.exit(f"trace2evolve: {error}", pytest.ExitCode.INTERNAL_ERROR)
        except (Trace2EvolveError, OSError) as error:
            raise usage_error(error) from None

    def _prepare(self) -> None:
        self.selection = select(self.config, self.resources.project)
        if not self._takes_part(self.selection):
            return
        listing = bool(self.config.option.collectonly)
        options = read_options(
            self.config.option, context_of(self.config), may_embed=self.selection.may_embed
        )
        plan = make_plan(
            options,
            self.resources,
            suite_names=self.selection.suites,
            judge=read_judge(self.config.option),
            listing=listing,
        )
        self.plan = plan
        self.suites = {
            name: {split: list(tasks) for split, tasks in planned.lock.splits.items()}
            for name, planned in plan.suites.items()
        }
        self._warnings = age_warnings(_baselines(plan), max_age(self.config))
        if listing:
            return
        try:
            self.session = Session(plan, self.resources, self._on_event)
        except ModelFolderError as error:
            if options.embedded is None or plan.live is None:
                raise
            raise ConfigError(
                f"no agent is named, and the embedded model cannot be served: {error}; or name an agent: "
                "--t2e-agent or --t2e-model"
            ) from None

    def _takes_part(self, selection: Selection) -> bool:
        """Whether any suite or pressure test takes part.

        Raises:
            ConfigError: the options ask for a run, but there is nothing to run.
        """
        suites, pressure = selection.suites, selection.pressure
        project, asked = self.resources.project, has_options(self.config)
        if not suites and not asked and not pressure:
            return False
        if not project.suite_names and not pressure:
            raise ConfigError(
                f"no suites in {project.suites_folder}: set the ini key t2e_suites to their folder"
            )
        if not suites and not pressure:
            given = ", ".join(str(argument) for argument in self.config.args)
            raise ConfigError(
                f"the options ask for a run, and no suite lies under {given}; "
                f"name {project.suites_folder.name}/ too (is a path meant for --t2e-results?)"
            )
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Pass the names of the tasks, and the folder of their results, to a worker of xdist."""
        plan, splits = None, self.resources.project.splits.values()
        if self.plan is not None:
            plan = {
                "suites": self.suites,
                "suites_folder": str(self.suites_folder),
                "folder": "" if self.session is None else str(self.session.folder),
                "agent": self.plan.agent,
                "run": None if self.session is None else self.session.shared(),
            }
        descriptions = {split.name: split.description for split in splits}
        node.workerinput[WORKER_INPUT] = {"splits": descriptions, "plan": plan}

    def pytest_report_header(self) -> list[str]:
        """Header lines with the candidate, the suites, their baselines, warnings and the cost estimate."""
        plan = self.plan
        if plan is None:
            return []
        if not plan.suites:
            agent = f" (agent {plan.agent})" if plan.agent else ""
            return [f"trace2evolve: candidate {plan.candidate.id} on cases{agent}"]
        parts = []
        for name, planned in plan.suites.items():
            against = f", baseline {planned.baseline.name}" if planned.baseline else ""
            parts.append(f"{name} (agent {planned.agent}{against})")
        lines = [f"candidate {plan.candidate.id} on {', '.join(parts)}"]
        lines += [baseline_line(baseline, name_suite=len(plan.suites) > 1) for baseline in _baselines(plan)]
        lines += [*self._warnings, self._forecast(plan)]
        return [f"trace2evolve: {line}" for line in lines if line]

    def _forecast(self, plan: Plan) -> str:
        if self.session is None or self.session.forecast is None:
            return ""
        text = forecast(self.session.forecast, plan.budgets)
        option = self.config.option
        narrowing = [name for name, value in (("-m", option.markexpr), ("-k", option.keyword)) if value]
        return f"{text} (before {' and '.join(narrowing)})" if narrowing else text

    # ---- the tests

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Start the session if this process runs the items itself."""
        if not self.config.pluginmanager.hasplugin("dsession"):
            items = [item for item in session.items if isinstance(item, TaskItem)]
            self._start([(item.suite, item.name) for item in items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Start the session after the first worker has collected; all workers collect the same items."""
        self._start([place for nodeid in ids if (place := self._place(nodeid)) is not None])

    def _start(self, tasks: list[TaskName]) -> None:
        if self.session is None or self.session.is_started or not tasks:
            return
        self._watch = Watch(self.session.engine, self.session.plan.suites)
        self._watch.total = self.session.total_of(tasks)
        try:
            self.session.start(tasks, narrowed=narrowing_option(self.config))
        except OSError as error:
            folder = self.session.plan.run_folder
            raise usage_error(
                f"cannot write to {folder}: {error.strerror}; choose --t2e-run-folder"
            ) from None

    def _on_event(self, event: Event) -> None:
        """Pass a decided task to the progress display and to workers; called in the session's thread."""
        if not isinstance(event, TaskDecided) or self.session is None:
            return
        if self._watch is not None and event.run is not None:
            self._watch.report(event.suite, event.task_id, event.run.records)
        if self.config.pluginmanager.hasplugin("dsession"):
            write_result(self.session.folder, event.suite, event.task_id, self._item_result(event))

    def result(self, suite: str, task_id: str) -> ItemResult:
        """Wait for the result of a task."""
        assert self.session is not None
        return self._item_result(self.session.wait(suite, task_id))

    def _item_result(self, event: TaskDecided) -> ItemResult:
        assert self.session is not None
        refusal = "" if self._reported_refusal or event.run is not None else self.session.refusal
        self._reported_refusal = self._reported_refusal or bool(refusal)
        return item_result(event, refusal)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Show the progress of a live run while items run."""
        if self.session is None or self.session.plan.live is None or not self.session.plan.suites:
            return (yield)
        self._watch = self._watch or Watch(self.session.engine, self.session.plan.suites)
        display = Display(self.config.pluginmanager.getplugin("terminalreporter"), self._progress)
        display.start()
        try:
            return (yield)
        finally:
            display.stop()
            self._notes += [display.trouble] if display.trouble else []

    def _progress(self) -> Any:
        assert self._watch is not None
        return self._watch.read()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record failures of tests that are not tasks; report the crash of a worker as an error."""
        if self.plan is None:
            return
        place = self._place(report.nodeid)
        if place is None:
            self._others_failed = self._others_failed or report.failed
            return
        if getattr(report, "trace2evolve_reported", False):
            self._reported.add(place)
        elif report.failed and report.when not in ("setup", "call", "teardown"):
            # xdist made this report because a worker died. The session ran the task nevertheless.
            self._reported.add(place)
            path, _, name = report.nodeid.partition("::")
            report.when = "setup"
            report.location = (path, None, name)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record that a file could not be collected.

        Raises:
            pytest.UsageError: a worker sent the report to end the session.
        """
        if refusal := getattr(report, "trace2evolve_refusal", ""):
            raise usage_error(f"trace2evolve: {refusal}")
        self._others_failed = self._others_failed or report.failed

    def _place(self, nodeid: str) -> TaskName | None:
        """The suite and task that a node id names; None for tests that are not tasks."""
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
        """Record that no verdict can count, and report an error of this package in one line."""
        # After the internal error of a worker, xdist fails a second time.
        shorten(excrepr, excinfo.value, self.config.rootpath, is_consequence=self._has_crashed)
        self._has_crashed = True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(
        self, session: pytest.Session, exitstatus: int | pytest.ExitCode
    ) -> Generator[None, object, object]:
        """Judge and store the run, then let the verdict decide the exit status."""
        if self.session is not None:
            is_early = self._is_early(session, exitstatus)
            if is_early or self.session.is_started:
                self._finish(session, exitstatus, is_early=is_early)
            self._export(session, is_early=is_early)
        self._report = self._make_report()
        if self._report is not None:
            assert self.plan is not None
            self._unwritten = write_summaries(self.config, self.plan, self._report.summary)
        if self._has_crashed and session.exitstatus in (*OVERRIDABLE, EXIT_STATUS[Decision.INCONCLUSIVE]):
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        # Pytest passes the status from before the verdict to the terminal summary.
        self._exit_status = int(session.exitstatus)
        result = yield
        if self.plan is not None:
            sanitize_junit(self.config)
        return result

    def _is_early(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> bool:
        """Whether the pytest session ended early."""
        cut_off = exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
        stopped = bool(session.shouldstop or session.shouldfail)
        return stopped or self._was_interrupted or self._has_crashed or cut_off

    def _finish(self, session: pytest.Session, exitstatus: int | pytest.ExitCode, *, is_early: bool) -> None:
        assert self.session is not None
        if is_early:
            self.session.stop("the session was stopped")
            if not self.session.has_begun and not self.session.unstored:
                return
        try:
            result = self.session.finish(
                is_early=is_early, others_failed=self._others_failed, reported=self._reported
            )
        except Exception as error:
            cause = sanitize_line(f"{type(error).__name__}: {error}")
            if not isinstance(error, Trace2EvolveError | OSError):
                cause = f"{cause}; {traceback_note(error, self.config.rootpath)}"
            self._trouble = f"the evidence could not be kept whole ({cause}); the verdict does not count"
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            return
        self._result = result
        status, self._trouble = exit_status(
            result,
            exitstatus,
            others_failed=self._others_failed,
            inconclusive_passes=self.config.option.t2e_inconclusive == "pass",
        )
        if status != exitstatus:
            session.exitstatus = status

    def _export(self, session: pytest.Session, *, is_early: bool) -> None:
        assert self.session is not None
        try:
            self._cassette = self.session.export_cassette(is_early=is_early)
        except Trace2EvolveError as error:
            self._cassette = str(error)
            if session.exitstatus in OVERRIDABLE:
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def _make_report(self) -> RunReport | None:
        """Make the report of the run; None if nothing was run."""
        if self.session is None or not (self._result or self._trouble):
            return None
        outcomes = () if self._result is None else self._result.outcomes
        notes = self.session.notes if self._result is None else self._result.notes
        if not outcomes and not self._trouble:
            return None
        used = ""
        if self._result is not None and self.session.plan.live is not None:
            used = totals_text(self.session.engine.totals())
        return report_of(
            self.session.plan,
            outcomes,
            notes=(*notes, *self._warnings, *self._notes),
            decision=None if self._result is None else self._result.decision,
            trouble=self._trouble,
            used=used,
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print notes, and the report with its overview, checks and verdict."""
        if self._cassette:
            terminalreporter.write_line(f"trace2evolve: {self._cassette}")
        for line in self._unwritten:
            terminalreporter.write_line(f"trace2evolve: {line}")
        if self.selection is not None and self.selection.left_out:
            terminalreporter.write_line(
                f"trace2evolve: left out, since no agent is named: {', '.join(self.selection.left_out)}; "
                "give --t2e-agent or --t2e-model, or the ini key t2e_agent"
            )
        if self._report is None:
            return
        terminalreporter.ensure_newline()
        text = run_report(
            self._report.summary,
            self._report.figures,
            width=terminalreporter._tw.fullwidth,
            colour=terminalreporter._tw.hasmarkup,
            verbosity=self.config.get_verbosity(),
            exit_status=self._exit_status,
        )
        terminalreporter.write(text + "\n")

    def pytest_unconfigure(self) -> None:
        """End the session's threads and servers."""
        if self.session is not None:
            self.session.close()


def _baselines(plan: Plan) -> list[BaselineFacts]:
    return planned_baselines({name: planned.baseline for name, planned in plan.suites.items()}, plan.started)
