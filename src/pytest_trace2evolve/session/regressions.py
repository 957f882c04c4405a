"""Finds tasks that passed on the baseline and fail now, and compares their traces with the baseline's."""

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_trace2evolve.evidence.run_folder import RunStore
from pytest_trace2evolve.scoring.failures import find_divergence
from pytest_trace2evolve.scoring.metrics import Trials, is_success
from pytest_trace2evolve.session.plan import Plan, PlannedSuite

if TYPE_CHECKING:
    from pytest_trace2evolve.session.trials import TaskRun


def compare_with_baseline(plan: Plan, planned_suite: PlannedSuite, task_id: str, run: "TaskRun") -> "TaskRun":
    """Add to an explained failure the first difference from a passed trial of the baseline.

    The trace of that trial is one of the run's fresh trials, or one of the run that measured the baseline.
    """
    if run.failure is None or planned_suite.baseline is None:
        return run
    baseline_trials = planned_suite.baseline.trials(task_id, planned_suite.lock.tasks[task_id])
    if baseline_trials is None:
        return run
    suite, run_id = planned_suite.name, planned_suite.baseline.evidence.provenance.run_id
    folders = [plan.project.runs_folder / run_id] if run_id else []
    sources = [(folder / name, baseline_trials.records) for folder in folders for name in ("", suite)]
    if run.fresh_trials is not None:
        sources.insert(0, (plan.fresh_folder(suite, "baseline"), run.fresh_trials.baseline))
    passed_trials = (
        RunStore(folder).read_simulation(record.id)
        for folder, records in sources
        for record in records
        if record.reward is not None and is_success(record.reward)
    )
    old = next(filter(None, passed_trials), None)
    failed_id = next(record.id for record in run.records if record.trial == run.failure.trial)
    new = RunStore(plan.suite_folder(suite)).read_simulation(failed_id)
    if old is None or new is None:
        return run
    return replace(run, failure=replace(run.failure, divergence=find_divergence(old.trace, new.trace)))


def may_have_regressed(planned_suite: PlannedSuite, task_id: str, run: "TaskRun") -> bool:
    """Return whether a task regressed, or could have regressed if its lost trials had been measured."""
    baseline_trials = baseline_trials_of(planned_suite, task_id)
    if baseline_trials is None or not run.records:
        return False
    lost_count = len(baseline_trials.records) - len(baseline_trials.measured_records)
    has_passed_before = 2 * (baseline_trials.pass_count + lost_count) > len(baseline_trials.records)
    return has_passed_before and 2 * Trials(run.records).pass_count <= len(run.records)


def is_suspected(plan: Plan, planned_suite: PlannedSuite, split: str, run: "TaskRun", task_id: str) -> bool:
    """Return whether a task that passed on the baseline but fails now may have regressed by chance.

    Each task is tested alone, at the split's significance level divided by the number of compared tasks.
    """
    baseline_trials, trials = baseline_trials_of(planned_suite, task_id), Trials(run.records)
    if plan.policy is None or not plan.policy.confirms_regressions:
        return False
    if baseline_trials is None or not baseline_trials.passes or trials.passes is not False:
        return False
    from pytest_trace2evolve.gate.confirm import fresh_result
    from pytest_trace2evolve.gate.significance import fisher

    if run.fresh_trials is not None:
        p = fresh_result(run.fresh_trials).p
    else:
        p = float(
            fisher(
                baseline_trials.pass_count,
                len(baseline_trials.measured_records),
                trials.pass_count,
                len(trials.measured_records),
            )
        )
    compared_tasks = sum(
        baseline_trials_of(planned_suite, name) is not None for name in planned_suite.lock.splits[split]
    )
    return p > plan.alpha / compared_tasks


def baseline_trials_of(planned_suite: PlannedSuite, task_id: str) -> Trials | None:
    """Return the baseline's first trials of a task, as many as this run has; None if none ran this content.

    With more trials than the run, a task would pass more than half of them with another chance.
    """
    if planned_suite.baseline is None:
        return None
    trials = planned_suite.baseline.trials(task_id, planned_suite.lock.tasks[task_id])
    if trials is None:
        return None
    records = sorted(trials.records, key=lambda record: record.trial)
    first_trials = Trials(tuple(records[: max(planned_suite.trials_of(task_id), 1)]))
    return first_trials if first_trials.measured_records else None
