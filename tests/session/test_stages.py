"""Live runs in stages: trials are added until the gate decides."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.evidence.baselines import evidence_digest, read_evidence
from pytest_trace2evolve.gate import policy
from pytest_trace2evolve.gate.alpha_spending import alpha_share, stage_alpha
from pytest_trace2evolve.gate.pairs import Pairs
from pytest_trace2evolve.gate.policy import Strict
from pytest_trace2evolve.models import settings
from pytest_trace2evolve.records.verdict import CheckResult, CheckStatus
from pytest_trace2evolve.testing import ChatServer, Fault, FaultPlan
from tests.forks import Forks
from tests.patience import HANG_SECONDS, until
from tests.plugin.conftest import CONFTEST, DeskProject, letters, project
from tests.plugin.test_ledger_session import evaluations
from tests.session.test_confirmation import baseline, command, script
from tests.session.test_live import SECRET, SOLVED

__all__ = ["letters", "project"]


class Patient:
    """Decides from two trials of each task on."""

    id = "patient"

    def evaluate(self, pairs: Pairs) -> CheckResult:
        trials = min(int(side.measured.min(initial=99)) for side in pairs.sides)
        status = CheckStatus.PASS if trials >= 2 else CheckStatus.UNDECIDED
        return CheckResult(id=self.id, status=status, detail=f"{trials} trials a side")


class Never(Patient):
    """Decides nothing."""

    def evaluate(self, pairs: Pairs) -> CheckResult:
        return CheckResult(id=self.id, status=CheckStatus.UNDECIDED)


POLICIES = """
from tests.session.test_stages import Never, Patient
from pytest_trace2evolve.gate.policy import POLICIES, Strict

POLICIES.setdefault("patient", Strict("patient", Patient(), Patient(), ()))
"""


@pytest.fixture(autouse=True)
def policies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies that wait; and a key."""
    for name, check in (("patient", Patient()), ("never", Never())):
        monkeypatch.setitem(policy.POLICIES, name, Strict(name, check, check, ()))
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


@pytest.fixture
def desk(project: DeskProject) -> DeskProject:
    """A project whose candidate v3 is to be compared with v0."""
    project.pytester.makeconftest(CONFTEST + POLICIES)
    project.candidate("v3", "Be quick.", parent="v0")
    return project


def staged(project: DeskProject, server: ChatServer, *arguments: str) -> pytest.RunResult:
    """The candidate in stages of 1, 2 and 4 trials."""
    given = ("--candidate=v3", "--t2e-stages=1,2,4", *arguments)
    return project.pytester.runpytest_inprocess(*command(server, *given))


def saved(project: DeskProject, server: ChatServer, *arguments: str) -> None:
    """A baseline of four trials."""
    baseline(project, server, "--t2e-trials=4", *arguments)


def trials(folder: Path) -> set[int]:
    """The trials in a run's index."""
    return {one["trial"] for one in json.loads((folder / "results.json").read_text())["simulation_index"]}


def made(server: ChatServer, since: int) -> list[tuple[str, int]]:
    """The simulations whose first request came since: what the user was told, and the trial."""
    return [
        (request["messages"][0]["content"], request["seed"])
        for request in server.requests[since:]
        if "<scenario>" in request["messages"][0]["content"]
        and not any(one["role"] == "assistant" for one in request["messages"])
    ]


@pytest.mark.parametrize("futility", [0.05, 0.0])
def test_a_run_stops_if_a_gain_has_become_implausible(desk: DeskProject, futility: float) -> None:
    (desk.root / "policies").mkdir()
    (desk.root / "policies" / "own.toml").write_text(f"futility = {futility}\n")
    with ChatServer(script()) as server:
        saved(desk, server)
        result = staged(desk, server, "--t2e-gate=own", "-ot2e_max_reruns=0")
    assert result.ret == 10
    if futility:
        result.stdout.re_match_lines(
            [r"note: stage 1 of 3: .*: stopped, since 4 trials would show a gain with a chance of .*; more"]
        )
    else:
        result.stdout.fnmatch_lines(["note: stage 3 of 3: *: the last stage of this run"])
    result.stdout.fnmatch_lines(["INCONCLUSIVE: *"])


