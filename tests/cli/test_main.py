"""What every command shares: statuses, crashes, interruptions, and outputs that cannot be written."""

import asyncio
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.commands import COMMANDS
from pytest_trace2evolve.cli.main import main, run
from pytest_trace2evolve.cli.parser import Command, Parser

REPOSITORY = Path(__file__).resolve().parents[2]
ERRORS = (KeyError("x"), RecursionError("deep"), MemoryError(), UnicodeEncodeError("ascii", "é", 0, 1, "no"))
LINE = re.compile(r"trace2evolve: crashed: [^;\n]*; the traceback is in (?P<path>[^\n]*/crash-[^\n]*\.log)\n")
FULL = "the standard output cannot be written (No space left on device); free disk space, or redirect it"

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="writes to /dev/full")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a broken suite."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")]))
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "desk.toml").write_text("broken", encoding="utf-8")
    return tmp_path


def run_command(command: Callable[[object], int], **attributes: object) -> int:
    """The exit status of a command."""
    parser = Parser()
    parser.set_defaults(command=command, **attributes)
    return run(parser, [])


def shell(folder: Path, command: str) -> "subprocess.CompletedProcess[str]":
    """A command of a shell, with Python in the place of its first word."""
    line = f'"{sys.executable}" -m {command}'
    return subprocess.run(["sh", "-c", line], cwd=folder, capture_output=True, text=True, check=False)


def runnable(commands: Iterable[Command] = tuple(chain(*COMMANDS.values()))) -> Iterator[Command]:
    """All commands that run, including those below another."""
    for command in commands:
        if command.actions:
            yield from runnable(command.actions)
        else:
            yield command


@pytest.mark.parametrize("command", list(runnable()), ids=lambda command: command.run)
def test_each_command_names_a_function(command: Command) -> None:
    module, _, name = command.run.partition(":")
    assert callable(getattr(importlib.import_module(f"pytest_trace2evolve.cli.{module}"), name))


def test_the_help_imports_no_command() -> None:
    check = (
        "import sys\n"
        "from pytest_trace2evolve.cli.main import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1].split()
    assert sorted(name for name in modules if name.startswith("pytest_trace2evolve.cli.")) == [
        f"pytest_trace2evolve.cli.{name}"
        for name in ("commands", "import_commands", "improve_commands", "main", "parser")
    ]
    assert not {"numpy", "pytest", "rich", "scipy", "torch"} & set(modules)


@pytest.mark.parametrize(("resumable", "then"), [(True, "; rerun the same command to resume"), (False, "")])
def test_an_interruption_is_one_line(capsys: pytest.CaptureFixture[str], resumable: bool, then: str) -> None:
    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    assert run_command(interrupted, resumable=resumable) == 130
    assert capsys.readouterr() == ("", f"trace2evolve: interrupted{then}\n")


OF_A_PROJECT = (SystemExit(0), SystemExit(1), pytest.skip.Exception("x"), asyncio.CancelledError())
"""What code of a project can raise besides errors; Python alone would end with 0 or 1."""


@pytest.mark.parametrize("error", [*ERRORS, *OF_A_PROJECT], ids=repr)
def test_a_command_that_crashes_ends_with_3_and_names_a_log(
    folder: Path, error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(options: object) -> int:
        raise error

    assert run_command(fails, root=folder) == 3
    found = LINE.fullmatch(capsys.readouterr().err)
    assert found is not None
    path = Path(found["path"])
    assert path.parent == folder / ".trace2evolve"
    assert "Traceback (most recent call last)" in path.read_text(encoding="utf-8")


def test_a_log_holds_no_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-0123456789")

    def fails(options: object) -> int:
        raise ValueError("refused key sk-planted-0123456789")

    run_command(fails, root=folder)
    found = LINE.fullmatch(capsys.readouterr().err)
    assert found is not None
    assert "sk-planted" not in found[0] + Path(found["path"]).read_text(encoding="utf-8")


def test_wrong_arguments_are_reported_in_a_line_that_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["comment", "s.json", "--pr", "9" * 5000])
    assert ended.value.code == 2
    assert max(map(len, capsys.readouterr().err.splitlines())) <= 2_000


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["score", "nowhere.json"], "nowhere.json: cannot be read: No such file or directory"),
        (["compare", "a", "b", "--policy", "strikt"], "unknown gate policy 'strikt'; did you mean 'strict'?"),
        (["compare", "a", "b", "--split", "heldout"], "--split needs --suite; name the suite of the split"),
        (["--root", "nowhere", "lock"], "--root nowhere: it contains no suites/; name the project's folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("trace2evolve: ")
    assert text in line


@needs_full
@pytest.mark.parametrize(("arguments", "errors"), [("check", ""), ("check", "2>&1"), ("--help", "")])
def test_a_command_whose_output_cannot_be_written_ends_with_3(
    folder: Path, arguments: str, errors: str
) -> None:
    done = shell(folder, f"pytest_trace2evolve {arguments} >/dev/full {errors}")
    assert done.returncode == 3
    assert done.stderr == ("" if errors else f"trace2evolve: {FULL} elsewhere\n")
