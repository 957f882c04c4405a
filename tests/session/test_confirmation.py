"""Falls confirmed by fresh trials, in whole sessions against a chat endpoint on loopback."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.models import settings
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply
from tests.forks import Forks
from tests.patience import until
from tests.plugin.conftest import CONFTEST, DeskProject, Letters, letters, project
from tests.session.test_kills import TASK
from tests.session.test_live import SECRET, SOLVED

__all__ = ["letters", "project"]

HOLD = ("--t2e-gate=calibrated", "--t2e-goal=hold")
"""One confirmed fall discards, so its confirmation can change the verdict."""
TRIES = settings.Retries().attempts
QUICK = "Be quick."
"""The instruction of the candidate that breaks a task."""

Fails = Callable[[str, bool, int], bool]
"""Whether a task fails: its id, whether it is the candidate's, its trial."""


def broken(task: str, quick: bool, trial: int) -> bool:
    """The candidate cannot do `note` any more; `close` it failed by chance, in its main trials alone."""
    return quick and (task == "note" or (task == "close" and trial < 100))


def script(fails: Fails = broken) -> Callable[[ChatRequest], Reply]:
    """An agent that fails where it should. The trial is the seed, since sessions here begin with 0."""

    def reply(request: ChatRequest) -> Reply:
        said = [str(one.get("content")) for one in request.messages if one["role"] == "user"]
        named = next((found[1] for text in said if (found := TASK.search(text))), "")
        if "<policy>" in request.system and fails(named, QUICK in request.system, request.body["seed"]):
            return Reply("I will not do that.")
        return SOLVED(request)

    return reply


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


@pytest.fixture
def desk(project: DeskProject) -> DeskProject:
    """A project whose candidate v3 is to be compared with v0."""
    project.pytester.makeconftest(CONFTEST)
    project.candidate("v3", QUICK, parent="v0")
    return project


def command(server: ChatServer, *arguments: str) -> list[str]:
    return ["--t2e-model=m", f"--t2e-base-url={server.base_url}", "--t2e-seed=0", *arguments]


def baseline(project: DeskProject, server: ChatServer, *arguments: str) -> None:
    """Measure and save the baseline v0."""
    given = ("-pno:xdist", "--t2e-trials=2", "--t2e-gate=off", "--t2e-save-baseline=v0", *arguments)
    project.pytester.runpytest_inprocess(*command(server, *given)).assert_outcomes(passed=7)


def compared(project: DeskProject, server: ChatServer, *arguments: str) -> pytest.RunResult:
    """The candidate against v0, with a goal under which one confirmed fall discards."""
    given = ("--candidate=v3", "--t2e-trials=2", *HOLD, "-v", *arguments)
    return project.pytester.runpytest_inprocess(*command(server, *given))