def test_a_run_stops_at_the_stage_that_decides(desk: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        saved(desk, server)
        asked = len(server.requests)
        given = ["--candidate=v3", "--t2e-stages=1,2,4", "--t2e-gate=patient", "-pno:xdist"]
        result = desk.spread(*command(server, *given))
        simulations = made(server, asked)
    assert result.ret == 0
    level = f"{stage_alpha(0.05, (1, 2, 4)):.4f}"
    result.stdout.fnmatch_lines(
        [
            f"note: stage 1 of 3: 1 trial, tested at {level}: undecided, so the next stage follows",
            f"note: stage 2 of 3: 2 trials, tested at {level}: the last stage of this run",
        ]
    )
    result.stdout.no_fnmatch_line("*stage 3 of 3*")
    assert len(simulations) == len(set(simulations)) == 14
    first, second = desk.runs[-2:]
    assert (trials(first), trials(second)) == ({0}, {0, 1})
    for run in (first, second):
        against = json.loads((run / "baselines" / "desk.json").read_text())["simulations"]
        assert {one["trial"] for one in against} == set(range(4))
    assert json.loads((second / "run.json").read_text())["stage"] == {
        "number": 2,
        "of": 3,
        "trials": 2,
        "alpha": stage_alpha(0.05, (1, 2, 4)),
        "most": 4,
        "schedule": [1, 2, 4],
    }
    assert [one.run for one in evaluations(desk)] == [second.name.removesuffix("-stage-2")]


def test_a_verdict_of_the_first_stage_ends_the_run(desk: DeskProject) -> None:
    with ChatServer(script()) as server:
        saved(desk, server)
        runs = len(desk.runs)
        result = staged(desk, server, "--t2e-gate=strict")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["DISCARD: *"])
    assert len(desk.runs) == runs + 1


