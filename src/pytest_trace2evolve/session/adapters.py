"""What the gate said of an adapter goes into its manifest: only a promoted one is routed to.

Where an adapter stands: by the gate, and by what it cost in capabilities that it was not trained for.
"""

from collections.abc import Iterator, Sequence

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.project.adapters import Adapter
from pytest_trace2evolve.project.candidates import ROUTED, WITH
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import (
    MANIFEST,
    AdapterManifest,
    AdapterState,
    AdapterVerdict,
    RewardChange,
)
from pytest_trace2evolve.records.capability import BUILT_IN_CAPABILITIES
from pytest_trace2evolve.records.verdict import Decision, Goal, RunVerdict
from pytest_trace2evolve.utils.files import write_atomic

LOSS = 0.05
"""Of mean reward, that another capability may lose."""


_STATES = {
    Decision.PROMOTE: AdapterState.PROMOTED,
    Decision.DISCARD: AdapterState.DISCARDED,
    Decision.INCONCLUSIVE: AdapterState.INCONCLUSIVE,
}


def state_of(decision: Decision | None) -> AdapterState:
    """Where an adapter stands by the gate alone; no verdict says as little as an inconclusive one."""
    return AdapterState.INCONCLUSIVE if decision is None else _STATES[decision]


def settle(gate: Decision | None, manifest: AdapterManifest) -> tuple[AdapterState, str]:
    """What an adapter comes to, and what beside the gate decided it.

    A capability that lost more than `LOSS`, by an interval that excludes 0, discards the adapter. One that
    lost more by its estimate alone keeps it from being promoted, and so does that none was measured.
    """
    state = state_of(gate)
    lost = list(losses(manifest))
    shown = [(name, one) for name, one in lost if one.high is not None and one.high < 0]
    perhaps = [pair for pair in lost if pair not in shown]
    parts = [f"forgot {_told(shown)}"] if shown else []
    parts += [f"perhaps forgot {_told(perhaps)}"] if perhaps else []
    parts += ["was measured in no other environment"] if unmeasured(manifest) else []
    if shown:
        state = AdapterState.DISCARDED
    elif parts and state is AdapterState.PROMOTED:
        state = AdapterState.INCONCLUSIVE
    return state, "; ".join(parts)


def _told(lost: Sequence[tuple[str, RewardChange]]) -> str:
    named = [f"{name} ({100 * one.change:+.1f} points)" for name, one in lost]
    return ", ".join(named).replace("-", "−")


def losses(manifest: AdapterManifest) -> Iterator[tuple[str, RewardChange]]:
    """The other capabilities that lost more than `LOSS` by their estimate."""
    for name, one in manifest.heldout.items():
        if name not in manifest.environments and one.change < -LOSS:
            yield name, one


def unmeasured(manifest: AdapterManifest) -> bool:
    """Whether what it cost is unknown: trained with `--heldout-others 0`, and not for all there is."""
    others = {one.name for one in BUILT_IN_CAPABILITIES} - set(manifest.environments)
    return bool(others) and set(manifest.heldout) <= set(manifest.environments)


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
