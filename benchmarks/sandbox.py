"""A generated environment in the sandbox and outside: calls a second, milliseconds a rollout, what is added.

python benchmarks/sandbox.py [STEP_MS]

A rollout is a scenario of about 15 kB, twelve tool calls of an in-process world (STEP_MS each, 0.2 unless
given), and a grade that is given the task and a trace of twenty messages. On a busy machine the clock counts
waits of two processes where outside there is one; the time of the processors does not. Training makes a group
of rollouts of each seed and needs the scenario once; the last row is such a group.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pytest_trace2evolve.environments.sandbox.box import Sandbox, isolation_problem
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.task import Task

MESSAGES = TypeAdapter(list[Message])

STEPS = 12
GROUP = 16
BATCH = 5
BATCHES = 60

SOURCE = """
import random
from dataclasses import dataclass, field

FIRST = ("Ann", "Bea", "Cem", "Dora", "Emil", "Fay", "Gus", "Hana")
LAST = ("Adler", "Baker", "Costa", "Diaz", "Evans", "Fischer", "Garcia", "Haas")
GOODS = ("kettle", "lamp", "desk", "chair", "rug", "clock", "shelf", "mirror")


@dataclass
class Order:
    id: str
    status: str
    items: list = field(default_factory=list)

    def record(self):
        total = round(sum(item["price"] for item in self.items), 2)
        return {"order_id": self.id, "status": self.status, "items": self.items, "total": total}


def _order(rng, number):
    made = Order(f"#W{rng.randrange(10**6, 10**7)}", rng.choice(["pending", "delivered", "processed"]))
    for at in range(rng.randint(2, 4)):
        made.items.append({
            "item_id": str(rng.randrange(10**9, 10**10)), "name": rng.choice(GOODS),
            "price": round(rng.uniform(5, 300), 2),
            "options": {"colour": rng.choice(["red", "blue"]), "size": at},
        })
    return made.record()


def scenario(seed):
    rng = random.Random(seed)
    users = {}
    for number in range(15):
        first, last = rng.choice(FIRST), rng.choice(LAST)
        orders = [_order(rng, number) for _ in range(rng.randint(2, 3))]
        users[f"{first.lower()}_{last.lower()}_{number}"] = {
            "name": {"first": first, "last": last}, "zip": str(rng.randrange(10000, 99999)),
            "orders": {order["order_id"]: order for order in orders},
        }
    target = rng.choice(sorted(users))
    order = rng.choice(sorted(users[target]["orders"]))
    return {
        "id": f"precondition_{seed}",
        "user_scenario": f"You are {target}. Cancel {order} if it is pending.",
        "initial_state": {"initialization_data": {"agent_data": {"users": users}}},
        "evaluation_criteria": {"actions": [{"name": "get_order", "arguments": {"order_id": order}}]},
    }


def grade(task, trace, solved):
    wanted = task["evaluation_criteria"]["actions"][0]["arguments"]["order_id"]
    calls = [call for message in trace for call in message.get("tool_calls") or ()]
    looked = any(call["name"] == "get_order" and call["arguments"]["order_id"] == wanted for call in calls)
    return 1.0 if looked and solved else 0.2 if looked else 0.0
"""


def trace_of(task: Task) -> list[Message]:
    """Twenty messages about a task: calls, and results of a few hundred characters."""
    state = task.initial_state
    assert state is not None
    assert state.initialization_data is not None
    users = (state.initialization_data.agent_data or {})["users"]
    orders = [order for user in users.values() for order in user["orders"].values()]
    made: list[Message] = []
    for order in orders[:10]:
        call = ToolCall(id=order["order_id"], name="get_order", arguments={"order_id": order["order_id"]})
        made.append(Message(role="assistant", tool_calls=[call]))
        made.append(Message(role="tool", id=call.id, content=json.dumps(order)))
    return made


def spin(seconds: float) -> None:
    """Work for a time, as a tool does; a sleep would hand the processor to the child."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Outside:
    """The generator in this process: what it returns is passed on as it is."""

    def __init__(self) -> None:
        self._functions: dict[str, Any] = {}
        exec(compile(SOURCE, "<generator>", "exec"), self._functions)

    def scenario(self, seed: int) -> Any:
        return self._functions["scenario"](seed)

    def grade(self, raw: Any, task: Task, trace: Sequence[Message]) -> float:
        messages = [message.model_dump(exclude_unset=True) for message in trace]
        return float(self._functions["grade"](raw, messages, True))


