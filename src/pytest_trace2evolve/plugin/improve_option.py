"""Runs `trace2evolve improve` after a session with `--t2e-improve` or `--t2e-evolve`, from its run."""

import shlex
import subprocess
import sys
from typing import Any

import pytest

from pytest_trace2evolve.improve.arguments import key_arguments, run_arguments, run_values
from pytest_trace2evolve.plugin.controller import Controller
from pytest_trace2evolve.plugin.items import PLUGIN_NAME as RUN_PLUGIN_NAME
from pytest_trace2evolve.plugin.settings import suites_under, usage_error
from pytest_trace2evolve.project.candidates import DEFAULT_CANDIDATE

PLUGIN_NAME = "trace2evolve-improvement"

_NO_SEARCH_STATUSES = (
    pytest.ExitCode.OK,
    pytest.ExitCode.INTERRUPTED,
    pytest.ExitCode.INTERNAL_ERROR,
    pytest.ExitCode.USAGE_ERROR,
)
"""Exit statuses of sessions after which nothing is searched."""


def register_improvement(config: pytest.Config) -> None:
    """Register the hooks of a search, which validate its options before the tests start."""
    config.pluginmanager.register(ImproveHooks(config), PLUGIN_NAME)


class ImproveHooks:
    """Checks the options of a search before the tests start, and searches after a session that is not green.

    The exit status remains that of the session, because its verdict does not depend on the search.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._session: pytest.Session | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Check the options of the search.

        Raises:
            pytest.UsageError: an option is invalid, or the session has several suites.
        """
        option = self._config.option
        if option.help or option.version or option.collectonly:
            return
        if option.t2e_evolve and option.t2e_improve is not None:
            raise usage_error("--t2e-evolve is --t2e-improve='--proposer adapters'; give one of the two")
        done = self._call(self._arguments("--dry-run"), stderr=subprocess.PIPE)
        lines = done.stderr.strip().splitlines()
        if done.returncode:
            raise usage_error(f"{self._flag}: {lines[-1].removeprefix('trace2evolve: ')}")
        self._print(lines[-1])
        self._session = session

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Search after the servers of the session have stopped."""
        plan = self._controller().plan
        if self._session is None or self._session.exitstatus in _NO_SEARCH_STATUSES:
            return
        if plan is not None and plan.run_folder.exists():
            arguments = self._arguments("--baseline", str(plan.run_folder))
            if self._call(arguments).returncode:
                self._print(f"trace2evolve: to resume: trace2evolve {shlex.join(arguments)}")

    @property
    def _flag(self) -> str:
        return "--t2e-improve" if self._config.option.t2e_improve is not None else "--t2e-evolve"

    def _controller(self) -> Controller:
        controller = self._config.pluginmanager.getplugin(RUN_PLUGIN_NAME)
        assert isinstance(controller, Controller)
        return controller

    def _arguments(self, *added: str) -> list[str]:
        """Return the arguments of `trace2evolve`.

        Raises:
            pytest.UsageError: the given options cannot be split, or the session has several suites.
        """
        option, project = self._config.option, self._controller().resources.project
        try:
            given = shlex.split("--proposer adapters" if option.t2e_improve is None else option.t2e_improve)
        except ValueError as error:
            raise usage_error(f"--t2e-improve: {error}") from None
        suites = option.t2e_suite or suites_under(self._config, project) or project.suite_names
        if len(suites) != 1:
            raise usage_error(f"{self._flag}: a search has one suite; name it with --t2e-suite NAME")
        candidate = option.t2e_candidate or DEFAULT_CANDIDATE
        values = run_values(option)
        added = (*added, *key_arguments(values))
        return [
            *("--root", str(self._config.rootpath), "improve", *given, "--suite", suites[0]),
            *("--candidate", candidate, *added, "--", *run_arguments(values)),
        ]

    def _call(self, arguments: list[str], **settings: Any) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "pytest_trace2evolve", *arguments]
        folder = self._config.invocation_params.dir
        return subprocess.run(command, cwd=folder, encoding="utf-8", errors="replace", **settings)

    def _print(self, text: str) -> None:
        if reporter := self._config.pluginmanager.getplugin("terminalreporter"):
            reporter.write_line(text)
            reporter.flush()
