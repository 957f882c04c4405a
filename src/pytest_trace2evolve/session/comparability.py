"""Checks before a comparison: both sides are comparable, and recorded evidence was not edited."""

from collections import Counter
from collections.abc import Iterator

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.evidence.integrity import (
    check_baseline,
    check_evidence,
    check_traces,
    knows_evidence,
    knows_traces,
    unverified_baseline,
)
from pytest_trace2evolve.evidence.saving import SaveMode, other_trials, unmergeable
from pytest_trace2evolve.gate.comparable import agent_changes, differences, unequal_trials, unrecorded
from pytest_trace2evolve.project.candidates import source_of
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.evidence import ComparedSides, code_differences, side_of
from pytest_trace2evolve.session.baselines import Baseline
from pytest_trace2evolve.session.ledger import ProjectLedger
from pytest_trace2evolve.session.plan import Plan, PlannedSuite
from pytest_trace2evolve.session.provenance import provenance_of


def check_comparable(plan: Plan, planned: PlannedSuite) -> list[str]:
    """Check that the recorded facts of both sides allow a comparison.

    Returns:
        Notes on facts that only one side recorded, and on changed code of the agent.

    Raises:
        ResultsError: a fact that must be equal differs, or the agents differ and the candidate does not
            declare the change, or the policy requires equal numbers of trials and they differ.
    """
    assert planned.baseline is not None
    old, new = planned.baseline.evidence, provenance_of(plan, planned)
    digests = {record.task_id: record.task_digest for record in old.simulations}
    found = list(differences(old.provenance, new, baseline_tasks=digests, candidate_tasks=planned.lock.tasks))
    if found:
        raise ResultsError(
            f"baseline {planned.baseline.name!r} of {planned.name!r} and this run cannot be compared: "
            + "; ".join(found)
        )
    changes = agent_changes(old.provenance, new)
    declared = declared_changes(plan, planned.baseline)
    if undeclared := [kind for kind in changes if kind not in declared]:
        phrases = "; ".join(phrase for kind in undeclared for phrase in changes[kind])
        raise ResultsError(
            f"baseline {planned.baseline.name!r} of {planned.name!r} and this run are of different agents: "
            f"{phrases}; measure a baseline with this agent, or declare the change in the front matter of "
            f"{source_of(plan.candidate.id)}: changes: [{', '.join(undeclared)}]"
        )
    if plan.policy is not None and plan.policy.equal_trials:
        counts = Counter(record.task_id for record in old.simulations)
        unequal = unequal_trials(counts, {name: planned.trials_of(name) for name in counts})
        if unequal:
            raise ResultsError(f"{planned.name}: policy {plan.policy.name!r}: {unequal}")
    notes = []
    if missing := unrecorded(old.provenance, new):
        notes.append(f"{planned.name}: {missing}")
    if changed := list(code_differences(old.provenance.agent.code, new.agent.code)):
        notes.append(f"{planned.name}: the agent's code differs from the baseline's: {', '.join(changed)}")
    return notes


def declared_changes(plan: Plan, baseline: Baseline) -> frozenset[str]:
    """The agent changes that the candidate and its ancestors declare since the baseline's candidate."""
    origin = baseline.evidence.provenance.candidate
    found: set[str] = set()
    for candidate in plan.lineage:
        if origin is not None and candidate.id == origin.id:
            break
        found |= candidate.declares
    return frozenset(found)


def compared(plan: Plan, planned: PlannedSuite) -> ComparedSides | None:
    """The two sides of a suite's comparison, for reports; None without a baseline."""
    if planned.baseline is None:
        return None
    old, new = planned.baseline.evidence.provenance, provenance_of(plan, planned)
    declared = declared_changes(plan, planned.baseline)
    return ComparedSides(
        baseline=side_of(old),
        candidate=side_of(new),
        declared=tuple(kind for kind in agent_changes(old, new) if kind in declared),
    )


def check_unedited(plan: Plan, ledger: ProjectLedger) -> Iterator[str]:
    """Compare replayed files, and the baselines of a gated run, with the ledger.

    Returns:
        Notes on evidence that the ledger cannot verify.

    Raises:
        ResultsError: a baseline changed since it was saved or since another run used it, or a run's folder
            changed since the run ended.
    """
    is_gated = plan.policy is not None
    for name, planned in plan.suites.items():
        baseline = planned.baseline if is_gated else None
        for file in planned.recorded.files if planned.recorded else ():
            check_traces(ledger.entries, file.run, file.path)
        if baseline is not None and not baseline.saved:
            for path, run in baseline.files:
                check_traces(ledger.entries, run, path)
            if not baseline.files and baseline.path is not None:
                check_evidence(ledger.entries, name, baseline.path, baseline.all_evidence)
        sealed = any(plan.project.splits[split].role is Role.GATE for split in planned.lock.splits)
        decides = is_gated or plan.saving is not None
        if sealed and decides and (files := unrecorded_files(planned, ledger)):
            yield (
                f"{name}: not recorded by this project's ledger, so an edit cannot be found: "
                f"{', '.join(files)}"
            )
        if baseline is None or not baseline.saved:
            continue
        assert baseline.path is not None
        check_baseline(ledger.entries, name, baseline.name, baseline.path, baseline.all_evidence)
        if note := unverified_baseline(
            ledger.entries, name, baseline.name, baseline.all_evidence, planned.lock.splits
        ):
            yield f"{name}: {note}"


def unrecorded_files(planned: PlannedSuite, ledger: ProjectLedger) -> list[str]:
    """The names of a suite's replayed files and unsaved baselines whose content the ledger does not know."""
    files = [(file.path, file.run) for file in planned.recorded.files] if planned.recorded else []
    baseline = planned.baseline if planned.baseline is not None and not planned.baseline.saved else None
    if baseline is not None:
        files += baseline.files
    names = [path.name for path, run in files if not knows_traces(ledger.entries, run)]
    if baseline is not None and not baseline.files:
        is_known_evidence = knows_evidence(ledger.entries, planned.name, baseline.all_evidence)
        names += [] if is_known_evidence else [baseline.name]
    return list(dict.fromkeys(names))


def check_mergeable(plan: Plan, ledger: ProjectLedger) -> None:
    """Check that a run can be added to the baselines that it extends.

    Raises:
        ResultsError: a baseline was edited or differs from the run. The message names the file, the field
            and both values.
    """
    if plan.saving is None or plan.saving.mode is not SaveMode.NEW_ONLY:
        return
    for name in plan.saving.before:
        planned = plan.suites[name]
        path = plan.project.baseline_path(name, plan.saving.name)
        old = read_evidence(path)
        check_baseline(ledger.entries, name, plan.saving.name, path, old)
        found = list(unmergeable(old, provenance_of(plan, planned), planned.lock.tasks))
        lacking = planned.lock.tasks.keys() - {record.task_id for record in old.simulations}
        if lacking and (unequal := other_trials(old, max(map(planned.trials_of, lacking)))):
            found.append(unequal)
        if found:
            raise ResultsError(f"{path}: this run cannot be added to it: {'; '.join(found)}")
