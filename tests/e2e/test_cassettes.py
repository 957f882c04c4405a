"""Cache, recording and playback in whole sessions against a chat endpoint on loopback."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Half a second: imported here once, and not again in every session that `pytester` runs in this process.
import openai  # noqa: F401
import pytest

import pytest_trace2evolve.workflow.chat  # noqa: F401
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply
from tests.e2e.test_live import SECRET, SOLVED, key, live, traces
from tests.plugin.conftest import DeskProject, project

__all__ = ["key", "project"]

ONE = "suites/desk.toml::heldout::close"
WORKERS = [["-p", "no:xdist"], ["-n0"], ["-n2"]]


def said(project: DeskProject) -> list[tuple[str, int, list[tuple[object, ...]], object]]:
    """What was said and scored in the last run, ids and times apart."""
    return sorted(
        (
            str(one["task_id"]),
            one["trial"],
            [
                (message["role"], message.get("content"), json.dumps(message.get("tool_calls")))
                for message in one["messages"]  # type: ignore[attr-defined]
            ],
            (one["reward_info"] or {}).get("reward"),  # type: ignore[attr-defined]
        )
        for one in traces(project)
    )


def models_messages(project: DeskProject) -> list[dict[str, Any]]:
    """All messages of the last run that a model made."""
    return [message for one in traces(project) for message in one["messages"] if message.get("usage")]  # type: ignore[attr-defined]


def record(project: DeskProject, server: ChatServer, *arguments: str) -> Path:
    """Record a run, in this process; returns the cassette."""
    live(project, server, "--t2e-record=tapes/desk.jsonl", *arguments)
    return project.root / "tapes" / "desk.jsonl"


@pytest.fixture
def tape(project: DeskProject) -> Path:
    """A cassette of the whole suite; nothing else of its run is left, and no key."""
    with ChatServer(SOLVED) as server:
        cassette = record(project, server)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        os.environ.pop(name, None)
    return cassette


def session(project: DeskProject, *arguments: str) -> pytest.RunResult:
    """A session in this process, or where it has workers of its own, in another."""
    run = (
        project.pytester.runpytest_subprocess if "-n2" in arguments else project.pytester.runpytest_inprocess
    )
    return run(*arguments)


def play(project: DeskProject, *arguments: str) -> pytest.RunResult:
    """Play the cassette back, in this process."""
    return project.pytester.runpytest_inprocess("--t2e-playback=tapes/desk.jsonl", *arguments)


@pytest.mark.parametrize("workers", WORKERS, ids="".join)
def test_a_recorded_run_plays_back_without_a_key_or_an_endpoint(
    project: DeskProject, workers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ChatServer(SOLVED) as server:
        first = session(
            project,
            "--t2e-model=m",
            f"--t2e-base-url={server.base_url}",
            "--t2e-trials=2",
            "--t2e-record=t.jsonl",
            *workers,
        )
    first.assert_outcomes(passed=7)
    first.stdout.fnmatch_lines([f"trace2evolve: cassette */t.jsonl: {server.count.served} answers"])
    recorded = said(project)
    assert not list(project.runs[-1].rglob("*.sqlite*"))
    monkeypatch.delenv("OPENAI_API_KEY")
    # Whoever opened a socket would reach nothing, and be told.
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    played = session(project, "--t2e-playback=t.jsonl", "--t2e-trials=2", *workers)
    played.assert_outcomes(passed=7)
    assert said(project) == recorded
    assert all(message["cached"] for message in models_messages(project))
    assert project.runs[-1] != project.runs[-2]
    headers = [json.loads((run / "results.json").read_text())["info"] for run in project.runs[-2:]]
    for name in ("agent_info", "user_info"):
        assert headers[0][name] == headers[1][name]


def test_playback_opens_no_socket(project: DeskProject, tape: Path) -> None:
    """Under a conftest that forbids it; and the openai client is not even imported."""
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


def test_playback_and_live_runs_take_nothing_from_one_another(project: DeskProject, tape: Path) -> None:
    finished = project.root / ".trace2evolve" / "finished"
    live_ones = {path: path.read_bytes() for path in finished.rglob("*.json")}
    assert len(live_ones) == 7
    play(project).assert_outcomes(passed=7)
    assert {path: path.read_bytes() for path in live_ones} == live_ones
    # Were anything taken from there, the damage would be told.
    for path in finished.rglob("*.json"):
        path.write_text("{")
    play(project).assert_outcomes(passed=7)


def test_a_miss_is_named_and_never_scored(project: DeskProject, tape: Path) -> None:
    result = play(project, "--candidate=v1", "--t2e-gate=off")
    result.assert_outcomes(errors=7)
    result.stdout.fnmatch_lines(
        [
            f"*lost: cassette {tape} holds no answer of *",
            "note: cassette desk.jsonl was recorded with candidate 'v0', whose instruction is not * 'v1'",
        ]
    )
    told = "answer of the agent's model 'm' in trial 0 to these 3 messages; record it again with --t2e-record"
    assert told in result.stdout.str()
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
    told = "('Be brief.'): unset it, or record again with --t2e-record"
    result.stderr.fnmatch_lines(
        [f"ERROR: TAU2_AGENT_EXTRA_INSTRUCTION is not what cassette {tape} was recorded with {told}"]
    )


def test_a_baseline_recorded_live_can_be_compared_with_playback(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ChatServer(SOLVED) as server:
        record(project, server, "--t2e-save-baseline=live", "--t2e-gate=off")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.delenv("OPENAI_API_KEY")
    result = play(project, "--t2e-baseline=live")
    result.stdout.fnmatch_lines(["desk · heldout: *"])
    assert "cannot be compared" not in result.stderr.str()
    assert result.ret != pytest.ExitCode.USAGE_ERROR


def test_a_conversation_that_no_longer_fits_plays_back_as_it_was(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = ChatServer._refusal

    def full(self: ChatServer, head: Any, record: Any) -> Any:
        if len(record["messages"]) > 4:
            return 400, "This model's maximum context length is 8 tokens.", []
        return refusal(self, head, record)

    monkeypatch.setattr(ChatServer, "_refusal", full)
    with ChatServer(SOLVED) as server:
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

    for distribution in ("-n0", "-n2"):
        with ChatServer(fickle) as server:
            name = f"fickle{distribution}.jsonl"
            endpoint = ("--t2e-model=m", f"--t2e-base-url={server.base_url}")
            result = session(project, *endpoint, f"--t2e-record={name}", distribution)
            result.assert_outcomes(passed=14)
        recorded = [sorted(run_said(project, suite)) for suite in ("desk", "twin")]
        session(project, f"--t2e-playback={name}").assert_outcomes(passed=14)
        assert [sorted(run_said(project, suite)) for suite in ("desk", "twin")] == recorded


def run_said(project: DeskProject, suite: str) -> list[str]:
    """What was said in one suite of the last run."""
    paths = (project.runs[-1] / suite).glob("simulations/*.json")
    return [
        json.dumps([message.get("content") for message in json.loads(path.read_text())["messages"]])
        for path in paths
    ]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda text: text[:-20], ":*: cut off in the middle of a line; restore it, or record it again *"),
        (lambda text: "\n".join(text.split("\n")[:-3]) + "\n", ":*: ends after * answers of *; restore it*"),
        (lambda text: text.replace('{"key"', '{"kez"', 1), ":2: damaged at key: a text is missing; *"),
        (lambda text: text.replace('"side":"', '"side":"x', 1), ":*: damaged at side: *"),
        (lambda text: text.replace('"completion":{', '"completion":{,', 1), ":*: not JSON (*"),
        (lambda text: text.replace("Hello", "Howdy", 1), ":1: its digest is not that of the lines below, *"),
        (
            lambda text: text.replace('"temperature":0.0', '"temperature":"a"', 1),
            ":1: damaged at temperature: *",
        ),
        (lambda text: text.replace('"version":1', '"version":9', 1), ":1: version 9 is not 1, *"),
        (lambda text: '{"candidate": "v0"}\n', ":1: is no cassette of --t2e-record"),
        (lambda text: "PK\x03\x04\n", ":1: not JSON (*"),
        (lambda text: "", ":1: not JSON (*"),
        (lambda text: "[]\n", ":1: not a JSON object; *"),
        (lambda text: text + text.split("\n")[1] + "\n", ":*: a second answer of key *; restore it*"),
    ],
)
def test_a_damaged_cassette_is_one_line(
    project: DeskProject, tape: Path, damage: Callable[[str], str], told: str
) -> None:
    damaged = damage(tape.read_text())
    assert damaged != tape.read_text()
    tape.write_text(damaged)
    runs = len(project.runs)
    result = play(project)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: cassette {tape}{told}"])
    assert len([line for line in result.errlines if line]) == 1
    assert len(project.runs) == runs


def test_a_cassette_that_is_not_there_or_not_text_is_one_line(project: DeskProject, tape: Path) -> None:
    tape.write_bytes(b"\xff\xfe")
    play(project).stderr.fnmatch_lines([f"ERROR: cassette {tape}: cannot be read (*utf-8*); restore it, *"])
    tape.unlink()
    play(project).stderr.fnmatch_lines(
        [f"ERROR: cassette {tape} does not exist; record it with --t2e-record"]
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--t2e-playback=x", "--t2e-model=m"],
            "--t2e-model does not go with --t2e-playback: the cassette says which models answered, and how *",
        ),
        (["--t2e-playback=x", "--t2e-base-url=u"], "--t2e-base-url does not go with --t2e-playback: *"),
        (["--t2e-playback=x", "--t2e-temperature=0"], "--t2e-temperature does not go with --t2e-playback: *"),
        (["--t2e-playback=x", "--t2e-record=y"], "--t2e-record does not go with --t2e-playback: *"),
        (["--t2e-playback=x", "--t2e-cache"], "--t2e-cache does not go with --t2e-playback: *"),
        (["--t2e-record=x"], "--t2e-record says nothing without --t2e-model"),
        (["--t2e-cache"], "--t2e-cache says nothing without --t2e-model"),
        (["--t2e-playback="], "--t2e-playback is empty; leave it out or give a value"),
        (
            ["--t2e-playback=tapes/desk.jsonl", "--t2e-agent=oracle"],
            "--t2e-playback is for agent 'chat': agent 'oracle' does not go with it",
        ),
        (
            ["--t2e-playback=tapes/desk.jsonl", "--t2e-replay=x"],
            "--t2e-playback runs simulations and --t2e-replay none: give one of them",
        ),
        (
            ["--t2e-model=m", "--t2e-record=tapes/desk.jsonl"],
            "--t2e-record */tapes/desk.jsonl exists: delete it, or choose another name",
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
        result = live(project, server, "--t2e-record=p.jsonl", "-x", "--t2e-concurrency=1")
    result.stdout.fnmatch_lines(
        ["trace2evolve: cassette */p.jsonl: * answers, partial: the session was stopped early"]
    )
    header = json.loads((project.root / "p.jsonl").read_text().split("\n")[0])
    assert header["partial"] == "the session was stopped early"
    result = project.pytester.runpytest_inprocess("--t2e-playback=p.jsonl", "suites/desk.toml::heldout")
    result.stdout.fnmatch_lines(["note: cassette p.jsonl is partial: the session was stopped early"])
    assert result.parseoutcomes()["failed"] >= 1
    assert result.parseoutcomes()["errors"] >= 1


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_an_interrupted_recording_is_kept(project: DeskProject, workers: str) -> None:
    with ChatServer(SOLVED, latency=0.05) as server:
        command = [
            sys.executable, "-m", "pytest", "--t2e-model=m", f"--t2e-base-url={server.base_url}",
            "--t2e-record=p.jsonl", "--t2e-trials=20", "--t2e-concurrency=1", workers,
        ]  # fmt: skip
        child = subprocess.Popen(command, cwd=project.root, stdout=subprocess.PIPE, text=True)
        while server.count.served < 30:
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        told, _ = child.communicate(timeout=60)
    assert child.returncode == pytest.ExitCode.INTERRUPTED
    assert "answers, partial: the session was stopped early" in told
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


@pytest.mark.parametrize("workers", WORKERS, ids="".join)
def test_cached_answers_are_not_asked_for_again(project: DeskProject, workers: list[str]) -> None:
    with ChatServer(SOLVED) as server:
        arguments = ["--t2e-model=m", f"--t2e-base-url={server.base_url}", "--t2e-fresh", *workers]
        session(project, *arguments, "--t2e-cache").assert_outcomes(passed=7)
        served = server.count.served
        first, made = said(project), models_messages(project)
        session(project, *arguments, "--t2e-cache").assert_outcomes(passed=7)
        assert server.count.served == served
        assert said(project) == first
        assert not any("cached" in message for message in made)
        taken = models_messages(project)
        assert all(message["cached"] for message in taken)
        usage = [sorted(json.dumps(one["usage"]) for one in messages) for messages in (made, taken)]
        assert usage[0] == usage[1]


def test_a_recording_from_the_cache_is_the_same_cassette(project: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        first = record(project, server, "--t2e-cache").read_text()
        served = server.count.served
        (project.root / "tapes" / "desk.jsonl").unlink()
        assert record(project, server, "--t2e-cache").read_text() == first
        assert server.count.served == served


def test_the_cache_is_off_unless_asked_for(project: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        live(project, server, ONE)
        live(project, server, "--t2e-fresh", ONE)
        assert server.count.served == 2 * len(models_messages(project))
    assert not (project.root / ".trace2evolve" / "cache.sqlite").exists()


def test_the_cache_does_not_mix_endpoints_trials_or_seeds(project: DeskProject) -> None:
    with ChatServer(SOLVED) as one, ChatServer(SOLVED) as other:
        live(project, one, "--t2e-cache", ONE)
        served = one.count.served
        live(project, other, "--t2e-cache", ONE)
        assert other.count.served == served
        live(project, one, "--t2e-cache", "--t2e-trials=2", "--t2e-fresh", ONE)
        assert one.count.served == 2 * served
        live(project, one, "--t2e-cache", "--t2e-seed=0", ONE)
        assert one.count.served == 3 * served


def test_an_answer_that_was_cut_short_or_empty_is_not_cached(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = ChatServer._reply

    def cut(self: ChatServer, record: dict[str, Any], size: int) -> dict[str, Any]:
        answer = reply(self, record, size)
        answer["choices"][0]["finish_reason"] = "length"
        return answer

    monkeypatch.setattr(ChatServer, "_reply", cut)
    with ChatServer(SOLVED) as server:
        for _ in range(2):
            live(project, server, "--t2e-cache", "--t2e-fresh", ONE).assert_outcomes(passed=1)
        assert server.count.served == 2 * len(models_messages(project))


@pytest.mark.parametrize("damage", [b"no database at all, and long enough to be one" * 50, None])
def test_a_damaged_cache_is_named(project: DeskProject, damage: bytes | None) -> None:
    cache = project.root / ".trace2evolve" / "cache.sqlite"
    with ChatServer(SOLVED) as server:
        live(project, server, "--t2e-cache").assert_outcomes(passed=7)
        content = cache.read_bytes()
        cache.write_bytes(damage or content[:4096] + b"\xa5" * (len(content) - 4096))
        result = live(project, server, "--t2e-cache", "--t2e-fresh")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(
            [f"ERROR: {cache}: damaged or not readable (*); delete it: the cache starts anew"]
        )
        cache.unlink()
        live(project, server, "--t2e-cache", "--t2e-fresh").assert_outcomes(passed=7)


def test_a_killed_run_leaves_a_cache_that_the_next_one_uses(project: DeskProject) -> None:
    with ChatServer(SOLVED, latency=0.01) as server:
        command = [
            sys.executable, "-m", "pytest", "-q", "-n2", "--t2e-model=m", f"--t2e-base-url={server.base_url}",
            "--t2e-cache", "--t2e-fresh", "--t2e-trials=8",
        ]  # fmt: skip
        asked = 0
        for _ in range(2):
            child = subprocess.Popen(
                command,
                cwd=project.root,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            asked = server.count.served
            while server.count.served < asked + 40 and child.poll() is None:
                time.sleep(0.005)
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        result = live(project, server, "--t2e-cache", "--t2e-fresh", "--t2e-trials=8")
        result.assert_outcomes(passed=7)
        made = len(models_messages(project))
        # Each kill costs at most the answers that were on their way: 16 slots in each of two processes.
        assert server.count.served <= made + 2 * 32


def test_a_playback_runs_the_suites_that_the_cassette_holds(project: DeskProject) -> None:
    project.write("suites/twin.toml", (project.root / "suites" / "desk.toml").read_text())
    project.lock()
    with ChatServer(SOLVED) as server:
        live(project, server, "--t2e-record=desk.jsonl", "--t2e-suite=desk").assert_outcomes(passed=7)
    session(project, "--t2e-playback=desk.jsonl").assert_outcomes(passed=7)
    result = session(project, "--t2e-playback=desk.jsonl", "--t2e-suite=twin")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: cassette */desk.jsonl was recorded without suite 'twin'; it holds desk"]
    )
