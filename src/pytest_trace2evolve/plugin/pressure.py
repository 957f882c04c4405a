"""What pressure tests need in every process of a run: outcomes, budgets, losses, and what a failure shows.

A failure that was found must never be lost again: what cannot be measured rejects a case, and only a search
that found nothing is skipped for it.

The fixtures `run_case`, `case` and `environments`.

On the controller: the cases on which tests of all processes failed, told and frozen.
"""

import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_trace2evolve.cases.case import Case, case_of, read_cases
from pytest_trace2evolve.errors import (
    BudgetError,
    CaseError,
    EndpointError,
    InfrastructureError,
    Trace2EvolveError,
)
from pytest_trace2evolve.plugin.participant import Participant
from pytest_trace2evolve.project.extensions import registered
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.session.case_admission import FROZEN, freeze, unfrozen
from pytest_trace2evolve.session.plan import REPLAY
from pytest_trace2evolve.session.pressure import CaseFailed, CaseRunner, Outcome
from pytest_trace2evolve.utils.sanitize import sanitize_line
from pytest_trace2evolve.worlds.registry import Worlds

if TYPE_CHECKING:
    from pytest_trace2evolve.environments.registry import Environments


NAME = "trace2evolve-pressure"
"""The name under which this process' plugin object is registered."""

MARKER = "t2e_cases"

DEFAULT_BUDGET = 200
"""Simulations that one test may make."""

SPENT = "the test's budget of simulations is spent (--t2e-case-budget)"

_STARVED = ("FailedHealthCheck", "Unsatisfiable")
"""What hypothesis raises where too many cases were rejected."""


@dataclass
class _Test:
    """The test that runs.

    Attributes:
        begun: How many simulations had been made before it.
        missing: Why outcomes of it are missing; empty where none is.
    """

    item: pytest.Item
    begun: int
    missing: str = ""


class Pressure:
    """The pressure tests of one process."""

    def __init__(self, run: Participant) -> None:
        self._run = run
        self._runner: CaseRunner | None = None
        self._test: _Test | None = None

    @property
    def project(self) -> Project:
        """The project that pytest runs in."""
        return self._run.project

    @property
    def worlds(self) -> Worlds:
        """Opens worlds of all providers that the session knows."""
        return self._run.worlds

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test a case of the marked files, their paths relative to the rootdir."""
        marks = list(metafunc.definition.iter_markers(MARKER))
        if not marks:
            return
        names = [name for mark in marks for name in mark.args]
        sound = all(isinstance(name, str) for name in names) and not any(mark.kwargs for mark in marks)
        if not names or not sound or "case" not in metafunc.fixturenames:
            pytest.fail(
                f"@pytest.mark.{MARKER} takes the names of files of cases, and its test the fixture 'case'",
                pytrace=False,
            )
        try:
            cases = [case for name in names for case in read_cases(self._run.project.inside(name))]
        except CaseError as error:
            pytest.fail(str(error), pytrace=False)
        metafunc.parametrize("case", cases, ids=[case.id for case in cases], indirect=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Each test has a budget of its own."""
        self._test = _Test(item, self._runner.made if self._runner is not None else 0)

    def close(self) -> None:
        """Close what running cases opened."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def outcome(self, case: Case, provider: str, domain: str) -> Outcome:
        """The outcome of a case, within the budget of the test that runs."""
        __tracebackhide__ = True
        runner = self._open()
        try:
            if self._over_budget(runner) and not runner.knows(case, provider, domain):
                self._missing(SPENT)
            return runner.run(case, provider, domain)
        except EndpointError as error:
            assert self._test is not None
            self._test.item.session.shouldstop = f"trace2evolve: {error}"
            self._missing(str(error))
        except (BudgetError, InfrastructureError) as error:
            self._missing(str(error))
        except Trace2EvolveError as error:
            pytest.fail(str(error), pytrace=False)

    def _open(self) -> CaseRunner:
        __tracebackhide__ = True
        run = self._run
        if run.plan is None:
            pytest.fail(
                "'run_case' needs this file or the folder synthetic/ on the command line: "
                "without it the run's options are not read",
                pytrace=False,
            )
        if run.plan.talker == REPLAY:
            pytest.skip("recorded runs answer no case: give --t2e-agent or --t2e-model")
        if self._runner is None:
            try:
                self._runner = CaseRunner(run.plan, run.worlds, run.agents, run.account)
            except Trace2EvolveError as error:
                pytest.fail(str(error), pytrace=False)
        return self._runner

    def _over_budget(self, runner: CaseRunner) -> bool:
        assert self._test is not None
        budget = self._run.config.option.t2e_case_budget
        return runner.made - self._test.begun >= (DEFAULT_BUDGET if budget is None else budget)

    def _missing(self, why: str) -> NoReturn:
        """There is no outcome: a search goes on without the case, any other test ends."""
        __tracebackhide__ = True
        assert self._test is not None
        self._test.missing = self._test.missing or why
        # Only tests that search have loaded it; no other run needs to.
        hypothesis = sys.modules.get("hypothesis")
        if hypothesis is not None and hypothesis.currently_in_test_context():
            hypothesis.reject()
        pytest.skip(why)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Let a report carry the case on which its test failed, and tell what could not be measured."""
        report = yield
        if call.when != "call" or self._test is None or self._test.item is not item:
            return report
        raised = call.excinfo.value if call.excinfo is not None else None
        if isinstance(raised, CaseFailed):
            report.trace2evolve_case = raised.case.task.model_dump(mode="json", exclude_unset=True)  # type: ignore[attr-defined]  # travels as JSON
        missing = self._test.missing
        starved = any(
            kind.__module__ == "hypothesis.errors" and kind.__name__ in _STARVED
            for kind in type(raised).mro()
        )
        if missing and (starved or (report.passed and missing != SPENT)):
            # Nothing failed of what was measured, and not all was: that is no pass.
            report.outcome = "skipped"
            report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {missing}")
        if missing == SPENT and not report.skipped:
            report.trace2evolve_spent = True  # type: ignore[attr-defined]  # as above
        return report