def test_after_the_last_stage_an_undecided_run_is_inconclusive(desk: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        saved(desk, server)
        asked = len(server.requests)
        result = staged(desk, server, "--t2e-gate=never", "--t2e-fresh", "--t2e-run-folder=kept")
        assert len(made(server, asked)) == 28  # once each, though all is made again
    assert result.ret == 10
    assert [trials(desk.root / "kept" / f"stage-{one}") for one in (1, 2, 3)] == [{0}, {0, 1}, {0, 1, 2, 3}]
    assert len(evaluations(desk)) == 1


def test_stages_need_a_baseline(desk: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        result = staged(desk, server)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        mend = "save one with --t2e-trials 4 --t2e-save-baseline NAME"
        result.stderr.fnmatch_lines([f"ERROR: --t2e-stages 1,2,4: suite 'desk' has no baseline; {mend}"])
        assert not server.requests


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--t2e-model=m", "--t2e-trials=3"], "* cannot be combined with --t2e-trials: *"),
        (
            ["--t2e-model=m", "--t2e-save-baseline=x"],
            "* cannot be combined with --t2e-save-baseline: *",
        ),
        (["--t2e-model=m", "--t2e-record=x.jsonl"], "* cannot be combined with --t2e-record: *"),
        (["--t2e-model=m", "--t2e-gate=off"], "* stops when the gate decides, but the gate is off"),
        (["--t2e-results=baselines"], "* cannot be combined with --t2e-results, *"),
        (["--t2e-agent=oracle"], "* adds trials of a live run: give --t2e-model"),
    ],
)
def test_what_does_not_go_with_stages_is_one_line(desk: DeskProject, arguments: list[str], text: str) -> None:
    (desk.root / "baselines").mkdir()
    result = desk.pytester.runpytest_inprocess("--t2e-stages=1,2,4", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --t2e-stages{text[1:]}"])
    assert result.stderr.str().count("ERROR: ") == 1


def test_a_cassette_holds_no_stages(desk: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        given = ("--candidate=v3", "--t2e-record=tape.jsonl", "-pno:xdist")
        desk.pytester.runpytest_inprocess(*command(server, *given)).assert_outcomes(passed=7)
    result = desk.pytester.runpytest_inprocess("--t2e-playback=tape.jsonl", "--t2e-stages=default")
    result.stderr.fnmatch_lines(["ERROR: --t2e-stages cannot be combined with --t2e-playback: *"])


@pytest.mark.parametrize("schedule", ["2", "4,2", "2,x"])
def test_a_schedule_rises(desk: DeskProject, schedule: str) -> None:
    result = desk.pytester.runpytest_inprocess("--t2e-model=m", f"--t2e-stages={schedule}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*argument --t2e-stages: '{schedule}' is not a schedule: *"])


def test_an_interrupt_in_the_first_stage_ends_all(desk: DeskProject, session_forks: Forks) -> None:
    with ChatServer(SOLVED) as server:
        saved(desk, server)
        server.hold()
        asked, runs = len(server.requests), len(desk.runs)
        given = ["--candidate=v3", "--t2e-stages=1,2,4", "--t2e-gate=patient", "-pno:xdist"]
        line = [sys.executable, "-m", "pytest", *command(server, *given, "--t2e-concurrency=1")]
        child = session_forks.popen(line, cwd=desk.root, stdout=subprocess.PIPE, text=True)
        until(lambda: len(server.requests) > asked or child.poll() is not None)
        child.send_signal(signal.SIGINT)
        text, _ = child.communicate(timeout=HANG_SECONDS)
    assert child.returncode == 2
    assert "stage 2" not in text
    assert len(desk.runs) == runs + 1


def test_a_stage_that_measured_nothing_is_the_last(
    desk: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.Retries, "pause", lambda *_: 0.001)
    with ChatServer(SOLVED) as server:
        saved(desk, server)
    with ChatServer(SOLVED, faults=FaultPlan({Fault.SERVER_ERROR: 1.0})) as other:
        origin = (desk.root / "baselines/desk/v0.json").read_text().splitlines()[1]
        moved = origin.partition(":")[2].rstrip(",").replace(server.base_url, other.base_url)
        desk.older("v0", **json.loads(moved))
        result = staged(desk, other, "--t2e-gate=never")
    assert result.ret == 10
    result.stdout.fnmatch_lines([" why:  no simulation was measured, so *"])
    result.stdout.no_fnmatch_line("*stage 2 of 3*")


def test_budgets_hold_for_all_stages_together(desk: DeskProject) -> None:
    def used() -> dict[str, Any]:
        return dict(json.loads((desk.runs[-1] / "run.json").read_text()))

    with ChatServer(SOLVED) as server:
        saved(desk, server)
        whole = used()["usage"]["prompt_tokens"] + used()["usage"]["completion_tokens"]
        result = staged(desk, server, "--t2e-gate=never", f"--t2e-max-tokens={whole * 3 // 8}")
    assert result.ret == 10
    result.stdout.fnmatch_lines(["*partial: the budget is spent: *"])
    result.stdout.no_fnmatch_line("*stage 3 of 3*")
    usage = used()["usage"]
    assert whole / 4 < usage["prompt_tokens"] + usage["completion_tokens"] <= whole * 3 / 8
    assert used()["stopped"].startswith("the budget is spent")


def test_options_that_run_nothing_have_one_stage(desk: DeskProject) -> None:
    for option in ("--help", "--collect-only", "--markers"):
        result = desk.pytester.runpytest_inprocess("--t2e-model=m", "--t2e-stages=1,2", option)
        assert result.ret == 0, option
    assert desk.runs == []


def test_a_staged_run_is_promoted_over_the_baseline_that_it_beat(desk: DeskProject) -> None:
    with ChatServer(script(lambda task, quick, trial: False)) as server:
        saved(desk, server)
        staged(desk, server, "--t2e-gate=patient").stdout.fnmatch_lines(["PROMOTE: *"])
    assert main(["--root", str(desk.root), "baseline", "promote", desk.runs[-1].name]) == 0
    folder = desk.root / "baselines" / "desk"
    beaten = evidence_digest(read_evidence(folder / "v0.json"))
    assert read_evidence(folder / "v3.json").provenance.replaces == beaten


def test_a_staged_run_again_is_the_same_analysis_at_every_stage(desk: DeskProject) -> None:
    with ChatServer(script(lambda task, quick, trial: False)) as server:
        saved(desk, server)
        for _ in range(2):
            result = staged(desk, server, "--t2e-gate=calibrated")
            message = [line for line in result.outlines if line.startswith("heldout decides")]
            assert message == [
                "heldout decides on clean evidence (test 1, level 0.0094):"
            ]  # of the last stage
            result.stdout.fnmatch_lines(["INCONCLUSIVE: *"])
    result.stdout.fnmatch_lines(["*recorded: INCONCLUSIVE on *; now: INCONCLUSIVE; *"])


def test_a_staged_run_with_more_trials_is_the_next_analysis(desk: DeskProject) -> None:
    with ChatServer(script(lambda task, quick, trial: False)) as server:
        saved(desk, server)
        first = desk.pytester.runpytest_inprocess(
            *command(server, "--candidate=v3", "--t2e-trials=4", "--t2e-gate=calibrated")
        )
        first.stdout.fnmatch_lines(["*(test 1, level 0.0228):", "INCONCLUSIVE: *"])
        baseline(desk, server, "--t2e-trials=8", "--t2e-baseline-mode=update")
        arguments = ("--candidate=v3", "--t2e-stages=4,8", "--t2e-gate=calibrated")
        result = desk.pytester.runpytest_inprocess(*command(server, *arguments))
    level = f"{stage_alpha(0.05 * alpha_share(1, 2), (4, 8)):.4f}"
    found = [line for line in result.outlines if line.startswith("heldout decides")]
    assert found == [f"heldout decides on clean evidence (test 1, analysis 2, level {level}):"]
    result.stdout.fnmatch_lines(["*continues test 1: INCONCLUSIVE on *, with 4 trials a task"])
