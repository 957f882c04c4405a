"""The reference agents: the oracle, which is the best possible, and the do-nothing agent.

An oracle performs a task's gold actions. It keeps no state, because the number of tool calls in the trace
shows how far the conversation has progressed. A task that the do-nothing agent passes requires no action.
"""

from collections.abc import Collection, Sequence

from pytest_trace2evolve.records.message import STOP, Message, ToolCall
from pytest_trace2evolve.records.task import Action, Script, Task, Turn

REFUSAL = "I am sorry, I cannot do that: our policy does not allow it."
NOTHING_CHANGED = "Nothing is changed: everything stays as it is."


class NopAgent:
    """The lower bound: repeats one sentence and calls no tool. In solo mode, this agent stops at once."""

    name = "nop"

    def __init__(self, *, solo: bool = False) -> None:
        self._says = STOP if solo else "I cannot help you with that."

    async def respond(self, history: Sequence[Message]) -> Message:
        return _say(self._says)


class OracleAgent:
    """The upper bound: if this agent fails a task, the task's own gold actions do not solve the task.

    The agent asks the user to perform the user's gold actions. In solo mode, it performs them itself.
    """

    name = "oracle"

    def __init__(self, task: Task, *, solo: bool = False) -> None:
        self._task = task
        self._solo = solo

    async def respond(self, history: Sequence[Message]) -> Message:
        """The next gold action as a tool call or as a request to the user, or the closing message."""
        done = actions_done(history)
        if done < len(self._task.actions):
            action = self._task.actions[done]
            if action.requestor == "user" and not self._solo:
                return _say(f"Please use {action.name} and tell me when it is done.")
            return _call(action, done)
        criteria = self._task.evaluation_criteria
        said = (criteria.communicate_info or []) if criteria else []
        closing = [*said, STOP] if self._solo else ["Everything you asked for is done.", *said]
        return _say("\n".join(closing))


class CaseOracle:
    """The upper bound on a synthetic case: asks for confirmation before each write.

    Args:
        task: The case's task.
        script: The customer's script, which assigns each action to a turn.
        writes: Names of the tools that change something.
    """

    name = "oracle"

    def __init__(self, task: Task, script: Script, writes: Collection[str]) -> None:
        self._task = task
        self._script = script
        self._writes = writes

    async def respond(self, history: Sequence[Message]) -> Message:
        return self.reply(history)

    def reply(self, history: Sequence[Message]) -> Message:
        """The turn's next gold action, a request for confirmation, or the outcome. Needs no event loop."""
        place = last_turn(self._script, history)
        done = actions_done(history)
        if done < sum(turn.actions for turn in self._script.turns[: place + 1]):
            action = self._task.actions[done]
            if action.name in self._writes and not _was_asked(history, proposal(action)):
                return _say(proposal(action))
            return _call(action, done)
        said = outcome(self._script.turns[place])
        return _say(f"{said} {NOTHING_CHANGED}" if self._changes_nothing(place) else said)

    def _changes_nothing(self, place: int) -> bool:
        """Whether a turn has nothing to write, answer or refuse, because its condition is not met."""
        turns = self._script.turns
        begins = sum(turn.actions for turn in turns[:place])
        actions = self._task.actions[begins : begins + turns[place].actions]
        if any(action.name in self._writes for action in actions):
            return False
        return not any(request.answer or request.refused for request in turns[place].requests)


def actions_done(history: Sequence[Message]) -> int:
    """The number of tool calls in a trace, the agent's and the user's."""
    return sum(len(message.tool_calls or ()) for message in history)


def last_turn(script: Script, history: Sequence[Message]) -> int:
    """The index of the customer's current turn in the script."""
    place = 0
    for message in history:
        if message.role == "user":
            later = range(place + 1, len(script.turns))
            place = next((turn for turn in later if message.content == script.turns[turn].says), place)
    return place


def proposal(action: Action) -> str:
    """A description of the planned call, with a request for confirmation."""
    arguments = ", ".join(f"{name} {spoken(value, ' and ')}" for name, value in action.arguments.items())
    return f"I would now use {action.name} with {arguments}. Do you confirm (yes/no)?"


def outcome(turn: Turn) -> str:
    """The agent's message about the outcome of a turn, after the turn's actions."""
    said = []
    if turn.done:
        answers = [request.answer for request in turn.requests if request.answer]
        said.append("Everything that can be done about it is done.")
        said += [f"Here is what you asked for: {answer}." for answer in answers]
    if turn.refused:
        said.append(REFUSAL)
    return " ".join(said)


def spoken(value: object, separator: str) -> str:
    """An argument as text."""
    return separator.join(map(str, value)) if isinstance(value, list) else str(value)


def _was_asked(history: Sequence[Message], question: str) -> bool:
    """Whether the customer's last message answers this question."""
    before = [message for message in history if message.role == "assistant"]
    return history[-1].role == "user" and before[-1].content == question


def _say(text: str) -> Message:
    return Message(role="assistant", content=text)


def _call(action: Action, number: int) -> Message:
    call = ToolCall(id=f"call_{number}", name=action.name, arguments=action.arguments)
    return Message(role="assistant", tool_calls=[call])
