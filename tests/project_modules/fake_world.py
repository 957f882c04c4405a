"""A world that fits on one page: a help desk with tickets and a customer's phone.

It implements the `World` and `WorldSession` protocols in memory, so that tests of the conversation, of
scoring and of the plugin need no benchmark and no optional package. Its tasks touch every component of a
reward; each task's text in `TASKS` says what it is there for.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolResult, ToolSchema, WorldSession
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Action, Assertion, FunctionCall, InitialState, Task
from pytest_trace2evolve.utils.canonical import canonical_json, digest

PROVIDER = "fake"
DOMAIN = "desk"
POLICY = "Close a ticket only when its customer asks for it. Never promise a refund."

INITIAL: Mapping[str, Any] = MappingProxyType(
    {
        "tickets": {"T1": {"status": "open", "note": ""}, "T2": {"status": "closed", "note": "spam"}},
        "phone": {"on": True, "restarts": 0},
    }
)
"""The databases before any session: the agent's tickets, the user's phone."""

_AGENT_TOOLS = {
    "get_ticket": (ToolType.READ, ("ticket_id",)),
    "close_ticket": (ToolType.WRITE, ("ticket_id",)),
    "write_note": (ToolType.WRITE, ("ticket_id", "text")),
    "think": (ToolType.THINK, ("thought",)),
    "transfer_to_human_agents": (ToolType.GENERIC, ("summary",)),
}
_USER_TOOLS: dict[str, tuple[ToolType, tuple[str, ...]]] = {
    "check_phone": (ToolType.READ, ()),
    "restart_phone": (ToolType.WRITE, ()),
}


def _task(task_id: str, **content: Any) -> Task:
    criteria = content.pop("criteria", None)
    scenario = {"persona": None, "instructions": f"You call about {task_id}."}
    # What nothing is asked of has no ticket either: a solo suite cannot hold it.
    ticket = f"The customer calls about {task_id}." if criteria and criteria["actions"] else None
    fields = {"id": task_id, "user_scenario": scenario, "evaluation_criteria": criteria, "ticket": ticket}
    return Task.model_validate(fields | content)


def _action(name: str, *, by: Requestor = "assistant", **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments, "requestor": by}


def _assertion(name: str, **arguments: Any) -> dict[str, Any]:
    return {"env_type": "user", "func_name": name, "arguments": arguments}


_CLOSE_T1 = _action("close_ticket", ticket_id="T1")
_RESTART = _action("restart_phone", by="user")

TASKS: Mapping[str, Task] = MappingProxyType(
    {
        task.id: task
        for task in (
            # DB and COMMUNICATE: `oracle` passes, `nop` fails on both.
            _task("close", criteria={"actions": [_CLOSE_T1], "communicate_info": ["T1 is closed"]}),
            # DB only, a read before the write.
            _task(
                "note",
                criteria={
                    "actions": [
                        _action("get_ticket", ticket_id="T1"),
                        _action("write_note", ticket_id="T1", text="call back"),
                    ],
                    "reward_basis": ["DB"],
                },
            ),
            # ENV_ASSERTION, reached by an action of the user.
            _task(
                "restart",
                criteria={
                    "actions": [_RESTART],
                    "env_assertions": [_assertion("assert_restarts", expected=1)],
                    "reward_basis": ["ENV_ASSERTION"],
                },
            ),
            # ACTION: only the call counts, the database stays as it is.
            _task(
                "look",
                criteria={
                    "actions": [_action("get_ticket", ticket_id="T2")],
                    "reward_basis": ["ACTION"],
                },
            ),
            # Asks for nothing: `nop` passes too.
            _task("idle", criteria={"actions": [], "reward_basis": ["DB"]}),
            # Starts from another state: the ticket to close exists only here.
            _task(
                "opened",
                initial_state={
                    "initialization_data": {
                        "agent_data": {"tickets": {"T3": {"status": "open", "note": ""}}}
                    },
                    "initialization_actions": [
                        {"env_type": "user", "func_name": "turn_off", "arguments": {}}
                    ],
                },
                criteria={"actions": [_action("close_ticket", ticket_id="T3")], "reward_basis": ["DB"]},
            ),
            # NL_ASSERTION: not measured without a judge.
            _task(
                "polite",
                criteria={
                    "actions": [],
                    "nl_assertions": ["The agent greets the user"],
                    "reward_basis": ["DB", "NL_ASSERTION"],
                },
            ),
            # Nothing to score: reward 1.
            _task("free"),
        )
    }
)

SPLITS: Mapping[str, Sequence[str]] = MappingProxyType(
    {"base": tuple(TASKS), "train": ("close", "note", "restart", "look"), "test": ("idle", "opened")}
)


class FakeSession:
    """One private copy of the desk and the phone."""

    def __init__(self, *, solo: bool = False) -> None:
        self._state: dict[str, Any] = copy.deepcopy(dict(INITIAL))
        self._solo = solo
        self._touched: set[str] = set()

    @property
    def touched(self) -> frozenset[str]:
        """Names of the records reached so far, as `table/key`."""
        return frozenset(self._touched)

    def initialise(self, state: InitialState | None) -> None:
        """Merge tickets and phone settings, then run the initialization actions."""
        if state is None:
            return
        if state.initialization_data is not None:
            tickets = (state.initialization_data.agent_data or {}).get("tickets", {})
            self._state["tickets"].update(copy.deepcopy(tickets))
            self._state["phone"].update(copy.deepcopy(state.initialization_data.user_data or {}))
        for call in state.initialization_actions or []:
            self._run(call)

    def call(self, name: str, arguments: Mapping[str, Any], requestor: Requestor) -> ToolResult:
        """Call a tool; an exception becomes an error result."""
        try:
            return ToolResult(content=self._invoke(name, arguments, requestor))
        except Exception as error:
            return ToolResult(content=f"Error: {error}", error=True)

    def perform(self, action: Action) -> None:
        """Carry out a gold action; its errors are ignored."""
        self.call(action.name, action.arguments, action.requestor)

    def check(self, assertion: Assertion) -> bool:
        """Whether the assertion's function returns the value it must return."""
        return bool(self._run(assertion)) == assertion.assert_value

    def sync(self) -> None:
        """The desk and the phone do not depend on each other: nothing to carry over."""

    def same_state(self, other: WorldSession) -> bool:
        """Whether desk and phone equal those of another session."""
        if not isinstance(other, FakeSession):
            raise TypeError(f"cannot compare a FakeSession with a {type(other).__name__}")
        return canonical_json(self._state) == canonical_json(other._state)

    def databases(self) -> Mapping[str, Any]:
        """The tickets and the phone, as one database."""
        return {"agent": self._state}

    def _invoke(self, name: str, arguments: Mapping[str, Any], requestor: Requestor) -> str:
        if requestor == "user" and self._solo:
            raise ValueError("User tool calls are not allowed in solo mode")
        both = self._solo and requestor == "assistant"
        offered = _USER_TOOLS if requestor == "user" else _AGENT_TOOLS
        if name not in offered and not (both and name in _USER_TOOLS):
            raise ValueError(f"Tool '{name}' not found.")
        tool: Callable[..., str] = getattr(self, f"_{name}")
        return tool(**arguments)

    def _run(self, call: FunctionCall) -> Any:
        function = getattr(self, f"_{call.func_name}", None)
        if function is None:
            raise WorldError(f"the {call.env_type} toolkit has no function {call.func_name!r}")
        return function(**call.arguments)

    def _ticket(self, ticket_id: str) -> dict[str, Any]:
        if ticket_id not in self._state["tickets"]:
            raise ValueError(f"Ticket {ticket_id} not found")
        self._touched.add(f"tickets/{ticket_id}")
        ticket: dict[str, Any] = self._state["tickets"][ticket_id]
        return ticket

    def _get_ticket(self, ticket_id: str) -> str:
        return canonical_json(self._ticket(ticket_id))

    def _close_ticket(self, ticket_id: str) -> str:
        ticket = self._ticket(ticket_id)
        if ticket["status"] == "closed":
            raise ValueError(f"Ticket {ticket_id} is closed already")
        ticket["status"] = "closed"
        return f"Ticket {ticket_id} closed"

    def _write_note(self, ticket_id: str, text: str) -> str:
        self._ticket(ticket_id)["note"] = text
        return "Noted"

    def _think(self, thought: str) -> str:
        return ""

    def _transfer_to_human_agents(self, summary: str) -> str:
        return "Transfer successful"

    def _check_phone(self) -> str:
        return canonical_json(self._state["phone"])

    def _restart_phone(self) -> str:
        self._state["phone"].update(on=True, restarts=self._state["phone"]["restarts"] + 1)
        return "Restarted"

    def _turn_off(self) -> None:
        self._state["phone"]["on"] = False

    def _assert_restarts(self, expected: int) -> bool:
        return bool(self._state["phone"]["restarts"] == expected)


