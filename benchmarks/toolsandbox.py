"""Compares the scores of ToolSandbox's scenarios with those of ToolSandbox's own roles and evaluator.

    python benchmarks/toolsandbox.py [--trajectories 300]

Needs an export: `trace2evolve import CLONE --format toolsandbox`. A script of each scenario does what its
milestones ask for. It is played as it is and damaged: a call is dropped, swapped, repeated, altered or named
wrongly, calls are joined into one message, texts are changed, or nothing is done at all. Both sides play the
same scripts.
"""

import argparse
import asyncio
import collections
import copy
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pytest_trace2evolve.engine.conversation import Limits, converse
from pytest_trace2evolve.records.message import STOP_MARK, Message, ToolCall
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.scoring.milestones import START, Constraint, Rule
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.worlds.toolsandbox.dump import Base, export_folder, read_manifest
from pytest_trace2evolve.worlds.toolsandbox.process import BRIDGE, bridge_environment
from pytest_trace2evolve.worlds.toolsandbox.world import ToolSandboxWorld

Step = dict[str, Any]

UPSTREAM = Path(__file__).with_name("toolsandbox_upstream.py")


SETTINGS = {"cellular": "cellular_service"}
"""The names that tools have for columns, where they differ."""

CRITERIA = {
    "search_messages": {"creation_timestamp_upperbound": 2e9},
    "search_reminder": {"creation_timestamp_upperbound": 2e9},
    "search_contacts": {"is_self": False},
}
"""Arguments of searches whose milestones name none, because a search needs one at least."""


class ScriptWriter:
    """Writes the steps that satisfy the milestones of a base, with the results of the tools as they come."""

    def __init__(self, world: ToolSandboxWorld, task: Task) -> None:
        self.session, self.task = world.open(), task
        self.session.initialise(task.initial_state)
        self.base: Base = world._dump.bases[world._dump.scenarios[task.id].base]
        self.own = {own: seen for seen, own in world._dump.names_of(task.id).items()}
        self.traces: dict[int, list[Any]] = {}
        self.steps: list[Step] = []

    def write(self) -> list[Step]:
        """The steps in the order of the milestones."""
        done: set[int] = set()
        graph = self.base.milestones
        while len(done) < len(graph.order):
            blocked = {after for before, after in graph.edges if before not in done}
            index = next(index for index in graph.order if index not in done and index not in blocked)
            self.traces[index] = []
            constraints = sorted(graph.milestones[index], key=lambda item: item.table == "SANDBOX")
            for constraint in constraints:
                self.satisfy(index, constraint)
            done.add(index)
        self.session.close()
        return self.steps

    def call(self, index: int, name: str, arguments: Mapping[str, Any]) -> None:
        if name not in self.own:
            return
        call = {"name": self.own[name], "arguments": dict(arguments)}
        (result,) = self.session.run([ToolCall(**call)])
        if result["trace"] is not None:
            self.traces[index].append(json.loads(result["trace"]))
        self.steps.append({"calls": [call]})

    def satisfy(self, index: int, constraint: Constraint) -> None:
        for row in constraint.rows:
            match constraint.table:
                case "SANDBOX":
                    self.say_or_call(index, constraint, row)
                case "SETTING":
                    current = self.session.tables["SETTING"][0]
                    for name, value in row.items():
                        if current[name] != value:
                            tool = f"set_{SETTINGS.get(name, name)}_status"
                            self.call(index, tool, {"on": value})
                case "MESSAGING":
                    self.call(
                        index,
                        "send_message_with_phone_number",
                        {"phone_number": row["recipient_phone_number"], "content": row["content"]},
                    )
                case table if constraint.rule is not Rule.UNCHANGED:
                    verb = {Rule.ADDED: "add", Rule.REMOVED: "remove", Rule.UPDATED: "modify"}[
                        constraint.rule
                    ]
                    key = "person_id" if table == "CONTACT" else "reminder_id"
                    arguments = {key: row[key]} if verb == "remove" else dict(row)
                    if verb == "add":
                        arguments.pop(key, None)
                    self.call(index, f"{verb}_{table.lower()}", arguments)

    def say_or_call(self, index: int, constraint: Constraint, row: Mapping[str, Any]) -> None:
        value: dict[str, Any] = {}
        if constraint.extractor is not None and constraint.reference not in (None, START):
            values = [
                found
                for trace in self.traces[constraint.reference]
                for found in constraint.extractor.values(trace)
            ]
            value = values[0] if values else {}
        if "tool_trace" in row:
            wanted = json.loads(row["tool_trace"])
            call = wanted[0] if isinstance(wanted, list) else wanted
            made = [trace for trace in self.traces[index] if trace["tool_name"] == call["tool_name"]]
            if not made:
                arguments = {**call["arguments"], **value} or CRITERIA.get(call["tool_name"], {})
                self.call(index, call["tool_name"], arguments)
        elif row["sender"] == "AGENT" and row["recipient"] == "USER":
            try:
                text = row["content"].format(**value) if constraint.extractor else row["content"]
            except KeyError:
                text = row["content"]
            if not (self.steps and text in self.steps[-1].get("say", "")):
                self.steps.append({"say": text})


