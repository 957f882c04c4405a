"""Measures processor time and memory of `trace2evolve compare` on two large sides, loading included.

python benchmarks/compare.py [--tasks 5000] [--trials 100] [--runs 3]
"""

import argparse
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from pytest_trace2evolve.utils.canonical import canonical_json


def write(path: Path, tasks: int, trials: int, seed: int) -> None:
    """A side as `write_evidence` lays it out, with gold actions and usage as a live run records them."""
    draw = random.Random(seed)
    provenance = canonical_json({"domain": "retail", "provider": "inspect_evals"})
    with path.open("w", encoding="utf-8") as file:
        file.write(f'{{"schema_version": 1,\n"provenance": {provenance},\n"simulations": [\n')
        separator = ""
        for task in range(tasks):
            chance = draw.betavariate(0.8, 0.6)
            for trial in range(trials):
                passed = draw.random() < chance
                record = {
                    "id": str(uuid.UUID(int=draw.getrandbits(128))),
                    "task_id": str(task),
                    "trial": trial,
                    "status": "measured",
                    "reward": float(passed),
                    "termination_reason": "user_stop",
                    "task_digest": f"{task:032x}",
                    "components": {"DB": float(passed), "COMMUNICATE": 1.0},
                    "actions": {
                        "read": {"total": 3, "matched": 3 if passed else draw.randint(0, 3)},
                        "write": {"total": 2, "matched": 2 if passed else draw.randint(0, 2)},
                    },
                    "usage": {
                        side: {
                            "calls": 10,
                            "prompt_tokens": draw.randint(20000, 40000),
                            "completion_tokens": 900,
                        }
                        for side in ("assistant", "user")
                    },
                }
                file.write(f"{separator}  {canonical_json(record)}")
                separator = ",\n"
        file.write("\n]}\n")


def processor_seconds() -> float:
    """The processor time of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=5_000)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sides = [Path(folder) / name for name in ("baseline.json", "candidate.json")]
        for seed, path in enumerate(sides):
            write(path, options.tasks, options.trials, seed)
        size = sum(path.stat().st_size for path in sides) / 1e6
        seconds = []
        for _ in range(options.runs):
            started = processor_seconds()
            command = [sys.executable, "-m", "pytest_trace2evolve.cli", "compare", *map(str, sides)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            seconds.append(processor_seconds() - started)
            if done.returncode not in (0, 1, 10):
                sys.exit(done.stderr)
        # The largest of all processes that were waited for, on Linux in KiB.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"2 x {options.tasks * options.trials:,} simulations, {size:.0f} MB:", end=" ")
        print(f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f}),", end=" ")
        print(f"{peak:.0f} MiB")


if __name__ == "__main__":
    main()