class FakeWorld:
    """The help desk as a provider offers it; usable as a `WorldFactory`.

    Raises:
        WorldError: a domain other than `desk`.
    """

    provider = PROVIDER
    fingerprint = "desk 1"

    def __init__(self, domain: str = DOMAIN) -> None:
        if domain != DOMAIN:
            raise WorldError(f"provider {PROVIDER!r} has no domain {domain!r}; it has {DOMAIN}")
        self.domain = domain

    def tasks(self) -> Mapping[str, Task]:
        """Every task by its id."""
        return TASKS

    def splits(self) -> Mapping[str, Sequence[str]]:
        """`base` holds all tasks; `train` and `test` share none."""
        return SPLITS

    def policy(self, *, solo: bool = False) -> str:
        """The text the agent must follow."""
        return f"{POLICY} You are alone at the desk." if solo else POLICY

    def guidelines(self) -> str:
        """How a simulated user is to behave."""
        return "Play the customer. Say ###STOP### when you have what you wanted."

    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        """The tools offered to one side."""
        offered = _USER_TOOLS if requestor == "user" else _AGENT_TOOLS
        return [
            ToolSchema(
                name=name,
                description=name.replace("_", " ").capitalize() + ".",
                parameters={
                    "type": "object",
                    "properties": {parameter: {"type": "string"} for parameter in parameters},
                    "required": list(parameters),
                },
            )
            for name, (_, parameters) in offered.items()
        ]

    def tool_types(self) -> Mapping[str, ToolType]:
        """What each tool does."""
        return {name: kind for name, (kind, _) in (_AGENT_TOOLS | _USER_TOOLS).items()}

    def has_tool(self, name: str) -> bool:
        """Whether either side can call a tool of this name."""
        return name in self.tool_types()

    def changes_state(self, name: str) -> bool:
        """Whether a tool can change the state."""
        return self.tool_types()[name] is ToolType.WRITE

    def open(self, *, solo: bool = False) -> FakeSession:
        """A fresh session."""
        return FakeSession(solo=solo)

    def data_digest(self) -> str:
        """Digest of the initial state."""
        return digest(dict(INITIAL))

    def version(self) -> str:
        """Version of this fake."""
        return "1.0"
