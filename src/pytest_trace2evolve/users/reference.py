"""A scripted user for `oracle` and `nop`: performs the user's gold actions when asked, then ends the call.

The user of a solo simulation: there, and never asked.
"""

from collections.abc import Sequence

from pytest_trace2evolve.errors import ParticipantError
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.task import Task


class GoldUser:
    """Opens with the task's request; when the agent asks for the next gold action, performs it."""

    def __init__(self, task: Task) -> None:
        self._task = task

    async def respond(self, history: Sequence[Message]) -> Message:
        """The user's next message."""
        last = history[-1]
        if last.role == "tool":
            return Message(role="user", content="That is done.")
        if not any(message.role == "user" for message in history):
            return Message(role="user", content=_request(self._task))
        done = sum(len(message.tool_calls or ()) for message in history)
        actions = self._task.actions
        if (
            done < len(actions)
            and actions[done].requestor == "user"
            and actions[done].name in (last.content or "")
        ):
            action = actions[done]
            call = ToolCall(id=f"call_{done}", name=action.name, arguments=action.arguments, requestor="user")
            return Message(role="user", tool_calls=[call])
        return Message(role="user", content="Thank you, that is all. ###STOP###")


def _request(task: Task) -> str:
    """The reason for the call where the scenario states one apart; a whole script is not for saying aloud."""
    scenario = task.user_scenario
    instructions = scenario.get("instructions") if isinstance(scenario, dict) else None
    reason = instructions.get("reason_for_call") if isinstance(instructions, dict) else None
    return str(reason) if reason else "Hello, I need help with something."


class DummyUser:
    """Stands where a user is wanted and none takes part."""

    async def respond(self, history: Sequence[Message]) -> Message:
        """Never a message.

        Raises:
            ParticipantError: always: in solo mode nobody speaks to the user.
        """
        raise ParticipantError("the user of a solo simulation was asked to speak")
