"""Small worlds made from plain classes, for tests."""

from typing import Any

from pydantic import BaseModel

from pytest_trace2evolve import World
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation


class Booking(BaseModel):
    guest: str
    room: int
    status: str = "confirmed"
    notes: list[str] = []


class HotelDB(BaseModel):
    bookings: dict[str, Booking]
    rooms: dict[int, str] = {}


BOOKINGS: dict[str, Any] = {
    "B17": {"guest": "Ann Lee", "room": 12},
    "B18": {"guest": "Bob Ray", "room": 14},
}


class HotelTools:
    """A hotel."""

    def __init__(self, db: HotelDB) -> None:
        self.db = db

    def get_booking(self, booking_id: str) -> Booking:
        """Look up a booking."""
        return self.db.bookings[booking_id]

    def cancel_booking(self, booking_id: str) -> str:
        """Cancel a booking."""
        self.db.bookings[booking_id].status = "cancelled"
        return f"Booking {booking_id} is cancelled."

    def refund(self, booking_id: str, amount: float = 0) -> str:
        """Refund a booking."""
        self.db.bookings[booking_id].notes.append(f"refunded {amount:g}")
        return "Refunded."


def hotel(**options: Any) -> World:
    """A hotel with two bookings."""
    return World.from_tools(HotelTools, data={"bookings": BOOKINGS, "rooms": {12: "double"}}, **options)


def trace_of(world: World, *calls: tuple[str, dict[str, Any]], says: str = "Done.") -> list[Message]:
    """The trace of an agent that makes calls one by one and then says a text, until the user stops."""
    session = world.open()
    messages = [
        Message(role="assistant", content="Hi! How can I help you today?"),
        Message(role="user", content="Please help."),
    ]
    for number, (name, arguments) in enumerate(calls):
        call = ToolCall(id=f"call_{number}", name=name, arguments=arguments)
        messages += [
            Message(role="assistant", tool_calls=[call]),
            session.call(name, arguments, "assistant").to_message(call),
        ]
    return [
        *messages,
        Message(role="assistant", content=says),
        Message(role="user", content="Thanks. ###STOP###"),
    ]


def simulation_of(task: Task, trace: list[Message]) -> Simulation:
    """A simulation with a trace, which the user ended."""
    return Simulation.model_validate(
        {
            "id": "s",
            "task_id": task.id,
            "termination_reason": "user_stop",
            "messages": trace,
            "trial": 0,
        }
    )
