"""Searches with the embedded model, one a seed, and the winner of each on cases that no step of it saw.

python benchmarks/improve_seeds.py [--proposer table|adapters] [--seeds 1 3 5 7 9] [--adapters 2]
    [--fresh 300] [--out build/improve-seeds]

Each seed is a project of its own with the suite `support` and candidate v0: `trace2evolve improve` measures
v0 and searches, with the sentences of docs/examples/habits.toml or with adapters that are trained with this
seed and those that follow. Then v0 and the winner run on fresh cases with other ids than the suite's, and
the gate compares them.
Prints a line of JSON a seed, and keeps it in OUT/PROPOSER-N.json; rerun to resume.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_trace2evolve.cases.case import format_case_line, generate, read_cases
from pytest_trace2evolve.records.task import Content

REPOSITORY = Path(__file__).parents[1]
TABLE = REPOSITORY / "docs" / "examples" / "habits.toml"

FRESH_SUITE = """\
provider = "trace2evolve"
domain = "support"
trials = 1
max_steps = 60

[splits]
heldout = { cases = "suites/fresh.jsonl" }
"""


def run_seed(proposer: str, seed: int, adapters: int, root: Path, fresh: int) -> dict[str, Any]:
    """Search with a seed, and compare the winner with v0 on fresh cases."""
    make_project(root, seed, fresh)
    options = ["--t2e-seed", str(seed)]
    if proposer == "table":
        how = ["--table", str(TABLE), "-ot2e_plateau=4"]
    else:
        (root / "recipe.toml").write_text(f"seed = {seed}\n")
        how = ["--adapters", str(adapters), "--config", str(root / "recipe.toml")]
    search = ["improve", "--suite", "support", "--proposer", proposer, *how]
    started = time.perf_counter(), cpu_seconds()
    done = call(root, ["-m", "pytest_trace2evolve", "--root", str(root), *search, "--json", "--", *options])
    result = json.loads(done.stdout)
    found: dict[str, Any] = {
        "seed": seed,
        "best": result["best"],
        "rows": [[row["candidate"], row["gain"], row["verdict"]] for row in result["rows"]],
        "null_arm": result["null_arm"],
        "simulations": result["simulations"],
        "minutes": result["minutes"],
        "cpu_minutes_of_last_attempt": (cpu_seconds() - started[1]) / 60,
    }
    if result["best"] != "v0":
        pytest = ["-m", "pytest", "-q", "--t2e-suite", "fresh", *options, "-p", "no:cacheprovider"]
        call(root, [*pytest, "--candidate", "v0", "--t2e-run-folder", "fresh-v0"], {0, 1})
        gated = ["--t2e-baseline", "fresh-v0", "--t2e-run-folder", "fresh-best"]
        call(root, [*pytest, "--candidate", result["best"], *gated], {0, 1, 5})
        verdict = json.loads((root / "fresh-best" / "verdict.json").read_text())
        found["fresh"] = verdict["suites"]["fresh"]
    return found


def make_project(root: Path, seed: int, fresh: int) -> None:
    """Make a project with the suites `support` and `fresh`; an existing one stays."""
    if (root / "suites" / "suites.lock").exists():
        return
    for name in ("suites/support.toml", "suites/support", "candidates/v0.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
        copy(REPOSITORY / name, root / name)
    cases = list(generate(f"fresh/{seed}", fresh, Content.HELDOUT))
    known = {case.id for path in (root / "suites" / "support").glob("*.jsonl") for case in read_cases(path)}
    assert not known & {case.id for case in cases}
    (root / "suites" / "fresh.jsonl").write_text("".join(map(format_case_line, cases)), encoding="utf-8")
    (root / "suites" / "fresh.toml").write_text(FRESH_SUITE)
    (root / "pytest.ini").write_text("[pytest]\nt2e_suites = suites\ntestpaths = suites\n")
    call(root, ["-m", "pytest_trace2evolve", "--root", str(root), "lock"])


def call(
    root: Path, arguments: Sequence[str], statuses: Sequence[int] | set[int] = (0,)
) -> "subprocess.CompletedProcess[str]":
    """Run Python in a project; its errors go to the log of the project."""
    with (root / "log.txt").open("a", encoding="utf-8") as log:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=root, stdout=subprocess.PIPE, stderr=log, encoding="utf-8"
        )
        log.write(done.stdout)
    if done.returncode not in statuses:
        raise SystemExit(
            f"ended with status {done.returncode}: {' '.join(arguments)}; see {root / 'log.txt'}"
        )
    return done


def cpu_seconds() -> float:
    """The processor time of all ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Run all seeds that have no result yet, and print all results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--proposer", choices=("table", "adapters"), default="table")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 3, 5, 7, 9])
    parser.add_argument("--adapters", type=int, default=2, help="how many a search trains")
    parser.add_argument("--fresh", type=int, default=300)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "build" / "improve-seeds")
    options = parser.parse_args()
    os.environ.pop("PYTEST_ADDOPTS", None)
    for seed in options.seeds:
        path = options.out / f"{options.proposer}-{seed}.json"
        if not path.exists():
            found = run_seed(options.proposer, seed, options.adapters, path.with_suffix(""), options.fresh)
            path.write_text(json.dumps(found) + "\n")
        print(path.read_text().strip(), flush=True)


if __name__ == "__main__":
    main()
