"""Groups of rollouts: agents play the same scenarios many times, several at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.environments.environment import ScenarioEnvironment
from pytest_trace2evolve.errors import InfrastructureError, ParticipantError
from pytest_trace2evolve.records.completion import Usage, usage_of
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Agent
from pytest_trace2evolve.utils.concurrency import all_of


@dataclass(frozen=True)
class Rollout:
    """One rollout.

    Attributes:
        reward: None if the rollout was lost; `trouble` says why.
        trace: All messages, the history included.
        tokens: Tokens of the whole rollout, by the usage of its last answer; 0 if the endpoint reports none.
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


async def roll(environment: ScenarioEnvironment, agent: Agent, seed: int) -> Rollout:
    """Play one scenario with an agent.

    An agent that fails to answer ends its rollout and is paid for what it did until then. A rollout that
    infrastructure ended has no reward. An `EndpointError` goes through: no further request can succeed.
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
    played = environment.trace[history_length:]
    return Rollout(seed, reward, environment.trace, usage_of(played, "assistant"), _tokens(played), trouble)


async def roll_groups(
    make_environment: Callable[[], ScenarioEnvironment],
    make_agent: Callable[[int], Agent],
    seeds: Sequence[int],
    group: int,
    *,
    at_once: int,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[Group]:
    """Play every scenario `group` times; each rollout has an agent of its own, made from its number.

    `on_progress` gets the number of finished rollouts.
    """
    jobs = [(seed, place * group + index) for place, seed in enumerate(seeds) for index in range(group)]
    rollouts: dict[int, list[Rollout]] = {seed: [] for seed in seeds}
    waiting = iter(jobs)
    done = 0

    async def work() -> None:
        nonlocal done
        environment = make_environment()
        for seed, number in waiting:
            rollouts[seed].append(await roll(environment, make_agent(number), seed))
            done += 1
            on_progress(done)

    await all_of(work() for _ in range(min(at_once, len(jobs))))
    return [Group(seed, found) for seed, found in rollouts.items()]


def _tokens(messages: Sequence[Message]) -> int:
    """Prompt and completion tokens of the last answer; 0 if it has no usage."""
    for message in reversed(messages):
        usage = getattr(message, "usage", None)
        if message.role == "assistant" and isinstance(usage, dict):
            return int(usage.get("prompt_tokens") or 0) + int(usage.get("completion_tokens") or 0)
    return 0
