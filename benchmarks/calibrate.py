"""How long calibration and power take, whole processes.

python benchmarks/calibrate.py [--tasks 114] [--trials 4] [--runs 3]

The trials are drawn (a medium agent, gold actions as retail's tasks have them) and read from a baseline file.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pytest_trace2evolve.evidence.baselines import write_evidence
from pytest_trace2evolve.gate.power import AGENTS
from pytest_trace2evolve.records.evidence import ActionCount, Evidence, Provenance, SimulationEvidence
from pytest_trace2evolve.records.score import Status

MATCHED, MATCHED_IN_FAILURE = 0.95, 0.6
"""Chances that a gold action is matched."""


def simulations(tasks: int, trials: int) -> Iterator[SimulationEvidence]:
    """Trials of a medium agent."""
    random, agent = np.random.default_rng(0), AGENTS["medium"]
    for task in range(tasks):
        rate = random.beta(agent.a, agent.b)
        totals = {"read": int(random.integers(0, 6)), "write": int(random.integers(1, 4))}
        for trial in range(trials):
            passed = random.random() < rate
            chance = MATCHED if passed else MATCHED_IN_FAILURE
            yield SimulationEvidence(
                id=f"{task}-{trial}",
                task_id=str(task),
                trial=trial,
                status=Status.MEASURED,
                termination_reason="user_stop",
                reward=float(passed),
                actions={
                    kind: ActionCount(total=total, matched=int(random.binomial(total, chance)))
                    for kind, total in totals.items()
                },
                task_digest="d",
            )


def timed(*arguments: str, runs: int) -> str:
    """Wall-clock and CPU seconds of a command and its peak memory: medians, and the range of the first."""
    walls, cpus, memory = [], [], 0
    for _ in range(runs):
        started = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, "-m", "pytest_trace2evolve.cli", *arguments], stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(child.pid, 0)
        walls.append(time.perf_counter() - started)
        cpus.append(usage.ru_utime + usage.ru_stime)
        memory = max(memory, usage.ru_maxrss // 1024)
        if status:
            raise SystemExit(f"{' '.join(arguments)}: exit status {os.waitstatus_to_exitcode(status)}")
    wall, cpu = statistics.median(walls), statistics.median(cpus)
    return f"{wall:.1f} s ({min(walls):.1f}–{max(walls):.1f}), CPU {cpu:.1f} s, {memory} MiB"


def main() -> None:
    """Time both commands."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=114)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    size = f"{options.tasks} × {options.trials}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trials.json"
        trials = tuple(simulations(options.tasks, options.trials))
        write_evidence(
            path, Evidence(provenance=Provenance(domain="retail", provider="fake"), simulations=trials)
        )
        print(f"calibrate, {size}, 2,000 resamples:", timed("calibrate", str(path), runs=options.runs))
    tasks = ["--tasks", str(options.tasks), "--trials", str(options.trials)]
    print(f"power, {size}, 2,000 comparisons:", timed("power", *tasks, runs=options.runs))


if __name__ == "__main__":
    main()
