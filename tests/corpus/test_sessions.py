"""Hostile options and files in whole pytest sessions: a usage error of one line, before anything runs."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from tests.plugin.conftest import DeskProject

LIVE = ("--t2e-model=m", "--t2e-base-url=http://127.0.0.1:9/v1")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> DeskProject:
    """The help desk."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    return DeskProject(pytester)


def refusal(project: DeskProject, *arguments: str) -> str:
    """The one line with which a session ends."""
    asked = set(LIVE) & set(arguments) or any("--t2e-results" in item for item in arguments)
    run = project.pytester.runpytest_inprocess if asked else project.run
    result = run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = "\n".join(result.errlines)
    assert "Traceback" not in message
    assert "INTERNALERROR" not in result.stdout.str()
    errors = [line for line in result.errlines if line.startswith("ERROR: ")]
    assert len(errors) == 1
    assert len(errors[0]) <= 2_000
    assert project.runs == []
    return errors[0]


@pytest.mark.parametrize(
    "option",
    [
        "--t2e-concurrency",
        "--t2e-trials",
        "-ot2e_max_reruns",
        "--t2e-max-tokens",
        "--t2e-seed",
        "-ot2e_case_budget",
    ],
)
@pytest.mark.parametrize("value", ["9" * 5_000, str(1 << 70)])
def test_a_number_that_nothing_can_count_is_a_usage_error(
    project: DeskProject, option: str, value: str
) -> None:
    result = project.run(f"{option}={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = [
        line for line in result.errlines if option.removeprefix("-o") in line and "error" in line.lower()
    ]
    assert len(message) == 1
    assert "largest possible value" in message[0] or "is not a whole number" in message[0]
    assert len(message[0]) < 2_000


@pytest.mark.parametrize(
    "option",
    ["--t2e-run-folder", "--t2e-summary", "--t2e-record", "--t2e-playback", "--t2e-results"],
)
@pytest.mark.parametrize("value", ["a" * 5_000, "a/" * 2_500, "x" * 256])
def test_a_path_that_is_too_long_is_one_line(project: DeskProject, option: str, value: str) -> None:
    line = refusal(project, f"{option}={value}")
    assert option in line
    assert "the path is too long" in line


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("[" * 100_000, "nested more than 200 levels deep"),
        ('{"a": 1e999}', "is not a finite number"),
        ('{"a": NaN}', "not valid JSON"),
        ('{"a": ' + "9" * 5_000 + "}", "a number of more than 4,300 digits"),
        ('{"a": 1, "a": 2}', "'a' occurs twice in one object"),
        ('{"a": "\\\\ud800"}'.replace("\\\\", "\\"), "not valid JSON"),
        ("[]", "is a JSON list, not an object"),
    ],
)
def test_an_extra_body_that_cannot_be_sent_is_one_line(project: DeskProject, value: str, cause: str) -> None:
    line = refusal(project, *LIVE, f"-ot2e_extra_body={value}")
    assert line.startswith("ERROR: t2e_extra_body")
    assert cause in line


@pytest.mark.parametrize(
    ("name", "text", "cause"),
    [
        ("prices.toml", "[m]\ninput = 1e308\noutput = 1e308\n", "less than or equal to 1000000"),
        ("prices.toml", "a = " + "[" * 100_000, "nested more than 100 levels deep"),
        ("prices.toml", "a = " + "9" * 5_000, "a number has too many digits"),
        ("suites/desk.toml", "trials = 9223372036854775807\n", "trials: Input should be less than or equal"),
        ("suites/desk.toml", "a." * 100_000 + "a = 1", "nested more than 100 levels deep"),
        ("suites/_splits.toml", "a = " + "{a=" * 50_000, "nested more than 100 levels deep"),
        ("suites/suites.lock", "[" * 100_000, "nested more than 200 levels deep"),
        ("candidates/v0.md", "---\nid: v0\n" + "a: b\n" * 3_000 + "---\n", "more than 2000 lines"),
    ],
)
def test_a_file_that_no_parser_should_follow_is_one_line(
    project: DeskProject, name: str, text: str, cause: str
) -> None:
    if name == "suites/desk.toml":
        text += Path(project.root / name).read_text(encoding="utf-8")
    project.write(name, text)
    line = refusal(project, *LIVE)
    assert name in line
    assert cause in line


@pytest.mark.parametrize("option", ["--t2e-playback", "--t2e-results", "--t2e-baseline"])
def test_a_fifo_is_not_waited_for(project: DeskProject, option: str) -> None:
    os.mkfifo(project.root / "fifo.json")
    assert "a FIFO, not a regular file" in refusal(project, f"{option}=fifo.json")


@pytest.mark.parametrize("option", ["--t2e-run-folder", "--t2e-summary", "--t2e-results", "--t2e-baseline"])
def test_a_link_to_itself_ends_a_session_in_one_line(project: DeskProject, option: str) -> None:
    (project.root / "loop.json").symlink_to("loop.json")
    result = project.run("--candidate=v1", f"{option}=loop.json")
    assert "INTERNALERROR" not in result.stdout.str()
    if option == "--t2e-summary":  # written at the end, after any verdict: the link is replaced
        assert result.ret == pytest.ExitCode.TESTS_FAILED
    else:
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert len([line for line in result.errlines if line.startswith("ERROR: ")]) == 1


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as item:
        item.bind(path.name)


NO_FILES = {
    "fifo": os.mkfifo,
    "loop": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": _socket,
    "folder": Path.mkdir,
}

COMMANDS = [
    ("score", "FILE"),
    ("compare", "FILE", "FILE"),
    ("calibrate", "FILE"),
    ("capabilities", "FILE"),
    ("show", "FILE"),
    ("import", "FILE"),
    ("cases", "check", "FILE"),
    ("cases", "show", "FILE"),
    ("cases", "review", "FILE"),
]


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command[:2]))
def test_what_is_no_file_is_named_by_every_command(
    project: DeskProject,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    make: Callable[[Path], None],
) -> None:
    """None waits for a FIFO that nobody writes, or reads a device without an end."""
    monkeypatch.chdir(project.root)
    make(Path("odd.json"))
    capsys.readouterr()
    status = main([word.replace("FILE", "odd.json") for word in command])
    lines = capsys.readouterr().err.splitlines()
    assert (status, len(lines)) == (2, 1), lines
    assert "odd.json" in lines[0]
    assert "crashed" not in lines[0]
