"""Derive item results and pytest's exit status from the decisions of the session."""

import re
import shlex
from collections import Counter
from collections.abc import Sequence

import pytest

from pytest_trace2evolve.plugin.items import ItemResult
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.failure import Failure
from pytest_trace2evolve.records.score import NO_JUDGE_NOTE
from pytest_trace2evolve.records.verdict import EXIT_STATUS, Decision
from pytest_trace2evolve.report.summary import task_properties, trial_properties
from pytest_trace2evolve.report.trace import agent_error_line, failure_lines, fit_lines, message_lines
from pytest_trace2evolve.scoring.metrics import Trials
from pytest_trace2evolve.session.events import Run, TaskDecided
from pytest_trace2evolve.session.ledger import SplitName
from pytest_trace2evolve.session.provenance import baseline_trials_of
from pytest_trace2evolve.session.traces import sealed_splits_of_task
from pytest_trace2evolve.session.trials import TaskRun
from pytest_trace2evolve.utils.sanitize import sanitize, sanitize_line

OVERRIDABLE_STATUSES = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
"""The exit statuses of pytest that a verdict may replace. Other statuses take precedence over a verdict."""

MAX_CHECKS_BYTES, MAX_FRAMES_BYTES, MAX_TRACE_BYTES = 3_000, 2_500, 2_000
"""Maximum sizes, as JSON, of the parts of an explanation, because they are shown for each failed item."""


def split_of(event: TaskDecided) -> str:
    """Return the split of the event's task."""
    splits = event.plan.suites[event.suite].lock.splits
    return next(split for split, tasks in splits.items() if event.task_id in tasks)


def item_result(event: TaskDecided, refusal: str = "") -> ItemResult:
    """Make the result that a task's item reports.

    Args:
        event: The session's decision on the task.
        refusal: The reason why the run cannot continue; empty if it can, or if a different item reports it.
    """
    plan, planned, split = event.plan, event.plan.suites[event.suite], split_of(event)
    properties = tuple(task_properties(event.suite, split, event.task_id))
    run = event.run
    if run is None:
        skip_reason = f"not run: {event.reason}"
        return ItemResult(error=refusal, skip_reason=skip_reason, stop_reason=refusal, properties=properties)
    properties += tuple(trial_properties(run.records, live=plan.live is not None))
    expected_failure, old = "", baseline_trials_of(planned, event.task_id)
    if planned.baseline is not None and old is not None and not old.passes:
        expected_failure = f"fails in baseline {planned.baseline.name}"
    sealed_splits = sealed_splits_of_task(plan.project, planned.suite.domain, event.task_id)
    is_open = not sealed_splits
    error, skip_reason = _unjudged_reasons(run, planned.trials_of(event.task_id), is_open=is_open)
    if error or skip_reason:
        return ItemResult(
            error=error, skip_reason=skip_reason, expected_failure=expected_failure, properties=properties
        )
    trials = Trials(run.records)
    if trials.passes:
        return ItemResult(expected_failure=expected_failure, properties=properties)
    agent_error, frames = _agent_error_texts(run, is_open=is_open)
    return ItemResult(
        failure=_failure_text(trials, is_open=is_open),
        failed_checks="\n".join(
            [
                *_fallen_lines(event, trials),
                *([] if run.failure is None else [_checks_text(run.failure, trials)]),
            ]
        ),
        agent_error=agent_error,
        frames=frames,
        trace=_trace_text(event, run.failure, sealed_splits),
        is_suspected=event.is_suspected,
        expected_failure=expected_failure,
        properties=properties,
    )


def _unjudged_reasons(run: TaskRun, planned_trials: int, *, is_open: bool) -> tuple[str, str]:
    """Return the reasons for an error and for a skipped item; both are empty if the task can be judged."""
    trials_text = f"{len(run.records)} trial{'' if len(run.records) == 1 else 's'}"
    if run.unfinished_reason:
        return "", f"{len(run.records)} of {planned_trials} trials made: {run.unfinished_reason}"
    if not run.records:
        return "", run.absent_reason or f"left out: {run.left_out_reason}"
    lost_records = run.lost_trials or [
        record for record in run.unmeasured_trials if record.note != NO_JUDGE_NOTE
    ]
    if lost_records:
        return f"{len(lost_records)} of {trials_text} lost: {_note_text(lost_records[0].note, is_open)}", ""
    if run.unmeasured_trials:
        note = f"{run.unmeasured_trials[0].note}; give --t2e-judge MODEL"
        return "", f"{len(run.unmeasured_trials)} of {trials_text} not measured: {note}"
    return "", ""


def _note_text(note: str, is_open: bool) -> str:
    """Return why a trial has no reward.

    Notes begin with words of this package or of an extension, which quote no trace. What follows a colon may
    quote one, so it is left out for a sealed split.
    """
    cause, separator, _ = re.sub(r"^(InfrastructureError: )+", "", note).partition(": ")
    if is_open or not separator:
        return note
    cause = cause.removesuffix("; last problem")
    return f"{cause} (details are not shown, because they may quote a sealed trace)"


def _failure_text(trials: Trials, *, is_open: bool) -> str:
    """Return the reason why a task failed. For a sealed split, it contains nothing from the traces."""
    measured_records = trials.measured_records
    text = f"reward {trials.reward:.3f}: {trials.pass_count} of {len(measured_records)} trials passed"
    # For sealed splits, `trace2evolve show` names the failed components and records the access.
    return f"{text} ({_components_text(measured_records)})" if is_open else text


