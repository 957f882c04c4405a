"""What a run's failures lack: selected capabilities, and one clear line where there is nothing to learn."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_trace2evolve import cli
from pytest_trace2evolve.cli import main
from pytest_trace2evolve.diagnose import diagnosis as missing
from pytest_trace2evolve.diagnose.diagnosis import missing_of
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.capability import Assessment, CapabilityReport
from pytest_trace2evolve.training.train import orders_of

SUPPORT = ("trace2evolve", "support")


def assessment(name: str, *, selected: bool) -> Assessment:
    return Assessment(
        name=name,
        description="What it is.",
        coverage=0.4,
        error_rate_failed=0.8,
        error_rate_passed=0.2,
        delta=0.6,
        delta_low=0.3,
        delta_high=0.8,
        runs_passed=1,
        selected=selected,
        reason="" if selected else "coverage is below 0.10",
    )


@pytest.fixture
def own(tmp_path: Path) -> Project:
    return Project(root=tmp_path, suites_folder=tmp_path / "suites")


def found(monkeypatch: pytest.MonkeyPatch, failed: int, *assessments: Assessment) -> None:
    gathered = SimpleNamespace(conducts=(), splits={}, ran_in=(SUPPORT,))
    told = CapabilityReport(
        labeller="rules", runs=1, traces=9, failed=failed, capabilities=assessments, labels=(), taxonomy=()
    )
    monkeypatch.setattr(missing, "gather", lambda *given, **others: gathered)
    monkeypatch.setattr(missing, "by_rules", lambda gathered: None)
    monkeypatch.setattr(missing, "report", lambda gathered, labelled: told)


def test_selected_capabilities_are_missing(own: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, 5, assessment("reading", selected=True), assessment("adding", selected=False))
    learnt = missing_of(own, "r1", own.root, Environments())
    assert [(one.name, one.delta) for one in learnt.missing] == [("reading", 0.6)]
    assert (learnt.failed, learnt.traces) == (5, 9)


def test_what_a_run_lacks_is_what_its_adapters_are_trained_for(
    own: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One each, by Δ, for what has an environment; whose failures named it goes into the manifest."""
    names = ("tool_calling_precision", "reading", "precondition_verification")
    found(monkeypatch, 5, *(assessment(name, selected=True) for name in names))
    asked = ["train", "--from-run", "r1", "--steps", "3"]
    options = cli._parser().parse_args(asked)
    task = SimpleNamespace(id="t")
    gathered = SimpleNamespace(
        conducts=[SimpleNamespace(run="r1", task=task)] * 2,
        splits={"t": [("desk", "discovery")], "sealed": [("desk", "heldout")]},
        ran_in=(SUPPORT,),
    )
    monkeypatch.setattr(missing, "gather", lambda *given, **others: gathered)
    orders = orders_of(Environments(), options, own, own.root)
    assert [(one.name, one.capabilities) for one in orders] == [
        (name, [name]) for name in names if name != "reading"
    ]
    for one in orders:
        assert (one.evidence, one.informed_by) == (("r1",), ("desk::discovery",))
        assert one.recipe.steps == 3
        assert one.out == own.root / "adapters" / one.name


@pytest.mark.parametrize(
    ("failed", "told"),
    [
        (0, r"^run r1: none of its 9 traces that may be learnt from failed: there is nothing to learn$"),
        (5, r"^run r1: 5 of 9 traces failed, and no capability is missing in them by contrast; see trace2"),
    ],
)
def test_where_nothing_is_to_be_learnt_it_says_so(
    own: Project, monkeypatch: pytest.MonkeyPatch, failed: int, told: str
) -> None:
    found(monkeypatch, failed, assessment("adding", selected=False))
    with pytest.raises(ConfigError, match=told):
        missing_of(own, "r1", own.root, Environments())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "name what is trained: either --capability NAME…, or --from-run RUN"),
        (
            ["--capability", "precondition_verification", "--from-run", "r1"],
            "name what is trained: either --capability NAME…, or --from-run RUN",
        ),
        (["--from-run", "r1"], "--from-run r1: no project here says which tasks decide; give --root"),
    ],
)
def test_either_capabilities_or_a_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments]) == 2
    assert capsys.readouterr().err == f"trace2evolve: {told}\n"


def test_a_run_that_is_empty_or_unknown_is_one_line(
    own: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own.suites_folder.mkdir()
    monkeypatch.chdir(own.root)
    (own.root / "empty").mkdir()
    (own.root / "bare").mkdir()
    (own.root / "bare" / "results.json").write_text(json.dumps({"simulations": [], "tasks": []}))
    for command in ("train", "evolve"):
        for name, told in (
            ("nothing", "'nothing' is no path and no run in"),
            ("empty", "empty"),
            ("bare", "bare"),
        ):
            assert main([command, "--from-run", name]) == 2, (command, name)
            error = capsys.readouterr().err.splitlines()
            assert len(error) == 1
            assert error[0].startswith("trace2evolve: ")
            assert told in error[0]
