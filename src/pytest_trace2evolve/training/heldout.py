"""Measures a base model and its adapter on held-out scenarios, with a local server and `ChatAgent`.

Measurements of the base are stored and reused for each of its adapters.
"""

import asyncio
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist, fmean, stdev

from pytest_trace2evolve.agents.chat import ChatAgent, system_prompt
from pytest_trace2evolve.engine.ray_executor import RayExecutor
from pytest_trace2evolve.environments.environment import ScenarioEnvironment, count_lost, roll_groups
from pytest_trace2evolve.environments.on_cluster import Players
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.gate.intervals import LEVEL, student, wilson
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.adapter import HeldOut, RewardChange
from pytest_trace2evolve.records.environment import TOP
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest
from pytest_trace2evolve.serving.process import served
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.concurrency import all_of
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.optional import model_package_versions
from pytest_trace2evolve.utils.reading import read_record

SCENARIOS, ROLLOUTS = 100, 4
"""Default numbers of held-out scenarios and of rollouts per scenario."""

PLAYING_VERSION = 1
"""Version of the code that plays a rollout: the agent, its requests, the server and its sampling. Raise this
version when the same model gives a different answer to the same scenario and seed. Stored measurements of the
base are then repeated."""

AT_ONCE = 64
SEED = 1
"""Seed of the first rollout on both sides of a comparison."""

ALIKE = 1e-9
"""Standard deviation below which differences count as equal, apart from rounding."""

OnProgress = Callable[[int], None]
"""Called with the number of finished rollouts of both sides."""


@dataclass(frozen=True)
class Measurement:
    """The settings for measuring a base model and its adapter.

    Attributes:
        base: The base model's folder.
        adapter: The adapter's folder; None measures the base alone.
        difficulties: The difficulty of each environment, by capability.
        scenarios: The number of scenarios of each environment, by capability.
        rollouts: Rollouts of each scenario.
        instruction: The candidate's instruction, which agents get after the policy.
        cache: The folder for stored measurements of the base; None stores none.
        two_servers: Whether to measure both sides at once, each with its own server. This is faster if one
            server leaves cores idle, but needs the memory of a second server.
    """

    base: ModelFolder
    adapter: Path | None
    difficulties: Mapping[str, int]
    scenarios: Mapping[str, int]
    rollouts: int = ROLLOUTS
    instruction: str = ""
    cache: Path | None = None
    two_servers: bool = False

    @property
    def count(self) -> int:
        """The number of rollouts of one side."""
        return sum(self.scenarios.values()) * self.rollouts


