"""Pytest sessions: what an idle plugin adds, and how fast 10,000 items are collected.

python benchmarks/session.py
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 11
ITEMS = 10_000
REPOSITORY = Path(__file__).resolve().parents[1]

CONFTEST = """\
from tests.fake_world import FakeWorld


def pytest_t2e_worlds(config):
    return {"fake": FakeWorld}
"""


def seconds(arguments: list[str], folder: Path) -> float:
    """Wall-clock seconds of one pytest process."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    return time.perf_counter() - started


def idle(folder: Path) -> list[float]:
    """Milliseconds that the plugin adds to an empty session, one a pair of runs in turn."""
    (folder / "test_own.py").write_text("def test_own(): pass\n")
    added = []
    for run in range(RUNS + 1):
        without = seconds(["-q", "-p", "no:trace2evolve"], folder)
        with_it = seconds(["-q"], folder)
        if run:
            added.append((with_it - without) * 1000)
    return added


def collecting(folder: Path) -> float:
    """Seconds of `pytest --collect-only` over a locked suite of 10,000 tasks."""
    sys.path.insert(0, str(REPOSITORY))
    from pytest_trace2evolve.workflow.project import Project
    from pytest_trace2evolve.worlds.registry import Worlds
    from tests.fake_world import FakeWorld

    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\nt2e_suites = suites\nt2e_agent = nop\n")
    (folder / "candidates").mkdir()
    (folder / "candidates" / "v0.md").write_text("---\nid: v0\n---\n")
    (folder / "suites").mkdir()
    (folder / "suites" / "desk.toml").write_text(
        'provider = "fake"\ndomain = "desk"\n[splits]\nheldout = ["close"]\n'
    )
    project = Project(folder, folder / "suites")
    project.renew_lock(Worlds({"fake": FakeWorld}))
    lock = json.loads(project.lock_path.read_text())
    lock["suites"]["desk"]["splits"]["heldout"] = {f"task_{n}": "0" * 32 for n in range(ITEMS)}
    project.lock_path.write_text(json.dumps(lock))
    return statistics.median(seconds(["suites", "--collect-only", "-q"], folder) for _ in range(5))


def main() -> None:
    """Print both figures."""
    with tempfile.TemporaryDirectory() as name:
        added = idle(Path(name))
        print(
            f"idle plugin: {statistics.median(added):+.1f} ms a session "
            f"(median of {RUNS} pairs, {min(added):+.1f} to {max(added):+.1f})"
        )
    with tempfile.TemporaryDirectory() as name:
        print(f"collecting {ITEMS:,} items: {collecting(Path(name)):.2f} s for the whole command")


if __name__ == "__main__":
    main()
