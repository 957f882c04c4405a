"""The `trace2evolve` command: score, compare, lock."""

import json
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from tests.plugin.conftest import DeskProject

TELECOM = ("telecom-gpt-4.1.json.gz", "telecom-gpt-4.1-sft.json.gz")


STRICT = ("--policy", "strict")


@pytest.fixture
def desk_runs(project: DeskProject, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Run folders of v1 and v2."""
    monkeypatch.chdir(project.root)
    for name in ("v1", "v2"):
        project.run(f"--candidate={name}", f"--t2e-run-folder={name}", "--t2e-gate=off")
    return {name: project.root / name for name in ("v1", "v2")}


def test_score_prints_the_documented_json(
    desk_runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["score", str(desk_runs["v1"]), "--json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert set(file) == {"path", "domain", "simulations", "metrics"}
    assert file["domain"] == "desk"
    simulation = next(item for item in file["simulations"] if item["task_id"] == "close")
    assert simulation["reward"] == simulation["recorded_reward"] == 1.0
    assert simulation["status"] == "measured"
    assert simulation["components"] == {"DB": 1.0, "ENV_ASSERTION": 1.0, "COMMUNICATE": 1.0, "ACTION": 1.0}
    assert file["metrics"]["agreement"] == 1.0


def test_score_prints_a_row_a_file(desk_runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["score", *map(str, desk_runs.values())]) == 0
    heading, first, detail, second, _ = lines = capsys.readouterr().out.splitlines()
    assert heading.split()[:5] == ["file", "runs", "recorded", "reward", "agreement"]
    assert first.split()[:5] == ["v1", "7", "0.714", "0.714", "100.0%"]
    assert detail.split() == ["desk;", "pass^k", "0.714;", "user_stop", "7"]
    assert second.split()[0] == "v2"
    assert max(map(len, lines)) <= 80


def test_compare_exits_by_its_verdict(desk_runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["compare", *STRICT, str(desk_runs["v1"]), str(desk_runs["v2"])]) == 1
    out = capsys.readouterr().out
    assert "\nDISCARD: v2 fails on " in out
    figures = "policy strict, goal improve, development evidence, 7 tasks"
    assert figures not in out
    assert max(map(len, out.splitlines())) <= 80
    assert main(["compare", *STRICT, str(desk_runs["v1"]), str(desk_runs["v2"]), "-v"]) == 1
    assert figures in capsys.readouterr().out
    assert main(["compare", *STRICT, str(desk_runs["v1"]), str(desk_runs["v1"]), "--goal", "hold"]) == 0


def test_compare_prints_the_documented_json(
    desk_runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    main(["compare", *STRICT, str(desk_runs["v1"]), str(desk_runs["v2"]), "--json"])
    record = json.loads(capsys.readouterr().out)
    assert (record["verdict"], record["policy"], record["goal"]) == ("discard", "strict", "improve")
    assert record["label"] == "development"
    assert record["tasks"]["fixed"] == ["look"]
    assert record["tasks"]["broken"] == ["note"]
    keys = {"id", "status", "estimate", "low", "high", "threshold", "detail"}
    assert all(keys <= set(check) for check in record["checks"])


def test_compare_takes_several_files_a_side(
    desk_runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = str(desk_runs["v1"]), str(desk_runs["v2"])
    capsys.readouterr()
    assert main(["compare", *STRICT, old, f"{new},{old}"]) in (0, 1)
    out = capsys.readouterr().out
    assert "note: v2, v1: trials renumbered 0 to 1" in out
    assert main(["compare", f"{old},{old}", new]) == 2
    assert "occurs twice in" in capsys.readouterr().err


def test_real_runs_compare_as_published(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (str(recorded / name) for name in TELECOM)
    assert main(["compare", *STRICT, old, new, "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert (len(record["tasks"]["fixed"]), len(record["tasks"]["broken"])) == (12, 0)
    assert [check["id"] for check in record["checks"] if check["status"] == "fail"] == ["no_max_steps"]


def test_runs_under_other_guidelines_are_not_compared(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [str(recorded / f"airline-grok-3-repeats-{side}.json.gz") for side in "ab"]
    assert main(["compare", *sides]) == 2
    assert "cannot be compared: user guidelines " in capsys.readouterr().err
