"""What a session writes to the ledger, and what the ledger does to its labels."""

import shutil

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.evidence.ledger import Ledger, render_entry
from pytest_trace2evolve.records.ledger import Evaluation
from pytest_trace2evolve.records.verdict import Decision, Goal, Label
from tests.plugin.conftest import CONFTEST, DeskProject


def evaluations(project: DeskProject) -> list[Evaluation]:
    """The ledger's evaluations, oldest first; it must be sound."""
    history = Ledger(project.root / "ledger").read()
    assert history.problems == ()
    return [entry for entry in history.entries_by_time if isinstance(entry, Evaluation)]


def frozen(project: DeskProject, name: str, text: str, parent: str, day: str = "2020-01-01") -> None:
    """A candidate that was frozen long ago."""
    front = f"id: {name}\nparent: {parent}\nfrozen_at: {day}"
    project.write(f"candidates/{name}.md", f"---\n{front}\n---\n{text}\n")


def look(project: DeskProject, task: str = "close") -> None:
    """Open a trace of the latest run."""
    assert main(["--root", str(project.root), "show", project.runs[-1].name, task]) == 0


def test_a_whole_run_that_decides_is_written_down(project: DeskProject) -> None:
    project.baseline("v0")
    project.after("--candidate=v1")
    (entry,) = evaluations(project)
    assert (entry.suite, entry.split, entry.run) == ("desk", "heldout", project.runs[-1].name)
    assert (entry.candidate.id, [item.id for item in entry.ancestors]) == ("v1", ["v0"])
    assert (entry.baseline.id, entry.policy, entry.goal) == ("v0", "strict", Goal.IMPROVE)
    assert (entry.decision, entry.label, entry.look) == (Decision.PROMOTE, Label.CLEAN, 1)
    assert (entry.trials, entry.alpha, entry.repeats) == (1, None, None)


def test_candidates_are_counted_and_the_same_claim_repeats(project: DeskProject) -> None:
    project.baseline("v0")
    for name in ("v1", "v2", "v1"):
        project.run(f"--candidate={name}", "--t2e-baseline=v0")
    first, second, third = evaluations(project)
    assert [item.look for item in (first, second, third)] == [1, 2, 1]
    assert [item.repeats for item in (first, second, third)] == [None, None, first.name]
    known = Ledger(project.root / "ledger").read().entries
    left = known[third.parents[0]]
    drawn = known[left.parents[0]]
    assert [(item.kind, item.run) for item in (left, drawn)] == [("traces", third.run), ("draw", third.run)]
    assert drawn.parents == (second.name,)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--candidate=v1", "--collect-only"),
        ("--candidate=v1", "--t2e-gate=off"),
        ("--candidate=v1", "-m", "discovery"),
    ],
)
def test_what_decides_nothing_is_not_written_down(project: DeskProject, arguments: tuple[str, ...]) -> None:
    project.baseline("v0")
    project.baseline("v1")
    project.run(*arguments)
    assert evaluations(project) == []


def test_after_a_look_only_what_was_frozen_before_it_is_clean(project: DeskProject) -> None:
    project.baseline("v0")
    frozen(project, "v0", "", "none")
    project.write("candidates/v0.md", "---\nid: v0\nfrozen_at: 2020-01-01\n---\n")
    frozen(project, "v3", "close note", "v0")
    look(project)
    project.run("--candidate=v3").stdout.fnmatch_lines(["heldout decides on clean evidence*", "PROMOTE: *"])
    project.run("--candidate=v1").stdout.fnmatch_lines(
        [
            "heldout decides (not clean evidence: *):",
            "*traces of desk::heldout were read (task close, *), and candidate v1 is not frozen: *",
            "PROMOTE: *",
        ]
    )
    assert [entry.look for entry in evaluations(project)] == [1, None]


def test_a_damaged_ledger_withholds_a_promotion(project: DeskProject) -> None:
    project.baseline("v0")
    project.after("--candidate=v1")
    project.after("--candidate=v2", "--t2e-baseline=v0")
    first = evaluations(project)[0]
    (project.root / "ledger" / f"{first.name}.json").unlink()
    result = project.run("--candidate=v1")
    assert result.ret == 10
    result.stdout.fnmatch_lines(
        [
            "heldout decides (not clean evidence: *):",
            "INCONCLUSIVE: *",
            " why: *the ledger is damaged (1 problem: see 'trace2evolve ledger'); restore it, *",
        ]
    )


def test_a_ledger_that_cannot_be_written_keeps_the_verdict_from_counting(project: DeskProject) -> None:
    project.baseline("v0")
    shutil.rmtree(project.root / "ledger")
    project.write("ledger", "no folder")
    result = project.run("--candidate=v1")
    assert result.ret == 3
    result.stdout.fnmatch_lines(
        ["NO VERDICT on v1 *", " why:  */ledger: cannot be written (*); make room or allow writing, *"]
    )
    assert not (project.root / "results").exists()


