"""Tasks in tau2's JSON shape, the content that their digests cover, and scripts of simulated customers.

A task holds its script under `user_scenario.script`. The script says what the customer knows, wants and says.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    Field,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from pytest_trace2evolve.errors import CaseError
from pytest_trace2evolve.records.base import Later, Record, Tau2Record
from pytest_trace2evolve.records.message import Message, Requestor
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.reading import first_problem

SCRIPT_KEY = "script"
"""The key of a task's user scenario that holds the script; tau2's own tools ignore it."""

DATABASE_EQUALS = "database_equals"
"""The assertion that compares the database with the expected one; every world of a project's own has it."""

MAX_PATIENCE = 24
"""The maximum number of messages that a customer sends. The step budget must leave room for the answers."""

MAX_ID_LENGTH = 200
"""The maximum length of a case's id, which names tests and files."""


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


class ForbiddenCall(Record):
    """A call that the agent must not make; without arguments, no call of the tool is allowed."""

    name: str
    arguments: dict[str, Any] | None = None


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
    forbidden_calls: Later[list[ForbiddenCall]] = None

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
        """Digest of the normalised content (see `normalise_task`)."""
        return self.digest_in(solo=False)

    def digest_in(self, *, solo: bool) -> str:
        """Digest of everything that a simulation depends on; in solo mode this includes the ticket."""
        content = normalise_task(self)
        return digest({**content, "ticket": self.ticket} if solo else content)

    @property
    def is_critical(self) -> bool:
        """Whether the task has the tag `critical`, which is not part of its content."""
        return "critical" in self.tags

    @property
    def tags(self) -> tuple[str, ...]:
        """The family of the task's script, and its tags."""
        script = self.user_scenario.get(SCRIPT_KEY) if isinstance(self.user_scenario, dict) else None
        family = script.get("family") if isinstance(script, dict) else None
        tags = (self.model_extra or {}).get("tags")
        names = [family, *(tags if isinstance(tags, list) else ())]
        return tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name))

    @property
    def actions(self) -> list[Action]:
        criteria = self.evaluation_criteria
        return (criteria.actions or []) if criteria else []

    @property
    def tables(self) -> dict[str, Any]:
        """The records that the task adds to the agent's world, by table; empty if it adds none."""
        initialization_data = self.initial_state.initialization_data if self.initial_state else None
        return (initialization_data.agent_data or {}) if initialization_data else {}

    @property
    def history(self) -> list[Message]:
        return (self.initial_state.message_history or []) if self.initial_state else []


def normalise_task(task: Task) -> dict[str, Any]:
    """Return the content of a task that scoring or the conversation reads, with upstream's defaults.

    Absent, null and empty values are equal. An absent basis is DB and COMMUNICATE, and an absent requestor is
    the assistant. Ids, ticket, description, annotations and notes are left out. Like scoring, this function
    distinguishes null from empty in two places: `compare_args`, and a task with neither actions nor
    assertions, whose database is not compared. Data for the world (initialization data, arguments) is
    unchanged, because a null is a value there.
    """
    criteria = task.evaluation_criteria or EvaluationCriteria()
    return {
        "user_scenario": _drop_empty(task.user_scenario),
        "initial_state": _normalise_initial_state(task.initial_state),
        "criteria": {
            "actions": [_normalise_action(action) for action in criteria.actions or []],
            "env_assertions": [
                _normalise_call(assertion) | {"assert_value": assertion.assert_value}
                for assertion in criteria.env_assertions or []
            ],
            "communicate_info": criteria.communicate_info or [],
            "nl_assertions": criteria.nl_assertions or [],
            "reward_basis": sorted(criteria.basis),
            "state_compared": criteria.actions is not None or criteria.env_assertions is not None,
            # Left out if there are none, so that the digests of all other tasks stay as they were.
            **({"forbidden_calls": _normalise_forbidden(criteria)} if criteria.forbidden_calls else {}),
        },
    }


def _normalise_forbidden(criteria: EvaluationCriteria) -> list[dict[str, Any]]:
    return [call.model_dump(mode="json") for call in criteria.forbidden_calls or []]


