"""Suites as pytest items of the controller: a collector for each file and split, an item for each task."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_trace2evolve.errors import TaskFailed

if TYPE_CHECKING:
    from pytest_trace2evolve.plugin.controller import Controller

PLUGIN_NAME = "trace2evolve-run"
"""The name under which the run's plugin object is registered."""

SUSPECTED = "suspected: "
"""The beginning of the reason with which a suspected task is skipped."""

SuiteTasks = Mapping[str, Mapping[str, Sequence[str]]]
"""The ids of tasks by suite and split."""


@dataclass(frozen=True)
class ItemResult:
    """The result that an item reports.

    Attributes:
        error: The reason to fail the item's setup, such as lost simulations; empty if there is no error.
        skip_reason: The reason to skip an item that cannot be judged; empty if it can be judged.
        stop_reason: The reason why no further item can run; empty if further items can run.
        failure: The reason why the task failed, in one line; empty if it passed.
        failed_checks: The problems of the first failed trial, one per line; empty for sealed splits.
        agent_error: The error of the agent, in one line; empty if there is none.
        frames: The traceback of the exception.
        trace: The last messages of the first failed trial, and the command that opens its trace.
        is_suspected: Whether the task may have failed by chance.
        expected_failure: The reason why the task is expected to fail; empty if it is not.
        properties: Names and values of JUnit properties.
    """

    error: str = ""
    skip_reason: str = ""
    stop_reason: str = ""
    failure: str = ""
    failed_checks: str = ""
    agent_error: str = ""
    frames: str = ""
    trace: str = ""
    is_suspected: bool = False
    expected_failure: str = ""
    properties: tuple[tuple[str, str], ...] = ()

    @property
    def short_explanation(self) -> str:
        """The explanation of the failure without the traceback and the trace."""
        return _join_texts(self.failure, self.failed_checks, self.agent_error)

    @property
    def explanation(self) -> str:
        """The explanation of the failure."""
        return _join_texts(self.failure, self.failed_checks, self.agent_error, self.frames, self.trace)


def _join_texts(*texts: str) -> str:
    return "\n".join(filter(None, texts))


class SuiteFile(pytest.File):
    """Collects the TOML file of a suite."""

    def collect(self) -> Iterator[pytest.Collector]:
        """Collect the suite's splits."""
        for split in _result_source(self).suites[self.path.stem]:
            yield SplitCollector.from_parent(self, name=split)


class SplitCollector(pytest.Collector):
    """Collects one split of a suite, and marks it with the split's name."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_marker(self.name)

    def collect(self) -> Iterator[pytest.Item]:
        """Collect one item for each task."""
        for task_id in _result_source(self).suites[self.path.stem][self.name]:
            yield TaskItem.from_parent(self, name=task_id)


class TaskItem(pytest.Item):
    """One task. Its setup waits for the trials, and its call reports whether the task passed."""

    result: ItemResult | None = None

    @property
    def suite(self) -> str:
        """The suite's name."""
        return self.path.stem

    def setup(self) -> None:
        """Wait for the trials. If one is lost, fail here, so that pytest reports an error, not a failure."""
        self.result = result = _result_source(self).wait_for_result(self.suite, self.name)
        self.user_properties += result.properties
        if result.expected_failure:
            self.add_marker(
                pytest.mark.xfail(raises=TaskFailed, strict=False, reason=result.expected_failure)
            )
        if result.stop_reason:
            self.session.shouldstop = f"trace2evolve: {result.stop_reason}"
        if result.error:
            pytest.fail(result.error, pytrace=False)
        if result.skip_reason:
            pytest.skip(result.skip_reason)

    def runtest(self) -> None:
        """Report whether the task passed.

        Raises:
            TaskFailed: the agent failed the task.
        """
        assert self.result is not None
        if self.result.failure and not self.result.is_suspected:
            is_short = self.config.option.tbstyle == "short"
            raise TaskFailed(self.result.short_explanation if is_short else self.result.explanation)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return the location and the name that pytest shows for the item."""
        return self.path, None, f"{self.parent.name if self.parent else ''}::{self.name}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the explanation of a failed task without a traceback, and any other error as pytest does.

        If pytest shows only one line, that line is the reason.
        """
        if not isinstance(excinfo.value, TaskFailed) or self.result is None:
            return super().repr_failure(excinfo, style)
        representation = excinfo.getrepr(style="value")
        if representation.reprcrash is not None:
            crash = representation.reprcrash
            crash.path, crash.lineno, crash.message = str(self.path), 1, self.result.failure
            if self.config.option.tbstyle == "line":
                representation.reprtraceback.reprentries = []
        return representation


def _result_source(node: pytest.Collector | pytest.Item) -> "Controller":
    source: Controller | None = node.config.pluginmanager.getplugin(PLUGIN_NAME)
    assert source is not None
    return source


class ItemHooks:
    """Collects and reports items.

    Attributes:
        suites: The tasks of the selected suites; empty if no suite is selected.
        suites_folder: The folder of the suites' files.
    """

    suites: SuiteTasks
    suites_folder: Path

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Collect the file of a selected suite."""
        if file_path.suffix != ".toml" or file_path.stem not in self.suites:
            return None
        if file_path.parent != self.suites_folder:
            return None
        collector: pytest.Collector = SuiteFile.from_parent(parent, path=file_path)
        return collector

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Mark reports of tasks with a result, and give suspected regressions an outcome of their own."""
        report = yield
        if isinstance(item, TaskItem) and call.when == "setup" and item.result:
            report.trace2evolve_reported = True  # type: ignore[attr-defined]  # of this package
        if isinstance(item, TaskItem) and call.when == "call" and item.result and item.result.is_suspected:
            # A suspected task neither passed nor failed. `finish_junit` replaces its entry in the JUnit file.
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, SUSPECTED + item.result.explanation)
            report.trace2evolve_suspected = True  # type: ignore[attr-defined]  # as above
        return report

    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """Return the status of a suspected regression; None for any other report."""
        if getattr(report, "trace2evolve_suspected", False):
            return "suspected", "~", ("SUSPECTED", {"yellow": True})
        return None
