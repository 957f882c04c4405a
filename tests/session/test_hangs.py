"""What must end and once did not: sessions whose simulations end in ways that nobody expects."""

import json
import os
import signal
import subprocess
import sys

import pytest

from pytest_trace2evolve.testing import ChatServer
from tests.forks import Forks
from tests.patience import HANG_SECONDS, until
from tests.plugin.conftest import CONFTEST, DeskProject, project
from tests.session.test_live import SECRET, SOLVED

__all__ = ["project"]

RAISING = """
from fake_world import FakeSession

_call = FakeSession.call


def call(self, name, arguments, requestor="assistant"):
    if name == "write_note":
        raise {raised}
    return _call(self, name, arguments, requestor)


FakeSession.call = call
"""

FULL = """
import sqlite3
from pytest_trace2evolve.engine import budget as account


def full(self, *_, **__):
    raise sqlite3.OperationalError("database or disk is full")


account.Account.{method} = full
"""


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


def ended(project: DeskProject, *arguments: str) -> str:
    """What a session printed that ended within its time."""
    result = project.pytester.run(sys.executable, "-m", "pytest", *arguments, timeout=HANG_SECONDS)
    return result.stdout.str()


def test_a_world_that_ends_more_than_its_simulation_loses_that_one(project: DeskProject) -> None:
    raised = "SystemExit(3)"
    project.write("conftest.py", CONFTEST + RAISING.format(raised=raised))
    with ChatServer(SOLVED) as server:
        url = f"--t2e-base-url={server.base_url}"
        text = ended(project, "--t2e-model=m", url, "--t2e-concurrency=2", "--t2e-trials=3")
    assert (
        "trials lost: the world or the agent raised SystemExit, which ends more than one simulation" in text
    )
    assert "6 passed, 1 error" in text


def test_an_item_that_comes_twice_is_run_twice(project: DeskProject) -> None:
    """As with --keep-duplicates, and with plugins that run failed items again."""
    text = ended(project, "--t2e-agent=oracle", "--keep-duplicates", "suites/desk.toml", "suites/desk.toml")
    assert "14 passed" in text
    assert len(list(project.runs[-1].glob("simulations/*.json"))) == 7


def test_a_full_disk_loses_what_cannot_be_counted(project: DeskProject) -> None:
    project.write("conftest.py", CONFTEST + FULL.format(method="spend"))
    with ChatServer(SOLVED) as server:
        text = ended(project, "--t2e-model=m", f"--t2e-base-url={server.base_url}")
    assert "account.sqlite: the account of the run cannot be written (database or disk is full); " in text
    assert "make room there, or set TMPDIR to a different folder" in text
    assert "1 error" in text
    assert "NO VERDICT" in text


def test_a_full_disk_at_the_start_is_a_usage_error(project: DeskProject) -> None:
    project.write("conftest.py", CONFTEST + FULL.format(method="__init__"))
    with ChatServer(SOLVED) as server:
        result = project.pytester.runpytest_subprocess("--t2e-model=m", f"--t2e-base-url={server.base_url}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = "ERROR: the account of the run cannot be created in * (database or disk is full); make room *"
    result.stderr.fnmatch_lines([message])


@pytest.mark.parametrize("options", [(), ("--t2e-stages=1,2",)])
def test_two_runs_never_use_one_folder(
    project: DeskProject, session_forks: Forks, options: tuple[str, ...]
) -> None:
    """The second is refused before it writes anything, and the lock ends with the first, killed or not."""
    with ChatServer(SOLVED) as server:
        live = ("--t2e-model=m", f"--t2e-base-url={server.base_url}")
        if options == ("--t2e-stages=1,2",):
            saving = ("--t2e-trials=2", "--t2e-save-baseline=v0", "--t2e-gate=off", "--candidate=v0")
            project.pytester.runpytest_inprocess(*live, *saving)
            options = (*options, "--candidate=v1")
        asked = server.count.attempts
        server.release(0)
        command = [sys.executable, "-m", "pytest", *live, *options, "--t2e-run-folder=runs/one"]
        child = session_forks.popen(command, cwd=project.root, stdout=subprocess.DEVNULL)
        until(lambda: server.count.attempts > asked or child.poll() is not None)
        for arguments in (options, ()):
            result = project.pytester.runpytest_subprocess(*live, *arguments, "--t2e-run-folder=runs/one")
            assert result.ret == pytest.ExitCode.USAGE_ERROR
            message = "ERROR: *runs/one: another run uses this folder; choose a different --t2e-run-folder"
            result.stderr.fnmatch_lines([message])
        child.kill()
        child.wait()
        server.release(10_000)
        result = project.pytester.runpytest_subprocess(*live, *options, "--t2e-run-folder=runs/one")
        assert result.ret in (0, 1, 10)


def test_a_run_that_makes_nothing_leaves_no_folder(project: DeskProject) -> None:
    (project.root / "mine").mkdir()
    for folder in ("new", "mine"):
        result = project.run("--candidate=v1", f"--t2e-run-folder={folder}", "-k", "nothing")
        assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert not (project.root / "new").exists()
    assert list((project.root / "mine").iterdir()) == []


def test_an_interrupt_stops_every_process_and_tells_what_was_used(
    project: DeskProject, session_forks: Forks
) -> None:
    """The signal reaches the controller alone, before any item has reported."""
    with ChatServer(SOLVED) as server:
        server.release(20)
        command = [sys.executable, "-m", "pytest", "--t2e-model=m", "--t2e-trials=60"]
        command += [f"--t2e-base-url={server.base_url}", "--t2e-concurrency=2"]
        child = session_forks.popen(command, cwd=project.root, stdout=subprocess.PIPE, text=True)
        until(lambda: server.count.attempts > 20 or child.poll() is not None)
        os.kill(child.pid, signal.SIGINT)
        text, _ = child.communicate(timeout=HANG_SECONDS)  # though nobody answers what is still asked
        assert server.count.served == 20
    assert child.returncode == pytest.ExitCode.INTERRUPTED
    assert "used: " in text
    message = json.loads((project.runs[-1] / "run.json").read_text())
    assert message["usage"]["calls"] >= 16
    assert message["stopped"] == "the session was stopped"


def test_an_exit_with_a_status_of_its_own_decides_nothing(project: DeskProject) -> None:
    project.baseline("v0")
    project.write(
        "suites/test_stop.py", "import pytest\n\n\ndef test_it():\n    pytest.exit('', returncode=0)\n"
    )
    result = project.run("--candidate=v2", "suites/desk.toml", "suites/test_stop.py")
    assert result.ret == 10
    result.stdout.fnmatch_lines(["INCONCLUSIVE: *", " why:  partial: the session was stopped early*"])
