"""A changed baseline or verdict is rejected, and the ledger confirms a promotion."""

import json
import re
from datetime import datetime
from pathlib import Path

import pytest

from pytest_trace2evolve.errors import Trace2EvolveError
from pytest_trace2evolve.evidence.baselines import evidence_digest, read_evidence
from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.records.ledger import Evaluation
from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.session.compare import read_side
from pytest_trace2evolve.worlds.registry import Worlds
from tests.plugin.conftest import Command, DeskProject


@pytest.fixture
def promoted(project: DeskProject) -> DeskProject:
    """A project with a baseline of v0, and a run in which v1 was promoted."""
    project.baseline("v0")
    assert project.run("--candidate=v1").ret == 0
    return project


def test_a_gated_run_refuses_an_edited_baseline(project: DeskProject) -> None:
    project.baseline("v1")
    project.candidate("v2", "close restart", parent="v1")
    path = project.root / "baselines/desk/v1.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"reward":1.0', '"reward":0.0'), encoding="utf-8")
    result = project.run("--candidate=v2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *v1.json: was edited: its content has digest *; restore it *"])
    path.write_text(text, encoding="utf-8")
    assert project.run("--candidate=v2").ret == 1


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
