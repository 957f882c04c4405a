"""An inn whose tools answer with records: a guest is found as a record, and a booking is created by a call.

It implements the `World` and `WorldSession` protocols in memory, with rules that use paths and a tool that
creates a record. `RULES` is declared in two forms: ids as numbers and as text occur too.
"""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.message import Message, Requestor, ToolCall
from pytest_trace2evolve.records.protocols import ToolResult, ToolSchema, WorldSession
from pytest_trace2evolve.records.rules import Finding, Promise, Reading, Rules, Writing
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Action, Assertion, InitialState, Task
from pytest_trace2evolve.scoring.invariants import find_breaches
from pytest_trace2evolve.utils.canonical import digest

PROVIDER = "inn"
DOMAIN = "inn"

INITIAL: Mapping[str, Any] = {
    "guests": {
        7: {"id": 7, "name": "Ada Marsh", "email": "ada@example.org", "status": "member"},
        8: {"id": 8, "name": "Bo Finch", "email": "bo@example.org", "status": "member"},
    },
    "rooms": {"12": {"beds": 2, "price": 90}, "14": {"beds": 1, "price": 60}},
    "bookings": {
        "B100": {"id": "B100", "guest_id": 7, "room": "12", "nights": 2, "status": "open"},
        "B101": {"id": "B101", "guest_id": 8, "room": "14", "nights": 1, "status": "open"},
    },
}
"""The records before any session."""

_TOOLS: Mapping[str, tuple[ToolType, Mapping[str, str]]] = {
    "find_guest": (ToolType.READ, {"email": "string"}),
    "list_rooms": (ToolType.READ, {}),
    "get_booking": (ToolType.READ, {"booking_id": "string"}),
    "book_room": (ToolType.WRITE, {"guest_id": "integer", "room": "string", "nights": "integer"}),
    "cancel_booking": (ToolType.WRITE, {"booking_id": "string"}),
    "cancel_bookings": (ToolType.WRITE, {"booking_ids": "array"}),
    "open_tab": (ToolType.WRITE, {"tab_id": "string"}),
    "rename_guest": (ToolType.WRITE, {"guest_id": "integer", "name": "string"}),
    "register_guest": (ToolType.WRITE, {"email": "string"}),
}

RULES = Rules(
    identify={"find_guest": "guest.id", "register_guest": "guest.id"},
    customers="guests",
    owner="guest_id",
    status="status",
    ids={"bookings": r"B\d{3,}"},
    reads={"get_booking": Reading(table="bookings", argument="booking_id")},
    writes={
        "book_room": Writing(table="bookings", creates=True, id_path="booking.id", named=("book", "reserv")),
        "cancel_booking": Writing(
            table="bookings", argument="booking_id", named=("cancel",), statuses=frozenset({"open"})
        ),
        "open_tab": Writing(table="tabs", argument="tab_id", creates=True, named=("tab",)),
        "rename_guest": Writing(table="guests", argument="guest_id", named=("name", "rename")),
        "register_guest": Writing(
            table="guests",
            creates=True,
            id_path="guest.id",
            named=("regist",),
            consent=False,
            authentication=False,
        ),
    },
    promises=(
        Promise(
            tools=frozenset({"cancel_booking"}),
            verbs=("cancelled",),
            nouns=("cancellation",),
            statuses=frozenset({"cancelled"}),
        ),
        Promise(tools=frozenset({"book_room"}), verbs=("booked", "reserved"), nouns=("booking",)),
    ),
)


def _action(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"name": tool, "arguments": arguments, "requestor": "assistant"}


def _task(task_id: str, *actions: dict[str, Any]) -> Task:
    return Task.model_validate(
        {
            "id": task_id,
            "user_scenario": {"persona": None, "instructions": f"You call about {task_id}."},
            "evaluation_criteria": {"actions": list(actions), "reward_basis": ["DB"]},
        }
    )


_ADA = _action("find_guest", email="ada@example.org")
TASKS: Mapping[str, Task] = {
    task.id: task
    for task in (
        _task("book", _ADA, _action("list_rooms"), _action("book_room", guest_id=7, room="14", nights=3)),
        _task(
            "cancel",
            _ADA,
            _action("get_booking", booking_id="B100"),
            _action("cancel_booking", booking_id="B100"),
        ),
        _task("tab", _ADA, _action("open_tab", tab_id="bar-1")),
        _task("rename", _ADA, _action("rename_guest", guest_id=7, name="Ada Lee")),
        _task("register", _action("register_guest", email="cy@example.org")),
    )
}


