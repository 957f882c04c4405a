"""The one environment: plays a generator's scenarios on a world, and pays what the generator grades."""

from collections.abc import Callable, Sequence

from pytest_trace2evolve.environments.play import ERRORS_MOST, STEPS_MOST, Customer, Play
from pytest_trace2evolve.errors import GeneratorError
from pytest_trace2evolve.records.environment import GRADES, TOP, Reaction
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Generator, ToolSchema, World
from pytest_trace2evolve.records.task import Task

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
