"""Tasks in tau2's JSON shape, the content that their digests cover, and scripts of simulated customers.

A task holds its script under `user_scenario.script`. The script says what the customer knows, wants and says.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from pytest_trace2evolve.errors import CaseError
from pytest_trace2evolve.records.base import Record, Tau2Record
from pytest_trace2evolve.records.message import Message, Requestor
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.reading import problem_in

SCRIPT = "script"
"""The key of a task's user scenario that holds the script; tau2's own tools ignore it."""

PATIENCE_MOST = 24
"""The most messages that a customer sends. A budget of steps must leave room for the answers."""

ID_MOST = 200
"""The most characters of a case's id, which names tests and files."""


class RewardBasis(StrEnum):
    """The components that a reward can be the product of."""

    DB = "DB"
    ENV_ASSERTION = "ENV_ASSERTION"
    COMMUNICATE = "COMMUNICATE"
    ACTION = "ACTION"
    NL_ASSERTION = "NL_ASSERTION"


DEFAULT_BASIS = (RewardBasis.DB, RewardBasis.COMMUNICATE)
"""The meaning of an absent or empty `reward_basis` (upstream's default)."""


class Action(Tau2Record):
    """A gold action: a tool call that leads to the goal state."""

    name: str
    arguments: dict[str, Any]
    action_id: str = ""
    requestor: Requestor = "assistant"
    compare_args: list[str] | None = None


class FunctionCall(Tau2Record):
    """A call of any function of the agent's or the user's toolkit, tool or not."""

    env_type: Requestor
    func_name: str
    arguments: dict[str, Any]


class Assertion(FunctionCall):
    """A function that must return `assert_value` at the end of a simulation."""

    assert_value: bool = True
    message: str | None = None


class InitializationData(Tau2Record):
    """Updates merged into the databases before a simulation."""

    agent_data: dict[str, Any] | None = None
    user_data: dict[str, Any] | None = None


class InitialState(Tau2Record):
    """The changes to the databases and the messages before the first turn."""

    initialization_data: InitializationData | None = None
    initialization_actions: list[FunctionCall] | None = None
    message_history: list[Message] | None = None


class EvaluationCriteria(Tau2Record):
    """The criteria by which a simulation of the task is scored."""

    actions: list[Action] | None = None
    env_assertions: list[Assertion] | None = None
    communicate_info: list[str] | None = None
    nl_assertions: list[str] | None = None
    reward_basis: list[RewardBasis] | None = None

    @property
    def basis(self) -> tuple[RewardBasis, ...]:
        """The components of the reward, with upstream's default."""
        return tuple(self.reward_basis) if self.reward_basis else DEFAULT_BASIS


class Task(Tau2Record):
    """A task: the user's scenario, the initial state of the world, and the criteria of the reward."""

    id: str
    user_scenario: Any = None
    initial_state: InitialState | None = None
    evaluation_criteria: EvaluationCriteria | None = None
    ticket: str | None = None

    @property
    def digest(self) -> str:
        """Digest of the normalised content (see `normalised`)."""
        return self.digest_in(solo=False)

    def digest_in(self, *, solo: bool) -> str:
        """Digest of everything that a simulation depends on; in solo mode this includes the ticket."""
        content = normalised(self)
        return digest({**content, "ticket": self.ticket} if solo else content)

    @property
    def actions(self) -> list[Action]:
        criteria = self.evaluation_criteria
        return (criteria.actions or []) if criteria else []

    @property
    def tables(self) -> dict[str, Any]:
        """The records that the task adds to the agent's world, by table; empty if it adds none."""
        data = self.initial_state.initialization_data if self.initial_state else None
        return (data.agent_data or {}) if data else {}

    @property
    def history(self) -> list[Message]:
        return (self.initial_state.message_history or []) if self.initial_state else []


