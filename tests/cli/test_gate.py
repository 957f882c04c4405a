"""The `trace2evolve` command: score, compare, lock."""

import json
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from tests.plugin.conftest import SUITE, DeskProject

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
    simulation = next(one for one in file["simulations"] if one["task_id"] == "close")
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


def test_a_run_scores_the_same_when_it_is_read_back(desk_runs: dict[str, Path]) -> None:
    for folder in desk_runs.values():
        for path in (folder / "simulations").iterdir():
            record = json.loads(path.read_text(encoding="utf-8"))
            assert record["info"]["trace2evolve"]["status"] == "measured"
            assert record["reward_info"]["reward"] in (0.0, 1.0)


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


def test_compare_finds_baselines_by_name(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.root)
    for name in ("v1", "v2"):
        project.run(f"--candidate={name}", f"--t2e-save-baseline={name}", "--t2e-gate=off")
    capsys.readouterr()
    assert main(["compare", *STRICT, "desk/v1", "desk/v2"]) == 1
    assert " trace2evolve: v2 vs v1 " in capsys.readouterr().out
    assert main(["compare", *STRICT, "desk/v1", "desk/v3"]) == 2
    assert "desk/v3" in capsys.readouterr().err


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


def test_compare_can_be_narrowed_to_a_split(
    desk_runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    sides = [str(desk_runs["v1"]), str(desk_runs["v2"])]
    main(["compare", *sides, "--suite", "desk", "--split", "discovery", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert record["tasks"]["compared"] == 3
    assert main(["compare", *sides, "--suite", "desk", "--split", "elsewhere"]) == 2
    assert "suite 'desk' has no split 'elsewhere'; it has heldout, discovery" in capsys.readouterr().err


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


def test_lock_writes_and_checks(desk_runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 0
    Path("suites/desk.toml").write_text(SUITE.replace(', "free"', ""), encoding="utf-8")
    capsys.readouterr()
    assert main(["check"]) == 1
    assert "task 'free' was removed from split 'discovery'" in capsys.readouterr().out
    assert main(["lock"]) == 0
    assert "desk: heldout 4, discovery 2; fake 1.0; " in capsys.readouterr().out
    assert main(["check"]) == 0


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


def test_three_files_of_one_candidate_become_three_trials(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [
        str(recorded / f"retail-gpt-4o-prompt-{side}-trial-{n}.json.gz") for side in "ab" for n in (1, 2, 3)
    ]
    main(["compare", ",".join(files[:3]), ",".join(files[3:])])
    out = capsys.readouterr().out
    assert out.count("trials renumbered 0 to 2") == 2
    assert "left out (2)" in out


def test_trials_of_two_candidates_are_not_calibrated_as_one(
    desk_runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", *map(str, desk_runs.values())]) == 2
    error = capsys.readouterr().err
    assert "cannot form one side: candidate 'v1' and 'v2'" in error
    assert error.count("\n") == 1
