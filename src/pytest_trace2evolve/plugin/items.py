"""Suites as pytest items: a file, its splits, and one item for each task.

A worker of xdist imports this module and little else of the package, because items only report what the
controller's session decided.
"""

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import pytest

from pytest_trace2evolve.errors import TaskFailed

PLUGIN_NAME = "trace2evolve-run"
"""The name under which the run's plugin object is registered."""

SuiteTasks = Mapping[str, Mapping[str, Sequence[str]]]
"""The ids of tasks by suite and split."""


@dataclass(frozen=True)
class ItemResult:
    """The result that an item reports.

    Attributes:
        error: The reason for failing the item's setup, such as lost simulations; empty without such an error.
        skipped: The reason for skipping an item that cannot be judged; empty if it can be judged.
        ends_session: The reason why no further item can run; empty if further items can run.
        failure: The reason why the task failed; empty if it passed.
        is_suspected: Whether the task may have failed by chance.
        expected: The reason to expect a failure of the task; empty if no failure is expected.
        properties: Names and values of JUnit properties.
    """

    error: str = ""
    skipped: str = ""
    ends_session: str = ""
    failure: str = ""
    is_suspected: bool = False
    expected: str = ""
    properties: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> str:
        """Convert the result to JSON, for a worker."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a result from the JSON of `to_json`."""
        record = json.loads(text)
        return cls(**{**record, "properties": tuple(map(tuple, record["properties"]))})


class Results(Protocol):
    """The source of tasks and results for the items of a process."""

    suites: SuiteTasks

    def result(self, suite: str, task_id: str) -> ItemResult:
        """Wait for the result of a task."""


class SuiteFile(pytest.File):
    """One suite's TOML file."""

    def collect(self) -> Iterator[pytest.Collector]:
        """Collect the suite's splits."""
        for split in _results(self).suites[self.path.stem]:
            yield SplitCollector.from_parent(self, name=split)


class SplitCollector(pytest.Collector):
    """One split of a suite, marked with the split's name."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_marker(self.name)

    def collect(self) -> Iterator[pytest.Item]:
        """Collect one item for each task."""
        for task_id in _results(self).suites[self.path.stem][self.name]:
            yield TaskItem.from_parent(self, name=task_id)


class TaskItem(pytest.Item):
    """One task. Its setup waits for the task's trials; its call reports whether the task passed."""

    result: ItemResult | None = None

    @property
    def suite(self) -> str:
        """The suite's name."""
        return self.path.stem

    def setup(self) -> None:
        """Wait for the trials. A lost trial ends the item here, so pytest reports an error, not a failure."""
        self.result = result = _results(self).result(self.suite, self.name)
        self.user_properties += result.properties
        if result.expected:
            self.add_marker(pytest.mark.xfail(raises=TaskFailed, strict=False, reason=result.expected))
        if result.ends_session:
            self.session.shouldstop = f"trace2evolve: {result.ends_session}"
        if result.error:
            pytest.fail(result.error, pytrace=False)
        if result.skipped:
            pytest.skip(result.skipped)

    def runtest(self) -> None:
        """Report the task.

        Raises:
            TaskFailed: the agent failed the task.
        """
        assert self.result is not None
        if self.result.failure and not self.result.is_suspected:
            raise TaskFailed(self.result.failure)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """The location and the name that pytest shows for the item."""
        return self.path, None, f"{self.parent.name if self.parent else ''}::{self.name}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """One line for a failed task; pytest's own view of anything else."""
        if isinstance(excinfo.value, TaskFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)


def _results(node: pytest.Collector | pytest.Item) -> Results:
    results: Results | None = node.config.pluginmanager.getplugin(PLUGIN_NAME)
    assert results is not None
    return results


class ItemHooks:
    """The hooks that collect and report items; the same in the controller and in workers.

    Attributes:
        suites: The tasks of the run's suites; empty if no suite takes part.
        suites_folder: The folder of the suites' files.
    """

    suites: SuiteTasks
    suites_folder: Path

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Collect the file of a suite that takes part."""
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
        """Mark tasks that report a result; report a suspected regression as a separate outcome."""
        report = yield
        if isinstance(item, TaskItem) and call.when == "setup" and item.result:
            report.trace2evolve_reported = True  # type: ignore[attr-defined]  # extra attributes travel as JSON
        if isinstance(item, TaskItem) and call.when == "call" and item.result and item.result.is_suspected:
            # A suspected task neither passed nor failed; readers of JUnit see it as skipped, with the reason.
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, f"suspected: {item.result.failure}")
            report.trace2evolve_suspected = True  # type: ignore[attr-defined]  # as above
        return report

    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
        """The status letter of a suspected regression."""
        if getattr(report, "trace2evolve_suspected", False):
            return "suspected", "~", ("SUSPECTED", {"yellow": True})
        return None
