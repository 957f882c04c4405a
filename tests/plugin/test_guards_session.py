"""Guards and goal `no-regression` in whole sessions, over more tasks than the desk has."""

import json
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from tests.plugin.conftest import CONFTEST, DeskProject

NAMES = [f"note-{number}" for number in range(80)]


NOTES = """

class NoteWorld(FakeWorld):
    # The desk with as many copies of task `note` as are wanted.
    fingerprint = "notes 1"

    def tasks(self):
        from fake_world import TASKS
        names = [f"note-{number}" for number in range(80)]
        return {name: TASKS["note"].model_copy(update={"id": name}) for name in names}
"""


def with_splits(project: DeskProject, **splits: list[str]) -> DeskProject:
    """The project over the note world, with a suite of these splits."""
    project.write("conftest.py", CONFTEST.replace('{"fake": FakeWorld}', '{"fake": NoteWorld}') + NOTES)
    lines = [f"{name} = {json.dumps(tasks)}" for name, tasks in splits.items()]
    project.write(
        "suites/desk.toml", "\n".join(['provider = "fake"', 'domain = "desk"', "", "[splits]", *lines])
    )
    assert main(["lock", "--root", str(project.root)]) == 0
    return project


def judged(project: DeskProject, candidate: str, *options: str) -> pytest.RunResult:
    return project.run(f"--candidate={candidate}", "--t2e-baseline=v1", "--t2e-gate=calibrated", *options)


def candidates(project: DeskProject, before: list[str], after: list[str]) -> None:
    """Baseline v1 solves some tasks, candidate v2 others."""
    project.candidate("v1", " ".join(["x", *before]))
    project.candidate("v2", " ".join(["x", *after]), parent="v1")
    project.baseline("v1")


def test_a_guard_that_fell_from_six_of_ten_to_none_is_never_green(project: DeskProject) -> None:
    heldout, transfer = NAMES[:20], NAMES[20:30]
    with_splits(project, heldout=heldout, transfer=transfer)
    candidates(project, transfer[:6], heldout)
    result = judged(project, "v2", "-ot2e_max_reruns=0")
    result.stdout.fnmatch_lines(
        [
            "heldout decides on clean evidence *: PROMOTE",
            "transfer guards against harm: INCONCLUSIVE",
            " [?] harm suspected: reward_drop (p = 0.0156), *; 10 tasks cannot detect a drop of 20 points *",
            "INCONCLUSIVE: v2 is better than v1, but harm on desk · transfer is not ruled out *",
        ]
    )
    result.stdout.no_fnmatch_line("*no harm detected;*")
    assert result.ret == 10
    # Fresh trials confirm regressions, which are weighed on a guard too: they block or discard.
    assert judged(project, "v2").ret == 10
    verdict = json.loads((project.runs[-2] / "verdict.json").read_text())
    assert verdict["verdict"] == "inconclusive"
    (guard,) = [item for item in verdict["suites"]["desk"]["verdicts"] if item["split"] == "transfer"]
    assert (guard["verdict"], guard["guard"]) == ("inconclusive", "harm suspected")


def test_no_regression_discards_what_broke_and_no_baseline_comes_of_it(
    project: DeskProject, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = NAMES[:12]
    with_splits(project, heldout=tasks)
    candidates(project, tasks, tasks[:6])
    assert judged(project, "v2", "--t2e-goal=no-regression").ret == 1
    project.candidate("v3", " ".join(["y", *tasks]), parent="v1")
    assert judged(project, "v3", "--t2e-goal=no-regression").ret == 0
    monkeypatch.chdir(project.root)
    capsys.readouterr()
    assert main(["baseline", "promote", project.runs[-1].name]) != 0
    message = capsys.readouterr().err
    assert "had goal no-regression, which cannot justify a baseline" in message
    assert "run it again with goal improve or hold" in message


def test_stages_do_not_go_with_no_regression(project: DeskProject) -> None:
    result = project.pytester.runpytest_inprocess(
        "--candidate=v1", "--t2e-goal=no-regression", "--t2e-stages=2,4", "--t2e-model=m",
        "--t2e-base-url=http://127.0.0.1:9/v1",
    )  # fmt: skip
    assert result.ret == 4
    result.stderr.fnmatch_lines(
        ["*--t2e-stages cannot be combined with --t2e-goal no-regression*give --t2e-trials 4*"]
    )


@pytest.mark.parametrize(
    ("goal", "after", "status"),
    [("hold", 6, 10), ("no-regression", 0, 1)],
)
def test_compare_takes_the_goal(
    project: DeskProject, capsys: pytest.CaptureFixture[str], goal: str, after: int, status: int
) -> None:
    """Ten tasks of which six pass, and then so many: a fall of all six is never green."""
    tasks = NAMES[:10]
    with_splits(project, heldout=tasks)
    candidates(project, tasks[:6], tasks[:after])
    project.run("--candidate=v2", "--t2e-save-baseline=v2", "--t2e-gate=off")
    sides = [str(Path(project.root, "baselines", "desk", f"{name}.json")) for name in ("v1", "v2")]
    capsys.readouterr()
    assert main(["compare", *sides, "--goal", goal, "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert (found["goal"], found["label"]) == (goal, "development")
    if goal == "no-regression":
        assert found["detectable"] > 0.20
        assert ("no regression detected" in found["reason"]) == (status == 0)
