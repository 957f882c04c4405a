"""The controller of a pytest session: plans the run, starts its session, and reports the result."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.engine.budget import Account
from pytest_trace2evolve.engine.factories import BUILT_IN_AGENTS
from pytest_trace2evolve.engine.live import Address
from pytest_trace2evolve.errors import (
    ConfigError,
    ModelFolderError,
    StorageError,
    Trace2EvolveError,
)
from pytest_trace2evolve.plugin.items import ItemHooks, ItemResult, SuiteTasks, TaskItem
from pytest_trace2evolve.plugin.options import has_options
from pytest_trace2evolve.plugin.results import item_result
from pytest_trace2evolve.plugin.selection import Selection, project_of, select
from pytest_trace2evolve.plugin.summary_writers import sanitize_junit, tell_elsewhere
from pytest_trace2evolve.plugin.usage import usage_error
from pytest_trace2evolve.plugin.worker import WORKER_INPUT, write_result
from pytest_trace2evolve.project.extensions import registered
from pytest_trace2evolve.records.verdict import EXIT_STATUS, Decision
from pytest_trace2evolve.report.evidence import age_warnings, baseline_line
from pytest_trace2evolve.report.live_display import Display
from pytest_trace2evolve.report.progress import Watch, forecast, totals_text
from pytest_trace2evolve.report.verdict import run_report
from pytest_trace2evolve.session.baselines import BaselineFacts, planned_baselines
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.session.planner import Resources, make_plan
from pytest_trace2evolve.session.servers import at_servers
from pytest_trace2evolve.session.session import Event, Run, Session, TaskDecided, TaskName
from pytest_trace2evolve.session.settings import Context, check_values, read_judge, read_options
from pytest_trace2evolve.session.summary import RunReport, report_of
from pytest_trace2evolve.utils.crashes import shorten, traceback_note
from pytest_trace2evolve.utils.sanitize import sanitize_line
from pytest_trace2evolve.worlds.registry import Worlds

_OVERRIDABLE = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
"""The exit statuses that a verdict replaces; pytest's others say more than a verdict could."""


