"""`trace2evolve experiment trace`: what it refuses, in one line, and what it says and writes."""

import json
from pathlib import Path

import pytest

from pytest_trace2evolve import _optional
from pytest_trace2evolve.cli import main
from pytest_trace2evolve.report import experiment
from pytest_trace2evolve.workflow.experiments import course
from pytest_trace2evolve.workflow.experiments.arms import ARMS, label_of
from pytest_trace2evolve.workflow.experiments.plan import POINTS, Plan
from tests.experiments.made import PLAN, fill, results


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(course, "EXTRAS", ())  # what is installed here does not matter


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a command that is refused."""
    assert main(["experiment", "trace", *map(str, arguments)]) == 2
    told = capsys.readouterr().err.strip()
    assert "\n" not in told
    return told.removeprefix("trace2evolve: ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("--capability", "precondition_verificaton", "tool_calling_precision"),
            "experiment: unknown environment 'precondition_verificaton'; did you mean 'precondition_",
        ),
        (
            ("--capability", "precondition_verification"),
            "experiment: two different capabilities or more are wanted: one alone needs no router",
        ),
        (("--control", "addition"), "experiment: unknown environment 'addition'; "),
        (
            ("--control", "tool_calling_precision"),
            "experiment: the control 'tool_calling_precision' is among the selected capabilities",
        ),
        (
            ("--rollouts", 100),
            "experiment: 100 rollouts cannot be shared out equally: 3 adapters, 4 parts each",
        ),
        (("--rollouts", 0), "--rollouts 0: must be 1 or more"),
        (("--seeds", 0), "--seeds 0: must be 1 or more"),
        (("--tasks", 1), "--tasks 1: must be 2 or more"),
        (("--parallel", 0), "--parallel 0: must be 1 or more"),
    ],
)
def test_what_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], told: str
) -> None:
    assert refused(capsys, *arguments).startswith(told)


@pytest.mark.parametrize(("module", "extra"), [("gepa", "experiment"), ("trl", "train")])
def test_a_missing_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, module: str, extra: str
) -> None:
    def absent(wanted: str) -> None:
        raise ModuleNotFoundError(name=wanted)

    monkeypatch.setattr(course, "EXTRAS", ((module, extra),))
    monkeypatch.setattr(_optional, "quiet_import", absent)
    told = f"'{module}' is not installed; run: pip install 'pytest-trace2evolve[{extra}]'"
    assert refused(capsys) == told


def test_the_plan_shows_equal_rollouts_before_anything_begins() -> None:
    text = experiment.plan_text(Plan())
    rows = {line.split()[0]: line.split()[1:6] for line in text.splitlines() if line.split()[0] in ARMS}
    assert set(rows) == set(ARMS)
    assert {row[0] for arm, row in rows.items() if arm not in ("base", "single-whole")} == {"3072"}
    assert rows["single-whole"] == ["(×3)", "3072", "6144", "180", "4800"]
    assert rows["single"] == ["3072", "0", "180", "4800", "the"]
    assert rows["control"][3] == "1600"
    assert rows["direct"][3] == "0"
    assert "Control: multi_step_task_completion." in text


def test_a_finished_experiment_is_told_written_and_not_done_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    fill(out)
    monkeypatch.setattr(course, "made_plan", lambda **given: PLAN)
    monkeypatch.setattr("pytest_trace2evolve.shipped.embedded_model", lambda: tmp_path)
    monkeypatch.setattr(course, "folder_digest", lambda folder: "")
    assert main(["experiment", "trace", "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "oracle-routed" in told.out
    assert told.out.rstrip().endswith("report.md")
    assert {one.name for one in out.iterdir() if one.is_file()} == {
        "plan.json",
        "results.json",
        "report.md",
        "rollouts.svg",
        "adapters.svg",
    }
    first = {one: one.read_bytes() for one in out.iterdir() if one.is_file()}
    assert main(["experiment", "trace", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["arms"]] == list(ARMS)
    assert first == {one: one.read_bytes() for one in first}  # equal results give equal files


def test_the_report_says_what_a_reader_must_know(tmp_path: Path) -> None:
    text = experiment.results_markdown(results(tmp_path))
    for arm in set(ARMS) - {"single-whole"}:
        assert f"| `{arm}` |" in text
    assert text.count("| `single-whole (×2)` |") == 4 + len((*POINTS, 1.0))  # nowhere without its factor
    assert "| `single-whole` |" not in text
    assert "| `single-whole (×2)` | 64 |" in text
    assert experiment.METHOD in text
    assert "the embedded model cannot write prompts" in text
    assert "32 of training the adapters it did not choose" in text
    assert "Right on 4 of 8 tasks of one capability" in text
    assert "each task counts once (every seed alike)" in text
    assert str(tmp_path) not in text


def test_the_report_holds_the_primary_comparison_calibration_and_what_the_control_learnt(
    tmp_path: Path,
) -> None:
    found = results(tmp_path)
    text = experiment.results_markdown(found)
    [merged] = [one.rewards.every for one in found.against if one.arm == "merged"]
    told = (
        "The primary comparison, named beforehand: `routed` less `merged` on all tasks, "
        f"{experiment.points(merged)} points. All others are looks beside it."
    )
    assert told in text
    assert told in experiment.results_text(found).replace("\n", "")
    table = text.partition("### `routed` less each arm, points")[2].partition("###")[0]
    assert [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")] == [
        label_of(PLAN, arm) for arm in ARMS if arm != "routed"
    ]
    assert f"| `merged` | {experiment.points(found.against[2].rewards.one)} |" in table
    assert (
        "took these rollouts: 3200 of `merged`, `single`, `weight-merge`, `routed`, `routed-turns`, "
        "`oracle-routed`, `single-whole`; 1600 of `control`; none of `base`, `direct`, `gepa`."
    ) in text
    assert (
        f"in its own environment, `multi_step_task_completion`, {experiment.share(found.control.after)} on "
        f"held-out scenarios, the base {experiment.share(found.control.before)}; change "
        f"{experiment.points(found.control.change)} points."
    ) in text


def test_a_seed_that_was_routed_otherwise_is_told(tmp_path: Path) -> None:
    found = results(tmp_path).model_copy(update={"rerouted": 3})
    played = found.plan.tasks * len(found.plan.cells)
    told = f"each task counts once (3 of all {played} tasks otherwise in another seed)"
    assert told in experiment.results_markdown(found)
