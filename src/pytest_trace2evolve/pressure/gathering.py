"""On the controller: the cases on which tests of all processes failed, told and frozen."""

from typing import Any

import pytest

from pytest_trace2evolve._sanitize import sanitize_line
from pytest_trace2evolve.cases.case import Case, case_of
from pytest_trace2evolve.participant import Participant
from pytest_trace2evolve.pressure.outcomes import SPENT
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.workflow.cases.freeze import FROZEN, freeze, unfrozen


class Gathering:
    """What pressure tests found."""

    def __init__(self, run: Participant) -> None:
        self._run = run
        self._broken: dict[str, Case] = {}
        self._notes: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in what a test's report carries."""
        raw: dict[str, Any] | None = getattr(report, "trace2evolve_case", None)
        if raw is not None:
            case = case_of(Task.model_validate(raw))
            self._broken[case.digest] = case
        if getattr(report, "trace2evolve_spent", False):
            self._notes.append(f"{report.nodeid}: {SPENT}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Freeze what broke the agent, where that was asked for."""
        if not self._broken:
            return
        project, cases = self._run.project, list(self._broken.values())
        if session.config.option.t2e_freeze:
            self._notes += freeze(cases, project, self._run.worlds)
        elif count := len(unfrozen(cases, project.root / FROZEN)):
            told = f"{count} new case{'' if count == 1 else 's'}"
            self._notes.append(f"{told} broke the agent; --t2e-freeze keeps such in {FROZEN}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell what was found and frozen."""
        for note in self._notes:
            terminalreporter.write_line(f"trace2evolve: {sanitize_line(note)}")
