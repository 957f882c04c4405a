"""Reading a trace: its tool calls in order, and whether it is whole."""

from collections.abc import Iterator, Sequence

from pytest_trace2evolve.errors import TraceError
from pytest_trace2evolve.records.message import Message, ToolCall


def tool_calls(trace: Sequence[Message]) -> Iterator[ToolCall]:
    """The tool calls of the agent and the user, in order."""
    for message in trace:
        if message.role in ("assistant", "user"):
            yield from message.tool_calls or ()


def answered_calls(trace: Sequence[Message]) -> list[ToolCall]:
    """The tool calls in order, each checked to be followed by its own result, as tau2's replay demands.

    Raises:
        TraceError: a call has no result, a result has no call, or their ids differ.
    """
    calls: list[ToolCall] = []
    waiting: list[ToolCall] = []
    for index, message in enumerate(trace):
        if message.role == "tool":
            if not waiting:
                raise TraceError(f"message {index} is a tool result that no tool call asked for")
            call = waiting.pop(0)
            if message.id != call.id:
                raise TraceError(f"message {index} answers call {message.id!r}, expected {call.id!r}")
            calls.append(call)
            continue
        if waiting:
            raise TraceError(f"message {index} follows call {waiting[0].id!r}, which has no result")
        if message.role in ("assistant", "user"):
            waiting = list(message.tool_calls or ())
    if waiting:
        raise TraceError(f"the trace ends before call {waiting[0].id!r} has a result")
    return calls


def is_solo(trace: Sequence[Message]) -> bool:
    """Whether a trace is of solo mode: nobody spoke as the user."""
    return not any(message.role == "user" for message in trace)
