"""What an idle plugin adds to a pytest session, how fast 10,000 items are collected, `trace2evolve check`.

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

RUNS = 25
ITEMS = 10_000
REPOSITORY = Path(__file__).resolve().parents[1]
WORLDS = REPOSITORY / "tests" / "project_modules"
"""The folder of the fake world, outside package `tests`: an agent counts with all files of its package."""

CONFTEST = """\
from fake_world import FakeWorld


def pytest_t2e_worlds(config):
    return {"fake": FakeWorld}
"""


def seconds(arguments: list[str], folder: Path) -> tuple[float, float]:
    """Wall-clock and CPU seconds of one pytest process."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, WORLDS)))},
            stdout=output,
            stderr=output,
        )
        _, status, usage = os.wait4(child.pid, 0)
        if os.waitstatus_to_exitcode(status) not in (0, 1):
            output.seek(0)
            raise SystemExit(output.read().decode())
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime


IDLE = """\
import time
import pytest
from _pytest.config.argparsing import Parser
started = time.perf_counter()
from pytest_trace2evolve import plugin
from pytest_trace2evolve.plugin import hookspecs
plugin.pytest_addoption(Parser(_ispytest=True))
print((time.perf_counter() - started) * 1000)
"""
"""What an idle plugin does in a session: its import and its options. Whole sessions differ by more than this
from run to run, so it is timed inside the process."""


def idle() -> list[float]:
    """Milliseconds that an idle plugin takes, one a fresh process."""
    times = []
    for _ in range(RUNS):
        done = subprocess.run([sys.executable, "-c", IDLE], check=True, capture_output=True, text=True)
        times.append(float(done.stdout))
    return times


def collecting(folder: Path) -> float:
    """Seconds of `pytest --collect-only` over a locked suite of 10,000 tasks."""
    sys.path.insert(0, str(REPOSITORY))
    from pytest_trace2evolve.project.project import Project
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
    return statistics.median(seconds(["suites", "--collect-only", "-q"], folder)[0] for _ in range(5))


LINT = """\
import contextlib, io, time
started = time.perf_counter()
from pytest_trace2evolve.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    main(["check"])
print(time.perf_counter() - started)
"""
"""The command over this repository's own project, its imports included."""


def checking() -> list[float]:
    """Seconds of `trace2evolve check`, one a fresh process."""
    command = [sys.executable, "-c", LINT]
    runs = (
        subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
        for _ in range(RUNS)
    )
    return [float(done.stdout) for done in runs]


def main() -> None:
    """Print all figures."""
    added = idle()
    print(
        f"idle plugin: {statistics.median(added):.1f} ms a session "
        f"(median of {RUNS}, {min(added):.1f} to {max(added):.1f})"
    )
    with tempfile.TemporaryDirectory() as name:
        print(f"collecting {ITEMS:,} items: {collecting(Path(name)):.2f} s for the whole command")
    seconds = checking()
    print(
        f"trace2evolve check: {statistics.median(seconds):.2f} s "
        f"(median of {RUNS}, {min(seconds):.2f} to {max(seconds):.2f})"
    )


if __name__ == "__main__":
    main()
