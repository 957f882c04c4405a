"""Messages of a trace, in tau2's JSON shape."""

from typing import Any, Literal

from pytest_trace2evolve.records.base import Tau2Record

Requestor = Literal["assistant", "user"]

STOP = "###STOP###"
"""The mark by which a participant ends a simulation."""

USER_STOPS = (STOP, "###TRANSFER###", "###OUT-OF-SCOPE###")
"""Marks in a user's message that end a simulation."""

GREETING = "Hi! How can I help you today?"
"""The agent's first message; the same in every simulation, as in τ²."""


class ToolCall(Tau2Record):
    """One call of a tool, by the agent (`assistant`) or by the user."""

    id: str = ""
    name: str
    arguments: dict[str, Any]
    requestor: Requestor = "assistant"


class Message(Tau2Record):
    """One message of a trace.

    A `tool` message answers the call with the same `id`, says who asked (`requestor`) and whether the
    tool raised (`error`). Other roles carry text, tool calls, or both.
    """

    role: Literal["system", "assistant", "user", "tool"]
    content: str | None = None
    tool_calls: list[ToolCall] | None = None
    id: str | None = None
    requestor: Requestor | None = None
    error: bool | None = None

    @property
    def text(self) -> str | None:
        """The text, or None where there is none but white space."""
        return self.content if self.content and not self.content.isspace() else None
