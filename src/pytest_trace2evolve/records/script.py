"""What a scripted customer knows, wants and says. It travels inside a task, under `user_scenario.script`."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from pytest_trace2evolve.errors import CaseError
from pytest_trace2evolve.records.base import Record, complaint
from pytest_trace2evolve.records.task import Task

SCRIPT = "script"
"""The key of a task's user scenario that holds the script; tau2's own tools pass over it."""


PATIENCE_MOST = 24
"""Messages that a customer sends at most; a budget of steps must leave room for the answers."""

ID_MOST = 200
"""Characters of a case's id: it names tests and files."""


def _with_words(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("no_words", "there is no word in it: write what the customer says")
    return text


Said = Annotated[str, AfterValidator(_with_words)]
"""What a customer says."""


class Slot(StrEnum):
    """What an agent can ask a customer for."""

    EMAIL = "email"
    NAME = "name"
    ORDER = "order"
    ITEMS = "items"
    OPTIONS = "options"
    REASON = "reason"
    PAYMENT = "payment"
    ADDRESS = "address"


class Content(StrEnum):
    """Which content a case is made of: what training may see, or what it may not."""

    TRAIN = "train"
    HELDOUT = "heldout"


class After(StrEnum):
    """What must have come of the customer's last turn for the next to be taken."""

    ANYTHING = "anything"
    DONE = "done"
    REFUSED = "refused"


class Request(Record):
    """One thing that the customer wants.

    Attributes:
        about: Ids of records that an agent may name when it asks for a yes; any other id gets a no.
        details: What the customer answers when asked for it.
        answer: Text that settles a question; empty where something is to be done.
        refused: The policy does not allow it.
    """

    about: tuple[str, ...]
    details: dict[Slot, Said] = Field(default_factory=dict)
    answer: str = ""
    refused: bool = False


class Turn(Record):
    """What the customer brings up at one time.

    Attributes:
        says: How.
        requests: What it asks for.
        insists: What the customer says to refusals, one a time, before they are taken.
        after: What must have come of the turn before; a turn that does not fit is left out.
        actions: How many of the task's gold actions belong to it.
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


Some = Annotated[tuple[Said, ...], Field(min_length=1)]


class Replies(Record):
    """How the customer says what every customer says; one of each is chosen by the seed."""

    yes: Some
    wrong: Some
    wait: Some
    unknown: Some
    bye: Some
    giving_up: Some


class Script(Record):
    """A scripted customer.

    Attributes:
        family: Which kind of pressure the case puts on an agent.
        identity: How the customer identifies themselves; what is missing they do not know.
        patience: How many messages they send at most.
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
        """Whether refusing is all that the policy leaves: an agent that does nothing is right."""
        return not any(turn.done for turn in self.turns)


def script_of(task: Task) -> Script | None:
    """The customer script of a task; None where it has none.

    Raises:
        CaseError: the script is damaged, or does not fit its task; names the task and the place.
    """
    scenario: Any = task.user_scenario
    raw = scenario.get(SCRIPT) if isinstance(scenario, dict) else None
    if raw is None:
        return None
    try:
        script = Script.model_validate(raw)
    except ValidationError as error:
        raise CaseError(f"task {task.id!r}: its customer script is damaged: {complaint(error)}") from None
    if problem := _misfit(task, script) or _unfit_id(task.id):
        raise CaseError(problem)
    return script


def _misfit(task: Task, script: Script) -> str:
    """Where a script contradicts its task; empty where it fits."""
    criteria = task.evaluation_criteria
    if criteria is None or criteria.actions is None:
        field = "evaluation_criteria" if criteria is None else "evaluation_criteria.actions"
        return f"task {task.id!r}: has no {field}: name the gold actions, [] where only refusing is right"
    told, gold = sum(turn.actions for turn in script.turns), len(criteria.actions)
    if told != gold:
        return (
            f"task {task.id!r}: the turns of its script have {told} gold actions and the task has {gold}: "
            "mend 'actions' of the turns, which say how many belong to each"
        )
    return ""


def _unfit_id(name: str) -> str:
    """Why an id cannot name a test and be typed; empty where it can."""
    mend = "name it in letters, digits, '-' and '_'"
    if not name:
        return f"a case has an empty id; {mend}"
    if len(name) > ID_MOST:
        return f"task {name[:20] + '…'!r}: its id has {len(name)} characters, {ID_MOST} are allowed; {mend}"
    if not name.isprintable() or " " in name:
        return f"task {name!r}: its id holds white space or signs that cannot be printed; {mend}"
    if "::" in name:
        return f"task {name!r}: its id holds '::', which ends a name in pytest's node ids; {mend}"
    return ""
