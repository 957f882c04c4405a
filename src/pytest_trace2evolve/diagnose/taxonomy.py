"""Kinds of failure, read off failed traces: Trace2Evolve's taxonomy."""

from collections.abc import Callable, Mapping, Sequence

from pytest_trace2evolve.diagnose.behavior_features import Conduct, Match, record_of
from pytest_trace2evolve.diagnose.labels import account_address_inference, status_known
from pytest_trace2evolve.records.capability import TAXONOMY, FailureKind, Presence, Shown
from pytest_trace2evolve.records.trace import REGULAR_ENDS, TerminationReason

Found = tuple[int | None, str] | None
"""The place in the trace that shows a kind, and why; None where the failure is not of it."""

EXAMPLES_MOST = 8

_BUDGETS = frozenset(
    {TerminationReason.MAX_STEPS, TerminationReason.TOO_MANY_ERRORS, TerminationReason.TIMEOUT}
)


def under_inspection(conduct: Conduct) -> Found:
    """A record that the expert reads was never read."""
    for action in conduct.unread:
        record = record_of(action.name, action.arguments, conduct.rules)
        return conduct.last_word, f"{action.name} of {record} was never called" if record else action.name
    return None


def cross_order_ambiguity(conduct: Conduct) -> Found:
    """A change was made, or tried, on another record than the one that is meant."""
    for one in conduct.wanted:
        if one.match is Match.OTHER_RECORD and one.act is not None:
            return one.act.message, f"{one.action.name} on {one.act.record}; {one.record} is meant"
    meant = {one.action.name: one.record for one in conduct.wanted if one.match is Match.MISSING}
    for act in conduct.writes:
        if act.error and meant.get(act.call.name, act.record) != act.record:
            return act.message, f"{act.call.name} tried on {act.record}; {meant[act.call.name]} is meant"
    return None


def unsafe_write_path(conduct: Conduct) -> Found:
    """A change broke an invariant, or nobody had called for it."""
    places = {act.message for act in conduct.writes}
    for finding in conduct.found:
        if finding.message in places:
            return finding.message, f"{finding.invariant.value}: {finding.why}"
    for act in conduct.uncalled_for:
        return act.message, f"{act.call.name} on {act.record} was not called for"
    return None


def max_step_loop(conduct: Conduct) -> Found:
    """A budget ended the simulation, or one call was made again and again."""
    reason = conduct.simulation.termination_reason
    if reason not in REGULAR_ENDS and reason in _BUDGETS:
        return max(len(conduct.trace) - 1, 0), f"ended by {reason}"
    for act in conduct.repeated:
        return act.message, f"{act.call.name} was called again and again"
    return None


def partial_success(conduct: Conduct) -> Found:
    """A part was done as it should be."""
    right = [one for one in conduct.wanted if one.match is Match.EXACT]
    told = [one for one in conduct.answers if one.message is not None]
    steps = len(conduct.wanted) + len(conduct.answers)
    if not right and not told:
        return None
    place = (
        right[-1].act.message if right and right[-1].act is not None else told[-1].message if told else None
    )
    return place, f"{len(right) + len(told)} of {steps} steps are right"


def cancelled_order_tracking(conduct: Conduct) -> Found:
    """Work on a record that was cancelled already."""
    for act in conduct.writes:
        if (status := status_known(conduct, act)).startswith("cancel"):
            return act.message, f"{act.call.name} on {act.record}, which was {status!r}"
    return None


def _address(conduct: Conduct) -> Found:
    seen = account_address_inference(conduct)
    return (seen.message, seen.why) if seen.presence is Presence.LACKING else None


KINDS: Mapping[str, Callable[[Conduct], Found]] = {
    "under_inspection": under_inspection,
    "cross_order_ambiguity": cross_order_ambiguity,
    "unsafe_write_path": unsafe_write_path,
    "max_step_loop": max_step_loop,
    "partial_success": partial_success,
    "cancelled_order_tracking": cancelled_order_tracking,
    "account_address_inference": _address,
}


def taxonomy(conducts: Sequence[Conduct]) -> tuple[list[FailureKind], set[str]]:
    """The kinds of failure among failed traces.

    Returns:
        The kinds, the most frequent first, and the ids of the traces that are of one which explains them:
        that a part succeeded does not say why the rest did not.
    """
    failed = [one for one in conducts if not one.passed]
    of: dict[str, list[Shown]] = {kind.name: [] for kind in TAXONOMY}
    for conduct in failed:
        for name, shown in of.items():
            if (found := KINDS[name](conduct)) is not None:
                shown.append(_shown(conduct, *found))
    kinds = [
        FailureKind(
            name=kind.name,
            description=kind.description,
            count=len(of[kind.name]),
            share=len(of[kind.name]) / len(failed) if failed else None,
            examples=tuple(of[kind.name][:EXAMPLES_MOST]),
        )
        for kind in TAXONOMY
    ]
    named = {one.trace for name, shown in of.items() if name != "partial_success" for one in shown}
    return sorted(kinds, key=lambda one: (-one.count, one.name)), named


def _shown(conduct: Conduct, message: int | None, why: str) -> Shown:
    return Shown(
        trace=conduct.simulation.id,
        run=conduct.run,
        task=conduct.task.id,
        trial=conduct.simulation.trial or 0,
        message=message,
        why=why,
    )
