"""Pressure tests against a chat endpoint on loopback: what is kept, what is counted, and what goes wrong."""

import itertools
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_trace2evolve.cases.case import format_case_line, generate
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Fault, FaultPlan, Reply
from pytest_trace2evolve.utils.resources import has_embedded_model
from tests.forks import Forks
from tests.patience import until
from tests.plugin.test_pressure import HEAD, PressureProject, output_of, project

__all__ = ["project"]

SECRET = "sk-planted-0123456789"
FROZEN = (
    HEAD
    + """
@pytest.mark.t2e_cases("synthetic/few.jsonl")
def test_frozen(case, run_case):
    assert run_case(case).reward is not None
"""
)
SORRY = Reply("I am sorry, I cannot help you with that.")


class Numbered:
    """A model whose every answer is another one."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def __call__(self, request: ChatRequest) -> Reply:
        return Reply(f"What else? [answer {next(self._numbers)}]")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


@pytest.fixture
def few(project: PressureProject) -> PressureProject:
    """A project with four cases in a file, and a test that runs each."""
    lines = map(format_case_line, generate("few", 4, Content.HELDOUT))
    (project.root / "synthetic" / "few.jsonl").write_text("".join(lines), encoding="utf-8")
    project.test(FROZEN)
    return project


def live(project: PressureProject, server: ChatServer, *arguments: str) -> pytest.RunResult:
    return project.run("--t2e-model=m", f"--t2e-base-url={server.base_url}", *arguments)


def test_an_outcome_is_kept_for_later_runs(few: PressureProject) -> None:
    with ChatServer(lambda request: SORRY) as server:
        live(few, server).assert_outcomes(passed=4)
        asked = server.count.served
        assert asked > 4
        live(few, server).assert_outcomes(passed=4)
        assert server.count.served == asked
        live(few, server, "--t2e-fresh").assert_outcomes(passed=4)
        assert server.count.served == 2 * asked
        live(few, server, "--candidate=v6").assert_outcomes(passed=4)
        assert server.count.served == 3 * asked


def test_the_candidates_instruction_and_the_worlds_policy_reach_the_model(few: PressureProject) -> None:
    seen: set[str] = set()

    def script(request):
        seen.add(request.system)
        return SORRY

    with ChatServer(script) as server:
        live(few, server, "--candidate=v6")
    (prompt,) = seen
    instruction = (few.root / "candidates" / "v6.md").read_text().split("---")[-1].strip()
    assert instruction in prompt
    assert "<policy>" in prompt


def test_a_simulated_user_plays_the_customer_only_where_it_was_asked_for(few: PressureProject) -> None:
    with ChatServer(lambda request: Reply("Bye. ###STOP###")) as server:
        live(few, server)
        assert set(server.count.by_model) == {"m"}
    with ChatServer(lambda request: Reply("Bye. ###STOP###")) as server:
        live(few, server, "--t2e-user-model=u")
        assert set(server.count.by_model) == {"u"}  # which ends each conversation before the agent speaks


def test_workers_share_the_account(few: PressureProject) -> None:
    with ChatServer(lambda request: SORRY) as server:
        result = few.pytester.runpytest_subprocess(
            "synthetic", "--t2e-model=m", f"--t2e-base-url={server.base_url}", "-n2"
        )
        result.assert_outcomes(passed=4)
        assert server.count.served > 4


def test_a_spent_budget_skips_and_scores_nothing(few: PressureProject) -> None:
    with ChatServer(lambda request: SORRY) as server:
        result = live(few, server, "--t2e-max-tokens=1", "-rs")
    assert result.parseoutcomes().get("failed", 0) == 0
    assert result.parseoutcomes()["skipped"] >= 1
    assert "token" in output_of(result)


def test_a_refused_key_ends_the_session(few: PressureProject) -> None:
    with ChatServer(lambda request: SORRY, keys={"another"}) as server:
        result = live(few, server)
        assert server.count.attempts <= 2
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "rejects model 'm': 401 Incorrect API key provided.; check OPENAI_API_KEY" in output_of(result)


def test_a_lost_simulation_is_no_failure_of_the_agent(
    few: PressureProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_trace2evolve.models import settings

    monkeypatch.setattr(settings.Retries, "pause", lambda *_: 0.001)
    few.test(FROZEN.replace("assert run_case(case).reward is not None", "run_case(case).require()"))
    # The first request is answered, so that the endpoint is known to work; then it breaks.
    answered: list[int] = []

    def script(request):
        answered.append(1)
        return Reply(None) if len(answered) > 1 else SORRY

    with ChatServer(script, faults=FaultPlan({Fault.SERVER_ERROR: 0.97}, seed=3)) as server:
        result = live(few, server, "-rs")
    assert result.parseoutcomes().get("failed", 0) <= 1
    assert re.search(r"SKIPPED.*was lost", output_of(result))


def test_a_recorded_search_plays_back_without_a_key(
    few: PressureProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ChatServer(lambda request: SORRY) as server:
        live(few, server, "--t2e-record=tape.jsonl").assert_outcomes(passed=4)
    assert (few.root / "tape.jsonl").exists()
    assert SECRET not in (few.root / "tape.jsonl").read_text()
    monkeypatch.delenv("OPENAI_API_KEY")
    few.run("--t2e-playback=tape.jsonl").assert_outcomes(passed=4)


def test_no_key_is_told_before_anything_runs(few: PressureProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    result = few.run("--t2e-model=m")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "model 'm' needs a key: set OPENAI_API_KEY" in output_of(result)


def test_a_kept_trace_that_is_damaged_is_named(few: PressureProject) -> None:
    with ChatServer(lambda request: SORRY) as server:
        live(few, server)
        kept = list(Path(few.root, ".trace2evolve", "finished").rglob("*.json"))
        assert len(kept) == 4
        kept[0].write_text("{}", encoding="utf-8")
        result = live(few, server)
    result.assert_outcomes(passed=3, failed=1)
    assert "damaged" in output_of(result)


@pytest.mark.skipif(not has_embedded_model(), reason="no embedded model ships yet")
def test_the_embedded_model_talks_if_nobody_is_named(
    few: PressureProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in suites. Real conversations, one server for all processes, and no key."""
    monkeypatch.delenv("OPENAI_API_KEY")
    result = few.pytester.runpytest_subprocess(
        "synthetic", "--candidate=v6", "-p", "no:cacheprovider", "-n", "2"
    )
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["trace2evolve: candidate v6 on cases (agent chat)"])
    kept = list((few.root / ".trace2evolve" / "finished").rglob("*.json"))
    assert len(kept) == 4


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills processes")
def test_a_killed_search_goes_on_with_the_answers_that_had_arrived(
    few: PressureProject, session_forks: Forks
) -> None:
    cases = few.root / "synthetic" / "few.jsonl"
    cases.write_text(cases.read_text(encoding="utf-8").partition("\n")[0] + "\n", encoding="utf-8")
    with ChatServer(Numbered()) as server:
        command = [sys.executable, "-m", "pytest", "-q", "-pno:xdist", "synthetic", "--t2e-model=m"]
        command += [f"--t2e-base-url={server.base_url}", "--t2e-user-model=u"]
        server.release(2)
        child = session_forks.popen(command, cwd=few.root, stdout=subprocess.DEVNULL)
        finished = few.root / ".trace2evolve" / "finished"
        until(lambda: any(path.read_text().count("\n") == 2 for path in finished.rglob("*.journal")))
        child.kill()
        child.wait()
        (journal,) = finished.rglob("*.journal")
        drawn = re.findall(r"\[answer \d+\]", journal.read_text())
        server.release()
        few.pytester.run(*command)
    assert list(finished.rglob("*.journal")) == []
    (trace,) = finished.rglob("*.json")
    said = re.findall(r"\[answer \d+\]", trace.read_text())
    assert drawn == ["[answer 0]", "[answer 1]"]
    assert said[:2] == drawn
    assert len(set(said)) == len(said)


def test_a_deleted_outcome_is_named_and_not_drawn_anew(few: PressureProject) -> None:
    with ChatServer(lambda request: SORRY) as server:
        live(few, server).assert_outcomes(passed=4)
        asked = server.count.served
        path = min((few.root / ".trace2evolve" / "finished").rglob("*.json"))
        path.unlink()
        result = live(few, server)
        assert server.count.served == asked
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [f"*{path}: was deleted, but the account of its draw names it; restore it, *"]
    )
