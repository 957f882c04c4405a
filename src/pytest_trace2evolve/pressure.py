"""Fixtures for tests that put an agent under pressure, `run_case` and `case`; cases that broke it, frozen."""

from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import pytest

from pytest_trace2evolve.cases.case import Case, case_of, read_cases
from pytest_trace2evolve.errors import (
    BudgetError,
    CaseError,
    EndpointError,
    InfrastructureError,
    Trace2EvolveError,
)
from pytest_trace2evolve.participant import Participant, usage_error
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.workflow.cases.freeze import freeze, unfrozen
from pytest_trace2evolve.workflow.cases.pressure import CaseRunner, Outcome

PRESSURE_NAME = "trace2evolve-pressure"
"""The name under which the plugin object of pressure tests is registered."""

MARKER = "t2e_cases"

FROZEN = "synthetic/pressure.jsonl"
"""Where cases are frozen, from the rootdir."""

DEFAULT_BUDGET = 200
"""Simulations that one test may make."""


class RunCase:
    """Runs a case with the run's agent: `run_case(case)` gives its `Outcome`.

    Another world than the support world is named by `provider` and `domain`.
    """

    def __init__(self, pressure: "Pressure") -> None:
        self._pressure = pressure

    def __call__(self, case: Case, *, provider: str = "trace2evolve", domain: str = "support") -> Outcome:
        """The outcome of a case: made now, or kept from before.

        Within hypothesis a case is rejected once the test's budget of simulations is spent; elsewhere the
        test is skipped. It is skipped too where the simulation is lost.
        """
        __tracebackhide__ = True
        return self._pressure.outcome(case, provider, domain)

    def __repr__(self) -> str:
        return "run_case"


@pytest.fixture(scope="session")
def run_case(pytestconfig: pytest.Config) -> Iterator[RunCase]:
    """Runs a case with the run's agent: `run_case(case)` gives its `Outcome`."""
    pressure = pytestconfig.pluginmanager.getplugin(PRESSURE_NAME)
    yield RunCase(pressure)
    pressure.close()


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    """One case of the files that the marker `t2e_cases` names."""
    given: Case | None = getattr(request, "param", None)
    if given is None:
        pytest.fail(
            f"'case' needs @pytest.mark.{MARKER}(FILE), or hypothesis' @given(case=...)", pytrace=False
        )
    return given


class Pressure:
    """What pressure tests need in every process of a run."""

    def __init__(self, run: Participant) -> None:
        self._run = run
        self._runner: CaseRunner | None = None
        self._item: pytest.Item | None = None
        self._begun = 0
        self._last: Case | None = None
        self._spent: set[str] = set()
        self._broken: dict[str, Case] = {}
        self._notes: list[str] = []

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test a case of the marked files, their paths relative to the rootdir."""
        names = [name for mark in metafunc.definition.iter_markers(MARKER) for name in mark.args]
        if not names or "case" not in metafunc.fixturenames:
            return
        try:
            cases = [case for name in names for case in read_cases(self._run.config.rootpath / name)]
        except CaseError as error:
            raise usage_error(error) from None
        metafunc.parametrize("case", cases, ids=[case.id for case in cases], indirect=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Each test has a budget of its own."""
        self._item, self._last = item, None
        self._begun = self._runner.made if self._runner is not None else 0

    def close(self) -> None:
        """Close what running cases opened."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def outcome(self, case: Case, provider: str, domain: str) -> Outcome:
        """The outcome of a case, within the budget of the test that runs."""
        __tracebackhide__ = True
        runner = self._open()
        if self._over_budget(runner) and not runner.knows(case, provider, domain):
            self._give_up()
        self._last = case
        try:
            return runner.run(case, provider, domain)
        except EndpointError as error:
            assert self._item is not None
            self._item.session.shouldstop = f"trace2evolve: {error}"
            reason = str(error)
        except (BudgetError, InfrastructureError) as error:
            reason = str(error)
        self._last = None
        pytest.skip(reason)

    def _open(self) -> CaseRunner:
        if self._runner is None:
            run = self._run
            if run.plan is None:
                pytest.fail(
                    "'run_case' needs this file or the folder synthetic/ on the command line: "
                    "without it the run's options are not read",
                    pytrace=False,
                )
            try:
                self._runner = CaseRunner(run.plan, run.worlds, run.agents, run.account)
            except Trace2EvolveError as error:
                pytest.fail(str(error), pytrace=False)
        return self._runner

    def _over_budget(self, runner: CaseRunner) -> bool:
        budget = self._run.config.option.t2e_case_budget
        return runner.made - self._begun >= (DEFAULT_BUDGET if budget is None else budget)

    def _give_up(self) -> None:
        """End the search where it stands: what was found is kept, what was not tried says nothing."""
        assert self._item is not None
        self._spent.add(self._item.nodeid)
        if hypothesis.currently_in_test_context():
            hypothesis.reject()
        pytest.skip("the test's budget of simulations is spent (--t2e-case-budget)")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Let a failed test's report carry the case on which it failed: of a search, the smallest."""
        report = yield
        if call.when == "call" and report.failed and self._last is not None:
            report.trace2evolve_case = self._last.task.model_dump(mode="json", exclude_unset=True)  # type: ignore[attr-defined]  # travels as JSON
        if call.when == "call" and item.nodeid in self._spent:
            report.trace2evolve_spent = True  # type: ignore[attr-defined]  # as above
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """On the controller: gather what tests of all processes found."""
        raw: dict[str, Any] | None = getattr(report, "trace2evolve_case", None)
        if raw is not None:
            case = case_of(Task.model_validate(raw))
            self._broken[case.id] = case
        if getattr(report, "trace2evolve_spent", False):
            self._notes.append(f"{report.nodeid}: its budget of simulations is spent (--t2e-case-budget)")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Freeze what broke the agent, where that was asked for."""
        if hasattr(session.config, "workerinput") or not self._broken:
            return
        path = session.config.rootpath / FROZEN
        cases = list(self._broken.values())
        if session.config.option.t2e_freeze:
            self._notes += freeze(cases, path, self._run.worlds)
        elif count := len(unfrozen(cases, path)):
            told = f"{count} new case{'' if count == 1 else 's'}"
            self._notes.append(f"{told} broke the agent; --t2e-freeze keeps such in {FROZEN}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell what was found and frozen."""
        for note in self._notes:
            terminalreporter.write_line(f"trace2evolve: {note}")
