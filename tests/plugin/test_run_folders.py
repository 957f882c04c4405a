"""Run folders that were edited after their run are not judged, whichever side they are on."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pytest_trace2evolve.evidence.ledger import Ledger, render_entry
from pytest_trace2evolve.records.ledger import DatedEntry, Draw, Evaluation, TracesEntry
from pytest_trace2evolve.records.verdict import Decision, Label
from tests.plugin.conftest import Command, DeskProject

EDITED = (
    "ERROR: *{}: was edited: its traces have digest *, but run * recorded * (20*, ledger entry *); "
    "restore it, or *"
)
UNRECORDED = "note: desk: not recorded in this project's ledger, so an edit cannot be detected: {}"


@pytest.fixture
def drawn(project: DeskProject) -> DeskProject:
    """A project with a baseline of v0, which solves nothing, and a folder of v1's run without a gate."""
    project.baseline("v0")
    project.after("--candidate=v1", "--t2e-gate=off", "--t2e-run-folder=good")
    return project


def replay(project: DeskProject, folder: str, *arguments: str, candidate: str = "v1") -> pytest.RunResult:
    """A session that judges what lies in a folder."""
    return project.pytester.runpytest_inprocess(
        f"--t2e-results={folder}", f"--candidate={candidate}", *arguments
    )


def entries(project: DeskProject) -> list[DatedEntry]:
    """All entries of the ledger, which must be sound."""
    history = Ledger(project.root / "ledger").read()
    assert history.problems == ()
    return history.entries_by_time


def judged(project: DeskProject) -> tuple[Decision, Label]:
    """What the ledger says of the only run that was judged."""
    (entry,) = [item for item in entries(project) if isinstance(item, Evaluation)]
    return entry.decision, entry.label


def retold(folder: Path, donor: Path) -> None:
    """Write what was said in another run into the simulations of a folder."""
    said = {record["task_id"]: record for record in map(read, donor.glob("simulations/*.json"))}
    for path in folder.glob("simulations/*.json"):
        record = read(path)
        path.write_text(json.dumps({**said[record["task_id"]], "id": record["id"]}), encoding="utf-8")


def reward_edited(folder: Path) -> None:
    """Change the recorded reward of a simulation, and nothing else."""
    path = sorted(folder.glob("simulations/*.json"))[0]
    record = read(path)
    record["reward_info"]["reward"] = 1.0 - record["reward_info"]["reward"]
    path.write_text(json.dumps(record), encoding="utf-8")


def shortened(folder: Path) -> None:
    """Take a simulation out of a folder and out of its index."""
    path = sorted(folder.glob("simulations/*.json"))[0]
    header = read(folder / "results.json")
    header["simulation_index"] = [item for item in header["simulation_index"] if item["id"] != path.stem]
    path.unlink()
    (folder / "results.json").write_text(json.dumps(header), encoding="utf-8")


def renamed(folder: Path) -> None:
    """Make a folder one of another run."""
    header = read(folder / "results.json")
    header["info"]["trace2evolve"]["run_id"] = "2026-11-20T100000-v1-abcdef"
    (folder / "results.json").write_text(json.dumps(header), encoding="utf-8")


def read(path: Path) -> dict[str, object] | object:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "place",
    [
        "good",
        "elsewhere/copy",
    ],
)
def test_an_untouched_folder_is_judged_wherever_it_lies(drawn: DeskProject, place: str) -> None:
    if place.startswith("elsewhere"):
        shutil.copytree(drawn.root / "good", drawn.root / place)
        shutil.rmtree(drawn.root / "good")
        for path in (drawn.root / place).rglob("*.json"):  # as a checkout may
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    result = replay(drawn, place)
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*not recorded in this project's ledger*")
    assert judged(drawn) == (Decision.PROMOTE, Label.CLEAN)


def test_a_folder_whose_traces_were_edited_is_not_replayed(drawn: DeskProject) -> None:
    """The attack: what v1 said is written into the traces of a candidate that solves nothing."""
    drawn.candidate("v3", "", parent="v0")
    drawn.run("--candidate=v3", "--t2e-gate=off", "--t2e-run-folder=bad")
    retold(drawn.root / "bad", drawn.root / "good")
    result = replay(drawn, "bad", candidate="v3")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([EDITED.format("bad")])
    for arguments in (["--t2e-gate=off"], ["--t2e-gate=off", "--t2e-save-baseline=v3"]):
        assert replay(drawn, "bad", *arguments, candidate="v3").ret == pytest.ExitCode.USAGE_ERROR
    assert not [item for item in entries(drawn) if isinstance(item, Evaluation)]


@pytest.mark.parametrize("edit", [reward_edited, shortened])
@pytest.mark.parametrize("side", ["replay", "baseline"])
def test_any_edit_of_a_folder_is_named(drawn: DeskProject, edit: Callable[[Path], None], side: str) -> None:
    edit(drawn.root / "good")
    compared = partial(drawn.run, "--candidate=v2", "--t2e-baseline=good")
    result = replay(drawn, "good") if side == "replay" else compared()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([EDITED.format("good")])


def test_the_traces_of_an_unknown_run_are_not_clean_if_the_split_is_drawn_live(drawn: DeskProject) -> None:
    renamed(drawn.root / "good")
    result = replay(drawn, "good")
    assert result.ret == 0
    result.stdout.fnmatch_lines_random(
        [
            "   the ledger names draws of desk::heldout, but not the content of good",
            UNRECORDED.format("good"),
        ]
    )
    assert judged(drawn) == (Decision.PROMOTE, Label.DEVELOPMENT)


def test_traces_from_elsewhere_are_clean_if_the_split_is_never_drawn(drawn: DeskProject) -> None:
    """Nothing is known of results of another tool: one line says so."""
    drawn.older("v0")
    for path in drawn.root.glob(".trace2evolve/*"):
        shutil.rmtree(path)
    result = replay(drawn, "good")
    assert result.ret == 0
    result.stdout.fnmatch_lines([UNRECORDED.format("good")])
    assert judged(drawn) == (Decision.PROMOTE, Label.CLEAN)


def test_a_ledger_of_an_older_version_is_read(drawn: DeskProject) -> None:
    """Its runs have draws, and no entry of what they left."""
    folder = drawn.root / "ledger"
    kept = [item for item in entries(drawn) if not isinstance(item, TracesEntry)]
    root = (folder / f"{kept[0].root}.json").read_bytes()
    shutil.rmtree(folder)
    folder.mkdir()
    before = kept[0].root
    (folder / f"{before}.json").write_bytes(root)
    for entry in kept:
        older = entry.model_copy(update={"parents": (before,)})
        (folder / f"{older.name}.json").write_text(render_entry(older), encoding="utf-8")
        before = older.name
    assert any(isinstance(item, Draw) for item in entries(drawn))
    result = replay(drawn, "good")
    assert result.ret == 0
    result.stdout.fnmatch_lines([UNRECORDED.format("good")])
    assert judged(drawn) == (Decision.PROMOTE, Label.DEVELOPMENT)


def test_lint_names_folders_whose_traces_were_edited(drawn: DeskProject, command: Command) -> None:
    drawn.run("--candidate=v1", "--t2e-gate=off")
    assert command("check").stdout == ""
    run = drawn.runs[-1]
    reward_edited(run)
    done = command("check")
    assert done.returncode == 1
    assert f"{run.name}: was edited: its traces have digest " in done.stdout
    shutil.rmtree(run)
    assert command("check").stdout == ""
