"""The library's front end: runs, events and comparisons without pytest."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve import Project, compare, evaluate
from pytest_trace2evolve.api import Event, SimulationFinished, StageFinished, TaskDecided, VerdictReached
from pytest_trace2evolve.errors import ConfigError, StorageError
from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.testing import ChatServer
from tests.plugin.conftest import DeskProject, project
from tests.session.test_live import SECRET, SOLVED

__all__ = ["project"]

TASKS = 7


@pytest.fixture
def desk(project: DeskProject, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a saved baseline `v0`, which solves nothing."""
    project.baseline()
    monkeypatch.chdir(project.root)
    return Project.find()


def events_of(desk: Project, **options: Any) -> list[Event]:
    found: list[Event] = []
    evaluate(desk, agent="listed", gate="strict", on_event=found.append, **options)
    return found


def test_a_run_is_judged_and_stored_as_a_session_does(desk: Project, project: DeskProject) -> None:
    run = evaluate(desk, candidate="v1", suites=["desk"], agent="listed", gate="strict", run_folder="ours")
    assert run.decision is Decision.PROMOTE
    project.run("--candidate=v1", "--t2e-run-folder=theirs")
    ours, theirs = (
        json.loads((project.root / name / "verdict.json").read_text()) for name in ("ours", "theirs")
    )
    assert ours["verdict"] == theirs["verdict"] == "promote"
    assert ours["suites"].keys() == theirs["suites"].keys() == {"desk"}
    assert run.plan.run_folder == project.root / "ours"


def test_a_run_is_compared_with_a_saved_baseline_by_name(desk: Project) -> None:
    run = evaluate(desk, candidate="v1", suites=["desk"], agent="listed", gate="strict")
    comparison = compare(baseline="v0", candidate=run, policy="strict")
    assert "PROMOTE" in comparison.summary()
    with pytest.raises(ConfigError, match="'v9' is neither a path, a saved baseline nor a run in"):
        compare(baseline="v9", candidate=run)


@pytest.mark.parametrize("trials", [1, 2])
def test_every_simulation_is_reported_before_its_task_and_the_verdict_comes_last(
    desk: Project, trials: int
) -> None:
    events = events_of(desk, candidate="v1", trials=trials)
    simulations = [event for event in events if isinstance(event, SimulationFinished)]
    decided = [event for event in events if isinstance(event, TaskDecided)]
    assert len(simulations) == TASKS * trials
    assert len(decided) == TASKS
    for event in decided:
        assert event.run is not None
        reported = [item.record for item in simulations[: events.index(event)]]
        assert all(record in reported for record in event.run.records)
    assert isinstance(events[-1], VerdictReached)
    assert events[-1].run.decision is not None


def test_a_staged_run_reports_each_stage(desk: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    (desk.root / "policies").mkdir()
    (desk.root / "policies" / "patient.toml").write_text("futility = 0.0\n")
    events: list[Event] = []
    with ChatServer(SOLVED) as server:
        live: dict[str, Any] = {"model": "m", "base_url": server.base_url}
        evaluate(desk, candidate="v0", trials=2, save_baseline="m", gate="off", **live)
        staged = {"stages": "1,2", "gate": "patient", "on_event": events.append}
        evaluate(desk, candidate="v1", baseline="m", **staged, **live)
    stages = [event for event in events if isinstance(event, StageFinished)]
    assert [event.is_last for event in stages] == [False, True]
    assert [event.run.decision for event in events if isinstance(event, VerdictReached)] == [
        Decision.INCONCLUSIVE
    ]


def test_a_ledger_that_cannot_be_written_is_an_error_of_storage(desk: Project) -> None:
    shutil.rmtree(desk.root / "ledger")
    (desk.root / "ledger").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        evaluate(desk, candidate="v1", agent="listed", gate="strict")


@pytest.mark.parametrize("kind", [SimulationFinished, TaskDecided, VerdictReached])
def test_an_error_of_a_callback_ends_the_run_and_loses_nothing(desk: Project, kind: type[Event]) -> None:
    def fail(event: Event) -> None:
        if isinstance(event, kind):
            raise RuntimeError("the callback failed")

    with pytest.raises(RuntimeError, match="the callback failed"):
        evaluate(desk, candidate="v1", agent="listed", gate="strict", on_event=fail)
    run = evaluate(desk, candidate="v1", agent="listed", gate="strict")
    assert run.decision is Decision.PROMOTE
    assert not any(
        figures.infrastructure_errors for suite in run.outcomes for figures in suite.metrics.values()
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trails": 2}, "unknown option 'trails'; did you mean 'trials'"),
        ({"trials": 0}, "trials: "),
        ({"goal": "win"}, "goal='win': choose from improve, hold, no-regression"),
    ],
)
def test_a_wrong_option_is_one_line(desk: Project, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate(desk, candidate="v1", agent="listed", **options)


@pytest.mark.parametrize("tasks", [[("desk", "clse")], [("dsk", "close")], ["close"], [["desk", 5]]])
def test_an_unknown_task_is_one_line_before_anything_runs(desk: Project, tasks: Any) -> None:
    with pytest.raises(ConfigError, match=r"^tasks: \(.*\) is not a suite of this run") as caught:
        evaluate(desk, candidate="v1", agent="listed", tasks=tasks)
    assert ("; nearest are close, " in str(caught.value)) == (tasks == [("desk", "clse")])
    assert not list(desk.root.glob("ledger/*draw*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"goal": "win"}, "goal='win': choose from improve, hold, no-regression"),
        ({"candidate": []}, "a side of a comparison must name at least one file"),
    ],
)
def test_a_wrong_argument_of_a_comparison_is_one_line(
    desk: Project, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        compare(**{"baseline": "v0", "candidate": "v0", "project": desk, "suite": "desk"} | options)


def test_a_folder_without_suites_is_no_project(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no folder suites/ in .* or its parents"):
        Project.find(tmp_path)
