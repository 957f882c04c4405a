"""Crashes: status 3, one line that names a log file, and never the status of a verdict."""

import io
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_trace2evolve.plugin.controller import Controller
from tests.plugin.conftest import CONFTEST, DeskProject, project

__all__ = ["project"]

LINE = re.compile(
    r"trace2evolve: crashed: (?P<said>[^;\n]*); the traceback is in (?P<path>[^\n]*/crash-[^\n]*\.log)"
)

BREAKING = """
from pytest_trace2evolve.plugin import case_fixtures, controller


def defect(*_, **__):
    {statement}


{target} = defect
"""

ERRORS = (KeyError("x"), RecursionError("deep"), MemoryError(), UnicodeEncodeError("ascii", "é", 0, 1, "no"))


def log_of(text: str, folder: Path) -> str:
    """The log that the one line about a crash names; it lies in a folder, and no traceback is shown."""
    lines = LINE.findall(text)
    assert len(lines) == 1, text
    assert "Traceback" not in text
    assert "INTERNALERROR>   " not in text
    path = Path(lines[0][1])
    assert path.parent == folder
    assert path.read_text(encoding="utf-8").count("Traceback (most recent call last)") >= 1
    return path.read_text(encoding="utf-8")


def broken(project: DeskProject, target: str, statement: str = "raise KeyError('planted')") -> str:
    """Break a function of the package in every process; returns its name."""
    project.write("conftest.py", CONFTEST + BREAKING.format(target=target, statement=statement))
    return target


