"""Groups of rollouts: agents play the same scenarios many times over, many at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.environments.environment import PlayedEnvironment
from pytest_trace2evolve.errors import InfrastructureError, ParticipantError
from pytest_trace2evolve.records.completion import Usage, usage_of
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Agent
from pytest_trace2evolve.utils.concurrency import all_of

MakeAgent = Callable[[int], Agent]
"""Makes the agent of one rollout by its number, which no other rollout of the run has."""


@dataclass(frozen=True)
class Rollout:
    """One rollout.

    Attributes:
        reward: What it was paid; None where it was lost.
        trace: All that was said, the history included.
        usage: What the agent's model used.
        tokens: Tokens of the whole rollout, as its last request and answer count them; 0 where nobody says.
        trouble: Why it was lost.
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
        """The rewards of those that were not lost."""
        return [one.reward for one in self.rollouts if one.reward is not None]


async def roll(environment: PlayedEnvironment, agent: Agent, seed: int) -> Rollout:
    """Play one scenario with an agent.

    An agent that says nothing ends its rollout, and is paid for what it did until then. One that is lost to
    the machine or the network has no reward.

    Raises:
        EndpointError: no further request can succeed.
        GeneratorError: the environment breaks its promises.
    """
    begun = len(environment.reset(seed))
    trouble, reward = "", None
    try:
        while not environment.step(await agent.respond(environment.trace)).done:
            pass
        reward = environment.reward()
    except ParticipantError:
        reward = environment.reward()
    except InfrastructureError as error:
        trouble = str(error)
    own = environment.trace[begun:]
    return Rollout(seed, reward, environment.trace, usage_of(own, "assistant"), _length(own), trouble)


async def roll_groups(
    make: Callable[[], PlayedEnvironment],
    agents: MakeAgent,
    seeds: Sequence[int],
    group: int,
    *,
    at_once: int,
    told: Callable[[int], None] = lambda done: None,
) -> list[Group]:
    """Play every scenario `group` times.

    Args:
        make: Makes an environment; one plays one rollout at a time.
        agents: Makes the agent of a rollout.
        seeds: The scenarios.
        group: Rollouts of each.
        at_once: Rollouts that are played at once.
        told: Hears how many are done.

    Raises:
        EndpointError: no further request can succeed.
        GeneratorError: the environment breaks its promises.
    """
    jobs = [(seed, place * group + one) for place, seed in enumerate(seeds) for one in range(group)]
    found: dict[int, list[Rollout]] = {seed: [] for seed in seeds}
    left = iter(jobs)
    done = 0

    async def work() -> None:
        nonlocal done
        environment = make()
        for seed, number in left:
            found[seed].append(await roll(environment, agents(number), seed))
            done += 1
            told(done)

    await all_of(work() for _ in range(min(at_once, len(jobs))))
    return [Group(seed, rollouts) for seed, rollouts in found.items()]


def _length(own: Sequence[Message]) -> int:
    """Tokens of a rollout, by what its last answer says of its request and of itself."""
    for message in reversed(own):
        told = getattr(message, "usage", None)
        if message.role == "assistant" and isinstance(told, dict):
            return int(told.get("prompt_tokens") or 0) + int(told.get("completion_tokens") or 0)
    return 0
