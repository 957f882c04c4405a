"""The controller of a run: gathers all records, asks the gate, keeps the evidence, tells the verdict."""

from collections.abc import Generator
from typing import Any

import pytest

from pytest_trace2evolve.errors import ConfigError, ResultsError, StorageError, Trace2EvolveError
from pytest_trace2evolve.evidence.answers import remove
from pytest_trace2evolve.evidence.baselines import write_evidence
from pytest_trace2evolve.gate.decide import worst
from pytest_trace2evolve.plugin import xdist
from pytest_trace2evolve.plugin.participant import WORKER_INPUT, Participant
from pytest_trace2evolve.plugin.settings import read_max_age
from pytest_trace2evolve.plugin.summary_writers import sanitize_junit, tell_elsewhere
from pytest_trace2evolve.plugin.usage import usage_error
from pytest_trace2evolve.records.verdict import EXIT_STATUS, Decision
from pytest_trace2evolve.report.evidence import age_warnings, baseline_line
from pytest_trace2evolve.report.live_display import Display
from pytest_trace2evolve.report.progress import Watch, forecast, totals_text
from pytest_trace2evolve.report.verdict import run_report
from pytest_trace2evolve.session.access_log import Looks
from pytest_trace2evolve.session.baselines import BaselineFacts, planned_baselines
from pytest_trace2evolve.session.cassettes import export, recording
from pytest_trace2evolve.session.estimate import estimate, expected_usage, refuse_impossible
from pytest_trace2evolve.session.finish import keep, keep_totals, record_verdicts
from pytest_trace2evolve.session.plan import Plan, baseline_copy
from pytest_trace2evolve.session.run_verdict import keep_evidence, refuse_unmergeable, write_verdict
from pytest_trace2evolve.session.stages import goes_on, stage_note
from pytest_trace2evolve.session.summary import RunReport, report_of
from pytest_trace2evolve.session.task_run import TaskRun
from pytest_trace2evolve.session.verdicts import (
    SuiteOutcome,
    SuiteRun,
    outcome,
    refuse_edited,
    refuse_incomparable,
)
from pytest_trace2evolve.utils.crashes import traceback_note
from pytest_trace2evolve.utils.sanitize import sanitize_line

_OVERRIDABLE = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
"""The exit statuses that a verdict replaces; pytest's others say more than a verdict could."""


