"""One simulation that somebody else drives: the conversation of τ², one message of the agent at a time.

Where a rollout asks an agent for each message, a trainer has the messages already and wants to know what
comes back on them. The same rules hold as in `rollout.conversation.converse`: a test holds one to the other.
"""

from collections.abc import Sequence
from typing import Protocol

from pytest_trace2evolve.records.message import GREETING, STOP, USER_STOPS, Message, ToolCall
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import REGULAR_ENDS, TerminationReason
from pytest_trace2evolve.scoring.communicate import check_communication
from pytest_trace2evolve.scoring.state import check_state

STEPS_MOST = 60
"""Steps of a simulation at most, as in the suites of the support world."""

ERRORS_MOST = 10
"""Errors of tools at most, τ²'s own budget."""


class Customer(Protocol):
    """Whoever plays the customer, and answers at once."""

    def reply(self, history: Sequence[Message]) -> Message:
        """The customer's next message, given everything said so far."""


class Play:
    """One simulation of a task, from the agent's first turn on.

    Args:
        task: What is played; its message history was said before.
        world: Where the agent's tools are.
        customer: Who answers the agent's texts.
        max_steps: Messages and batches of tool results after which it ends.
        max_errors: Errors of tools after which it ends.

    Attributes:
        trace: Everything said so far.
        end: Why it ended; None as long as it goes on.

    Raises:
        WorldError: the task's initial state does not fit the world.
    """

    def __init__(
        self,
        task: Task,
        world: World,
        customer: Customer,
        *,
        max_steps: int = STEPS_MOST,
        max_errors: int = ERRORS_MOST,
    ) -> None:
        self.task = task
        self.end: TerminationReason | None = None
        self._world = world
        self._customer = customer
        self._steps_left, self._errors_left = max_steps, max_errors
        self._state: tuple[int, bool] | None = None
        self._session = world.open()
        self._session.initialise(task.initial_state)
        self.trace: list[Message] = [*(task.history or [Message(role="assistant", content=GREETING)])]
        for call in (call for message in task.history for call in message.tool_calls or ()):
            self._session.call(call.name, call.arguments, call.requestor)
        self._session.sync()
        self._go_on()

    def step(self, message: Message) -> tuple[Message, ...]:
        """Take the agent's next message; what came back on it. Nothing comes back once it has ended."""
        if self.end is not None:
            return ()
        self.trace.append(message)
        place = len(self.trace)
        if not message.tool_calls and (message.content or "").strip() == STOP:
            self.end = TerminationReason.AGENT_STOP
        else:
            self._count()
            self._go_on()
        return tuple(self.trace[place:])

    def solved(self) -> bool:
        """Whether the databases are as after the gold actions now, and all was said that must be.

        A simulation that was broken off for its budgets solves nothing.

        Raises:
            TraceError: the message history is not whole.
            WorldError: the task does not fit the world.
        """
        if self.end is not None and self.end not in REGULAR_ENDS:
            return False
        # Replaying is what costs; only what changes the databases makes it differ.
        changes = sum(
            self._world.changes_state(call.name)
            for message in self.trace
            for call in message.tool_calls or ()
        )
        if self._state is None or self._state[0] != changes:
            matched, assertions = check_state(self.task, self.trace, self._world)
            self._state = changes, matched and all(check.met for check in assertions)
        return self._state[1] and all(check.met for check in check_communication(self.task, self.trace))

    def _go_on(self) -> None:
        """Everything up to the agent's next turn, or to the end."""
        while self.end is None:
            last = self.trace[-1]
            if last.tool_calls:
                self._answer(last.tool_calls)
            elif last.requestor == "assistant" if last.role == "tool" else last.role == "user":
                return
            else:
                said = self._customer.reply(self.trace)
                self.trace.append(said)
                if not said.tool_calls and any(mark in (said.content or "") for mark in USER_STOPS):
                    self.end = TerminationReason.USER_STOP
                    return
            self._count()

    def _answer(self, calls: Sequence[ToolCall]) -> None:
        for call in calls:
            result = self._session.call(call.name, call.arguments, call.requestor)
            self._errors_left -= result.error
            self.trace.append(result.answering(call))
        self._session.sync()

    def _count(self) -> None:
        """Count a step; budgets are looked at only when no tool call is waiting, as in τ²."""
        self._steps_left -= 1
        if self.trace[-1].tool_calls:
            return
        if self._errors_left <= 0:
            self.end = TerminationReason.TOO_MANY_ERRORS
        elif self._steps_left <= 0:
            self.end = TerminationReason.MAX_STEPS
