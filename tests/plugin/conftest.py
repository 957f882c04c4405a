"""A small project around the fake help desk, for whole pytest sessions over it."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.worlds.registry import Worlds
from tests.fake_world import FakeWorld
from tests.project_modules import FOLDER

REPOSITORY = Path(__file__).resolve().parents[2]

_SNAPSHOTS = tempfile.TemporaryDirectory(prefix="desk-")
"""Projects after a session, by its arguments and what they held before."""

INI = """\
[pytest]
t2e_suites = suites
testpaths = suites
t2e_gate = strict
"""

SUITE = """\
provider = "fake"
domain = "desk"

[splits]
heldout = ["close", "note", "restart", "look"]
discovery = ["idle", "opened", "free"]
"""

CONFTEST = """\
from pytest_trace2evolve.agents.reference import NopAgent
from pytest_trace2evolve.agents.reference import OracleAgent
from pytest_trace2evolve.users.reference import GoldUser
from fake_world import FakeWorld


def pytest_t2e_worlds(config):
    return {"fake": FakeWorld}


def listed(task, world, candidate, trial):
    # The candidate's instruction names the tasks that it solves.
    solves = task.id in candidate.instruction.split()
    return (OracleAgent(task) if solves else NopAgent()), GoldUser(task)


def pytest_t2e_agents(config):
    return {"listed": listed}
"""


class DeskProject:
    """A project in a temporary folder, and sessions over it."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.root = pytester.path
        pytester.makeini(INI)
        pytester.makeconftest(CONFTEST)
        self.write("suites/desk.toml", SUITE)
        self.candidate("v0", "")
        self.candidate("v1", "close note restart", parent="v0")
        self.candidate("v2", "close restart look", parent="v1")
        self.lock()

    def write(self, name: str, text: str) -> Path:
        """Write a file of the project."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def candidate(
        self, name: str, instruction: str, parent: str | None = None, informed: str = "", changes: str = ""
    ) -> None:
        """Write a candidate."""
        lines = [f"id: {name}", *([f"parent: {parent}"] if parent else []), f"informed_by: [{informed}]"]
        lines += [f"changes: [{changes}]"] if changes else []
        self.write(f"candidates/{name}.md", "\n".join(["---", *lines, "---", instruction, ""]))

    def lock(self) -> None:
        """Renew the lock."""
        Project(self.root, self.root / "suites").renew_lock(Worlds({"fake": FakeWorld}))

    def run(self, *arguments: str) -> pytest.RunResult:
        """A session of the listed agent in this process."""
        return self.pytester.runpytest_inprocess("--t2e-agent=listed", *arguments)

    def spread(self, *arguments: str) -> pytest.RunResult:
        """A session in this process, or where it has workers of its own, in another."""
        apart = any(item.startswith("-n") and item != "-n0" for item in arguments)
        run = self.pytester.runpytest_subprocess if apart else self.pytester.runpytest_inprocess
        return run(*arguments)

    def spawn(self, *arguments: str) -> pytest.RunResult:
        """The same of the listed agent."""
        return self.spread("--t2e-agent=listed", *arguments)

    def baseline(self, candidate: str = "v0") -> None:
        """Measure a candidate and save it as the baseline of its own name."""
        self.after(f"--candidate={candidate}", f"--t2e-save-baseline={candidate}", "--t2e-gate=off")
        assert (self.root / f"baselines/desk/{candidate}.json").exists()

    def after(self, *arguments: str) -> int:
        """The exit status of a session whose output does not matter.

        In a project with the same files as an earlier one, what that session left is copied.
        """
        snapshot = Path(_SNAPSHOTS.name) / digest([arguments, self._contents()])
        status = snapshot.with_suffix(".status")
        if snapshot.exists():
            shutil.copytree(snapshot, self.root, dirs_exist_ok=True)
            return int(status.read_text())
        ended = int(self.run(*arguments).ret)
        shutil.copytree(self.root, snapshot, ignore=shutil.ignore_patterns("__pycache__"))
        status.write_text(str(ended))
        return ended

    def _contents(self) -> dict[str, str]:
        files = [path for path in self.root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        return {path.relative_to(self.root).as_posix(): path.read_bytes().hex() for path in files}

    def older(
        self, name: str, change: Callable[[dict[str, Any]], None] | None = None, **provenance: object
    ) -> None:
        """Make a baseline one of an older version: without a digest or an entry of the ledger.

        `change` changes its record, and `provenance` are fields to set; None removes one.
        """
        path = self.root / "baselines" / "desk" / f"{name}.json"
        record = json.loads(path.read_text(encoding="utf-8"))
        record.pop("digest", None)
        if change is not None:
            change(record)
        record["provenance"] |= provenance
        record["provenance"] = {key: item for key, item in record["provenance"].items() if item is not None}
        path.write_text(json.dumps(record), encoding="utf-8")
        shutil.rmtree(self.root / "ledger", ignore_errors=True)

    def forget(self) -> None:
        """Remove the ledger: the next run repeats no recorded verdict."""
        shutil.rmtree(self.root / "ledger", ignore_errors=True)

    @property
    def runs(self) -> list[Path]:
        """The run folders so far, oldest first."""
        folder = self.root / ".trace2evolve" / "runs"
        return sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns) if folder.exists() else []


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, forked_sessions: None) -> DeskProject:
    """A fresh project."""
    # This checkout before any that is installed, in processes of their own too.
    paths = (FOLDER, REPOSITORY, REPOSITORY / "src")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
    monkeypatch.setenv("COLUMNS", "240")  # no line is wrapped
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return DeskProject(pytester)


Letters = Callable[[pytest.RunResult], dict[str, str]]


@pytest.fixture
def letters() -> Letters:
    """Reads the word that a verbose session printed for each task."""

    def read(result: pytest.RunResult) -> dict[str, str]:
        found = {}
        for line in result.outlines:
            if line.startswith("suites/") and "::" in line:
                node, _, word = line.partition(" ")
                found[node.rsplit("::", 1)[1]] = word.split()[0] if word else ""
        return found

    return read


@dataclass(frozen=True)
class Done:
    """What a command came to: its exit status and what it printed."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def command(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Runs `trace2evolve` in the project's folder."""

    def run(*arguments: str, folder: Path | None = None) -> Done:
        capfd.readouterr()
        with monkeypatch.context() as there:
            there.chdir(folder or project.root)
            status = main(arguments)
        return Done(status, *capfd.readouterr())

    return run
