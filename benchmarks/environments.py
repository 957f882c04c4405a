"""How fast environments are: rollouts of an expert, and what the sandbox costs a generated one.

    python benchmarks/environments.py [--seeds N] [--rollouts K]

The same generated module (tests/environments/modules/parcel_tracing.py) is played in the sandbox and in
this process: by an expert who needs no model, so that nothing is left but the environment, and with `--model`
by the embedded model, as in calibration and training. Both take turns, batch by batch, since the machine's
speed changes; the fastest quarter of batches counts.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_trace2evolve.agents.chat import ChatAgent, system_prompt
from pytest_trace2evolve.agents.reference import CaseOracle
from pytest_trace2evolve.environments.environment import ScenarioEnvironment, play_groups
from pytest_trace2evolve.environments.generated import GeneratedGenerator
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.environments.sandbox.box import Sandbox
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.protocols import Generator
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Content, script_of
from pytest_trace2evolve.serving.process import LocalServer
from pytest_trace2evolve.utils.resources import embedded_model
from pytest_trace2evolve.worlds.registry import Worlds

MODULE_SUFFIX = (
    Path(__file__).resolve().parents[1] / "tests" / "environments" / "modules" / "parcel_tracing.py"
)
WORLD = Worlds().open("trace2evolve", "support")
WRITES = [name for name, kind in WORLD.tool_types().items() if kind is ToolType.WRITE]
BATCHES = 24


class Here:
    """The module's functions in this process: what the sandbox is measured against."""

    def __init__(self, source: str) -> None:
        self._names: dict[str, Any] = {}
        exec(compile(source, "module", "exec"), self._names)

    def call(self, function: str, *arguments: Any) -> Any:
        return self._names[function](*arguments)


def rollout(generator: Generator, seed: int) -> int:
    """One rollout of the expert; how many messages it took."""
    environment = ScenarioEnvironment(generator, WORLD)
    environment.reset(seed)
    script = script_of(environment.task)
    assert script is not None
    oracle = CaseOracle(environment.task, script, WRITES)
    said = 1
    while not environment.step(oracle.reply(environment.trace)).done:
        said += 1
    assert environment.reward() == 1.0
    return said


def batch(make: Callable[[], Generator], first: int, seeds: int, group: int) -> float:
    """Seconds a rollout of some groups on scenarios not seen before."""
    generator = make()
    started = time.perf_counter()
    for seed in range(first, first + seeds):
        for _ in range(group):
            rollout(generator, seed)
    return (time.perf_counter() - started) / (seeds * group)


def quick(values: list[float]) -> float:
    """Mean of the fastest quarter, in milliseconds."""
    return 1000 * statistics.fmean(sorted(values)[: max(len(values) // 4, 1)])


def with_model(seeds: int, group: int) -> None:
    """Print what the sandbox costs where a model plays: groups of rollouts, 64 at once."""
    source = MODULE_SUFFIX.read_text(encoding="utf-8")
    prompt, tools = system_prompt(WORLD.policy()), WORLD.tools("assistant")
    server = LocalServer(embedded_model())
    settings = ModelSettings(model=embedded_model().name, temperature=0.7, seed=1)
    taken: dict[str, list[float]] = {"here": [], "sandbox": []}

    async def play(held: Any, first: int) -> float:
        model = ChatModel(settings.with_server(server.base_url, server.token))
        generator = GeneratedGenerator("parcel", source, 1, Content.TRAIN, WORLD, held)
        started = time.perf_counter()
        await play_groups(
            lambda: ScenarioEnvironment(generator, WORLD),
            lambda number: ChatAgent(model, prompt, tools, trial=number),
            range(first, first + seeds),
            group,
            concurrency=64,
        )
        elapsed = time.perf_counter() - started
        await model.close()
        return elapsed / (seeds * group)

    try:
        with Sandbox(source, "benchmark") as box:
            for number in range(9):
                for name, held in (("here", Here(source)), ("sandbox", box)):
                    each = asyncio.run(play(held, number * 1000))
                    if number:  # the first warms the server
                        taken[name].append(each)
    finally:
        server.close()
    one, other = (1000 * statistics.median(taken[name]) for name in ("here", "sandbox"))
    print(
        f"embedded model: {one:.1f} ms a rollout here, {other:.1f} ms in the sandbox: {other / one - 1:+.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20, help="scenarios a batch")
    parser.add_argument("--rollouts", type=int, default=16, help="of each, as in training")
    parser.add_argument("--model", action="store_true", help="played by the embedded model")
    options = parser.parse_args()
    if options.model:
        with_model(options.seeds, options.rollouts)
        return
    source = MODULE_SUFFIX.read_text(encoding="utf-8")
    here = Here(source)
    print(
        f"{'rollouts a scenario':>20} {'difficulty':>10} {'here':>8} {'sandbox':>8} {'slower':>7}  (ms each)"
    )
    with Sandbox(source, "benchmark") as box:
        for group in (1, options.rollouts):
            for difficulty in (1, 5):

                def made(held: Any, difficulty: int = difficulty) -> Generator:
                    return GeneratedGenerator("parcel", source, difficulty, Content.TRAIN, WORLD, held)

                taken: dict[str, list[float]] = {"here": [], "sandbox": []}
                for number in range(BATCHES):
                    for name, held in (("here", here), ("sandbox", box)):
                        seeds = options.seeds if group > 1 else options.seeds * 4
                        taken[name].append(batch(lambda: made(held), number * 1000, seeds, group))  # noqa: B023
                one, other = quick(taken["here"]), quick(taken["sandbox"])
                print(f"{group:20} {difficulty:10} {one:8.2f} {other:8.2f} {other / one - 1:7.1%}")
    environments = Environments()
    print(f"\n{'environment':32} {'ms a scenario':>14} {'ms a rollout':>13}  (built in, difficulty 1)")
    for name in environments.names:
        generator = environments.generator(name, 1)
        started = time.perf_counter()
        for seed in range(options.seeds):
            generator.scenario(seed)
        scenario = (time.perf_counter() - started) / options.seeds
        each = min(batch(lambda: generator, 0, options.seeds, 4) for _ in range(3))  # noqa: B023
        print(f"{name:32} {1000 * scenario:14.2f} {1000 * each:13.2f}")


if __name__ == "__main__":
    main()