def _normalise_action(action: Action) -> dict[str, Any]:
    content = {"name": action.name, "arguments": action.arguments, "requestor": action.requestor}
    if action.compare_args is not None:
        content["compare_args"] = sorted(action.compare_args)
    return content


def _normalise_call(call: FunctionCall) -> dict[str, Any]:
    return {"env_type": call.env_type, "func_name": call.func_name, "arguments": call.arguments}


def _normalise_initial_state(state: InitialState | None) -> dict[str, Any]:
    if state is None:
        return {}
    content: dict[str, Any] = {}
    if state.initialization_data is not None:
        sides = state.initialization_data.model_dump(mode="json")
        if data := {side: update for side, update in sides.items() if update}:
            content["initialization_data"] = data
    if state.initialization_actions:
        content["initialization_actions"] = [_normalise_call(call) for call in state.initialization_actions]
    if state.message_history:
        content["message_history"] = [_normalise_message(message) for message in state.message_history]
    return content


def _normalise_message(message: Message) -> dict[str, Any]:
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


def _drop_empty(value: Any) -> Any:
    """Remove nulls and empty parts from a value at all levels; None if nothing is left."""
    if isinstance(value, dict):
        items = {key: _drop_empty(item) for key, item in value.items()}
        return {key: item for key, item in items.items() if item is not None} or None
    if isinstance(value, list):
        return [_drop_empty(item) for item in value] or None
    return None if value == "" else value


