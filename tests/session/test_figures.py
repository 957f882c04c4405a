"""Figures of recorded results: kept on this machine, and recomputed whenever they may not be right."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.session import evidence_sources, figures
from pytest_trace2evolve.session.evidence_sources import load_evidence
from pytest_trace2evolve.session.trace_checks import plan_trace_checks
from pytest_trace2evolve.worlds.registry import Worlds
from tests.fake_world import FakeWorld
from tests.scoring.test_recorded_verdicts import retail_file, verdict

Count = Callable[[], int]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the figures, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "trace2evolve" / "figures"


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> Count:
    """Returns how many simulations were scored since the last call."""
    original, calls = evidence_sources.score_simulation, []
    monkeypatch.setattr(
        evidence_sources, "score_simulation", lambda *args, **kw: calls.append(1) or original(*args, **kw)
    )

    def count() -> int:
        number = len(calls)
        calls.clear()
        return number

    return count


def results(path: Path, count: int = 4) -> Path:
    return retail_file(path, [[verdict("A", number % 2 == 0)] for number in range(count)])


def test_results_are_scored_once_and_read_alike(
    tmp_path: Path, cache: Path, scored: Count, worlds: Worlds
) -> None:
    path = results(tmp_path / "base.json")
    first = load_evidence([path], worlds)
    assert scored() == 4
    assert load_evidence([path], Worlds()) == first
    assert scored() == 0
    # A copy has the same content under another name, which the notes show.
    (tmp_path / "copy.json").write_bytes(path.read_bytes())
    copied = load_evidence([tmp_path / "copy.json"], worlds)
    assert scored() == 4
    assert copied.sides[0].simulations == first.sides[0].simulations
    assert copied.notes != first.notes


def test_no_provider_needs_to_be_installed(
    tmp_path: Path, cache: Path, worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    providers = figures._PROVIDERS | {"another": "a-distribution-that-is-not-installed"}
    monkeypatch.setattr(figures, "_PROVIDERS", providers)
    figures._scorer_digest.cache_clear()
    assert len(load_evidence([results(tmp_path / "base.json")], worlds).sides[0].simulations) == 4
    figures._scorer_digest.cache_clear()


def as_folder(path: Path) -> Path:
    """The simulations of a results file in a folder, one file each."""
    content = json.loads(path.read_text(encoding="utf-8"))
    folder = path.with_suffix("")
    (folder / "simulations").mkdir(parents=True)
    for simulation in content.pop("simulations"):
        (folder / "simulations" / f"{simulation['id']}.json").write_text(json.dumps(simulation))
    (folder / "results.json").write_text(json.dumps(content))
    return folder


def test_a_folder_is_scored_like_a_file_but_a_trace_at_a_time(
    tmp_path: Path, cache: Path, worlds: Worlds
) -> None:
    path, count, size = results(tmp_path / "base.json", 40), 40, 200_000
    content = json.loads(path.read_text(encoding="utf-8"))
    for number, simulation in enumerate(content["simulations"]):
        simulation["messages"][1]["content"] = f"{number} ".ljust(size, "x")
    path.write_text(json.dumps(content), encoding="utf-8")
    (of_file,) = load_evidence([path], worlds).sides
    folder = as_folder(path)
    tracemalloc.start()
    try:
        (of_folder,) = load_evidence([folder], worlds).sides
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sorted(of_folder.simulations, key=str) == sorted(of_file.simulations, key=str)
    assert peak < count * size / 2


@pytest.mark.parametrize("number", [0, 3])
def test_a_damaged_simulation_of_a_folder_leaves_no_figure(
    number: int, tmp_path: Path, cache: Path, worlds: Worlds
) -> None:
    folder = as_folder(results(tmp_path / "base.json"))
    file = sorted((folder / "simulations").iterdir())[number]
    record = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(record | {"termination_reason": None}), encoding="utf-8")
    with pytest.raises(ResultsError, match=rf"1 of 4 simulations have no termination_reason .*{file.stem}"):
        load_evidence([folder], worlds)
    assert not cache.exists()


def test_a_judge_is_asked_nothing_about_results_that_do_not_count(
    tmp_path: Path, cache: Path, scored: Count, worlds: Worlds
) -> None:
    path = results(tmp_path / "base.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    copy = content["simulations"][0] | {"id": "copy", "trial": 7}
    path.write_text(json.dumps(content | {"simulations": [*content["simulations"], copy]}), encoding="utf-8")
    judge: Any = SimpleNamespace(model="judge")
    with pytest.raises(ResultsError, match="have the same messages"):
        load_evidence([as_folder(path)], worlds, judge=judge)
    assert scored() == 0


def test_changed_results_are_scored_again(tmp_path: Path, cache: Path, scored: Count, worlds: Worlds) -> None:
    path = results(tmp_path / "base.json")
    (before,) = load_evidence([path], worlds).sides
    path.write_text(path.read_text(encoding="utf-8").replace('"met": false', '"met": true'), encoding="utf-8")
    scored()
    (after,) = load_evidence([path], worlds).sides
    assert scored() == 4
    assert [record.reward for record in before.simulations] == [1.0, 0.0, 1.0, 0.0]
    assert [record.reward for record in after.simulations] == [1.0] * 4


@pytest.mark.parametrize("damage", ["edited", "cut", "empty", "of another file", "a folder"])
def test_damaged_figures_are_computed_again(
    damage: str, tmp_path: Path, cache: Path, scored: Count, worlds: Worlds
) -> None:
    path = results(tmp_path / "base.json")
    first = load_evidence([path], worlds)
    (entry,) = cache.iterdir()
    text = entry.read_text(encoding="utf-8")
    if damage == "edited":
        assert '"reward":0.0' in text
        entry.write_text(text.replace('"reward":0.0', '"reward":1.0'), encoding="utf-8")
    elif damage == "of another file":
        load_evidence([results(tmp_path / "other.json", 6)], worlds)
        (other,) = (one for one in cache.iterdir() if one != entry)
        entry.write_bytes(other.read_bytes())
    elif damage == "a folder":
        entry.unlink()
        entry.mkdir()
    else:
        entry.write_text("" if damage == "empty" else text[: len(text) // 2], encoding="utf-8")
    scored()
    assert load_evidence([path], worlds) == first
    assert scored() == 4


def test_figures_of_own_worlds_and_judged_ones_are_not_kept(
    tmp_path: Path, cache: Path, scored: Count
) -> None:
    path = results(tmp_path / "base.json")
    own = Worlds({"inspect_evals": lambda domain: Worlds().open("inspect_evals", domain)})
    for worlds, checks in ((own, None), (Worlds(), plan_trace_checks({}))):
        load_evidence([path], worlds, judge=None, trace_checks=checks)
    assert scored() == 8
    assert len(list(cache.iterdir())) == 1
    load_evidence([path], own)  # figures of the built-in world say nothing about an own one
    assert scored() == 4
    content = json.loads(path.read_text(encoding="utf-8"))
    content["info"]["environment_info"]["domain_name"] = "desk"
    path.write_text(json.dumps(content), encoding="utf-8")
    load_evidence([path], Worlds({"fake": FakeWorld}), "fake")
    assert len(list(cache.iterdir())) == 1


def test_a_folder_that_cannot_be_written_costs_time_only(
    tmp_path: Path, cache: Path, scored: Count, worlds: Worlds
) -> None:
    cache.parent.parent.write_text("a file in the way")
    path = results(tmp_path / "base.json")
    assert load_evidence([path], worlds) == load_evidence([path], worlds)
    assert scored() == 8


def test_the_command_can_score_again(
    tmp_path: Path, cache: Path, scored: Count, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", *(str(results(tmp_path / f"{name}.json", 30)) for name in ("base", "new"))]
    outputs = []
    for arguments, expected in (([], 60), ([], 0), (["--rescore"], 60), ([], 0)):
        main([*command, "--goal", "hold", *arguments])
        outputs.append(capsys.readouterr().out)
        assert scored() == expected
    assert len({*outputs}) == 1