def damages(
    steps: Sequence[Step], names: Sequence[str], rng: random.Random
) -> Iterator[tuple[str, list[Step]]]:
    """Each kind of damage of a script, with its name."""
    steps = list(steps)
    calls = [number for number, step in enumerate(steps) if "calls" in step]
    texts = [number for number, step in enumerate(steps) if "say" in step]
    yield "none", steps
    yield "empty", []
    yield "refuse", [{"say": "I am sorry, but I cannot assist with that."}]
    yield "repeat_all", steps * 2
    yield "reverse", steps[::-1]
    yield "unknown_tool", [*steps[: len(steps) // 2], {"calls": [{"name": "no_such_tool", "arguments": {}}]}]
    yield "talk", [{"say": f"I look into it, part {number}."} for number in range(rng.randint(3, 20))] + steps
    if names:
        yield "every_tool", [{"calls": [{"name": name, "arguments": {}}]} for name in names] + steps
        yield "exception", [{"calls": [{"name": rng.choice(names), "arguments": {"x": 1}}]}, *steps]
    if texts:
        number = rng.choice(texts)
        words = steps[number]["say"].split()
        rng.shuffle(words)
        yield "shuffle_words", [*steps[:number], {"say": " ".join(words)}, *steps[number + 1 :]]
        yield (
            "half_words",
            [*steps[:number], {"say": " ".join(words[: len(words) // 2])}, *steps[number + 1 :]],
        )
        yield (
            "more_words",
            [*steps[:number], {"say": " ".join([*words, "and", "nothing"])}, *steps[number + 1 :]],
        )
    if calls:
        number = rng.choice(calls)
        yield "drop", steps[:number] + steps[number + 1 :]
        yield "duplicate", [*steps[: number + 1], *steps[number:]]
        yield "stop_early", steps[: number + 1]
        yield "alter", [*steps[:number], _altered(steps[number], rng), *steps[number + 1 :]]
        yield "join", _joined(steps)
    if len(calls) > 1:
        first, second = sorted(rng.sample(calls, 2))
        swapped = list(steps)
        swapped[first], swapped[second] = steps[second], steps[first]
        yield "swap", swapped


def _altered(step: Step, rng: random.Random) -> Step:
    step = copy.deepcopy(step)
    arguments = step["calls"][0]["arguments"]
    if not arguments:
        arguments["surplus"] = 1
        return step
    name = rng.choice(sorted(arguments))
    value = arguments[name]
    if isinstance(value, bool):
        arguments[name] = not value
    elif isinstance(value, int | float):
        arguments[name] = value + rng.choice([1e-4, 0.4, 1, 3600])
    else:
        arguments[name] = f"{value} again"
    return step


def _joined(steps: Sequence[Step]) -> list[Step]:
    joined: list[Step] = []
    for step in steps:
        if joined and "calls" in step and "calls" in joined[-1] and len(joined[-1]["calls"]) < 4:
            joined[-1] = {"calls": [*joined[-1]["calls"], *step["calls"]]}
        else:
            joined.append(step)
    return joined


class Player:
    """A side of a conversation that follows a script."""

    name = "scripted"

    def __init__(self, role: Any, steps: Sequence[Step]) -> None:
        self.role, self.steps, self.count = role, list(steps), 0

    async def respond(self, history: Sequence[Message]) -> Message:
        step = self.steps.pop(0) if self.steps else {"say": "Done."}
        if "say" in step:
            return Message(role=self.role, content=step["say"])
        if self.role == "user":
            return Message(role="user", content=STOP_MARK)
        calls = []
        for call in step["calls"]:
            self.count += 1
            calls.append(ToolCall(id=f"call_{self.count}", **call))
        return Message(role=self.role, tool_calls=calls)


END: Step = {"calls": [{"name": "end_conversation", "arguments": {}}]}


def user_steps(steps: Sequence[Step]) -> list[Step]:
    """The user's replies: the conversation ends after the agent's last text."""
    texts = sum("say" in step for step in steps)
    return [{"say": "Yes, please do."}] * (texts - 1) + [END]


def write_scripts(world: ToolSandboxWorld, count: int, seed: int) -> list[dict[str, Any]]:
    """At least `count` scripts, with every kind of damage, over all bases and some of their variants."""
    rng = random.Random(seed)
    scripts = []
    tasks = world.tasks()
    bases = [name for name in tasks if world._dump.scenarios[name].base == name]
    per_base = -(-count // len(bases))
    for number, name in enumerate(bases):
        steps = ScriptWriter(world, tasks[name]).write()
        names = list(world._dump.names_of(name))
        found = dict(damages(steps, names, rng))
        others = [kind for kind in found if kind not in ("none", "empty", "refuse")]
        # The choice rotates, so that each kind of damage occurs.
        kinds = [
            "none",
            "refuse",
            *[others[(number * 5 + k) % len(others)] for k in range(min(per_base, len(others)))],
        ]
        for kind in dict.fromkeys(kinds):
            scripts.append(
                {
                    "key": f"{name}/{kind}",
                    "scenario": name,
                    "agent": found[kind],
                    "user": user_steps(found[kind]),
                }
            )
    for name in tasks:  # the names of tools differ in some variants
        if name.endswith(("_tool_name_scrambled", "_all_tools")):
            steps = ScriptWriter(world, tasks[name]).write()
            scripts.append(
                {"key": f"{name}/none", "scenario": name, "agent": steps, "user": user_steps(steps)}
            )
    return scripts


async def play(world: ToolSandboxWorld, script: Mapping[str, Any]) -> dict[str, Any]:
    """Play a script here and score it."""
    task = world.tasks()[script["scenario"]]
    simulation = await converse(
        task,
        world,
        Player("assistant", script["agent"]),
        Player("user", script["user"]),
        limits=Limits(max_steps=30, max_errors=1000),
    )
    result = score(simulation, task, world)
    return {
        "similarity": result.reward,
        "note": result.note,
        "milestones": [match.similarity for match in result.milestones or ()],
        "minefields": [match.similarity for match in result.minefields or ()],
    }


def run_upstream(lines: Sequence[Mapping[str, Any]], results: Path) -> dict[str, Any]:
    """Play scripts with ToolSandbox's own code; `results` keeps those that are done."""
    manifest = read_manifest(export_folder())
    known = _read_results(results)
    command = [
        manifest.python,
        "-W",
        "ignore",
        str(UPSTREAM),
        str(BRIDGE),
        str(manifest.clock),
        str(manifest.seed),
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines if line["key"] not in known)
    with results.open("a", encoding="utf-8") as file:
        subprocess.run(
            command,
            input=text,
            stdout=file,
            stderr=subprocess.DEVNULL,
            text=True,
            env=bridge_environment(manifest.clone),
            check=True,
        )
    return _read_results(results)


def _read_results(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    results = [json.loads(line) for line in lines if line.startswith('{"key"')]
    return {result["key"]: result for result in results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trajectories", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=Path("toolsandbox-upstream"), help="folder; resumes")
    parser.add_argument("--frozen", type=Path, help="write upstream's scores to a file")
    arguments = parser.parse_args()
    arguments.results.mkdir(exist_ok=True)
    world = ToolSandboxWorld("offline")
    scripts = write_scripts(world, arguments.trajectories, arguments.seed)
    their_scripts = run_upstream(scripts, arguments.results / "scripts.jsonl")
    ours = {script["key"]: asyncio.run(play(world, script))["similarity"] for script in scripts}
    theirs = {key: their_scripts[key]["similarity"] for key in ours}
    _report("trajectories", ours, theirs)
    kinds = collections.Counter(key.rpartition("/")[2] for key in ours)
    print(f"damage: {dict(kinds)}")
    bases = [
        key for key in ours if key.endswith("/none") and world._dump.scenarios[key[:-5]].base == key[:-5]
    ]
    counts = [sum(side[key] == 1 for key in bases) for side in (theirs, ours)]
    print(f"undamaged scripts of {len(bases)} bases: perfect upstream {counts[0]}, here {counts[1]}")
    if arguments.frozen:
        content = {
            "data": world.data_digest(),
            "trajectories": arguments.trajectories,
            "seed": arguments.seed,
            "scripts": theirs,
        }
        arguments.frozen.write_text(json.dumps(content, indent=0, sort_keys=True) + "\n", encoding="utf-8")


def _report(name: str, ours: Mapping[str, float | None], theirs: Mapping[str, float | None]) -> None:
    """Print the largest difference, and the keys whose scores differ."""
    differences = {
        key: abs(ours[key] - theirs[key]) if ours[key] is not None and theirs[key] is not None else 2.0
        for key in ours
        if ours[key] is not theirs[key]
    }
    for key, difference in differences.items():
        if difference > 1e-9:
            print(f"{key}: here {ours[key]}, upstream {theirs[key]}")
    print(f"{len(ours)} {name}, largest difference {max(differences.values(), default=0.0):.3g}")


if __name__ == "__main__":
    main()
