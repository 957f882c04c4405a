"""Live sessions as a whole: several processes, budgets, a rate limit, refusals, prices and estimates."""

import json
import time
from dataclasses import replace

import pytest

from pytest_trace2evolve.models import settings
from pytest_trace2evolve.report.progress import format_short_count
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Fault, FaultPlan, Reply
from tests.plugin.conftest import CONFTEST, DeskProject, letters, project
from tests.session.test_live import SCENARIOS, SECRET, SOLVED, live

__all__ = ["letters", "project"]

PRICES = "[m]\ninput = 1000.0\noutput = 2000.0\n"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


def spawned(project: DeskProject, server: ChatServer, *arguments: str) -> pytest.RunResult:
    """A session, with its workers in processes of their own."""
    return project.spread("--t2e-model=m", f"--t2e-base-url={server.base_url}", *arguments)


def used(project: DeskProject) -> dict[str, float]:
    """What the last run says that it used."""
    return dict(json.loads((project.runs[-1] / "run.json").read_text())["usage"])


def test_no_simulation_is_made_twice_whatever_the_number_of_workers(project: DeskProject) -> None:
    """The concurrency is that of the run, too."""
    with ChatServer(SOLVED, latency=0.01) as server:
        live(project, server, "-pno:xdist", "--t2e-concurrency=3").assert_outcomes(passed=7)
        one_run, before = server.count.served, replace(server.count)
        result = spawned(project, server, "-n3", "--t2e-fresh", "--t2e-concurrency=3")
        result.assert_outcomes(passed=7)
        assert server.count.served == 2 * one_run
        assert server.count.max_concurrent == 3
    assert used(project) == {
        "calls": one_run,
        "prompt_tokens": server.count.prompt_tokens - before.prompt_tokens,
        "completion_tokens": server.count.completion_tokens - before.completion_tokens,
        "cached_tokens": 0,
        "cost": None,
    }


def test_slots_do_not_wait_for_the_item_that_is_slow(project: DeskProject) -> None:
    """The first item's user is chatty; meanwhile everything else is made."""

    def script(request: ChatRequest) -> Reply:
        said = sum(message["role"] == "assistant" for message in request.messages)
        if SCENARIOS["close"] in request.system and said < 80:
            return Reply(f"Are you there? ({said}) (task <close>)")
        return SOLVED(request)

    with ChatServer(script, latency=0.01) as server:
        # Four of eight slots hold the chatty ones, each for 160 requests in a row; the others need about 40.
        live(project, server, "--t2e-trials=4", "--t2e-concurrency=8").assert_outcomes(passed=7)
    last = server.requests[-20:]
    assert all("(task <close>)" in str(request["messages"]) for request in last)


def test_a_spent_budget_keeps_what_is_finished_and_decides_nothing(project: DeskProject) -> None:
    project.write("prices.toml", PRICES)
    with ChatServer(SOLVED) as server:
        live(project, server, "--t2e-save-baseline=v0", "--t2e-gate=off")
        whole = used(project)["cost"]
        budget = whole * 0.6
        result = live(project, server, "--candidate=v1", f"--t2e-max-cost={budget:.4f}")
        spent = used(project)["cost"]
        assert budget * 0.4 < spent <= budget
        outcomes = result.parseoutcomes()
        assert outcomes["skipped"] + outcomes["passed"] == 7
        assert result.ret == 10
        result.stdout.fnmatch_lines(
            ["INCONCLUSIVE: *", " why:  partial: the budget is spent: *--t2e-max-cost*"]
        )
        result.stdout.fnmatch_lines(["note: finished simulations are kept; rerun the same command to resume"])
        again = live(project, server, "--candidate=v1")
        again.stdout.fnmatch_lines([f"*, {outcomes['passed']} finished before*"])
        again.assert_outcomes(passed=7)
        assert "INCONCLUSIVE" not in again.stdout.str()
    assert whole == pytest.approx(
        (server.count.prompt_tokens * 1000 + server.count.completion_tokens * 2000) / 1e6 / 2, rel=0.2
    )


