"""`trace2evolve eval-router`: what it prints, and what it refuses."""

import json
from collections import Counter
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.environments import generated
from pytest_trace2evolve.environments.generators.precondition import PreconditionVerification
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.improve.routing import (
    Opening,
    RoutingResult,
    first_customer_message,
    make_openings,
    make_router_table,
)
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import NO_CAPABILITY, AdapterState, Routing
from pytest_trace2evolve.records.protocols import Offer
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.report.improvement import routing_json, routing_text
from pytest_trace2evolve.serving.folder import folder_digest, read_model
from pytest_trace2evolve.session.candidate_models import routing_table
from pytest_trace2evolve.utils.resources import embedded_model
from tests.adapter_folders import write_adapter

ONE, TWO = "precondition_verification", "tool_calling_precision"


def routed(*pairs: tuple[str, str], silent: int = 0) -> RoutingResult:
    labels = {label for pair in pairs for label in pair}
    return RoutingResult(
        [Opening(label, "Hello.") for label, _ in pairs],
        [Routing(chosen=chosen, shares=dict.fromkeys(labels, 0.5), silent=silent) for _, chosen in pairs],
    )


def test_the_confusion_is_told_with_an_interval_and_chance() -> None:
    found = routed(
        (ONE, ONE),
        (ONE, NO_CAPABILITY),
        (NO_CAPABILITY, NO_CAPABILITY),
        (NO_CAPABILITY, NO_CAPABILITY),
        silent=1,
    )
    text = routing_text(found, "tiny")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[1:] == [
        f"1 {ONE} 1 1 50%",
        "2 none 0 2 100%",
        (
            "right: 75% of 4 held-out openings (30% … 95%), by chance 50%; tiny reported no letter "
            "in 50% of the "
            "questions"
        ),
    ]
    message = json.loads(routing_json(found, [ONE]))
    assert message["accuracy"]["share"] == 0.75
    assert message["confusion"]["counts"] == [[1, 1], [0, 2]]
    assert message["silent"] == 0.5


def test_a_table_is_that_of_the_promoted_adapters_of_the_base(tmp_path: Path) -> None:
    base, environments = read_model(embedded_model()), Environments()
    weights = folder_digest(base.path)
    project = Project(root=tmp_path, suites_folder=tmp_path / "suites")
    promoted = {"state": AdapterState.PROMOTED, "base": weights}
    write_adapter(project.adapters.folder, ONE, **promoted)
    write_adapter(project.adapters.folder, "tool_calling_precision", base=weights)
    write_adapter(project.adapters.folder, "multi_step_task_completion", state=AdapterState.PROMOTED)
    write_adapter(project.adapters.folder, "gone_since", **promoted)
    assert [row.name for row in make_router_table(environments, [], project, base)] == ["gone_since", ONE]
    given = make_router_table(environments, ["tool_calling_precision"] * 2, project, base)
    assert [(row.name, row.capabilities) for row in given] == [
        ("tool_calling_precision", ("tool_calling_precision",))
    ]


def test_the_measured_table_is_the_one_that_a_routed_candidate_has(tmp_path: Path) -> None:
    base, environments = read_model(embedded_model()), Environments()
    project = Project(root=tmp_path, suites_folder=tmp_path / "suites")
    promoted = {"state": AdapterState.PROMOTED, "base": folder_digest(base.path)}
    write_adapter(project.adapters.folder, ONE, **promoted, promoted_on=1)
    write_adapter(project.adapters.folder, f"{ONE}_2", capabilities=[ONE], **promoted, promoted_on=2)
    write_adapter(project.adapters.folder, "merged", capabilities=[ONE, TWO], **promoted)
    write_adapter(project.adapters.folder, "gone_since", **promoted)
    table = make_router_table(environments, [], project, base)
    assert [(row.name, row.capabilities) for row in table] == [
        ("gone_since", ()),
        ("merged", (TWO,)),
        (f"{ONE}_2", (ONE,)),
    ]
    plain = ModelSettings(model=base.name, folder=base.path, weights=folder_digest(base.path))
    routed = routing_table(plain, project.adapters.routed_adapters(), project.adapters.folder)
    assert [row.skill for row in table] == [one.skill for one in routed]
    assert Counter(one.label for one in make_openings(environments, table, 3)) == {
        "merged": 3,
        f"{ONE}_2": 3,
        NO_CAPABILITY: 3,
    }


def test_at_an_endpoint_two_bases_of_one_name_give_a_capability_one_line(tmp_path: Path) -> None:
    project = Project(root=tmp_path, suites_folder=tmp_path / "suites")
    promoted = {"state": AdapterState.PROMOTED, "capabilities": [ONE]}
    write_adapter(project.adapters.folder, "later", base="b2", **promoted, promoted_on=2)
    write_adapter(project.adapters.folder, "sooner", base="b1", **promoted, promoted_on=1)
    plain = ModelSettings(model="base", base_url="http://127.0.0.1:9/v1")
    both = project.adapters.routed_adapters()
    assert [one.name for one in both] == ["later", "sooner"]
    table = routing_table(plain, both, project.adapters.folder)
    assert [one.name for one in table] == ["later"]


def test_a_merged_adapter_is_right_on_all_that_it_was_trained_for(tmp_path: Path) -> None:
    base, environments = read_model(embedded_model()), Environments()
    project = Project(root=tmp_path, suites_folder=tmp_path / "suites")
    promoted = {"state": AdapterState.PROMOTED, "base": folder_digest(base.path)}
    write_adapter(project.adapters.folder, "merged", capabilities=[ONE, TWO], **promoted)
    [row] = make_router_table(environments, [], project, base)
    assert row.capabilities == (ONE, TWO)
    texts = [one.text for one in make_openings(environments, [row], 2) if one.label == "merged"]
    assert texts == [
        first_customer_message(environments, ONE, 0, Content.HELDOUT),
        first_customer_message(environments, TWO, 1, Content.HELDOUT),
    ]


def test_a_generated_environment_of_the_project_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The embedded model routes its held-out openings, and what the environment started is ended."""
    closed: list[str] = []
    own = Offer(PreconditionVerification, "What it pays", close=lambda: closed.append("parcel_tracing"))
    (tmp_path / "suites").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(generated, "load_module_offers", lambda root, worlds: {"parcel_tracing": own})
    assert main(["eval-router", "parcel_tracing", "-ot2e_openings=2", "--json"]) == 0
    message = json.loads(capsys.readouterr().out)
    assert message["table"] == ["parcel_tracing"]
    assert message["confusion"]["labels"] == ["parcel_tracing", NO_CAPABILITY]
    assert sum(map(sum, message["confusion"]["counts"])) == 4
    assert closed == ["parcel_tracing"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "no adapter of base 'pocket' is promoted, so the router has no table; name capabilities, for",
        ),
        (["precondition"], "unknown environment 'precondition'; did you mean 'precondition_verification'?"),
        ([ONE, "-ot2e_openings=0"], "t2e_openings: '0' is not a whole number of 1 or more"),
        ([ONE, "--base", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["eval-router", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
