"""Cassettes that are damaged, partial, contradicted or in the way: what a session says of them."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from pytest_trace2evolve.errors import CassetteError
from pytest_trace2evolve.session.candidate_models import playback_settings
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply
from tests.patience import HANG_SECONDS, until
from tests.plugin.conftest import DeskProject, project
from tests.session.tapes import play, tape
from tests.session.test_live import SOLVED, key, live

__all__ = ["key", "project", "tape"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:-20], ":*: is cut off in the middle of a line; restore it, or record it again *"),
        (lambda text: "\n".join(text.split("\n")[:-3]) + "\n", ":*: ends after * of * answers; restore it*"),
        (lambda text: text.replace('{"key"', '{"kez"', 1), ":2: damaged at key: expected a text; *"),
        (lambda text: text.replace('"side":"', '"side":"x', 1), ":*: damaged at side: *"),
        (lambda text: text.replace('"completion":{', '"completion":{,', 1), ":*: not valid JSON*"),
        (lambda text: text.replace("Hello", "Howdy", 1), ":1: the lines below were changed: *"),
        (
            lambda text: text.replace('"temperature":0.0', '"temperature":"a"', 1),
            ":1: damaged at temperature: *",
        ),
        (
            lambda text: text.replace('"version":1', '"version":9', 1),
            ":1: has version 9, but this release reads version 1; *",
        ),
        (lambda text: '{"candidate": "v0"}\n', ":1: is not a cassette of --t2e-record"),
        (lambda text: "PK\x03\x04\n", ":1: not valid JSON*"),
        (lambda text: "", ":1: not valid JSON*"),
        (lambda text: "[]\n", ":1: is not a JSON object; *"),
        (lambda text: text + text.split("\n")[1] + "\n", ":*: has a second answer for key *; restore it*"),
    ],
)
def test_a_damaged_cassette_names_the_place(tape: Path, damage: Callable[[str], str], message: str) -> None:
    damaged = damage(tape.read_text())
    assert damaged != tape.read_text()
    tape.write_text(damaged)
    with pytest.raises(CassetteError) as caught:
        playback_settings(tape, "")
    assert fnmatchcase(str(caught.value), f"cassette {tape}{message}")
    assert "\n" not in str(caught.value)


def test_a_damaged_cassette_is_a_usage_error_in_one_line(project: DeskProject, tape: Path) -> None:
    tape.write_text(tape.read_text()[:-20])
    runs = len(project.runs)
    result = play(project)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: cassette {tape}:*: is cut off in the middle of a line; *"])
    assert len([line for line in result.errlines if line]) == 1
    assert len(project.runs) == runs


def test_a_cassette_that_is_not_there_or_not_text_is_one_line(project: DeskProject, tape: Path) -> None:
    tape.write_bytes(b"\xff\xfe")
    play(project).stderr.fnmatch_lines(
        [f"ERROR: cassette {tape}: cannot be read: UTF-16, not UTF-8*; restore it, *"]
    )
    tape.unlink()
    play(project).stderr.fnmatch_lines(
        [f"ERROR: cassette {tape} does not exist; record it with --t2e-record"]
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--t2e-playback=x", "--t2e-model=m"],
            "--t2e-model cannot be combined with --t2e-playback: the cassette determines the models and *",
        ),
        (
            ["--t2e-playback=x", "--t2e-base-url=u"],
            "--t2e-base-url cannot be combined with --t2e-playback: *",
        ),
        (
            ["--t2e-playback=x", "--t2e-temperature=0"],
            "--t2e-temperature cannot be combined with --t2e-playback: *",
        ),
        (["--t2e-playback=x", "--t2e-record=y"], "--t2e-record cannot be combined with --t2e-playback: *"),
        (["--t2e-playback=x", "--t2e-cache"], "--t2e-cache cannot be combined with --t2e-playback: *"),
        (["--t2e-record=x"], "--t2e-record has no effect without --t2e-model"),
        (["--t2e-cache"], "--t2e-cache has no effect without --t2e-model"),
        (["--t2e-playback="], "--t2e-playback is empty; omit it or give a value"),
        (
            ["--t2e-playback=tapes/desk.jsonl", "--t2e-agent=oracle"],
            "--t2e-playback requires agent 'chat', but --t2e-agent is 'oracle'",
        ),
        (
            ["--t2e-playback=tapes/desk.jsonl", "--t2e-results=x"],
            "--t2e-playback runs simulations, but --t2e-results replays them; give one of them",
        ),
        (
            ["--t2e-model=m", "--t2e-record=tapes/desk.jsonl"],
            "--t2e-record */tapes/desk.jsonl exists; delete it, or choose a different name",
        ),
        (["--t2e-model=m", "--t2e-record=tox.ini/x"], "--t2e-record */tox.ini/x cannot be written: *"),
    ],
)
def test_contradictions_are_usage_errors(
    project: DeskProject, tape: Path, arguments: list[str], text: str
) -> None:
    before = tape.read_bytes()
    result = project.pytester.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {text}"])
    assert tape.read_bytes() == before


def test_a_stopped_recording_says_that_it_is_partial(project: DeskProject) -> None:
    def failing(request: ChatRequest) -> Reply:
        return SOLVED(request) if "<scenario>" in request.system else Reply("No.")

    with ChatServer(failing) as server:
        server.release(4)  # three of the first simulation; the next may get one before it is stopped
        result = live(project, server, "--t2e-record=p.jsonl", "-x", "--t2e-concurrency=1")
    result.stdout.fnmatch_lines(
        ["trace2evolve: cassette */p.jsonl: [34] answers, partial: the session was stopped early"]
    )
    header = json.loads((project.root / "p.jsonl").read_text().split("\n")[0])
    assert header["partial"] == "the session was stopped early"
    result = project.pytester.runpytest_inprocess("--t2e-playback=p.jsonl", "suites/desk.toml::heldout")
    result.stdout.fnmatch_lines(["note: cassette p.jsonl is partial: the session was stopped early"])
    assert result.parseoutcomes()["failed"] >= 1
    assert result.parseoutcomes()["errors"] >= 1


def test_an_interrupted_recording_is_kept(project: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        server.release(40)
        command = [
            sys.executable, "-m", "pytest", "--t2e-model=m", f"--t2e-base-url={server.base_url}",
            "--t2e-record=p.jsonl", "--t2e-trials=20", "--t2e-concurrency=1",
        ]  # fmt: skip
        child = subprocess.Popen(command, cwd=project.root, stdout=subprocess.PIPE, text=True)
        until(lambda: server.count.served == 40 or child.poll() is not None)
        child.send_signal(signal.SIGINT)
        message, _ = child.communicate(timeout=HANG_SECONDS)
    assert child.returncode == pytest.ExitCode.INTERRUPTED
    assert "answers, partial: the session was stopped early" in message
    header = json.loads((project.root / "p.jsonl").read_text().split("\n")[0])
    assert header["answers"] >= 29
    assert header["partial"] == "the session was stopped early"


def test_a_run_in_which_nobody_answered_leaves_no_cassette(project: DeskProject) -> None:
    with ChatServer(SOLVED, keys={"another"}) as server:
        result = live(project, server, "--t2e-record=p.jsonl")
    result.stdout.fnmatch_lines(["trace2evolve: cassette */p.jsonl was not written: no model answered"])
    assert not (project.root / "p.jsonl").exists()


def test_another_run_that_wrote_the_file_first_is_not_written_over(project: DeskProject) -> None:
    def meanwhile(request: ChatRequest) -> Reply:
        (project.root / "p.jsonl").write_text("theirs")
        return SOLVED(request)

    with ChatServer(meanwhile) as server:
        result = live(project, server, "--t2e-record=p.jsonl")
    assert (project.root / "p.jsonl").read_text() == "theirs"
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines(
        ["trace2evolve: cassette */p.jsonl was not written: another run wrote it first; the answers are in *"]
    )
    assert (project.runs[-1] / "answers.sqlite").exists()