class Controller(Participant):
    """The one process that sees all reports."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__(config)
        self.runs: dict[str, SuiteRun] = {}
        self.others_failed = False
        self.reported = False
        self.outcomes: list[SuiteOutcome] = []
        self.notes: list[str] = []
        self.trouble = ""
        self.unstored = ""
        self.forecast = ""
        self.max_age: float | None = None
        self.used = ""
        self.watch: Watch | None = None
        self.cassette = ""
        self.exported = False
        self.untold: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Make the plan before any worker starts, so that what is wrong is said once."""
        if self.config.option.help or self.config.option.version:
            return
        self.prepare(None)
        if self.plan is None:
            return
        self.runs = {name: SuiteRun(planned) for name, planned in self.plan.suites.items()}
        self.notes = list(self.plan.notes)
        if self.config.option.collectonly:
            return
        try:
            for planned in self.plan.suites.values():
                if planned.baseline is not None and self.plan.policy is not None:
                    self.notes += refuse_incomparable(self.plan, planned)
            replays = any(planned.recorded is not None for planned in self.plan.suites.values())
            if replays or self.plan.saving is not None or self.plan.policy is not None:
                looks = Looks(self.plan.project)
                refuse_unmergeable(self.plan, looks)
                self.notes += refuse_edited(self.plan, looks)
            self.max_age = read_max_age(self.config)
            self.notes += age_warnings(self._baselines(self.plan), self.max_age)
        except (ConfigError, ResultsError) as error:
            raise usage_error(error) from None
        self._require_stored(self.plan)
        try:
            for name, planned in self.plan.suites.items():
                if planned.baseline is not None:
                    write_evidence(baseline_copy(self.plan.run_folder, name), planned.baseline.evidence)
        except OSError as error:
            raise usage_error(
                f"cannot write to {self.plan.run_folder}: {error.strerror}; choose --t2e-run-folder"
            ) from None

    def _require_stored(self, plan: Plan) -> None:
        """See that what earlier runs stored is as it was, and say what is left to be made.

        Raises:
            pytest.UsageError: a stored simulation was changed, or the budgets cannot pay anything.
        """
        if not plan.suites or plan.live is None or self.draws is None:
            return
        try:
            problems = list(self.draws.problems())
            if problems:
                more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
                raise ResultsError(f"{problems[0]}{more}")
            if plan.live.cassette is None:
                self.forecast = self._forecast(plan)
        except ResultsError as error:
            raise usage_error(error) from None
        except OSError as error:
            trouble = StorageError.of(error, error.filename or plan.project.draws_folder)
            pytest.exit(f"trace2evolve: {trouble}", pytest.ExitCode.INTERNAL_ERROR)

    def _forecast(self, plan: Plan) -> str:
        expected = expected_usage(plan)
        try:
            refuse_impossible(plan.budgets, expected)
        except ConfigError as error:
            raise usage_error(error) from None
        made = self.account.finished() if self.account is not None else ()
        assert self.draws is not None
        text = forecast(estimate(plan, expected, self.draws, made), plan.budgets)
        option = self.config.option
        narrowing = [name for name, value in (("-m", option.markexpr), ("-k", option.keyword)) if value]
        return f"{text} (before {' and '.join(narrowing)})" if narrowing else text

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Show how far a live run is, as long as items run."""
        if self.plan is None or not self.plan.suites or self.account is None:
            return (yield)
        self.watch = Watch(self.account, self.plan.suites)
        self._count([item.nodeid for item in session.items])
        display = Display(self.config.pluginmanager.getplugin("terminalreporter"), self.watch.read)
        display.start()
        try:
            return (yield)
        finally:
            display.stop()
            self.notes += [display.trouble] if display.trouble else []

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Every worker collects the same items, and the controller none."""
        self._count(ids)

    def _count(self, nodeids: list[str]) -> None:
        if self.plan is None or self.watch is None or not nodeids:
            return
        places = (xdist.split_nodeid(one, self.plan, self._suites_prefix()) for one in nodeids)
        self.watch.total = sum(self.plan.suites[place[0]].trials for place in places if place is not None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Hand the settled choices to a worker of xdist."""
        if self.plan is not None:
            account = None if self.counts is None else self.counts.path
            node.workerinput[WORKER_INPUT] = xdist.worker_input(self.plan, account, self.servers.addresses)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """What a worker that died had begun is free for the others."""
        if error and self.counts is not None:
            self.counts.release(node.gateway.id)

    def pytest_report_header(self) -> list[str]:
        """One line on what is run."""
        if self.plan is None:
            return []
        if not self.plan.suites:
            agent = f" (agent {self.plan.talker})" if self.plan.talker else ""
            return [f"trace2evolve: candidate {self.plan.candidate.id} on cases{agent}"]
        parts = []
        for name, planned in self.plan.suites.items():
            against = f", baseline {planned.baseline.name}" if planned.baseline else ""
            parts.append(f"{name} (agent {planned.agent}{against})")
        stage = "" if self.plan.stage is None else str(self.plan.stage)
        lines = [f"candidate {self.plan.candidate.id} on {', '.join(parts)}", stage]
        baselines = self._baselines(self.plan)
        lines += [baseline_line(one, name_suite=len(self.plan.suites) > 1) for one in baselines]
        lines += [*age_warnings(baselines, self.max_age), self.forecast]
        return [f"trace2evolve: {line}" for line in lines if line]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in the records of an item of ours; note failures of items that are not."""
        if self.plan is None:
            return
        place = xdist.split_nodeid(report.nodeid, self.plan, self._suites_prefix())
        if place is None:
            self.others_failed = self.others_failed or report.failed
            return
        self.reported = True
        self.unstored = self.unstored or getattr(report, "trace2evolve_unstored", "")
        suite, task_id = place
        if xdist.is_crash(report):
            xdist.as_setup_error(report)
            self.runs[suite].crashed(task_id, str(report.longrepr))
            return
        payload = getattr(report, "trace2evolve", None)
        if payload is not None:
            run = TaskRun.from_json(payload)
            self.runs[suite].add(task_id, run)
            if self.watch is not None:
                self.watch.report(suite, task_id, run.records)
        elif report.when == "setup" and report.failed:
            self.runs[suite].crashed(task_id, str(report.longrepr))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that could not be collected is a failure that is not ours.

        Raises:
            pytest.UsageError: a worker sent the report to end the session.
        """
        if refusal := getattr(report, "trace2evolve_refusal", ""):
            raise usage_error(f"trace2evolve: {refusal}")
        self.others_failed = self.others_failed or report.failed

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(
        self, session: pytest.Session, exitstatus: int | pytest.ExitCode
    ) -> Generator[None, object, object]:
        """Judge and keep the run, then let the verdict decide the exit status."""
        self.wind_down(session, exitstatus)
        begun = self.account is not None and bool(self.account.totals().states)
        if self.plan is not None and (self.reported or begun):
            self._finish(session, exitstatus)
        if self.plan is not None and not self.config.option.collectonly:
            self._export(session, exitstatus)
        if self.plan is not None and (report := self._report()) is not None:
            self.untold = tell_elsewhere(self.config, self.plan, report.summary)
        if self.crashed and session.exitstatus in (*_OVERRIDABLE, EXIT_STATUS[Decision.INCONCLUSIVE]):
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        result = yield
        if self.plan is not None:
            sanitize_junit(self.config)
        return result

    def _export(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
        """Write the cassette that was asked for, whatever else the run came to."""
        assert self.plan is not None
        if self.plan.live is None or self.plan.live.record is None:
            return
        lost = sum(len(run.lost) for suite in self.runs.values() for run in suite.runs.values())
        partial = f"{lost} simulations were lost" if lost else ""
        if self.ended_early(session, exitstatus):
            partial = "the session was stopped early"
        try:
            self.cassette = export(
                self.plan.live,
                self.plan.candidate,
                list(self.plan.suites.values()),
                recording(self.plan.run_folder),
                partial,
            )
            self.exported = True
        except Trace2EvolveError as error:
            self.cassette = str(error)
            if session.exitstatus in _OVERRIDABLE:
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def pytest_unconfigure(self) -> None:
        """Clear away what the cassette was made of, once nobody writes to it."""
        super().pytest_unconfigure()
        if self.plan is not None and self.exported:
            remove(recording(self.plan.run_folder))

    def _finish(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
        assert self.plan is not None
        if self.account is not None:
            self.unstored = self.unstored or self.account.unstored
        if self.unstored:
            # Nothing is judged or written down: the same command makes the rest and judges all of it.
            self.trouble = f"no verdict: {sanitize_line(self.unstored)}"
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            if self.staged is not None:
                self.staged.goes_on = False
            return
        exhausted = self.account.stopped if self.account is not None else ""
        early = self.ended_early(session, exitstatus)
        stopped = early or bool(exhausted)
        narrowed = _narrowed(self.config)
        if stopped:
            narrowed = "the session was stopped early" if early else exhausted
        ran = [run for run in self.runs.values() if run.runs or stopped]
        try:
            assert self.draws is not None
            looks = Looks(self.plan.project)
            self.outcomes = [
                outcome(self.plan, run, looks, self.draws, interrupted=narrowed, stopped=stopped)
                for run in ran
            ]
            measured = any(figures.measured for one in self.outcomes for figures in one.metrics.values())
            self.notes += [note for run in ran for note in run.unconfirmed]
            if self.staged is not None and self.plan.stage is not None:
                whole = not stopped and not self.others_failed and exitstatus in _OVERRIDABLE
                self.staged.goes_on = whole and measured and goes_on(self.plan.stage, self.outcomes)
                self.notes.append(stage_note(self.plan.stage, goes_on=self.staged.goes_on))
            provisional = self.staged is not None and self.staged.goes_on
            record = keep_evidence(
                self.plan,
                ran,
                self.outcomes,
                stopped=narrowed if stopped else "",
                others_failed=self.others_failed,
            )
            self.notes += keep(self.plan, ran, self.outcomes, self.worlds, looks, self.draws)
            if self.account is not None:
                totals = self.account.totals()
                keep_totals(self.plan, totals, exhausted)
                self.used = totals_text(totals)
                if stopped and not self.plan.fresh:
                    self.notes.append("what is finished is kept: the same command goes on from there")
            if record is not None:
                write_verdict(self.plan.run_folder, record)
                if not provisional:
                    record_verdicts(self.plan, ran, self.outcomes, looks, self.draws, record)
        except Exception as error:
            told = sanitize_line(f"{type(error).__name__}: {error}")
            if not isinstance(error, Trace2EvolveError | OSError):
                told = f"{told}; {traceback_note(error, self.config.rootpath)}"
            self.trouble = f"the evidence could not be kept whole ({told}); the verdict does not count"
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            if self.staged is not None:
                self.staged.goes_on = False
            return
        if not measured:
            why = f" ({exhausted})" if exhausted else ""
            self.trouble = f"nothing was measured{why}: this run says nothing about the candidate"
            if exitstatus in _OVERRIDABLE:
                session.exitstatus = EXIT_STATUS[Decision.INCONCLUSIVE]
            return
        decision = self.decision
        if decision is None and exhausted:
            self.trouble = f"not the whole run: {exhausted}"
            decision = Decision.INCONCLUSIVE if exitstatus == pytest.ExitCode.OK else None
        if exitstatus not in _OVERRIDABLE or decision is None:
            return
        if self.others_failed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif decision is Decision.INCONCLUSIVE and self.config.option.t2e_inconclusive == "pass":
            session.exitstatus = pytest.ExitCode.OK
        else:
            session.exitstatus = EXIT_STATUS[decision]

    @property
    def decision(self) -> Decision | None:
        """The verdict over all suites: the worst of theirs."""
        return worst(one.decision for one in self.outcomes)

    def _report(self) -> RunReport | None:
        """What the run has to tell; None where nothing of ours was run."""
        if self.plan is None or not (self.outcomes or self.trouble):
            return None
        return report_of(
            self.plan,
            self.outcomes,
            notes=self.notes,
            decision=self.decision,
            trouble=self.trouble,
            used=self.used,
        )

    def _baselines(self, plan: Plan) -> list[BaselineFacts]:
        found = {name: planned.baseline for name, planned in plan.suites.items()}
        return planned_baselines(found, plan.started)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print figures, the gate's tables and the verdict."""
        if self.cassette:
            terminalreporter.write_line(f"trace2evolve: {self.cassette}")
        for line in self.untold:
            terminalreporter.write_line(f"trace2evolve: {line}")
        if self.left_out:
            terminalreporter.write_line(
                f"trace2evolve: left out, since no agent is named: {', '.join(self.left_out)}; "
                "give --t2e-agent or --t2e-model, or the ini key t2e_agent"
            )
        report = self._report()
        if report is None:
            return
        terminalreporter.section("trace2evolve", sep="=")
        writer = terminalreporter._tw
        text = run_report(
            report.summary,
            report.figures,
            width=writer.fullwidth,
            colour=writer.hasmarkup,
            quiet=self.config.get_verbosity() < 0,
        )
        terminalreporter.write(text + "\n")

    def _suites_prefix(self) -> str:
        folder = self.project.suites_folder.relative_to(self.config.rootpath).as_posix()
        return "" if folder == "." else f"{folder}/"


def _narrowed(config: pytest.Config) -> str:
    """The option that narrows a run below whole splits, if any was given."""
    given = {
        "-k": config.option.keyword,
        "--lf": getattr(config.option, "lf", False),
        "--deselect": getattr(config.option, "deselect", None),
    }
    names = [name for name, value in given.items() if value]
    return f"{names[0]} narrows the run" if names else ""
