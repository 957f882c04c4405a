"""`trace2evolve calibrate`, from files to figures."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.deficits import Deficit
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.evidence.baselines import write_evidence
from pytest_trace2evolve.records.evidence import Evidence, Provenance
from tests.diagnose.deficient import cases, simulated, write_run
from tests.gate_helpers import Side, side, sim

SMALL = ("-ot2e_resamples=60",)


def saved(folder: Path, records: Side, name: str = "trials.json") -> Path:
    path = folder / name
    write_evidence(path, Evidence(provenance=Provenance(domain="shop", provider="fake"), simulations=records))
    return path


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four trials of twenty tasks."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(1)
    outcomes = [(task, trial, random.random() < rate)
                for task, rate in enumerate(random.beta(0.8, 0.6, 20)) for trial in range(4)]  # fmt: skip
    return saved(
        tmp_path, [sim(task, float(ok), trial=trial, read=(2, 1 + ok)) for task, trial, ok in outcomes]
    )


def test_each_policy_gets_its_figures_with_intervals(
    trials: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", str(trials), *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tasks"], found["simulations"], found["trials"], found["resamples"]) == (20, 80, 4, 60)
    assert list(found["policies"]) == ["calibrated", "strict"]
    for policy in found["policies"].values():
        assert {rate["what"] for rate in policy["rates"]} == {
            *("false-promote", "false-discard", "A/A promoted", "power")
        }
        assert all(rate["low"] <= rate["estimate"] <= rate["high"] for rate in policy["rates"])
        assert {sum((one["promote"], one["inconclusive"], one["discard"])) for one in policy["counts"]} == {
            60
        }
    at = {name: {(rate["what"], rate["goal"], rate["effect"]): rate["estimate"] for rate in policy["rates"]}
          for name, policy in found["policies"].items()}  # fmt: skip
    assert at["strict"]["false-discard", "hold", 0.0] > 0.9, "it discards an agent against itself"
    assert at["calibrated"]["false-discard", "hold", 0.0] < 0.15
    assert at["calibrated"]["power", "improve", 0.1] > at["calibrated"]["power", "improve", 0.05]
    assert at["calibrated"]["false-discard", "no-regression", 0.0] < 0.15
    losses = [at["calibrated"]["power", goal, -0.1] for goal in ("improve", "no-regression")]
    assert losses[0] <= losses[1]


def test_the_table_says_what_went_in(trials: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", str(trials), *SMALL]) == 0
    out = capsys.readouterr().out
    assert "trials.json: 20 tasks, 80 simulations" in out
    assert "60 resamples of 20 tasks × 4 trials a side; recorded runs: no fresh trials; seed 0" in out
    assert "20 of 20 tasks have fewer than 8 trials" in out
    assert "factor of 0.75" in out
    assert main(["calibrate", str(trials), *SMALL, "--trials", "2", "--live"]) == 0
    out = capsys.readouterr().out
    assert "fresh trials of broken tasks" in out
    assert "fewer than" not in out, "four trials can be split into two and two"


def test_the_same_seed_gives_the_same_figures(trials: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for _ in range(2):
        main(["calibrate", str(trials), *SMALL, "--json"])
        found.append(json.loads(capsys.readouterr().out)["policies"])
    assert found[0] == found[1]


def test_a_projects_own_policies_are_calibrated_too(trials: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (trials.parent / "suites").mkdir()
    (trials.parent / "policies").mkdir()
    (trials.parent / "policies" / "wide.toml").write_text("[checks.reward]\nmargin = 0.3\n", encoding="utf-8")
    (trials.parent / "policies" / "these.toml").write_text('estimand = "suite"\n', encoding="utf-8")
    assert main(["calibrate", str(trials), *SMALL, "--json"]) == 0
    policies = json.loads(capsys.readouterr().out)["policies"]
    assert {name: policy["margin"] for name, policy in policies.items()} == {
        "calibrated": 0.1, "strict": 0.1, "these": 0.1, "wide": 0.3,
    }  # fmt: skip
    promoted = {name: policy["rates"][4]["estimate"] for name, policy in policies.items()}
    assert promoted["wide"] > promoted["calibrated"]
    assert main(["calibrate", str(trials), *SMALL, "--policy", "wide", "--margin", "0.15"]) == 0
    assert "−15 points (−margin)" in capsys.readouterr().out


def test_the_picture_is_drawn_and_is_the_same_each_time(trials: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = [trials.parent / name for name in ("one.svg", "other.svg", "one.png")]
    for path in paths:
        assert main(["calibrate", str(trials), "-ot2e_resamples=20", "--plot", str(path)]) == 0
    first, second, other = (path.read_bytes() for path in paths)
    assert first == second
    assert first.startswith(b"<?xml")
    assert other.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trials", "0"], "--trials 0: must be 1 or more"),
        (["-ot2e_resamples=0"], "t2e_resamples: '0' is not a whole number of 1 or more"),
        (["--margin", "5"], "--margin 5: must be between 0 and 1; for 5 points, give 0.05"),
        (["--policy", "srict"], "unknown gate policy 'srict'; did you mean 'strict'?"),
        (["--plot", "a.jpg"], "--plot a.jpg: must end in .svg or .png"),
        (["--plot", "no/a.svg"], "--plot no/a.svg: its folder does not exist; create it first"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    trials: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", str(trials), *options]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"trace2evolve: {message}\n")


def test_one_trial_a_task_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = saved(tmp_path, side(1.0, 0.0), "one.json")
    assert main(["calibrate", str(one)]) == 2
    assert capsys.readouterr().err.startswith(
        "trace2evolve: one.json: every task has only one trial, so the "
    )


def trials_with_changed_tasks(changed: int) -> Side:
    """Four trials of twenty tasks; the first `changed` tasks have other content in their last two trials."""
    random = np.random.default_rng(2)
    return [
        sim(
            task,
            float(random.random() < 0.6),
            trial=trial,
            digest="e" if task < changed and trial > 1 else "d",
        )
        for task in range(20)
        for trial in range(4)
    ]


def test_tasks_of_differing_content_are_left_out_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed = saved(tmp_path, trials_with_changed_tasks(2), "mixed.json")
    assert main(["calibrate", str(mixed), *SMALL]) == 0
    out = capsys.readouterr().out
    assert "mixed.json: 18 tasks, 72 simulations" in out
    reason = "its trials ran different content under this id"
    assert f"left out (2): 0: {reason}; 1: {reason}" in out

    assert main(["calibrate", str(mixed), *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tasks"], found["simulations"]) == (18, 72)
    assert found["left_out"] == [f"0: {reason}", f"1: {reason}"]


def test_the_other_tasks_get_the_figures_that_they_get_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = trials_with_changed_tasks(3)
    whole = saved(tmp_path, records, "whole.json")
    alone = saved(tmp_path, [one for one in records if int(one.task_id) >= 3], "alone.json")
    found = []
    for path in (whole, alone):
        assert main(["calibrate", str(path), *SMALL, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["policies"] == found[1]["policies"]
    assert (len(found[0]["left_out"]), found[1]["left_out"]) == (3, [])


def test_an_error_if_all_tasks_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed = saved(tmp_path, [sim(0, 1.0), sim(0, 1.0, trial=1, digest="e")], "mixed.json")
    assert main(["calibrate", str(mixed)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "trace2evolve: mixed.json: the trials of every task ran different content (0); give trials of the "
        "same tasks\n"
    )


def test_an_error_of_the_remaining_tasks_names_those_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [sim(0, 1.0), sim(0, 1.0, trial=1, digest="e"), sim(1, 1.0), sim(2, 0.0)]
    mixed = saved(tmp_path, records, "mixed.json")
    assert main(["calibrate", str(mixed)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("trace2evolve: mixed.json: every task has only one trial, so the ")
    assert error.endswith("; left out for differing content: 0\n")


def test_results_files_of_which_one_task_was_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two results files of one agent; the second was recorded after one task had been edited."""
    monkeypatch.chdir(tmp_path)
    made = cases("missing_order_id", 6)
    first = write_run(tmp_path / "first.json", [(case, simulated(case)) for case in made])
    lacks = {"tool_calling_precision": Deficit.HARM}
    second = write_run(tmp_path / "second.json", [(case, simulated(case, lacks, seed=1)) for case in made])
    record = json.loads(second.read_text(encoding="utf-8"))
    edited = record["tasks"][0]["id"]
    record["tasks"][0]["user_scenario"]["instructions"] = "another text"
    second.write_text(json.dumps(record), encoding="utf-8")
    command = ["calibrate", str(first), str(second), *SMALL, "-ot2e_provider=trace2evolve"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tasks"] == 5
    assert found["left_out"] == [f"{edited}: its trials ran different content under this id"]