def fresh_traces(project: DeskProject, side: str) -> list[dict[str, Any]]:
    """The fresh trials of one side that the last run kept."""
    folder = project.runs[-1] / "fresh" / side / "simulations"
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def test_a_real_fall_fails_and_a_chance_one_is_suspected(desk: DeskProject, letters: Letters) -> None:
    with ChatServer(script()) as server:
        baseline(desk, server)
        given = [
            "--candidate=v3",
            "--t2e-trials=2",
            "--t2e-gate=calibrated",
            "--t2e-goal=hold",
            "-v",
            "-pno:xdist",
        ]
        result = desk.spread(*command(server, *given, "--junitxml=report.xml"))
    expected = letters(result)
    assert (expected["close"], expected["note"], expected["look"]) == ("SUSPECTED", "FAILED", "PASSED")
    result.stdout.fnmatch_lines(
        ["*14 simulations to make; *; plus up to 224 fresh simulations for confirmation"]
    )
    result.stdout.re_match_lines([r"=+ 1 failed, 5 passed, 1 suspected in .*"])
    for side in ("baseline", "candidate"):
        traces = fresh_traces(desk, side)
        assert {(one["task_id"], one["trial"] % 10_000) for one in traces} == {
            (task, trial) for task in ("close", "note") for trial in range(8)
        }
        header = json.loads((desk.runs[-1] / "fresh" / side / "results.json").read_text())
        assert len(header["simulation_index"]) == 16
        assert (
            header["info"]["trace2evolve"]["candidate"]["id"] == {"baseline": "v0", "candidate": "v3"}[side]
        )
    index = json.loads((desk.runs[-1] / "results.json").read_text())["simulation_index"]
    assert {one["trial"] for one in index} == {0, 1}
    usage = json.loads((desk.runs[-1] / "run.json").read_text())
    assert (usage["fresh"], usage["simulations"]["made"]) == (32, 14 + 32)
    (suite,) = ElementTree.parse(desk.root / "report.xml").getroot()
    assert (suite.get("failures"), suite.get("skipped"), suite.get("errors")) == ("2", "0", "0")
    suspected, failed = suite.iter("failure")
    assert suspected.get("message") == "suspected: reward 0.000: 0 of 2 trials passed"
    regressed_line = "regressed: 2 of 2 passed (user_stop 2) in baseline v0, now 0 of 2 passed (user_stop 2)"
    assert (regressed_line in (suspected.text or ""), regressed_line in (failed.text or "")) == (True, True)
    result.stdout.fnmatch_lines(
        ["=* what broke *=", "desk · close: regressed", "    reward 0.000: *", f"    {regressed_line}"]
    )


def test_the_baselines_side_gets_its_own_instruction(desk: DeskProject) -> None:
    with ChatServer(script()) as server:
        baseline(desk, server)
        asked = len(server.requests)
        compared(desk, server)
    prompts = [
        (request["seed"], QUICK in request["messages"][0]["content"])
        for request in server.requests[asked:]
        if "<policy>" in request["messages"][0]["content"]
    ]
    assert {quick for seed, quick in prompts if seed >= 20_000} == {False}
    assert {quick for seed, quick in prompts if seed < 20_000} == {True}
    assert {seed for seed, _ in prompts} == {0, 1, *range(10_000, 10_008), *range(20_000, 20_008)}


def test_a_fall_that_is_unclear_after_the_first_step_gets_a_second(
    desk: DeskProject, letters: Letters
) -> None:
    def fails(task: str, quick: bool, trial: int) -> bool:
        return task == "note" and trial % 4 != 0 and quick

    with ChatServer(script(fails)) as server:
        baseline(desk, server, "--t2e-trials=3")
        result = compared(desk, server, "--t2e-trials=3")
    assert letters(result)["note"] == "FAILED"  # 16 of 16 against 4 of 16
    assert [len(fresh_traces(desk, side)) for side in ("baseline", "candidate")] == [16, 16]


def test_a_fall_that_only_the_verdict_confirms_is_no_suspicion(desk: DeskProject, letters: Letters) -> None:
    """Its p-value, .0234, is above the level of one of four tasks, but the only fallen task has it all."""

    def fails(task: str, quick: bool, trial: int) -> bool:
        return task == "note" and quick and (trial < 100 or trial % 10_000 in (0, 1, 2, 8))

    with ChatServer(script(fails)) as server:
        baseline(desk, server)
        result = compared(desk, server)
    result.stdout.fnmatch_lines(["*regressions *1 regressed; 1 confirmed*"])
    assert letters(result)["note"] == "FAILED"


def test_lf_does_not_run_what_was_suspected(desk: DeskProject) -> None:
    with ChatServer(script()) as server:
        baseline(desk, server)
        compared(desk, server)
        result = compared(desk, server, "--lf")
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*SUSPECTED*")


def test_a_flag_beyond_the_budget_is_suspected_and_the_reason_is_told(
    desk: DeskProject, letters: Letters
) -> None:
    with ChatServer(script()) as server:
        baseline(desk, server)
        result = compared(desk, server, "-ot2e_max_reruns=31")
        assert (letters(result)["close"], letters(result)["note"]) == ("SUSPECTED", "SUSPECTED")
        result.stdout.fnmatch_lines(
            ["note: desk: 1 regressed task not confirmed: the 31 fresh simulations of *reruns are*"]
        )
        assert len(fresh_traces(desk, "baseline")) == 8
        result = compared(desk, server, "-ot2e_max_reruns=0")
        result.stdout.fnmatch_lines(["note: desk: 2 regressed tasks not confirmed: t2e_max_reruns 0"])
        assert not (desk.runs[-1] / "fresh").exists()


