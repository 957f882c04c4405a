"""Whether a trace follows the behavior that a rule asks for, if there was an occasion for it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.cases.case import Case
from pytest_trace2evolve.cases.expert import CANCEL, REQUIRED_STATUS, RETURN
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.task import Slot
from pytest_trace2evolve.users.message_parser import parse_message

Trace = Sequence[Message]


@dataclass(frozen=True)
class Behavior:
    """The behavior that a rule asks for.

    Attributes:
        followed: Whether a trace shows it; None if there was no occasion for it.
        families: Kinds of case with an occasion for it.
    """

    followed: Callable[[Case, Trace], bool | None]
    families: tuple[str, ...]


def _calls(trace: Trace, *tools: str) -> Iterator[tuple[int, ToolCall]]:
    """Calls of these tools with their places, whether they succeeded or not."""
    for place, message in enumerate(trace):
        for call in message.tool_calls or ():
            if call.name in tools:
                yield place, call


def _changes(trace: Trace) -> list[tuple[int, ToolCall]]:
    return list(_calls(trace, *REQUIRED_STATUS))


def _argument(call: ToolCall, name: str) -> str:
    """An argument as text; a model may give anything, lists too."""
    return str(call.arguments.get(name))


def _inspects(case: Case, trace: Trace) -> bool | None:
    """Every order is read before it is changed."""
    changes = _changes(trace)
    if not changes:
        return None
    read: dict[str, int] = {}
    for place, call in _calls(trace, "get_order_details"):
        read.setdefault(_argument(call, "order_id"), place)
    return all(read.get(_argument(call, "order_id"), place) < place for place, call in changes)


def _confirms(case: Case, trace: Trace) -> bool | None:
    """The last word before every change is the customer's, on a question for a yes."""

    def confirmed(before: Trace) -> bool:
        users = [place for place, message in enumerate(before) if message.role == "user"]
        earlier = before[: users[-1]] if users else ()
        question = next((message for message in reversed(earlier) if message.role == "assistant"), None)
        return question is not None and parse_message(question.content or "").asks_for_confirmation

    changes = _changes(trace)
    return all(confirmed(trace[:place]) for place, _ in changes) if changes else None


def _acts_at_once(case: Case, trace: Trace) -> bool | None:
    """A change is made without the customer's yes."""
    confirmed = _confirms(case, trace)
    return None if confirmed is None else not confirmed


def _completes(case: Case, trace: Trace) -> bool | None:
    """Every requested change is attempted."""
    reads = ("find_", "get_", "list_")
    wanted = {action.name for action in case.task.actions if not action.name.startswith(reads)}
    return all(any(_calls(trace, name)) for name in wanted) if len(wanted) > 1 else None


def _surveys(case: Case, trace: Trace) -> bool | None:
    """All orders of the customer are read."""
    [orders] = [user["orders"] for user in case.task.tables["users"].values()][:1]
    return set(orders) <= {_argument(call, "order_id") for _, call in _calls(trace, "get_order_details")}


def _fetches_account(case: Case, trace: Trace) -> bool | None:
    return any(_calls(trace, "get_user_details"))


def _calls_once(case: Case, trace: Trace) -> bool | None:
    """No call is made twice."""
    calls = [call for message in trace for call in message.tool_calls or ()]
    different = {(call.name, json.dumps(call.arguments, sort_keys=True)) for call in calls}
    return len(different) == len(calls) if calls else None


def _compares(case: Case, trace: Trace) -> bool | None:
    """The right variant is chosen."""
    changes = [action.arguments for action in case.task.actions]
    gold = [arguments["new_item_ids"] for arguments in changes if "new_item_ids" in arguments]
    chosen = [call.arguments.get("new_item_ids") for _, call in _changes(trace)]
    return gold[0] in chosen if gold else None


