"""Traces of τ² retail by hand: what is said is written down, what tools answer is the real toolkit's."""

from typing import Any

from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.rules import Finding
from pytest_trace2evolve.scoring.invariants import find_breaches
from pytest_trace2evolve.worlds.retail_rules import RETAIL_RULES

CUSTOMER = "mei_kovacs_8020"
PENDING, DELIVERED = "#W7800651", "#W6390527"
"""Orders of that customer."""

STRANGER, STRANGERS_ORDER = "aarav_anderson_8794", "#W9300146"
"""Another customer, and a pending order of theirs."""

HOME = {
    "address1": "1 New Street",
    "address2": "",
    "city": "Charlotte",
    "state": "NC",
    "country": "USA",
    "zip": "28236",
}


class Desk:
    """One conversation at the retail desk; every method adds its messages and returns the desk."""

    def __init__(self, world: World) -> None:
        self._session = world.open()
        self.trace: list[Message] = [Message(role="assistant", content="Hi! How can I help you today?")]

    def hear(self, text: str) -> "Desk":
        """The customer says something."""
        self.trace.append(Message(role="user", content=text))
        return self

    def say(self, text: str) -> "Desk":
        """The agent says something."""
        self.trace.append(Message(role="assistant", content=text))
        return self

    def call(self, *calls: tuple[str, dict[str, Any]], text: str | None = None) -> "Desk":
        """The agent calls tools, all in one message; the toolkit answers."""
        made = [
            ToolCall(id=f"call_{len(self.trace)}_{number}", name=name, arguments=arguments)
            for number, (name, arguments) in enumerate(calls)
        ]
        self.trace.append(Message(role="assistant", content=text, tool_calls=made))
        for call in made:
            result = self._session.call(call.name, call.arguments, "assistant")
            self.trace.append(result.to_message(call))
        return self

    def identify(self) -> "Desk":
        """The agent finds out who the customer is."""
        return self.call(
            ("find_user_id_by_name_zip", {"first_name": "Mei", "last_name": "Kovacs", "zip": "28236"})
        )

    def read(self, *orders: str) -> "Desk":
        """The agent reads the customer's profile and orders."""
        self.call(("get_user_details", {"user_id": CUSTOMER}))
        for order in orders:
            self.call(("get_order_details", {"order_id": order}))
        return self

    def cancel(self, order: str = PENDING) -> "Desk":
        """The agent cancels an order."""
        return self.call(("cancel_pending_order", {"order_id": order, "reason": "no longer needed"}))

    def agree(self, proposal: str, answer: str = "Yes, please.") -> "Desk":
        """The agent says what it will do, and the customer answers."""
        return self.say(proposal).hear(answer)

    @property
    def found(self) -> tuple[Finding, ...]:
        """What breaks an invariant."""
        return find_breaches(self.trace, RETAIL_RULES)

    @property
    def kinds(self) -> list[str]:
        """The invariants that are broken, a name for each finding."""
        return [item.invariant.value for item in self.found]
