"""A generated environment in the sandbox and outside: calls a second, milliseconds a rollout, what is added.

python benchmarks/sandbox.py [STEP_MS]

A rollout is a scenario of about 15 kB, twelve tool calls of an in-process world (STEP_MS each, 0.2 unless
given), and a grade that is given the task and a trace of twenty messages. The two sides take turns, so that
other work on the machine falls on both.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_trace2evolve.environments.sandbox.box import Json, Limits, Sandbox

ROLLOUTS = 300
STEPS = 12
REPEATS = 7

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
        "id": f"precondition_{seed}", "user": f"You are {target}. Cancel {order} if it is pending.",
        "initial_state": {"users": users, "message_history": []},
        "actions": [{"name": "get_order", "arguments": {"order_id": order}}],
    }


def grade(task, trace, solved):
    wanted = task["actions"][0]["arguments"]["order_id"]
    calls = [call for message in trace for call in message.get("tool_calls") or ()]
    looked = any(call["name"] == "get_order" and call["arguments"]["order_id"] == wanted for call in calls)
    return 1.0 if looked and solved else 0.2 if looked else 0.0
"""


def trace_of(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Twenty messages about a task: calls, results of a few hundred characters, words."""
    orders = [order for user in task["initial_state"]["users"].values() for order in user["orders"].values()]
    made: list[dict[str, Any]] = []
    for order in orders[:10]:
        call = {"id": order["order_id"], "name": "get_order", "arguments": {"order_id": order["order_id"]}}
        made.append({"role": "assistant", "content": None, "tool_calls": [call]})
        made.append({"role": "tool", "id": order["order_id"], "content": json.dumps(order)})
    return made


def spin(seconds: float) -> None:
    """Work for a time, as a tool does; a sleep would hand the processor to the child."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def rollout(
    seed: int, ask: Callable[..., Any], send: Callable[[Any], Any], step: float, steps: int = STEPS
) -> float:
    """One rollout's reward."""
    task = ask("scenario", seed)
    for _ in range(steps):
        spin(step)
    return float(ask("grade", send(task), send(trace_of(task)), True))


def inside(function: Mapping[str, Any]) -> Callable[..., Any]:
    """Ask a generator in this process."""
    return lambda name, *arguments: function[name](*arguments)


def milliseconds(run: Callable[[int], object], count: int) -> float:
    """Milliseconds a run, over seeds."""
    begun = time.perf_counter()
    for seed in range(count):
        run(seed)
    return (time.perf_counter() - begun) * 1000 / count


def row(what: str, runs: Sequence[Callable[[int], object]]) -> None:
    """Print both sides' medians, measured in turns, and what isolation adds."""
    taken: list[list[float]] = [[], []]
    for _ in range(REPEATS):
        for side, run in enumerate(runs):
            taken[side].append(milliseconds(run, ROLLOUTS))
    plain, boxed = (statistics.median(one) for one in taken)
    added = statistics.median(b - a for a, b in zip(*taken, strict=True))
    share = f"{added / plain:+.0%}"
    print(f"{what:28} {plain:>10.3f} {boxed:>10.3f} {1000 / boxed:>10.0f} {added:>+9.3f} {share:>8}")


def main() -> None:
    """Print one row a kind of call, and one for a whole rollout."""
    step = float(sys.argv[1]) / 1000 if len(sys.argv) > 1 else 0.0002
    functions: dict[str, Any] = {}
    exec(compile(SOURCE, "<generator>", "exec"), functions)
    ask = inside(functions)
    begun = time.perf_counter()
    with Sandbox(SOURCE, "generator", Limits()) as box:
        print(f"started and locked in {(time.perf_counter() - begun) * 1000:.0f} ms; {os.cpu_count()} cores")
        task = ask("scenario", 1)
        trace = trace_of(task)
        print(f"a scenario of {len(json.dumps(task))} bytes, a trace of {len(json.dumps(trace))}")
        assert box.call("scenario", 1) == task
        print(f"{'':28} {'outside ms':>10} {'sandbox ms':>10} {'calls/s':>10} {'added ms':>9} {'added':>8}")
        text = Json(json.dumps(task))
        row("scenario", [lambda seed: ask("scenario", seed), lambda seed: box.call("scenario", seed)])
        row(
            "grade",
            [lambda _: ask("grade", task, trace, True), lambda _: box.call("grade", task, trace, True)],
        )
        row(
            "grade, task as text",
            [lambda _: ask("grade", task, trace, True), lambda _: box.call("grade", text, trace, True)],
        )
        row(
            f"rollout, {STEPS} steps of {step * 1000:g} ms",
            [
                lambda seed: rollout(seed, ask, lambda one: one, step),
                lambda seed: rollout(seed, box.call, lambda one: one, step),
            ],
        )


if __name__ == "__main__":
    main()