def _numbers(case: Case, trace: Trace) -> bool | None:
    """The message after the last change names its order."""
    changes = _changes(trace)
    if not changes:
        return None
    place, call = changes[-1]
    later = (message for message in trace[place + 1 :] if message.role == "assistant" and message.text)
    closing = next(later, None)
    return closing is not None and _argument(call, "order_id") in (closing.content or "")


def _asks_before(tool: str, slot: Slot) -> Callable[[Case, Trace], bool | None]:
    """The agent asks for something before it calls a tool."""

    def followed(case: Case, trace: Trace) -> bool | None:
        places = [place for place, _ in _calls(trace, tool)]
        if not places:
            return None
        said = (message for message in trace[: places[0]] if message.role == "assistant" and message.text)
        return any(slot in parse_message(message.content or "").asked_slots for message in said)

    return followed


def _is_exact(case: Case, trace: Trace) -> bool | None:
    """Each change is of exactly the items, or to the payment method, that the expert chooses."""
    compared = ("item_ids", "payment_method_id")
    gold = {
        (action.name, name): action.arguments[name]
        for action in case.task.actions
        for name in compared
        if name in action.arguments
    }
    made = [
        (call.arguments.get(name), gold[call.name, name])
        for _, call in _changes(trace)
        for name in compared
        if (call.name, name) in gold
    ]
    return all(_as_set(chosen) == _as_set(expected) for chosen, expected in made) if made else None


def _as_set(value: object) -> set[str]:
    return set(map(str, value)) if isinstance(value, list) else {str(value)}


def _declines(case: Case, trace: Trace) -> bool | None:
    """Nothing is changed if the policy allows nothing of what was asked for."""
    is_forbidden = not any(action.name in REQUIRED_STATUS for action in case.task.actions)
    return not _changes(trace) if is_forbidden else None


def _states_figure(case: Case, trace: Trace) -> bool | None:
    """The requested figure is said, and a change that depends on one is made only if it should be."""
    said = " ".join(message.content or "" for message in trace if message.role == "assistant")
    wanted = {action.name for action in case.task.actions if action.name in REQUIRED_STATUS}
    criteria = case.task.evaluation_criteria
    figures = (criteria.communicate_info or []) if criteria else []
    return {call.name for _, call in _changes(trace)} == wanted and all(figure in said for figure in figures)


_ORDER_KNOWN = ("precondition_verification", "policy_edge", "subtle_legal_pressure")
_CANCELS = ("vague_refund_request", "missing_order_id", "subtle_legal_pressure", "policy_edge")

BEHAVIORS: Mapping[str, Behavior] = {
    "inspect": Behavior(_inspects, ("precondition_verification", "indirect_address_change")),
    "confirm": Behavior(_confirms, ("missing_order_id", "multi_intent_message")),
    "complete": Behavior(_completes, ("multi_intent_message", "multi_step_task_completion")),
    "survey": Behavior(_surveys, ("cross_order_ambiguity",)),
    "account_always": Behavior(_fetches_account, (*_ORDER_KNOWN, "conditional_detail_retrieval")),
    "account_when_needed": Behavior(_fetches_account, ("account_address_inference",)),
    "once": Behavior(_calls_once, ("missing_order_id", "precondition_verification")),
    "reason": Behavior(_asks_before(CANCEL, Slot.REASON), _CANCELS),
    "refund": Behavior(_asks_before(RETURN, Slot.PAYMENT), ("missing_order_id", "vague_refund_request")),
    "compare": Behavior(_compares, ("structured_data_reasoning",)),
    "number": Behavior(_numbers, ("missing_order_id", "policy_edge")),
    "exact": Behavior(_is_exact, ("tool_calling_precision", "multi_intent_message")),
    "decline": Behavior(_declines, ("policy_edge",)),
    "at_once": Behavior(_acts_at_once, _ORDER_KNOWN),
    "figure": Behavior(_states_figure, ("conditional_detail_retrieval",)),
}
"""The behavior of each rule."""
