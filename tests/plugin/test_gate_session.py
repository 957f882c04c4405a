"""The verdict of a session: its table, its exit status, and what it leaves behind."""

import json

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.records.ledger import Evaluation
from tests.plugin.conftest import CONFTEST, DeskProject

FAILING = "def test_own():\n    assert False\n"


def evaluations(project: DeskProject) -> list[Evaluation]:
    """The ledger's evaluations, oldest first."""
    entries = Ledger(project.root / "ledger").read().entries_by_time
    return [entry for entry in entries if isinstance(entry, Evaluation)]


def test_an_improvement_is_promoted_with_exit_status_0(project: DeskProject) -> None:
    project.baseline("v0")
    result = project.run("--candidate=v1", "-v")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "*= trace2evolve: v1 vs v0 · desk =*",
            "heldout *4 *.000 → .750 *+75.0 *0/3",
            "heldout decides on clean evidence:",
            " ✓ better than v0 * passes",
            "   policy strict, goal improve, clean evidence, 4 tasks compared",
            " ✓ reward_improved *+75.0 * (n=4)",
            "   fixed (3): close, note, restart",
            "PROMOTE: v1 is better than v0 *(exit 0)",
            " next: trace2evolve baseline promote .trace2evolve/runs/*",
        ]
    )


def test_a_regression_is_discarded_with_exit_status_1(project: DeskProject) -> None:
    project.baseline("v1")
    result = project.run("--candidate=v2", "-v")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["   broken (1): note", "DISCARD: v2 fails on * (exit 1)"])


def test_a_part_of_the_split_is_inconclusive_with_exit_status_10(project: DeskProject) -> None:
    project.baseline("v0")
    result = project.run("--candidate=v1", "-k", "close")
    assert result.ret == 10
    result.stdout.fnmatch_lines([" why:  partial: -k narrows the run; 3 of 4 tasks did not run *"])
    assert evaluations(project) == []


def test_hold_promotes_what_is_not_worse(project: DeskProject) -> None:
    project.baseline("v1")
    project.candidate("v3", "close note restart", parent="v1")
    assert project.run("--candidate=v3", "--t2e-goal=hold").ret == 0
    assert project.run("--candidate=v3", "--t2e-goal=improve").ret == 1


def test_a_failure_elsewhere_wins_over_a_promotion(project: DeskProject) -> None:
    project.baseline("v0")
    project.write("tests/test_own.py", FAILING)
    result = project.run("--candidate=v1", "suites", "tests")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*PROMOTE*"])


def test_with_the_gate_off_pytests_own_status_stands(project: DeskProject) -> None:
    project.baseline("v0")
    result = project.run("--candidate=v1", "--t2e-gate=off")
    result.stdout.fnmatch_lines(["NO VERDICT on v1 *(exit 0)", " why:  the gate is off"])
    assert result.ret == 0


def test_the_nearest_ancestor_with_a_baseline_is_taken(project: DeskProject) -> None:
    project.baseline("v0")
    project.run("--candidate=v2").stdout.fnmatch_lines(["*candidate v2 on desk (*baseline v0)"])
    project.baseline("v1")
    project.run("--candidate=v2").stdout.fnmatch_lines(["*candidate v2 on desk (*baseline v1)"])


def test_a_baseline_under_an_ancestors_name_is_the_ancestors(project: DeskProject) -> None:
    project.run("--candidate=v0", "--t2e-save-baseline=v1", "--t2e-gate=off")
    result = project.run("--candidate=v2")
    assert result.ret == 4
    message = (
        "*v1.json: is named after candidate 'v1', but holds runs of candidate 'v0'; measure 'v1' again "
        "(pytest --candidate v1 --t2e-save-baseline v1 --t2e-baseline-mode update), or name the baseline "
        "with --t2e-baseline v1"
    )
    result.stderr.fnmatch_lines([message])
    assert project.run("--candidate=v2", "--t2e-baseline=v1").ret == 0
    project.run("--candidate=v1", "--t2e-save-baseline=v1", "--t2e-baseline-mode=update", "--t2e-gate=off")
    assert project.run("--candidate=v2").ret == 1
    project.candidate("v1", "close", parent="v0")
    result = project.run("--candidate=v2")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*'v1', but holds runs of an earlier version of it; measure 'v1' again *"])


def test_a_candidate_informed_by_the_split_is_development_evidence(project: DeskProject) -> None:
    project.baseline("v0")
    project.candidate("v1", "close note", parent="v0", informed="desk::heldout")
    project.candidate("v2", "close note restart", parent="v1")
    project.run("--candidate=v2", "--t2e-baseline=v0").stdout.fnmatch_lines(
        ["*(not clean evidence: candidate v1 was informed by desk::heldout*)*"]
    )


def test_every_gated_run_has_its_figures_in_the_ledger(
    project: DeskProject, capsys: pytest.CaptureFixture[str]
) -> None:
    project.baseline("v0")
    project.after("--candidate=v1")
    project.after("--candidate=v2", "--t2e-baseline=v0")
    first, second = evaluations(project)
    figures = first.figures or {}
    assert (figures["baseline_reward"], figures["reward"]) == (0.0, 0.75)
    assert (figures["fixed"], figures["broken"], figures["max_steps"]) == (3, 0, 0)
    assert second.run == project.runs[-1].name
    assert not (project.root / "results").exists()
    capsys.readouterr()
    assert main(["--root", str(project.root), "ledger"]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if "v1 against v0" in line]
    assert len(shown) == 1
    assert ", reward 0.000 → 0.750, 3 fixed, 0 broken, " in shown[0]


def test_a_baseline_holds_no_messages_and_one_simulation_a_line(project: DeskProject) -> None:
    project.baseline("v1")
    text = (project.root / "baselines" / "desk" / "v1.json").read_text(encoding="utf-8")
    assert '"messages"' not in text
    record = json.loads(text)
    assert record["provenance"]["candidate"]["id"] == "v1"
    assert record["provenance"]["agent"]["implementation"] == "listed"
    lines = [line for line in text.splitlines() if '"task_id"' in line]
    assert len(lines) == len(record["simulations"]) == 7


def test_a_guard_split_alone_discards_on_harm_and_decides_nothing_else(project: DeskProject) -> None:
    text = (project.root / "suites" / "desk.toml").read_text().replace("heldout", "transfer")
    project.write("suites/desk.toml", text)
    project.lock()
    project.baseline("v1")
    assert project.run("--candidate=v2").ret == 1
    project.candidate("v3", "close note restart look", parent="v1")
    result = project.run("--candidate=v3")
    result.stdout.fnmatch_lines(["transfer guards *:", " ✓ no harm detected; *", "NO VERDICT on v3 *"])
    assert result.ret == 0


def test_a_run_that_measured_nothing_is_never_green(project: DeskProject) -> None:
    project.pytester.makeconftest(
        CONFTEST + "\nimport pytest\ndef pytest_runtest_setup(item):\n    pytest.skip('not today')\n"
    )
    result = project.run("--candidate=v1")
    assert result.ret == 10
    result.stdout.fnmatch_lines(
        [" why:  no simulation was measured, so this run says nothing about the candidate"]
    )


def test_a_file_that_cannot_be_collected_is_a_failure(project: DeskProject) -> None:
    project.baseline("v0")
    project.write("tests/test_own.py", "import nothing_of_this_name\n")
    result = project.run("--candidate=v1", "suites", "tests", "--continue-on-collection-errors")
    assert result.ret == 1
