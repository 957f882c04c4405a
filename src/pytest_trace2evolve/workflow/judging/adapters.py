"""What the gate said of an adapter goes into its manifest: only a promoted one is routed to."""

from pytest_trace2evolve.adapters import Adapter
from pytest_trace2evolve.candidates import ROUTED, WITH
from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.atomic import write_atomic
from pytest_trace2evolve.records.adapter import MANIFEST, AdapterVerdict
from pytest_trace2evolve.records.run_verdict import RunVerdict
from pytest_trace2evolve.records.verdict import Decision, Goal
from pytest_trace2evolve.workflow.judging.forgetting import settle
from pytest_trace2evolve.workflow.project import Project


def gate_of(record: RunVerdict) -> Decision | None:
    """What the gate said; a run that was not whole, or claims nothing, promotes nothing."""
    idle = record.partial or record.goal is Goal.NO_REGRESSION
    return Decision.INCONCLUSIVE if idle and record.verdict is Decision.PROMOTE else record.verdict


def note_verdict(project: Project, record: RunVerdict) -> Adapter | None:
    """Write a run's verdict into the manifest of the adapter that its candidate talked with.

    Where it stands follows from the gate and from what it forgot; a run without a verdict leaves it
    inconclusive.

    Returns:
        The adapter as it is now; None where the candidate talked with none of its own.

    Raises:
        AdapterError: it is gone or damaged.
        CandidateError: the candidate's file is gone or broken.
        ResultsError: the candidate or the adapter has changed since the run.
        OSError: the manifest cannot be written.
    """
    _, _, name = record.candidate.id.partition(WITH)
    if name in ("", ROUTED):
        return None
    adapter = project.adapters[name]
    now = project.candidates[record.candidate.id].digest
    if now != record.candidate.digest:
        raise ResultsError(
            f"{adapter.path}: it, or the candidate's text, has changed since run {record.run}: it was "
            f"{record.candidate.digest} and is {now}; run it again"
        )
    gate = gate_of(record)
    state, why = settle(gate, adapter.manifest)
    baselines = sorted({one.baseline.name for one in record.suites.values() if one.baseline is not None})
    verdict = AdapterVerdict(
        decision=gate or Decision.INCONCLUSIVE,
        run=record.run,
        candidate=record.candidate.id,
        baseline=", ".join(baselines),
        policy=record.policy,
        why=why,
        time=record.time,
    )
    manifest = adapter.manifest.model_copy(update={"state": state, "verdict": verdict})
    write_atomic(adapter.path / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    return project.adapters[name]
