"""The turns of one conversation: the next speaker, the tool calls, and the reason for its end.

Follows the orchestrator of tau2-bench 1.0.1: the agent greets, every message and every batch of tool calls
is one step, and the budgets are checked only when no tool call is waiting. In solo mode there is no greeting
and no user: the agent works on a ticket with tool calls only, until it says the stop mark.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Literal

from pytest_trace2evolve.records.message import GREETING, STOP_MARK, USER_STOP_MARKS, Message, ToolCall
from pytest_trace2evolve.records.protocols import SupportsParallelCalls, ToolResult, WorldSession
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import TerminationReason


class Turns:
    """One conversation, driven one message at a time.

        turns = Turns(task, session, max_steps=200, max_errors=10)
        turns.begin()
        while turns.end_reason is None:
            turns.say(...)  # the next message of turns.speaker

    Args:
        task: The task, whose message history starts the conversation.
        session: A session with the task's initial state, which runs the tool calls.
        max_steps: Messages and batches of tool results after which the conversation ends.
        max_errors: Tool errors after which the conversation ends.
        timeout: Seconds after which the conversation ends; None for no limit.
        solo: Whether the agent works without a user.
        stamp: Completes a new message, given its index in the trace.

    Attributes:
        trace: All messages so far.
        end_reason: The reason why the conversation ended; None while it runs.
        start_time: The time of creation, from `time.perf_counter`.
    """

    def __init__(
        self,
        task: Task,
        session: WorldSession,
        *,
        max_steps: int,
        max_errors: int,
        timeout: float | None = None,
        solo: bool = False,
        stamp: Callable[[Message, int], Message] | None = None,
    ) -> None:
        self.trace: list[Message] = []
        self.end_reason: TerminationReason | None = None
        self.start_time = time.perf_counter()
        self._history = task.history
        self._session = session
        self._steps_left, self._errors_left, self._timeout = max_steps, max_errors, timeout
        self._solo = solo
        self._stamp = stamp

    def begin(self) -> None:
        """Replay the task's message history; without a history, greet the user if there is one."""
        if self._history:
            self.trace.extend(self._history)
            for message in self._history:
                for call in message.tool_calls or ():
                    self._session.call(call.name, deepcopy(call.arguments), call.requestor)
        elif not self._solo:
            self._append(Message(role="assistant", content=GREETING))
        self._session.sync()
        self._run_waiting_tools()

    @property
    def speaker(self) -> Literal["assistant", "user"]:
        """The party that says the next message."""
        if self._solo:
            return "assistant"
        last_message = self.trace[-1]
        is_agents_turn = (
            last_message.requestor == "assistant"
            if last_message.role == "tool"
            else last_message.role == "user"
        )
        return "assistant" if is_agents_turn else "user"

    def say(self, message: Message) -> None:
        """Add the speaker's message, run its tool calls, and decide whether the conversation ends."""
        is_opening, speaker = not self.trace, self.speaker
        message = self._append(message)
        self.end_reason = self._end_reason(message, speaker)
        if self.end_reason is None:
            if not is_opening:
                self._count_step()
            self._run_waiting_tools()

    def _append(self, message: Message) -> Message:
        if self._stamp is not None:
            message = self._stamp(message, len(self.trace))
        self.trace.append(message)
        return message

    def _end_reason(self, message: Message, speaker: str) -> TerminationReason | None:
        if message.tool_calls:
            return None
        text = message.content or ""
        if self._solo:
            # Nobody reads texts, so a text without the stop mark breaks the protocol.
            return TerminationReason.AGENT_STOP if STOP_MARK in text else TerminationReason.AGENT_ERROR
        if speaker == "assistant":
            return TerminationReason.AGENT_STOP if text.strip() == STOP_MARK else None
        return TerminationReason.USER_STOP if any(mark in text for mark in USER_STOP_MARKS) else None

    def _run_waiting_tools(self) -> None:
        calls = self.trace[-1].tool_calls if self.trace else None
        if not calls:
            return
        for call, tool_result in zip(calls, self._results_of(calls), strict=True):
            self._errors_left -= tool_result.error
            self._append(tool_result.to_message(call))
        self._session.sync()
        self._count_step()

    def _results_of(self, calls: Sequence[ToolCall]) -> Iterable[ToolResult]:
        """Run the calls of one message; a world may have a rule of its own for parallel calls."""
        if isinstance(self._session, SupportsParallelCalls):
            return self._session.call_all([call.model_copy(deep=True) for call in calls])
        return (self._session.call(call.name, deepcopy(call.arguments), call.requestor) for call in calls)

    def _count_step(self) -> None:
        """Count a step and check the budgets, in tau2's order if several are spent."""
        self._steps_left -= 1
        if self.trace[-1].tool_calls:
            return
        if self._timeout is not None and time.perf_counter() - self.start_time >= self._timeout:
            self.end_reason = TerminationReason.TIMEOUT
        elif self._errors_left <= 0:
            self.end_reason = TerminationReason.TOO_MANY_ERRORS
        elif self._steps_left <= 0:
            self.end_reason = TerminationReason.MAX_STEPS
