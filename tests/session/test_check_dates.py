"""`check` names a candidate that is dated before an access to traces, though its text came later."""

import os
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from pytest_trace2evolve.evidence.ledger import Ledger
from tests.ledger_helpers import seen
from tests.plugin.conftest import Command, DeskProject

NOW = datetime.now(UTC)
ACCESS = NOW - timedelta(days=5)


def git(project: DeskProject, *arguments: str, at: datetime = NOW) -> None:
    dates = {"GIT_AUTHOR_DATE": at.isoformat(), "GIT_COMMITTER_DATE": at.isoformat()}
    settings = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    command = ["git", *settings, *arguments]
    subprocess.run(command, cwd=project.root, check=True, capture_output=True, env={**os.environ, **dates})


def candidate(project: DeskProject, text: str = "close note") -> None:
    frozen = (ACCESS - timedelta(days=3)).date()
    front = f"id: v3\nparent: v0\nfrozen_at: {frozen}"
    project.write("candidates/v3.md", f"---\n{front}\n---\n{text}\n")


@pytest.fixture
def opened(project: DeskProject) -> DeskProject:
    """A project in git, whose held-out traces were opened five days ago."""
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "Begin", at=ACCESS - timedelta(days=9))
    Ledger(project.root / "ledger").append(
        lambda root, parents, at: seen(ACCESS, root=root, parents=parents, who="ann")
    )
    return project


def commit(project: DeskProject, days_before: float) -> None:
    git(project, "add", "-A")
    git(project, "commit", "-qm", "Add v3", at=ACCESS - timedelta(days=days_before))


@pytest.mark.parametrize(("days_before", "status"), [(1.0, 0), (-1.0, 1)])
def test_the_first_commit_of_the_text_counts(
    opened: DeskProject, command: Command, days_before: float, status: int
) -> None:
    candidate(opened)
    commit(opened, days_before)
    done = command("check")
    assert done.returncode == status, done.stdout
    assert ("candidates/v3.md: has frozen_at " in done.stdout) == bool(status)
    if status:
        assert "its text was first committed on " in done.stdout


def test_a_text_that_was_changed_after_the_access_is_named(opened: DeskProject, command: Command) -> None:
    candidate(opened)
    commit(opened, 1.0)
    candidate(opened, "close note restart")
    commit(opened, -1.0)
    assert "its text was first committed on " in command("check").stdout


def test_a_text_that_no_commit_holds_draws_a_warning(opened: DeskProject, command: Command) -> None:
    candidate(opened)
    done = command("check")
    assert done.returncode == 0
    assert "candidates/v3.md: warning: has frozen_at " in done.stdout
    assert "neither a commit nor the ledger shows this text from before then" in done.stdout
