"""`trace2evolve calibrate`, from files to figures."""

import json
from pathlib import Path

import numpy as np
import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.evidence.baselines import write_evidence
from pytest_trace2evolve.records.evidence import Evidence, Provenance
from tests.gate_helpers import Side, sim

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
        assert {
            sum((item["promote"], item["inconclusive"], item["discard"])) for item in policy["counts"]
        } == {60}
    at = {name: {(rate["what"], rate["goal"], rate["effect"]): rate["estimate"] for rate in policy["rates"]}
          for name, policy in found["policies"].items()}  # fmt: skip
    assert at["strict"]["false-discard", "hold", 0.0] > 0.9, "it discards an agent against itself"
    assert at["calibrated"]["false-discard", "hold", 0.0] < 0.15
    assert at["calibrated"]["power", "improve", 0.1] > at["calibrated"]["power", "improve", 0.05]
    assert at["calibrated"]["false-discard", "no-regression", 0.0] < 0.15
    losses = [at["calibrated"]["power", goal, -0.1] for goal in ("improve", "no-regression")]
    assert losses[0] <= losses[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trials", "0"], "--trials 0: must be 1 or more"),
        (["-ot2e_resamples=0"], "t2e_resamples: '0' is not a whole number of 1 or more"),
        (["--margin", "5"], "--margin 5: must be between 0 and 1; for 5 points, give 0.05"),
        (["--policy", "srict"], "unknown gate policy 'srict'; did you mean 'strict'?"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    trials: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", str(trials), *options]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"trace2evolve: {message}\n")
