"""Agents with planted deficits: they lack a capability on purpose, to measure whether a diagnosis finds it.

They know the gold actions of a synthetic case, and omit or spoil what the capability is about. A slip shows
that the capability is lacking and does no harm, since the agent guesses right. Harm spoils the outcome too.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

from pytest_trace2evolve.agents.reference import current_turn, outcome_text
from pytest_trace2evolve.errors import ParticipantError
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.task import Action, Script, Task, Turn


class Deficit(StrEnum):
    """How an agent lacks a capability. If it has no wrong way that does harm, only a slip remains."""

    SLIP = "slip"
    HARM = "harm"


Calls = list[Action]
"""What the agent does in one turn of the customer."""

_ORDER, _PRODUCT, _USER = "get_order_details", "get_product_details", "get_user_details"


class DeficientAgent:
    """Serves one simulation of a synthetic case of the support world.

    Args:
        task: The case's task.
        script: Its customer's script.
        lacks: By capability, how it is lacking; the others are shown.
        seed: Chooses among wrong ways.
        breaks: Whether it breaks off at the end, after everything was done: a failure without a lacking
            capability.
    """

    name = "deficient"

    def __init__(
        self, task: Task, script: Script, lacks: Mapping[str, Deficit], *, seed: int = 0, breaks: bool = False
    ) -> None:
        self._script = script
        self._breaks = breaks
        spoiler = _Spoiler(task, random.Random(seed))
        self._calls: list[Calls] = []
        self._outcomes: list[str] = []
        rest = list(task.actions)
        for turn in script.turns:
            calls, rest = rest[: turn.actions], rest[turn.actions :]
            for name, spoil in SPOILERS.items():
                if name in lacks:
                    calls = spoil(spoiler, calls, turn, lacks[name])
            self._calls.append(calls)
            silent = lacks.get("conditional_detail_retrieval") is Deficit.HARM
            self._outcomes.append(outcome_text(_without_answers(turn) if silent else turn))
        self._place = 0
        self._left = list(self._calls[0])

    async def respond(self, history: Sequence[Message]) -> Message:
        """The next call of the turn, or what came of it.

        Raises:
            ParticipantError: it breaks off.
        """
        place = current_turn(self._script, history)
        if place != self._place:
            self._place, self._left = place, list(self._calls[place])
        if self._left:
            action = self._left.pop(0)
            call = ToolCall(id=f"call_{len(history)}", name=action.name, arguments=action.arguments)
            return Message(role="assistant", tool_calls=[call])
        if self._breaks and place == len(self._calls) - 1:
            raise ParticipantError("the agent broke off, as it was told to")
        return Message(role="assistant", content=self._outcomes[place])


def _without_answers(turn: Turn) -> Turn:
    requests = tuple(request.model_copy(update={"answer": ""}) for request in turn.requests)
    return turn.model_copy(update={"requests": requests})


def _writes(action: Action) -> bool:
    return not action.name.startswith(("find_", "get_", "list_"))


def _with(action: Action, **changed: Any) -> Action:
    return Action(name=action.name, arguments={**action.arguments, **changed})


class _Spoiler:
    """Wrong ways on one case."""

    def __init__(self, task: Task, random: random.Random) -> None:
        self._tables: Mapping[str, Any] = task.tables
        self._random = random
        self._has_written = False

    def precondition(self, calls: Calls, turn: Turn, deficit: Deficit) -> Calls:
        """Write unread; with harm, what the order's status does not allow."""
        written = {str(action.arguments.get("order_id")) for action in calls if _writes(action)}
        if not written or any(request.answer for request in turn.requests):
            return calls
        kept = [
            action
            for action in calls
            if not (action.name == _ORDER and action.arguments.get("order_id") in written)
        ]
        if deficit is Deficit.SLIP:
            return kept
        return [
            self._against_status(action) if _writes(action) and "order_id" in action.arguments else action
            for action in kept
        ]

    def _against_status(self, action: Action) -> Action:
        order_id = action.arguments["order_id"]
        order = self._tables["orders"][order_id]
        if order["status"] == "delivered":
            arguments = {"order_id": order_id, "reason": "no longer needed"}
            return Action(name="cancel_pending_order", arguments=arguments)
        paid = order["payment_history"][0]["payment_method_id"]
        items = [item["item_id"] for item in order["items"]]
        arguments = {"order_id": order_id, "item_ids": items, "payment_method_id": paid}
        return Action(name="return_delivered_order_items", arguments=arguments)

    def structured(self, calls: Calls, turn: Turn, deficit: Deficit) -> Calls:
        """Choose a variant without having read any; with harm, another one."""
        if not any("new_item_ids" in action.arguments for action in calls):
            return calls
        kept = [action for action in calls if action.name != _PRODUCT]
        if deficit is Deficit.SLIP:
            return kept
        return [
            self._with_other_variants(action) if "new_item_ids" in action.arguments else action
            for action in kept
        ]

    def _with_other_variants(self, action: Action) -> Action:
        order = self._tables["orders"][action.arguments["order_id"]]
        items = {item["item_id"]: item for item in order["items"]}
        chosen = []
        pairs = zip(action.arguments["item_ids"], action.arguments["new_item_ids"], strict=True)
        for old, new in pairs:
            variants = self._tables["products"][items[old]["product_id"]]["variants"]
            others = [
                item_id
                for item_id in variants
                if variants[item_id]["available"] and item_id not in (old, new)
            ]
            chosen.append(self._random.choice(others) if others else new)
        return _with(action, new_item_ids=chosen)

    def precision(self, calls: Calls, turn: Turn, deficit: Deficit) -> Calls:
        """A call with rejected arguments before the right one; with harm, a wrong one instead."""
        spoiled: Calls = []
        for action in calls:
            wrong = self._rejected(action) if deficit is Deficit.SLIP else self._inexact(action)
            if wrong is not None:
                spoiled.append(wrong)
            if wrong is None or deficit is Deficit.SLIP:
                spoiled.append(action)
        return spoiled

    def _rejected(self, action: Action) -> Action | None:
        if "item_ids" in action.arguments:
            new = {"new_item_ids": ["0000000001"]} if "new_item_ids" in action.arguments else {}
            return _with(action, item_ids=["0000000000"], **new)
        for name, value in (("reason", "whatever"), ("payment_method_id", "credit_card_0")):
            if name in action.arguments:
                return _with(action, **{name: value})
        return None

    def _inexact(self, action: Action) -> Action | None:
        if action.name == "cancel_pending_order":
            reasons = {"no longer needed": "ordered by mistake", "ordered by mistake": "no longer needed"}
            other = reasons.get(action.arguments["reason"])
            return None if other is None else _with(action, reason=other)
        if len(action.arguments.get("item_ids", [])) < 2:
            return None
        lists = {
            name: action.arguments[name] for name in ("item_ids", "new_item_ids") if name in action.arguments
        }
        return _with(action, **{name: items[1:] for name, items in lists.items()})

    def address(self, calls: Calls, turn: Turn, deficit: Deficit) -> Calls:
        """Write an address that was read nowhere; with harm, the one that the order has."""
        said = f" {turn.says} ".lower()
        about = [
            action
            for action in calls
            if "address1" in action.arguments and str(action.arguments["address1"]).lower() not in said
        ]
        if not about:
            return calls
        own = {action.arguments.get("order_id") for action in about}
        kept = [
            action
            for action in calls
            if action.name != _USER and (action.name != _ORDER or action.arguments["order_id"] in own)
        ]
        if deficit is Deficit.SLIP:
            return kept
        return [
            _with(action, **self._tables["orders"][action.arguments["order_id"]]["address"])
            if action in about and "order_id" in action.arguments
            else action
            for action in kept
        ]

    def conditional(self, calls: Calls, turn: Turn, deficit: Deficit) -> Calls:
        """Answer without having fetched the record with the answer; with harm, nothing is answered either."""
        if not any(request.answer for request in turn.requests):
            return calls
        return [action for action in calls if action.name != _ORDER]

    def multi_step(self, calls: Calls, turn: Turn, deficit: Deficit) -> Calls:
        """Stop after the first write of all turns; there is no harmless way to do that."""
        if deficit is Deficit.SLIP:
            return calls
        kept = []
        for action in calls:
            if not (_writes(action) and self._has_written):
                kept.append(action)
            self._has_written = self._has_written or _writes(action)
        return kept


SPOILERS: Mapping[str, Callable[[_Spoiler, Calls, Turn, Deficit], Calls]] = {
    "precondition_verification": _Spoiler.precondition,
    "structured_data_reasoning": _Spoiler.structured,
    "multi_step_task_completion": _Spoiler.multi_step,
    "account_address_inference": _Spoiler.address,
    "conditional_detail_retrieval": _Spoiler.conditional,
    # The last: what it adds is no call that another could still spoil.
    "tool_calling_precision": _Spoiler.precision,
}
"""By capability, how the calls of a turn look without it."""

HARMLESS: Collection[str] = frozenset(SPOILERS) - {"multi_step_task_completion"}
"""Capabilities whose lack can show without doing harm."""
