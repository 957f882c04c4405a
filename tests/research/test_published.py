"""The evidence of published runs: complete, without messages, as our scorer makes it, and what it decides."""

import json
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.session.check import check_baselines
from pytest_trace2evolve.worlds.registry import Worlds
from research import published
from research.common import REPOSITORY

PROMOTED = ("telecom-solo-gpt-4.1", "telecom-solo-gpt-4.1-sft")
DISCARDED = ("retail-gpt-4.1-mini-base", "retail-gpt-4.1-mini-policy-v2")
NAMES = tuple(published.SOURCES)


def sides(pair: tuple[str, str]) -> list[str]:
    """Both files as a user in the repository's folder names them."""
    return [published.published_path(name).relative_to(REPOSITORY).as_posix() for name in pair]


@pytest.mark.parametrize(
    ("pair", "status", "decision", "rewards"),
    [
        (PROMOTED, 0, "promote", (0.500, 0.850)),
        (DISCARDED, 1, "discard", (0.579, 0.640)),
        (PROMOTED[::-1], 1, "discard", (0.850, 0.500)),
    ],
)
def test_published_runs_are_compared_without_anything_else(
    pair: tuple[str, str],
    status: int,
    decision: str,
    rewards: tuple[float, float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert main(["compare", *sides(pair), "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == decision
    assert main(["compare", *sides(pair)]) == status
    assert f"{rewards[0]:.3f} → {rewards[1]:.3f}".replace("0.", ".") in capsys.readouterr().out


def test_the_reason_of_the_discard_is_the_one_that_the_page_gives(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    main(["compare", *sides(DISCARDED)])
    assert "authentication 0 → 16 of 114 simulations" in capsys.readouterr().out


def test_the_page_names_every_file_and_its_source() -> None:
    page = published.PAGE.read_text(encoding="utf-8")
    assert published.render_page(page) == page, "run: python -m research.published FOLDER"
    assert sorted(path.name for path in published.FOLDER.iterdir()) == sorted(
        f"{name}.json" for name in NAMES
    )
    for first, second in (PROMOTED, DISCARDED):
        assert f"    trace2evolve compare published/{first} published/{second}\n" in page


@pytest.mark.parametrize("name", NAMES)
def test_published_evidence_holds_no_messages(name: str) -> None:
    record = json.loads(published.published_path(name).read_text(encoding="utf-8"))
    for simulation in record["simulations"]:
        assert simulation.keys() <= SimulationEvidence.model_fields.keys()
        texts = [value for value in simulation.values() if isinstance(value, str)]
        assert max(map(len, texts)) < 300
        assert simulation.get("note", "ended early: ").startswith("ended early: ")


@pytest.mark.parametrize("name", NAMES)
def test_published_evidence_is_what_the_scorer_makes_today(name: str, recorded: Path, worlds: Worlds) -> None:
    assert read_evidence(published.published_path(name)) == published.score_run(recorded, name, worlds)


def test_check_reads_published_evidence_as_no_suites_baseline() -> None:
    project = Project(REPOSITORY, REPOSITORY / "suites")
    assert [finding for finding in check_baselines(project) if finding.path.parent == published.FOLDER] == []


def test_check_names_published_evidence_that_was_edited(tmp_path: Path) -> None:
    (tmp_path / "suites").mkdir()
    text = published.published_path(PROMOTED[0]).read_text(encoding="utf-8")
    path = tmp_path / "baselines" / "published" / "run.json"
    path.parent.mkdir(parents=True)
    path.write_text(text.replace('"reward":0.0', '"reward":1.0', 1), encoding="utf-8")
    (finding,) = check_baselines(Project(tmp_path, tmp_path / "suites"))
    assert finding.path == path
    assert "was edited" in finding.text
    path.write_text(text, encoding="utf-8")
    assert [*check_baselines(Project(tmp_path, tmp_path / "suites"))] == []
