"""Pressure tests: the fixtures `run_case`, `case` and `environments`, and the cases that made tests fail.

If a case cannot be measured, Hypothesis rejects it and the search continues, so that a failure that the
search has found is not lost. The test is skipped only if the search finds no failure.
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

PLUGIN_NAME = "trace2evolve-pressure"
"""The name under which this process's plugin object is registered."""

MARKER = "t2e_cases"

DEFAULT_BUDGET = 200
"""Maximum number of simulations in one test, unless `t2e_case_budget` sets it."""

BUDGET_SPENT = "the test's budget of simulations is spent (t2e_case_budget)"

_STARVATION_ERRORS = ("FailedHealthCheck", "Unsatisfiable")
"""Names of the errors that Hypothesis raises if it had to reject too many cases."""


def register(config: pytest.Config, run_plugin: Any) -> None:
    """Register the fixtures and hooks of pressure tests."""
    config.addinivalue_line(
        "markers", f"{MARKER}(FILE, ...): run the test once for each case in these files, as fixture 'case'"
    )
    config.pluginmanager.register(PressureTests(config, run_plugin), PLUGIN_NAME)
    config.pluginmanager.register(sys.modules[__name__])
    if not isinstance(run_plugin, Worker):
        config.pluginmanager.register(FailingCases(run_plugin))


@dataclass
class _CurrentTest:
    """The test that is running.

    Attributes:
        made_before: The number of simulations made before this test.
        missing_reason: The reason why outcomes are missing; empty if none is missing.
    """

    item: pytest.Item
    made_before: int
    missing_reason: str = ""


