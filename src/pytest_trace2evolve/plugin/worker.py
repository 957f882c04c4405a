"""An xdist worker, which runs the user's own tests and the pressure tests. Tasks run in the controller."""

import functools
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_trace2evolve.engine.budget import Account
    from pytest_trace2evolve.session.plan import Plan
    from pytest_trace2evolve.session.planner import Resources

WORKER_INPUT = "trace2evolve"


class Worker:
    """The plugin object of an xdist worker.

    Attributes:
        suites: The names of the suites whose tasks run in the controller.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        worker_input: dict[str, Any] = config.workerinput.get(WORKER_INPUT, {})  # type: ignore[attr-defined]  # set by xdist
        self.plan_input = plan_input = worker_input.get("plan") or {}
        self.suites: Sequence[str] = plan_input.get("suites", ())
        self.suites_folder = Path(plan_input["suites_folder"]) if plan_input else Path()
        self.agent: str | None = plan_input.get("agent")
        for name, description in worker_input.get("splits", {}).items():
            config.addinivalue_line("markers", f"{name}: trace2evolve split: {description}")
        if plan_input:
            config.args[:] = plan_input["arguments"]

    @functools.cached_property
    def resources(self) -> "Resources":
        """The worlds, agents and checks that the project and its plugins provide."""
        from pytest_trace2evolve.plugin.settings import resources_of

        return resources_of(self.config)

    @property
    def has_plan(self) -> bool:
        """Whether any suite or pressure test is selected."""
        return bool(self.plan_input)

    def open_case_plan(self, stack: ExitStack) -> "tuple[Plan, Account]":
        """Recreate the controller's plan for cases in this process, and open the account of the run.

        Args:
            stack: The exit stack that closes the account.

        Raises:
            ConfigError: see `make_plan`.
        """
        from pytest_trace2evolve.engine.budget import Account
        from pytest_trace2evolve.engine.live import ServedModel
        from pytest_trace2evolve.plugin.settings import context_of
        from pytest_trace2evolve.session.planner import make_plan
        from pytest_trace2evolve.session.servers import use_servers
        from pytest_trace2evolve.session.settings import read_judge, read_options

        shared_state = self.plan_input["run"]
        addresses = {folder: ServedModel(**address) for folder, address in shared_state["served"].items()}
        option = self.config.option
        options = read_options(option, context_of(self.config, addresses))
        options = replace(options, run_folder=Path(shared_state["run_folder"]))
        plan = make_plan(options, self.resources, suite_names=(), judge=read_judge(option), is_worker=True)
        plan = replace(
            plan,
            run_id=shared_state["run_id"],
            started_at=shared_state["started"],
            draw_id=shared_state["draw"],
        )
        account = Account(Path(shared_state["account"]), plan.budgets)
        stack.callback(account.close)
        return use_servers(plan, addresses), account

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Skip Hypothesis's summary, whose import is slow, if this worker ran no Hypothesis test."""
        plugins = self.config.pluginmanager
        if "hypothesis" not in sys.modules and (plugin := plugins.get_plugin("hypothesispytest")):
            plugins.unregister(plugin)

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: object, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Report an error of this package in one line."""
        from pytest_trace2evolve.utils.crashes import shorten_internal_error

        shorten_internal_error(excrepr, excinfo.value, self.config.rootpath)

    def end_collection(self, reason: str) -> None:
        """Report that the options do not fit the tests, so that the controller ends the session."""
        report = pytest.CollectReport(nodeid="", outcome="failed", longrepr=reason, result=None)
        report.trace2evolve_refusal = reason  # type: ignore[attr-defined]  # extra attributes travel as JSON
        self.config.hook.pytest_collectreport(report=report)
