"""`python -m research.trace`: its errors in one line, and what it prints and writes."""

import json
import sys
from pathlib import Path

import pytest

from research.common import locked
from research.trace import run
from research.trace.__main__ import main
from research.trace.plan import ARMS
from research.trace.results import Results
from tests.research.trace.sample import OPTIONS, PLAN, fill


@pytest.fixture(autouse=True)
def _any_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PACKAGES", {"matplotlib": "plot"})


def error_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a command that fails."""
    assert main([*map(str, arguments)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line.removeprefix("python -m research.trace: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--capability", "precondition_verificaton", "tool_calling_precision"),
            "experiment: unknown environment 'precondition_verificaton'; did you mean 'precondition_",
        ),
        (
            ("--capability", "precondition_verification"),
            "experiment: two different capabilities or more are required, not precondition_verification: one",
        ),
        (("--control", "addition"), "experiment: unknown environment 'addition'; "),
        (
            ("--control", "tool_calling_precision"),
            "experiment: the control 'tool_calling_precision' is among the selected capabilities",
        ),
        (("--rollouts", 100), "experiment: 100 rollouts cannot be divided equally: 3 adapters, 4 parts each"),
        (("--rollouts", 0), "--rollouts 0: must be 1 or more"),
        (("--seeds", 0), "--seeds 0: must be 1 or more"),
        (("--tasks", 1), "--tasks 1: must be 2 or more"),
        (("--parallel", 0), "--parallel 0: must be 1 or more"),
    ],
)
def test_wrong_options_are_rejected(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    assert error_of(capsys, *arguments, "--out", tmp_path).startswith(message)


@pytest.mark.parametrize(("package", "extra"), [("gepa", "experiment"), ("trl", "train")])
def test_a_missing_package_is_named_with_its_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    monkeypatch.setattr(run, "PACKAGES", {package: extra})
    monkeypatch.setitem(sys.modules, package, None)
    message = f"'{package}' is not installed; run: pip install 'pytest-trace2evolve[{extra}]'"
    assert error_of(capsys) == message


def test_a_finished_experiment_is_reported_and_not_made_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    fill(out)
    assert main([*OPTIONS, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert "oracle-routed" in printed.out
    assert printed.out.splitlines()[-1] == str(out / "report.md")
    assert printed.err.startswith("arm ")
    assert printed.err.rstrip().endswith("Control: multi_step_task_completion.")
    files = {path: path.read_bytes() for path in out.iterdir() if path.is_file() and path.name != ".lock"}
    assert {path.name for path in files} == {
        "plan.json",
        "results.json",
        "report.md",
        "rollouts.svg",
        "adapters.svg",
    }
    assert str(tmp_path) not in (out / "report.md").read_text()
    assert main([*OPTIONS, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [arm["name"] for arm in found["arms"]] == list(ARMS)
    assert files == {path: path.read_bytes() for path in files}, "equal results give equal files"


def test_all_seeds_of_a_folder_are_reported_with_earlier_results(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, results: Results
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    fill(out)
    earlier = results.model_copy(update={"plan": PLAN.model_copy(update={"seeds": 1})})
    (out / "results.json").write_text(earlier.model_dump_json())
    assert main([*OPTIONS, "--out", str(out), "--seeds", "1"]) == 2
    assert f"--seeds 1: {out} holds 2, and results of some would" in capsys.readouterr().err
    assert main([*OPTIONS, "--out", str(out)]) == 0
    report = (out / "report.md").read_text()
    assert report.startswith("2 seeds, ")
    assert "Earlier reports covered 1 seed; the number of 2 seeds was chosen" in report


def test_another_process_in_the_folder_is_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fill(out)
    before = (out / "plan.json").read_bytes()
    with locked(out, "unused"):
        assert main([*OPTIONS, "--out", str(out), "--seeds", "3"]) == 2
    message = f"{out}: another process makes this experiment; wait for it to end, or give another --out"
    assert capsys.readouterr().err.splitlines()[-1] == f"python -m research.trace: {message}"
    assert (out / "plan.json").read_bytes() == before
