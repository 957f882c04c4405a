"""Workers that die: another one takes over, and each simulation is counted once."""

import json
from pathlib import Path

import pytest

from tests.plugin.conftest import CONFTEST, DeskProject, project

__all__ = ["project"]

DYING = """
import os
import signal
from pathlib import Path


def pytest_runtest_setup(item):
    fallen = Path(os.environ["FALLEN"])
    count = len(list(fallen.iterdir()))
    if item.name in {tasks} and count < {deaths} and "PYTEST_XDIST_WORKER" in os.environ:
        (fallen / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def solving(task, world, candidate, trial):
    return OracleAgent(task), GoldUser(task)


def pytest_t2e_agents(config):
    return {{"listed": solving}}
"""


def dying(project: DeskProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **how: object) -> Path:
    """Have workers killed at the items of some tasks; returns a folder outside the project."""
    fallen = tmp_path / "fallen"
    fallen.mkdir()
    monkeypatch.setenv("FALLEN", str(fallen))
    project.baseline("v0")
    project.write("conftest.py", CONFTEST + DYING.format(**how))
    return tmp_path / "kept"


def counted(folder: Path) -> dict[str, int]:
    """How many simulations of each task a run's index names; each has a file, and each file an entry."""
    index = json.loads((folder / "results.json").read_text(encoding="utf-8"))["simulation_index"]
    assert {path.stem for path in (folder / "simulations").glob("*.json")} == {one["id"] for one in index}
    return {task: sum(one["task_id"] == task for one in index) for task in {one["task_id"] for one in index}}


@pytest.mark.parametrize("kind", ["named"])
def test_a_worker_that_dies_loses_no_simulation(
    project: DeskProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    kept = dying(project, tmp_path, monkeypatch, deaths=1, tasks={"close"})
    options = {"none": [], "named": [f"--t2e-run-folder={kept}"]}
    result = project.spawn("--candidate=v1", "-n1", *options[kind])
    assert "already holds a run" not in result.stdout.str() + result.stderr.str()
    assert result.stdout.str().count("replacing crashed worker") == 1
    result.assert_outcomes(errors=1, passed=2, xpassed=4)
    result.stdout.fnmatch_lines(["PROMOTE: *"])
    assert result.ret == 0
    found = counted(project.runs[-1] if kind == "none" else kept)
    assert set(found.values()) == {1}
    assert len(found) == 7


def test_a_run_whose_workers_all_die_has_no_verdict(
    project: DeskProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = dying(project, tmp_path, monkeypatch, deaths=9, tasks={"note", "restart", "look"})
    result = project.spawn("--candidate=v1", "-n1", "--max-worker-restart=1", f"--t2e-run-folder={kept}")
    assert result.ret not in (0, 1)
    assert "PROMOTE" not in result.stdout.str()


def test_a_worker_that_dies_before_it_collects_is_replaced(project: DeskProject, tmp_path: Path) -> None:
    project.baseline("v0")
    once = tmp_path / "once"
    die = f"""
import os
from pathlib import Path


def pytest_sessionstart(session):
    if hasattr(session.config, "workerinput") and not Path({str(once)!r}).exists():
        Path({str(once)!r}).touch()
        os._exit(9)
"""
    project.write("conftest.py", CONFTEST + die)
    kept = tmp_path / "kept"
    result = project.spawn("--candidate=v1", "-n2", f"--t2e-run-folder={kept}")
    result.stdout.fnmatch_lines(["heldout decides on *"])
    assert sum(counted(kept).values()) == 7
