"""A scripted model of the hotel: it follows the sentences of its prompt and the descriptions of its tools."""

import json
import re
from typing import Any

from pytest_trace2evolve.testing import ChatRequest, Reply

SMALL, LARGE, NANO = "hotel-small", "hotel-large", "hotel-nano"
"""A model that follows its prompt, one that also knows the trade, and one that can hardly do anything."""


class HotelModel:
    """Answers requests without a memory: the messages decide how far the conversation has come."""

    def __call__(self, request: ChatRequest) -> Reply:
        """The next message of the conversation."""
        if request.model == NANO:
            return Reply("How can I help you?")
        prompt, knows = request.system.lower(), request.model == LARGE
        descriptions = {
            tool["function"]["name"]: tool["function"].get("description") or "" for tool in request.tools
        }
        asks = "ask for a yes" in prompt
        names_price = knows or "tell the guest the total price" in prompt
        keeps_fixed = knows or "fixed rate cannot be cancelled" in prompt
        keeps_fixed = keeps_fixed and "any rate" not in descriptions.get("cancel_booking", "")
        said = [text_of(message) for message in request.messages if message["role"] == "user"]
        results = results_of(request.messages)
        wish = " ".join(said)
        agreed = said[-1].lower().startswith("yes")

        def write(name: str, done: str, question: str, **arguments: Any) -> Reply:
            if name in results:
                return Reply(f"{done} Is there anything else?")
            if asks and not agreed:
                return Reply(question)
            return Reply(tool_calls=((name, arguments),))

        if "room" in wish:
            return self._room(wish, results, names_price, write)
        number = re.search(r"\bB\d\b", wish)
        if number is None:
            return Reply("What is the number of your booking?")
        if "get_booking" not in results:
            return Reply(tool_calls=(("get_booking", {"booking_id": number[0]}),))
        booking = json.loads(results["get_booking"])
        if "cancel" in wish:
            if keeps_fixed and booking["rate"] == "fixed":
                return Reply(f"I am sorry, booking {number[0]} has a fixed rate and cannot be cancelled.")
            question = f"Shall I cancel booking {number[0]}?"
            return write("cancel_booking", "Your booking is cancelled.", question, booking_id=number[0])
        if "move" in wish:
            (day,) = set(re.findall(r"2026-\d\d-\d\d", wish))
            question = f"Shall I move booking {number[0]} to {day}?"
            return write(
                "move_booking", "Your booking is moved.", question, booking_id=number[0], arrival=day
            )
        return Reply(f"It starts on {booking['arrival']}. Is there anything else?")

    def _room(self, wish: str, results: dict[str, str], names_price: bool, write: Any) -> Reply:
        kind = re.search(r"single|double|suite", wish)
        assert kind
        if "list_rooms" not in results:
            return Reply(tool_calls=(("list_rooms", {"kind": kind[0]}),))
        room = json.loads(results["list_rooms"])[0]
        if "book" not in wish:
            return Reply(f"It costs {room['price']} euros a night. Is there anything else?")
        email = re.search(r"[\w.]+@[\w.]+\w", wish)
        if email is None:
            return Reply("What is your e-mail address?")
        if "find_guest" not in results:
            return Reply(tool_calls=(("find_guest", {"email": email[0]}),))
        (day,) = set(re.findall(r"2026-\d\d-\d\d", wish))
        nights = re.search(r"(\d) nights?", wish)
        assert nights
        price = f" It costs {room['price'] * int(nights[1])} euros." if names_price else ""
        return write(
            "book_room",
            f"Your room is booked.{price}",
            f"Shall I book the {kind[0]} room from {day} for {nights[1]} nights?",
            guest=json.loads(results["find_guest"])["guest"],
            room=room["room"],
            arrival=day,
            nights=int(nights[1]),
        )


def text_of(message: dict[str, Any]) -> str:
    """The text of a message, which clients send as a text or as parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def results_of(messages: list[dict[str, Any]]) -> dict[str, str]:
    """The last result of each tool."""
    names = {
        call["id"]: call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls") or ()
    }
    return {
        names[message["tool_call_id"]]: text_of(message) for message in messages if message["role"] == "tool"
    }