class PressureTests:
    """Runs the pressure tests of one process."""

    def __init__(self, config: pytest.Config, run_plugin: "Worker | Controller") -> None:
        self._config = config
        self._run_plugin = run_plugin
        self._runner: CaseRunner | None = None
        self._current_test: _CurrentTest | None = None
        self._stack = ExitStack()

    # ---- collection

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Generate one test for each case of the marked files, whose paths are relative to the rootdir."""
        marks = list(metafunc.definition.iter_markers(MARKER))
        if not marks:
            return
        file_names = [name for mark in marks for name in mark.args]
        is_valid = all(isinstance(name, str) for name in file_names) and not any(
            mark.kwargs for mark in marks
        )
        if not file_names or not is_valid or "case" not in metafunc.fixturenames:
            pytest.fail(
                f"@pytest.mark.{MARKER} needs names of case files, and its test needs the fixture 'case'",
                pytrace=False,
            )
        from pytest_trace2evolve.cases.case import read_cases

        try:
            cases = [
                case
                for name in file_names
                for case in read_cases(self._run_plugin.resources.project.resolve_path(name))
            ]
        except CaseError as error:
            pytest.fail(str(error), pytrace=False)
        metafunc.parametrize("case", cases, ids=[case.id for case in cases], indirect=True)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect pressure tests if no agent is named and neither options nor paths request them."""
        tests = [item for item in items if _runs_cases(item)]
        if not tests or self._run_plugin.agent is not None:
            return
        from pytest_trace2evolve.plugin.options import has_options
        from pytest_trace2evolve.plugin.settings import names_pressure_tests, pressure_folder

        if has_options(config) or config.option.collectonly or names_pressure_tests(config):
            return
        folder = pressure_folder(config.rootpath)
        if deselected := [item for item in tests if folder in item.path.resolve().parents]:
            items[:] = [item for item in items if item not in deselected]
            config.hook.pytest_deselected(items=deselected)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Reject options without effect, and pressure tests without an agent.

        Raises:
            pytest.UsageError: an option has no effect, or no agent is named.
        """
        if self._config.pluginmanager.hasplugin("dsession"):
            return  # the workers check the other tests
        if self._run_plugin.has_plan and session.items and (reason := self._refusal_reason(session.items)):
            self._run_plugin.end_collection(reason)

    def _refusal_reason(self, items: list[pytest.Item]) -> str:
        """Return the reason why the options do not fit the collected tests; empty if they fit."""
        from pytest_trace2evolve.plugin.options import has_options

        config = self._config
        if any(_runs_cases(item) for item in items):
            from pytest_trace2evolve.plugin.settings import names_pressure_tests

            is_requested = has_options(config) or names_pressure_tests(config)
            if self._run_plugin.agent is None and is_requested and not config.option.collectonly:
                return (
                    "'run_case' needs an agent; give --t2e-agent or --t2e-model, or set the ini key t2e_agent"
                )
            return ""
        if not self._run_plugin.suites and has_options(config):
            return (
                "the options request a run, but none of these tests uses 'run_case'; "
                f"also name {self._run_plugin.suites_folder.name}/"
            )
        if config.option.t2e_freeze is not None:
            return "--t2e-freeze has no effect, because no test uses 'run_case'; also name synthetic/"
        return ""

    # ---- running

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Start a separate budget for each test."""
        self._current_test = _CurrentTest(
            item, self._runner.made_simulations if self._runner is not None else 0
        )

    def close(self) -> None:
        """Close the runner of cases and its account."""
        self._stack.close()
        self._runner = None

    def run_case(self, case: "Case", provider: str, domain: str) -> "Outcome":
        """Run a case within the budget of the current test, and return its outcome."""
        __tracebackhide__ = True
        runner = self._open_runner()
        try:
            if self._is_over_budget(runner) and not runner.has_outcome(case, provider, domain):
                self._reject(BUDGET_SPENT)
            return runner.run(case, provider, domain)
        except EndpointError as error:
            assert self._current_test is not None
            self._current_test.item.session.shouldstop = f"trace2evolve: {error}"
            self._reject(str(error))
        except (BudgetError, InfrastructureError) as error:
            self._reject(str(error))
        except Trace2EvolveError as error:
            pytest.fail(str(error), pytrace=False)

    def _open_runner(self) -> "CaseRunner":
        __tracebackhide__ = True
        if self._runner is not None:
            return self._runner
        from pytest_trace2evolve.records.evidence import REPLAY
        from pytest_trace2evolve.session.case_runner import CaseRunner

        has_plan = (
            bool(self._run_plugin.plan_input)
            if isinstance(self._run_plugin, Worker)
            else self._run_plugin.plan is not None
        )
        if not has_plan:
            pytest.fail(
                "'run_case' needs the options of a run, which are read only if the command line names "
                "this file or "
                "the folder synthetic/; name one of them",
                pytrace=False,
            )
        if self._run_plugin.agent == REPLAY:
            pytest.skip("recorded runs cannot run cases; give --t2e-agent or --t2e-model")
        try:
            plan, account = self._run_plugin.open_case_plan(self._stack)
            self._runner = CaseRunner(
                plan, self._run_plugin.resources.worlds, self._run_plugin.resources.agents, account
            )
        except Trace2EvolveError as error:
            pytest.fail(str(error), pytrace=False)
        self._stack.callback(self._runner.close)
        return self._runner

    def _is_over_budget(self, runner: "CaseRunner") -> bool:
        assert self._current_test is not None
        budget = self._config.option.t2e_case_budget
        return runner.made_simulations - self._current_test.made_before >= (
            DEFAULT_BUDGET if budget is None else budget
        )

    def _reject(self, reason: str) -> NoReturn:
        """Handle a missing outcome: let a search continue without the case, or skip the test."""
        __tracebackhide__ = True
        assert self._current_test is not None
        self._current_test.missing_reason = self._current_test.missing_reason or reason
        # Tests that search have loaded Hypothesis. Other runs need not import it.
        hypothesis = sys.modules.get("hypothesis")
        if hypothesis is not None and hypothesis.currently_in_test_context():
            hypothesis.reject()
        pytest.skip(reason)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the failing case to a test's report, and skip a test whose outcomes could not be measured."""
        report = yield
        if call.when != "call" or self._current_test is None or self._current_test.item is not item:
            return report
        error = call.excinfo.value if call.excinfo is not None else None
        failed_case = getattr(error, "case", None)
        if type(error).__name__ == "CaseFailed" and failed_case is not None:
            report.trace2evolve_case = failed_case.task.model_dump(mode="json", exclude_unset=True)  # type: ignore[attr-defined]  # travels as JSON
        missing_reason = self._current_test.missing_reason
        is_starved = any(
            error_class.__module__ == "hypothesis.errors" and error_class.__name__ in _STARVATION_ERRORS
            for error_class in type(error).mro()
        )
        if missing_reason and (is_starved or (report.passed and missing_reason != BUDGET_SPENT)):
            # No measured case failed, but some cases were not measured, so the test did not pass.
            report.outcome = "skipped"
            report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {missing_reason}")
        if missing_reason == BUDGET_SPENT and not report.skipped:
            report.trace2evolve_spent = True  # type: ignore[attr-defined]  # as above
        return report