class RunCase:
    """Runs a case with the run's agent: `run_case(case)` gives its `Outcome`.

    Another world than the support world is named by `provider` and `domain`. One thread at a time.
    """

    def __init__(self, pressure: Pressure) -> None:
        self._pressure = pressure

    def __call__(self, case: Case, *, provider: str = "trace2evolve", domain: str = "support") -> Outcome:
        """The outcome of a case: made now, or kept from before.

        Where it cannot be had (a loss, or the test's budget of simulations is spent), hypothesis rejects the
        case and goes on; any other test is skipped.

        Raises:
            TypeError: it is no case.
        """
        __tracebackhide__ = True
        if not isinstance(case, Case):
            raise TypeError(f"run_case takes a Case, as cases() and the fixture 'case' give, not {case!r}")
        return self._pressure.outcome(case, provider, domain)

    def __repr__(self) -> str:
        return "run_case"


@pytest.fixture(scope="session")
def run_case(pytestconfig: pytest.Config) -> Iterator[RunCase]:
    """Runs a case with the run's agent: `run_case(case)` gives its `Outcome`."""
    pressure = pytestconfig.pluginmanager.getplugin(NAME)
    yield RunCase(pressure)
    pressure.close()


@pytest.fixture(scope="session")
def environments(pytestconfig: pytest.Config) -> Iterator["Environments"]:
    """All capability environments: built in, of installed packages, and of `pytest_t2e_environments`."""
    from pytest_trace2evolve.environments.registry import Environments

    pressure = pytestconfig.pluginmanager.getplugin(NAME)
    found = Environments(registered(pytestconfig, "environments"), pressure.worlds, pressure.project)
    yield found
    found.close()


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    """One case of the files that the marker `t2e_cases` names."""
    given: Case | None = getattr(request, "param", None)
    if given is None:
        pytest.fail(
            f"'case' needs @pytest.mark.{MARKER}(FILE), or hypothesis' @given(case=...)", pytrace=False
        )
    return given


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
