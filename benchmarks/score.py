"""Scoring recorded runs: seconds for the whole command, milliseconds a simulation once warm, peak memory.

python benchmarks/score.py RESULTS…

Also processor seconds of importing each domain's toolkits, with the agent framework around them and without.
"""

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from pytest_trace2evolve.evidence.results import read_results
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.session.evidence_sources import domain_of
from pytest_trace2evolve.worlds.inspect_domains import DOMAINS
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


_IMPORT = """
import sys, time
from pytest_trace2evolve.worlds import light_import
started = time.process_time()
getattr(light_import, sys.argv[1])(sys.argv[2:])
print(time.process_time() - started)
"""


def import_seconds(domain: str, way: str) -> list[float]:
    """Processor seconds of importing a domain's toolkits, one a fresh process, the first not counted."""
    spec = DOMAINS[domain]
    modules = [toolkit.module for toolkit in (spec.agent, spec.user) if toolkit is not None]
    command = [sys.executable, "-c", _IMPORT, way, *modules]
    runs = [subprocess.run(command, check=True, capture_output=True) for _ in range(COMMAND_RUNS + 1)]
    return [float(run.stdout) for run in runs[1:]]


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
    print(f"{'import of toolkits, s':44} {'without framework':>22}  {'with framework':>22}")
    for domain in DOMAINS:
        ways = ("import_without_framework", "import_with_framework")
        row = [_summary(import_seconds(domain, way)) for way in ways]
        print(f"{domain:44} {row[0]:>22}  {row[1]:>22}")


def _summary(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


if __name__ == "__main__":
    main()