def test_tokens_and_minutes_are_budgets_too(project: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        result = live(project, server, "--t2e-max-tokens=3000", "--t2e-concurrency=1")
        assert server.count.prompt_tokens + server.count.completion_tokens < 3000 + 1500
        result.stdout.fnmatch_lines(
            ["*the run is incomplete: the budget is spent: * of --t2e-max-tokens 3000*"]
        )
        assert result.ret == 10
        server.hold()
        result = live(project, server, "--t2e-fresh", "--t2e-max-minutes=0.002", "--t2e-concurrency=1")
        result.stdout.fnmatch_lines(
            [
                (
                    " why:  no simulation was measured "
                    "(the budget is spent: --t2e-max-minutes 0.002 is exceeded), so *"
                )
            ]
        )


def test_a_call_in_flight_does_not_outlive_the_minutes(project: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        server.hold()  # a session that waits for its calls would never end
        result = live(project, server, "--t2e-max-minutes=0.01")
    assert result.parseoutcomes()["skipped"] == 7


STILL = """
import time
import types
from pathlib import Path
from pytest_trace2evolve.engine import budget as account

account.time = types.SimpleNamespace(time=lambda: 1000.0)  # for the account no time passes
_pause = account.Account.pause_before_request


def pause_before_request(self):
    pause = _pause(self)
    with open({file!r}, "a") as file:
        file.write(f"{{pause}} {{time.monotonic() + pause}}\\n")
    return pause


account.Account.pause_before_request = pause_before_request
"""


def test_the_rate_limit_holds_for_the_whole_run(project: DeskProject) -> None:
    admitted = project.root / "admitted"
    project.write("conftest.py", CONFTEST + STILL.format(file=str(admitted)))
    times: list[float] = []

    def script(request: ChatRequest) -> Reply:
        times.append(time.monotonic())
        return SOLVED(request)

    with ChatServer(script) as server:
        given = ("--t2e-model=m", f"--t2e-base-url={server.base_url}", "-ot2e_requests_per_minute=1200")
        project.pytester.runpytest_subprocess("-pno:xdist", *given).assert_outcomes(passed=7)
    lines = [tuple(map(float, line.split())) for line in admitted.read_text().splitlines()]
    assert len(lines) == len(times) > 20
    # Twenty requests a second.
    assert sorted(pause for pause, _ in lines) == pytest.approx([place / 20 for place in range(len(lines))])
    assert max(times) >= max(earliest for _, earliest in lines), "who is admitted later also asks later"


def test_a_refused_key_is_one_error(project: DeskProject) -> None:
    with ChatServer(SOLVED, keys={"another"}) as server:
        result = spawned(project, server, "--t2e-trials=40")
        assert server.count.attempts <= 32
    assert result.parseoutcomes()["errors"] == 1
    assert result.stdout.str().count("ERROR suites") == 1
    result.stdout.no_fnmatch_line("*another exception occurred*")
    assert result.ret != 0


def test_a_base_url_that_is_none_is_a_usage_error(project: DeskProject) -> None:
    result = project.pytester.runpytest_inprocess("--t2e-model=m", "--t2e-base-url=http://host:abc/v1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            (
                "ERROR: the base URL of model 'm' is not an http:// or https:// URL with a host; "
                "check --t2e-base-url"
            )
        ]
    )


def test_a_model_without_tools_is_told_once(project: DeskProject) -> None:
    with ChatServer(SOLVED, tools=False) as server:
        result = live(project, server)
    result.stdout.fnmatch_lines(
        ["*rejects the request to model 'm': unknown error of the endpoint: 400 The model 'm' does not *"]
    )
    assert result.parseoutcomes()["errors"] == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--t2e-max-cost=0"], "*--t2e-max-cost: '0' is not a number above 0"),
        (["--t2e-max-cost=nan"], "*--t2e-max-cost: 'nan' is not a number above 0"),
        (["--t2e-max-tokens=0.5"], "*--t2e-max-tokens: '0.5' is not a whole number of 1 or more"),
        (["--t2e-max-minutes=-1"], "*--t2e-max-minutes: '-1' is not a number above 0"),
        (["--t2e-max-cost=1"], "ERROR: --t2e-max-cost needs the price of model 'm': add it to */prices.toml"),
    ],
)
def test_impossible_budgets_are_usage_errors(project: DeskProject, arguments: list[str], text: str) -> None:
    with ChatServer(SOLVED) as server:
        result = live(project, server, *arguments)
        assert server.count.attempts == 0
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([text])


