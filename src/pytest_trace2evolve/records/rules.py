"""How a world says what any agent in it must keep to, and what was found to break that.

A world that declares its rules has its traces held against the invariants of `scoring.invariants`; one that
declares none needs nothing of this.
"""

from collections.abc import Mapping
from enum import StrEnum

from pydantic import Field

from pytest_trace2evolve.records.base import Record


class Invariant(StrEnum):
    """What holds on every trace, whatever its task."""

    AUTHENTICATION = "authentication"
    CONSENT = "consent"
    READ_BEFORE_WRITE = "read_before_write"
    ELIGIBILITY = "eligibility"
    OTHER_CUSTOMERS = "other_customers"
    PROMISES = "promises"


class Finding(Record):
    """One breach: the invariant, the place of the message in the trace that shows it, and why in a line."""

    invariant: Invariant
    message: int = Field(ge=0)
    why: str


class Reading(Record):
    """A tool that reads a personal record: its table, and the argument that names the record."""

    table: str
    argument: str


class Writing(Record):
    """A tool that changes a record.

    Attributes:
        table, argument: The record's table, and the argument that names the record.
        named: How words begin by which an agent that means to do this says so, in lower case.
        statuses: Statuses of a record that allow it; empty where any does.
        consent: Whether the customer must have said yes to it.
    """

    table: str
    argument: str
    named: tuple[str, ...] = Field(min_length=1)
    statuses: frozenset[str] = frozenset()
    consent: bool = True


class Promise(Record):
    """Words by which an agent claims to have done something, and what makes the claim true.

    A claim is a verb after words of completion (`has been cancelled`, `I've cancelled`), or a noun before
    them (`the cancellation has been processed`). All text is in lower case.

    Attributes:
        tools: A successful call of any of them makes it true.
        verbs: Participles, such as `cancelled`.
        nouns: Such as `cancellation`.
        about: Words of which one must stand before a verb or close behind it; empty where the verb is enough.
        unless: Words beside which the clause claims something else.
        statuses: Statuses of a record that make it true of that record, whoever brought it there.
        phrases: Further words that are the claim as they stand.
        vague: It counts only in a clause that makes no other claim.
    """

    tools: frozenset[str]
    verbs: tuple[str, ...] = ()
    nouns: tuple[str, ...] = ()
    about: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    statuses: frozenset[str] = frozenset()
    phrases: tuple[str, ...] = ()
    vague: bool = False


class Rules(Record):
    """A world's rules of identity, consent and eligibility.

    Results of the tools named here are JSON objects, those of `identify` the customer's id as plain text.

    Attributes:
        identify: Tools that identify the customer.
        customers: The table whose records are the customers themselves, under their ids.
        owner: The field of a record that holds its owner's id.
        status: The field of a record that holds its status.
        ids: By table, a regular expression of how agents write a record's id.
        reads, writes: By the tool's name.
        promises: What an agent may only say once it is true.
    """

    identify: frozenset[str]
    customers: str
    owner: str
    status: str
    ids: Mapping[str, str]
    reads: Mapping[str, Reading]
    writes: Mapping[str, Writing]
    promises: tuple[Promise, ...] = ()
