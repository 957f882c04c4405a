"""Agents that lack a capability on purpose: known deficits, to hold whoever looks for deficits against.

They know the gold actions of a synthetic case, and leave out or spoil what the capability is about. A slip
shows that it is lacking and does no harm, since the agent guesses right; harm spoils the outcome too.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

from pytest_trace2evolve.errors import ParticipantError
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.task import Action, Script, Task, Turn


class Deficit(StrEnum):
    """How an agent lacks a capability. Where there is no wrong way that does harm, a slip is left of it."""

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
        lacks: By capability, how it is lacking; what is not named is shown.
        seed: Chooses among wrong ways.
        breaks: Break off at the end, after everything was done: a failure that no capability explains.
    """

    name = "deficient"

    def __init__(
        self, task: Task, script: Script, lacks: Mapping[str, Deficit], *, seed: int = 0, breaks: bool = False
    ) -> None:
        self._script = script
        self._breaks = breaks
        spoiler = _Spoiler(task, random.Random(seed))
        self._turns: list[tuple[Calls, str]] = []
        rest = list(task.actions)
        for turn in script.turns:
            calls, rest = rest[: turn.actions], rest[turn.actions :]
            told = _outcome(turn, silent=lacks.get("conditional_detail_retrieval") is Deficit.HARM)
            for name, spoil in SPOILED.items():
                if name in lacks:
                    calls = spoil(spoiler, calls, turn, lacks[name])
            self._turns.append((calls, told))
        self._place = 0
        self._left = list(self._turns[0][0])

    async def respond(self, history: Sequence[Message]) -> Message:
        """The next call of the turn, or what came of it.

        Raises:
            ParticipantError: it breaks off.
        """
        last = history[-1]
        if last.role == "user":
            later = range(self._place + 1, len(self._turns))
            place = next((one for one in later if self._script.turns[one].says == last.content), None)
            if place is not None:
                self._place, self._left = place, list(self._turns[place][0])
        if self._left:
            action = self._left.pop(0)
            call = ToolCall(id=f"call_{len(history)}", name=action.name, arguments=action.arguments)
            return Message(role="assistant", tool_calls=[call])
        if self._breaks and self._place == len(self._turns) - 1:
            raise ParticipantError("the agent broke off, as it was told to")
        return Message(role="assistant", content=self._turns[self._place][1])


def _outcome(turn: Turn, *, silent: bool) -> str:
    said = []
    if turn.done:
        said.append("Everything that can be done about it is done.")
        if not silent:
            said += [f"Here is what you asked for: {one.answer}." for one in turn.requests if one.answer]
    if turn.refused:
        said.append("I am sorry, I cannot do that: our policy does not allow it.")
    return " ".join(said)


def _writes(action: Action) -> bool:
    return not action.name.startswith(("find_", "get_", "list_"))


