"""The support world beside the retail toolkit of inspect_evals, both over τ²'s own store, on one core.

python benchmarks/support.py [--conversations 1000] [--runs 5]

A conversation is a session with 20 tool calls, 16 that read and 4 that write, over all tools and random
records. The reference has no `get_item_details`: there the item's product is read instead. Times are of the
processor, so that what else the machine does counts less.
"""

import argparse
import gc
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

from pytest_trace2evolve.records.protocols import World, WorldSession
from pytest_trace2evolve.worlds.inspect_evals import InspectWorld, data_folder, read_data
from pytest_trace2evolve.worlds.support.world import SupportWorld

Call = tuple[str, dict[str, Any]]
Store = dict[str, dict[str, Any]]

READS, WRITES = 16, 4
ADDRESS = {
    "address1": "Elm Street 1",
    "address2": "",
    "city": "Springfield",
    "state": "IL",
    "country": "USA",
    "zip": "62701",
}


class Calls:
    """Draws tool calls that fit a store."""

    def __init__(self, store: Store, seed: int) -> None:
        self._store = store
        self._draw = random.Random(seed)
        self._orders = {
            status: [key for key, order in store["orders"].items() if order["status"] == status]
            for status in ("pending", "delivered")
        }

    def conversation(self) -> list[Call]:
        """The calls of one session, reads and writes mixed."""
        calls = [self._read() for _ in range(READS)] + [self._write() for _ in range(WRITES)]
        self._draw.shuffle(calls)
        return calls

    def _read(self) -> Call:
        user_id, user = self._draw.choice(list(self._store["users"].items()))
        order_id = self._draw.choice(list(self._store["orders"]))
        product_id, product = self._draw.choice(list(self._store["products"].items()))
        return self._draw.choice(
            [
                ("find_user_id_by_email", {"email": user["email"]}),
                ("find_user_id_by_name_zip", {**user["name"], "zip": user["address"]["zip"]}),
                ("get_user_details", {"user_id": user_id}),
                ("get_order_details", {"order_id": order_id}),
                ("get_product_details", {"product_id": product_id}),
                ("get_item_details", {"item_id": self._draw.choice(list(product["variants"]))}),
                ("list_all_product_types", {}),
                ("calculate", {"expression": f"{self._draw.randint(1, 99)}.5 * 3 - 7"}),
                ("transfer_to_human_agents", {"summary": "The customer asks for a human."}),
            ]
        )

    def _write(self) -> Call:
        pending, delivered = (self._draw.choice(self._orders[status]) for status in ("pending", "delivered"))
        reason = self._draw.choice(["no longer needed", "ordered by mistake"])
        return self._draw.choice(
            [
                ("cancel_pending_order", {"order_id": pending, "reason": reason}),
                ("modify_pending_order_address", {"order_id": pending, **ADDRESS}),
                ("modify_pending_order_items", self._exchange(pending)),
                (
                    "modify_pending_order_payment",
                    {"order_id": pending, "payment_method_id": self._method(pending)},
                ),
                ("modify_user_address", {"user_id": self._store["orders"][pending]["user_id"], **ADDRESS}),
                ("return_delivered_order_items", self._exchange(delivered, keep=True)),
                ("exchange_delivered_order_items", self._exchange(delivered)),
            ]
        )

    def _exchange(self, order_id: str, *, keep: bool = False) -> dict[str, Any]:
        order = self._store["orders"][order_id]
        item = self._draw.choice(order["items"])
        variants = self._store["products"][item["product_id"]]["variants"]
        chosen = {
            "order_id": order_id,
            "item_ids": [item["item_id"]],
            "payment_method_id": self._method(order_id),
        }
        return chosen if keep else {**chosen, "new_item_ids": [self._draw.choice(list(variants))]}

    def _method(self, order_id: str) -> str:
        order = self._store["orders"][order_id]
        return str(self._draw.choice(list(self._store["users"][order["user_id"]]["payment_methods"])))


def for_reference(call: Call, store: Store) -> Call:
    """The call that the reference answers in place of one that it does not know."""
    name, arguments = call
    if name != "get_item_details":
        return call
    products = store["products"].items()
    product_id = next(key for key, product in products if arguments["item_id"] in product["variants"])
    return "get_product_details", {"product_id": product_id}


def calls_a_second(world: World, conversations: Sequence[Sequence[Call]], runs: int) -> list[float]:
    """Calls a second, one figure a run after one that is not counted; opening sessions is included."""
    rates = []
    for run in range(runs + 1):
        started = time.process_time()
        for calls in conversations:
            session = world.open()
            for name, arguments in calls:
                session.call(name, arguments, "assistant")
        if run:
            rates.append(sum(map(len, conversations)) / (time.process_time() - started))
    return rates


def microseconds_to_open(world: World, runs: int, count: int = 5_000) -> list[float]:
    """Microseconds of opening a session, one figure a run."""
    figures = []
    for _ in range(runs):
        started = time.process_time()
        for _ in range(count):
            world.open()
        figures.append((time.process_time() - started) * 1e6 / count)
    return figures


def bytes_a_session(world: World, touch: Callable[[WorldSession], None], count: int = 300) -> float:
    """Memory that one open session holds after `touch`, in bytes."""
    touch(world.open())  # what the world remembers for all of them is not counted
    gc.collect()
    tracemalloc.start()
    sessions = [world.open() for _ in range(count)]
    for session in sessions:
        touch(session)
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return size / len(sessions)


def toucher(name: str, keys: Sequence[str], **more: str) -> Callable[[WorldSession], None]:
    """Calls a tool on orders, one after the other."""

    def touch(session: WorldSession) -> None:
        for key in keys:
            assert not session.call(name, {"order_id": key, **more}, "assistant").error

    return touch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conversations", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    store: Store = read_data(data_folder() / "retail" / "db.json")
    worlds: dict[str, World] = {"support": SupportWorld(store=store), "inspect_evals": InspectWorld("retail")}
    draw = Calls(store, seed=0)
    conversations = [draw.conversation() for _ in range(options.conversations)]
    print(", ".join(f"{len(records):,} {name}" for name, records in store.items()))
    session_of = worlds["support"].open
    done = [
        not session.call(name, arguments, "assistant").error
        for session, calls in ((session_of(), calls) for calls in conversations)
        for name, arguments in calls
        if worlds["support"].changes_state(name)
    ]
    print(f"{len(done):,} writes, {sum(done) / len(done):.0%} of them are carried out")
    pending = [key for key, order in store["orders"].items() if order["status"] == "pending"]
    for label, world in worlds.items():
        played = conversations
        if label != "support":
            played = [[for_reference(call, store) for call in calls] for calls in conversations]
        rates = calls_a_second(world, played, options.runs)
        print(f"{label:14} calls a second    {_summary(rates, 0)}")
        print(f"{label:14} µs to open        {_summary(microseconds_to_open(world, options.runs), 2)}")
        for records in (0, 1, 10, 100):
            read = bytes_a_session(world, toucher("get_order_details", pending[:records]))
            written = bytes_a_session(
                world, toucher("modify_pending_order_address", pending[:records], **ADDRESS)
            )
            sizes = f"read {read / 1024:8.1f}   written {written / 1024:8.1f}"
            print(f"{label:14} KiB a session     {records:3} records: {sizes}")


def _summary(values: Sequence[float], digits: int) -> str:
    low, middle, high = (
        f"{one:,.{digits}f}" for one in (min(values), statistics.median(values), max(values))
    )
    return f"{middle} ({low}–{high})"


if __name__ == "__main__":
    main()
