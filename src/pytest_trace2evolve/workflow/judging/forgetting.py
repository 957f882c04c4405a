"""Where an adapter stands: by the gate, and by what it cost in capabilities that it was not trained for."""

from collections.abc import Iterator, Sequence

from pytest_trace2evolve.capabilities.dictionary import BUILT_IN
from pytest_trace2evolve.records.adapter import AdapterManifest, AdapterState, Measured
from pytest_trace2evolve.records.verdict import Decision

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


def _told(lost: Sequence[tuple[str, Measured]]) -> str:
    named = [f"{name} ({100 * one.change:+.1f} points)" for name, one in lost]
    return ", ".join(named).replace("-", "−")


def losses(manifest: AdapterManifest) -> Iterator[tuple[str, Measured]]:
    """The other capabilities that lost more than `LOSS` by their estimate."""
    for name, one in manifest.heldout.items():
        if name not in manifest.environments and one.change < -LOSS:
            yield name, one


def unmeasured(manifest: AdapterManifest) -> bool:
    """Whether what it cost is unknown: trained with `--heldout-others 0`, and not for all there is."""
    others = {one.name for one in BUILT_IN} - set(manifest.environments)
    return bool(others) and set(manifest.heldout) <= set(manifest.environments)
