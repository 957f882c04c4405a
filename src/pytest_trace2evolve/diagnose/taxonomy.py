"""Kinds of failure, read off failed traces: Trace2Evolve's taxonomy. A failed trace can be of several."""

from collections.abc import Callable, Mapping, Sequence

from pytest_trace2evolve.diagnose.behavior_features import Behavior, Match, record_of
from pytest_trace2evolve.diagnose.labels import account_address_inference, status_known
from pytest_trace2evolve.records.capability import FailureKind, Presence
from pytest_trace2evolve.records.trace import TerminationReason

Found = tuple[int | None, str] | None
"""The place in the trace that shows a kind, and why; None if the failure is not of it."""

MAX_EXAMPLES = 8

_BUDGETS = frozenset(
    {TerminationReason.MAX_STEPS, TerminationReason.TOO_MANY_ERRORS, TerminationReason.TIMEOUT}
)


def _under_inspection(behavior: Behavior) -> Found:
    for action in behavior.unread:
        record = record_of(action.name, action.arguments, behavior.rules)
        why = f"{action.name} of {record} was never called" if record else action.name
        return behavior.last_agent_message, why
    return None


def _cross_order_ambiguity(behavior: Behavior) -> Found:
    for write in behavior.expected_writes:
        if write.match is Match.OTHER_RECORD and write.call is not None:
            why = f"{write.action.name} on {write.call.record}; {write.record} is meant"
            return write.call.message, why
    meant = {
        write.action.name: write.record for write in behavior.expected_writes if write.match is Match.MISSING
    }
    for call in behavior.writes:
        if call.error and meant.get(call.name, call.record) != call.record:
            return call.message, f"{call.name} tried on {call.record}; {meant[call.name]} is meant"
    return None


def _unsafe_write_path(behavior: Behavior) -> Found:
    places = {call.message for call in behavior.writes}
    for finding in behavior.findings:
        if finding.message in places:
            return finding.message, f"{finding.invariant.value}: {finding.why}"
    for call in behavior.unexpected_writes:
        return call.message, f"{call.name} on {call.record} was not called for"
    return None


def _max_step_loop(behavior: Behavior) -> Found:
    reason = behavior.simulation.termination_reason
    if reason in _BUDGETS:
        return max(len(behavior.trace) - 1, 0), f"ended by {reason}"
    for call in behavior.repeated:
        return call.message, f"{call.name} was called again and again"
    return None


def _partial_success(behavior: Behavior) -> Found:
    exact = [write.call for write in behavior.expected_writes if write.match is Match.EXACT]
    told = [answer.message for answer in behavior.answers if answer.message is not None]
    places = [*told[-1:], *(call.message for call in exact[-1:] if call is not None)]
    steps = len(behavior.expected_writes) + len(behavior.answers)
    return (places[-1], f"{len(exact) + len(told)} of {steps} steps are right") if places else None


def _cancelled_order_tracking(behavior: Behavior) -> Found:
    for call in behavior.writes:
        if (status := status_known(behavior, call)).startswith("cancel"):
            return call.message, f"{call.name} on {call.record}, which was {status!r}"
    return None


def _account_address_inference(behavior: Behavior) -> Found:
    shown = account_address_inference(behavior)
    return (shown.message, shown.why) if shown.presence is Presence.LACKING else None


KINDS: Mapping[str, Callable[[Behavior], Found]] = {
    "under_inspection": _under_inspection,
    "cross_order_ambiguity": _cross_order_ambiguity,
    "unsafe_write_path": _unsafe_write_path,
    "max_step_loop": _max_step_loop,
    "partial_success": _partial_success,
    "cancelled_order_tracking": _cancelled_order_tracking,
    "account_address_inference": _account_address_inference,
}
"""By kind, how it is found in a failed trace."""

_DESCRIPTIONS: Mapping[str, str] = {
    "under_inspection": "A record that the expert reads was never read.",
    "cross_order_ambiguity": "A change was made, or tried, on another record than the one that is meant.",
    "unsafe_write_path": (
        "A change broke an invariant (identity, consent, eligibility, read before write), or nobody had "
        "called for it."
    ),
    "max_step_loop": "A budget ended the simulation, or one call was made three times or more.",
    "partial_success": "A part of what was asked for was done as it should be, and the rest was not.",
    "cancelled_order_tracking": (
        "The agent worked on an order that it knew, or could have known, to be cancelled."
    ),
    "account_address_inference": "An address that stands in the records was not written, or another one was.",
}


def taxonomy(behaviors: Sequence[Behavior]) -> tuple[list[FailureKind], set[str]]:
    """The kinds of failure among failed traces.

    Returns:
        The kinds, the most frequent first, and the ids of the traces that a kind explains: that a part
        succeeded does not say why the rest did not.
    """
    failed = [behavior for behavior in behaviors if not behavior.passed]
    kinds, explained = [], set()
    for name, find in KINDS.items():
        shown = [behavior.shown(*found) for behavior in failed if (found := find(behavior)) is not None]
        if name != "partial_success":
            explained |= {one.trace for one in shown}
        kinds.append(
            FailureKind(
                name=name,
                description=_DESCRIPTIONS[name],
                count=len(shown),
                share=len(shown) / len(failed) if failed else None,
                examples=tuple(shown[:MAX_EXAMPLES]),
            )
        )
    return sorted(kinds, key=lambda kind: (-kind.count, kind.name)), explained
