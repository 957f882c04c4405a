"""A damaged ledger withholds promotions until `trace2evolve ledger repair` records who accepted it."""

import json
from pathlib import Path

import pytest

from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.gate.claims import Claim, spending_of
from pytest_trace2evolve.records.ledger import BaselineSave, Evaluation, Repair
from pytest_trace2evolve.records.verdict import Decision
from tests.ledger_helpers import ROOT, at, judged
from tests.plugin.conftest import Command, DeskProject


def entries_of(project: DeskProject) -> list[Evaluation]:
    found = Ledger(project.root / "ledger").read().entries_by_time
    return [entry for entry in found if isinstance(entry, Evaluation)]


@pytest.fixture
def damaged(project: DeskProject) -> DeskProject:
    """Two tests, and an access to a trace; the entry of the first test was deleted."""
    project.baseline("v0")
    project.run("--candidate=v1")
    project.run("--candidate=v2", "--t2e-baseline=v0")
    (project.root / "ledger" / f"{entries_of(project)[0].name}.json").unlink()
    return project


def test_damage_withholds_a_promotion_and_a_repair_gives_it_back(
    damaged: DeskProject, command: Command
) -> None:
    damaged.candidate("v3", "close note look", parent="v0")
    result = damaged.run("--candidate=v3")
    assert result.ret == 10
    result.stdout.fnmatch_lines(["INCONCLUSIVE: *", " why:  the ledger is damaged (1 problem: *"])
    done = command("ledger", "repair", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    shown = done.stdout.splitlines()
    assert shown[0].endswith("restore it from git")
    assert shown[1].startswith("1 entry is missing or unreadable, and each counts as one test of every")
    assert shown[-1].startswith("recorded as ledger entry ")
    assert command("ledger").returncode == 0
    (repair,) = [
        one for one in Ledger(damaged.root / "ledger").read().entries_by_time if isinstance(one, Repair)
    ]
    assert (len(repair.problems), repair.lost) == (1, 1)
    assert list(repair.files.values()) == [None]
    result = damaged.run("--candidate=v3")
    assert result.ret == 0
    # Test 3 at best, since v1 and v2 were tests: the lost entry counts as one more.
    result.stdout.fnmatch_lines(["heldout decides on clean evidence*", "PROMOTE: *"])
    assert entries_of(damaged)[-1].look == 4


def test_lint_names_damage_until_a_repair_accepts_it(damaged: DeskProject, command: Command) -> None:
    done = command("check")
    assert done.returncode == 1
    message = [line for line in done.stdout.splitlines() if line.startswith("ledger")]
    assert len(message) == 1
    assert "was deleted" in message[0]
    assert "trace2evolve ledger repair" in message[0]
    command("ledger", "repair", "--yes")
    assert "ledger" not in command("check").stdout


def test_a_discard_stays_under_damage(damaged: DeskProject) -> None:
    damaged.baseline("v1")
    assert damaged.run("--candidate=v2", "--t2e-baseline=v1").ret == 1


def test_promote_waits_for_the_repair(damaged: DeskProject, command: Command) -> None:
    run = next(path.name for path in damaged.runs if "-v2-" in path.name)
    done = command("baseline", "promote", run)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "trace2evolve: the ledger is damaged (1 problem: see 'trace2evolve ledger')"
    )
    command("ledger", "repair", "--yes")
    assert command("baseline", "promote", run).returncode == 0


def test_new_damage_counts_again(damaged: DeskProject, command: Command) -> None:
    command("ledger", "repair", "--yes")
    path = damaged.root / "ledger" / f"{entries_of(damaged)[-1].name}.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("promote", "discard"), encoding="utf-8")
    assert command("ledger").returncode == 1
    command("ledger", "repair", "--yes")
    assert command("ledger").returncode == 0
    # The same entry, damaged in another way.
    path.write_text(text.replace("promote", "inconclusive"), encoding="utf-8")
    assert command("ledger").returncode == 1
    path.write_text(text, encoding="utf-8")
    assert command("ledger").returncode == 0


def test_a_repair_that_is_taken_out_accepts_nothing(damaged: DeskProject, command: Command) -> None:
    command("ledger", "repair", "--yes")
    damaged.run("--candidate=v1")
    folder = damaged.root / "ledger"
    (repair,) = [one for one in Ledger(folder).read().entries_by_time if isinstance(one, Repair)]
    (folder / f"{repair.name}.json").unlink()
    assert len(json.loads(command("ledger", "--json").stdout)["problems"]) == 2


def test_nobody_is_asked_without_a_terminal(damaged: DeskProject, command: Command) -> None:
    before = sorted(path.name for path in (damaged.root / "ledger").iterdir())
    done = command("ledger", "repair")
    assert done.returncode == 2
    assert done.stderr.endswith(
        "standard input is not a terminal, so nobody can confirm; check the list above and accept it "
        "with --yes\n"
    )
    assert sorted(path.name for path in (damaged.root / "ledger").iterdir()) == before


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1), ("", 1)])
def test_a_terminal_is_asked(
    damaged: DeskProject, command: Command, monkeypatch: pytest.MonkeyPatch, answer: str, status: int
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: answer)
    assert command("ledger", "repair").returncode == status
    assert command("ledger").returncode == status


def test_a_sound_ledger_needs_no_repair(project: DeskProject, command: Command) -> None:
    project.baseline("v0")
    done = command("ledger", "repair")
    assert (done.returncode, done.stdout) == (0, "the ledger is not damaged; nothing was written\n")
    assert command("ledger", "--yes").returncode == 2


@pytest.mark.parametrize(("kept", "lost"), [((1, 2, 3, 4), 0), ((1, 4), 1), ((1, 2), 2), ((4,), 1), ((), 4)])
def test_no_test_after_a_repair_has_a_lower_number(kept: tuple[int, ...], lost: int) -> None:
    made = [judged(at(number), name=f"v{number}", look=number) for number in kept]
    repair = Repair(
        root=ROOT.name,
        parents=(ROOT.name,),
        at=at(10),
        who="ann",
        day=at(10).date(),
        problems=("ledger/x.json: was deleted",),
        lost=lost,
        locks=("lock-1",),
    )
    claim = Claim("desk", "heldout", "lock-1", "text of v9", "agent", "v0", "calibrated", 4)
    wanted = max(max(kept, default=0), len(kept)) + lost + 1
    assert spending_of([*made, repair], claim).number == wanted
    # The tests after it go on from there, one by one.
    after = judged(at(11), name="v9", look=wanted)
    other = Claim("desk", "heldout", "lock-1", "text of v10", "agent", "v0", "calibrated", 4)
    assert spending_of([*made, repair, after], other).number == wanted + 1
    # Under a new lock the count begins anew, as it does without a repair.
    elsewhere = Claim("desk", "heldout", "lock-2", "text of v9", "agent", "v0", "calibrated", 4)
    assert spending_of([*made, repair], elsewhere).number == 1


def test_saved_baselines_are_entries(project: DeskProject, command: Command) -> None:
    project.baseline("v0")
    assert project.run("--candidate=v1").ret == 0
    assert command("baseline", "promote", project.runs[-1].name, "--name", "v0").returncode == 0
    saves = [
        one for one in Ledger(project.root / "ledger").read().entries_by_time if isinstance(one, BaselineSave)
    ]
    assert [one.baseline.id for one in saves] == ["v0", "v0"]
    assert [one.replaces for one in saves] == [None, saves[0].baseline.digest]
    assert [one.decision for one in entries_of(project)] == [Decision.PROMOTE]
    assert Path(project.root / "ledger" / f"{saves[1].name}.json").exists()
