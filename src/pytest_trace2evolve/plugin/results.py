"""The results that items report and the exit status of pytest, derived from the session's decisions."""

import pytest

from pytest_trace2evolve.plugin.items import ItemResult
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.verdict import EXIT_STATUS, Decision
from pytest_trace2evolve.report.summary import task_properties, trial_properties
from pytest_trace2evolve.scoring.metrics import Trials
from pytest_trace2evolve.scoring.reward import NO_JUDGE
from pytest_trace2evolve.session.events import Run, TaskDecided
from pytest_trace2evolve.session.trials import TaskRun, is_suspected
from pytest_trace2evolve.utils.sanitize import sanitize_line

OVERRIDABLE = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
"""The exit statuses that a verdict replaces; pytest's other statuses are more important than a verdict."""


def split_of(event: TaskDecided) -> str:
    """The split that a task belongs to."""
    splits = event.plan.suites[event.suite].lock.splits
    return next(split for split, tasks in splits.items() if event.task_id in tasks)


def item_result(event: TaskDecided, refusal: str = "") -> ItemResult:
    """Make the result that the item of a task reports.

    Args:
        event: The session's decision on the task.
        refusal: The reason why the run cannot continue, if this item reports the reason; else empty.
    """
    plan, planned, split = event.plan, event.plan.suites[event.suite], split_of(event)
    properties = tuple(task_properties(event.suite, split, event.task_id))
    run = event.run
    if run is None:
        skipped = f"not run: {event.why}"
        return ItemResult(error=refusal, skipped=skipped, ends_session=refusal, properties=properties)
    properties += tuple(trial_properties(run.records, live=plan.live is not None))
    expected = ""
    if planned.baseline is not None and event.task_id in planned.baseline.failing:
        expected = f"fails in baseline {planned.baseline.name}"
    error, skipped = _unjudged(run, planned.trials)
    if error or skipped:
        return ItemResult(error=error, skipped=skipped, expected=expected, properties=properties)
    trials = Trials(run.records)
    if trials.passes:
        return ItemResult(expected=expected, properties=properties)
    is_open = plan.project.splits[split].role is Role.REPORT
    return ItemResult(
        failure=_failure(run, trials, is_open=is_open),
        is_suspected=is_suspected(plan, planned, split, run, event.task_id),
        expected=expected,
        properties=properties,
    )


def _unjudged(run: TaskRun, planned: int) -> tuple[str, str]:
    """The reasons to report an error and to skip the item; both are empty if the task can be judged."""
    trials = f"{len(run.records)} trial{'' if len(run.records) == 1 else 's'}"
    if run.unfinished:
        return "", f"{len(run.records)} of {planned} trials made: {run.unfinished}"
    if not run.records:
        return "", run.absent or f"left out: {run.left_out}"
    troubled = run.lost or [record for record in run.unmeasured if record.note != NO_JUDGE]
    if troubled:
        return f"{len(troubled)} of {trials} lost: {troubled[0].note}", ""
    if run.unmeasured:
        return "", f"{len(run.unmeasured)} of {trials} not measured: {run.unmeasured[0].note}"
    return "", ""


def _failure(run: TaskRun, trials: Trials, *, is_open: bool) -> str:
    """The reason why a task failed; for a sealed split, it contains nothing from the traces."""
    measured = trials.measured
    passed = sum(Trials((record,)).passes is True for record in measured)
    text = f"reward {trials.reward:.3f}: {passed} of {len(measured)} trials passed"
    if is_open:
        # For other splits, `trace2evolve show` names the failed components, and records the access.
        text += f" ({_components(measured)})"
    if run.crash:
        # The message may quote the task, so it is not shown for sealed splits; the code may be shown.
        raised = run.crash if is_open else run.crash.partition(":")[0]
        text += f"\nthe agent raised {raised}\n{run.frames}".rstrip()
    return text


def _components(records: list[SimulationEvidence]) -> str:
    worst = min(records, key=lambda record: record.reward or 0.0)
    failed = [name.value for name, value in worst.components.items() if value < 1.0]
    ended = f"ended by {worst.termination_reason}"
    return f"{ended}; below 1: {', '.join(failed)}" if failed else ended


def exit_status(
    result: Run, exitstatus: int | pytest.ExitCode, *, others_failed: bool, inconclusive_passes: bool
) -> tuple[int | pytest.ExitCode, str]:
    """Combine the exit status of a pytest session with the verdict of its run.

    Args:
        result: The result of the run.
        exitstatus: Pytest's own exit status of the session.
        others_failed: Whether a test that is not a task failed.
        inconclusive_passes: Whether an inconclusive verdict counts as passed.

    Returns:
        The exit status, and the reason why the run decides nothing or is incomplete; empty without a reason.
    """
    if result.error:
        return pytest.ExitCode.INTERNAL_ERROR, f"no verdict: {sanitize_line(result.error)}"
    decision, trouble = result.decision, ""
    if not result.is_measured:
        why = f" ({result.exhausted})" if result.exhausted else ""
        trouble = f"nothing was measured{why}: this run says nothing about the candidate"
        status: int | pytest.ExitCode = EXIT_STATUS[Decision.INCONCLUSIVE]
        return (status if exitstatus in OVERRIDABLE else exitstatus), trouble
    if decision is None and result.exhausted:
        trouble = f"not the whole run: {result.exhausted}"
        decision = Decision.INCONCLUSIVE if exitstatus == pytest.ExitCode.OK else None
    if exitstatus not in OVERRIDABLE or decision is None:
        return exitstatus, trouble
    if others_failed:
        return pytest.ExitCode.TESTS_FAILED, trouble
    if decision is Decision.INCONCLUSIVE and inconclusive_passes:
        return pytest.ExitCode.OK, trouble
    return EXIT_STATUS[decision], trouble
