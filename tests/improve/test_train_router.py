"""`trace2evolve train --router`: the file it writes, what it prints, and what it refuses."""

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.agents.probe import PROBE_FILE, read_probe
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.environments import generated
from pytest_trace2evolve.environments.generators.precondition import PreconditionVerification
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.improve import routing
from pytest_trace2evolve.improve.routing import accuracy, make_openings
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import NO_CAPABILITY, AdapterState, ConfusionMatrix
from pytest_trace2evolve.records.protocols import Offer
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.report.improvement import routing_text
from pytest_trace2evolve.serving.folder import folder_digest
from pytest_trace2evolve.session.candidate_models import _capability_owners
from pytest_trace2evolve.utils.resources import embedded_model
from tests.adapter_folders import write_adapter

ONE, TWO = "precondition_verification", "tool_calling_precision"


def test_openings_have_each_label_equally_often_and_held_out_ones_are_others() -> None:
    environments = Environments()
    held_out = list(make_openings(environments, 5, Content.HELDOUT))
    trained = Counter(label for label, _ in make_openings(environments, 5, Content.TRAIN))
    assert trained == dict.fromkeys(environments.names, 6) | {NO_CAPABILITY: 5 + 8}, "cases of 14 families"
    labels = [*environments.names, NO_CAPABILITY]
    assert [label for label, _ in held_out] == [label for label in labels for _ in range(5)]
    assert all(text for _, text in held_out)
    assert not {text for _, text in held_out} & {
        text for _, text in make_openings(environments, 5, Content.TRAIN)
    }


def test_the_confusion_is_printed_with_an_interval_and_chance() -> None:
    found = ConfusionMatrix(labels=(ONE, NO_CAPABILITY), counts=((1, 1), (0, 2)))
    lines = [" ".join(line.split()) for line in routing_text(found).splitlines()]
    assert lines[1:] == [
        f"1 {ONE} 1 1 50%",
        "2 none 0 2 100%",
        "right: 75% of 4 held-out openings (30% … 95%), by chance 50%",
    ]


@given(st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), min_size=2, max_size=2))
def test_an_accuracy_lies_in_its_interval(counts: list[list[int]]) -> None:
    found = accuracy(ConfusionMatrix(labels=("a", "none"), counts=tuple(map(tuple, counts))))
    assert (found is None) == (not any(map(sum, counts)))
    if found is not None:
        assert 0 <= found[1] <= found[0] + 1e-12 <= found[2] + 1e-12 <= 1 + 2e-12


def test_a_capability_belongs_to_the_adapter_of_the_fewest(tmp_path: Path) -> None:
    project = Project(root=tmp_path, suites_folder=tmp_path / "suites")
    folder = project.adapters.folder
    base = ModelSettings(model="base", folder=embedded_model(), weights="b1")
    promoted = {"state": AdapterState.PROMOTED, "base": "b1"}
    write_adapter(folder, ONE, **promoted, promoted_on=1)
    write_adapter(folder, f"{ONE}_2", capabilities=[ONE], **promoted, promoted_on=2)
    write_adapter(folder, "merged", capabilities=[ONE, TWO], **promoted)
    write_adapter(folder, "gone_since", **promoted)
    write_adapter(folder, "foreign", capabilities=["adding"], state=AdapterState.PROMOTED, base="b2")
    write_adapter(folder, "adding", base="b1")
    labels = (ONE, TWO, "adding", NO_CAPABILITY)
    assert _capability_owners(base, project.adapters, labels) == {ONE: f"{ONE}_2", TWO: "merged"}


def test_at_an_endpoint_two_bases_of_one_name_have_one_adapter_for_a_capability(tmp_path: Path) -> None:
    project = Project(root=tmp_path, suites_folder=tmp_path / "suites")
    promoted = {"state": AdapterState.PROMOTED, "capabilities": [ONE]}
    write_adapter(project.adapters.folder, "later", base="b2", **promoted, promoted_on=2)
    write_adapter(project.adapters.folder, "sooner", base="b1", **promoted, promoted_on=1)
    plain = ModelSettings(model="base", base_url="http://127.0.0.1:9/v1")
    assert _capability_owners(plain, project.adapters, (ONE,)) == {ONE: "later"}


def test_a_router_of_the_embedded_model_knows_a_projects_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With few openings it is right far above chance, and what an environment started is ended."""
    closed: list[str] = []
    own = Offer(PreconditionVerification, "What it pays", close=lambda: closed.append("parcel_tracing"))
    (tmp_path / "suites").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(generated, "load_module_offers", lambda root, worlds: {"parcel_tracing": own})
    monkeypatch.setattr(routing, "TRAINING_OPENINGS", 30)
    monkeypatch.setattr(routing, "HELD_OUT_OPENINGS", 6)
    assert main(["train", "--router"]) == 0
    labels = (*Environments().names, "parcel_tracing", NO_CAPABILITY)
    summary = capsys.readouterr().out.splitlines()[-1]
    right, total, chance = map(int, re.findall(r"(\d+)(?:%| of | held)", re.sub(r"\(.*\)", "", summary)))
    assert total == 6 * len(labels)
    assert right > 2 * chance
    assert closed == ["parcel_tracing"]
    path, base = tmp_path / "adapters" / PROBE_FILE, embedded_model()
    assert read_probe("router", path, base, folder_digest(base)).labels == labels


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--base", "nowhere"], "nowhere: no such folder"),
        (["--capability", "refunds"], "--router trains no adapter; leave out --capability and --from-run"),
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
    assert main(["train", "--router", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