class RunCase:
    """Runs a case with the run's agent: `run_case(case)` returns its `Outcome`.

    `provider` and `domain` select a world other than the support world. Concurrent calls are not supported.
    """

    def __init__(self, pressure_tests: PressureTests) -> None:
        self._pressure_tests = pressure_tests

    def __call__(self, case: "Case", *, provider: str = "trace2evolve", domain: str = "support") -> "Outcome":
        """Return the outcome of a case, from a new or an earlier simulation.

        If there is no outcome, because the simulation was lost or the test's budget of simulations is spent,
        Hypothesis rejects the case and continues. Any other test is skipped.

        Raises:
            TypeError: `case` is not a `Case`.
        """
        __tracebackhide__ = True
        from pytest_trace2evolve.cases.case import Case

        if not isinstance(case, Case):
            raise TypeError(
                f"run_case: expected a Case, such as cases() and the fixture 'case' provide, got {case!r}"
            )
        return self._pressure_tests.run_case(case, provider, domain)

    def __repr__(self) -> str:
        return "run_case"


@pytest.fixture(scope="session")
def run_case(pytestconfig: pytest.Config) -> Iterator[RunCase]:
    """Runs a case with the run's agent: `run_case(case)` returns its `Outcome`."""
    pressure_tests = pytestconfig.pluginmanager.getplugin(PLUGIN_NAME)
    yield RunCase(pressure_tests)
    pressure_tests.close()


@pytest.fixture(scope="session")
def environments(pytestconfig: pytest.Config) -> Iterator["Environments"]:
    """All capability environments: built in, from installed packages, and from `pytest_t2e_environments`."""
    from pytest_trace2evolve.environments.registry import Environments
    from pytest_trace2evolve.project.extensions import read_hook

    resources = pytestconfig.pluginmanager.getplugin(RUN_NAME).resources
    registry = Environments(read_hook(pytestconfig, "environments"), resources.worlds, resources.project)
    yield registry
    registry.close()


@pytest.fixture
def case(request: pytest.FixtureRequest) -> "Case":
    """One case from the files that the `t2e_cases` marker names."""
    case_param: Case | None = getattr(request, "param", None)
    if case_param is None:
        pytest.fail(
            f"'case' needs @pytest.mark.{MARKER}(FILE), or hypothesis' @given(case=...)", pytrace=False
        )
    return case_param


class FailingCases:
    """Collects, on the controller, the cases that made tests fail in any process."""

    def __init__(self, run_plugin: "Controller") -> None:
        self._run_plugin = run_plugin
        self._failed_tasks: dict[str, dict[str, Any]] = {}
        self._notes: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failing case or a spent budget that a test's report contains."""
        task_json: dict[str, Any] | None = getattr(report, "trace2evolve_case", None)
        if task_json is not None:
            self._failed_tasks[task_json["id"]] = task_json
        if getattr(report, "trace2evolve_spent", False):
            self._notes.append(f"{report.nodeid}: {BUDGET_SPENT}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Freeze the failing cases if `--t2e-freeze` is given; otherwise suggest that option."""
        if not self._failed_tasks:
            return
        from pytest_trace2evolve.cases.case import to_case
        from pytest_trace2evolve.records.task import Task
        from pytest_trace2evolve.session.admission import FROZEN_CASES_FILE, freeze, unfrozen_cases

        cases = [to_case(Task.model_validate(task_json)) for task_json in self._failed_tasks.values()]
        resources = self._run_plugin.resources
        if session.config.option.t2e_freeze:
            self._notes += freeze(cases, resources.project, resources.worlds)
        elif count := len(unfrozen_cases(cases, resources.project.root / FROZEN_CASES_FILE)):
            new_cases_text = f"{count} new case{'' if count == 1 else 's'}"
            self._notes.append(
                f"{new_cases_text} broke the agent; --t2e-freeze saves such cases to {FROZEN_CASES_FILE}"
            )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print notes about new cases, frozen cases and spent budgets."""
        from pytest_trace2evolve.utils.sanitize import sanitize_line

        for note in self._notes:
            terminalreporter.write_line(f"trace2evolve: {sanitize_line(note)}")


def _runs_cases(item: pytest.Item) -> bool:
    """Whether a test uses the fixture `run_case`."""
    return "run_case" in getattr(item, "fixturenames", ())
