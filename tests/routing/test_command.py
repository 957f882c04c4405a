"""`trace2evolve routing`: what it prints, and what it refuses."""

import json
from pathlib import Path

import pytest

from pytest_trace2evolve.cli import main
from pytest_trace2evolve.records.adapter import AdapterState
from pytest_trace2evolve.records.routing import NONE, Routing
from pytest_trace2evolve.report.routing import routed_json, routed_text
from pytest_trace2evolve.serving.folder import folder_digest, read_model
from pytest_trace2evolve.shipped import embedded_model
from pytest_trace2evolve.workflow.environments.registry import Environments
from pytest_trace2evolve.workflow.project import Project
from pytest_trace2evolve.workflow.routing.measure import Opening, Routed, table_of
from tests.adapter_folders import write_adapter

ONE = "precondition_verification"


def routed(*pairs: tuple[str, str], silent: int = 0) -> Routed:
    labels = {label for pair in pairs for label in pair}
    return Routed(
        [Opening(label, "Hello.") for label, _ in pairs],
        [Routing(chosen=chosen, shares=dict.fromkeys(labels, 0.5), silent=silent) for _, chosen in pairs],
    )


def test_the_confusion_is_told_with_an_interval_and_chance() -> None:
    found = routed((ONE, ONE), (ONE, NONE), (NONE, NONE), (NONE, NONE), silent=1)
    text = routed_text(found, "tiny")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[1:] == [
        f"1 {ONE} 1 1 50%",
        "2 none 0 2 100%",
        (
            "right: 75% of 4 held-out openings (30% … 95%), by chance 50%; tiny told no letter in 50% of the "
            "questions"
        ),
    ]
    told = json.loads(routed_json(found, [ONE]))
    assert told["accuracy"]["share"] == 0.75
    assert told["confusion"]["counts"] == [[1, 1], [0, 2]]
    assert told["silent"] == 0.5


def test_a_table_is_that_of_the_promoted_adapters_of_the_base(tmp_path: Path) -> None:
    base, environments = read_model(embedded_model()), Environments()
    weights = folder_digest(base.path)
    project = Project(root=tmp_path, suites_folder=tmp_path / "suites")
    promoted = {"state": AdapterState.PROMOTED, "base": weights}
    write_adapter(project.adapters.folder, ONE, **promoted)
    write_adapter(project.adapters.folder, "tool_calling_precision", base=weights)
    write_adapter(project.adapters.folder, "multi_step_task_completion", state=AdapterState.PROMOTED)
    write_adapter(project.adapters.folder, "gone_since", **promoted)
    assert table_of(environments, [], project, base) == [ONE]
    assert table_of(environments, ["tool_calling_precision"] * 2, project, base) == ["tool_calling_precision"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "no adapter of base 'pocket' is promoted, so there is no table: name capabilities, as in"),
        (["precondition"], "unknown environment 'precondition'; did you mean 'precondition_verification'?"),
        ([ONE, "--tasks", "0"], "--tasks 0: must be 1 or more"),
        ([ONE, "--base", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["routing", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_the_embedded_model_routes_held_out_openings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["routing", ONE, "--tasks", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["confusion"]["labels"] == [ONE, NONE]
    assert sum(map(sum, told["confusion"]["counts"])) == 4
