"""Measuring on held-out scenarios by the ordinary path: a local server, `ChatAgent`, groups of rollouts.

What the base does is kept, so that it is measured once and not again for each adapter.

How much better a model became, with an interval: scenarios are compared with themselves.
"""

import asyncio
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev

from pytest_trace2evolve.agents.chat import ChatAgent, system_prompt
from pytest_trace2evolve.environments.calibration import MAX_LOST
from pytest_trace2evolve.environments.environment import ScenarioEnvironment
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.environments.rollouts import Group, roll_groups
from pytest_trace2evolve.errors import ConfigError, InfrastructureError
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.adapter import HeldOut
from pytest_trace2evolve.records.environment import TOP
from pytest_trace2evolve.records.protocols import Agent, ToolSchema
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest
from pytest_trace2evolve.serving.process import served
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.concurrency import all_of
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.optional import model_package_versions
from pytest_trace2evolve.utils.reading import read_record

LEVEL = 0.95
"""Of the intervals."""

ALIKE = 1e-9
"""Standard deviation below which differences are equal but for rounding."""


@dataclass(frozen=True)
class Change:
    """A figure before and after, and the difference with its interval; None where nothing can be said."""

    before: float
    after: float
    low: float | None
    high: float | None

    @property
    def difference(self) -> float:
        """After less before."""
        return self.after - self.before


def reward_change(before: HeldOut, after: HeldOut) -> Change:
    """The change of the mean reward; see `_change`."""
    return _change(before, after, float)


def top_change(before: HeldOut, after: HeldOut) -> Change:
    """The change of the share of rollouts with the top reward; see `_change`."""
    return _change(before, after, lambda reward: float(reward == TOP))


def _change(before: HeldOut, after: HeldOut, figure: Callable[[float], float]) -> Change:
    """The mean over scenarios of what each gained.

    Student's interval for paired differences: rollouts of one scenario resemble each other, so a scenario
    counts once, whatever the number of its rollouts. Where all gained alike it is as wide as Wilson's
    interval of so many scenarios of which none differs: one without a width would claim what two scenarios
    cannot show.
    """
    pairs = [
        (fmean(map(figure, one)), fmean(map(figure, other)))
        for one, other in zip(before.rewards, after.rewards, strict=True)
        if one and other
    ]
    if not pairs:
        raise ValueError("no scenario was played on both sides")
    gains = [other - one for one, other in pairs]
    mean_before, mean_after = (fmean(side) for side in zip(*pairs, strict=True))
    if len(gains) < 2:
        return Change(mean_before, mean_after, None, None)
    from scipy.stats import norm, t

    if stdev(gains) < ALIKE:
        share = float(norm.ppf((1 + LEVEL) / 2)) ** 2 / len(gains)
        reach = share / (1 + share)
    else:
        reach = float(t.ppf((1 + LEVEL) / 2, len(gains) - 1)) * stdev(gains) / math.sqrt(len(gains))
    middle = fmean(gains)
    return Change(mean_before, mean_after, max(-1.0, middle - reach), min(1.0, middle + reach))


SCENARIOS, ROLLOUTS = 100, 4
"""Held-out scenarios, and rollouts of each, where nothing else is said."""

PLAYING_VERSION = 1
"""Version of how a rollout is played: the agent, its requests, the server and how it draws answers. It must
be raised when the same model gives another answer to the same scenario and seed; a stored measurement of the
base is then made again."""

AT_ONCE = 64
SEED = 1
"""Of the first rollout; both sides of a comparison draw from the same."""


@dataclass(frozen=True)
class Sides:
    """Whom to measure.

    Attributes:
        base: The base model's folder.
        adapter: The adapter's folder; None where the base alone is measured.
        instruction: The candidate's, which agents get behind the policy.
        kept: Where measurements of the base are kept; None keeps none.
        apart: Each side has a server of its own, and both are played at once: faster where one server leaves
            cores idle, for the memory of another.
    """

    base: ModelFolder
    adapter: Path | None
    instruction: str = ""
    kept: Path | None = None
    apart: bool = False


@dataclass(frozen=True)
class Wanted:
    """What to measure.

    Attributes:
        difficulties: By capability.
        scenarios: Of each environment.
        rollouts: Of each scenario.
        others: Scenarios of those environments of which another number is played, by capability.
    """

    difficulties: Mapping[str, int]
    scenarios: int = SCENARIOS
    rollouts: int = ROLLOUTS
    others: Mapping[str, int] = field(default_factory=dict)

    def scenarios_of(self, capability: str) -> int:
        """How many scenarios of a capability are played."""
        return self.others.get(capability, self.scenarios)

    @property
    def count(self) -> int:
        """Rollouts of one side."""
        return sum(map(self.scenarios_of, self.difficulties)) * self.rollouts


Told = Callable[[int], None]
"""Hears how many rollouts are done, of both sides."""


