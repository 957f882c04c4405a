"""Simulations on a simulated Ray cluster: equal to a local run's, with nodes that are killed, and their cost.

    python benchmarks/cluster.py [equal|kills|rate|driver]... [--simulations 1000] [--kills 20]

Three nodes of one CPU run on this machine (`ray.cluster_utils.Cluster`), and one scripted endpoint.

- `equal`: the same simulations locally and on the cluster; compares traces and scores.
- `kills`: a node is killed at random again and again, and replaced; compares calls with the endpoint's count.
- `rate`: 64 simulations at once on two actors; the share of the ideal rate, which is concurrency / (latency ×
  calls) simulations a second.
- `driver`: processor time of the driver's process for each simulation, and its memory. What it costs without
  simulations is measured with an executor that returns finished ones at once, and subtracted.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
if str(CHECKOUT) not in sys.path:
    sys.path.insert(0, str(CHECKOUT))

from benchmarks.live import CALLS, project, steady  # noqa: E402
from pytest_trace2evolve import Project, Run, evaluate  # noqa: E402
from pytest_trace2evolve.engine.ray_executor import RayExecutor  # noqa: E402
from pytest_trace2evolve.records.trace import Simulation  # noqa: E402
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply  # noqa: E402

NODES = 3
FULL = 570
"""Simulations that fill 64 places nine times: a last round that is half empty would lower the share."""

STORE = 80_000_000
"""Bytes of each node's object store, Ray's smallest."""

VOLATILE = ("id", "timestamp", "start_time", "end_time", "duration", "generation_time_seconds")
"""Fields of a trace that no two runs share."""


def brief(request: ChatRequest) -> Reply:
    """A conversation of three calls."""
    if "<scenario>" in request.system:
        said = sum(message["role"] == "assistant" for message in request.messages)
        return Reply("###STOP###" if said else "Please look.")
    return Reply("I have looked.")


SCRIPTS = {"steady": (steady, CALLS), "brief": (brief, 3)}


def serve(script: str, latency: float, pipe: Any) -> None:
    """The endpoint's process: sends its URL, then what it counted, whenever it is asked."""
    times: list[float] = []

    def timed(request: ChatRequest) -> Reply:
        times.append(time.perf_counter())
        return SCRIPTS[script][0](request)

    with ChatServer(timed, latency=latency) as server:
        pipe.send(server.base_url)
        before = 0
        while pipe.recv() == "count":
            span = times[-1] - times[0] + latency
            pipe.send((server.count.served - before, server.count.attempts, span))
            before = server.count.served
            times.clear()


class Endpoint:
    """A scripted endpoint in a process of its own."""

    def __init__(self, script: str, latency: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(script, latency, theirs), daemon=True)
        self._process.start()
        self.url: str = self._pipe.recv()

    def count(self) -> tuple[int, int, float]:
        """Answers, attempts, and the seconds from the first request to the last answer."""
        self._pipe.send("count")
        counted: tuple[int, int, float] = self._pipe.recv()
        return counted

    def close(self) -> None:
        """End the process."""
        self._pipe.send("stop")
        self._process.join()


@contextlib.contextmanager
def cluster(nodes: int = NODES) -> Iterator[Any]:
    """A cluster of nodes of one CPU; the head has none, and is never killed."""
    from ray.cluster_utils import Cluster

    paths = [str(CHECKOUT / "src"), str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE}
    found = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes):
            found.add_node(num_cpus=1, object_store_memory=STORE)
        yield found
    finally:
        found.shutdown()


@dataclass
class Finished:
    """An executor whose simulations are there at once."""

    simulations: dict[tuple[str, int], Simulation]
    notes: tuple[str, ...] = ()

    def open(self, work: object) -> None:
        """Nothing has to be opened."""

    start = open

    async def simulate(self, assignment: Any, journal: object = None, before_use: Any = None) -> Simulation:
        """The finished simulation."""
        if before_use is not None:
            await before_use()
        return self.simulations[assignment.task.id, assignment.trial]

    def close(self) -> None:
        """Nothing has to be closed."""


def run(folder: Path, url: str, *, executor: Any = None, **options: Any) -> Run:
    """One run without a gate."""
    options = {"candidate": "v0", "model": "m", "base_url": url, "gate": "off", "fresh": True, **options}
    return evaluate(Project.find(folder), executor=executor, **options)


def traces(folder: Path) -> dict[tuple[str, int], Any]:
    """The stored simulations of a run, with their scores, by task and trial."""
    files = sorted((folder / "simulations").glob("*.json"))
    records = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    found = {(record["task_id"], record["trial"]): record for record in records}
    assert len(found) == len(records), "a simulation was stored twice"
    return found


def lasting(value: Any) -> Any:
    """A trace without what no two runs share."""
    if isinstance(value, dict):
        return {key: lasting(item) for key, item in value.items() if key not in VOLATILE}
    return [lasting(item) for item in value] if isinstance(value, list) else value


