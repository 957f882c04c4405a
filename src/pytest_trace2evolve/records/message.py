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
from pytest_trace2evolve.utils.reading import problem_in

Requestor = Literal["assistant", "user"]

STOP = "###STOP###"
"""The mark by which a participant ends a simulation."""

USER_STOPS = (STOP, "###TRANSFER###", "###OUT-OF-SCOPE###")
"""Marks in a user's message that end a simulation."""

GREETING = "Hi! How can I help you today?"
"""The agent's first message; the same in every simulation, as in τ²."""

MALFORMED = "malformed_arguments"
"""The only argument of a call whose arguments were not a JSON object. The tool rejects such a call, live or
replayed."""

MAX_DEPTH = 100
"""The most levels of nested lists and objects. pydantic's JSON reader accepts 200 for a whole file."""

MAX_ITEMS = 1_000_000
"""The most values inside one value. The limit stops a list that holds itself twice, which has no end."""

MAX_SHOWN = 10_000
"""The most characters kept of the `repr` of arguments that are not JSON."""


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


def unstorable(value: Any) -> str:
    """Return why evidence cannot hold a value as JSON; empty if it can.

    Only plain dictionaries with text keys, lists, texts, finite numbers, booleans and None are JSON.
    """
    level: list[Any] = [value]
    items = 0
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.keys()
                inner += item.values()
                if not all(isinstance(key, str) for key in item):
                    return "an object has a key that is no text"
            elif isinstance(item, list):
                inner += item
            elif problem := _scalar_problem(item):
                return problem
        items += len(inner)
        if items > MAX_ITEMS:
            return f"it holds more than {MAX_ITEMS:,} values"
        if not inner:
            return ""
        level = inner
    return f"it is nested deeper than {MAX_DEPTH} levels"


def _scalar_problem(item: Any) -> str:
    if item is None or isinstance(item, bool):
        return ""
    if isinstance(item, str):
        return "" if storable_text(item) == item else "a text holds half a surrogate pair"
    if isinstance(item, int):
        return "" if abs(item) <= sys.float_info.max else "a number has more than 308 digits"
    if isinstance(item, float):
        return "" if math.isfinite(item) else f"{item} is no number of JSON"
    return f"{type(item).__name__} is no type of JSON"


def storable_message(message: Message, role: Requestor) -> Message:
    """Return a participant's message in the form in which it is stored and read back.

    Its fields may have any type. Texts are changed by `storable_text`. Arguments of other types, such as
    tuples and dates, become the JSON that pydantic writes for them. Arguments that have no JSON form become
    `MALFORMED`.

    Raises:
        ValueError: the role differs, a call names a different requestor, or a field has a wrong type or
            cannot be written as JSON.
    """
    if message.role != role:
        raise ValueError(f"a message of role {message.role!r}, not {role!r}")
    calls = message.tool_calls or []
    if not isinstance(calls, list | tuple) or not all(isinstance(call, ToolCall) for call in calls):
        raise ValueError("a message whose 'tool_calls' is not a list of ToolCall")
    if foreign := [call for call in calls if call.requestor != role]:
        raise ValueError(f"a call of {foreign[0].name!r} by {foreign[0].requestor!r}, not {role!r}")
    try:
        record = _storable_fields(message.model_copy(update={"tool_calls": None}))
        if calls or "tool_calls" in message.model_fields_set:
            record["tool_calls"] = [
                _storable_fields(call.model_copy(update={"arguments": {}}))
                | {"arguments": _storable_arguments(call)}
                for call in calls
            ] or message.tool_calls
        return Message.model_validate(record)
    except ValidationError as error:
        problem = problem_in(error, "message")
    except (ValueError, RecursionError, MemoryError) as error:
        problem = str(error).partition("\n")[0]
    raise ValueError(f"a message that cannot be stored: {problem}")


def _storable_fields(record: Tau2Record) -> dict[str, Any]:
    fields = record.model_dump(mode="json", exclude_unset=True, warnings="error")
    return {name: _storable(value) for name, value in fields.items()}


def _storable(value: Any) -> Any:
    """Return a value with its texts changed by `storable_text`. Raises ValueError if it is not JSON."""
    if not unstorable(value):
        return value
    changed = _escaped(value)
    if problem := unstorable(changed):
        raise ValueError(problem)
    return changed


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if isinstance(value, dict):
        return {storable_text(name): _escaped(item) for name, item in value.items()}
    return value


def _storable_arguments(call: ToolCall) -> dict[str, Any]:
    if isinstance(call.arguments, dict) and not unstorable(call.arguments):
        return deepcopy(call.arguments)  # a copy, because the agent may change its own
    try:
        dumped = pydantic_core.to_jsonable_python(call.arguments, inf_nan_mode="constants")
        if isinstance(dumped, dict) and not unstorable(dumped):
            return dumped
    except (ValueError, RecursionError, MemoryError):
        pass  # a type that has no JSON form
    try:
        shown = storable_text(repr(call.arguments)[:MAX_SHOWN])
    except Exception as error:  # the `repr` of any object may raise
        shown = f"arguments that cannot be shown ({type(error).__name__})"
    return {MALFORMED: shown}
