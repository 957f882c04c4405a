"""What a change does to the evidence that judges it is named, with both rewards of a baseline."""

import subprocess
from pathlib import Path

import pytest

from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.session.summary import evidence_changes
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


def test_policies_checks_and_the_gate_are_named(base: HotelProject) -> None:
    base.candidate("v7", "- price", parent="v6")
    assert changes(base) == ()
    base.write("policies/lax.toml", "alpha = 0.001\n")
    base.write("pytest.ini", base.read("pytest.ini") + "t2e_gate = lax\n")
    assert changes(base) == (
        "policies or checks differ: policies/lax.toml",
        "the setting t2e_gate differs: '' → 'lax'",
    )
    (line,) = changes(base, "nowhere")
    assert line.startswith(
        "the tasks and baselines of commit nowhere cannot be compared: commit 'nowhere' is not "
    )