def measure(
    environments: Environments,
    measurement: Measurement,
    *,
    on_progress: OnProgress = lambda done: None,
    cluster: str | None = None,
) -> tuple[dict[str, HeldOut], dict[str, HeldOut]]:
    """Measure the rewards of the base and of its adapter, by capability.

    Args:
        on_progress: Called with the number of finished rollouts.
        cluster: Address of a Ray cluster on this machine that plays the rollouts; None plays them in this
            process.

    Raises:
        ConfigError: the cluster cannot be used.
        ModelFolderError: the base or the adapter cannot be served.
        InfrastructureError: too many rollouts were lost.
    """
    base, adapter = measurement.base, measurement.adapter
    adapted = f"{base.name}+trained"  # the adapter's name on the server, which must differ from the base's
    two_servers = measurement.two_servers and adapter is not None
    threads = max(1, (os.cpu_count() or 1) // 2) if two_servers else None
    with ExitStack() as servers:

        def serve(adapters: Mapping[str, Path]) -> ModelSettings:
            server = served(base, adapters, seed=SEED, at_once=AT_ONCE, threads=threads)
            return servers.enter_context(server)

        shared = serve({} if adapter is None else {adapted: adapter})
        sides = {"before": serve({}) if two_servers else shared}
        if adapter is not None:
            weights = f"{shared.weights}+{folder_digest(adapter)}"
            sides["after"] = replace(shared, model=adapted, weights=weights)
        if cluster is None:
            found = asyncio.run(_measure_sides(environments, measurement, sides, on_progress))
        else:
            executor = servers.enter_context(
                RayExecutor.opened(cluster, environments.project, AT_ONCE, list(sides.values()))
            )
            players = {side: Players(executor, settings) for side, settings in sides.items()}
            found = executor.run(_measure_sides(environments, measurement, sides, on_progress, players))
    return found["before"], found.get("after", {})


async def _measure_sides(
    environments: Environments,
    measurement: Measurement,
    sides: Mapping[str, ModelSettings],
    on_progress: OnProgress,
    players: Mapping[str, Players] | None = None,
) -> dict[str, dict[str, HeldOut]]:
    """Measure both sides, concurrently or one after the other."""
    done: Counter[tuple[str, str]] = Counter()
    turn = asyncio.Semaphore(len(sides) if measurement.two_servers else 1)
    found: dict[str, dict[str, HeldOut]] = {side: {} for side in sides}

    def report(side: str, capability: str, count: int) -> None:
        done[side, capability] = count
        on_progress(done.total())

    async def measure_side(side: str) -> None:
        cache = measurement.cache if side == "before" else None
        async with turn:
            for capability, scenarios in measurement.scenarios.items():
                progress = partial(report, side, capability)
                found[side][capability] = await _measure_environment(
                    environments,
                    measurement,
                    capability,
                    sides[side],
                    cache,
                    progress,
                    None if players is None else players[side],
                )
                progress(scenarios * measurement.rollouts)

    await all_of(map(measure_side, sides))
    return found


async def _measure_environment(
    environments: Environments,
    measurement: Measurement,
    capability: str,
    settings: ModelSettings,
    cache: Path | None,
    on_progress: OnProgress,
    players: Players | None,
) -> HeldOut:
    """Read the stored measurement of a model in one environment, or measure the model if none can be read."""
    difficulty, scenarios = measurement.difficulties[capability], measurement.scenarios[capability]
    generator = environments.generator(capability, difficulty, Content.HELDOUT)
    world = environments.world(capability)
    prompt, tools = system_prompt(world.policy(), measurement.instruction), world.tools("assistant")
    model_digest = digest([settings.weights, agent_digest(prompt, tools)])
    identity = [generator.digest, model_digest, settings.temperature, scenarios, measurement.rollouts]
    key = digest([*identity, PLAYING_VERSION, model_package_versions()])
    file = None if cache is None else cache / f"{capability}-{key}.json"
    if file is not None:
        with suppress(ConfigError):
            return read_record(file, HeldOut, ConfigError)
    model = ChatModel(settings)
    try:
        groups = await roll_groups(
            lambda: ScenarioEnvironment(generator, world),
            lambda number: ChatAgent(model, prompt, tools, trial=number),
            range(scenarios),
            measurement.rollouts,
            at_once=AT_ONCE,
            on_progress=on_progress,
            play=None
            if players is None
            else players.of(capability, difficulty, Content.HELDOUT, measurement.instruction),
        )
    finally:
        await model.close()
    measured = HeldOut(
        capability=capability,
        difficulty=difficulty,
        digest=generator.digest,
        model=model_digest,
        temperature=settings.temperature or 0.0,
        rewards=tuple(tuple(group.rewards) for group in groups),
        lost=count_lost(f"held-out {capability!r}", groups),
    )
    if file is not None:
        write_atomic(file, measured.model_dump_json() + "\n")
    return measured


def agent_digest(prompt: str, tools: Sequence[ToolSchema]) -> str:
    """Digest of an agent's system prompt and tools."""
    return digest([prompt, [tool.model_dump(mode="json") for tool in tools]])


def reward_change(before: HeldOut, after: HeldOut) -> RewardChange:
    """The change of the mean reward; see `_change`."""
    return _change(before, after, float)


def top_change(before: HeldOut, after: HeldOut) -> RewardChange:
    """The change of the share of rollouts with the top reward; see `_change`."""
    return _change(before, after, lambda reward: float(reward == TOP))


def _change(before: HeldOut, after: HeldOut, figure: Callable[[float], float]) -> RewardChange:
    """Return the mean gain per scenario, with Student's interval for paired differences.

    A scenario counts once, whatever its number of rollouts, because rollouts of one scenario resemble each
    other. If all gains are equal, Student's interval has no width, which would claim more than, for example,
    two scenarios can show. The interval then reaches as far as Wilson's for the same number of scenarios,
    none of which differs.
    """
    pairs = [
        (fmean(map(figure, old)), fmean(map(figure, new)))
        for old, new in zip(before.rewards, after.rewards, strict=True)
        if old and new
    ]
    if not pairs:
        raise ValueError("no scenario was played on both sides")
    gains = [new - old for old, new in pairs]
    low = high = None
    if len(gains) > 1:
        if stdev(gains) < ALIKE:
            reach = wilson(0.0, len(gains), NormalDist().inv_cdf((1 + LEVEL) / 2))[1]
        else:
            reach = float(student((1 + LEVEL) / 2, len(gains) - 1)) * stdev(gains) / math.sqrt(len(gains))
        low, high = max(-1.0, fmean(gains) - reach), min(1.0, fmean(gains) + reach)
    means = [fmean(side) for side in zip(*pairs, strict=True)]
    return RewardChange(before=means[0], after=means[1], rollouts=after.count, low=low, high=high)
