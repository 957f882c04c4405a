"""Edits of baselines, verdicts and evidence are found, also by somebody who renews a file's own digest."""

import json
import random
import re
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pytest_trace2evolve.errors import Trace2EvolveError
from pytest_trace2evolve.evidence.baselines import evidence_digest, read_evidence, write_evidence
from pytest_trace2evolve.evidence.ledger import Ledger, render_entry
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.evidence import Evidence
from pytest_trace2evolve.records.ledger import Evaluation
from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.session.check import check_baselines, check_runs
from pytest_trace2evolve.session.compare import read_side
from pytest_trace2evolve.session.promote import promote
from pytest_trace2evolve.worlds.registry import Worlds
from tests.plugin.conftest import Command, DeskProject

EDITS = 200


def renewed(path: Path) -> None:
    """What an editor does who knows the format: the file's digest is that of its new content."""
    record = json.loads(path.read_text(encoding="utf-8"))
    record.pop("digest", None)
    write_evidence(path, Evidence.model_validate_json(json.dumps(record)))


def worsened(path: Path) -> None:
    """Turn every success of a baseline into a failure, and renew its digest."""
    record = json.loads(path.read_text(encoding="utf-8"))
    for one in record["simulations"]:
        one["reward"] = 0.0
    path.write_text(json.dumps(record), encoding="utf-8")
    renewed(path)


@pytest.fixture
def promoted(project: DeskProject) -> DeskProject:
    """A project with a baseline of v0, and a run in which v1 was promoted."""
    project.baseline("v0")
    assert project.run("--candidate=v1").ret == 0
    return project


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each place of a value in a JSON document: its container and its key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        if isinstance(one, dict | list):
            yield from leaves(one)
        elif one is not None:
            yield value, key


def other(value: Any, rng: random.Random) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return rng.choice([value + "x", value[1:] or "y", "promote" if value != "promote" else "discard"])
    return 1 - value if value in (0, 1) else value + 1


def edit(path: Path, rng: random.Random) -> str:
    """Change one value of a JSON file; returns what was done."""
    record = json.loads(path.read_text(encoding="utf-8"))
    container, key = rng.choice(list(leaves(record)))
    container[key] = other(container[key], rng)
    path.write_text(json.dumps(record), encoding="utf-8")
    how = rng.choice(["left", "removed", "renewed"]) if path.name != "verdict.json" else "left"
    if how == "removed":
        record.pop("digest", None)
        path.write_text(json.dumps(record), encoding="utf-8")
    elif how == "renewed":
        try:
            renewed(path)
        except ValidationError:
            how = "left"
    return f"{path.name}: {key} = {container[key]!r}, digest {how}"


def test_no_edit_of_evidence_goes_unnamed_or_is_promoted(promoted: DeskProject) -> None:
    """The simulated figure of issue 23: false promotions under edited evidence, 0 of 200."""
    project = Project(promoted.root, promoted.root / "suites")
    run = promoted.runs[-1]
    files = [promoted.root / "baselines/desk/v0.json", run / "verdict.json", run / "evidence/desk.json"]
    assert not [*check_baselines(project), *check_runs(project)]
    unnamed, passed = [], []
    for seed in range(EDITS):
        rng = random.Random(seed)
        path = files[seed % len(files)]
        before = path.read_bytes()
        done = edit(path, rng)
        findings = [*check_baselines(project), *check_runs(project)]
        if not any(one.path == path and not one.is_warning for one in findings):
            unnamed.append(done)
        try:
            promote(project, run.name, base_folder=promoted.root, dry_run=True)
            passed.append(done)
        except Trace2EvolveError:
            pass
        path.write_bytes(before)
    assert (unnamed, passed) == ([], [])
    assert promote(project, run.name, base_folder=promoted.root, dry_run=True).baselines


def test_a_gated_run_refuses_an_edited_baseline(project: DeskProject) -> None:
    project.baseline("v1")
    project.candidate("v2", "close restart", parent="v1")
    path = project.root / "baselines/desk/v1.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"reward":1.0', '"reward":0.0'), encoding="utf-8")
    result = project.run("--candidate=v2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *v1.json: was edited: its content has digest *; restore it *"])
    renewed(path)
    result = project.run("--candidate=v2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: *v1.json: was edited: its evidence has digest *, but run * saved * under this name (20*"]
    )
    path.write_text(text, encoding="utf-8")
    assert project.run("--candidate=v2").ret == 1


def test_an_earlier_baseline_in_the_place_of_the_last_is_found(
    project: DeskProject, command: Command
) -> None:
    project.baseline("v0")
    path = project.root / "baselines/desk/v0.json"
    earlier = path.read_bytes()
    project.run("--t2e-save-baseline=v0", "--t2e-baseline-mode=update", "--t2e-gate=off", "--t2e-trials=2")
    last = path.read_bytes()
    path.write_bytes(earlier)
    assert "was edited: its evidence has digest" in command("check").stdout
    assert project.run("--candidate=v1").ret == pytest.ExitCode.USAGE_ERROR
    path.write_bytes(last)
    assert command("check").stdout == ""


