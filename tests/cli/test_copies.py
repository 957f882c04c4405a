"""One conversation is one trial: copies of simulations give no score and no verdict."""

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import DIGEST_FIELD, read_evidence
from tests.plugin.conftest import DeskProject

Json = dict[str, Any]


@pytest.fixture
def record(project: DeskProject, monkeypatch: pytest.MonkeyPatch) -> Json:
    """The results file of a run with two trials, of an agent without a model that always does the same."""
    monkeypatch.chdir(project.root)
    project.run("--candidate=v1", "--t2e-run-folder=run", "--t2e-gate=off", "--t2e-trials=2")
    record: Json = json.loads(Path("run/results.json").read_text(encoding="utf-8"))
    del record["simulation_index"]
    paths = sorted(Path("run/simulations").iterdir())
    record["simulations"] = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return record


def again(simulation: Json, **changes: Any) -> Json:
    return copy.deepcopy(simulation) | {"id": "copy"} | changes


def later(simulation: Json) -> Json:
    """The same with other timestamps."""
    messages = [message | {"timestamp": f"later {n}"} for n, message in enumerate(simulation["messages"])]
    return again(simulation, trial=7, messages=messages)


def timed(simulation: Json, **fields: Any) -> None:
    simulation["messages"][-1] |= fields


COPIES: dict[str, tuple[Callable[[Json], Json], str]] = {
    "a new id": (again, "are both trial "),
    "a new trial": (lambda item: again(item, trial=7), "have the same messages"),
    "no trial": (lambda item: again(item, trial=None), "have the same messages"),
    "another seed and reward": (
        lambda item: again(item, trial=7, seed=5, reward_info=None),
        "the same messages",
    ),
    "other messages": (lambda item: again(item, messages=item["messages"][:-1]), "are both trial "),
}

REMEDIES = {
    "are both trial ": "; remove a copy, or give each run as a file of its own\n",
    "the same messages": "; remove the copy, which is no trial\n",
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_gives_neither_a_score_nor_a_verdict(
    record: Json, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make, problem = COPIES[name]
    first = record["simulations"][0]
    record["simulations"].append(make(first))
    Path("copied.json.gz").write_bytes(gzip.compress(json.dumps(record).encode()))
    capsys.readouterr()
    for command in (
        ["score", "copied.json.gz"],
        ["compare", "run", "copied.json.gz"],
        ["calibrate", "copied.json.gz"],
    ):
        assert main(command) == 2
        out, error = capsys.readouterr()
        assert not out
        assert f"simulations {first['id']!r} and 'copy' " in error
        assert problem in error
        assert error.endswith(next(text for known, text in REMEDIES.items() if known in error))
        assert error.count("\n") == 1


def test_equal_trials_of_a_deterministic_agent_are_trials(
    record: Json, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their messages differ only in their timestamps."""
    record["simulations"].append(later(record["simulations"][0]))
    Path("more.json").write_text(json.dumps(record), encoding="utf-8")
    capsys.readouterr()
    for path in ("run", "more.json"):
        assert main(["score", path]) == 0
        assert "same messages" not in capsys.readouterr().err


@pytest.mark.parametrize("fields", [{"generation_time_seconds": 0.25}, {"raw_data": {"id": "chatcmpl-1"}}])
def test_a_copy_with_other_timestamps_is_found_by_what_only_one_answer_has(
    record: Json, fields: Json, capsys: pytest.CaptureFixture[str]
) -> None:
    timed(record["simulations"][0], **fields)
    record["simulations"].append(later(record["simulations"][0]))
    Path("copied.json").write_text(json.dumps(record), encoding="utf-8")
    assert main(["score", "copied.json"]) == 2
    assert "have the same messages" in capsys.readouterr().err


@pytest.mark.parametrize("changes", [{"id": "copy"}, {"trial": 7}])
def test_a_saved_baseline_holds_no_copy(record: Json, project: DeskProject, changes: Json) -> None:
    project.run("--candidate=v1", "--t2e-save-baseline=v1", "--t2e-gate=off")
    (path,) = Path("baselines/desk").glob("*.json")
    baseline = json.loads(path.read_text(encoding="utf-8"))
    del baseline[DIGEST_FIELD]
    baseline["simulations"].append(baseline["simulations"][0] | changes)
    path.write_text(json.dumps(baseline), encoding="utf-8")
    with pytest.raises(ResultsError, match="two simulations"):
        read_evidence(path)