def output_of(
    project: DeskProject, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, list[str], list[str]]:
    """Exit status, output and complaints of `trace2evolve ledger`."""
    capsys.readouterr()
    status = main(["--root", str(project.root), "ledger", *arguments])
    captured = capsys.readouterr()
    return status, captured.out.splitlines(), captured.err.splitlines()


def test_the_story_of_a_split(project: DeskProject, capsys: pytest.CaptureFixture[str]) -> None:
    assert output_of(project, capsys) == (
        0,
        [
            "desk · heldout",
            "  no recorded access to its traces, and no verdict on it",
            "  the next new candidate is test 1: level 0.0228 at alpha 0.05, 0.0304 over all its analyses",
        ],
        [],
    )
    project.baseline("v0")
    project.candidate("v7", "close", parent="v0", informed="desk::heldout::note")
    project.after("--candidate=v1")
    first = project.runs[-1].name
    look(project)
    project.run("--candidate=v2", "--t2e-baseline=v0", "--t2e-goal=hold")
    status, lines, errors = output_of(project, capsys, "--suite", "desk", "--split", "heldout")
    assert (status, errors) == (0, [])
    drawn = [line for line in lines if " was drawn · " in line]
    assert drawn[1].endswith(f"v1 was drawn · by an agent without a store, whole, gated · run {first}")
    assert [line.split(" UTC ")[1].split()[0] for line in drawn] == ["v0", "v1", "v2"]
    lines = [line for line in lines if line not in drawn]
    assert lines[:2] == [
        "desk · heldout",
        "  candidate v7 is informed by this split, according to its front matter",
    ]
    assert [line[2:6] for line in lines[2:5]] == ["20" + line[4:6] for line in lines[2:5]]
    assert lines[2].endswith(
        "v1 against v0: PROMOTE · clean evidence, reward 0.000 → 0.750, 3 fixed, 0 broken, "
        "test 1, analysis 1 (1 trial), policy strict, goal improve"
        f" · run {first}"
    )
    assert lines[3].endswith(f" opened task close, trial 0, of {first}")
    assert (
        "v2 against v0: PROMOTE · development evidence, reward 0.000 → 0.750, 3 fixed, 0 broken, 1 trial, "
        "policy strict, goal hold · run" in lines[4]
    )
    assert lines[5].startswith("  the next new candidate is test 2: level 0.0057 at alpha 0.05, 0.0076 over ")


def test_what_is_wrong_is_named_with_exit_status_1(
    project: DeskProject, capsys: pytest.CaptureFixture[str]
) -> None:
    project.baseline("v0")
    project.after("--candidate=v1")
    (entry,) = evaluations(project)
    path = project.root / "ledger" / f"{entry.name}.json"
    path.write_text(path.read_text(encoding="utf-8").replace("promote", "discard"), encoding="utf-8")
    status, lines, errors = output_of(project, capsys)
    assert status == 1
    assert lines[-1] == "  the ledger is damaged: no candidate is promoted until it is restored or repaired"
    (edited,) = errors
    assert edited.startswith(f"trace2evolve: ledger/{path.name}: was edited or renamed: ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--suite=disk",), "unknown suite 'disk', neither locked nor in the ledger; did you mean 'desk'?"),
        (
            ("--split=held",),
            "unknown split 'held', neither locked nor in the ledger; did you mean 'heldout'?",
        ),
    ],
)
def test_what_the_ledger_does_not_know_is_one_line(
    project: DeskProject, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], line: str
) -> None:
    assert output_of(project, capsys, *arguments) == (2, [], [f"trace2evolve: {line}"])


OUTAGE = (
    CONFTEST
    + """
import os


def down(task, world, candidate, trial):
    if "OUTAGE" in os.environ:
        raise ConnectionError("gone")
    return listed(task, world, candidate, trial)


def pytest_t2e_agents(config):
    return {"listed": down}
"""
)

LENIENT = "--t2e-gate=lenient"


def lenient(project: DeskProject) -> None:
    """A policy that promotes v1 of four tasks, and what it is compared with."""
    project.write("policies/lenient.toml", "alpha = 0.45\n")
    project.baseline("v0")


