"""An environment plays a generator's scenarios on a world, with the generator's grades as rewards.

An `Episode` is one simulation that the caller drives, one message of the agent at a time, because a trainer
already has the agent's messages and needs only the replies. It uses `Turns`, as every simulation does. A
rollout is one agent's play of one scenario; a group holds all rollouts of one scenario.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.engine.turns import Turns
from pytest_trace2evolve.errors import CaseError, GeneratorError, InfrastructureError, ParticipantError
from pytest_trace2evolve.records.completion import Usage, usage_of
from pytest_trace2evolve.records.environment import GRADES, MAX_GRADE, Reaction
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Agent, Generator, ToolSchema, World
from pytest_trace2evolve.records.task import Script, Task, script_of
from pytest_trace2evolve.records.trace import REGULAR_ENDS, TerminationReason
from pytest_trace2evolve.scoring.reward import check_communication, check_state
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.utils.concurrency import run_concurrently

MAX_LOST = 0.05
"""The maximum share of lost rollouts at which the other rollouts still count."""

EASIEST, HARDEST = 1, 5
DIFFICULTIES = range(EASIEST, HARDEST + 1)

MAX_STEPS = 60  # messages and batches of tool results, as in the suites of the support world
MAX_ERRORS = 10  # tool errors, τ²'s own budget


def check_difficulty(capability: str, difficulty: int) -> None:
    """Check that a difficulty is one of `DIFFICULTIES`; raise a `GeneratorError` if not."""
    if difficulty not in DIFFICULTIES:
        raise GeneratorError(
            f"environment {capability!r}: difficulty must be from {EASIEST} to {HARDEST}, got {difficulty}"
        )


def require_script(task: Task) -> Script:
    """Return the customer's script of a scenario; raise a `CaseError` if there is none."""
    script = script_of(task)
    if script is None:
        raise CaseError(f"scenario {task.id!r} has no customer script: write user_scenario.script")
    return script


class Episode:
    """One simulation of a task with a scripted customer, starting at the agent's first turn.

    The trace starts with the task's message history. The seed determines the customer's choice of words.
    """

    def __init__(self, task: Task, world: World, seed: int, *, max_steps: int = MAX_STEPS) -> None:
        self.task = task
        self._world = world
        self._customer = ScriptedUser(require_script(task), seed=seed)
        session = world.open()
        session.initialise(task.initial_state)
        self._turns = Turns(task, session, max_steps=max_steps, max_errors=MAX_ERRORS)
        self._checked_change_count = -1
        self._state_matches = False
        self._turns.begin()
        self._let_customer_reply()

    @property
    def trace(self) -> list[Message]:
        """All messages so far."""
        return self._turns.trace

    @property
    def end(self) -> TerminationReason | None:
        """The reason why the episode ended; None while it runs."""
        return self._turns.end_reason

    def step(self, message: Message) -> tuple[Message, ...]:
        """Add the agent's next message, and return the replies; none if the episode has ended already."""
        if self.end is not None:
            return ()
        first_reply = len(self.trace) + 1
        self._turns.say(message)
        self._let_customer_reply()
        return tuple(self.trace[first_reply:])

    def _let_customer_reply(self) -> None:
        while self.end is None and self._turns.speaker == "user":
            self._turns.say(self._customer.reply(self.trace))

    def is_solved(self) -> bool:
        """Whether the databases match those after the gold actions, and the agent gave all required answers.

        An episode that a budget ended is not solved.
        """
        if self.end is not None and self.end not in REGULAR_ENDS:
            return False
        # Replaying the calls is expensive, so replay only after further calls that change the databases.
        change_count = sum(
            self._world.changes_state(call.name)
            for message in self.trace
            for call in message.tool_calls or ()
        )
        if change_count != self._checked_change_count:
            state_matches, assertions, _ = check_state(self.task, self.trace, self._world)
            self._state_matches = state_matches and all(check.met for check in assertions)
            self._checked_change_count = change_count
        return self._state_matches and all(check.met for check in check_communication(self.task, self.trace))


class ScenarioEnvironment:
    """Plays the scenarios of one generator, one at a time, with the tools of the target world.

    With `ends_early`, a rollout ends as soon as its reward cannot change or is the maximum. Otherwise it
    lasts until the conversation ends, as in a suite.
    """

    def __init__(self, generator: Generator, world: World, *, ends_early: bool = True) -> None:
        self.capability = generator.capability
        self._generator = generator
        self._world = world
        self._ends_early = ends_early
        self._current_episode: Episode | None = None
        self._reward: float | None = None

    def tools(self) -> Sequence[ToolSchema]:
        """The agent's tools, which are the world's own."""
        return self._world.tools("assistant")

    def reset(self, seed: int) -> Sequence[Message]:
        """Start the scenario of a seed, and return the messages before the agent's turn.

        Raises:
            CaseError, GeneratorError, WorldError: the scenario has no customer script, ends before the
                agent's turn, or does not fit the world.
        """
        episode = self._current_episode = Episode(self._generator.scenario(seed), self._world, seed)
        self._reward = None
        if episode.end is not None:
            raise GeneratorError(
                f"environment {self.capability!r}: the scenario of seed {seed} ends before the agent's "
                "turn; fix its message history"
            )
        return self.trace

    def step(self, message: Message) -> Reaction:
        """Add the agent's next message, and return the results of its tool calls or the customer's reply."""
        if self._is_over():
            return Reaction(done=True)
        messages = self._episode.step(message)
        self._reward = None
        return Reaction(messages=messages, done=self._is_over())

    def reward(self) -> float:
        """The reward of the current scenario so far."""
        episode = self._episode
        if self._reward is None:
            grade = self._generator.grade(episode.task, episode.trace, solved=episode.is_solved())
            if grade not in GRADES:
                raise invalid_grade_error(self.capability, grade)
            self._reward = float(grade)
        return self._reward

    @property
    def task(self) -> Task:
        """The current scenario."""
        return self._episode.task

    @property
    def trace(self) -> Sequence[Message]:
        """All messages so far, including the history."""
        return tuple(self._episode.trace)

    @property
    def _episode(self) -> Episode:
        if self._current_episode is None:
            raise GeneratorError(f"environment {self.capability!r} has no scenario yet: call reset(seed)")
        return self._current_episode

    def _is_over(self) -> bool:
        episode = self._episode
        if episode.end is not None:
            return True
        if not self._ends_early:
            return False
        if self._generator.settled(episode.task, episode.trace):
            return True
        # Only a solved scenario gets the top grade. Grading may need a sandbox process, so skip it otherwise.
        return episode.is_solved() and self.reward() == MAX_GRADE