def session(project: DeskProject, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A session of the listed agent in a process of its own."""
    done = project.pytester.run(
        sys.executable, "-m", "pytest", "--t2e-agent=listed", "--candidate=v1", *arguments
    )
    return subprocess.CompletedProcess(arguments, int(done.ret), done.stdout.str(), done.stderr.str())


@pytest.mark.parametrize(
    "target",
    [
        "controller.make_plan",  # pytest_sessionstart
        "controller.Controller._parse_node_id",  # pytest_runtest_logreport
        "controller.write_summaries",  # pytest_sessionfinish
        "controller.Session.close",  # pytest_unconfigure
    ],
)
def test_an_error_of_a_hook_ends_with_3_and_names_a_log(project: DeskProject, target: str) -> None:
    project.baseline("v0")
    broken(project, target)
    done = session(project)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "planted" in log_of(done.stdout + done.stderr, project.root / ".trace2evolve")


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_any_error_of_a_session_end_is_no_discard(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(self: Controller, session: pytest.Session, *, is_early: bool) -> None:
        raise error

    monkeypatch.setattr(Controller, "_export_cassette", fails)
    done = project.run("--candidate=v1")
    assert done.ret == 3
    log_of(done.stderr.str(), project.root / ".trace2evolve")


def test_an_interrupt_at_the_end_of_a_session_is_one(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupts(self: Controller, session: pytest.Session, *, is_early: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Controller, "_export_cassette", interrupts)
    done = project.run("--candidate=v1")
    assert done.ret == pytest.ExitCode.INTERRUPTED
    done.stderr.fnmatch_lines(["trace2evolve: interrupted while the session ended"])


def test_a_foreign_hook_that_fails_at_the_end_is_no_discard(project: DeskProject) -> None:
    end = "\n\ndef pytest_sessionfinish(session):\n    raise KeyError('planted')\n"
    project.write("conftest.py", CONFTEST + end)
    done = session(project)
    assert done.returncode == 3
    assert "planted" in log_of(done.stdout + done.stderr, project.root / ".trace2evolve")


def test_a_session_without_this_package_keeps_its_errors(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("def pytest_sessionfinish(session):\n    raise KeyError('planted')\n")
    pytester.makepyfile("def test_it():\n    pass\n")
    done = pytester.runpytest_subprocess()
    assert done.ret == 1
    done.stderr.fnmatch_lines(["KeyError: 'planted'"])


@pytest.mark.parametrize("further", ["-v", "--help"])
def test_a_reader_that_has_gone_is_no_discard_and_no_crash(project: DeskProject, further: str) -> None:
    """`pytest | true`, while the session still prints."""
    project.write("conftest.py", CONFTEST + "\nimport time\ntime.sleep(1)\n")
    command = [sys.executable, "-m", "pytest", "--t2e-agent=listed", "--candidate=v1", further]
    child = subprocess.Popen(
        command, cwd=project.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == ""
    assert child.wait() == 141
    child.stderr.close()
    assert not list(project.root.glob(".trace2evolve/crash-*"))


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="writes to /dev/full")


def shell(project: DeskProject, command: str) -> "subprocess.CompletedProcess[str]":
    """A command of a shell in the project, with Python in the place of its first word."""
    line = f'"{sys.executable}" -m {command}'
    return subprocess.run(["sh", "-c", line], cwd=project.root, capture_output=True, text=True, check=False)


@needs_full
@pytest.mark.parametrize("further", ["", "--collect-only"])
def test_a_session_whose_output_cannot_be_written_is_no_verdict(project: DeskProject, further: str) -> None:
    project.baseline("v0")
    done = shell(project, f"pytest --t2e-agent=listed --candidate=v1 >/dev/full {further}")
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="closes descriptors in a shell")
@pytest.mark.parametrize(
    "closed",
    [
        ">&-",
        ">&- 2>&-",
    ],
)
def test_a_session_without_an_output_does_not_begin(project: DeskProject, closed: str) -> None:
    done = shell(project, f"pytest --t2e-agent=listed --candidate=v1 {closed}")
    assert done.returncode == 3, done.stderr
    if "2>&-" not in closed:
        assert done.stderr == (
            "trace2evolve: the standard output cannot be written (it is closed); free disk space, or "
            "redirect it elsewhere\n"
        )
    assert project.runs == []


def test_an_output_that_fails_at_the_very_end_is_no_verdict(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    def begin(config: pytest.Config) -> int:
        monkeypatch.setattr(sys, "stdout", Full())
        return 0

    plugin = SimpleNamespace(pytest_cmdline_main=begin)
    done = project.pytester.inline_run("--t2e-agent=listed", "--candidate=v1", plugins=[plugin])
    assert done.ret == 3


def test_a_log_that_the_project_cannot_hold_lies_in_the_temporary_folder(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(self: Controller) -> None:
        raise KeyError("planted")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(Controller, "_summarize", fails)
    (project.root / ".trace2evolve").write_text("a file in the way")
    done = project.run("--candidate=v1", "--t2e-run-folder=out")
    assert done.ret == 3
    log_of(done.stderr.str(), tmp_path)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("import pytest\npytest.skip('none', allow_module_level=True)", "Skipped: none"),
        ("def pytest_t2e_checks(config, more):\n    return {}", "PluginValidationError: Plugin"),
        ("def pytest_addoption(parser):\n    parser.addoption('--candidate')", "conflicting option string"),
    ],
)
def test_a_conftest_that_would_end_python_is_a_usage_error(
    project: DeskProject, lines: str, said: str
) -> None:
    project.write("conftest.py", f"{CONFTEST}\n\n{lines}\n")
    done = session(project)
    assert done.returncode == 4, done.stdout + done.stderr
    assert done.stderr.startswith("ERROR: a conftest.py cannot be loaded: ")
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.parametrize("hook", ["pytest_terminal_summary", "pytest_sessionfinish", "pytest_unconfigure"])
@pytest.mark.parametrize(
    "status",
    [
        0,
    ],
)
def test_a_hook_that_ends_python_is_no_verdict(project: DeskProject, hook: str, status: int) -> None:
    project.write("conftest.py", f"{CONFTEST}\n\ndef {hook}():\n    raise SystemExit({status})\n")
    done = session(project)
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"crashed: SystemExit: {status}" in done.stderr
