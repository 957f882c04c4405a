"""A run that cannot store its evidence is an error: no verdict, nothing spent; the same command resumes."""

import pytest

from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.records.ledger import Evaluation
from pytest_trace2evolve.testing import ChatServer
from tests.plugin.conftest import CONFTEST, DeskProject, project
from tests.session.test_live import SECRET, SOLVED

__all__ = ["project"]

FULL = """
import errno
import os
from pathlib import Path
from pytest_trace2evolve.utils import files as atomic

_staged_file = atomic.staged_file
_code = os.environ.get("FULL")


def staged_file(path, parts):
    # Small files still fit, as on a disk that is nearly full; every process has its own count.
    text = "".join(parts)
    if len(text) > int(os.environ["FITS"]) and os.environ["AT"] in str(path):
        raise OSError(getattr(errno, _code), os.strerror(getattr(errno, _code)), str(path))
    return _staged_file(path, [text])


if _code:
    from pytest_trace2evolve.evidence import draws
    atomic.staged_file = draws.staged_file = staged_file
"""


def begin(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch, code: str, place: str, fits: int = 0
) -> None:
    """From now on files under a folder that are larger than what still fits cannot be written."""
    project.write("conftest.py", CONFTEST + FULL)
    for name, value in (("FULL", code), ("AT", place), ("FITS", str(fits))):
        monkeypatch.setenv(name, value)


def evaluations(project: DeskProject) -> list[Evaluation]:
    history = Ledger(project.root / "ledger").read()
    assert history.problems == ()
    return [one for one in history.entries_by_time if isinstance(one, Evaluation)]


@pytest.mark.parametrize(("code", "place"), [("ENOSPC", "/simulations/"), ("EROFS", "/finished/")])
def test_a_full_disk_is_an_error_and_no_verdict(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch, code: str, place: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    project.candidate("v3", "Be quick.", parent="v0")
    with ChatServer(SOLVED) as server:
        model = ("--t2e-model=m", f"--t2e-base-url={server.base_url}")
        project.pytester.runpytest_inprocess(*model, "--t2e-save-baseline=v0", "--t2e-gate=off")
        begin(project, monkeypatch, code, place, fits=400)
        command = (*model, "--candidate=v3", "--t2e-gate=calibrated", "-pno:xdist")
        result = project.pytester.runpytest_subprocess(*command)
        assert result.ret == pytest.ExitCode.INTERNAL_ERROR
        why = {"ENOSPC": "No space left on device", "EROFS": "Read-only file system"}[code]
        result.stdout.fnmatch_lines(
            [
                "NO VERDICT on v3 *",
                f" why:  */.trace2evolve/*: cannot be written ({why}); make room or allow writing, *",
            ]
        )
        assert "PROMOTE" not in result.stdout.str()
        assert "DISCARD" not in result.stdout.str()
        assert evaluations(project) == []
        assert not (project.runs[-1] / "verdict.json").exists()
        monkeypatch.delenv("FULL")
        asked = server.count.attempts
        again = project.pytester.runpytest_subprocess(*command)
        (judged,) = evaluations(project)
        assert (judged.look, judged.analysis, judged.repeats) == (1, 1, None)
        assert again.ret in (0, 1, 10)
        if place == "/simulations/":
            assert "finished before" in again.stdout.str()
            assert server.count.attempts - asked < 40


def test_an_agent_of_ones_own_is_told_too(project: DeskProject, monkeypatch: pytest.MonkeyPatch) -> None:
    project.baseline("v0")
    begin(project, monkeypatch, "EDQUOT", "/simulations/")
    result = project.pytester.runpytest_subprocess("--t2e-agent=listed", "--candidate=v1")
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines([" why:  *: cannot be written (Disk quota exceeded); make room *"])
    assert evaluations(project) == []


def test_a_verdict_that_the_ledger_does_not_take_is_not_left_behind(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up at the last moment: the draw is recorded, the evaluation does not fit any more."""
    project.baseline("v0")
    begin(project, monkeypatch, "ENOSPC", "/ledger/", fits=700)
    result = project.pytester.runpytest_subprocess("--t2e-agent=listed", "--candidate=v1")
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines(
        ["NO VERDICT on v1 *", " why:  the evidence could not be stored completely (*"]
    )
    assert evaluations(project) == []
    assert not (project.runs[-1] / "verdict.json").exists()
