"""The rules of a world that every agent must follow, and findings of breaches.

The traces of a world that declares its rules are checked for the invariants of `scoring.invariants`.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pytest_trace2evolve.records.base import Record


class Invariant(StrEnum):
    """Rules that hold on every trace. A collateral change and a minefield need no rules of the world."""

    AUTHENTICATION = "authentication"
    CONSENT = "consent"
    READ_BEFORE_WRITE = "read_before_write"
    ELIGIBILITY = "eligibility"
    OTHER_CUSTOMERS = "other_customers"
    PROMISES = "promises"
    COLLATERAL_CHANGE = "collateral_change"
    MINEFIELD = "minefield"


class Finding(Record):
    """One breach: the invariant, the position in the trace of the message that shows it, and the reason."""

    invariant: Invariant
    message: int = Field(ge=0)
    why: str


def _check_word(word: str) -> str:
    if not word.strip() or word != word.lower():
        raise ValueError(f"{word!r} is compared with lower-case text; write a word in lower case")
    return word


Word = Annotated[str, AfterValidator(_check_word)]
"""A word that is compared with text in lower case."""

ResultPath = Annotated[str, Field(pattern=r"^([^.]+(\.[^.]+)*)?$")]
"""The path of an id in a tool's result (see `id_at`)."""


class Reading(Record):
    """A tool that reads a personal record: its table, and the argument that names the record."""

    table: str
    argument: str


class Writing(Record):
    """A tool that changes or creates a record.

    Attributes:
        table: The record's table.
        argument: The argument that names the record; empty for a new record, whose id is in the result.
        named: Beginnings of the words by which an agent announces the change, in lower case.
        statuses: Statuses of a record that allow the change; empty if every status does.
        consent: Whether the customer must have agreed to the change.
        authentication: Whether a customer must have been identified before the change.
        creates: Whether the tool creates the record. A new record need not be read before.
        id_path: The path of the new record's id in the result (see `id_at`); only without `argument`.
    """

    table: str
    argument: str = ""
    named: tuple[Word, ...] = Field(min_length=1)
    statuses: frozenset[str] = frozenset()
    consent: bool = True
    authentication: bool = True
    creates: bool = False
    id_path: ResultPath = ""

    @model_validator(mode="after")
    def _check_record_id(self) -> "Writing":
        if not self.creates and not self.argument:
            raise ValueError(
                "argument is empty; name the argument that holds the record's id, or set creates"
            )
        if self.id_path and (self.argument or not self.creates):
            raise ValueError(
                f"id_path {self.id_path!r}: allowed only for a tool that creates a record and has no "
                "argument for its id; remove id_path"
            )
        if self.creates and self.statuses:
            raise ValueError("statuses: a record has no status before it is created; remove them")
        return self


class Promise(Record):
    """Words by which an agent claims to have done something, and the conditions that make the claim true.

    A claim is a verb after words of completion (`has been cancelled`, `I've cancelled`), or a noun before
    them (`the cancellation has been processed`). All text is in lower case.

    Attributes:
        tools: The tools that make the claim true if any of them is called successfully.
        verbs: Participles, such as `cancelled`.
        nouns: Nouns, such as `cancellation`.
        about: Words, one of which must occur before a verb or shortly after it; empty if the verb is enough.
        unless: Words that give the clause a different meaning.
        statuses: Statuses of a record that make the claim true of that record, no matter who caused them.
        phrases: Further phrases that express the claim.
        vague: Whether the claim counts only in a clause without any other claim.
    """

    tools: frozenset[str]
    verbs: tuple[Word, ...] = ()
    nouns: tuple[Word, ...] = ()
    about: tuple[Word, ...] = ()
    unless: tuple[Word, ...] = ()
    statuses: frozenset[str] = frozenset()
    phrases: tuple[Word, ...] = ()
    vague: bool = False


def _add_paths(tools: object) -> object:
    return dict.fromkeys(tools, "") if isinstance(tools, set | frozenset | list | tuple) else tools


class Rules(Record):
    """A world's rules of identity, consent and eligibility.

    Results of `reads` and `writes` are JSON objects.

    Attributes:
        identify: Tools that identify the customer, each with the path of the customer's id in its result (see
            `id_at`). A set of names stands for tools whose result is the id as plain text. A result that is a
            record counts as a read of the customer's record.
        customers: The name of the table of customers, which is keyed by their ids; empty if there is none.
        owner: The field of a record that holds its owner's id; empty if there is none.
        status: The field of a record that holds its status; empty if there is none.
        ids: By table, a regular expression for the ids of records as agents write them.
        reads: The tools that read records, by name.
        writes: The tools that change or create records, by name.
        promises: The claims that an agent may make only once they are true.
    """

    identify: Annotated[Mapping[str, ResultPath], BeforeValidator(_add_paths)]
    customers: str
    owner: str
    status: str
    ids: Mapping[str, str]
    reads: Mapping[str, Reading]
    writes: Mapping[str, Writing]
    promises: tuple[Promise, ...] = ()


def id_at(text: str, path: str) -> str | None:
    """Return the id at a path of a tool's result.

    Args:
        text: The result: an id as plain text, or JSON.
        path: Keys of objects and indexes of lists from the top, separated by dots, such as `guest.id` or
            `matches.0.id`; empty if the text itself is the id.

    Returns:
        The id; None if the path holds neither a non-empty string nor a whole number.
    """
    if path:
        return id_text(_value_at(_parse_json(text), path.split(".")))
    plain_id = text.strip()
    return None if plain_id[:1] in ("{", "[") else plain_id or None


def record_at(text: str, path: str) -> Mapping[str, Any] | None:
    """Return the object that holds the id at a path of a tool's result; None if there is no such object."""
    record = _value_at(_parse_json(text), path.split(".")[:-1]) if path else None
    return record if isinstance(record, dict) else None


def id_text(value: object) -> str | None:
    """Return an id as text; None for anything but a whole number or a non-empty text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None


def _parse_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _value_at(value: object, keys: list[str]) -> object:
    for key in keys:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value
