"""Environments of an evolution: admitted against what decides, and calibrated where nobody has."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.environments import admission as required
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import ConfigError, InfrastructureError
from pytest_trace2evolve.improve import environments as own
from pytest_trace2evolve.improve.plan import EvolutionPlan
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.environment import (
    AdmissionReport,
    Calibration,
    CalibrationOutcome,
    CheckLine,
)
from pytest_trace2evolve.records.improvement import TrainingEnvironment
from pytest_trace2evolve.serving.folder import read_model
from pytest_trace2evolve.training.recipe import Recipe
from pytest_trace2evolve.utils.resources import embedded_model
from tests.gate_helpers import write_candidate

NAME = "precondition_verification"


def report(*, passed: bool) -> AdmissionReport:
    told = "order #W1 of task 'held' is in the scenario of seed 3"
    lines = (CheckLine(check="same seed", passed=True, detail="yes"),)
    lines += (CheckLine(check="held-out content", passed=passed, detail=told),)
    return AdmissionReport(capability=NAME, digests={1: "d"}, seeds=60, seconds=1.0, checks=lines)


def prepare(
    project: Project,
    names: Sequence[str],
    base: Path | None = None,
    heard: Callable[[str], object] = print,
    played: Callable[[int], object] = print,
) -> list[TrainingEnvironment]:
    plan = EvolutionPlan("v6", None, read_model(base or embedded_model()), Recipe(scenarios=8), "pocket")
    return own.prepare_environments(
        plan, Environments(), names, project, on_progress=heard, on_calibrated=played
    )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "suites").mkdir()
    (tmp_path / "candidates").mkdir()
    write_candidate(tmp_path / "candidates", "v6", text="Be kind.")
    return Project(root=tmp_path, suites_folder=tmp_path / "suites")


def test_nothing_is_trained_that_shares_content_with_what_decides(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(required, "admit", lambda *given, **others: report(passed=False))
    told = (
        rf"^environment '{NAME}' is not admitted, so it cannot be used for training: held-out content: order "
        rf"#W1 of task 'held' is in the scenario of seed 3; see trace2evolve environment check {NAME}$"
    )
    with pytest.raises(ConfigError, match=told):
        prepare(project, [NAME])


def test_nor_is_it_by_the_command_that_trains(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.root)
    monkeypatch.setattr(required, "admit", lambda *given, **others: report(passed=False))
    assert main(["train", "--capability", NAME]) == 2
    told = (
        f"trace2evolve: environment '{NAME}' is not admitted, so it cannot be used for training: held-out "
        "content"
    )
    assert capsys.readouterr().err.startswith(told)
    assert not (project.root / "adapters").exists()


def test_held_out_tasks_of_the_project_are_looked_for(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    firsts: list[object] = []

    def admit(*given: object, **others: object) -> AdmissionReport:
        asked.append(others["held_out_identifiers"])
        firsts.append(others["first_seed"])
        return report(passed=True)

    monkeypatch.setattr(required, "admit", admit)
    monkeypatch.setattr(
        required, "collect_held_out_identifiers", lambda found: [f"a task of {found.root.name}"]
    )
    played: list[int] = []
    found = prepare(project, [NAME], played=played.append)
    assert asked == [[f"a task of {project.root.name}"]]
    assert [(one.name, one.difficulty, one.mean) for one in found] == [(NAME, 1, None)]
    assert firsts == [100_000], "a recipe of few scenarios draws none"
    assert played == [], "the embedded model was calibrated before"


@pytest.mark.usefixtures("forked_servers")
def test_another_base_is_calibrated_once(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each calibration is stored, and counted, before the next can fail."""
    other = tmp_path / "other"
    shutil.copytree(embedded_model(), other)
    settings = json.loads((other / "generation_config.json").read_text())
    (other / "generation_config.json").write_text(json.dumps({**settings, "max_new_tokens": 40}))
    monkeypatch.setattr(required, "admit", lambda *given, **others: report(passed=True))
    monkeypatch.setattr(own, "CALIBRATION_SIZE", (2, 2))
    heard: list[str] = []
    played: list[int] = []
    measured = own.calibrate

    async def calibrate(environments: Any, name: str, *given: Any, **others: Any) -> Calibration:
        if name != NAME:
            raise InfrastructureError("the server is gone")
        found = await measured(environments, name, *given, **others)
        return found.model_copy(update={"outcome": CalibrationOutcome.FITS})

    monkeypatch.setattr(own, "calibrate", calibrate)

    def ready(*names: str) -> list[TrainingEnvironment]:
        return prepare(project, names, base=other, heard=heard.append, played=played.append)

    with pytest.raises(InfrastructureError):
        ready(NAME, "account_address_inference")
    assert len(played) == 1
    assert played[0] >= 4
    assert heard[-1] == f"{NAME} 4/4"
    [first] = ready(NAME)
    assert first.mean is not None
    assert len(played) == 1, "what was calibrated is not calibrated again"
