"""What an agent did in a scenario, read from its trace: calls and words, before its turn and from then on."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Action, Task
from pytest_trace2evolve.worlds.support.tools import TOOL_TYPES

SPARE = 3
"""Calls beyond the expert's that an agent may make: who reads everything, or repeats itself, is not paid."""


@dataclass(frozen=True)
class Made:
    """One call: its place in the trace, and whether the tool refused it."""

    place: int
    name: str
    arguments: dict[str, object]
    failed: bool

    @property
    def writes(self) -> bool:
        """Whether it is of a tool that changes something."""
        return is_write(self.name)

    def does(self, action: Action) -> bool:
        """Whether it does what a gold action does; items may stand in another order."""
        return self.name == action.name and _in_order(self.arguments) == _in_order(action.arguments)


class Deeds:
    """What was done in a scenario.

    Args:
        task: The scenario.
        trace: All that was said so far, the history included.
    """

    def __init__(self, task: Task, trace: Sequence[Message]) -> None:
        self.task = task
        self.trace = trace
        self.begins = len(task.history)

    @cached_property
    def calls(self) -> list[Made]:
        """All calls that the agent made, those of the history too."""
        return list(_calls(self.trace))

    @cached_property
    def own(self) -> list[Made]:
        """The calls since it was the agent's turn."""
        return [call for call in self.calls if call.place >= self.begins]

    @cached_property
    def writes(self) -> list[Made]:
        """The changes that the agent tried since then, in vain or not."""
        return [call for call in self.own if call.writes]

    @cached_property
    def open(self) -> list[Action]:
        """The expert's changes that the history does not hold."""
        made = len(self.calls) - len(self.own)
        return [action for action in self.task.actions[made:] if is_write(action.name)]

    @cached_property
    def texts(self) -> list[tuple[int, str]]:
        """What the agent said to the customer since then, with its place."""
        return [
            (place, message.content or "")
            for place, message in enumerate(self.trace)
            if place >= self.begins and message.role == "assistant" and not message.tool_calls
        ]

    @property
    def lavish(self) -> bool:
        """Whether the agent made more calls than an expert needs, and some to spare."""
        begun = len(self.calls) - len(self.own)
        return len(self.own) > len(self.task.actions) - begun + SPARE

    def read(self, record: str, before: int | None = None) -> bool:
        """Whether a record was read, before some place of the trace or at all."""
        return any(
            _gets(call) and record in call.arguments.values()
            for call in self.calls
            if before is None or call.place < before
        )

    def found(self, record: str) -> bool:
        """Whether a record was read since then that the history had not read: once more is not found."""
        known = [call for call in self.calls if call.place < self.begins]
        return self.read(record) and not any(
            record in call.arguments.values() for call in known if _gets(call)
        )

    def on_course(self) -> bool:
        """Whether every change tried so far is the expert's next one, and took effect."""
        return len(self.writes) <= len(self.open) and all(
            made.does(action) and not made.failed
            for made, action in zip(self.writes, self.open, strict=False)
        )


def _gets(call: Made) -> bool:
    return call.name.startswith("get_") and not call.failed


def is_write(tool: str) -> bool:
    """Whether a tool of the support world changes something."""
    return TOOL_TYPES.get(tool) is ToolType.WRITE


def call_of(action: Action, number: int = 0) -> Message:
    """The message that makes a gold action's call."""
    call = ToolCall(id=f"call_{number}", name=action.name, arguments=action.arguments)
    return Message(role="assistant", content=None, tool_calls=[call])


def ahead(task: Task) -> list[Action]:
    """The expert's calls that the history does not hold."""
    return task.actions[sum(len(message.tool_calls or ()) for message in task.history) :]


def reads_ahead(task: Task) -> list[Message]:
    """The calls by which the expert finds out what must be known before its next change."""
    found = []
    for number, action in enumerate(ahead(task)):
        if is_write(action.name):
            break
        found.append(call_of(action, number))
    return found


def _calls(trace: Sequence[Message]) -> Iterator[Made]:
    waiting: list[tuple[int, ToolCall]] = []
    for place, message in enumerate(trace):
        if message.role == "tool" and waiting:
            asked, call = waiting.pop(0)
            yield Made(asked, call.name, call.arguments, bool(message.error))
        else:
            waiting = [(place, call) for call in message.tool_calls or ()]


def _in_order(arguments: dict[str, object]) -> dict[str, object]:
    """Arguments with items, and what comes in place of each, in one order."""
    old, new = arguments.get("item_ids"), arguments.get("new_item_ids")
    if not isinstance(old, list):
        return arguments
    if isinstance(new, list) and len(new) == len(old):
        pairs = sorted(zip(old, new, strict=True), key=json.dumps)
        return {**arguments, "item_ids": [one for one, _ in pairs], "new_item_ids": [one for _, one in pairs]}
    return {**arguments, "item_ids": sorted(old, key=json.dumps)}
