"""Baselines that a run was asked to save: what can be refused before it, and what is written at its end."""

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.evidence.integrity import edited_baseline
from pytest_trace2evolve.evidence.saving import SaveMode, other_trials, save, unmergeable
from pytest_trace2evolve.workflow.judging.ledger import Looks
from pytest_trace2evolve.workflow.judging.verdicts import SuiteOutcome, SuiteRun, evidence
from pytest_trace2evolve.workflow.planning.plan import Plan
from pytest_trace2evolve.workflow.running.origin import provenance_of


def refuse_unmergeable(plan: Plan, looks: Looks) -> None:
    """Refuse before a run to add to baselines that were edited or are not comparable with it.

    Raises:
        ResultsError: a baseline was edited, or something differs; names the file, the field and both values.
    """
    if plan.saving is None or plan.saving.mode is not SaveMode.NEW_ONLY:
        return
    for name in plan.saving.before:
        planned = plan.suites[name]
        path = plan.project.baseline_path(name, plan.saving.name)
        old = read_evidence(path)
        if edited := edited_baseline(looks.entries, name, plan.saving.name, path, old):
            raise ResultsError(str(edited))
        found = list(unmergeable(old, provenance_of(plan, planned), planned.lock.tasks))
        lacking = planned.lock.tasks.keys() - {record.task_id for record in old.simulations}
        if lacking and (unequal := other_trials(old, max(planned.trials_of(one) for one in lacking))):
            found.append(unequal)
        if found:
            raise ResultsError(f"{path}: this run cannot be added to it: {'; '.join(found)}")


def save_baseline(plan: Plan, run: SuiteRun, outcome: SuiteOutcome, looks: Looks) -> str:
    """Save one suite's baseline and record it in the ledger; returns what was done, or why not, for the user.

    Raises:
        OSError: the file or the ledger's entry could not be written.
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
    if done.written is not None:
        looks.record_saved(outcome.name, saving.name, done.written, saving.before.get(outcome.name))
    return f"baseline {done.text}: {path.relative_to(plan.project.root)}"
