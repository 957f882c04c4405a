"""The one environment: plays a generator's scenarios on a world, and pays what the generator grades.

One simulation that somebody else drives: the conversation of τ², one message of the agent at a time.

Where a rollout asks an agent for each message, a trainer has the messages already and wants to know what
comes back on them. The same rules hold as in `rollout.conversation.converse`: a test holds one to the other.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from pytest_trace2evolve.errors import GeneratorError
from pytest_trace2evolve.records.environment import GRADES, TOP, Reaction
from pytest_trace2evolve.records.message import GREETING, STOP, USER_STOPS, Message, ToolCall
from pytest_trace2evolve.records.protocols import Generator, ToolSchema, World
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import REGULAR_ENDS, TerminationReason
from pytest_trace2evolve.scoring.reward import check_communication, check_state

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


Customers = Callable[[Task, int], Customer]
"""The customer of a scenario and its seed."""


class PlayedEnvironment:
    """Scenarios of one generator, one after another; everything is built anew by `reset`.

    Args:
        generator: Makes the scenarios, and grades.
        world: Where they are played: the target's own, with its tools.
        customers: Makes the customer of each.
        early: End a rollout as soon as nothing can raise its reward, or the top is reached; rollouts stay
            short so. False plays on to where the conversation ends, as a suite does.
        max_steps: Messages and batches of tool results after which a rollout ends.
        max_errors: Errors of tools after which it ends.
    """

    def __init__(
        self,
        generator: Generator,
        world: World,
        customers: Customers,
        *,
        early: bool = True,
        max_steps: int = STEPS_MOST,
        max_errors: int = ERRORS_MOST,
    ) -> None:
        self.capability = generator.capability
        self._generator = generator
        self._world = world
        self._customers = customers
        self._early = early
        self._budgets = {"max_steps": max_steps, "max_errors": max_errors}
        self._play: Play | None = None
        self._reward: float | None = None

    def tools(self) -> Sequence[ToolSchema]:
        """The tools that the agent has: the world's own."""
        return self._world.tools("assistant")

    def reset(self, seed: int) -> Sequence[Message]:
        """Begin the scenario of a seed from nothing; what was said before it is the agent's turn.

        Raises:
            GeneratorError: the scenario is over before the agent's turn.
            WorldError: the scenario does not fit the world.
        """
        task = self._generator.scenario(seed)
        self._play = Play(task, self._world, self._customers(task, seed), **self._budgets)
        self._reward = None
        if self._play.end is not None:
            raise GeneratorError(
                f"environment {self.capability!r}: the scenario of seed {seed} is over before it is the "
                "agent's turn; mend its message history"
            )
        return tuple(self._play.trace)

    def step(self, message: Message) -> Reaction:
        """Take the agent's next message: its tool calls are made, or the customer answers."""
        play = self._playing()
        if self._over():
            return Reaction(done=True)
        messages = play.step(message)
        self._reward = None
        return Reaction(messages=messages, done=self._over())

    def reward(self) -> float:
        """The reward of what was done since the last reset.

        Raises:
            GeneratorError: the generator's grade is none of `GRADES`.
        """
        play = self._playing()
        if self._reward is None:
            grade = self._generator.grade(play.task, play.trace, solved=play.solved())
            if grade not in GRADES:
                raise GeneratorError(
                    f"environment {self.capability!r}: a reward of {grade!r}; "
                    f"one of {', '.join(map(str, GRADES))} is wanted"
                )
            self._reward = float(grade)
        return self._reward

    @property
    def task(self) -> Task:
        """The scenario that is played."""
        return self._playing().task

    @property
    def trace(self) -> Sequence[Message]:
        """Everything said so far, the history included."""
        return tuple(self._playing().trace)

    def _over(self) -> bool:
        play = self._playing()
        if play.end is not None:
            return True
        if not self._early:
            return False
        if self._generator.settled(play.task, play.trace):
            return True
        # The top is for what is solved: another process, where grades may come from, is not asked in vain.
        return play.solved() and self.reward() == TOP

    def _playing(self) -> Play:
        if self._play is None:
            raise GeneratorError(f"environment {self.capability!r} plays nothing yet: reset(seed) begins")
        return self._play