def invalid_grade_error(capability: str, grade: object) -> GeneratorError:
    """Return the error for a grade that is not one of `GRADES`."""
    return GeneratorError(
        f"environment {capability!r}: the reward must be one of {', '.join(map(str, GRADES))}, got {grade!r}"
    )


@dataclass(frozen=True)
class Rollout:
    """One agent's play of one scenario.

    Attributes:
        reward: The reward; None if the rollout was lost.
        trace: All messages, including the history.
        usage: The usage of the agent's messages after the history.
        tokens: Tokens of the whole rollout, from the last answer's usage; 0 if the endpoint reports none.
        trouble: The reason why the rollout was lost; empty if it was not.
    """

    seed: int
    reward: float | None
    trace: Sequence[Message]
    usage: Usage
    tokens: int
    trouble: str = ""


@dataclass(frozen=True)
class Group:
    """All rollouts of one scenario."""

    seed: int
    rollouts: Sequence[Rollout]

    @property
    def rewards(self) -> list[float]:
        """The rewards of the rollouts that were not lost."""
        return [rollout.reward for rollout in self.rollouts if rollout.reward is not None]


def count_lost_rollouts(description: str, groups: Sequence[Group]) -> int:
    """Count the rollouts without a reward.

    Args:
        description: A description of the played environment, for the error message.

    Raises:
        InfrastructureError: so many rollouts were lost that the others prove nothing.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    lost_rollouts = [rollout for rollout in rollouts if rollout.reward is None]
    if len(lost_rollouts) > MAX_LOST * len(rollouts):
        raise InfrastructureError(
            f"{description}: {len(lost_rollouts)} of {len(rollouts)} rollouts were lost, "
            f"more than {MAX_LOST:.0%}, so the others alone prove nothing; first: {lost_rollouts[0].trouble}"
        )
    return len(lost_rollouts)


async def play_rollout(environment: ScenarioEnvironment, agent: Agent, seed: int) -> Rollout:
    """Play one scenario with an agent.

    If the agent fails to answer, the rollout ends and is graded as it stands. A rollout that infrastructure
    ended has no reward. An `EndpointError` is raised, because no further request can succeed.
    """
    history_length = len(environment.reset(seed))
    trouble, reward = "", None
    try:
        while not environment.step(await agent.respond(environment.trace)).done:
            pass
        reward = environment.reward()
    except ParticipantError:
        reward = environment.reward()
    except InfrastructureError as error:
        trouble = str(error)
    messages = environment.trace[history_length:]
    return Rollout(
        seed, reward, environment.trace, usage_of(messages, "assistant"), _total_tokens(messages), trouble
    )


async def play_groups(
    make_environment: Callable[[], ScenarioEnvironment],
    make_agent: Callable[[int], Agent],
    seeds: Sequence[int],
    group_size: int,
    *,
    concurrency: int,
    on_progress: Callable[[int], None] = lambda finished_count: None,
) -> list[Group]:
    """Play every scenario `group_size` times; each rollout has its own agent, made for the rollout's number.

    Args:
        on_progress: Called with the number of finished rollouts.
    """
    jobs = [
        (seed, seed_index * group_size + index)
        for seed_index, seed in enumerate(seeds)
        for index in range(group_size)
    ]
    rollouts: dict[int, list[Rollout]] = {seed: [] for seed in seeds}
    pending_jobs = iter(jobs)
    finished_count = 0

    async def worker() -> None:
        nonlocal finished_count
        environment = make_environment()
        for seed, number in pending_jobs:
            rollouts[seed].append(await play_rollout(environment, make_agent(number), seed))
            finished_count += 1
            on_progress(finished_count)

    await run_concurrently(worker() for _ in range(min(concurrency, len(jobs))))
    return [Group(seed, seed_rollouts) for seed, seed_rollouts in rollouts.items()]


def _total_tokens(messages: Sequence[Message]) -> int:
    """Prompt and completion tokens of the last answer that reports usage; 0 if none does."""
    for message in reversed(messages):
        usage = getattr(message, "usage", None)
        if message.role == "assistant" and isinstance(usage, dict):
            return int(usage.get("prompt_tokens") or 0) + int(usage.get("completion_tokens") or 0)
    return 0
