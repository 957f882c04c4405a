"""`python -m research.trace`: what it refuses, in one line, and what it says and writes."""

import json
from functools import partial
from pathlib import Path

import pytest

from pytest_trace2evolve.report.tables import console
from pytest_trace2evolve.utils import optional as _optional
from pytest_trace2evolve.utils.files import alone_in
from research.trace import report as experiment
from research.trace import run as course
from research.trace.__main__ import main
from research.trace.arms import ARMS, label_of
from research.trace.plan import POINTS, Plan
from research.trace.results import Results, earlier_seeds
from tests.experiments.made import PLAN, fill, results


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(course, "EXTRAS", ())  # what is installed here does not matter


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a command that is refused."""
    assert main([*map(str, arguments)]) == 2
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
            "experiment: two different capabilities or more are wanted, not precondition_verification: one",
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
    monkeypatch.setattr("pytest_trace2evolve.utils.resources.embedded_model", lambda: tmp_path)
    monkeypatch.setattr(course, "folder_digest", lambda folder: "")
    assert main(["--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "oracle-routed" in told.out
    assert told.out.splitlines()[-1] == str(out / "report.md")
    assert told.err.startswith("arm ")
    assert told.err.splitlines()[-2].endswith("Control: multi_step_task_completion.")
    assert {one.name for one in out.iterdir() if one.is_file()} == {
        "plan.json",
        "results.json",
        "report.md",
        "rollouts.svg",
        "adapters.svg",
    }
    first = {one: one.read_bytes() for one in out.iterdir() if one.is_file()}
    assert main(["--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["arms"]] == list(ARMS)
    assert first == {one: one.read_bytes() for one in first}  # equal results give equal files


def test_a_folder_is_told_with_all_its_seeds_and_earlier_looks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    fill(out)
    one = PLAN.model_copy(update={"seeds": 1})
    earlier = results(tmp_path / "other").model_copy(update={"plan": one})
    (out / "results.json").write_text(earlier.model_dump_json())
    monkeypatch.setattr(course, "made_plan", lambda **given: one)  # whatever is the default
    monkeypatch.setattr("pytest_trace2evolve.utils.resources.embedded_model", lambda: tmp_path)
    monkeypatch.setattr(course, "folder_digest", lambda folder: "")
    assert main(["--out", str(out), "--seeds", "1"]) == 2
    assert f"--seeds 1: {out} holds 2, and results of some would" in capsys.readouterr().err
    assert main(["--out", str(out)]) == 0
    report = (out / "report.md").read_text()
    assert report.startswith("2 seeds, ")
    assert "Results were told before, of 1 seed: whoever chose to have 2 had seen them." in report


def test_the_report_says_what_a_reader_must_know(tmp_path: Path) -> None:
    text = experiment.results_markdown(results(tmp_path))
    for arm in set(ARMS) - {"single-whole"}:
        assert f"| `{arm}` |" in text
    assert text.count("| `single-whole (×2)` |") == 4 + len((*POINTS, 1.0))  # nowhere without its factor
    assert "| `single-whole` |" not in text
    assert "| `single-whole (×2)` | 64 |" in text
    assert experiment.METHOD in text
    assert text.startswith("2 seeds, ")
    assert "were told before" not in text
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


def test_a_narrow_terminal_gets_whole_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = results(tmp_path)
    for width in (80, 100, 120, 200):
        monkeypatch.setattr(experiment, "terminal", partial(console, width=width, colour=False))
        table = experiment.results_text(found).partition("The primary")[0]
        assert "…" not in table
        assert max(map(len, table.splitlines())) <= width
        for arm in found.arms:
            assert experiment.percent(arm.rewards.two).partition(" (")[0] in table
    assert experiment.percent(found.arms[1].rewards.two) in table, "with room, with intervals"
    monkeypatch.setattr(experiment, "terminal", partial(console, width=80, colour=False))
    assert experiment.NARROW in experiment.results_text(found).replace("\n", " ")


def test_one_seed_says_nothing_of_seeds(tmp_path: Path) -> None:
    one = PLAN.model_copy(update={"seeds": 1})
    text = experiment.results_markdown(results(tmp_path).model_copy(update={"plan": one}))
    assert text.startswith("1 seed, ")
    assert experiment.METHOD_OF_ONE in text
    assert experiment.METHOD not in text


def test_looks_before_more_seeds_are_told(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    assert earlier_seeds(file, 2) == ()
    found = results(tmp_path / "out")
    for plan, earlier in ((1, ()), (2, (1,)), (2, (1,)), (3, (1, 2))):
        assert earlier_seeds(file, plan) == earlier
        told = {"plan": PLAN.model_copy(update={"seeds": plan}), "earlier": earlier}
        file.write_text(found.model_copy(update=told).model_dump_json())
    text = experiment.results_markdown(Results.model_validate_json(file.read_text()))
    assert "Results were told before, of 1 seed; of 2 seeds: whoever chose to have 3 had seen them." in text
    file.write_text("{")
    assert earlier_seeds(file, 2) == ()


def test_another_process_in_the_folder_is_told_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    fill(out)
    before = (out / "plan.json").read_bytes()
    monkeypatch.setattr(course, "made_plan", lambda **given: PLAN.model_copy(update={"seeds": 3}))
    monkeypatch.setattr(course, "folder_digest", lambda folder: "")
    with alone_in(out):
        assert main(["--out", str(out)]) == 2
    told = f"{out}: another process makes this experiment; wait for it to end, or give another --out"
    assert capsys.readouterr().err.splitlines()[-1] == f"trace2evolve: {told}"
    assert (out / "plan.json").read_bytes() == before
