"""A worker of xdist, which reads the results of the controller's session instead of running simulations.

Pressure tests are the exception, because they need an agent in their own process (`case_fixtures.py`).
"""

import functools
import hashlib
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_trace2evolve.plugin.items import ItemHooks, ItemResult

if TYPE_CHECKING:
    from pytest_trace2evolve.engine.budget import Account
    from pytest_trace2evolve.session.plan import Plan
    from pytest_trace2evolve.session.planner import Resources

WORKER_INPUT = "trace2evolve"

POLL_SECONDS = 0.02
"""Seconds between a worker's checks for the result of its item."""


def result_file(folder: Path, suite: str, task_id: str) -> Path:
    """The file with a task's result; its name is a hash, because a task's id may not be a valid file name."""
    name = hashlib.sha256(f"{suite}\n{task_id}".encode()).hexdigest()
    return folder / "decided" / f"{name}.json"


def write_result(folder: Path, suite: str, task_id: str, result: ItemResult) -> None:
    """Write the result of a task for the worker that waits for it.

    Raises:
        OSError: the file cannot be written.
    """
    path = result_file(folder, suite, task_id)
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(result.to_json(), encoding="utf-8")
    part.replace(path)


class Worker(ItemHooks):
    """The plugin object of a worker."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        found: dict[str, Any] = config.workerinput.get(WORKER_INPUT, {})  # type: ignore[attr-defined]  # set by xdist
        self.input = given = found.get("plan") or {}
        self.suites = given.get("suites", {})
        self.suites_folder = Path(given["suites_folder"]) if given else Path()
        self.agent: str | None = given.get("agent")
        for name, description in found.get("splits", {}).items():
            config.addinivalue_line("markers", f"{name}: trace2evolve split: {description}")

    @functools.cached_property
    def resources(self) -> "Resources":
        """The resources that the project and its plugins offer."""
        from pytest_trace2evolve.plugin.settings import resources_of

        return resources_of(self.config)

    @property
    def has_plan(self) -> bool:
        """Whether any suite or pressure test takes part."""
        return bool(self.input)

    def plan_of_cases(self, closing: ExitStack) -> "tuple[Plan, Account]":
        """Remake the controller's plan for the cases of this process, and open the account of the run.

        Args:
            closing: The exit stack that closes the account.

        Raises:
            ConfigError: see `make_plan`.
        """
        from pytest_trace2evolve.engine.budget import Account
        from pytest_trace2evolve.engine.live import Address
        from pytest_trace2evolve.plugin.settings import context_of
        from pytest_trace2evolve.session.planner import make_plan
        from pytest_trace2evolve.session.servers import at_servers
        from pytest_trace2evolve.session.settings import read_judge, read_options

        shared = self.input["run"]
        served = {folder: Address(**address) for folder, address in shared["served"].items()}
        option = self.config.option
        options = read_options(option, context_of(self.config, served))
        options = replace(options, run_folder=Path(shared["run_folder"]))
        plan = make_plan(options, self.resources, suite_names=(), judge=read_judge(option), is_worker=True)
        plan = replace(plan, **{name: shared[name] for name in ("run_id", "started", "draw")})
        account = Account(Path(shared["account"]), plan.budgets)
        closing.callback(account.close)
        return at_servers(plan, served), account

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Skip Hypothesis's summary, a slow import, in a worker that ran no test of Hypothesis."""
        plugins = self.config.pluginmanager
        if "hypothesis" not in sys.modules and (plugin := plugins.get_plugin("hypothesispytest")):
            plugins.unregister(plugin)

    def result(self, suite: str, task_id: str) -> ItemResult:
        """Wait for the result of a task."""
        folder = Path(self.input["folder"])
        path = result_file(folder, suite, task_id)
        while True:
            try:
                return ItemResult.from_json(path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                if not folder.exists():
                    return ItemResult(error="the run ended before this task")
            time.sleep(POLL_SECONDS)

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: object, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Report an error of this package in one line."""
        from pytest_trace2evolve.utils.crashes import shorten

        shorten(excrepr, excinfo.value, self.config.rootpath)

    def end_collection(self, refusal: str) -> None:
        """Report that the options do not fit the tests; the controller then ends the session."""
        report = pytest.CollectReport(nodeid="", outcome="failed", longrepr=refusal, result=None)
        report.trace2evolve_refusal = refusal  # type: ignore[attr-defined]  # extra attributes travel as JSON
        self.config.hook.pytest_collectreport(report=report)
