"""ACTION: which gold actions a trace's tool calls match."""

from collections.abc import Mapping, Sequence

from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.score import UNKNOWN_TOOL, ActionCheck, ToolType
from pytest_trace2evolve.records.task import Action, Task
from pytest_trace2evolve.scoring.trace import tool_calls


def matches(action: Action, call: ToolCall) -> bool:
    """Whether a tool call carries out a gold action.

    The names agree, and so do the arguments named by `compare_args` (where that is None: those of the
    *call*). An empty set of names matches any call of the tool. Who called does not matter.
    """
    if action.name != call.name:
        return False
    names = call.arguments.keys() if action.compare_args is None else action.compare_args
    wanted = {name: value for name, value in action.arguments.items() if name in names}
    given = {name: value for name, value in call.arguments.items() if name in names}
    return wanted == given


def check_actions(
    task: Task, trace: Sequence[Message], types: Mapping[str, ToolType]
) -> tuple[ActionCheck, ...]:
    """One check a gold action, with the type of its tool."""
    calls = list(tool_calls(trace))
    return tuple(
        ActionCheck(
            action=action.model_dump(mode="json", exclude_unset=True),
            tool_type=types.get(action.name, UNKNOWN_TOOL),
            matched=any(matches(action, call) for call in calls),
        )
        for action in task.actions
    )
