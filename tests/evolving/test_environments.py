"""Environments of an evolution: admitted against what decides, and calibrated where nobody has."""

import json
from pathlib import Path

import pytest

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.admission import AdmissionReport, CheckLine
from pytest_trace2evolve.serving.folder import read_model
from pytest_trace2evolve.shipped import embedded_model
from pytest_trace2evolve.workflow.environments.registry import Environments
from pytest_trace2evolve.workflow.evolving import environments as own
from pytest_trace2evolve.workflow.project import Project

NAME = "precondition_verification"


def report(*, passed: bool) -> AdmissionReport:
    told = "order #W1 of task 'held' is in the scenario of seed 3"
    lines = (CheckLine(check="same seed", passed=True, detail="yes"),)
    lines += (CheckLine(check="held-out content", passed=passed, detail=told),)
    return AdmissionReport(capability=NAME, digests={1: "d"}, seeds=60, seconds=1.0, checks=lines)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "suites").mkdir()
    return Project(root=tmp_path, suites_folder=tmp_path / "suites")


def test_nothing_is_trained_that_shares_content_with_what_decides(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "admit", lambda *given, **others: report(passed=False))
    told = (
        rf"^environment '{NAME}' is not admitted, and nothing is trained in it: held-out content: order "
        rf"#W1 of task 'held' is in the scenario of seed 3; see trace2evolve environment check {NAME}$"
    )
    with pytest.raises(ConfigError, match=told):
        own.ready(Environments(), [NAME], read_model(embedded_model()), "", project)


def test_held_out_tasks_of_the_project_are_looked_for(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def admit(*given: object, **others: object) -> AdmissionReport:
        asked.append(others["held_out"])
        return report(passed=True)

    monkeypatch.setattr(own, "admit", admit)
    monkeypatch.setattr(own, "held_out_of", lambda found: [f"a task of {found.root.name}"])
    found, played = own.ready(Environments(), [NAME], read_model(embedded_model()), "", project)
    assert asked == [[f"a task of {project.root.name}"]]
    assert [(one.name, one.difficulty, one.mean) for one in found] == [(NAME, 1, None)]
    assert played == 0, "the embedded model was calibrated before"


def test_another_base_is_calibrated_once(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import shutil

    other = tmp_path / "other"
    shutil.copytree(embedded_model(), other)
    settings = json.loads((other / "generation_config.json").read_text())
    (other / "generation_config.json").write_text(json.dumps({**settings, "max_new_tokens": 40}))
    monkeypatch.setattr(own, "admit", lambda *given, **others: report(passed=True))
    monkeypatch.setattr(own, "CALIBRATION", (2, 2))
    heard: list[tuple[str, int, int]] = []
    [first], played = own.ready(
        Environments(), [NAME], read_model(other), "", project, told=lambda *line: heard.append(line)
    )
    assert played >= 4
    assert heard[-1] == (NAME, 4, 4)
    assert first.mean is not None
    if first.fits:
        [again], none = own.ready(Environments(), [NAME], read_model(other), "", project)
        assert (again, none) == (first, 0)
