"""What the gate said of an adapter goes into its manifest: only a promoted one is routed to."""

from pytest_trace2evolve.adapters import Adapter
from pytest_trace2evolve.candidates import ROUTED, WITH
from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.atomic import write_atomic
from pytest_trace2evolve.records.adapter import MANIFEST, AdapterState, AdapterVerdict
from pytest_trace2evolve.records.run_verdict import RunVerdict
from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.workflow.project import Project


def state_of(decision: Decision | None) -> AdapterState:
    """Where an adapter stands by the gate alone; no verdict says as little as an inconclusive one."""
    return AdapterState.INCONCLUSIVE if decision is None else _STATES[decision]


_STATES = {
    Decision.PROMOTE: AdapterState.PROMOTED,
    Decision.DISCARD: AdapterState.DISCARDED,
    Decision.INCONCLUSIVE: AdapterState.INCONCLUSIVE,
}


def note_verdict(
    project: Project, record: RunVerdict, *, state: AdapterState | None = None, why: str = ""
) -> Adapter | None:
    """Write a run's verdict into the manifest of the adapter that its candidate talked with.

    Args:
        state: Where it stands, where more than the gate decided that; None follows the gate, and a run
            without a verdict leaves it inconclusive.
        why: What beside the gate decided.

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
    decision = record.verdict or Decision.INCONCLUSIVE
    baselines = sorted({one.baseline.name for one in record.suites.values() if one.baseline is not None})
    verdict = AdapterVerdict(
        decision=decision,
        run=record.run,
        candidate=record.candidate.id,
        baseline=", ".join(baselines),
        policy=record.policy,
        why=why,
    )
    told = {"state": state or state_of(decision), "verdict": verdict}
    manifest = adapter.manifest.model_copy(update=told)
    write_atomic(adapter.path / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    return project.adapters[name]
