"""Sums a run up, from its plan and the outcomes of its suites."""

from collections.abc import Sequence

from pytest_trace2evolve.records.verdict import Decision, RunSummary, SuiteSummary
from pytest_trace2evolve.session.evidence_changes import evidence_changes
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.session.verdicts import SuiteOutcome

COPY_NOTE = "suites or tasks differ: the tasks of the commit are compared, and new ones only measured"


def summarize_run(
    plan: Plan,
    outcomes: Sequence[SuiteOutcome],
    *,
    notes: Sequence[str],
    decision: Decision | None,
    trouble: str = "",
    used: str = "",
    command: tuple[str, ...] = (),
    against: str | None = None,
) -> RunSummary:
    """Return the summary of a run.

    Args:
        notes: Notes for the user, a line each.
        decision: The verdict over all suites.
        trouble: Why the run decides nothing; empty if it decides.
        used: The usage of the run's models.
        command: The command that started the run.
        against: The commit with which the evidence that judges the run is compared; None for no commit.
    """
    suites = []
    for outcome in outcomes:
        planned_suite = plan.suites[outcome.name]
        baseline, tasks = planned_suite.baseline, 0
        if baseline is not None and baseline.is_saved and planned_suite.recorded_runs is None:
            measured = baseline.evidence.provenance.candidate
            tasks = len(planned_suite.lock.tasks) if measured and measured.id == baseline.name else 0
        suites.append(
            SuiteSummary(
                name=outcome.name,
                baseline=None if baseline is None else baseline.name,
                tasks=tasks,
                reason=outcome.reason,
                verdicts=outcome.verdicts,
                left_out=outcome.left_out,
                compared=outcome.compared,
            )
        )
    return RunSummary(
        candidate=plan.candidate.id,
        decision=decision,
        trouble=trouble,
        suites=tuple(suites),
        changes=() if against is None else evidence_changes(plan.project, against),
        notes=(*notes, COPY_NOTE) if plan.project.tasks_root != plan.project.root else tuple(notes),
        used=used,
        command=command,
        reuses=plan.live is not None and plan.live.function is None and not plan.is_fresh,
        run_id=plan.run_id,
        evidence=_evidence_folder(plan),
    )


def _evidence_folder(plan: Plan) -> str:
    """Return the run's folder, relative to the project if it is inside the project."""
    try:
        return str(plan.run_folder.relative_to(plan.project.root))
    except ValueError:
        return str(plan.run_folder)