def test_the_budget_holds_for_all_tasks_together(desk: DeskProject) -> None:
    def fails(task: str, quick: bool, trial: int) -> bool:
        return quick and trial < 100  # those that can fail

    with ChatServer(script(fails), latency=0.01) as server:
        baseline(desk, server)
        compared(desk, server, "-ot2e_max_reruns=48")
    assert len(fresh_traces(desk, "baseline")) + len(fresh_traces(desk, "candidate")) == 48


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("text", "candidates/v0.md changed since baseline 'v0' was saved"),
        ("model", "its model 'n' ran at http://*/v1, but this run uses http://*/v1; give t2e_baseline_*"),
        ("record", "the run records a cassette, whose playback could not confirm regressions"),
    ],
)
def test_where_the_baselines_side_cannot_be_run_the_reason_is_told_once(
    desk: DeskProject, letters: Letters, change: str, reason: str
) -> None:
    with ChatServer(script()) as server, ChatServer(script()) as other:
        baseline(
            desk, other if change == "model" else server, *(["--t2e-model=n"] if change == "model" else [])
        )
        given = ["--t2e-baseline=v0"]
        if change == "text":
            desk.candidate("v0", "Take your time.")
        elif change == "record":
            given.append("--t2e-record=cassette.jsonl")
        elif change == "model":
            desk.candidate("v3", QUICK, parent="v0", changes="model")
            given.append("-ot2e_user_base_url=" + other.base_url)
            given.append("--t2e-user-model=n")
        result = compared(desk, server, *given)
    expected = letters(result)
    assert (expected["close"], expected["note"]) == ("SUSPECTED", "SUSPECTED"), result.stdout.str()
    result.stdout.fnmatch_lines([f"note: desk: 2 regressed tasks not confirmed: {reason}"])
    assert "fresh simulation" not in result.stdout.str().replace("fresh simulations of", "")


