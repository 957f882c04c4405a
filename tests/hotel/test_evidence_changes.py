"""What a change does to the evidence that judges it is named, with both rewards of a baseline."""

import subprocess
from pathlib import Path

import pytest

from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.session.evidence_changes import evidence_changes
from tests.hotel import HotelProject


def git(root: Path, *arguments: str) -> None:
    settings = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *settings, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def base(hotel: HotelProject) -> HotelProject:
    """A hotel with a baseline v6 in its first commit."""
    hotel.baseline("v6")
    git(hotel.root, "init", "-q")
    git(hotel.root, "add", "-A")
    git(hotel.root, "commit", "-qm", "base")
    return hotel


def changes(hotel: HotelProject, commit: str = "HEAD") -> tuple[str, ...]:
    return evidence_changes(Project(hotel.root, hotel.root / "suites"), commit)


def test_an_unchanged_project_names_nothing(base: HotelProject) -> None:
    base.candidate("v7", "- price", parent="v6")
    assert changes(base) == ()


def test_a_baseline_saved_again_is_named_with_both_rewards(base: HotelProject) -> None:
    """A change of the agent that breaks it cannot bless itself."""
    base.candidate("v6", "- price")
    base.run(
        "suites", "--candidate=v6", "--t2e-save-baseline=v6", "--t2e-gate=off", "--t2e-baseline-mode=update"
    )
    (line,) = changes(base)
    start, _, easier = line.partition("; easier to pass now: ")
    assert start == "baseline hotel/v6 was saved again: reward 1.000 → 0.167"
    assert easier.startswith("book-double 1.000 → 0.000, book-single 1.000 → 0.000, ")
    git(base.root, "rm", "-q", "-f", "baselines/hotel/v6.json")
    assert changes(base) == ("baseline hotel/v6 was removed",)


def test_a_task_that_vanished_comes_first(base: HotelProject) -> None:
    base.replace("suites/hotel.toml", '"cancel-flexible", ', "")
    base.lock()
    removed = "suite hotel: task 'cancel-flexible' was removed from split 'heldout'; "
    assert changes(base)[0].startswith(f"{removed}task 'cancel-flexible' was added to split 'discovery'")


def test_policies_checks_and_the_gate_are_named(base: HotelProject) -> None:
    base.write("policies/lax.toml", "alpha = 0.001\n")
    base.write("pytest.ini", base.read("pytest.ini") + "t2e_gate = lax\n")
    assert changes(base) == (
        "policies or checks differ: policies/lax.toml",
        "the setting t2e_gate differs: '' → 'lax'",
    )


def test_an_unknown_commit_is_one_line(base: HotelProject) -> None:
    (line,) = changes(base, "nowhere")
    assert line.startswith(
        "the tasks and baselines of commit nowhere cannot be compared: commit 'nowhere' is not "
    )
