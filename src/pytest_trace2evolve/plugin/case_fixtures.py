"""Pressure tests: the fixtures `run_case`, `case` and `environments`, and the cases on which tests failed.

A failure that a search found must not get lost. A case that cannot be measured is therefore only rejected,
and its search continues. The test is skipped only if the search finds no failure.
"""

import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_trace2evolve.errors import (
    BudgetError,
    CaseError,
    EndpointError,
    InfrastructureError,
    Trace2EvolveError,
)
from pytest_trace2evolve.plugin.items import PLUGIN_NAME as RUN_NAME
from pytest_trace2evolve.plugin.worker import Worker

if TYPE_CHECKING:
    from pytest_trace2evolve.cases.case import Case
    from pytest_trace2evolve.environments.registry import Environments
    from pytest_trace2evolve.plugin.controller import Controller
    from pytest_trace2evolve.session.case_runner import CaseRunner, Outcome

NAME = "trace2evolve-pressure"
"""The name under which this process's plugin object is registered."""

MARKER = "t2e_cases"

DEFAULT_BUDGET = 200
"""Simulations that one test may make."""

SPENT = "the test's budget of simulations is spent (--t2e-case-budget)"

_STARVED = ("FailedHealthCheck", "Unsatisfiable")
"""Names of the errors that Hypothesis raises if too many cases were rejected."""


def register(config: pytest.Config, run: Any) -> None:
    """Register the fixtures and hooks of pressure tests."""
    config.addinivalue_line("markers", f"{MARKER}(FILE, ...): one test a case of these files, as 'case'")
    config.pluginmanager.register(PressureTests(config, run), NAME)
    config.pluginmanager.register(sys.modules[__name__])
    if not isinstance(run, Worker):
        config.pluginmanager.register(BrokenCases(run))


@dataclass
class _Test:
    """The running test.

    Attributes:
        begun: The number of simulations that were made before the test.
        missing: The reason for missing outcomes of the test; empty if no outcome is missing.
    """

    item: pytest.Item
    begun: int
    missing: str = ""