def test_an_outage_is_no_verdict_that_a_later_run_repeats(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.pytester.makeconftest(OUTAGE)
    lenient(project)
    monkeypatch.setenv("OUTAGE", "1")
    project.run("--candidate=v1", LENIENT).stdout.fnmatch_lines(["*(test 1, level *):", "NO VERDICT on *"])
    monkeypatch.delenv("OUTAGE")
    for _ in range(2):
        project.run("--candidate=v1", LENIENT).stdout.fnmatch_lines(["*(test 1, level *):", "PROMOTE: *"])
    down, first, second = evaluations(project)
    assert (down.alpha, down.look, first.look, second.look) == (None, 1, 1, 1)
    assert (down.repeats, first.repeats, second.repeats) == (None, None, first.name)
    assert first.alpha == second.alpha


SWITCHED = (
    CONFTEST
    + """
from pathlib import Path


def switched(task, world, candidate, trial):
    # A file beside the code says how many trials of each task the agent solves.
    solved = int((Path(__file__).parent / "solved.txt").read_text())
    if trial < solved:
        return listed(task, world, candidate, trial)
    return NopAgent(), GoldUser(task)


switched.fingerprint = "switched 1"


def pytest_t2e_agents(config):
    return {"listed": switched}
"""
)
"""An agent that changes although no code changes."""


def test_the_report_names_the_recorded_and_the_fresh_decision(project: DeskProject) -> None:
    project.write("policies/lenient.toml", "alpha = 0.45\n")
    project.pytester.makeconftest(SWITCHED)
    project.write("solved.txt", "99")
    project.baseline("v0")
    assert project.run("--candidate=v1", LENIENT).ret == 0
    project.write("solved.txt", "0")
    broken = project.run("--candidate=v1", LENIENT)
    assert broken.ret == 10
    broken.stdout.fnmatch_lines(
        [
            "*(test 1, level *):",
            "*recorded: PROMOTE on *; now: INCONCLUSIVE; the worse of the two counts; a run with more than *",
            "INCONCLUSIVE: *",
        ]
    )
    project.write("solved.txt", "99")
    lucky = project.run("--candidate=v1", LENIENT)
    assert lucky.ret == 10
    lucky.stdout.fnmatch_lines(["*recorded: INCONCLUSIVE on *; now: PROMOTE; the worse of the two counts;*"])
    first, second, third = evaluations(project)
    assert [item.repeats for item in (first, second, third)] == [None, first.name, second.name]
    assert [item.decision.value for item in (first, second, third)] == ["promote", *["inconclusive"] * 2]
    assert len({item.alpha for item in (first, second, third)}) == 1
    assert main(["--root", str(project.root), "baseline", "promote", project.runs[-1].name]) == 2


def grown(project: DeskProject, trials: int) -> None:
    """Measure the baseline again, with more trials."""
    arguments = ("--t2e-save-baseline=v0", "--t2e-baseline-mode=update", f"--t2e-trials={trials}")
    project.run("--candidate=v0", *arguments, "--t2e-gate=off").stdout.fnmatch_lines(
        ["*baseline [su]*: baselines/desk/v0.json"]
    )


def test_more_trials_continue_a_test_and_spend_no_other(
    project: DeskProject, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agent solves no more than the first trials of a task, which is enough with two of four."""
    project.pytester.makeconftest(SWITCHED)
    project.write("solved.txt", "0")
    project.baseline("v0")
    for trials in (1, 2, 4):
        if trials > 1:
            grown(project, trials)
        result = project.run("--candidate=v1", "--t2e-gate=calibrated", f"--t2e-trials={trials}")
        assert result.ret == 10
    result.stdout.fnmatch_lines(
        [
            "*(test 1, analysis 3, level 0.0014):",
            "*continues test 1: INCONCLUSIVE on *, with 2 trials a task",
            "INCONCLUSIVE: *",
        ]
    )
    project.run("--candidate=v1", "--t2e-gate=calibrated", "--t2e-trials=4").stdout.fnmatch_lines(
        ["*recorded: INCONCLUSIVE on *; now: INCONCLUSIVE; *a run with more than 4 trials a task continues *"]
    )
    entries = evaluations(project)
    assert [(item.look, item.analysis, item.trials) for item in entries] == [
        (1, 1, 1),
        (1, 2, 2),
        (1, 3, 4),
        (1, 3, 4),
    ]
    assert len({item.baseline.digest for item in entries}) == 3
    assert len({item.baseline_identity for item in entries}) == 1
    assert [item.repeats for item in entries] == [None, None, None, entries[2].name]
    _, lines, _ = output_of(project, capsys)
    lines = [line for line in lines if " was drawn · " not in line]
    assert "test 1, analysis 2 (2 trials), level 0.0057, policy calibrated" in lines[2]
    assert "test 1, analysis 3 (4 trials), level 0.0014, policy calibrated, goal improve, repeats" in lines[4]
    assert lines[5].startswith("  the next new candidate is test 2: ")


def test_a_ledger_from_before_analyses_is_read_and_counted(project: DeskProject) -> None:
    project.baseline("v0")
    project.after("--candidate=v1")
    (entry,) = evaluations(project)
    folder = project.root / "ledger"
    (folder / f"{entry.name}.json").unlink()
    before = entry.model_copy(update={"analysis": None, "baseline_identity": None})
    (folder / f"{before.name}.json").write_text(render_entry(before), encoding="utf-8")
    assert "analysis" not in (folder / f"{before.name}.json").read_text(encoding="utf-8")
    project.run("--candidate=v1").stdout.fnmatch_lines(["*recorded: PROMOTE on *; now: PROMOTE; *"])
    project.after("--candidate=v2", "--t2e-baseline=v0")
    assert [(item.look, item.analysis) for item in evaluations(project)] == [(1, None), (1, None), (2, 1)]
