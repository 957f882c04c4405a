"""What a trace shows of each habit: whether it was kept, or whether the trace has nothing to say of it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.cases.case import Case
from pytest_trace2evolve.cases.expert import CANCEL, RETURN, STATUS_FOR
from pytest_trace2evolve.cases.families import (
    account_address_inference,
    conditional_detail_retrieval,
    cross_order_ambiguity,
    precondition_verification,
    structured_data_reasoning,
)
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.task import Slot
from pytest_trace2evolve.users.message_parser import parse_message

Trace = Sequence[Message]
Finding = Callable[[Case, Trace], bool | None]


@dataclass(frozen=True)
class Behaviour:
    """What following a rule looks like.

    Attributes:
        kept: Whether a trace shows it; None where the trace has no place for it.
        families: Kinds of case in which there is a place for it.
    """

    kept: Finding
    families: tuple[str, ...]


def _calls(trace: Trace) -> Iterator[tuple[int, ToolCall]]:
    for place, message in enumerate(trace):
        for call in message.tool_calls or ():
            yield place, call


def _writes(trace: Trace) -> list[tuple[int, ToolCall]]:
    """Changes to orders, in vain or not."""
    return [(place, call) for place, call in _calls(trace) if call.name in STATUS_FOR]


def _said(trace: Trace, before: int) -> Iterator[Message]:
    return (one for one in trace[:before] if one.role == "assistant" and one.text)


def _inspected(case: Case, trace: Trace) -> bool | None:
    """Whether every order was read before it was changed."""
    if not (writes := _writes(trace)):
        return None
    read: dict[str, int] = {}
    for place, call in _calls(trace):
        if call.name == "get_order_details":
            read.setdefault(_named(call, "order_id"), place)
    return all(read.get(_named(call, "order_id"), place) < place for place, call in writes)


def _confirmed(case: Case, trace: Trace) -> bool | None:
    """Whether the last word before every change was the customer's, on a question for a yes."""
    if not (writes := _writes(trace)):
        return None
    return all(_asked(trace[:place]) for place, _ in writes)


def _asked(before: Trace) -> bool:
    user = next((place for place in reversed(range(len(before))) if before[place].role == "user"), 0)
    question = next((one for one in reversed(before[:user]) if one.role == "assistant"), None)
    return question is not None and parse_message(question.content or "").confirm


def _completed(case: Case, trace: Trace) -> bool | None:
    """Whether every change that was asked for was tried."""
    wanted = {action.name for action in case.task.actions if _changes(action.name)}
    return wanted <= {call.name for _, call in _calls(trace)} if len(wanted) > 1 else None


def _changes(tool: str) -> bool:
    return not tool.startswith(("find_", "get_", "list_"))


def _surveyed(case: Case, trace: Trace) -> bool | None:
    """Whether all orders of the customer were read."""
    [orders] = [user["orders"] for user in case.task.tables["users"].values()][:1]
    return set(orders) <= _read(trace, "get_order_details", "order_id")


def _read(trace: Trace, tool: str, argument: str) -> set[str]:
    return {_named(call, argument) for _, call in _calls(trace) if call.name == tool}


def _named(call: ToolCall, argument: str) -> str:
    """What an argument names; a model may give anything, lists too."""
    return str(call.arguments.get(argument))


def _account(case: Case, trace: Trace) -> bool | None:
    """Whether the account was fetched."""
    return any(call.name == "get_user_details" for _, call in _calls(trace))


def _once(case: Case, trace: Trace) -> bool | None:
    """Whether no call was made twice."""
    made = [(call.name, json.dumps(call.arguments, sort_keys=True)) for _, call in _calls(trace)]
    return len(made) == len(set(made)) if made else None


def _asks_before(tool: str, slot: Slot) -> Finding:
    def kept(case: Case, trace: Trace) -> bool | None:
        places = [place for place, call in _calls(trace) if call.name == tool]
        if not places:
            return None
        return any(slot in parse_message(one.content or "").asks for one in _said(trace, places[0]))

    return kept


def _compared(case: Case, trace: Trace) -> bool | None:
    """Whether the right variant was chosen."""
    gold = [one.arguments["new_item_ids"] for one in case.task.actions if "new_item_ids" in one.arguments]
    made = [call.arguments.get("new_item_ids") for _, call in _writes(trace)]
    return gold[0] in made if gold else None


def _numbered(case: Case, trace: Trace) -> bool | None:
    """Whether the message after the last change names its order."""
    if not (writes := _writes(trace)):
        return None
    place, call = writes[-1]
    closing = next((one for one in trace[place + 1 :] if one.role == "assistant" and one.text), None)
    return closing is not None and str(call.arguments.get("order_id")) in (closing.content or "")


_ORDER_KNOWN = (precondition_verification.__name__, "policy_edge", "subtle_legal_pressure")
_CANCELS = ("vague_refund_request", "missing_order_id", "subtle_legal_pressure", "policy_edge")

BEHAVIOURS: Mapping[str, Behaviour] = {
    "inspect": Behaviour(_inspected, (precondition_verification.__name__, "indirect_address_change")),
    "confirm": Behaviour(_confirmed, ("missing_order_id", "multi_intent_message")),
    "complete": Behaviour(_completed, ("multi_intent_message", "multi_step_task_completion")),
    "survey": Behaviour(_surveyed, (cross_order_ambiguity.__name__,)),
    "account_always": Behaviour(_account, (*_ORDER_KNOWN, conditional_detail_retrieval.__name__)),
    "account_when_needed": Behaviour(_account, (account_address_inference.__name__,)),
    "once": Behaviour(_once, ("missing_order_id", precondition_verification.__name__)),
    "reason": Behaviour(_asks_before(CANCEL, Slot.REASON), _CANCELS),
    "refund": Behaviour(_asks_before(RETURN, Slot.PAYMENT), ("missing_order_id", "vague_refund_request")),
    "compare": Behaviour(_compared, (structured_data_reasoning.__name__,)),
    "number": Behaviour(_numbered, ("missing_order_id", "policy_edge")),
}
"""By rule, what following it looks like."""
