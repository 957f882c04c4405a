"""The oracle of a synthetic case: performs the gold actions, and asks for a yes before it writes.

Like the oracle of τ²'s own tasks it has no memory: how far it has come follows from the trace.

The do-nothing agent: what it passes, a task does not ask for.

The oracle: performs a task's gold actions, asks the user for theirs, and says what must be said.

It and the scripted user need no memory: how far a trace has come is the number of tool calls in it.
"""

from collections.abc import Collection, Sequence

from pytest_trace2evolve.records.message import STOP, Message, ToolCall
from pytest_trace2evolve.records.task import Action, Script, Task, Turn


class NopAgent:
    """Lower frame of every agent: says one sentence, calls nothing; in solo mode it stops at once."""

    name = "nop"

    def __init__(self, *, solo: bool = False) -> None:
        self._says = STOP if solo else "I cannot help you with that."

    async def respond(self, history: Sequence[Message]) -> Message:
        """Always the same sentence."""
        return Message(role="assistant", content=self._says)


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


REFUSAL = "I am sorry, I cannot do that: our policy does not allow it."
LEFT = "Nothing is changed: everything stays as it is."


class CaseOracle:
    """Upper frame of every agent on a case.

    Args:
        task: The case's task.
        script: Its customer's script, which says to which of the customer's turns an action belongs.
        writes: Names of the tools that change something: before each it asks for a yes.
    """

    name = "oracle"

    def __init__(self, task: Task, script: Script, writes: Collection[str]) -> None:
        self._task = task
        self._script = script
        self._writes = writes

    async def respond(self, history: Sequence[Message]) -> Message:
        """The next gold action of what was brought up, a request for a yes, or what came of it."""
        return self.reply(history)

    def reply(self, history: Sequence[Message]) -> Message:
        """The same at once: it waits for nothing."""
        place = self._turn(history)
        done = actions_done(history)
        if done < sum(turn.actions for turn in self._script.turns[: place + 1]):
            action = self._task.actions[done]
            if action.name in self._writes and not _asked(history, proposal(action)):
                return Message(role="assistant", content=proposal(action))
            call = ToolCall(id=f"call_{done}", name=action.name, arguments=action.arguments)
            return Message(role="assistant", tool_calls=[call])
        said = outcome(self._script.turns[place])
        return Message(role="assistant", content=f"{said} {LEFT}" if self._left(place) else said)

    def _left(self, place: int) -> bool:
        """Whether nothing is to be done in a turn, nor answered or refused: its condition is not met."""
        turns = self._script.turns
        begins = sum(turn.actions for turn in turns[:place])
        actions = self._task.actions[begins : begins + turns[place].actions]
        if any(action.name in self._writes for action in actions):
            return False
        return not any(one.answer or one.refused for one in turns[place].requests)

    def _turn(self, history: Sequence[Message]) -> int:
        """The last of the script's turns that the customer has taken."""
        place = 0
        for message in history:
            if message.role == "user":
                later = range(place + 1, len(self._script.turns))
                place = next((one for one in later if message.content == self._script.turns[one].says), place)
        return place


def proposal(action: Action) -> str:
    """What is about to be done, with a question for a yes."""
    arguments = ", ".join(f"{name} {_spoken(value)}" for name, value in action.arguments.items())
    return f"I would now use {action.name} with {arguments}. Do you confirm (yes/no)?"


def outcome(turn: Turn) -> str:
    """What came of a turn, once its actions are performed."""
    said = []
    if turn.done:
        said.append("Everything that can be done about it is done.")
        said += [f"Here is what you asked for: {one.answer}." for one in turn.requests if one.answer]
    if turn.refused:
        said.append(REFUSAL)
    return " ".join(said)


def _spoken(value: object) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)


def _asked(history: Sequence[Message], question: str) -> bool:
    """Whether the customer's last message answers this question."""
    before = [message for message in history if message.role == "assistant"]
    return history[-1].role == "user" and before[-1].content == question
