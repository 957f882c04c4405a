"""Baselines that a run was asked to save: what can be refused before it, and what is written at its end."""

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.evidence.saving import SaveMode, other_trials, save, unmergeable
from pytest_trace2evolve.workflow.judging.verdicts import SuiteOutcome, SuiteRun, evidence
from pytest_trace2evolve.workflow.planning.plan import Plan
from pytest_trace2evolve.workflow.running.origin import provenance_of


def refuse_unmergeable(plan: Plan) -> None:
    """Refuse before a run to add to baselines that are not comparable with it.

    Raises:
        ResultsError: something differs; names the file, the field and both values.
    """
    if plan.saving is None or plan.saving.mode is not SaveMode.NEW_ONLY:
        return
    for name in plan.saving.before:
        planned = plan.suites[name]
        path = plan.project.baseline_path(name, plan.saving.name)
        old = read_evidence(path)
        found = list(unmergeable(old, provenance_of(plan, planned), planned.lock.tasks))
        lacking = planned.lock.tasks.keys() - {record.task_id for record in old.simulations}
        if lacking and (unequal := other_trials(old, max(planned.trials_of(one) for one in lacking))):
            found.append(unequal)
        if found:
            raise ResultsError(f"{path}: this run cannot be added to it: {'; '.join(found)}")


def save_baseline(plan: Plan, run: SuiteRun, outcome: SuiteOutcome) -> str:
    """Save one suite's baseline; returns what was done, or why not, for the user.

    Raises:
        OSError: it could not be written; what was there before is as it was.
    """
    assert plan.saving is not None
    saving = plan.saving
    path = plan.project.baseline_path(outcome.name, saving.name)
    if not outcome.whole or not run.records:
        return f"baseline {saving.name!r} of {outcome.name} was not saved: the run is partial"
    try:
        done = save(
            path,
            evidence(plan, run),
            saving.mode,
            before=saving.before.get(outcome.name),
            tasks=run.planned.lock.tasks,
            root=plan.project.root,
        )
    except ResultsError as error:
        return f"baseline {saving.name!r} of {outcome.name} was not saved: {error}"
    return f"baseline {done}: {path.relative_to(plan.project.root)}"