def normalised(task: Task) -> dict[str, Any]:
    """Return the content of a task that scoring or the conversation reads, with upstream's defaults.

    Absent, null and empty are equal; an absent basis is DB and COMMUNICATE; an absent requestor is the
    assistant. Ids, ticket, description, annotations and notes are left out. Like scoring, this distinguishes
    null from empty in two places: `compare_args`, and a task with neither actions nor assertions, whose
    database is not compared. Data for the world (initialization data, arguments) is unchanged, because a null
    is a value there.
    """
    criteria = task.evaluation_criteria or EvaluationCriteria()
    return {
        "user_scenario": _without_empty(task.user_scenario),
        "initial_state": _initial_state(task.initial_state),
        "criteria": {
            "actions": [_action(action) for action in criteria.actions or []],
            "env_assertions": [
                _function(assertion) | {"assert_value": assertion.assert_value}
                for assertion in criteria.env_assertions or []
            ],
            "communicate_info": criteria.communicate_info or [],
            "nl_assertions": criteria.nl_assertions or [],
            "reward_basis": sorted(criteria.basis),
            "state_compared": criteria.actions is not None or criteria.env_assertions is not None,
        },
    }


def _action(action: Action) -> dict[str, Any]:
    content = {"name": action.name, "arguments": action.arguments, "requestor": action.requestor}
    if action.compare_args is not None:
        content["compare_args"] = sorted(action.compare_args)
    return content


def _function(call: FunctionCall) -> dict[str, Any]:
    return {"env_type": call.env_type, "func_name": call.func_name, "arguments": call.arguments}


def _initial_state(state: InitialState | None) -> dict[str, Any]:
    if state is None:
        return {}
    content: dict[str, Any] = {}
    if state.initialization_data is not None:
        sides = state.initialization_data.model_dump(mode="json")
        if data := {side: update for side, update in sides.items() if update}:
            content["initialization_data"] = data
    if state.initialization_actions:
        content["initialization_actions"] = [_function(call) for call in state.initialization_actions]
    if state.message_history:
        content["message_history"] = [_message(message) for message in state.message_history]
    return content


def _message(message: Message) -> dict[str, Any]:
    calls = [
        {"name": call.name, "arguments": call.arguments, "requestor": call.requestor}
        for call in message.tool_calls or []
    ]
    content = {
        "role": message.role,
        "content": message.content or None,
        "error": bool(message.error) if message.role == "tool" else None,
        "requestor": (message.requestor or "assistant") if message.role == "tool" else None,
        "tool_calls": calls or None,
    }
    return {key: value for key, value in content.items() if value is not None}


def _without_empty(value: Any) -> Any:
    """The value without nulls and empty parts, at all levels; None if nothing is left."""
    if isinstance(value, dict):
        kept = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not None} or None
    if isinstance(value, list):
        return [_without_empty(item) for item in value] or None
    return None if value == "" else value


