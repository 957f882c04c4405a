"""Measures a base model and its adapter on held-out scenarios, with a local server and `ChatAgent`.

Measurements of the base are stored and reused for each of its adapters.
"""

import asyncio
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist, fmean, stdev

from pytest_trace2evolve.agents.chat import ChatAgent, system_prompt
from pytest_trace2evolve.environments.environment import ScenarioEnvironment, count_lost_rollouts, play_groups
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.gate.intervals import CONFIDENCE_LEVEL, student_quantile, wilson
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.adapter import HeldOutRewards, RewardChange
from pytest_trace2evolve.records.environment import MAX_GRADE
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest
from pytest_trace2evolve.serving.process import LocalServer
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.concurrency import run_concurrently
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.optional import model_package_versions
from pytest_trace2evolve.utils.reading import read_record

DEFAULT_SCENARIOS, DEFAULT_ROLLOUTS = 100, 4
"""Default numbers of held-out scenarios and of rollouts per scenario."""

PLAYING_VERSION = 1
"""Version of the code that plays a rollout: the agent, its requests, the server and its sampling. Increase
this version if the same model gives a different answer to the same scenario and seed. Stored measurements of
the base are then repeated."""

MAX_CONCURRENT_ROLLOUTS = 64
FIRST_SEED = 1
"""Seed of the first rollout of the base, and of the first rollout of the adapter."""

ROUNDING_TOLERANCE = 1e-9
"""Standard deviation below which all differences count as equal, because rounding alone can cause it."""

OnProgress = Callable[[int], None]
"""Called with the number of finished rollouts of the base and the adapter together."""


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
        uses_two_servers: Whether to measure the base and the adapter at once, each on its own server. Two
            servers are faster if one server leaves cores idle, but need more memory.
    """

    base: ModelFolder
    adapter: Path | None
    difficulties: Mapping[str, int]
    scenarios: Mapping[str, int]
    rollouts: int = DEFAULT_ROLLOUTS
    instruction: str = ""
    cache: Path | None = None
    uses_two_servers: bool = False

    @property
    def rollout_count(self) -> int:
        """The number of rollouts of the base alone, which equals that of the adapter."""
        return sum(self.scenarios.values()) * self.rollouts


def measure(
    environments: Environments,
    measurement: Measurement,
    *,
    on_progress: OnProgress = lambda done: None,
) -> tuple[dict[str, HeldOutRewards], dict[str, HeldOutRewards]]:
    """Measure the rewards of the base and of its adapter, by capability.

    Args:
        on_progress: Called with the number of finished rollouts.

    Raises:
        ModelFolderError: the base or the adapter cannot be served.
        InfrastructureError: too many rollouts were lost.
    """
    base, adapter = measurement.base, measurement.adapter
    adapter_model = (
        f"{base.name}+trained"  # the adapter's name on the server, which must differ from the base's
    )
    uses_two_servers = measurement.uses_two_servers and adapter is not None
    threads = max(1, (os.cpu_count() or 1) // 2) if uses_two_servers else None
    with ExitStack() as servers:

        def start_server(adapters: Mapping[str, Path]) -> ModelSettings:
            server = serve_locally(
                base, adapters, seed=FIRST_SEED, max_connections=MAX_CONCURRENT_ROLLOUTS, threads=threads
            )
            return servers.enter_context(server)

        settings = start_server({} if adapter is None else {adapter_model: adapter})
        sides = {"before": start_server({}) if uses_two_servers else settings}
        if adapter is not None:
            adapter_weights = f"{settings.weights}+{folder_digest(adapter)}"
            sides["after"] = replace(settings, model=adapter_model, weights=adapter_weights)
        results = asyncio.run(_measure_sides(environments, measurement, sides, on_progress))
    return results["before"], results.get("after", {})


async def _measure_sides(
    environments: Environments,
    measurement: Measurement,
    sides: Mapping[str, ModelSettings],
    on_progress: OnProgress,
) -> dict[str, dict[str, HeldOutRewards]]:
    """Measure the base and the adapter, concurrently or one after the other."""
    finished_counts: Counter[tuple[str, str]] = Counter()
    side_semaphore = asyncio.Semaphore(len(sides) if measurement.uses_two_servers else 1)
    results: dict[str, dict[str, HeldOutRewards]] = {side: {} for side in sides}

    def report(side: str, capability: str, count: int) -> None:
        finished_counts[side, capability] = count
        on_progress(finished_counts.total())

    async def measure_side(side: str) -> None:
        cache = measurement.cache if side == "before" else None
        async with side_semaphore:
            for capability, scenarios in measurement.scenarios.items():
                on_side_progress = partial(report, side, capability)
                results[side][capability] = await _measure_environment(
                    environments,
                    measurement,
                    capability,
                    sides[side],
                    cache,
                    on_side_progress,
                )
                on_side_progress(scenarios * measurement.rollouts)

    await run_concurrently(map(measure_side, sides))
    return results


async def _measure_environment(
    environments: Environments,
    measurement: Measurement,
    capability: str,
    settings: ModelSettings,
    cache: Path | None,
    on_progress: OnProgress,
) -> HeldOutRewards:
    """Read the stored measurement of a model in one environment, or measure the model if none can be read."""
    difficulty, scenarios = measurement.difficulties[capability], measurement.scenarios[capability]
    generator = environments.generator(capability, difficulty, Content.HELDOUT)
    world = environments.world(capability)
    prompt, tools = system_prompt(world.policy(), measurement.instruction), world.tools("assistant")
    model_digest = digest([settings.weights, agent_digest(prompt, tools)])
    identity = [generator.digest, model_digest, settings.temperature, scenarios, measurement.rollouts]
    cache_key = digest([*identity, PLAYING_VERSION, model_package_versions()])
    cache_file = None if cache is None else cache / f"{capability}-{cache_key}.json"
    if cache_file is not None:
        with suppress(ConfigError):
            return read_record(cache_file, HeldOutRewards, ConfigError)
    model = ChatModel(settings)
    try:
        groups = await play_groups(
            lambda: ScenarioEnvironment(generator, world),
            lambda number: ChatAgent(model, prompt, tools, trial=number),
            range(scenarios),
            measurement.rollouts,
            concurrency=MAX_CONCURRENT_ROLLOUTS,
            on_progress=on_progress,
        )
    finally:
        await model.close()
    held_out_rewards = HeldOutRewards(
        capability=capability,
        difficulty=difficulty,
        digest=generator.digest,
        model=model_digest,
        temperature=settings.temperature or 0.0,
        rewards=tuple(tuple(group.rewards) for group in groups),
        lost=count_lost_rollouts(f"held-out {capability!r}", groups),
    )
    if cache_file is not None:
        write_atomic(cache_file, held_out_rewards.model_dump_json() + "\n")
    return held_out_rewards


def agent_digest(prompt: str, tools: Sequence[ToolSchema]) -> str:
    """Return the digest of an agent's system prompt and tools."""
    return digest([prompt, [tool.model_dump(mode="json") for tool in tools]])


