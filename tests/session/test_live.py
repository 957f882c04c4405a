"""Whole sessions against a chat endpoint on loopback."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_trace2evolve.testing import ChatRequest, ChatServer, Fault, FaultPlan, Reply, gold_script
from pytest_trace2evolve.users.chat import render_scenario
from tests.fake_world import POLICY, TASKS
from tests.patience import until
from tests.plugin.conftest import DeskProject, Letters, letters, project
from tests.utils.test_files import HOLD_FILE, holders

__all__ = ["letters", "project"]

SECRET = "sk-planted-0123456789"
SCENARIOS = {name: render_scenario(task.user_scenario) for name, task in TASKS.items()}
SOLVED = gold_script(TASKS, SCENARIOS)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


def live(project: DeskProject, server: ChatServer, *arguments: str) -> pytest.RunResult:
    """A session that talks to `server`."""
    return project.pytester.runpytest_inprocess(
        "--t2e-model=m", f"--t2e-base-url={server.base_url}", *arguments
    )


def traces(project: DeskProject) -> list[dict[str, object]]:
    """All simulations of the last run."""
    return [json.loads(path.read_text()) for path in sorted(project.runs[-1].glob("simulations/*.json"))]


def test_a_model_that_solves_everything_passes_everything(project: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        result = live(project, server, "--t2e-trials=3")
    result.assert_outcomes(passed=7)
    assert server.count.attempts == server.count.served
    assert len(traces(project)) == 21
    usage = [
        message["usage"] for one in traces(project) for message in one["messages"] if message.get("usage")
    ]  # type: ignore[attr-defined]
    assert sum(one["prompt_tokens"] for one in usage) == server.count.prompt_tokens
    assert sum(one["completion_tokens"] for one in usage) == server.count.completion_tokens


@contextmanager
def answered_together(server: ChatServer, count: int) -> Iterator[None]:
    """The server answers nobody until so many have asked."""

    def let_go() -> None:
        try:
            until(lambda: server.count.attempts >= count)
        finally:
            server.release()

    server.hold()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(let_go)
        yield
        waiting.result()


def test_simulations_run_side_by_side(project: DeskProject) -> None:
    with ChatServer(SOLVED) as server, answered_together(server, 8):
        live(project, server, "--t2e-trials=2", "--t2e-concurrency=8").assert_outcomes(passed=7)
    assert server.count.max_concurrent == 8


def test_a_refused_key_is_said_once_and_ends_the_session(project: DeskProject) -> None:
    with ChatServer(SOLVED, keys={"another"}) as server:
        result = live(project, server, "--t2e-concurrency=1")
        assert server.count.attempts <= 3
    text = result.stdout.str()
    assert "rejects model 'm': 401 Incorrect API key provided.; check OPENAI_API_KEY" in text
    assert text.count("ERROR suites") == 1
    assert result.ret != 0


def test_an_unknown_model_is_told_by_its_own_answer(project: DeskProject) -> None:
    with ChatServer(SOLVED, models={"n"}) as server:
        result = live(project, server)
    result.stdout.fnmatch_lines(
        ["*rejects model 'm': 404 The model 'm' does not exist.; check the model's name*"]
    )


def test_no_key_is_a_usage_error(project: DeskProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with ChatServer(SOLVED) as server:
        result = live(project, server)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: model 'm' needs a key: set OPENAI_API_KEY *"])


def test_malformed_arguments_reach_the_model_as_a_tool_error(project: DeskProject) -> None:
    seen: list[str] = []

    def script(request: ChatRequest) -> Reply:
        reply = SOLVED(request)
        results = [str(one["content"]) for one in request.messages if one["role"] == "tool"]
        seen.extend(results)
        if reply.tool_calls and not results and "<scenario>" not in request.system:
            return Reply(tool_calls=(("get_ticket", '{"ticket_id": '),))
        return reply

    with ChatServer(script) as server:
        live(project, server, "suites/desk.toml::heldout::close")
    assert any(text.startswith("Error: ") and "malformed_arguments" in text for text in seen)


def test_the_prompt_is_the_policy_then_the_candidate_then_the_environment(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAU2_AGENT_EXTRA_INSTRUCTION", "Be brief.")
    with ChatServer(SOLVED) as server:
        live(project, server, "--candidate=v1", "suites/desk.toml::heldout::close")
    prompts = [request["messages"][0]["content"] for request in server.requests]
    (agent,) = {prompt for prompt in prompts if "<policy>" in prompt}
    assert agent.index(POLICY) < agent.index("close note restart") < agent.index("Be brief.")
    header = json.loads((project.runs[-1] / "results.json").read_text())
    assert header["info"]["agent_info"]["llm"] == "m"
    assert header["info"]["agent_info"]["llm_args"]["extra_instruction"] == "Be brief."


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--t2e-agent=oracle"], "--t2e-model requires agent 'chat', but --t2e-agent is 'oracle'"),
        (
            ["--t2e-results=x"],
            "--t2e-model runs simulations, but --t2e-results replays them; give one of them",
        ),
        (["-ot2e_extra_body={"], "t2e_extra_body: not valid JSON*"),
        (["-ot2e_extra_body=[[]]"], "t2e_extra_body is a JSON list, not an object"),
    ],
)
def test_contradictions_are_usage_errors(project: DeskProject, arguments: list[str], text: str) -> None:
    with ChatServer(SOLVED) as server:
        result = live(project, server, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {text}"])


def test_what_finished_is_not_made_again(project: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        live(project, server, "--t2e-trials=2")
        first = server.count.served
        live(project, server, "--t2e-trials=2").assert_outcomes(passed=7)
        assert server.count.served == first
        live(project, server, "--t2e-trials=3").assert_outcomes(passed=7)
        assert server.count.served == first + first // 2
        live(project, server, "--t2e-trials=2", "--t2e-fresh").assert_outcomes(passed=7)
        assert server.count.served == 2 * first + first // 2


def test_whatever_changes_a_trace_is_made_again(project: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        live(project, server, "suites/desk.toml::heldout::close")
        first = server.count.served
        for number, change in enumerate(
            [
                "--candidate=v1",
                "--t2e-temperature=0.5",
                "--t2e-seed=7",
                "--t2e-user-model=n",
                '-ot2e_extra_body={"top_k": 1}',
                "-ot2e_reasoning_effort=low",
            ],
            start=2,
        ):
            live(project, server, "suites/desk.toml::heldout::close", change)
            assert server.count.served == number * first, change


def test_what_infrastructure_took_runs_again(project: DeskProject, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_trace2evolve.models import settings

    monkeypatch.setattr(settings.Retries, "pause", lambda *_: 0.001)
    with ChatServer(SOLVED, faults=FaultPlan({Fault.SERVER_ERROR: 1.0})) as server:
        result = live(project, server)
        result.assert_outcomes(errors=7)
        expected = (
            "1 of 1 trial lost: model 'm' at * did not answer in 7 attempts; last problem: "
            "500 The server had an error."
        )
        sealed = "1 of 1 trial lost: model 'm' at * did not answer in 7 attempts (details are not *"
        result.stdout.fnmatch_lines([sealed, expected])
        url = server.base_url
    kept = list((project.root / ".trace2evolve" / "finished").rglob("*.json"))
    assert kept == []
    assert url


def test_a_damaged_simulation_is_named_and_never_passed_over(project: DeskProject) -> None:
    one = "suites/desk.toml::heldout::close"
    with ChatServer(SOLVED) as server:
        live(project, server, one)
        (path,) = (project.root / ".trace2evolve" / "finished").rglob("*.json")
        path.write_text(path.read_text()[:50])
        result = live(project, server, one)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {path}: was changed since it was stored; restore it, *"])


@pytest.mark.skipif(sys.platform == "win32", reason="there no lock tells whose a file is")
def test_a_run_removes_temporary_files_of_killed_writers_alone(project: DeskProject) -> None:
    """Also of simulations that no run will make again."""
    folder = project.root / ".trace2evolve" / "finished" / "zz"
    folder.mkdir(parents=True)
    with holders(HOLD_FILE, folder / "a.json", folder / "b.json") as (killed, living):
        killed.kill()
        assert killed.path.exists()
        with ChatServer(SOLVED) as server:
            live(project, server, "-k", "close").assert_outcomes(passed=1)
        assert list(folder.iterdir()) == [living.path]
        living.finish()


def test_a_live_run_scores_the_same_when_it_is_replayed(project: DeskProject, letters: Letters) -> None:
    with ChatServer(SOLVED) as server:
        first = letters(live(project, server, "-v", "--t2e-run-folder=live"))
    replayed = project.pytester.runpytest_inprocess("-v", f"--t2e-results={Path('live')}")
    assert letters(replayed) == first
