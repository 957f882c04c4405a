"""Twenty conversations about bookings, as OpenAI's messages, and the helpers of tests that import logs."""

import json
from pathlib import Path
from typing import Any

import yaml

from pytest_trace2evolve.cli.main import main

Message = dict[str, Any]

_GUESTS = (
    "Ann Lee", "Bob Ray", "Chiara Russo", "Dmitri Orlov", "Esther Katz", "Farid Haddad", "Greta Holm",
    "Hugo Silva", "Ines Duarte", "Jonas Weber", "Karin Lund", "Liam Doyle", "Marta Kowalska", "Nadia Petrova",
    "Omar Aziz", "Paula Reyes", "Quentin Dubois", "Rita Fontana", "Sven Eriksen", "Tara Nolan",
)  # fmt: skip


def conversation(number: int) -> list[Message]:
    """A customer who gives a name and a booking, an agent who looks it up and cancels it, and a farewell."""
    guest, booking = _GUESTS[number % len(_GUESTS)], f"B{1701 + number}"
    found = {"booking_id": booking, "guest": guest, "room": "double", "status": "paid"}
    return [
        {"role": "system", "content": "You book rooms."},
        {"role": "user", "content": f"Hi, my name is {guest}. Please cancel booking {booking}."},
        _call(f"c{number}a", "get_booking", {"booking_id": booking}),
        {"role": "tool", "tool_call_id": f"c{number}a", "content": json.dumps(found)},
        {"role": "assistant", "content": f"Shall I cancel {booking}, {guest.split()[0]}?"},
        {"role": "user", "content": "Yes, please."},
        _call(f"c{number}b", "cancel_booking", {"booking_id": booking, "guest": guest}),
        {"role": "tool", "tool_call_id": f"c{number}b", "content": "cancelled"},
        {"role": "assistant", "content": f"Booking {booking} is cancelled, {guest}."},
    ]


def _call(call_id: str, name: str, arguments: dict[str, Any]) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


CONVERSATIONS = [conversation(number) for number in range(20)]
VALUES = [word for guest in _GUESTS for word in guest.split()] + [f"B{1701 + number}" for number in range(20)]
"""The personal values of all conversations."""


def imported(log: Path, *options: str) -> list[dict[str, Any]]:
    """The drafts that the command makes of a log."""
    out = log.parent / "out.yaml"
    assert main(["import", str(log), "--out", str(out), *options]) == 0
    drafts: list[dict[str, Any]] = yaml.safe_load(out.read_text(encoding="utf-8"))
    return drafts


def check_drafts(drafts: list[dict[str, Any]], text: str) -> None:
    """Check that drafts hold what `CONVERSATIONS` say, with consistent replacements."""
    assert len(drafts) == len(CONVERSATIONS)
    assert len({draft["id"] for draft in drafts}) == len(drafts)
    for draft in drafts:
        (call,) = draft["expect"]["calls"]
        assert call["name"] == "cancel_booking"
        booking, guest = call["arguments"]["booking_id"], call["arguments"]["guest"]
        assert draft["user"]["opening"] == f"Hi, my name is {guest}. Please cancel booking {booking}."
        assert draft["user"]["knows"] == {"booking_id": booking, "guest": guest}
    assert len({draft["expect"]["calls"][0]["arguments"]["booking_id"] for draft in drafts}) == len(drafts)
    assert [value for value in VALUES if value in text] == []