class _Spoiler:
    """Wrong ways on one case."""

    def __init__(self, task: Task, drawn: random.Random) -> None:
        self.tables: Mapping[str, Any] = task.tables
        self.drawn = drawn
        self._written = False

    def precondition(self, calls: Calls, turn: Turn, deficit: Deficit) -> Calls:
        """Write unread; with harm, what the order's state does not allow."""
        written = {str(one.arguments.get("order_id")) for one in calls if _writes(one)}
        if not written or any(one.answer for one in turn.requests):
            return calls
        kept = [one for one in calls if not (one.name == _ORDER and one.arguments.get("order_id") in written)]
        if deficit is Deficit.SLIP:
            return kept
        return [
            self._against_its_state(one) if _writes(one) and "order_id" in one.arguments else one
            for one in kept
        ]

    def _against_its_state(self, action: Action) -> Action:
        order_id = action.arguments["order_id"]
        order = self.tables["orders"][order_id]
        if order["status"] == "delivered":
            return Action(
                name="cancel_pending_order", arguments={"order_id": order_id, "reason": "no longer needed"}
            )
        paid = order["payment_history"][0]["payment_method_id"]
        items = [item["item_id"] for item in order["items"]]
        arguments = {"order_id": order_id, "item_ids": items, "payment_method_id": paid}
        return Action(name="return_delivered_order_items", arguments=arguments)

    def structured(self, calls: Calls, turn: Turn, deficit: Deficit) -> Calls:
        """Choose a variant without having read of any; with harm, another one."""
        if not any("new_item_ids" in one.arguments for one in calls):
            return calls
        kept = [one for one in calls if one.name != _PRODUCT]
        if deficit is Deficit.SLIP:
            return kept
        return [self._other_variants(one) if "new_item_ids" in one.arguments else one for one in kept]

    def _other_variants(self, action: Action) -> Action:
        items = {one["item_id"]: one for one in self.tables["orders"][action.arguments["order_id"]]["items"]}
        chosen = []
        pairs = zip(action.arguments["item_ids"], action.arguments["new_item_ids"], strict=True)
        for old, new in pairs:
            variants = self.tables["products"][items[old]["product_id"]]["variants"].values()
            others = [
                one["item_id"] for one in variants if one["available"] and one["item_id"] not in (old, new)
            ]
            chosen.append(self.drawn.choice(others) if others else new)
        return Action(name=action.name, arguments={**action.arguments, "new_item_ids": chosen})

    def precision(self, calls: Calls, turn: Turn, deficit: Deficit) -> Calls:
        """A call that is refused for its arguments before the right one; with harm, a wrong one instead."""
        found: Calls = []
        for action in calls:
            wrong = self._refused(action) if deficit is Deficit.SLIP else self._inexact(action)
            found += [wrong] if wrong is not None else []
            found += [action] if wrong is None or deficit is Deficit.SLIP else []
        return found

    def _refused(self, action: Action) -> Action | None:
        spoiled = {"item_ids": ["0000000000"], "reason": "whatever", "payment_method_id": "credit_card_0"}
        name = next((name for name in spoiled if name in action.arguments), None)
        if name is None:
            return None
        new = (
            {"new_item_ids": ["0000000001"]}
            if name == "item_ids" and "new_item_ids" in action.arguments
            else {}
        )
        return Action(name=action.name, arguments={**action.arguments, name: spoiled[name], **new})

    def _inexact(self, action: Action) -> Action | None:
        if action.name == "cancel_pending_order":
            reasons = {"no longer needed": "ordered by mistake", "ordered by mistake": "no longer needed"}
            other = reasons.get(action.arguments["reason"])
            return None if other is None else _with(action, reason=other)
        items = action.arguments.get("item_ids", [])
        if len(items) > 1:
            fewer = (
                {"new_item_ids": action.arguments["new_item_ids"][1:]}
                if "new_item_ids" in action.arguments
                else {}
            )
            return _with(action, item_ids=items[1:], **fewer)
        return None

    def address(self, calls: Calls, turn: Turn, deficit: Deficit) -> Calls:
        """Write an address that was read nowhere; with harm, the one that the order has."""
        said = f" {turn.says} ".lower()
        about = [
            one
            for one in calls
            if "address1" in one.arguments and str(one.arguments["address1"]).lower() not in said
        ]
        if not about:
            return calls
        own = {one.arguments.get("order_id") for one in about}
        kept = [
            one
            for one in calls
            if not (one.name == _USER or (one.name == _ORDER and one.arguments["order_id"] not in own))
        ]
        if deficit is Deficit.SLIP:
            return kept
        return [
            self._own_address(one) if one in about and "order_id" in one.arguments else one for one in kept
        ]

    def _own_address(self, action: Action) -> Action:
        return _with(action, **self.tables["orders"][action.arguments["order_id"]]["address"])

    def conditional(self, calls: Calls, turn: Turn, deficit: Deficit) -> Calls:
        """Answer without having fetched what the answer stands in; with harm, nothing is answered either."""
        if not any(one.answer for one in turn.requests):
            return calls
        return [one for one in calls if one.name != _ORDER]

    def multi_step(self, calls: Calls, turn: Turn, deficit: Deficit) -> Calls:
        """Stop after the first write of all turns; there is no harmless way to do that."""
        kept = []
        for action in calls:
            if _writes(action) and deficit is Deficit.HARM:
                if self._written:
                    continue
                self._written = True
            kept.append(action)
        return kept


def _with(action: Action, **changed: Any) -> Action:
    return Action(name=action.name, arguments={**action.arguments, **changed})


SPOILED: Mapping[str, Callable[[_Spoiler, Calls, Turn, Deficit], Calls]] = {
    "precondition_verification": _Spoiler.precondition,
    "structured_data_reasoning": _Spoiler.structured,
    "multi_step_task_completion": _Spoiler.multi_step,
    "account_address_inference": _Spoiler.address,
    "conditional_detail_retrieval": _Spoiler.conditional,
    # The last: what it adds is no call that another could still spoil.
    "tool_calling_precision": _Spoiler.precision,
}
"""By capability, how the calls of a turn look without it."""

HARMLESS: Collection[str] = frozenset(SPOILED) - {"multi_step_task_completion"}
"""Capabilities that can be seen lacking where nothing came of it."""
