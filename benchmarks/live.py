"""Live simulations against a slow endpoint: how much of the ideal rate is reached, and what a call costs.

    python benchmarks/live.py [--simulations 64] [--latency 0.3]

Each simulation of τ² retail takes 19 model calls (13 of the agent, 6 of the user). The ideal is
latency × calls / concurrency; start-up is left out: the clock runs from the first request to the last answer.
"""

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply
from pytest_trace2evolve.testing.server import CHARACTERS_A_TOKEN

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
        size = server.count.prompt_tokens * CHARACTERS_A_TOKEN / max(server.count.served, 1)
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


def measure(folder: Path, latency: float, arguments: list[str]) -> tuple[int, float, float, float, float]:
    """Calls, span, mean request size, CPU seconds and peak MiB of one session."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(latency, theirs))
    server.start()
    url = ours.recv()
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--tb=no",
            "-rN",
            "--t2e-model=m",
            f"--t2e-base-url={url}",
            *arguments,
        ],
        cwd=folder,
        env={**os.environ, "OPENAI_API_KEY": "none"},
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(child.pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, 1, 5), status
    ours.send("stop")
    served, span, size = ours.recv()
    server.join()
    cpu = usage.ru_utime + usage.ru_stime
    return served, span, size, cpu, usage.ru_maxrss / 1024


def main() -> None:
    """Print one row a setting."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--simulations", type=int, default=64)
    parser.add_argument("--latency", type=float, default=0.3)
    parser.add_argument("--concurrency", type=int, nargs="*", default=[8, 64])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project(folder, options.simulations)
        *_, idle_cpu, _ = measure(folder, 0.0, ["-k", "nothing_of_this_name"])
        names = ("calls", "of ideal", "CPU, ms/call", "peak, MiB", "request, kB")
        print("{:28} {:>7} {:>9} {:>13} {:>10} {:>12}".format("setting", *names))
        for concurrency in options.concurrency:
            arguments = ["-p", "no:xdist", f"--t2e-concurrency={concurrency}"]
            served, span, size, cpu, peak = measure(folder, options.latency, arguments)
            share = options.latency * served / concurrency / span
            figures = f"{served:>7} {share:>9.2f} {(cpu - idle_cpu) * 1000 / served:>13.2f} {peak:>10.0f}"
            print(f"{f'concurrency {concurrency}':28} {figures} {size / 1000:>12.1f}")


if __name__ == "__main__":
    main()
