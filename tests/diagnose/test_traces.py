"""`trace2evolve capabilities`, from files to figures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.deficits import Deficit
from pytest_trace2evolve.cases.case import Case
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.records.ledger import Access
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.trace import Simulation
from tests.diagnose.deficient import WORLD, cases, simulated, write_run

SUITE = 'provider = "trace2evolve"\ndomain = "support"\n\n[splits]\n'


def capabilities(*arguments: str) -> int:
    return main(["capabilities", *arguments, "-ot2e_provider=trace2evolve"])


@pytest.fixture(scope="module")
def made() -> list[tuple[Case, Simulation]]:
    """Forty simulations: half lack one capability with harm, a quarter another one without."""
    found = []
    for place, case in enumerate(cases("missing_order_id", 40)):
        lacks = {"tool_calling_precision": Deficit.HARM} if place % 2 else {}
        if place % 4 == 0:
            lacks = {**lacks, "precondition_verification": Deficit.SLIP}
        found.append((case, simulated(case, lacks)))
    return found


@pytest.fixture
def run(made: list[tuple[Case, Simulation]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The results file of these simulations."""
    monkeypatch.chdir(tmp_path)
    return write_run(tmp_path / "run.json", made)


def test_the_planted_deficit_is_selected_and_where_to_look_is_told(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert capabilities(str(run)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "no project was found that says which tasks decide, so all traces are read"
    assert lines[1].startswith("40 traces, ")
    assert lines[1].endswith("labelled by rules in one run")
    row = next(line for line in lines if line.startswith("tool_calling_precision "))
    assert row.rstrip().endswith("selected")
    assert lines[-1] == "selected: tool_calling_precision"
    assert any(line.startswith("unexplained: 0 of ") for line in lines)
    assert any(line.strip().startswith("trace2evolve show run.json 'missing_order_id-") for line in lines)


def test_failures_that_the_rules_cannot_explain_point_to_a_judge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The scripted agent never asks before it writes, so these cases only read: it does everything right,
    # except for a word that no rule expects.
    silent = []
    for case in cases("cancelled_order_tracking", 12):
        if any(WORLD.tool_types()[action.name] is ToolType.WRITE for action in case.task.actions):
            continue
        assert case.task.evaluation_criteria is not None
        criteria = case.task.evaluation_criteria.model_copy(update={"communicate_info": ["xyzzy"]})
        task = case.task.model_copy(update={"evaluation_criteria": criteria})
        silent.append((replace(case, task=task), simulated(case)))
    path = write_run(tmp_path / "silent.json", silent)
    assert capabilities(str(path)) == 0
    out = capsys.readouterr().out
    assert silent
    assert f"unexplained: {len(silent)} of {len(silent)} failures (100.0%)" in out
    assert "\nthe rules explain no failure; let a model label the traces: --judge MODEL\n" in out


def test_the_documented_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert capabilities(str(run), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {"capabilities", "labels", "taxonomy"} <= found.keys()
    wanted = {
        *("name", "description", "coverage", "error_rate_failed", "error_rate_passed", "delta"),
        *("delta_low", "runs_passed", "selected", "examples"),
    }
    assert all(wanted <= one.keys() for one in found["capabilities"])
    [labels] = found["labels"]
    assert len(labels["labels"]) == 40 * len(found["capabilities"])
    assert [one["name"] for one in found["capabilities"] if one["selected"]] == ["tool_calling_precision"]


def test_thresholds_are_keys_and_the_papers_rule_is_a_column(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert capabilities(str(run)) == 0
    lines = capsys.readouterr().out.splitlines()
    [selected] = [line for line in lines if line.startswith("tool_calling_precision ") and "selected" in line]
    assert "yes 1/1" in selected
    assert any("no 0/1" in line for line in lines)
    assert not any("coverage is below 1.00" in line for line in lines)
    assert capabilities(str(run), "-ot2e_coverage=1") == 0
    assert "coverage is below 1.00" in capsys.readouterr().out


@pytest.fixture
def project(run: Path) -> Path:
    """A project whose suite holds the first twenty cases as held-out ones."""
    tasks = [json.dumps(task) for task in json.loads(run.read_text())["tasks"]]
    root = run.parent
    (root / "suites").mkdir()
    (root / "candidates").mkdir()
    (root / "first.jsonl").write_text("\n".join(tasks[:20]) + "\n")
    (root / "suites" / "desk.toml").write_text(SUITE + 'heldout = { cases = "first.jsonl" }\n')
    assert main(["lock"]) == 0
    return root


def test_what_decides_is_not_learned_from(
    project: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert capabilities(str(run), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["traces"] == 20
    assert found["notes"] == [
        (
            "20 traces of split 'heldout' are left out: the split decides or guards, so nothing may be "
            "learned from it (--include-sealed heldout reads them, and the ledger records it)"
        )
    ]
    assert not Ledger(project / "ledger").read().entries


def test_who_learns_from_it_all_the_same_has_it_written_down(
    project: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert capabilities(str(run), "--json", "--include-sealed", "heldout") == 0
    assert json.loads(capsys.readouterr().out)["traces"] == 40
    entries = [one for one in Ledger(project / "ledger").read().entries.values() if isinstance(one, Access)]
    assert len(entries) == 20
    assert {(one.suite, one.split, one.run) for one in entries} == {("desk", "heldout", "run.json")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such path, and no project here to search for runs; give --root"),
        (
            ["run.json", "--include-sealed", "heldout"],
            "--include-sealed heldout: no project was found that has splits; pass --root",
        ),
        (["run.json", "-ot2e_repeats=0"], "t2e_repeats: '0' is not a whole number of 1 or more"),
        (["run.json", "--dry-run"], "--dry-run needs a judge; name one with --judge"),
        (["run.json", "run.json"], "simulation '"),
        (["run.json", "--suite", "desk"], "--suite desk: run.json has no such suite; known are run.json"),
    ],
)
def test_bad_input_is_one_line(
    run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert capabilities(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith(f"trace2evolve: {message}")


def test_a_judge_needs_a_key(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert capabilities("run.json", "--judge", "wise") == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "trace2evolve: model 'wise' needs a key: set OPENAI_API_KEY (any text for a local server)"
    )
