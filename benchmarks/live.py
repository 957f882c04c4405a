"""Live simulations against a slow endpoint: how much of the ideal rate is reached, and what a call costs.

    python benchmarks/live.py [--only TEXT] [--latency 0.3] [--simulations N]

Each simulation of τ² retail takes 19 model calls (13 of the agent, 6 of the user). The ideal is
latency × calls / concurrency; start-up is left out: the clock runs from the first request to the last answer.
Memory is the largest sum over the processes of a session, looked at five times a second (Linux). The floor is
a bare aiohttp client that posts as many requests of the same size.
"""

import argparse
import contextlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply
from pytest_trace2evolve.testing.server import CHARACTERS_PER_TOKEN

REPOSITORY = Path(__file__).resolve().parents[1]
CALLS = 19
TOOL_CALLS = (2, 2, 2, 1, 1)
"""Tool calls of the agent before each of its five texts: with them 13 calls."""


def steady(request: ChatRequest) -> Reply:
    """A conversation of fixed length, whatever the task."""
    if "<scenario>" in request.system:
        said = sum(message["role"] == "assistant" for message in request.messages)
        return Reply("Thank you. ###STOP###" if said == len(TOOL_CALLS) else f"Please look again ({said}).")
    texts = sum(
        message["role"] == "assistant" and not message.get("tool_calls") for message in request.messages
    )
    turn = texts - 1  # the greeting
    since = 0
    for message in reversed(request.messages):
        if message["role"] == "user":
            break
        since += bool(message.get("tool_calls"))
    if since < TOOL_CALLS[turn]:
        return Reply(tool_calls=(("get_order_details", {"order_id": "#W2378156"}),))
    return Reply("I have looked; is there anything else?")


def serve(latency: float, pipe: Connection) -> None:
    """The server's process: sends its URL, then at the end what it saw."""
    times: list[float] = []
    lock = threading.Lock()

    def timed(request: ChatRequest) -> Reply:
        with lock:
            times.append(time.perf_counter())
        return steady(request)

    with ChatServer(timed, latency=latency) as server:
        pipe.send(server.base_url)
        pipe.recv()
        # The script runs after the latency: the first request came one latency before its first call.
        span = times[-1] - times[0] + latency if times else 0.0
        size = server.count.prompt_tokens * CHARACTERS_PER_TOKEN / max(server.count.served, 1)
        pipe.send((server.count.served, span, size))


def project(folder: Path, simulations: int) -> None:
    """A project with one suite of retail tasks, as many as simulations."""
    shutil.copytree(REPOSITORY / "candidates", folder / "candidates")
    (folder / "suites").mkdir()
    (folder / "pytest.ini").write_text("[pytest]\nt2e_suites = suites\n")
    last = min(simulations, 114) - 1
    trials = -(-simulations // 114)
    (folder / "suites" / "retail.toml").write_text(
        f'provider = "inspect_evals"\ndomain = "retail"\ntrials = {trials}\n'
        f'[splits]\ndiscovery = ["0..{last}"]\n'
    )
    subprocess.run(
        [sys.executable, "-m", "pytest_trace2evolve.cli", "lock"], cwd=folder, check=True, capture_output=True
    )


@dataclass(frozen=True)
class Measured:
    """One session: model calls, seconds between the first and the last, bytes of a request, CPU, memory."""

    calls: int
    span: float
    size: float
    cpu: float
    memory: float


def resident(leader: int) -> float:
    """MiB of memory of all processes in a process group."""
    pages = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):  # it ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            pages += int(fields[21]) if int(fields[2]) == leader else 0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


FLOOR = """
import asyncio, sys, aiohttp
url, calls, concurrency, size = sys.argv[1], *map(int, sys.argv[2:])
body = {"model": "m", "messages": [{"role": "system", "content": "<scenario>" + "x" * size}]}
async def post(session, numbers):
    for _ in numbers:
        async with session.post(f"{url}/chat/completions", json=body) as answer:
            await answer.json()
async def main():
    numbers = iter(range(calls))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(post(session, numbers) for _ in range(concurrency)))
asyncio.run(main())
"""


def measure(folder: Path, latency: float, arguments: list[str], floor: Sequence[int] = ()) -> Measured:
    """Run one session, or the bare client with the arguments `floor`, against a server of its own."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(latency, theirs))
    server.start()
    url = ours.recv()
    command = ["-m", "pytest", "-q", "--tb=no", "-rN", "--t2e-model=m", f"--t2e-base-url={url}", *arguments]
    child = subprocess.Popen(
        [sys.executable, *(["-c", FLOOR, url, *map(str, floor)] if floor else command)],
        cwd=folder,
        env={**os.environ, "OPENAI_API_KEY": "none"},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    memory = 0.0
    while not (ended := os.wait4(child.pid, os.WNOHANG))[0]:
        memory = max(memory, resident(child.pid))
        time.sleep(0.2)
    _, status, usage = ended
    assert os.waitstatus_to_exitcode(status) in (0, 1, 5), status
    ours.send("stop")
    calls, span, size = ours.recv()
    server.join()
    return Measured(calls, span, size, usage.ru_utime + usage.ru_stime, memory)


SETTINGS = {  # simulations, and how many at once
    "8 at once": (64, 8),
    "64 at once": (64, 64),
    "1,026 simulations, 64 at once": (1026, 64),
}


def main() -> None:
    """Print one row a setting."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, default=0.3)
    parser.add_argument("--only", default="", help="settings whose name holds this")
    parser.add_argument("--simulations", type=int, default=0, help="only so many simulations, 64 at once")
    options = parser.parse_args()
    names = ("calls", "of ideal", "floor", "CPU, ms/call", "floor", "memory, MiB", "request, kB")
    print("{:32} {:>7} {:>9} {:>6} {:>13} {:>6} {:>12} {:>12}".format("setting", *names))
    chosen = {f"{options.simulations:,}": (options.simulations, 64)} if options.simulations else SETTINGS
    for name, (simulations, at_once) in chosen.items():
        if options.only not in name:
            continue
        arguments = ["-pno:xdist", f"--t2e-concurrency={at_once}"]
        with tempfile.TemporaryDirectory() as folder:
            project(Path(folder), simulations)
            # Two simulations, so that every process has loaded what it needs: the rest is what calls cost.
            two = [f"suites/retail.toml::discovery::{task}" for task in (0, 1)]
            start = measure(Path(folder), 0.0, [*two, "--t2e-trials=1", *arguments])
            got = measure(Path(folder), options.latency, ["--t2e-fresh", *arguments])
            idle = measure(Path(folder), 0.0, [], (1, 1, 0))
            bare = measure(Path(folder), options.latency, [], (got.calls, at_once, round(got.size)))
        shares = [options.latency * run.calls / at_once / run.span for run in (got, bare)]
        pairs = (got, start), (bare, idle)
        cpu = [1000 * (run.cpu - first.cpu) / (run.calls - first.calls) for run, first in pairs]
        figures = f"{got.calls:>7} {shares[0]:>9.2f} {shares[1]:>6.2f} {cpu[0]:>13.2f} {cpu[1]:>6.2f}"
        print(f"{name:32} {figures} {got.memory:>12.0f} {got.size / 1000:>12.1f}", flush=True)


if __name__ == "__main__":
    main()