def test_a_baseline_of_another_model_is_asked_where_the_user_says(
    desk: DeskProject, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own model, temperature and key."""
    monkeypatch.setenv("OLD_KEY", "sk-old-0123456789")
    user = "--t2e-user-model=u"
    desk.candidate("v3", QUICK, parent="v0", changes="model, parameters")
    with ChatServer(script()) as server, ChatServer(script(), keys={"sk-old-0123456789"}) as other:
        shared = f"-ot2e_user_base_url={server.base_url}"
        old = ["-ot2e_api_key_env=OLD_KEY", "-ot2e_user_api_key_env=OPENAI_API_KEY", "--t2e-temperature=0.3"]
        baseline(desk, other, "--t2e-model=n", user, shared, *old)
        before = len(other.requests)
        result = compared(
            desk,
            server,
            user,
            f"-ot2e_baseline_base_url={other.base_url}",
            "-ot2e_baseline_api_key_env=OLD_KEY",
        )
    assert letters(result)["note"] == "FAILED", result.stdout.str()
    fresh = other.requests[before:]
    assert {(one["model"], one["temperature"], one["seed"]) for one in fresh} == {
        ("n", 0.3, seed) for seed in range(20_000, 20_008)
    }


def test_a_baseline_whose_endpoint_refuses_costs_the_run_nothing(desk: DeskProject, letters: Letters) -> None:
    user = "--t2e-user-model=u"
    with ChatServer(script()) as server, ChatServer(script(), keys={"another"}) as other:
        baseline(desk, server, user)
        result = compared(desk, server, user, f"-ot2e_baseline_base_url={other.base_url}")
    expected = letters(result)
    assert (expected["close"], expected["note"], expected["look"]) == ("SUSPECTED", "SUSPECTED", "PASSED")
    result.stdout.fnmatch_lines(["* 5 passed, 2 suspected in *"])


def test_an_endpoint_that_refuses_amid_confirmation_costs_no_main_trial(
    desk: DeskProject, letters: Letters
) -> None:
    keys = {SECRET}
    good = script()

    def refusing(request: ChatRequest) -> Reply:
        if request.body["seed"] >= 10_000:
            keys.clear()
        return good(request)

    with ChatServer(refusing, keys=keys) as server:
        baseline(desk, server)
        result = compared(desk, server, "--t2e-concurrency=2")
    assert letters(result)["close"] == "SUSPECTED"
    result.stdout.fnmatch_lines(["note: desk: * not confirmed: *rejects model 'm': 401 *"])
    index = json.loads((desk.runs[-1] / "results.json").read_text())["simulation_index"]
    assert [one["trial"] for one in index if one["task_id"] == "close"] == [0, 1]


def test_what_infrastructure_takes_is_tried_again_once(
    desk: DeskProject, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fresh simulation of `note` hangs up in all tries of its first call; one does nothing else."""
    monkeypatch.setattr(settings.Retries, "pause", lambda *_: 0.001)
    tries: Counter[int] = Counter()
    good = script()

    def hanging_up(request: ChatRequest) -> Reply:
        seed = request.body["seed"]
        if "<policy>" in request.system and "(task <note>)" in str(request.messages) and seed >= 10_000:
            tries[seed] += 1
            if tries[seed] <= TRIES or seed == 20_003:
                raise ConnectionError
        return good(request)

    with ChatServer(hanging_up) as server:
        baseline(desk, server)
        result = compared(desk, server)
    assert letters(result)["note"] == "FAILED"  # 15 of 16 against none
    result.stdout.no_fnmatch_line("*set aside*")
    assert tries[20_003] == 2 * TRIES
    lost = [one for one in fresh_traces(desk, "baseline") if one["reward_info"] is None]
    assert {one["trial"] for one in lost} == {20_003}
    assert len([one for one in fresh_traces(desk, "baseline") if one["task_id"] == "note"]) == 16


def test_a_budget_that_ends_amid_confirmation_leaves_the_task_suspected(
    desk: DeskProject, letters: Letters
) -> None:
    with ChatServer(script()) as server:
        baseline(desk, server)
        compared(desk, server, "-ot2e_max_reruns=0")  # so that the main trials are there
        result = compared(desk, server, "--t2e-max-tokens=6000", "--t2e-concurrency=2")
        assert (letters(result)["close"], letters(result)["note"]) == ("SUSPECTED", "SUSPECTED")
        result.stdout.fnmatch_lines(
            ["note: desk: 2 regressed tasks not confirmed: the budget is spent: *tokens of *"]
        )
        result.stdout.fnmatch_lines(["INCONCLUSIVE: *"])
        assert result.ret == 10
        again = compared(desk, server)  # what was made is kept
        assert letters(again)["note"] == "FAILED"


def test_killed_amid_confirmation_a_run_goes_on_where_it_stopped(
    desk: DeskProject, session_forks: Forks, letters: Letters
) -> None:
    answer, asked_again = script(), []

    def held(request: ChatRequest) -> Reply:
        """After so many requests of fresh trials some of them are finished, and others are not."""
        if request.body["seed"] >= 10_000:
            asked_again.append(request)
            if len(asked_again) == 40:
                server.hold()
        return answer(request)

    with ChatServer(held) as server:
        baseline(desk, server)
        finished = desk.root / ".trace2evolve" / "finished"

        def fresh() -> set[Path]:
            return {
                path for path in finished.rglob("*.json") if json.loads(path.read_text())["trial"] >= 10_000
            }

        given = [
            "--candidate=v3",
            "--t2e-trials=2",
            "--t2e-gate=calibrated",
            "--t2e-goal=hold",
            "-v",
            "-pno:xdist",
        ]
        line = [sys.executable, "-m", "pytest", *command(server, *given, "--t2e-concurrency=3")]
        child = session_forks.popen(line, cwd=desk.root, stdout=subprocess.DEVNULL)
        until(lambda: (len(asked_again) >= 40 and fresh()) or child.poll() is not None)
        child.kill()
        child.wait()
        server.release()
        before, asked = fresh(), len(server.requests)
        assert 0 < len(before) < 32
        result = compared(desk, server)
        again = {request["seed"] for request in server.requests[asked:] if request["seed"] >= 10_000}
    assert letters(result)["note"] == "FAILED"
    assert before < fresh()
    assert len(fresh()) == 32
    kept = {(one["task_id"], one["trial"]) for one in map(json.loads, (path.read_text() for path in before))}
    assert len(kept) == len(before)
    assert again


def _drop(record: dict[str, Any], task: str) -> None:
    record["simulations"] = [one for one in record["simulations"] if one["task_id"] != task]


def test_a_known_failure_is_no_fall_and_without_a_baseline_nothing_is_confirmed(
    desk: DeskProject, letters: Letters
) -> None:
    def fails(task: str, quick: bool, trial: int) -> bool:
        return task == "look" or (quick and task == "note")

    with ChatServer(script(fails)) as server:
        given = ("-pno:xdist", "--t2e-trials=2", "--t2e-gate=off", "--t2e-save-baseline=v0")
        desk.pytester.runpytest_inprocess(*command(server, *given)).assert_outcomes(passed=6, failed=1)
        expected = letters(compared(desk, server))
        assert (expected["look"], expected["note"]) == ("XFAIL", "FAILED")
        desk.older("v0", lambda record: _drop(record, "note"))
        asked = len(server.requests)
        expected = letters(compared(desk, server))
    assert expected["note"] == "FAILED"  # the baseline does not hold it
    assert server.requests[asked:] == []


def test_under_strict_a_fall_is_a_fall(desk: DeskProject, letters: Letters) -> None:
    with ChatServer(script()) as server:
        baseline(desk, server)
        result = compared(desk, server, "--t2e-gate=strict")
        expected = letters(result)
        assert (expected["close"], expected["note"]) == ("FAILED", "FAILED")
        result = compared(desk, server, "--t2e-gate=strict", "-ot2e_max_reruns=5")
    result.stderr.fnmatch_lines(
        ["ERROR: t2e_max_reruns 5 has no effect: policy 'strict' does not confirm regressions"]
    )


def test_falls_that_cannot_change_the_verdict_are_not_tried_again(desk: DeskProject) -> None:
    """No gain is shown, and two confirmed falls would not discard by themselves."""
    with ChatServer(script()) as server:
        baseline(desk, server)
        result = compared(desk, server, "--t2e-goal=improve")
    result.stdout.fnmatch_lines(
        [
            "note: desk: 2 regressed tasks not confirmed: the verdict is the same either way; *",
            "INCONCLUSIVE: *",
        ]
    )
    result.assert_outcomes(passed=5)
    assert not (desk.runs[-1] / "fresh").exists()


def test_a_replay_confirms_nothing_and_judges_by_its_own_trials(desk: DeskProject, letters: Letters) -> None:
    with ChatServer(script()) as server:
        baseline(desk, server)
        compared(desk, server, "--t2e-run-folder=recorded", "--t2e-gate=strict")
    result = desk.pytester.runpytest_inprocess("--candidate=v3", "--t2e-results=recorded", *HOLD, "-v")
    assert letters(result)["note"] == "SUSPECTED"
    result.stdout.fnmatch_lines(
        ["note: desk: 2 regressed tasks not confirmed: agent 'replay' makes no fresh trials"]
    )


def test_many_trials_can_say_by_themselves_that_a_task_fell(desk: DeskProject, letters: Letters) -> None:
    with ChatServer(script()) as server:
        baseline(desk, server, "--t2e-trials=6")
        expected = letters(compared(desk, server, "--t2e-trials=6", "-ot2e_max_reruns=0"))
    assert (expected["close"], expected["note"]) == ("FAILED", "FAILED")  # 6 of 6 against none: p = .0011


def test_a_plugins_agent_is_confirmed_too(desk: DeskProject) -> None:
    """It passes on the baseline's side whenever it is asked, and never on the candidate's."""
    desk.candidate("v3", "close restart look", parent="v1")
    desk.baseline("v1")
    result = desk.run("--candidate=v3", *HOLD, "-v")
    result.stdout.re_match_lines([r".*FAILED suites/desk.toml::heldout::note.*"])
    assert {one["task_id"] for one in fresh_traces(desk, "baseline")} == {"note"}
    assert len(fresh_traces(desk, "baseline")) == len(fresh_traces(desk, "candidate")) == 8
    again = desk.run("--candidate=v3", *HOLD, "-v", "-ot2e_max_reruns=15")
    again.stdout.fnmatch_lines(["* 1 suspected *"])


def test_a_later_stage_takes_the_fresh_trials_of_an_earlier_one(desk: DeskProject, letters: Letters) -> None:
    """The first stage clears the task, and decides nothing; the second flags the same task."""

    def fails(task: str, quick: bool, trial: int) -> bool:
        return quick and task == "note" and trial < 100

    with ChatServer(script(fails)) as server:
        baseline(desk, server)
        asked = len(server.requests)
        given = [
            "--candidate=v3",
            "--t2e-stages=1,2",
            "--t2e-gate=calibrated",
            "--t2e-goal=hold",
            "-v",
            "-pno:xdist",
        ]
        result = desk.spread(*command(server, *given, "-ot2e_max_reruns=16"))
        seeds = Counter(
            request["seed"]
            for request in server.requests[asked:]
            if "<policy>" in request["messages"][0]["content"]
            and [one["role"] for one in request["messages"]][-1] == "user"
            and sum(one["role"] == "user" for one in request["messages"]) == 1
        )
    result.stdout.fnmatch_lines(["*::note SUSPECTED*", "*stage 1 of 2*", "*stage 2 of 2*"])
    fresh = {seed: count for seed, count in seeds.items() if seed >= 10_000}
    assert set(fresh.values()) == {1}
    assert len(fresh) == 16
    assert len(fresh_traces(desk, "baseline")) == 8


LOSING = (
    CONFTEST
    + """
def losing(task, world, candidate, trial):
    # Two of four main trials pass, and one is lost; none of the fresh ones passes.
    worse = candidate.id == "v3" and task.id == "note"
    if worse and trial == 3:
        raise ConnectionError("gone")
    solves = not worse or trial < 2
    return (OracleAgent(task) if solves else NopAgent()), GoldUser(task)


def pytest_t2e_agents(config):
    return {"listed": losing}
"""
)


def test_a_lost_main_trial_hides_no_fall(desk: DeskProject) -> None:
    desk.pytester.makeconftest(LOSING)
    desk.run("--candidate=v0", "--t2e-trials=4", "--t2e-save-baseline=v0", "--t2e-gate=off")
    result = desk.run("--candidate=v3", "--t2e-trials=4", *HOLD)
    assert {one["task_id"] for one in fresh_traces(desk, "candidate")} == {"note"}
    result.stdout.fnmatch_lines(["   confirmed (1): note*", "DISCARD: *"])


COUNTING = (
    CONFTEST
    + """
def counting(task, world, candidate, trial):
    if trial >= 10_000:
        with open("tries.txt", "a") as file:
            file.write(f"{trial}\\n")
        if trial in (10_003, 20_003):
            raise ConnectionError("gone")
    solves = candidate.id != "v3" or task.id != "note"
    return (OracleAgent(task) if solves else NopAgent()), GoldUser(task)


def pytest_t2e_agents(config):
    return {"listed": counting}
"""
)


def test_an_agent_without_a_journal_is_not_drawn_a_second_time(desk: DeskProject) -> None:
    """What infrastructure takes of it stays lost: a second try would be another draw."""
    desk.pytester.makeconftest(COUNTING)
    desk.run("--candidate=v0", "--t2e-save-baseline=v0", "--t2e-gate=off")
    desk.run("--candidate=v3", *HOLD)
    tries = Counter(map(int, (desk.root / "tries.txt").read_text().split()))
    assert {10_003, 20_003} < tries.keys()
    assert set(tries.values()) == {1}
