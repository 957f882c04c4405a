"""A damaged ledger withholds promotions until `trace2evolve ledger repair` records who accepted it."""

import pytest

from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.gate.claims import Claim, spending_of
from pytest_trace2evolve.records.ledger import Evaluation, Repair
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
        item for item in Ledger(damaged.root / "ledger").read().entries_by_time if isinstance(item, Repair)
    ]
    assert (len(repair.problems), repair.lost) == (1, 1)
    assert list(repair.files.values()) == [None]
    result = damaged.run("--candidate=v3")
    assert result.ret == 0
    # Test 3 at best, since v1 and v2 were tests: the lost entry counts as one more.
    result.stdout.fnmatch_lines(["heldout decides on clean evidence*", "PROMOTE: *"])
    assert entries_of(damaged)[-1].look == 4


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