def reward_change(before: HeldOutRewards, after: HeldOutRewards) -> RewardChange:
    """Return the change of the mean reward; see `_paired_change`."""
    return _paired_change(before, after, float)


def top_change(before: HeldOutRewards, after: HeldOutRewards) -> RewardChange:
    """Return the change of the share of rollouts with the top reward; see `_paired_change`."""
    return _paired_change(before, after, lambda reward: float(reward == MAX_GRADE))


def _paired_change(
    before: HeldOutRewards, after: HeldOutRewards, score: Callable[[float], float]
) -> RewardChange:
    """Return the mean gain per scenario, with Student's interval for paired differences.

    A scenario counts once for any number of rollouts, because rollouts of one scenario resemble each
    other. If all gains are equal, Student's interval has no width, which would claim more than, for example,
    two scenarios can show. In this case, the interval is as wide as Wilson's for a share of 0 in the same
    number of scenarios.
    """
    pairs = [
        (fmean(map(score, old)), fmean(map(score, new)))
        for old, new in zip(before.rewards, after.rewards, strict=True)
        if old and new
    ]
    if not pairs:
        raise ValueError("no scenario was played on both sides")
    gains = [new - old for old, new in pairs]
    low = high = None
    if len(gains) > 1:
        if stdev(gains) < ROUNDING_TOLERANCE:
            half_width = wilson(0.0, len(gains), NormalDist().inv_cdf((1 + CONFIDENCE_LEVEL) / 2))[1]
        else:
            half_width = (
                float(student_quantile((1 + CONFIDENCE_LEVEL) / 2, len(gains) - 1))
                * stdev(gains)
                / math.sqrt(len(gains))
            )
        low, high = max(-1.0, fmean(gains) - half_width), min(1.0, fmean(gains) + half_width)
    means = [fmean(side_means) for side_means in zip(*pairs, strict=True)]
    return RewardChange(before=means[0], after=means[1], rollouts=after.rollout_count, low=low, high=high)


@contextmanager
def serve_locally(
    base: ModelFolder,
    adapters: Mapping[str, Path] | None = None,
    *,
    seed: int | None = None,
    max_connections: int = 64,
    threads: int | None = None,
) -> Iterator[ModelSettings]:
    """Serve a base and adapters, given as folders by name; yields the settings for requests to the base."""
    server = LocalServer(base.path, adapters, () if threads is None else ("-o", f"t2e_threads={threads}"))
    try:
        yield ModelSettings(
            model=base.name,
            base_url=server.base_url,
            token=server.token,
            temperature=base.temperature,
            seed=seed,
            max_connections=max_connections,
            weights=folder_digest(base.path),
        )
    finally:
        server.close()