def _check_words(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("no_words", "there is no word in it: write what the customer says")
    return text


Said = Annotated[str, AfterValidator(_check_words)]
"""A text that a customer says."""

Some = Annotated[tuple[Said, ...], Field(min_length=1)]
"""One or more alternative texts that a customer may say."""


class Slot(StrEnum):
    """A detail that an agent can ask a customer for."""

    EMAIL = "email"
    NAME = "name"
    ORDER = "order"
    ITEMS = "items"
    OPTIONS = "options"
    REASON = "reason"
    PAYMENT = "payment"
    ADDRESS = "address"


class Content(StrEnum):
    """The content that a case is made of. Training may see `train`, but not `heldout`."""

    TRAIN = "train"
    HELDOUT = "heldout"


class After(StrEnum):
    """The outcome of the customer's last turn that the next turn requires."""

    ANYTHING = "anything"
    DONE = "done"
    REFUSED = "refused"


class Request(Record):
    """One thing that the customer wants.

    Attributes:
        about: Ids of records that an agent may name when it asks for confirmation. The customer says no to
            any other id.
        details: The customer's answers when the agent asks for details.
        answer: The text that answers the customer's question; empty if the request is for an action.
        refused: Whether the policy forbids the request.
    """

    about: tuple[str, ...]
    details: dict[Slot, Said] = Field(default_factory=dict)
    answer: str = ""
    refused: bool = False


class Turn(Record):
    """The requests that the customer makes at one time.

    Attributes:
        insists: The customer's replies to refusals, one at a time, before the customer accepts them.
        after: The required outcome of the previous turn. After any other outcome, this turn is left out.
        actions: The number of the task's gold actions that belong to this turn.
    """

    says: Said
    requests: Annotated[tuple[Request, ...], Field(min_length=1)]
    insists: tuple[Said, ...] = ()
    after: After = After.ANYTHING
    actions: int = Field(default=0, ge=0)

    @property
    def refused(self) -> bool:
        """Whether the policy forbids a part of it."""
        return any(request.refused for request in self.requests)

    @property
    def done(self) -> bool:
        """Whether the policy allows a part of it."""
        return not all(request.refused for request in self.requests)


class Replies(Record):
    """The customer's alternatives for the phrases that every customer needs; the seed chooses one of each."""

    yes: Some
    wrong: Some
    wait: Some
    unknown: Some
    bye: Some
    giving_up: Some


class Script(Record):
    """A scripted customer.

    Attributes:
        family: The kind of pressure that the case puts on an agent.
        identity: The details by which the customer identifies themselves. They do not know missing details.
        patience: The most messages that the customer sends.
    """

    schema_version: Literal[1] = 1
    family: str
    content: Content
    identity: dict[Slot, Said]
    turns: Annotated[tuple[Turn, ...], Field(min_length=1)]
    replies: Replies
    patience: int = Field(default=PATIENCE_MOST, ge=2, le=PATIENCE_MOST)

    @property
    def refuses_all(self) -> bool:
        """Whether the policy forbids every request, so an agent that does nothing is right."""
        return not any(turn.done for turn in self.turns)


def script_of(task: Task) -> Script | None:
    """Return the customer script of a task; None if it has none.

    Raises:
        CaseError: the script is damaged, or does not fit its task; the message names the task and the place.
    """
    scenario: Any = task.user_scenario
    raw = scenario.get(SCRIPT) if isinstance(scenario, dict) else None
    if raw is None:
        return None
    try:
        script = Script.model_validate(raw)
    except ValidationError as error:
        raise CaseError(f"task {task.id!r}: its customer script is damaged: {problem_in(error)}") from None
    if problem := _contradiction(task, script) or _id_problem(task.id):
        raise CaseError(problem)
    return script


def _contradiction(task: Task, script: Script) -> str:
    """Describe how a script contradicts its task; empty if it fits."""
    criteria = task.evaluation_criteria
    if criteria is None or criteria.actions is None:
        field = "evaluation_criteria" if criteria is None else "evaluation_criteria.actions"
        return f"task {task.id!r}: has no {field}: name the gold actions, [] if only refusing is right"
    in_turns, in_task = sum(turn.actions for turn in script.turns), len(criteria.actions)
    if in_turns != in_task:
        return (
            f"task {task.id!r}: the turns of its script have {in_turns} gold actions and the task has "
            f"{in_task}: correct 'actions' of the turns, which say how many belong to each"
        )
    return ""


def _id_problem(name: str) -> str:
    """Describe why an id cannot be typed or cannot name a test; empty if it can do both."""
    remedy = "name it in letters, digits, '-' and '_'"
    if not name:
        return f"a case has an empty id; {remedy}"
    if len(name) > ID_MOST:
        return f"task {name[:20] + '…'!r}: its id has {len(name)} characters, {ID_MOST} are allowed; {remedy}"
    if not name.isprintable() or " " in name:
        return f"task {name!r}: its id holds white space or signs that cannot be printed; {remedy}"
    if "::" in name:
        return f"task {name!r}: its id holds '::', which ends a name in pytest's node ids; {remedy}"
    return ""


def natural_order(name: str) -> tuple[int, int, str]:
    """Sort key of task ids: numbers by value, before other names."""
    return (0, int(name), name) if name.isascii() and name.isdigit() else (1, 0, name)
