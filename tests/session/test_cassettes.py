"""Recording and playback in whole sessions against a chat endpoint on loopback."""

import json
import subprocess
import time
from pathlib import Path

import _pytest.pytester
import pytest

from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply
from tests.plugin.conftest import DeskProject, project
from tests.session.tapes import ONE, models_messages, play, record, said, tape
from tests.session.test_live import SECRET, SOLVED, key, live, traces

__all__ = ["key", "project", "tape"]


def test_a_recorded_run_plays_back_without_a_key_or_an_endpoint(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ChatServer(SOLVED) as server:
        first = project.spread(
            "--t2e-model=m",
            f"--t2e-base-url={server.base_url}",
            "--t2e-trials=2",
            "--t2e-record=t.jsonl",
        )
    first.assert_outcomes(passed=7)
    first.stdout.fnmatch_lines([f"trace2evolve: cassette */t.jsonl: {server.count.served} answers"])
    recorded = said(project)
    assert not list(project.runs[-1].rglob("*.sqlite*"))
    monkeypatch.delenv("OPENAI_API_KEY")
    # A test that opens a socket fails.
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    played = project.spread("--t2e-playback=t.jsonl", "--t2e-trials=2")
    played.assert_outcomes(passed=7)
    assert said(project) == recorded
    assert all(message["cached"] for message in models_messages(project))
    assert project.runs[-1] != project.runs[-2]
    headers = [json.loads((run / "results.json").read_text())["info"] for run in project.runs[-2:]]
    for name in ("agent_info", "user_info"):
        assert headers[0][name] == headers[1][name]


def test_playback_opens_no_socket(project: DeskProject, tape: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a conftest that forbids it; and the openai client is not even imported."""
    monkeypatch.setattr(_pytest.pytester, "subprocess", subprocess)  # a fork has it imported already
    project.write(
        "conftest.py",
        (project.root / "conftest.py").read_text()
        + "\nimport socket, sys\n"
        + "def refuse(*_): raise AssertionError('a socket was opened')\n"
        + "socket.socket.connect = refuse\n"
        + "def pytest_unconfigure(config): assert 'openai' not in sys.modules, 'openai was imported'\n",
    )
    result = project.pytester.runpytest_subprocess(f"--t2e-playback={tape}", "-p", "no:xdist")
    result.assert_outcomes(passed=7)
    assert result.ret == 0, result.stderr.str()


def test_recording_the_same_run_again_gives_the_same_file(project: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        first = record(project, server, "--t2e-concurrency=1").read_text()
        (project.root / "tapes" / "desk.jsonl").unlink()
        # The test server numbers its tool calls by order of arrival: in one slot the order is the same.
        server.requests.clear()
        second = record(project, server, "--t2e-concurrency=1").read_text()
    assert first == second
    assert first.endswith("\n")
    keys = [json.loads(line)["key"] for line in first.splitlines()[1:]]
    assert keys == sorted(keys)
    assert len(keys) > 20


def test_a_cassette_holds_answers_and_nothing_else(project: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        text = record(project, server, "--t2e-seed=4").read_text()
    header, *lines = (json.loads(line) for line in text.splitlines())
    assert set(header) == {
        "format", "version", "answers", "digest", "partial", "candidate", "suites", "agent", "user",
        "scripts",
    }  # fmt: skip
    assert header["agent"]["arguments"] == {"temperature": 0.0, "seed": 4, "endpoint": server.base_url}
    assert (header["candidate"]["id"], list(header["suites"]), header["partial"]) == ("v0", ["desk"], "")
    assert {name for line in lines for name in line} == {"key", "trial", "side", "model", "completion"}
    assert {name for line in lines for name in line["completion"]} <= {
        "content", "tool_calls", "finish_reason", "usage",
    }  # fmt: skip
    assert {line["side"] for line in lines} == {"agent", "user"}
    for secret in (SECRET, "<policy>", "<scenario>", "Authorization", str(project.root)):
        assert secret not in text


def test_a_recording_takes_nothing_from_earlier_simulations(project: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        live(project, server).assert_outcomes(passed=7)
        served = server.count.served
        record(project, server)
        assert server.count.served == 2 * served
    project.write("tapes/copy.jsonl", (project.root / "tapes/desk.jsonl").read_text())
    project.pytester.runpytest_inprocess("--t2e-playback=tapes/copy.jsonl").assert_outcomes(passed=7)


def test_playback_and_live_runs_take_nothing_from_one_another(
    project: DeskProject, tape: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    finished = project.root / ".trace2evolve" / "finished"
    assert list(finished.rglob("*.json")) == [], "what was recorded is no live run's"
    with ChatServer(SOLVED) as server:
        live(project, server).assert_outcomes(passed=7)
    live_ones = {path: path.read_bytes() for path in finished.rglob("*.json")}
    assert len(live_ones) == 7
    play(project).assert_outcomes(passed=7)
    assert {path: path.read_bytes() for path in live_ones} == live_ones
    # If anything were read from there, the damage would be reported.
    for path in finished.rglob("*.json"):
        path.write_text("{")
    play(project).assert_outcomes(passed=7)


def test_a_miss_is_named_and_never_scored(project: DeskProject, tape: Path) -> None:
    result = play(project, "--candidate=v1", "--t2e-gate=off")
    result.assert_outcomes(errors=7)
    result.stdout.fnmatch_lines(
        [
            f"*lost: cassette {tape} has no answer of *",
            "note: cassette desk.jsonl was recorded with candidate 'v0', whose instruction differs * 'v1'",
        ]
    )
    expected = (
        "answer of the agent's model 'm' in trial 0 to these 3 messages; record it again with --t2e-record"
    )
    assert expected in result.stdout.str()
    assert all(one["reward_info"] is None for one in traces(project))
    result = play(project, "--t2e-trials=2", ONE)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*1 of 2 trials lost: *the user's model 'm' in trial 1 to these 2 messages*"]
    )


def test_a_changed_suite_is_said(project: DeskProject, tape: Path) -> None:
    path = project.root / "suites" / "desk.toml"
    project.write("suites/desk.toml", "max_steps = 150\n" + path.read_text())
    project.lock()
    result = play(project)
    result.assert_outcomes(passed=7)
    result.stdout.fnmatch_lines(["note: cassette desk.jsonl was recorded before suite 'desk' changed"])


def test_the_extra_instruction_is_the_recorded_one(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAU2_AGENT_EXTRA_INSTRUCTION", "Be brief.")
    with ChatServer(SOLVED) as server:
        tape = record(project, server, ONE)
    play(project, ONE).assert_outcomes(passed=1)
    monkeypatch.delenv("TAU2_AGENT_EXTRA_INSTRUCTION")
    play(project, ONE).assert_outcomes(passed=1)
    monkeypatch.setenv("TAU2_AGENT_EXTRA_INSTRUCTION", "Be long.")
    result = play(project, ONE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    expected = "('Be brief.'); unset it, or record again with --t2e-record"
    result.stderr.fnmatch_lines(
        [f"ERROR: TAU2_AGENT_EXTRA_INSTRUCTION differs from the instruction that cassette {tape} *{expected}"]
    )


def test_a_baseline_recorded_live_can_be_compared_with_playback(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ChatServer(SOLVED) as server:
        record(project, server, "--t2e-save-baseline=live", "--t2e-gate=off")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.delenv("OPENAI_API_KEY")
    result = play(project, "--t2e-baseline=live")
    result.stdout.fnmatch_lines(["heldout decides on *"])
    assert "cannot be compared" not in result.stderr.str()
    assert result.ret != pytest.ExitCode.USAGE_ERROR


def test_a_conversation_that_no_longer_fits_plays_back_as_it_was(project: DeskProject) -> None:
    full = Reply(error=(400, "This model's maximum context length is 8 tokens."))
    with ChatServer(lambda request: full if len(request.messages) > 4 else SOLVED(request)) as server:
        record(project, server, ONE)
    recorded = said(project)
    assert traces(project)[0]["termination_reason"] == "context_window_exceeded"
    play(project, ONE)
    assert said(project) == recorded
    assert traces(project)[0]["termination_reason"] == "context_window_exceeded"


def test_equal_requests_get_equal_answers_while_recording(project: DeskProject) -> None:
    """Two suites share all tasks, and the model never says the same twice: the recording still plays back."""
    project.write("suites/twin.toml", (project.root / "suites" / "desk.toml").read_text())
    project.lock()

    def fickle(request: ChatRequest) -> Reply:
        reply = SOLVED(request)
        number = time.perf_counter_ns()
        return Reply(f"{reply.content} ({number})") if reply.content else reply

    with ChatServer(fickle) as server:
        live(project, server, "--t2e-record=fickle.jsonl").assert_outcomes(passed=14)
    recorded = [sorted(run_said(project, suite)) for suite in ("desk", "twin")]
    project.spread("--t2e-playback=fickle.jsonl").assert_outcomes(passed=14)
    assert [sorted(run_said(project, suite)) for suite in ("desk", "twin")] == recorded


def run_said(project: DeskProject, suite: str) -> list[str]:
    """What was said in one suite of the last run."""
    paths = (project.runs[-1] / suite).glob("simulations/*.json")
    return [
        json.dumps([message.get("content") for message in json.loads(path.read_text())["messages"]])
        for path in paths
    ]


def test_a_playback_runs_the_suites_that_the_cassette_holds(project: DeskProject) -> None:
    project.write("suites/twin.toml", (project.root / "suites" / "desk.toml").read_text())
    project.lock()
    with ChatServer(SOLVED) as server:
        live(project, server, "--t2e-record=desk.jsonl", "--t2e-suite=desk").assert_outcomes(passed=7)
    project.spread("--t2e-playback=desk.jsonl").assert_outcomes(passed=7)
    result = project.spread("--t2e-playback=desk.jsonl", "--t2e-suite=twin")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: cassette */desk.jsonl was recorded without suite 'twin'; it holds desk"]
    )
