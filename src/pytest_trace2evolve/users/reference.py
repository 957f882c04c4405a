"""The users of the reference agents."""

from collections.abc import Sequence

from pytest_trace2evolve.agents.reference import count_tool_calls
from pytest_trace2evolve.errors import ParticipantError
from pytest_trace2evolve.records.message import STOP_MARK, Message, ToolCall
from pytest_trace2evolve.records.task import Task


class GoldUser:
    """Opens with the task's request, and performs the user's gold actions when the agent asks for them."""

    def __init__(self, task: Task) -> None:
        self._task = task

    async def respond(self, history: Sequence[Message]) -> Message:
        last_message = history[-1]
        if last_message.role == "tool":
            return Message(role="user", content="That is done.")
        if not any(message.role == "user" for message in history):
            return Message(role="user", content=_opening_request(self._task))
        call_count = count_tool_calls(history[len(self._task.history) :])
        action = self._task.actions[call_count] if call_count < len(self._task.actions) else None
        if action is None or action.requestor != "user" or action.name not in (last_message.content or ""):
            return Message(role="user", content=f"Thank you, that is all. {STOP_MARK}")
        call = ToolCall(
            id=f"call_{call_count}", name=action.name, arguments=action.arguments, requestor="user"
        )
        return Message(role="user", tool_calls=[call])


def _opening_request(task: Task) -> str:
    """Return the scenario's reason for the call, or a general request if there is none."""
    scenario = task.user_scenario
    instructions = scenario.get("instructions") if isinstance(scenario, dict) else None
    reason = instructions.get("reason_for_call") if isinstance(instructions, dict) else None
    return str(reason) if reason else "Hello, I need help with something."


class DummyUser:
    """The user of a solo simulation, who is never asked to speak."""

    async def respond(self, history: Sequence[Message]) -> Message:
        raise ParticipantError("the user of a solo simulation was asked to speak")
