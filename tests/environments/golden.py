"""Writes `golden.json`: what scenarios of the built-in environments are, and what they pay.

Run `python -m tests.environments.golden` after raising the version of an environment whose scenarios changed.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_trace2evolve.agents.reference import CaseOracle
from pytest_trace2evolve.environments.environment import DIFFICULTIES, ScenarioEnvironment, require_script
from pytest_trace2evolve.environments.generated import make_offer
from pytest_trace2evolve.environments.generators.support import SupportGenerator, remaining_actions
from pytest_trace2evolve.environments.registry import BUILT_IN
from pytest_trace2evolve.environments.reward_hacking_probes import WRONG_PROBES
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Generator
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Content, Task
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.worlds.registry import Worlds
from pytest_trace2evolve.worlds.support.world import SupportWorld
from tests.environments.test_grades import SEEDS as TRIES
from tests.environments.test_grades import WAYS, Way

FILE = Path(__file__).with_suffix(".json")
COMMAND = "python -m tests.environments.golden"

SEEDS = {Content.TRAIN: (0, 1), Content.HELDOUT: (0,)}
"""Scenarios of each difficulty, by content."""

STEPS = 60
"""Messages of an answer at most."""

WORLD = SupportWorld()
WRITES = [tool for tool, kind in WORLD.tool_types().items() if kind is ToolType.WRITE]

Golden = dict[str, dict[str, Any]]
"""By environment its version and, by name, its scenarios; with them what the answers of `test_grades.py` are
paid, so that each grade of a table is there."""


def golden(names: Iterable[str] = ()) -> Golden:
    """What the environments of some names make now, or all of them."""
    kinds = {kind.capability: kind for kind in BUILT_IN}
    return {name: scenarios_of(kinds[name]) for name in names or kinds}


def scenarios_of(kind: type[SupportGenerator]) -> dict[str, Any]:
    """The version of a built-in environment and its scenarios."""
    scenarios: dict[str, Any] = {}
    for content, seeds in SEEDS.items():
        for difficulty in DIFFICULTIES:
            generator = kind(difficulty, content)
            for seed in seeds:
                name = f"{content.value}, difficulty {difficulty}, seed {seed}"
                scenarios[name] = described(generator, seed)
    for what, level, way, _ in WAYS[kind.capability]:
        scenarios[f"answer, {what}"] = grade_of(kind(level), way)
    return {"version": kind.version, "scenarios": scenarios}


def digests() -> list[str]:
    """The digests of environments of all kinds."""
    made: list[Generator] = [
        kind(level, content) for content in Content for kind in BUILT_IN for level in DIFFICULTIES
    ]
    for source in ("first", "second"):
        offer = make_offer("mine", source, "", ("trace2evolve", "support"), Worlds())
        made += [offer.make(1, content) for content in Content]
    found = [generator.digest for generator in made]
    assert len(set(found)) == len(found) == 2 * (6 * 5 + 2)
    return found


def grade_of(generator: Generator, way: Way) -> float:
    """What an answer is paid in the first scenario that has a place for it."""
    tried = ((seed, way(generator.scenario(seed))) for seed in range(TRIES))
    seed, said = next((seed, said) for seed, said in tried if said is not None)
    environment = ScenarioEnvironment(generator, WORLD)
    environment.reset(seed)
    for message in said:
        environment.step(message)
    return environment.reward()


def described(generator: Generator, seed: int) -> dict[str, Any]:
    """One scenario: digests of the task and of all that comes back on three answers, and their rewards."""
    task = generator.scenario(seed)
    environment = ScenarioEnvironment(generator, WORLD)
    ways = {"correct": None, "wrong": generator.shortcut(task), "empty": WRONG_PROBES["nothing"](task)}
    came_back, rewards = {}, {}
    for name, way in ways.items():
        came_back[name] = list(_played(environment, task, seed, way))
        rewards[name] = environment.reward()
    return {
        "opening": require_script(task).turns[0].says,
        "history": len(task.history),
        "calls": [one.name for one in remaining_actions(task)],
        "rewards": rewards,
        "task": digest(task.model_dump(mode="json")),
        "came_back": digest(came_back),
    }


def _played(
    environment: ScenarioEnvironment, task: Task, seed: int, way: Iterable[Message] | None
) -> Iterator[list[Any]]:
    """What the customer and the tools say on an answer, what is paid so far, and whether it has ended.

    Args:
        way: What the agent says; None for the expert.
    """
    oracle = CaseOracle(task, require_script(task), WRITES)
    environment.reset(seed)
    said = iter(way) if way is not None else (oracle.reply(environment.trace) for _ in range(STEPS))
    for message in said:
        before = len(environment.trace) + 1
        done = environment.step(message).done
        others = [one.model_dump(mode="json") for one in environment.trace[before:]]
        yield [others, environment.reward(), done]
        if done:
            return


def problems(stored: Mapping[str, Any], now: Golden) -> list[str]:
    """How the stored scenarios differ from those of now, a line an environment, each with its remedy."""
    return [*changes(stored, now), *_outdated(stored, now)]


def changes(stored: Mapping[str, Any], now: Golden) -> list[str]:
    """Environments whose scenarios have changed and whose versions have not."""
    found = []
    for name, made in now.items():
        kept = stored.get(name)
        if kept is None or kept["version"] != made["version"]:
            continue
        scenarios = kept["scenarios"]
        both = [one for one in made["scenarios"] if one in scenarios]
        differing = [one for one in both if scenarios[one] != made["scenarios"][one]]
        if differing:
            found.append(
                f"{name}: {len(differing)} of {len(both)} golden scenarios changed, first '{differing[0]}'; "
                f"raise {constant_of(name)} and run '{COMMAND}', or undo the change"
            )
    return found


def _outdated(stored: Mapping[str, Any], now: Golden) -> list[str]:
    """Environments of which the file holds another version or other scenarios than are made now."""
    found = []
    for name in {**now, **stored}:
        expected = [None if side is None else side["version"] for side in (stored.get(name), now.get(name))]
        if expected[0] != expected[1]:
            found.append(
                f"{name}: {FILE.name} has version {expected[0]}, the code has {expected[1]}; run '{COMMAND}'"
            )
        elif stored[name]["scenarios"].keys() != now[name]["scenarios"].keys():
            found.append(f"{name}: {FILE.name} lists other scenarios than golden.py; run '{COMMAND}'")
    return found


def constant_of(name: str) -> str:
    """The version of an environment, as a reader finds it."""
    kind = next(one for one in BUILT_IN if one.capability == name)
    return f"{kind.__name__}.version in {kind.__module__}"


def read() -> dict[str, Any]:
    """What is stored."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def text_of(made: Golden) -> str:
    """The file's text: one line a scenario."""
    parts = []
    for name, one in made.items():
        lines = ",\n".join(
            f"   {json.dumps(scenario)}: {json.dumps(held)}" for scenario, held in one["scenarios"].items()
        )
        parts.append(
            f' {json.dumps(name)}: {{\n  "version": {one["version"]},\n  "scenarios": {{\n{lines}\n  }}\n }}'
        )
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> int:
    """Write the file, unless scenarios changed under the version that is stored."""
    made = golden()
    unraised = changes(read(), made) if FILE.exists() else []
    if unraised:
        print("\n".join(unraised), file=sys.stderr)
        return 1
    FILE.write_text(text_of(made), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
