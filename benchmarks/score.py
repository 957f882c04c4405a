"""Scoring recorded runs: seconds for the whole command, milliseconds a simulation once warm, peak memory.

python benchmarks/score.py RESULTS…
"""

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from pytest_trace2evolve.evidence.results import read_results
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.session.sources import domain_of
from pytest_trace2evolve.worlds.registry import DEFAULT_PROVIDER, Worlds

COMMAND_RUNS = 5
WARM_RUNS = 5


def command_seconds(path: Path) -> list[float]:
    """Wall-clock seconds of `trace2evolve score FILE`, one a run, after one that is not counted."""
    seconds = []
    for run in range(COMMAND_RUNS + 1):
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "pytest_trace2evolve.cli", "score", str(path)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        if run:
            seconds.append(time.perf_counter() - started)
    return seconds


def warm_milliseconds(path: Path, worlds: Worlds) -> list[float]:
    """Milliseconds a simulation, one a run over the whole file, with the world open."""
    file = read_results(path)
    world = worlds.open(DEFAULT_PROVIDER, domain_of(file))
    milliseconds = []
    for run in range(WARM_RUNS + 1):
        started = time.perf_counter()
        for simulation in file.simulations:
            score(simulation, file.tasks[simulation.task_id], world)
        if run:
            milliseconds.append((time.perf_counter() - started) * 1000 / len(file.simulations))
    return milliseconds


def main() -> None:
    """Print one row a file: medians, with the range in brackets."""
    worlds = Worlds()
    print(f"{'file':44} {'simulations':>11}  {'command, s':>22}  {'warm, ms/simulation':>22}")
    for path in map(Path, sys.argv[1:]):
        count = len(read_results(path).simulations)
        row = [_summary(command_seconds(path)), _summary(warm_milliseconds(path, worlds))]
        print(f"{path.name:44} {count:>11}  {row[0]:>22}  {row[1]:>22}")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"peak memory of a command: {peak:.0f} MiB")


def _summary(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


if __name__ == "__main__":
    main()
