"""The hotel: its records, its six tools and the rules that every agent must follow."""

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolResult, ToolSchema, WorldSession
from pytest_trace2evolve.records.rules import Promise, Reading, Rules, Writing
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Action, Assertion, InitialState, Task

FOLDER = Path(__file__).parent

GUIDELINES = (
    "You are a guest of the hotel. Open with the reason for your call, say who you are when you are asked, "
    "and follow your instructions. Write ###STOP### when your request is settled or refused."
)


def _tool(name: str, description: str, **parameters: str) -> ToolSchema:
    properties = {name: {"type": "string", "description": text} for name, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return ToolSchema(name=name, description=description, parameters=schema)


_DAYS = {"arrival": "First night, YYYY-MM-DD.", "departure": "Day of departure, YYYY-MM-DD."}
_BOOKING = {"booking_id": "Such as B101."}

TOOLS = (
    _tool("find_guest", "Find a guest's id.", email="The guest's e-mail address."),
    _tool("get_booking", "Read a booking.", **_BOOKING),
    _tool("list_rooms", "List the free rooms of a kind.", kind="single, double or suite.", **_DAYS),
    _tool("book_room", "Book a room.", guest_id="Such as G1.", room_id="Such as R1.", **_DAYS),
    _tool("cancel_booking", "Cancel a booking.", **_BOOKING),
    _tool("change_dates", "Move a booking to other days.", **_BOOKING, **_DAYS),
)

TOOL_TYPES = {
    "find_guest": ToolType.READ,
    "get_booking": ToolType.READ,
    "list_rooms": ToolType.READ,
    "book_room": ToolType.WRITE,
    "cancel_booking": ToolType.WRITE,
    "change_dates": ToolType.WRITE,
}

RULES = Rules(
    identify=frozenset({"find_guest"}),
    customers="guests",
    owner="guest_id",
    status="status",
    ids={"bookings": r"B\d{3,}"},
    reads={"get_booking": Reading(table="bookings", argument="booking_id")},
    writes={
        "cancel_booking": Writing(
            table="bookings", argument="booking_id", named=("cancel",), statuses=frozenset({"confirmed"})
        ),
        "change_dates": Writing(
            table="bookings",
            argument="booking_id",
            named=("move", "chang"),
            statuses=frozenset({"confirmed"}),
        ),
    },
    promises=(
        Promise(
            tools=frozenset({"cancel_booking"}),
            verbs=("cancelled", "canceled"),
            nouns=("cancellation",),
            statuses=frozenset({"cancelled"}),
        ),
        Promise(tools=frozenset({"change_dates"}), verbs=("moved", "changed")),
        Promise(tools=frozenset({"book_room"}), verbs=("booked",)),
    ),
)


class HotelSession:
    """A private copy of the hotel's records, and the tools that work on it."""

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self._tables: dict[str, dict[str, Any]] = copy.deepcopy(dict(tables))
        self._touched: set[str] = set()

    @property
    def touched(self) -> frozenset[str]:
        return frozenset(self._touched)

    def initialise(self, state: InitialState | None) -> None:
        if state is None:
            return
        if state.initialization_data is not None:
            for table, records in (state.initialization_data.agent_data or {}).items():
                self._tables[table].update(copy.deepcopy(records))
        for action in state.initialization_actions or []:
            self.call(action.func_name, action.arguments, action.env_type)

    def call(self, name: str, arguments: Mapping[str, Any], requestor: Requestor) -> ToolResult:
        try:
            if name not in TOOL_TYPES or requestor != "assistant":
                raise ValueError(f"there is no tool {name}")
            tool: Callable[..., Any] = getattr(self, name)
            result = tool(**arguments)
        except Exception as error:
            return ToolResult(content=f"Error: {error}", error=True)
        return ToolResult(content=result if isinstance(result, str) else json.dumps(result))

    def perform(self, action: Action) -> None:
        self.call(action.name, action.arguments, action.requestor)

    def check(self, assertion: Assertion) -> bool:
        raise WorldError(f"the hotel has no assertion {assertion.func_name!r}")

    def sync(self) -> None:
        """Does nothing: the guest has no tools."""

    def same_state(self, other: WorldSession) -> bool:
        return isinstance(other, HotelSession) and self._tables == other._tables

    def databases(self) -> Mapping[str, Any]:
        return {"agent": self._tables}

    def find_guest(self, email: str) -> str:
        for guest_id, guest in self._tables["guests"].items():
            if guest["email"] == email:
                self._touched.add(f"guests/{guest_id}")
                return str(guest_id)
        raise ValueError(f"no guest has the e-mail address {email}")

    def get_booking(self, booking_id: str) -> dict[str, Any]:
        booking = self._booking(booking_id)
        nights = _nights(booking["arrival"], booking["departure"])
        price = self._tables["rooms"][booking["room_id"]]["price"]
        return {"booking_id": booking_id, **booking, "total": nights * price}

    def list_rooms(self, kind: str, arrival: str, departure: str) -> list[dict[str, Any]]:
        _nights(arrival, departure)
        return [
            {"room_id": room_id, **room}
            for room_id, room in self._tables["rooms"].items()
            if room["kind"] == kind and self._is_free(room_id, arrival, departure)
        ]

    def book_room(self, guest_id: str, room_id: str, arrival: str, departure: str) -> dict[str, Any]:
        if guest_id not in self._tables["guests"]:
            raise ValueError(f"there is no guest {guest_id}")
        self._require_free(room_id, arrival, departure)
        booking_id = f"B{max(int(known[1:]) for known in self._tables['bookings']) + 1}"
        self._tables["bookings"][booking_id] = {
            "guest_id": guest_id,
            "room_id": room_id,
            "arrival": arrival,
            "departure": departure,
            "rate": "flexible",
            "status": "confirmed",
        }
        return self.get_booking(booking_id)

    def cancel_booking(self, booking_id: str) -> dict[str, Any]:
        self._booking(booking_id)["status"] = "cancelled"
        return self.get_booking(booking_id)

    def change_dates(self, booking_id: str, arrival: str, departure: str) -> dict[str, Any]:
        booking = self._booking(booking_id)
        self._require_free(booking["room_id"], arrival, departure, except_for=booking_id)
        booking.update(arrival=arrival, departure=departure)
        return self.get_booking(booking_id)

    def _booking(self, booking_id: str) -> dict[str, Any]:
        if booking_id not in self._tables["bookings"]:
            raise ValueError(f"there is no booking {booking_id}")
        self._touched.add(f"bookings/{booking_id}")
        booking: dict[str, Any] = self._tables["bookings"][booking_id]
        return booking

    def _require_free(self, room_id: str, arrival: str, departure: str, except_for: str = "") -> None:
        _nights(arrival, departure)
        if room_id not in self._tables["rooms"]:
            raise ValueError(f"there is no room {room_id}")
        if not self._is_free(room_id, arrival, departure, except_for):
            raise ValueError(f"room {room_id} is taken between {arrival} and {departure}")

    def _is_free(self, room_id: str, arrival: str, departure: str, except_for: str = "") -> bool:
        return not any(
            booking["room_id"] == room_id
            and booking["status"] == "confirmed"
            and booking["arrival"] < departure
            and arrival < booking["departure"]
            for booking_id, booking in self._tables["bookings"].items()
            if booking_id != except_for
        )


def _nights(arrival: str, departure: str) -> int:
    nights = (date.fromisoformat(departure) - date.fromisoformat(arrival)).days
    if nights < 1:
        raise ValueError(f"a stay from {arrival} to {departure} has no night")
    return nights


class HotelWorld:
    """The hotel as pytest-trace2evolve opens it."""

    provider = "hotel"

    def __init__(self, domain: str) -> None:
        if domain != "hotel":
            raise WorldError(f"unknown domain {domain!r}; provider 'hotel' has one domain: hotel")
        self.domain = domain
        self._data = (FOLDER / "data.json").read_bytes()
        self._tables: dict[str, Any] = json.loads(self._data)
        tasks = [Task.model_validate(task) for task in json.loads((FOLDER / "tasks.json").read_bytes())]
        self._tasks = {task.id: task for task in tasks}

    def tasks(self) -> Mapping[str, Task]:
        return self._tasks

    def splits(self) -> Mapping[str, Sequence[str]]:
        return {"base": list(self._tasks)}

    def policy(self, *, solo: bool = False) -> str:
        if solo:
            raise WorldError("the hotel has no solo mode")
        return (FOLDER / "policy.md").read_text(encoding="utf-8")

    def guidelines(self) -> str:
        return GUIDELINES

    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        return TOOLS if requestor == "assistant" else ()

    def tool_types(self) -> Mapping[str, ToolType]:
        return TOOL_TYPES

    def has_tool(self, name: str) -> bool:
        return name in TOOL_TYPES

    def changes_state(self, name: str) -> bool:
        return TOOL_TYPES.get(name) is ToolType.WRITE

    def rules(self) -> Rules:
        return RULES

    def open(self, *, solo: bool = False) -> HotelSession:
        return HotelSession(self._tables)

    def data_digest(self) -> str:
        return hashlib.sha256(self._data).hexdigest()

    def version(self) -> str:
        return "1.0"