class Inside:
    """The generator in the sandbox: records go in as JSON."""

    def __init__(self, box: Sandbox) -> None:
        self._box = box

    def scenario(self, seed: int) -> Any:
        return self._box.call("scenario", seed)

    def grade(self, raw: Any, task: Task, trace: Sequence[Message]) -> float:
        record = task.model_dump(mode="json", exclude_unset=True)
        messages = MESSAGES.dump_python(list(trace), mode="json", exclude_unset=True)
        return float(self._box.call("grade", record, messages, True))


def rollouts(side: Outside | Inside, seed: int, step: float, group: int) -> float:
    """The sum of rewards of a group of rollouts, which are of one scenario."""
    raw = side.scenario(seed)
    task = Task.model_validate(raw)
    rewards = 0.0
    for _ in range(group):
        for _ in range(STEPS):
            spin(step)
        rewards += side.grade(raw, task, trace_of(task))
    return rewards


class Meter:
    """Takes the time of runs: by the clock, and of the processors that parent and child had."""

    def __init__(self, child: int) -> None:
        self._child = Path(f"/proc/{child}/schedstat")

    def _now(self) -> tuple[float, float]:
        child = int(self._child.read_text(encoding="ascii").split()[0]) / 1e9
        return time.perf_counter(), time.process_time() + child

    def milliseconds(self, run: Callable[[], object]) -> tuple[float, float]:
        """Of one run by the clock and by the processors, over a batch."""
        begun = self._now()
        for _ in range(BATCH):
            run()
        ended = self._now()
        return (ended[0] - begun[0]) * 1000 / BATCH, (ended[1] - begun[1]) * 1000 / BATCH

    def row(self, what: str, *runs: Callable[[], object]) -> None:
        """Print both sides and what isolation adds: the fastest tenth of batches, which take turns."""
        taken: tuple[list[tuple[float, float]], ...] = ([], [])
        for _ in range(BATCHES):
            for side, run in zip(taken, runs, strict=True):
                side.append(self.milliseconds(run))
        shown = f"{what:28}"
        for kind in (0, 1):
            plain, boxed = (statistics.quantiles([one[kind] for one in side], n=10)[0] for side in taken)
            shown += f" {plain:>10.3f} {boxed:>10.3f} {boxed / plain - 1:>+8.0%} {1000 / boxed:>8.0f}/s"
        print(shown)


def main() -> None:
    """Print one row a kind of call, and one for a whole rollout."""
    step = float(sys.argv[1]) / 1000 if len(sys.argv) > 1 else 0.0002
    outside = Outside()
    isolation_problem()
    begun = time.perf_counter()
    with Sandbox(SOURCE, "generator") as box:
        inside = Inside(box)
        raw = outside.scenario(1)
        task = Task.model_validate(raw)
        trace = trace_of(task)
        print(f"started, locked and loaded in {(time.perf_counter() - begun) * 1000:.0f} ms")
        print(f"a task of {len(json.dumps(raw))} bytes, a trace of {len(MESSAGES.dump_json(trace))}")
        assert inside.scenario(1) == raw
        assert inside.grade(raw, task, trace) == outside.grade(raw, task, trace)
        columns = f" {'outside':>10} {'sandbox':>10} {'added':>8} {'':>10}"
        print("milliseconds by the clock, then of the processors")
        print(f"{'':28}{columns * 2}")
        meter = Meter(box.pid)
        meter.row("scenario", lambda: outside.scenario(1), lambda: inside.scenario(1))
        meter.row("grade", lambda: outside.grade(raw, task, trace), lambda: inside.grade(raw, task, trace))
        for group in (1, GROUP):
            meter.row(
                f"{group} x {STEPS} steps of {step * 1000:g} ms",
                lambda group=group: rollouts(outside, 1, step, group),
                lambda group=group: rollouts(inside, 1, step, group),
            )


if __name__ == "__main__":
    main()
