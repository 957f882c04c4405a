"""What an adapter cost in the capabilities that it was not trained for."""

from collections.abc import Iterator

from pytest_trace2evolve.records.adapter import AdapterManifest, AdapterState, Measured
from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.workflow.judging.adapters import state_of

LOSS = 0.05
"""Of mean reward, that another capability may lose."""


def settle(gate: Decision | None, manifest: AdapterManifest) -> tuple[AdapterState, str]:
    """What an adapter comes to, and what beside the gate decided it.

    A capability that lost more than `LOSS`, by an interval that excludes 0, discards the adapter. One that
    lost more by its estimate alone keeps it from being promoted.
    """
    state = state_of(gate)
    lost = list(losses(manifest))
    if not lost:
        return state, ""
    told = "forgot " + ", ".join(f"{name} ({100 * one.change:+.1f} points)" for name, one in lost)
    if any(one.high is not None and one.high < 0 for _, one in lost):
        return AdapterState.DISCARDED, told.replace("-", "−")
    if state is AdapterState.PROMOTED:
        return AdapterState.INCONCLUSIVE, f"perhaps {told}".replace("-", "−")
    return state, f"perhaps {told}".replace("-", "−")


def losses(manifest: AdapterManifest) -> Iterator[tuple[str, Measured]]:
    """The other capabilities that lost more than `LOSS` by their estimate."""
    for name, one in manifest.heldout.items():
        if name not in manifest.environments and one.change < -LOSS:
            yield name, one