class PressureTests:
    """The pressure tests of one process."""

    def __init__(self, config: pytest.Config, run: "Worker | Controller") -> None:
        self._config = config
        self._run = run
        self._runner: CaseRunner | None = None
        self._test: _Test | None = None
        self._closing = ExitStack()

    # ---- collection

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Generate one test for each case of the marked files, whose paths are relative to the rootdir."""
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
        from pytest_trace2evolve.cases.case import read_cases

        try:
            cases = [case for name in names for case in read_cases(self._run.resources.project.inside(name))]
        except CaseError as error:
            pytest.fail(str(error), pytrace=False)
        metafunc.parametrize("case", cases, ids=[case.id for case in cases], indirect=True)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect pressure tests if no agent is named, and neither options nor paths ask for them."""
        tests = [item for item in items if _runs_cases(item)]
        if not tests or self._run.agent is not None:
            return
        from pytest_trace2evolve.plugin.options import has_options
        from pytest_trace2evolve.plugin.settings import names_pressure, pressure_folder

        if has_options(config) or config.option.collectonly or names_pressure(config):
            return
        folder = pressure_folder(config.rootpath)
        if left := [item for item in tests if folder in item.path.resolve().parents]:
            items[:] = [item for item in items if item not in left]
            config.hook.pytest_deselected(items=left)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Reject options that no collected test uses, and pressure tests without an agent.

        Raises:
            pytest.UsageError: an option has no effect, or no agent is named.
        """
        if self._run.has_plan and session.items and (refusal := self._refusal(session.items)):
            self._run.end_collection(refusal)

    def _refusal(self, items: list[pytest.Item]) -> str:
        """The reason why the options do not fit the collected tests; empty if they do."""
        from pytest_trace2evolve.plugin.options import has_options

        config = self._config
        if any(_runs_cases(item) for item in items):
            from pytest_trace2evolve.plugin.settings import names_pressure

            asked = has_options(config) or names_pressure(config)
            if self._run.agent is None and asked and not config.option.collectonly:
                return "no agent for 'run_case': give --t2e-agent or --t2e-model, or the ini key t2e_agent"
            return ""
        if not self._run.suites and has_options(config):
            return (
                "the options ask for a run, and none of these tests uses 'run_case'; "
                f"name {self._run.suites_folder.name}/ too"
            )
        for name in ("t2e_freeze", "t2e_case_budget"):
            if getattr(config.option, name) is not None:
                return (
                    f"--{name.replace('_', '-')} has no effect, since no test uses 'run_case'; "
                    "name synthetic/ too"
                )
        return ""

    # ---- running

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Start a separate budget for each test."""
        self._test = _Test(item, self._runner.made if self._runner is not None else 0)

    def close(self) -> None:
        """Close everything that was opened to run cases."""
        self._closing.close()
        self._runner = None

    def outcome(self, case: "Case", provider: str, domain: str) -> "Outcome":
        """Return the outcome of a case, within the budget of the running test."""
        __tracebackhide__ = True
        runner = self._open()
        try:
            if self._is_over_budget(runner) and not runner.knows(case, provider, domain):
                self._reject(SPENT)
            return runner.run(case, provider, domain)
        except EndpointError as error:
            assert self._test is not None
            self._test.item.session.shouldstop = f"trace2evolve: {error}"
            self._reject(str(error))
        except (BudgetError, InfrastructureError) as error:
            self._reject(str(error))
        except Trace2EvolveError as error:
            pytest.fail(str(error), pytrace=False)

    def _open(self) -> "CaseRunner":
        __tracebackhide__ = True
        if self._runner is not None:
            return self._runner
        from pytest_trace2evolve.records.evidence import REPLAY
        from pytest_trace2evolve.session.case_runner import CaseRunner

        has_plan = bool(self._run.input) if isinstance(self._run, Worker) else self._run.plan is not None
        if not has_plan:
            pytest.fail(
                "'run_case' needs this file or the folder synthetic/ on the command line: "
                "without it the run's options are not read",
                pytrace=False,
            )
        if self._run.agent == REPLAY:
            pytest.skip("recorded runs answer no case: give --t2e-agent or --t2e-model")
        try:
            plan, account = self._run.plan_of_cases(self._closing)
            self._runner = CaseRunner(plan, self._run.resources.worlds, self._run.resources.agents, account)
        except Trace2EvolveError as error:
            pytest.fail(str(error), pytrace=False)
        self._closing.callback(self._runner.close)
        return self._runner

    def _is_over_budget(self, runner: "CaseRunner") -> bool:
        assert self._test is not None
        budget = self._config.option.t2e_case_budget
        return runner.made - self._test.begun >= (DEFAULT_BUDGET if budget is None else budget)

    def _reject(self, why: str) -> NoReturn:
        """Handle a missing outcome: a search continues without the case, and any other test is skipped."""
        __tracebackhide__ = True
        assert self._test is not None
        self._test.missing = self._test.missing or why
        # Only tests that search load Hypothesis, so no other run has to import it.
        hypothesis = sys.modules.get("hypothesis")
        if hypothesis is not None and hypothesis.currently_in_test_context():
            hypothesis.reject()
        pytest.skip(why)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the failing case to a test's report, and skip a test whose outcomes could not be measured."""
        report = yield
        if call.when != "call" or self._test is None or self._test.item is not item:
            return report
        raised = call.excinfo.value if call.excinfo is not None else None
        failed_case = getattr(raised, "case", None)
        if type(raised).__name__ == "CaseFailed" and failed_case is not None:
            report.trace2evolve_case = failed_case.task.model_dump(mode="json", exclude_unset=True)  # type: ignore[attr-defined]  # travels as JSON
        missing = self._test.missing
        starved = any(
            kind.__module__ == "hypothesis.errors" and kind.__name__ in _STARVED
            for kind in type(raised).mro()
        )
        if missing and (starved or (report.passed and missing != SPENT)):
            # Nothing that was measured failed, but not everything was measured, so the test did not pass.
            report.outcome = "skipped"
            report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {missing}")
        if missing == SPENT and not report.skipped:
            report.trace2evolve_spent = True  # type: ignore[attr-defined]  # as above
        return report