def _check_words(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("no_words", "expected at least one word; write what the customer says")
    return text


SpokenText = Annotated[str, AfterValidator(_check_words)]
"""A text that a customer says."""

Alternatives = Annotated[tuple[SpokenText, ...], Field(min_length=1)]
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


class RequiredOutcome(StrEnum):
    """The outcome of the customer's last turn that the next turn requires."""

    ANYTHING = "anything"
    DONE = "done"
    REFUSED = "refused"


class Request(Record):
    """One request of the customer, for an action or for an answer.

    Attributes:
        about: Ids of records that an agent may name when it asks for confirmation. The customer says no to
            any other id.
        details: The customer's answers when the agent asks for details.
        answer: The text that answers the customer's question; empty if the request is for an action.
        refused: Whether the policy forbids the request.
    """

    about: tuple[str, ...]
    details: dict[Slot, SpokenText] = Field(default_factory=dict)
    answer: str = ""
    refused: bool = False


class Turn(Record):
    """The requests that the customer makes at one time.

    Attributes:
        insists: The customer's replies to refusals, one at a time, before the customer accepts them.
        after: The required outcome of the previous turn. After any other outcome, this turn is left out.
        actions: The number of the task's gold actions that belong to this turn.
    """

    says: SpokenText
    requests: Annotated[tuple[Request, ...], Field(min_length=1)]
    insists: tuple[SpokenText, ...] = ()
    after: RequiredOutcome = RequiredOutcome.ANYTHING
    actions: int = Field(default=0, ge=0)

    @property
    def has_forbidden_request(self) -> bool:
        """Whether the policy forbids any request of the turn."""
        return any(request.refused for request in self.requests)

    @property
    def has_allowed_request(self) -> bool:
        """Whether the policy allows any request of the turn."""
        return not all(request.refused for request in self.requests)


class Replies(Record):
    """Alternative texts for the phrases that every customer needs. The seed selects one of each."""

    yes: Alternatives
    wrong: Alternatives
    wait: Alternatives
    unknown: Alternatives
    bye: Alternatives
    giving_up: Alternatives


class Script(Record):
    """A scripted customer.

    Attributes:
        family: The kind of pressure that the case puts on an agent.
        identity: The details by which customers identify themselves. Customers do not know missing details.
        patience: The maximum number of messages that the customer sends.
    """

    schema_version: Literal[1] = 1
    family: str
    content: Content
    identity: dict[Slot, SpokenText]
    turns: Annotated[tuple[Turn, ...], Field(min_length=1)]
    replies: Replies
    patience: int = Field(default=MAX_PATIENCE, ge=2, le=MAX_PATIENCE)

    @property
    def refuses_all(self) -> bool:
        """Whether the policy forbids every request, so an agent that does nothing is right."""
        return not any(turn.has_allowed_request for turn in self.turns)


class SlotScript(Record):
    """A scripted user for any domain, who answers from a table of facts.

    Attributes:
        goal: The result that the user wants.
        opening: The user's first message.
        knows: The facts that the user tells if the agent asks for them, by name.
        agrees_only: Words of which a proposal must name one for the user to agree; None for the words of the
            goal. Earlier versions named it `agrees_to`, and counted the words of the goal too.
        patience: The maximum number of messages that the user sends.
    """

    kind: Literal["slots"] = "slots"
    goal: SpokenText
    opening: SpokenText
    knows: dict[str, SpokenText] = Field(default_factory=dict)
    agrees_only: tuple[str, ...] | None = Field(
        default=None, validation_alias=AliasChoices("agrees_only", "agrees_to")
    )
    patience: int = Field(default=MAX_PATIENCE, ge=2, le=MAX_PATIENCE)


def slot_script_of(task: Task) -> SlotScript | None:
    """Return the script of a written task's user; None if the task has none.

    Raises:
        CaseError: the script is damaged; the message names the task and the place.
    """
    scenario: Any = task.user_scenario
    script_data = scenario.get(SCRIPT_KEY) if isinstance(scenario, dict) else None
    if not isinstance(script_data, dict) or script_data.get("kind") != "slots":
        return None
    try:
        return SlotScript.model_validate(script_data)
    except ValidationError as error:
        raise CaseError(f"task {task.id!r}: its user's script is damaged: {first_problem(error)}") from None


def script_of(task: Task) -> Script | None:
    """Return the customer script of a case; None if the task has none.

    Raises:
        CaseError: the script is damaged, or does not fit its task; the message names the task and the place.
    """
    scenario: Any = task.user_scenario
    script_data = scenario.get(SCRIPT_KEY) if isinstance(scenario, dict) else None
    if script_data is None or (isinstance(script_data, dict) and script_data.get("kind") == "slots"):
        return None
    try:
        script = Script.model_validate(script_data)
    except ValidationError as error:
        raise CaseError(f"task {task.id!r}: its customer script is damaged: {first_problem(error)}") from None
    if problem := _script_problem(task, script) or _id_problem(task.id):
        raise CaseError(problem)
    return script


def _script_problem(task: Task, script: Script) -> str:
    """Describe how a script contradicts its task; empty if the script fits."""
    criteria = task.evaluation_criteria
    if criteria is None or criteria.actions is None:
        field = "evaluation_criteria" if criteria is None else "evaluation_criteria.actions"
        return f"task {task.id!r}: has no {field}; list the gold actions, or [] if the agent must only refuse"
    turn_actions, task_actions = sum(turn.actions for turn in script.turns), len(criteria.actions)
    if turn_actions != task_actions:
        return (
            f"task {task.id!r}: the turns of its script have {turn_actions} gold actions, but the task has "
            f"{task_actions}: correct 'actions' of the turns, the number of gold actions in each"
        )
    return ""


def _id_problem(task_id: str) -> str:
    """Return why an id cannot be typed or used as the name of a test; empty if it can be both."""
    remedy = "name it in letters, digits, '-' and '_'"
    if not task_id:
        return f"a case has an empty id; {remedy}"
    if len(task_id) > MAX_ID_LENGTH:
        return (
            f"task {task_id[:20] + '…'!r}: its id has {len(task_id)} characters, at most {MAX_ID_LENGTH} "
            f"are allowed; {remedy}"
        )
    if not task_id.isprintable() or " " in task_id:
        return f"task {task_id!r}: its id contains white space or unprintable characters; {remedy}"
    if "::" in task_id:
        return f"task {task_id!r}: its id contains '::', which separates names in pytest's node ids; {remedy}"
    return ""


def natural_sort_key(task_id: str) -> tuple[int, int, str]:
    """Return a sort key of task ids: numbers by value, before other names."""
    return (0, int(task_id), task_id) if task_id.isascii() and task_id.isdigit() else (1, 0, task_id)