class Controller(ItemHooks):
    """The plugin object of the process that the user started.

    Attributes:
        resources: What the project and its plugins offer.
        plan: The plan of the run; None if no suite and no pressure test takes part.
        session: The session; None if the plan has no suites, or items are only listed.
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
        self._max_age: float | None = None
        self._result: Run | None = None
        self._trouble = ""
        self._used = ""
        self._notes: list[str] = []
        self._others_failed = False
        self._has_crashed = False
        self._was_interrupted = False
        self._reported: set[TaskName] = set()
        self._reported_refusal = False
        self._cassette = ""
        self._unwritten: list[str] = []

    # ---- before the tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Plan the run before any worker starts, so that an error is reported once.

        Raises:
            pytest.UsageError: anything that the user wrote is wrong.
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
        self._max_age = _max_age(self.config)
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
        self._notes = age_warnings(_baselines(plan), self._max_age)

    def _takes_part(self, selection: Selection) -> bool:
        """Whether any suite or pressure test takes part.

        Raises:
            ConfigError: options ask for a run, and there is none.
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
                f"name {project.suites_folder.name}/ too (is a path meant for --t2e-replay?)"
            )
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give a worker of xdist the names of the tasks and the place of their results."""
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
        """What is run, against which baselines, and what it may take."""
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
        baselines = _baselines(plan)
        lines += [baseline_line(baseline, name_suite=len(plan.suites) > 1) for baseline in baselines]
        lines += [*age_warnings(baselines, self._max_age), self._forecast(plan)]
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
        """Start the session in a process that runs the items itself."""
        if not self.config.pluginmanager.hasplugin("dsession"):
            items = [item for item in session.items if isinstance(item, TaskItem)]
            self._start([(item.suite, item.name) for item in items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Start the session once a worker has collected; the others collect the same items."""
        self._start([place for nodeid in ids if (place := self._place(nodeid)) is not None])

    def _start(self, tasks: list[TaskName]) -> None:
        if self.session is None or self.session.is_started or not tasks:
            return
        self._watch = Watch(self.session.engine, self.session.plan.suites)
        self._watch.total = self.session.total_of(tasks)
        try:
            self.session.start(tasks, narrowed=_narrowed(self.config))
        except OSError as error:
            folder = self.session.plan.run_folder
            raise usage_error(
                f"cannot write to {folder}: {error.strerror}; choose --t2e-run-folder"
            ) from None

    def _on_event(self, event: Event) -> None:
        """Take in what the session reports; called in its thread."""
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
        """Show how far a live run is while items run."""
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
        """Note failures of tests that are no tasks; show the crash of a worker as an error."""
        if self.plan is None:
            return
        place = self._place(report.nodeid)
        if place is None:
            self._others_failed = self._others_failed or report.failed
            return
        if getattr(report, "trace2evolve_reported", False):
            self._reported.add(place)
        elif report.failed and report.when not in ("setup", "call", "teardown"):
            # xdist made this report because a worker died. The session made the task all the same.
            self._reported.add(place)
            path, _, name = report.nodeid.partition("::")
            report.when = "setup"
            report.location = (path, None, name)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that could not be collected.

        Raises:
            pytest.UsageError: a worker sent the report to end the session.
        """
        if refusal := getattr(report, "trace2evolve_refusal", ""):
            raise usage_error(f"trace2evolve: {refusal}")
        self._others_failed = self._others_failed or report.failed

    def _place(self, nodeid: str) -> TaskName | None:
        """The suite and task that a node id names; None for any other test."""
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
        """Note an interrupt: with `pytest.exit(returncode=...)` the exit status does not tell."""
        self._was_interrupted = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: object, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note that no verdict can count, and report an error of this package in one line."""
        # xdist fails again after the internal error of a worker.
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
        if self.plan is not None and (report := self._report()) is not None:
            self._unwritten = tell_elsewhere(self.config, self.plan, report.summary)
        if self._has_crashed and session.exitstatus in (*_OVERRIDABLE, EXIT_STATUS[Decision.INCONCLUSIVE]):
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        result = yield
        if self.plan is not None:
            sanitize_junit(self.config)
        return result

    def _is_early(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> bool:
        """Whether the pytest session ended before its time."""
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
        if self.session.plan.live is not None:
            self._used = totals_text(self.session.engine.totals())
        session.exitstatus = self._exit_status(session, exitstatus, result)

    def _exit_status(
        self, session: pytest.Session, exitstatus: int | pytest.ExitCode, result: Run
    ) -> int | pytest.ExitCode:
        decision = result.decision
        if result.error:
            self._trouble = f"no verdict: {sanitize_line(result.error)}"
            return pytest.ExitCode.INTERNAL_ERROR
        if not result.is_measured:
            why = f" ({result.exhausted})" if result.exhausted else ""
            self._trouble = f"nothing was measured{why}: this run says nothing about the candidate"
            return EXIT_STATUS[Decision.INCONCLUSIVE] if exitstatus in _OVERRIDABLE else session.exitstatus
        if decision is None and result.exhausted:
            self._trouble = f"not the whole run: {result.exhausted}"
            decision = Decision.INCONCLUSIVE if exitstatus == pytest.ExitCode.OK else None
        if exitstatus not in _OVERRIDABLE or decision is None:
            return session.exitstatus
        if self._others_failed:
            return pytest.ExitCode.TESTS_FAILED
        if decision is Decision.INCONCLUSIVE and self.config.option.t2e_inconclusive == "pass":
            return pytest.ExitCode.OK
        return EXIT_STATUS[decision]

    def _export(self, session: pytest.Session, *, is_early: bool) -> None:
        assert self.session is not None
        try:
            self._cassette = self.session.export_cassette(is_early=is_early)
        except Trace2EvolveError as error:
            self._cassette = str(error)
            if session.exitstatus in _OVERRIDABLE:
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def _report(self) -> RunReport | None:
        """What the run has to report; None if nothing was run."""
        if self.session is None or not (self._result or self._trouble):
            return None
        outcomes = () if self._result is None else self._result.outcomes
        notes = self.session.notes if self._result is None else self._result.notes
        if not outcomes and not self._trouble:
            return None
        return report_of(
            self.session.plan,
            outcomes,
            notes=(*notes, *self._notes),
            decision=None if self._result is None else self._result.decision,
            trouble=self._trouble,
            used=self._used,
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print figures, the gate's tables and the verdict."""
        if self._cassette:
            terminalreporter.write_line(f"trace2evolve: {self._cassette}")
        for line in self._unwritten:
            terminalreporter.write_line(f"trace2evolve: {line}")
        if self.selection is not None and self.selection.left_out:
            terminalreporter.write_line(
                f"trace2evolve: left out, since no agent is named: {', '.join(self.selection.left_out)}; "
                "give --t2e-agent or --t2e-model, or the ini key t2e_agent"
            )
        report = self._report()
        if report is None:
            return
        terminalreporter.section("trace2evolve", sep="=")
        text = run_report(
            report.summary,
            report.figures,
            width=terminalreporter._tw.fullwidth,
            colour=terminalreporter._tw.hasmarkup,
            quiet=self.config.get_verbosity() < 0,
        )
        terminalreporter.write(text + "\n")

    def pytest_unconfigure(self) -> None:
        """End the threads of the session, and its servers."""
        if self.session is not None:
            self.session.close()


def resources_of(config: pytest.Config) -> Resources:
    """What the project and its plugins offer.

    Raises:
        pytest.UsageError: a file of the project or a hook is wrong.
    """
    project = project_of(config)
    try:
        _ = project.splits
        agents = {**BUILT_IN_AGENTS, **registered(config, "agents")}
        return Resources(project, Worlds(registered(config, "worlds")), agents, registered(config, "checks"))
    except (Trace2EvolveError, OSError) as error:
        raise usage_error(error) from None


def plan_of_cases(
    config: pytest.Config, resources: Resources, shared: Mapping[str, Any]
) -> tuple[Plan, Account]:
    """The plan of a worker that runs cases, and the account of the run.

    Args:
        config: The worker's configuration.
        resources: What the project offers.
        shared: What the controller settled: see `Session.shared`.

    Raises:
        ConfigError: as `make_plan`.
    """
    served = {folder: Address(**address) for folder, address in shared["served"].items()}
    options = replace(
        read_options(config.option, context_of(config, served)), run_folder=Path(shared["run_folder"])
    )
    plan = make_plan(options, resources, suite_names=(), judge=read_judge(config.option), is_worker=True)
    plan = replace(plan, **{name: shared[name] for name in ("run_id", "started", "draw")})
    return at_servers(plan, served), Account(Path(shared["account"]), plan.budgets)


def context_of(config: pytest.Config, served: Mapping[str, Address] | None = None) -> Context:
    """Where the options were given, and the ini keys that stand in for some of them."""
    return Context(
        root=config.rootpath,
        here=config.invocation_params.dir,
        suites=config.getini("t2e_suites"),
        agent=config.getini("t2e_agent"),
        gate=config.getini("t2e_gate"),
        served=served or {},
    )


def _baselines(plan: Plan) -> list[BaselineFacts]:
    return planned_baselines({name: planned.baseline for name, planned in plan.suites.items()}, plan.started)


def _max_age(config: pytest.Config) -> float | None:
    """The days after which a baseline draws a warning; None if the ini key is not set.

    Raises:
        ConfigError: it is no number above 0.
    """
    text = config.getini("t2e_baseline_max_age")
    if not text:
        return None
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0.0 < days < float("inf"):
        raise ConfigError(f"t2e_baseline_max_age: {text!r} is not a number of days above 0")
    return days


def _narrowed(config: pytest.Config) -> str:
    """The option that narrows a run below whole splits, if any was given."""
    given = {
        "-k": config.option.keyword,
        "--lf": getattr(config.option, "lf", False),
        "--deselect": getattr(config.option, "deselect", None),
    }
    names = [name for name, value in given.items() if value]
    return f"{names[0]} narrows the run" if names else ""