class RunCase:
    """Runs a case with the run's agent: `run_case(case)` returns its `Outcome`.

    `provider` and `domain` select a world other than the support world. Concurrent calls are not supported.
    """

    def __init__(self, tests: PressureTests) -> None:
        self._tests = tests

    def __call__(self, case: "Case", *, provider: str = "trace2evolve", domain: str = "support") -> "Outcome":
        """Return the outcome of a case, from a new simulation or an earlier one.

        If there is no outcome, because the simulation was lost or the test's budget of simulations is spent,
        Hypothesis rejects the case and continues. Any other test is skipped.

        Raises:
            TypeError: `case` is not a `Case`.
        """
        __tracebackhide__ = True
        from pytest_trace2evolve.cases.case import Case

        if not isinstance(case, Case):
            raise TypeError(f"run_case takes a Case, as cases() and the fixture 'case' give, not {case!r}")
        return self._tests.outcome(case, provider, domain)

    def __repr__(self) -> str:
        return "run_case"


@pytest.fixture(scope="session")
def run_case(pytestconfig: pytest.Config) -> Iterator[RunCase]:
    """Runs a case with the run's agent: `run_case(case)` gives its `Outcome`."""
    tests = pytestconfig.pluginmanager.getplugin(NAME)
    yield RunCase(tests)
    tests.close()


@pytest.fixture(scope="session")
def environments(pytestconfig: pytest.Config) -> Iterator["Environments"]:
    """All capability environments: built in, of installed packages, and of `pytest_t2e_environments`."""
    from pytest_trace2evolve.environments.registry import Environments
    from pytest_trace2evolve.project.extensions import registered

    resources = pytestconfig.pluginmanager.getplugin(RUN_NAME).resources
    found = Environments(registered(pytestconfig, "environments"), resources.worlds, resources.project)
    yield found
    found.close()


@pytest.fixture
def case(request: pytest.FixtureRequest) -> "Case":
    """One case of the files that the marker `t2e_cases` names."""
    given: Case | None = getattr(request, "param", None)
    if given is None:
        pytest.fail(
            f"'case' needs @pytest.mark.{MARKER}(FILE), or hypothesis' @given(case=...)", pytrace=False
        )
    return given


class BrokenCases:
    """Collects, on the controller, the cases on which tests of all processes failed."""

    def __init__(self, run: "Controller") -> None:
        self._run = run
        self._tasks: dict[str, dict[str, Any]] = {}
        self._notes: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the failing case and the spent budget that a test's report carries."""
        raw: dict[str, Any] | None = getattr(report, "trace2evolve_case", None)
        if raw is not None:
            self._tasks[raw["id"]] = raw
        if getattr(report, "trace2evolve_spent", False):
            self._notes.append(f"{report.nodeid}: {SPENT}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Freeze the cases that broke the agent if `--t2e-freeze` is given; otherwise suggest the option."""
        if not self._tasks:
            return
        from pytest_trace2evolve.cases.case import case_of
        from pytest_trace2evolve.records.task import Task
        from pytest_trace2evolve.session.case_admission import FROZEN, freeze, unfrozen

        cases = [case_of(Task.model_validate(raw)) for raw in self._tasks.values()]
        resources = self._run.resources
        if session.config.option.t2e_freeze:
            self._notes += freeze(cases, resources.project, resources.worlds)
        elif count := len(unfrozen(cases, resources.project.root / FROZEN)):
            new = f"{count} new case{'' if count == 1 else 's'}"
            self._notes.append(f"{new} broke the agent; --t2e-freeze keeps such in {FROZEN}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Report the new and the frozen cases."""
        from pytest_trace2evolve.utils.sanitize import sanitize_line

        for note in self._notes:
            terminalreporter.write_line(f"trace2evolve: {sanitize_line(note)}")


def _runs_cases(item: pytest.Item) -> bool:
    """Whether a test uses the fixture `run_case`."""
    return "run_case" in getattr(item, "fixturenames", ())
