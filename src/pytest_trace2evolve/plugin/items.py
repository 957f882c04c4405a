"""Suites as pytest items: a file, its splits, and one item a task that holds all the task's trials."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_trace2evolve.errors import EndpointError, StorageError, TaskFailed
from pytest_trace2evolve.gate.trials import Trials
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.report.summary import task_properties, trial_properties
from pytest_trace2evolve.scoring.reward import NO_JUDGE
from pytest_trace2evolve.session.fresh_trials import suspected
from pytest_trace2evolve.session.plan import PlannedSuite
from pytest_trace2evolve.session.task_run import TaskRun

if TYPE_CHECKING:
    from pytest_trace2evolve.plugin.participant import Participant

PLUGIN_NAME = "trace2evolve-run"
"""The name under which the run's plugin object is registered."""


class SuiteFile(pytest.File):
    """One suite's TOML file."""

    def collect(self) -> Iterator[pytest.Collector]:
        """The suite's splits."""
        for split in planned_suite(self).lock.splits:
            yield SplitCollector.from_parent(self, name=split)


class SplitCollector(pytest.Collector):
    """One split of a suite; carries the marker of its name."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_marker(self.name)

    def collect(self) -> Iterator[pytest.Item]:
        """One item a task."""
        for task_id in planned_suite(self).lock.splits[self.name]:
            yield TaskItem.from_parent(self, name=task_id)


class TaskItem(pytest.Item):
    """One task. Its setup runs all trials; its call only judges them."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.task_run: TaskRun | None = None
        self.suspicion = ""
        self.unstored = ""
        baseline = planned_suite(self).baseline
        if baseline is not None and self.name in baseline.failing:
            reason = f"fails in baseline {baseline.name}"
            self.add_marker(pytest.mark.xfail(raises=TaskFailed, strict=False, reason=reason))

    def setup(self) -> None:
        """Run the trials. A lost trial ends the item here, so that it is an error and no failure."""
        participant = _participant(self)
        assert participant.runner is not None
        planned = planned_suite(self)
        # Before anything can end the setup: JUnit tells them of every item.
        split = self.parent.name if self.parent else ""
        self.user_properties += task_properties(planned.name, split, self.name)
        refusal = why = ""
        try:
            self.task_run = run = participant.runner.run(planned.name, self.name)
        except EndpointError as error:
            refusal, why = str(error), "the endpoint refuses the run"
        except StorageError as error:
            self.unstored = refusal = str(error)
            why = "the run cannot store its evidence"
        if refusal:  # told outside of the handler: pytest would show the error there, and then itself again
            # Every further item would be told the same: the session ends, and says it once.
            self.session.shouldstop = f"trace2evolve: {refusal}"
            if participant.runner.first_to_tell():
                pytest.fail(refusal, pytrace=False)
            pytest.skip(f"not run: {why}")
        live = participant.plan is not None and participant.plan.live is not None
        self.user_properties += trial_properties(run.records, live=live)
        if run.unfinished:
            made = len(run.records)
            pytest.skip(f"{made} of {planned.trials} trials made: {run.unfinished}")
        if not run.records:
            pytest.skip(run.absent or f"left out: {run.left_out}")
        troubled = run.lost or [record for record in run.unmeasured if record.note != NO_JUDGE]
        if troubled:
            pytest.fail(f"{len(troubled)} of {_trials(run)} lost: {troubled[0].note}", pytrace=False)
        if run.unmeasured:
            pytest.skip(f"{len(run.unmeasured)} of {_trials(run)} not measured: {run.unmeasured[0].note}")

    def runtest(self) -> None:
        """Judge: the task passes when more than half of its measured trials do. A fall may only be suspected.

        Raises:
            TaskFailed: the agent failed the task.
        """
        assert self.task_run is not None
        trials = Trials(self.task_run.records)
        if trials.passes:
            return
        participant, planned = _participant(self), planned_suite(self)
        assert participant.plan is not None
        split = self.parent.name if self.parent else ""
        if suspected(participant.plan, planned, split, self.task_run, self.name):
            self.suspicion = self._failure(trials)
            return
        raise TaskFailed(self._failure(trials))

    def payload(self) -> dict[str, Any]:
        """What the setup's report carries to the controller, as plain JSON types."""
        assert self.task_run is not None
        return self.task_run.to_json()

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Where an item is said to be."""
        return self.path, None, f"{self.parent.name if self.parent else ''}::{self.name}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """One line for a failed task; pytest's own view of anything else."""
        if isinstance(excinfo.value, TaskFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def _failure(self, trials: Trials) -> str:
        measured = trials.measured
        passed = sum(Trials((record,)).passes is True for record in measured)
        text = f"reward {trials.reward:.3f}: {passed} of {len(measured)} trials passed"
        split = self.parent.name if self.parent else ""
        is_open = _participant(self).project.splits[split].role is Role.REPORT
        if is_open:
            # Of any other split, which component failed is for `trace2evolve show` to say, and to record.
            text += f" ({_components(measured)})"
        run = self.task_run
        if run is not None and run.crash:
            # The message may quote the task, so that of a sealed split stays unread; the code may be shown.
            raised = run.crash if is_open else run.crash.partition(":")[0]
            text += f"\nthe agent raised {raised}\n{run.frames}".rstrip()
        return text


def planned_suite(node: pytest.Collector | pytest.Item) -> PlannedSuite:
    """The suite that a node belongs to, as the plan has it."""
    plan = _participant(node).plan
    assert plan is not None
    return plan.suites[node.path.stem]


def _participant(node: pytest.Collector | pytest.Item) -> "Participant":
    participant: Participant | None = node.config.pluginmanager.getplugin(PLUGIN_NAME)
    assert participant is not None
    return participant


def _trials(run: TaskRun) -> str:
    return f"{len(run.records)} trial{'' if len(run.records) == 1 else 's'}"


def _components(records: list[SimulationEvidence]) -> str:
    worst = min(records, key=lambda record: record.reward or 0.0)
    failed = [name.value for name, value in worst.components.items() if value < 1.0]
    ended = f"ended by {worst.termination_reason}"
    return f"{ended}; below 1: {', '.join(failed)}" if failed else ended