def _fallen_lines(event: TaskDecided, trials: Trials) -> list[str]:
    """Return the figures of a task that passed on the baseline, in one line that quotes no trace."""
    planned = event.plan.suites[event.suite]
    old = baseline_trials_of(planned, event.task_id)
    if old is None or not old.passes:
        return []
    assert planned.baseline is not None
    texts = []
    for side in (old, trials):
        ends = Counter(record.termination_reason for record in side.measured_records)
        ends_text = ", ".join(f"{end} {count}" for end, count in ends.most_common())
        texts.append(f"{side.pass_count} of {len(side.measured_records)} passed ({ends_text})")
    return [f"regressed: {texts[0]} in baseline {planned.baseline.name}, now {texts[1]}"]


def _agent_error_texts(run: TaskRun, *, is_open: bool) -> tuple[str, str]:
    """Return the error of the agent, and its traceback; both are empty if there is none."""
    if run.agent_error is None:
        return "", ""
    line = agent_error_line(run.agent_error, is_sealed=not is_open)
    frames = fit_lines(reversed(sanitize(run.agent_error.frames).rstrip().split("\n")), MAX_FRAMES_BYTES)
    return line, "\n".join(reversed(frames.split("\n")))  # the innermost frame is last, and is kept


def _checks_text(failure: Failure, trials: Trials) -> str:
    lines = list(failure_lines(failure))
    has_other_trials = len(trials.records) > 1
    heading = [f"first failed trial: {failure.trial}"] if has_other_trials else []
    return fit_lines([*heading, *lines], MAX_CHECKS_BYTES)


def _trace_text(event: TaskDecided, failure: Failure | None, sealed_splits: Sequence[SplitName]) -> str:
    """Return the last messages of a failed trial, or the reason why they are not shown."""
    command = _show_command(event, failure)
    if sealed_splits:
        return _sealed_text(event, command, sealed_splits)
    if failure is None:
        return ""
    messages = fit_lines(message_lines(failure), MAX_TRACE_BYTES)
    return f"{messages}\nopen the trace: {command}".lstrip()


def _sealed_text(event: TaskDecided, command: str, sealed_splits: Sequence[SplitName]) -> str:
    """Say why the trace of a task in a sealed split is not shown, and what opening it costs."""
    suite, split = next((name for name in sealed_splits if name[0] == event.suite), sealed_splits[0])
    name = split if suite == event.suite else f"{suite}::{split}"
    defined_splits = event.plan.project.splits
    decides = any(
        split in defined_splits and defined_splits[split].role is Role.GATE for _, split in sealed_splits
    )
    cost = ", which ends clean evidence" if decides else ""
    return f"{name} is sealed, so no trace is shown; open it (the ledger records this{cost}): {command}"


def _show_command(event: TaskDecided, failure: Failure | None) -> str:
    """Return the command that shows the explained trial of a task."""
    plan = event.plan
    run = plan.run_folder
    if run.parent == plan.project.runs_folder:
        run_name = run.name
    else:
        run_name = str(run.relative_to(plan.project.root) if run.is_relative_to(plan.project.root) else run)
    parts = ["trace2evolve", "show", run_name, event.task_id]
    parts += ["--suite", event.suite] if len(plan.suites) > 1 else []
    parts += ["--trial", str(failure.trial)] if failure is not None and failure.trial else []
    return sanitize_line(shlex.join(parts))


def _components_text(records: list[SimulationEvidence]) -> str:
    worst_record = min(records, key=lambda record: record.reward or 0.0)
    failed_components = [name.value for name, value in worst_record.components.items() if value < 1.0]
    ended_text = f"ended by {worst_record.termination_reason}"
    return f"{ended_text}; below 1: {', '.join(failed_components)}" if failed_components else ended_text


def exit_status(
    result: Run,
    exitstatus: int | pytest.ExitCode,
    *,
    has_other_failures: bool,
    has_task_errors: bool,
) -> tuple[int | pytest.ExitCode, str]:
    """Combine the exit status of a pytest session with the verdict of its run.

    Args:
        result: The result of the run.
        exitstatus: Pytest's own exit status of the session.
        has_other_failures: Whether a test that is not a task failed.
        has_task_errors: Whether a task ended with an error rather than a failure.

    Returns:
        The exit status, and the reason why the run has no verdict or is incomplete; empty if neither applies.
    """
    if result.error:
        return pytest.ExitCode.INTERNAL_ERROR, f"no verdict: {sanitize_line(result.error)}"
    decision, reason = result.decision, ""
    if not result.is_measured:
        cause = f" ({result.exhausted_budget})" if result.exhausted_budget else ""
        reason = f"no simulation was measured{cause}, so this run says nothing about the candidate"
        status: int | pytest.ExitCode = EXIT_STATUS[Decision.INCONCLUSIVE]
        return (status if exitstatus in OVERRIDABLE_STATUSES else exitstatus), reason
    if decision is None and result.exhausted_budget:
        reason = f"the run is incomplete: {result.exhausted_budget}"
        decision = Decision.INCONCLUSIVE if exitstatus == pytest.ExitCode.OK else None
    if exitstatus not in OVERRIDABLE_STATUSES:
        return exitstatus, reason
    if decision is None:
        is_saved = result.has_saved_baselines and not result.is_compared
        if is_saved and not has_other_failures and not has_task_errors:
            return pytest.ExitCode.OK, reason
        return exitstatus, reason
    if has_other_failures:
        return pytest.ExitCode.TESTS_FAILED, reason
    return EXIT_STATUS[decision], reason
