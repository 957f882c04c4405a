"""The reference agents: the oracle, which is the best possible, and the do-nothing agent.

An oracle performs a task's gold actions. It keeps no state, because the number of tool calls in the trace
shows how far the conversation has progressed. A task that the do-nothing agent passes requires no action.
"""

from collections.abc import Collection, Sequence

from pytest_trace2evolve.records.message import STOP_MARK, Message, ToolCall
from pytest_trace2evolve.records.task import Action, Script, Task, Turn

REFUSAL = "I am sorry, I cannot do that: our policy does not allow it."
NOTHING_CHANGED = "Nothing is changed: everything stays as it is."


class NopAgent:
    """The lower bound: repeats one sentence and calls no tool. In solo mode, this agent stops at once."""

    name = "nop"

    def __init__(self, *, solo: bool = False) -> None:
        self._sentence = STOP_MARK if solo else "I cannot help you with that."

    async def respond(self, history: Sequence[Message]) -> Message:
        return _text_message(self._sentence)


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
        n_done = count_tool_calls(history[len(self._task.history) :])
        if n_done < len(self._task.actions):
            action = self._task.actions[n_done]
            if action.requestor == "user" and not self._solo:
                return _text_message(f"Please use {action.name} and tell me when it is done.")
            return _call_message(action, n_done)
        criteria = self._task.evaluation_criteria
        facts = (criteria.communicate_info or []) if criteria else []
        lines = [*facts, STOP_MARK] if self._solo else ["Everything you asked for is done.", *facts]
        return _text_message("\n".join(lines))


class CaseOracle:
    """The upper bound on a synthetic case: asks for confirmation before each write.

    Args:
        task: The case's task.
        script: The customer's script, which assigns each action to a turn.
        write_tools: Names of the tools that change something.
    """

    name = "oracle"

    def __init__(self, task: Task, script: Script, write_tools: Collection[str]) -> None:
        self._task = task
        self._script = script
        self._write_tools = write_tools

    async def respond(self, history: Sequence[Message]) -> Message:
        return self.reply(history)

    def reply(self, history: Sequence[Message]) -> Message:
        """The turn's next gold action, a request for confirmation, or the outcome. Needs no event loop."""
        turn_index = current_turn(self._script, history)
        n_done = count_tool_calls(history)
        if n_done < sum(turn.actions for turn in self._script.turns[: turn_index + 1]):
            action = self._task.actions[n_done]
            if action.name in self._write_tools and not _answers_question(history, proposal_text(action)):
                return _text_message(proposal_text(action))
            return _call_message(action, n_done)
        text = outcome_text(self._script.turns[turn_index])
        return _text_message(f"{text} {NOTHING_CHANGED}" if self._changes_nothing(turn_index) else text)

    def _changes_nothing(self, turn_index: int) -> bool:
        """Whether a turn has nothing to write, answer or refuse, because its condition is not met."""
        turns = self._script.turns
        first_action = sum(turn.actions for turn in turns[:turn_index])
        actions = self._task.actions[first_action : first_action + turns[turn_index].actions]
        if any(action.name in self._write_tools for action in actions):
            return False
        return not any(request.answer or request.refused for request in turns[turn_index].requests)


def count_tool_calls(history: Sequence[Message]) -> int:
    """The number of tool calls in a trace, the agent's and the user's."""
    return sum(len(message.tool_calls or ()) for message in history)


def current_turn(script: Script, history: Sequence[Message]) -> int:
    """The index of the customer's current turn in the script."""
    turn_index = 0
    for message in history:
        if message.role == "user":
            later_turns = range(turn_index + 1, len(script.turns))
            turn_index = next(
                (index for index in later_turns if message.content == script.turns[index].says), turn_index
            )
    return turn_index


def proposal_text(action: Action) -> str:
    """A description of the planned call, with a request for confirmation."""
    arguments = ", ".join(
        f"{name} {format_argument(value, ' and ')}" for name, value in action.arguments.items()
    )
    return f"I would now use {action.name} with {arguments}. Do you confirm (yes/no)?"


def outcome_text(turn: Turn) -> str:
    """The agent's message about the outcome of a turn, after the turn's actions."""
    sentences = []
    if turn.has_allowed_request:
        answers = [request.answer for request in turn.requests if request.answer]
        sentences.append("Everything that can be done about it is done.")
        sentences += [f"Here is what you asked for: {answer}." for answer in answers]
    if turn.has_forbidden_request:
        sentences.append(REFUSAL)
    return " ".join(sentences)


def format_argument(value: object, separator: str) -> str:
    """An argument as text."""
    return separator.join(map(str, value)) if isinstance(value, list) else str(value)


def _answers_question(history: Sequence[Message], question: str) -> bool:
    """Whether the customer's last message answers this question."""
    agent_messages = [message for message in history if message.role == "assistant"]
    return history[-1].role == "user" and agent_messages[-1].content == question


def _text_message(text: str) -> Message:
    return Message(role="assistant", content=text)


def _call_message(action: Action, number: int) -> Message:
    call = ToolCall(id=f"call_{number}", name=action.name, arguments=action.arguments)
    return Message(role="assistant", tool_calls=[call])