def equal(options: argparse.Namespace) -> None:
    """Compare a local run with one on the cluster."""
    with cluster() as found, tempfile.TemporaryDirectory() as folder:
        endpoint = Endpoint("brief", 0.0)
        project(Path(folder), options.simulations)
        here = run(Path(folder), endpoint.url, concurrency=64)
        there = run(Path(folder), endpoint.url, concurrency=96, executor=RayExecutor(found.address))
        mine, theirs = traces(here.plan.run_folder), traces(there.plan.run_folder)
        same = sum(lasting(mine[key]) == lasting(theirs.get(key)) for key in mine)
        print(f"equal: {same} of {len(mine)} simulations, {len(theirs)} on the cluster", flush=True)
        endpoint.close()


def kills(options: argparse.Namespace) -> None:
    """Kill nodes during a run."""
    with cluster() as found, tempfile.TemporaryDirectory() as folder:
        endpoint = Endpoint("steady", options.latency)
        project(Path(folder), options.simulations)
        runs: list[Run] = []
        executor = RayExecutor(found.address, per_actor=options.per_actor)

        def work() -> None:
            concurrency = options.per_actor * NODES
            more = {"concurrency": concurrency, "on_event": lambda event: begun.set()}
            runs.append(run(Path(folder), endpoint.url, executor=executor, **more))

        begun = threading.Event()
        thread, draw, killed = threading.Thread(target=work), random.Random(1), 0
        nodes = list(found.worker_nodes)
        thread.start()
        begun.wait(300)
        while thread.is_alive():
            time.sleep(draw.uniform(2, 6))
            if killed < options.kills and thread.is_alive():
                # Nodes are added and killed in this thread: Ray sets a signal handler.
                found.remove_node(nodes.pop(draw.randrange(len(nodes))), allow_graceful=False)
                killed += 1
                nodes.append(found.add_node(num_cpus=1, object_store_memory=STORE))
        thread.join()
        [done] = runs
        served, attempts, _ = endpoint.count()
        stored = traces(done.plan.run_folder)
        usage = done.outcomes[0].metrics["discovery"]
        record = json.loads((done.plan.run_folder / "run.json").read_text(encoding="utf-8"))
        calls = record["usage"]["calls"]
        print(
            f"kills: {killed} nodes killed, {executor.losses} actors lost, {executor.resumed} simulations "
            f"resumed; {len(stored)} stored, {usage.measured} measured, {usage.infrastructure_errors} lost; "
            f"calls counted {calls}, answered by the endpoint {served}, asked {attempts}",
            flush=True,
        )
        endpoint.close()


def rate(options: argparse.Namespace) -> None:
    """Measure the share of the ideal rate."""
    with cluster(2) as found, tempfile.TemporaryDirectory() as folder:
        endpoint = Endpoint("steady", options.latency)
        project(Path(folder), FULL)
        for name, executor in (("local", None), ("two actors", RayExecutor(found.address, per_actor=32))):
            run(Path(folder), endpoint.url, concurrency=64, executor=executor)
            served, _, span = endpoint.count()
            print(f"rate, {name}: {options.latency * served / 64 / span:.2f} of the ideal", flush=True)
        endpoint.close()


def driver(options: argparse.Namespace) -> None:
    """Measure the driver's cost for each simulation, and its memory."""
    with cluster() as found, tempfile.TemporaryDirectory() as folder:
        for script in options.script or SCRIPTS:
            endpoint = Endpoint(script, options.latency)
            where = Path(folder) / script
            where.mkdir()
            project(where, options.simulations)
            run(where, endpoint.url, trials=1, concurrency=64)  # loads what every run needs
            finished = Finished({})
            costs = {}
            for name, executor in (
                ("locally", None),
                ("cluster", RayExecutor(found.address)),
                ("none", finished),
            ):
                began = processor_seconds()
                done = run(where, endpoint.url, concurrency=64 if executor is None else 96, executor=executor)
                count = done.outcomes[0].metrics["discovery"].simulations
                costs[name] = (processor_seconds() - began) / count * 1000
                if executor is None:
                    finished.simulations = {
                        key: Simulation.model_validate(record)
                        for key, record in traces(done.plan.run_folder).items()
                    }
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"driver, {count} simulations of {SCRIPTS[script][1]} calls: {costs['cluster']:.1f} ms each, "
                f"{costs['cluster'] - costs['none']:.1f} ms more than nothing simulated; "
                f"{costs['locally']:.1f} ms locally; peak {peak:.0f} MiB",
                flush=True,
            )
            endpoint.close()


def processor_seconds() -> float:
    """Processor time of this process, all its threads together."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


PARTS = {"equal": equal, "kills": kills, "rate": rate, "driver": driver}


def main() -> None:
    """Print a line for each measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=list(PARTS))
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--latency", type=float, default=0.3)
    parser.add_argument("--script", action="append", choices=SCRIPTS, help="of driver")
    parser.add_argument("--per-actor", type=int, default=32)
    options = parser.parse_args()
    os.environ["OPENAI_API_KEY"] = "none"
    for part in options.parts:
        PARTS[part](options)


if __name__ == "__main__":
    main()