def measure(
    environments: Environments, sides: Sides, wanted: Wanted, *, told: Told = lambda done: None
) -> tuple[dict[str, HeldOut], dict[str, HeldOut]]:
    """What the base does, and what it does with its adapter, by capability.

    Raises:
        ModelFolderError: the base or the adapter cannot be served.
        InfrastructureError: too many rollouts were lost.
    """
    adapters = {} if sides.adapter is None else {_adapted(sides.base.name): sides.adapter}
    apart = sides.apart and sides.adapter is not None
    threads = max(1, (os.cpu_count() or 1) // 2) if apart else None
    with ExitStack() as servers:
        at = servers.enter_context(served(sides.base, adapters, seed=SEED, at_once=AT_ONCE, threads=threads))
        alone = served(sides.base, {}, seed=SEED, at_once=AT_ONCE, threads=threads)
        players = {"before": servers.enter_context(alone) if apart else at}
        if sides.adapter is not None:
            weights = f"{at.weights}+{folder_digest(sides.adapter)}"
            players["after"] = replace(at, model=_adapted(at.model), weights=weights)
        return asyncio.run(_both(environments, sides, wanted, players, told))


def _adapted(base: str) -> str:
    """By which name the server is asked for the adapter: another than its base's, whatever that is."""
    return f"{base}+trained"


async def _both(
    environments: Environments, sides: Sides, wanted: Wanted, players: Mapping[str, ModelSettings], told: Told
) -> tuple[dict[str, HeldOut], dict[str, HeldOut]]:
    """Measure `before` and `after`, at once or one after the other, with the model of each."""
    found: dict[str, dict[str, HeldOut]] = {"before": {}, "after": {}}
    done = dict.fromkeys(found, 0)
    turn = asyncio.Semaphore(len(players) if sides.apart else 1)

    async def play(side: str) -> None:
        for capability, difficulty in wanted.difficulties.items():
            begun = done[side]

            def tell(count: int, begun: int = begun) -> None:
                done[side] = begun + count
                told(sum(done.values()))

            asked = _Asked(environments, capability, difficulty, sides.instruction, players[side], wanted)
            kept = sides.kept if side == "before" else None
            measured = _kept(kept, asked)
            if measured is None:
                measured = await _played(asked, tell)
                if kept is not None:
                    write_atomic(_file(kept, asked), measured.model_dump_json() + "\n")
            found[side][capability] = measured
            tell(wanted.scenarios_of(capability) * wanted.rollouts)

    async def in_turn(side: str) -> None:
        async with turn:
            await play(side)

    await all_of(in_turn(side) for side in players)
    return found["before"], found["after"]


@dataclass(frozen=True)
class _Asked:
    environments: Environments
    capability: str
    difficulty: int
    instruction: str
    settings: ModelSettings
    wanted: Wanted

    @property
    def environment(self) -> str:
        """Digest of the environment."""
        return self.environments.generator(self.capability, self.difficulty, Content.HELDOUT).digest

    @property
    def agent(self) -> tuple[str, Sequence[ToolSchema]]:
        """System prompt and tools of whoever plays."""
        world = self.environments.world(self.capability)
        return system_prompt(world.policy(), self.instruction), world.tools("assistant")

    @property
    def model(self) -> str:
        """Digest of whoever plays."""
        return digest([self.settings.weights, agent_digest(*self.agent)])


async def _played(asked: _Asked, told: Callable[[int], None]) -> HeldOut:
    generator = asked.environments.generator(asked.capability, asked.difficulty, Content.HELDOUT)
    world = asked.environments.world(asked.capability)
    prompt, tools = asked.agent
    model = ChatModel(asked.settings)

    def agent(number: int) -> Agent:
        return ChatAgent(model, prompt, tools, trial=number)

    try:
        groups = await roll_groups(
            lambda: ScenarioEnvironment(generator, world),
            agent,
            range(asked.wanted.scenarios_of(asked.capability)),
            asked.wanted.rollouts,
            at_once=AT_ONCE,
            on_progress=told,
        )
    finally:
        await model.close()
    return HeldOut(
        capability=asked.capability,
        difficulty=asked.difficulty,
        digest=generator.digest,
        model=asked.model,
        temperature=asked.settings.temperature or 0.0,
        rewards=tuple(tuple(group.rewards) for group in groups),
        lost=lost_of(asked.capability, groups),
    )


def agent_digest(prompt: str, tools: Sequence[ToolSchema]) -> str:
    """Digest of what an agent is told: its system prompt and its tools."""
    return digest([prompt, [one.model_dump(mode="json") for one in tools]])


def lost_of(capability: str, groups: Sequence[Group]) -> int:
    """How many rollouts have no reward.

    Raises:
        InfrastructureError: too many.
    """
    rollouts = [one for group in groups for one in group.rollouts]
    lost = [one for one in rollouts if one.reward is None]
    if len(lost) > MAX_LOST * len(rollouts):
        raise InfrastructureError(
            f"held-out {capability!r}: {len(lost)} of {len(rollouts)} rollouts were lost, more than "
            f"{MAX_LOST:.0%}, and nothing is said of the others; first: {lost[0].trouble}"
        )
    return len(lost)


def _file(folder: Path, asked: _Asked) -> Path:
    wanted = asked.wanted
    much = [wanted.scenarios_of(asked.capability), wanted.rollouts]
    key = digest(
        [
            asked.environment,
            asked.model,
            asked.settings.temperature,
            *much,
            PLAYING_VERSION,
            model_package_versions(),
        ]
    )
    return folder / f"{asked.capability}-{key}.json"


def _kept(folder: Path | None, asked: _Asked) -> HeldOut | None:
    """What was measured before; what cannot be read is measured again."""
    if folder is None:
        return None
    try:
        return read_record(_file(folder, asked), HeldOut, ConfigError)
    except ConfigError:
        return None