def test_a_baseline_that_was_edited_is_not_grown(project: DeskProject) -> None:
    project.run("-m", "heldout", "--t2e-save-baseline=v1", "--candidate=v1", "--t2e-gate=off")
    worsened(project.root / "baselines/desk/v1.json")
    result = project.run(
        "--candidate=v1", "--t2e-save-baseline=v1", "--t2e-baseline-mode=new-only", "--t2e-gate=off"
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *v1.json: was edited: its evidence has digest *"])


def test_a_removed_baseline_can_be_saved_anew(project: DeskProject, command: Command) -> None:
    project.baseline("v1")
    path = project.root / "baselines/desk/v1.json"
    worsened(path)
    path.unlink()
    project.baseline("v1")
    assert command("check").stdout == ""
    assert project.run("--candidate=v2").ret == 1


def test_a_baseline_of_an_older_version_is_known_from_the_first_run_that_used_it(
    project: DeskProject, command: Command
) -> None:
    project.baseline("v1")
    project.older("v1")
    assert "v1.json: warning: is not in the ledger, so an edit cannot be detected" in command("check").stdout
    assert project.run("--candidate=v2").ret == 1
    assert command("check").stdout == ""
    path = project.root / "baselines/desk/v1.json"
    worsened(path)
    assert "v1.json: was edited: its evidence has digest" in command("check").stdout
    result = project.run("--candidate=v2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *v1.json: was edited: *, but run * used * under this name *"])


def as_older(project: DeskProject) -> None:
    """Write the ledger's evaluations as older versions did, and nothing else."""
    folder = project.root / "ledger"
    history = Ledger(folder).read()
    (entry,) = [one for one in history.entries_by_time if isinstance(one, Evaluation)]
    root = (folder / f"{entry.root}.json").read_bytes()
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / f"{entry.root}.json").write_bytes(root)
    later = {"baseline_evidence": None, "evidence": None, "verdict": None, "parents": (entry.root,)}
    old = entry.model_copy(update=later)
    (folder / f"{old.name}.json").write_text(render_entry(old), encoding="utf-8")


def test_a_run_of_an_older_version_is_run_again(promoted: DeskProject, command: Command) -> None:
    as_older(promoted)
    done = command("baseline", "promote", promoted.runs[-1].name)
    assert done.returncode == 2
    assert done.stderr.endswith("without digests of the verdict and the evidence; run it again\n")
    assert promoted.run("--candidate=v1").ret == 0
    assert command("baseline", "promote", promoted.runs[-1].name).returncode == 0


def test_a_verdict_without_its_entry_is_not_promoted(promoted: DeskProject, command: Command) -> None:
    promoted.forget()
    done = command("baseline", "promote", promoted.runs[-1].name)
    assert done.returncode == 2
    assert "the ledger has no entry of run" in done.stderr


def test_a_promotion_that_a_later_run_took_back_is_refused(promoted: DeskProject, command: Command) -> None:
    ledger = Ledger(promoted.root / "ledger")
    (entry,) = [one for one in ledger.read().entries.values() if isinstance(one, Evaluation)]

    def repeated(root: str, parents: tuple[str, ...], at: datetime) -> Evaluation:
        changes = {"root": root, "parents": parents, "at": at, "run": "later", "decision": Decision.DISCARD}
        return entry.model_copy(update=changes)

    ledger.append(repeated)
    done = command("baseline", "promote", entry.run)
    assert done.returncode == 2
    assert "run later repeated this test on desk::heldout and ended in discard" in done.stderr
    assert not (promoted.root / "baselines" / "desk" / "v1.json").exists()


def test_a_discard_that_was_edited_into_a_promotion_is_refused(
    project: DeskProject, command: Command
) -> None:
    project.baseline("v1")
    assert project.run("--candidate=v2").ret == 1
    path = project.runs[-1] / "verdict.json"
    path.write_text(path.read_text(encoding="utf-8").replace("discard", "promote"), encoding="utf-8")
    done = command("baseline", "promote", project.runs[-1].name)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(r"verdict.json: was edited: ledger entry \w+ records discard for run ", done.stderr)


def test_a_comparison_finds_an_edit_too(tmp_path: Path, project: DeskProject) -> None:
    project.baseline("v1")
    path = project.root / "baselines/desk/v1.json"
    evidence = read_evidence(path)
    text = path.read_text(encoding="utf-8")
    assert read_side([path], Worlds(), None, None).provenance == evidence.provenance
    # A checkout may change line ends, and a formatter the layout: neither is an edit.
    for same in (text.replace("\n", "\r\n"), json.dumps(json.loads(text), indent=2)):
        path.write_bytes(same.encode())
        assert read_side([path], Worlds(), None, None).provenance == evidence.provenance
        assert evidence_digest(read_evidence(path)) == evidence_digest(evidence)
    path.write_text(text.replace('"reward":1.0', '"reward":0.0', 1), encoding="utf-8")
    with pytest.raises(Trace2EvolveError, match=r"v1\.json: was edited: its content has digest"):
        read_side([path], Worlds(), None, None)
