"""What a scripted customer knows, wants and says. It travels inside a task, under `user_scenario.script`."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, ValidationError

from pytest_trace2evolve.errors import CaseError
from pytest_trace2evolve.records.base import Record, complaint
from pytest_trace2evolve.records.task import Task

SCRIPT = "script"
"""The key of a task's user scenario that holds the script; tau2's own tools pass over it."""


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
    details: dict[Slot, str] = Field(default_factory=dict)
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

    says: str
    requests: Annotated[tuple[Request, ...], Field(min_length=1)]
    insists: tuple[str, ...] = ()
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
    """How the customer says what every customer says; one of each is chosen by the seed."""

    yes: Annotated[tuple[str, ...], Field(min_length=1)]
    wrong: Annotated[tuple[str, ...], Field(min_length=1)]
    wait: Annotated[tuple[str, ...], Field(min_length=1)]
    unknown: Annotated[tuple[str, ...], Field(min_length=1)]
    bye: Annotated[tuple[str, ...], Field(min_length=1)]
    giving_up: Annotated[tuple[str, ...], Field(min_length=1)]


class Script(Record):
    """A scripted customer.

    Attributes:
        family: Which kind of pressure the case puts on an agent.
        identity: How the customer identifies themselves; what is missing they do not know.
        patience: How many messages they send at most.
    """

    schema_version: int = 1
    family: str
    content: Content
    identity: dict[Slot, str]
    turns: Annotated[tuple[Turn, ...], Field(min_length=1)]
    replies: Replies
    patience: int = Field(default=24, ge=2)

    @property
    def refuses_all(self) -> bool:
        """Whether refusing is all that the policy leaves: an agent that does nothing is right."""
        return not any(turn.done for turn in self.turns)


def script_of(task: Task) -> Script | None:
    """The customer script of a task; None where it has none.

    Raises:
        CaseError: the script is damaged; names the task and the place.
    """
    scenario: Any = task.user_scenario
    raw = scenario.get(SCRIPT) if isinstance(scenario, dict) else None
    if raw is None:
        return None
    try:
        return Script.model_validate(raw)
    except ValidationError as error:
        raise CaseError(f"task {task.id!r}: its customer script is damaged: {complaint(error)}") from None
