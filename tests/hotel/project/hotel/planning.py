"""The bot's plan for a guest: one message or tool call after the other."""

import json
import re
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_trace2evolve.records.message import Message, ToolCall

Plan = Generator[Message, Message, None]
"""Yields the bot's next message; receives the guest's answer or the tool's result."""

_ACTIONS = {"cancel": "cancel", "move": "move", "book a": "book", "cost": "price"}


@dataclass(frozen=True)
class Request:
    """A guest's request: to `book`, `cancel` or `move` a stay, or to know its `price`."""

    action: str
    booking_id: str = ""
    kind: str = ""
    arrival: str = ""
    departure: str = ""


def understand(text: str) -> Request | None:
    """The request in a guest's words; None if there is none."""
    action = next((action for words, action in _ACTIONS.items() if words in text), None)
    if action is None:
        return None
    booking = re.search(r"\bB\d+\b", text)
    kind = re.search(r"\b(?:single|double|suite)\b", text)
    days = [*re.findall(r"\d{4}-\d{2}-\d{2}", text), "", ""]
    return Request(action, booking[0] if booking else "", kind[0] if kind else "", days[0], days[1])


def objection(action: str, booking: Mapping[str, Any]) -> str | None:
    """The phrase that refuses a change which the policy forbids; None if it allows the change."""
    if booking["status"] != "confirmed":
        return "not_confirmed"
    if action == "cancel" and booking["rate"] == "fixed":
        return "fixed_rate"
    return None


def says_yes(text: str) -> bool:
    """Whether the guest agreed."""
    return text.lower().startswith("yes")


class Planner:
    """Plans one conversation.

    Args:
        skills: The actions that the bot may serve; it refers guests with other requests to the front desk.
        phrases: The bot's sentences by name, with the names of their values in braces.
    """

    def __init__(self, skills: Collection[str], phrases: Mapping[str, str]) -> None:
        self._skills = skills
        self._phrases = phrases
        self._calls = 0

    def serve(self) -> Plan:
        """Everything from the greeting to the outcome."""
        opening = yield self._say("greeting")
        request = understand(opening.content or "")
        if request is None or request.action not in self._skills:
            yield self._say("refer")
            return
        answer = yield self._say("identify")
        email = re.search(r"[\w.]+@[\w.]+\w", answer.content or "")
        guest = yield self._call("find_guest", email=email[0] if email else "")
        if guest.error:
            yield self._say("unknown_guest")
        elif request.action == "book":
            yield from self._book(request, guest.content or "")
        else:
            yield from self._serve_booking(request, guest.content or "")

    def _book(self, request: Request, guest_id: str) -> Plan:
        stay = {"arrival": request.arrival, "departure": request.departure}
        listed = yield self._call("list_rooms", kind=request.kind, **stay)
        rooms = [] if listed.error else json.loads(listed.content or "[]")
        if not rooms:
            yield self._say("no_room", kind=request.kind, **stay)
            return
        room = min(rooms, key=lambda room: room["price"])
        call = self._call("book_room", guest_id=guest_id, room_id=room["room_id"], **stay)
        yield from self._change("confirm_book", call, "booked", {**room, **stay})

    def _serve_booking(self, request: Request, guest_id: str) -> Plan:
        result = yield self._call("get_booking", booking_id=request.booking_id)
        booking = {} if result.error else json.loads(result.content or "{}")
        if booking.get("guest_id") != guest_id:
            yield self._say("unknown_booking")
        elif request.action == "price":
            yield self._say("price", **booking)
        elif phrase := objection(request.action, booking):
            yield self._say(phrase, **booking)
        elif request.action == "cancel":
            call = self._call("cancel_booking", booking_id=request.booking_id)
            yield from self._change("confirm_cancel", call, "cancelled", booking)
        else:
            stay = {"arrival": request.arrival, "departure": request.departure}
            call = self._call("change_dates", booking_id=request.booking_id, **stay)
            yield from self._change("confirm_move", call, "moved", {**booking, **stay})

    def _change(self, question: str, call: Message, outcome: str, values: Mapping[str, Any]) -> Plan:
        """Ask for a yes, make the call and report its result."""
        answer = yield self._say(question, **values)
        if not says_yes(answer.content or ""):
            yield self._say("unchanged")
            return
        result = yield call
        if result.error:
            yield self._say("failed", reason=(result.content or "").removeprefix("Error: "))
        else:
            yield self._say(outcome, **json.loads(result.content or "{}"))

    def _say(self, phrase: str, **values: Any) -> Message:
        return Message(role="assistant", content=self._phrases[phrase].format(**values))

    def _call(self, name: str, **arguments: str) -> Message:
        self._calls += 1
        call = ToolCall(id=f"call_{self._calls}", name=name, arguments=arguments)
        return Message(role="assistant", tool_calls=[call])
