"""An agent's trajectory in a scenario, read from its trace: calls and texts, before its turn and since."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import SCRIPT, Action, Task
from pytest_trace2evolve.worlds.support.tools import TOOL_TYPES

SPARE_CALLS = 3
"""Calls beyond the expert's that an agent may make: reading everything, or repeating calls, is not paid."""


@dataclass(frozen=True)
class MadeCall:
    """One call: its index in the trace, and whether the tool answered with an error."""

    index: int
    name: str
    arguments: dict[str, object]
    failed: bool

    def does(self, action: Action) -> bool:
        """Whether it does what a gold action does; items may come in another order."""
        return self.name == action.name and _sorted_items(self.arguments) == _sorted_items(action.arguments)

    def is_reading(self, record: str) -> bool:
        """Whether it reads a record."""
        return self.name.startswith("get_") and not self.failed and record in self.arguments.values()


class Trajectory:
    """The calls and texts of an agent in a scenario, whose trace includes the history."""

    def __init__(self, task: Task, trace: Sequence[Message]) -> None:
        self.task = task
        self.trace = trace
        self._begins = len(task.history)

    @cached_property
    def calls(self) -> list[MadeCall]:
        """All calls of the agent, those of the history too."""
        return list(_answered_calls(self.trace))

    @cached_property
    def own_calls(self) -> list[MadeCall]:
        """The calls since the agent's turn began."""
        return [call for call in self.calls if call.index >= self._begins]

    @cached_property
    def changes(self) -> list[MadeCall]:
        """The changes that the agent tried since then, successful or not."""
        return [call for call in self.own_calls if is_write(call.name)]

    @cached_property
    def gold_changes(self) -> list[Action]:
        """The expert's changes that are not in the history."""
        return [action for action in remaining_actions(self.task) if is_write(action.name)]

    @cached_property
    def texts(self) -> list[tuple[int, str]]:
        """What the agent has said to the customer since then, each with its index in the trace."""
        return [
            (index, message.content or "")
            for index, message in enumerate(self.trace)
            if index >= self._begins and message.role == "assistant" and not message.tool_calls
        ]

    @property
    def is_lavish(self) -> bool:
        """Whether the agent made more calls than the expert needs, and the spare ones."""
        in_history = len(self.calls) - len(self.own_calls)
        return len(self.own_calls) > len(self.task.actions) - in_history + SPARE_CALLS

    @property
    def first_change_fits(self) -> bool:
        """Whether the first change is the expert's next one by its tool and order."""
        if not self.changes or not self.gold_changes:
            return False
        first, gold = self.changes[0], self.gold_changes[0]
        return first.name == gold.name and first.arguments.get("order_id") == gold.arguments["order_id"]

    def has_read(self, record: str, before: int | None = None) -> bool:
        """Whether a record was read, in the history too; `before` is an index of the trace."""
        return any(call.is_reading(record) for call in self.calls if before is None or call.index < before)

    def has_discovered(self, record: str) -> bool:
        """Whether a record was read on the agent's turn that the history had not read."""
        return self.has_read(record) and not self.has_read(record, before=self._begins)


def is_write(tool: str) -> bool:
    """Whether a tool of the support world changes something."""
    return TOOL_TYPES.get(tool) is ToolType.WRITE


def say(text: str) -> Message:
    """A message to the customer."""
    return Message(role="assistant", content=text)


def call_message(action: Action, number: int = 0) -> Message:
    """The message that makes a gold action's call."""
    call = ToolCall(id=f"call_{number}", name=action.name, arguments=action.arguments)
    return Message(role="assistant", content=None, tool_calls=[call])


def with_arguments(action: Action, **arguments: object) -> Action:
    """The action with other arguments."""
    return action.model_copy(update={"arguments": {**action.arguments, **arguments}})


def remaining_actions(task: Task) -> list[Action]:
    """The expert's calls that are not in the history."""
    return task.actions[sum(len(message.tool_calls or ()) for message in task.history) :]


def reads_before_change(task: Task) -> list[Message]:
    """The calls by which the expert learns what it must know before its next change."""
    messages = []
    for number, action in enumerate(remaining_actions(task)):
        if is_write(action.name):
            break
        messages.append(call_message(action, number))
    return messages


def without_reading_orders(task: Task) -> list[Message]:
    """The expert's calls, except that no order is read."""
    actions = enumerate(remaining_actions(task))
    return [call_message(action, number) for number, action in actions if action.name != "get_order_details"]


def opening_of(task: Task) -> str:
    """The customer's first message."""
    says: str = task.user_scenario[SCRIPT]["turns"][0]["says"]
    return says


def order_id_of(task: Task) -> str:
    """The order that the customer means: the one that the expert reads last."""
    reads = [action for action in task.actions if action.name == "get_order_details"]
    return str(reads[-1].arguments["order_id"])


def _answered_calls(trace: Sequence[Message]) -> Iterator[MadeCall]:
    waiting: list[tuple[int, ToolCall]] = []
    for index, message in enumerate(trace):
        if message.role == "tool" and waiting:
            asked, call = waiting.pop(0)
            yield MadeCall(asked, call.name, call.arguments, bool(message.error))
        else:
            waiting = [(index, call) for call in message.tool_calls or ()]


def _sorted_items(arguments: dict[str, object]) -> dict[str, object]:
    """Arguments with their items, and the new item of each, in one order."""
    old, new = arguments.get("item_ids"), arguments.get("new_item_ids")
    if not isinstance(old, list):
        return arguments
    if isinstance(new, list) and len(new) == len(old):
        pairs = sorted(zip(old, new, strict=True), key=json.dumps)
        items = {"item_ids": [item for item, _ in pairs], "new_item_ids": [item for _, item in pairs]}
        return {**arguments, **items}
    return {**arguments, "item_ids": sorted(old, key=json.dumps)}
