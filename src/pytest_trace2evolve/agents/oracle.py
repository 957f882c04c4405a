"""The oracle: performs a task's gold actions, asks the user for theirs, and says what must be said.

It and the scripted user need no memory: how far a trace has come is the number of tool calls in it.
"""

from collections.abc import Sequence

from pytest_trace2evolve.records.message import STOP, Message, ToolCall
from pytest_trace2evolve.records.task import Task


def actions_done(history: Sequence[Message]) -> int:
    """How many tool calls a trace holds, the agent's and the user's."""
    return sum(len(message.tool_calls or ()) for message in history)


class OracleAgent:
    """Upper frame of every agent: what it cannot solve, the task's own gold actions do not solve.

    In solo mode it performs the user's gold actions too.
    """

    name = "oracle"

    def __init__(self, task: Task, *, solo: bool = False) -> None:
        self._task = task
        self._solo = solo

    async def respond(self, history: Sequence[Message]) -> Message:
        """The next gold action as a tool call, a request to the user for theirs, or the closing message."""
        done = actions_done(history)
        actions = self._task.actions
        if done < len(actions):
            action = actions[done]
            if action.requestor == "user" and not self._solo:
                return Message(
                    role="assistant", content=f"Please use {action.name} and tell me when it is done."
                )
            call = ToolCall(id=f"call_{done}", name=action.name, arguments=action.arguments)
            return Message(role="assistant", tool_calls=[call])
        criteria = self._task.evaluation_criteria
        said = (criteria.communicate_info or []) if criteria else []
        closing = [*said, STOP] if self._solo else ["Everything you asked for is done.", *said]
        return Message(role="assistant", content="\n".join(closing))