@pytest.mark.parametrize(
    "option",
    [
        "--t2e-max-cost=1",
        "--t2e-seed=1",
        "--t2e-fresh",
    ],
)
def test_options_of_models_say_nothing_without_a_model(project: DeskProject, option: str) -> None:
    result = project.run(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    name = option.partition("=")[0]
    result.stderr.fnmatch_lines([f"ERROR: {name} has no effect without --t2e-model"])


def test_the_estimate_comes_from_the_baselines_own_usage(project: DeskProject) -> None:
    project.write("prices.toml", PRICES)
    with ChatServer(SOLVED) as server:
        first = live(project, server, "--t2e-save-baseline=v0", "--t2e-gate=off")
        first.stdout.fnmatch_lines(
            ["trace2evolve: 7 simulations to make", "*: answers end after 16,384 tokens *"]
        )
        tokens = server.count.prompt_tokens + server.count.completion_tokens
        calls = server.count.served
        second = live(project, server, "--candidate=v1", "--t2e-max-tokens=1000000")
        spent = f"{calls} calls, {format_short_count(tokens)} tokens, $*"
        second.stdout.fnmatch_lines([f"*: 7 simulations to make; as in baseline v0 they take {spent}"])
        third = live(project, server, "--candidate=v1", f"--t2e-max-tokens={tokens // 2}", "--t2e-fresh")
        third.stdout.fnmatch_lines([f"*; --t2e-max-tokens {tokens // 2} covers about 50% of that"])
        fourth = live(project, server, "--candidate=v1", "--t2e-max-tokens=100")
        assert fourth.ret == pytest.ExitCode.USAGE_ERROR
        fourth.stderr.fnmatch_lines(
            ["ERROR: --t2e-max-tokens 100 cannot pay for one simulation: the smallest one in the baseline *"]
        )


def test_a_broken_table_of_prices_is_named(project: DeskProject) -> None:
    project.write("prices.toml", "[m]\ninput = -1\noutput = 2\n")
    with ChatServer(SOLVED) as server:
        result = live(project, server)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: */prices.toml: [[]'m'] input: Input should be greater than *"])


def test_x_stops_every_process(project: DeskProject) -> None:
    """The first failing item ends the run; what others had begun is not carried to its end."""

    def script(request: ChatRequest) -> Reply:
        return Reply("###STOP###") if "<scenario>" in request.system else Reply("Hello.")

    with ChatServer(script) as server:
        server.release(139)  # of 280 at least: whoever goes on waits for answers that never come
        result = spawned(project, server, "-x", "--t2e-trials=20", "--t2e-concurrency=2")
    assert result.parseoutcomes()["failed"] >= 1


@pytest.mark.parametrize(
    ("fault", "rate"),
    # Half of all tries that are slow would be waited for, a second each.
    [(fault, 0.05 if fault is Fault.SLOW else 0.5) for fault in Fault],
)
def test_faults_lose_no_simulation_and_score_none(
    project: DeskProject, fault: Fault, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With network faults, each simulation ends well or as lost, and the counts are the server's."""
    monkeypatch.setattr(settings.Retries, "pause", lambda *_: 0.001)
    project.write("prices.toml", PRICES)
    # A try that is given up though the server had just answered would be counted by one side only.
    patience = 1.0 if fault is Fault.SLOW else 60.0
    with ChatServer(SOLVED, faults=FaultPlan({fault: rate}, seed=3)) as server:
        options = [f"-ot2e_call_timeout={patience}", "--t2e-trials=4", "--t2e-concurrency=28"]
        result = live(project, server, *options)
    assert server.count.faults[fault.value] > 0
    records = [json.loads(path.read_text()) for path in project.runs[-1].glob("simulations/*.json")]
    assert len(records) == 28
    for record in records:
        lost = record["termination_reason"] == "infrastructure_error"
        assert lost or record["reward_info"]["reward"] == 1.0
        assert not lost or record["reward_info"] is None
    outcomes = result.parseoutcomes()
    assert outcomes.get("failed", 0) == 0
    assert outcomes.get("passed", 0) + outcomes.get("errors", 0) == 7
    counted = used(project)
    if fault is Fault.SLOW:
        # On a busy machine a good answer too can outlast a patience of one second.
        assert 0 < counted["calls"] <= server.count.served
        return
    assert counted["calls"] == server.count.served
    assert counted["prompt_tokens"] == server.count.prompt_tokens
    assert counted["completion_tokens"] == server.count.completion_tokens
    dollars = server.count.prompt_tokens * 1000.0 + server.count.completion_tokens * 2000.0
    assert counted["cost"] == pytest.approx(dollars / 1e6)


def test_answers_from_the_cache_spend_nothing(project: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        live(project, server, "--t2e-cache").assert_outcomes(passed=7)
        asked = server.count.attempts
        result = live(project, server, "--t2e-cache", "--t2e-fresh", "--t2e-max-tokens=10")
        result.assert_outcomes(passed=7)
        assert server.count.attempts == asked
    assert used(project)["calls"] == 0


def test_what_is_finished_counts_whatever_stopped_the_run(project: DeskProject) -> None:
    """The budget is spent at the first call; what an earlier run finished still comes in, of every task."""
    with ChatServer(SOLVED, latency=0.05) as server:
        live(project, server).assert_outcomes(passed=7)
        live(project, server, "--t2e-trials=2", "--t2e-max-tokens=1", "--t2e-concurrency=1")
    kept = [json.loads(path.read_text()) for path in project.runs[-1].glob("simulations/*.json")]
    assert sorted(record["trial"] for record in kept) == [0] * 7


def test_a_limit_of_answers_is_sent_and_recorded(project: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        result = live(
            project, server, "-ot2e_max_answer_tokens=900", "--t2e-save-baseline=v0", "--t2e-gate=off"
        )
    result.stdout.fnmatch_lines(["trace2evolve: answers end after 900 tokens (t2e_max_answer_tokens)"])
    assert {request["max_tokens"] for request in server.requests} == {900}
    baseline = json.loads((project.root / "baselines/desk/v0.json").read_text())
    assert [baseline["provenance"][side]["arguments"]["max_tokens"] for side in ("agent", "user")] == [
        900
    ] * 2
