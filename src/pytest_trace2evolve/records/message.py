"""Messages of a trace, in tau2's JSON shape, and the values that evidence can hold.

A model or an agent may write values that cannot be stored: an unpaired surrogate is not UTF-8, NaN is not
JSON, and readers of JSON limit the depth. This module changes or rejects such values before they become part
of a trace. Every store can then write the trace, and every reader gets it back unchanged.
"""

import math
import sys
from copy import deepcopy
from typing import Any, Literal

import pydantic_core
from pydantic import ValidationError

from pytest_trace2evolve.records.base import Tau2Record
from pytest_trace2evolve.utils.canonical import storable_text
from pytest_trace2evolve.utils.reading import first_problem

Requestor = Literal["assistant", "user"]

STOP_MARK = "###STOP###"
"""The mark by which a participant ends a simulation."""

TRANSFER_MARK = "###TRANSFER###"
"""The message of a user who was transferred to a human; it ends a simulation, as in τ²."""

USER_STOP_MARKS = (STOP_MARK, TRANSFER_MARK, "###OUT-OF-SCOPE###")
"""Marks in a user's message that end a simulation."""

GREETING = "Hi! How can I help you today?"
"""The agent's first message; the same in every simulation, as in τ²."""

MALFORMED_ARGUMENTS = "malformed_arguments"
"""The only argument of a call whose arguments were not a JSON object. The tool rejects such a call, live or
replayed."""

PROVIDER_FIELDS = "provider_fields"
"""The field of a message and of a call that holds what only the endpoint of its model knows."""

MAX_DEPTH = 100
"""The maximum depth of nested lists and objects. pydantic's JSON reader accepts 200 for a whole file."""

MAX_ITEMS = 1_000_000
"""The maximum number of values inside one value. The limit ends the search in a list that contains itself
twice."""

MAX_REPR_LENGTH = 10_000
"""The maximum length of the stored `repr` of arguments that are not JSON."""

MAX_TOOL_CALLS = 128
"""The maximum number of tool calls in a message of a live conversation. Recorded messages have up to 15."""


class ToolCall(Tau2Record):
    """A call of a tool, by the agent (`assistant`) or by the user."""

    id: str = ""
    name: str
    arguments: dict[str, Any]
    requestor: Requestor = "assistant"


class Message(Tau2Record):
    """A message of a trace.

    A `tool` message answers the call with the same `id`. It says who made the call (`requestor`) and whether
    the tool raised (`error`). Messages of other roles carry text, tool calls, or both.
    """

    role: Literal["system", "assistant", "user", "tool"]
    content: str | None = None
    tool_calls: list[ToolCall] | None = None
    id: str | None = None
    requestor: Requestor | None = None
    error: bool | None = None

    @property
    def text(self) -> str | None:
        """The text; None if it is empty or white space."""
        return self.content if self.content and not self.content.isspace() else None


def storage_problem(value: Any) -> str:
    """Describe why evidence cannot store a value as JSON; empty if it can.

    Only plain dictionaries with string keys, lists, strings, finite numbers, booleans and None are JSON.
    """
    level: list[Any] = [value]
    items = 0
    for _ in range(MAX_DEPTH + 1):
        children: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                children += item.keys()
                children += item.values()
                if not all(isinstance(key, str) for key in item):
                    return "an object has a key that is not text"
            elif isinstance(item, list):
                children += item
            elif problem := _scalar_problem(item):
                return problem
        items += len(children)
        if items > MAX_ITEMS:
            return f"it contains more than {MAX_ITEMS:,} values"
        if not children:
            return ""
        level = children
    return f"it is nested deeper than {MAX_DEPTH} levels"


def _scalar_problem(item: Any) -> str:
    if item is None or isinstance(item, bool):
        return ""
    if isinstance(item, str):
        return "" if storable_text(item) == item else "a text contains half a surrogate pair"
    if isinstance(item, int):
        return "" if abs(item) <= sys.float_info.max else "a number has more than 308 digits"
    if isinstance(item, float):
        return "" if math.isfinite(item) else f"{item} is not a JSON number"
    return f"{type(item).__name__} is not a JSON type"


def storable_message(message: Message, role: Requestor) -> Message:
    """Return a participant's message in the form in which it is stored and read back.

    The fields of the message may hold values of any type. Texts are changed by `storable_text`. Arguments of
    other types, such as tuples and dates, become the JSON that pydantic writes for them. Arguments that have
    no JSON form become `MALFORMED_ARGUMENTS`.

    Raises:
        ValueError: the role differs, there are more than `MAX_TOOL_CALLS` calls, a call names a different
            requestor, or a field has a wrong type or cannot be written as JSON.
    """
    if message.role != role:
        raise ValueError(f"a message of role {message.role!r}, expected {role!r}")
    calls = message.tool_calls or []
    if not isinstance(calls, list | tuple) or not all(isinstance(call, ToolCall) for call in calls):
        raise ValueError("a message whose 'tool_calls' is not a list of ToolCall")
    if len(calls) > MAX_TOOL_CALLS:
        raise ValueError(f"a message with too many tool calls: {len(calls)}, at most {MAX_TOOL_CALLS}")
    if foreign_calls := [call for call in calls if call.requestor != role]:
        raise ValueError(
            f"a call of {foreign_calls[0].name!r} by {foreign_calls[0].requestor!r}, expected {role!r}"
        )
    try:
        fields = _to_storable_fields(message.model_copy(update={"tool_calls": None}))
        if calls or "tool_calls" in message.model_fields_set:
            fields["tool_calls"] = [
                _to_storable_fields(call.model_copy(update={"arguments": {}}))
                | {"arguments": _to_storable_arguments(call)}
                for call in calls
            ] or message.tool_calls
        return Message.model_validate(fields)
    except ValidationError as error:
        problem = first_problem(error, "message")
    except (ValueError, RecursionError, MemoryError) as error:
        problem = str(error).partition("\n")[0]
    raise ValueError(f"a message that cannot be stored: {problem}")


def _to_storable_fields(record: Tau2Record) -> dict[str, Any]:
    fields = record.model_dump(mode="json", exclude_unset=True, warnings="error")
    return {name: to_storable(value) for name, value in fields.items()}


def to_storable(value: Any) -> Any:
    """Return a value with its texts changed by `storable_text`. Raises ValueError if it is not JSON."""
    if not storage_problem(value):
        return value
    escaped = _escape_texts(value)
    if problem := storage_problem(escaped):
        raise ValueError(problem)
    return escaped


def _escape_texts(value: Any) -> Any:
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, list):
        return [_escape_texts(item) for item in value]
    if isinstance(value, dict):
        return {storable_text(name): _escape_texts(item) for name, item in value.items()}
    return value


def _to_storable_arguments(call: ToolCall) -> dict[str, Any]:
    if isinstance(call.arguments, dict) and not storage_problem(call.arguments):
        return deepcopy(call.arguments)  # a copy, because the agent may change its own
    try:
        arguments = pydantic_core.to_jsonable_python(call.arguments, inf_nan_mode="constants")
        if isinstance(arguments, dict) and not storage_problem(arguments):
            return arguments
    except (ValueError, RecursionError, MemoryError):
        pass  # a type that has no JSON form
    try:
        text = storable_text(repr(call.arguments)[:MAX_REPR_LENGTH])
    except Exception as error:  # the `repr` of any object may raise
        text = f"arguments that cannot be shown ({type(error).__name__})"
    return {MALFORMED_ARGUMENTS: text}