class InnSession:
    """One private copy of the inn's records."""

    def __init__(self) -> None:
        self._tables: dict[str, Any] = {**copy.deepcopy(dict(INITIAL)), "tabs": {}}

    @property
    def touched(self) -> frozenset[str]:
        return frozenset()

    def initialise(self, state: InitialState | None) -> None:
        pass

    def call(self, name: str, arguments: Mapping[str, Any], requestor: Requestor) -> ToolResult:
        try:
            if name not in _TOOLS:
                raise ValueError(f"no tool {name}")
            tool: Callable[..., Any] = getattr(self, name)
            return ToolResult(content=json.dumps(tool(**arguments)))
        except Exception as error:
            return ToolResult(content=f"Error: {error}", error=True)

    def perform(self, action: Action) -> None:
        self.call(action.name, action.arguments, action.requestor)

    def check(self, assertion: Assertion) -> bool:
        raise WorldError(f"the inn has no assertion {assertion.func_name!r}")

    def sync(self) -> None:
        pass

    def same_state(self, other: WorldSession) -> bool:
        return isinstance(other, InnSession) and self._tables == other._tables

    # The tools.

    def find_guest(self, email: str) -> dict[str, Any]:
        found = [one for one in self._tables["guests"].values() if one["email"] == email]
        return {"guest": found[0] if found else None}

    def list_rooms(self) -> dict[str, Any]:
        return {"rooms": self._tables["rooms"]}

    def get_booking(self, booking_id: str) -> dict[str, Any]:
        return dict(self._tables["bookings"][booking_id])

    def book_room(self, guest_id: int, room: str, nights: int) -> dict[str, Any]:
        if room not in self._tables["rooms"]:
            return {"booking": None, "reason": f"no room {room}"}
        new = f"B{100 + len(self._tables['bookings'])}"
        made = {"id": new, "guest_id": guest_id, "room": room, "nights": nights, "status": "open"}
        self._tables["bookings"][new] = made
        return {"booking": made}

    def cancel_booking(self, booking_id: str) -> dict[str, Any]:
        self._tables["bookings"][booking_id]["status"] = "cancelled"
        return self.get_booking(booking_id)

    def open_tab(self, tab_id: str) -> dict[str, Any]:
        self._tables["tabs"][tab_id] = {"id": tab_id, "status": "open"}
        return dict(self._tables["tabs"][tab_id])

    def rename_guest(self, guest_id: int, name: str) -> dict[str, Any]:
        self._tables["guests"][guest_id]["name"] = name
        return dict(self._tables["guests"][guest_id])

    def register_guest(self, email: str) -> dict[str, Any]:
        new = max(self._tables["guests"]) + 1
        self._tables["guests"][new] = {"id": new, "name": "", "email": email, "status": "new"}
        return {"guest": self._tables["guests"][new]}


class InnWorld:
    """The inn as a provider offers it; usable as a `WorldFactory`.

    Args:
        domain: `inn`.
        rules: What it declares instead of `RULES`.
    """

    provider = PROVIDER

    def __init__(self, domain: str = DOMAIN, rules: Rules | None = RULES) -> None:
        self.domain = domain
        self._rules = rules

    def rules(self) -> Rules | None:
        return self._rules

    def tasks(self) -> Mapping[str, Task]:
        return TASKS

    def splits(self) -> Mapping[str, Sequence[str]]:
        return {"base": tuple(TASKS)}

    def policy(self, *, solo: bool = False) -> str:
        return "Ask for a yes before you book, cancel or rename."

    def guidelines(self) -> str:
        return "Play the guest."

    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        return [
            ToolSchema(
                name=name,
                description=name.replace("_", " "),
                parameters={
                    "type": "object",
                    "properties": {argument: {"type": kind} for argument, kind in arguments.items()},
                    "required": list(arguments),
                },
            )
            for name, (_, arguments) in _TOOLS.items()
            if requestor == "assistant"
        ]

    def tool_types(self) -> Mapping[str, ToolType]:
        return {name: kind for name, (kind, _) in _TOOLS.items()}

    def has_tool(self, name: str) -> bool:
        return name in _TOOLS

    def changes_state(self, name: str) -> bool:
        return _TOOLS[name][0] is ToolType.WRITE

    def open(self, *, solo: bool = False) -> InnSession:
        return InnSession()

    def data_digest(self) -> str:
        return digest(json.loads(json.dumps(INITIAL)))

    def version(self) -> str:
        return "1"


class Reception:
    """A conversation at the inn; every method adds its messages and returns the reception."""

    def __init__(self) -> None:
        self._session = InnSession()
        self.trace: list[Message] = [Message(role="assistant", content="How can I help?")]

    def hear(self, text: str) -> "Reception":
        """The guest says something."""
        self.trace.append(Message(role="user", content=text))
        return self

    def say(self, text: str) -> "Reception":
        """The agent says something."""
        self.trace.append(Message(role="assistant", content=text))
        return self

    def agree(self, proposal: str, answer: str = "Yes, please.") -> "Reception":
        """The agent proposes something and the guest answers."""
        return self.say(proposal).hear(answer)

    def call(self, tool: str, **arguments: Any) -> "Reception":
        """The agent calls a tool, and the inn answers."""
        call = ToolCall(id=f"call_{len(self.trace)}", name=tool, arguments=arguments)
        self.trace.append(Message(role="assistant", content=None, tool_calls=[call]))
        self.trace.append(self._session.call(tool, arguments, "assistant").to_message(call))
        return self

    def identify(self, email: str = "ada@example.org") -> "Reception":
        """The agent finds the guest."""
        return self.call("find_guest", email=email)

    def book(self, room: str = "14", guest_id: int = 7) -> "Reception":
        """The agent books a room."""
        return self.call("book_room", guest_id=guest_id, room=room, nights=3)

    def found(self, rules: Rules = RULES) -> list[tuple[str, str]]:
        """The breaches, each as its invariant and the reason."""
        findings: tuple[Finding, ...] = find_breaches(self.trace, rules)
        return [(one.invariant.value, one.why) for one in findings]

    def kinds(self, rules: Rules = RULES) -> list[str]:
        """The invariants that are broken, a name for each breach."""
        return [kind for kind, _ in self.found(rules)]
