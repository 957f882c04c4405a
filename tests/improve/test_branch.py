"""A search commits each proposal to a branch of its own, and publishes the branch as a draft pull request."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.testing import ChatServer
from pytest_trace2evolve.utils.git import git_text
from tests.improve.searches import BAD, GOOD, RuleAgent, improve, rows, write_project, write_table

GH = """#!{python}
import json, pathlib, sys

log = pathlib.Path({log!r})
calls = [*(json.loads(log.read_text()) if log.exists() else []), [sys.argv[1:], sys.stdin.read()]]
log.write_text(json.dumps(calls))
if sys.argv[1:3] == ["pr", "create"]:
    print("https://github.example/acme/agents/pull/7")
elif any(arguments[1] == "create" for arguments, _ in calls):
    print("https://github.example/acme/agents/pull/7")
"""
"""A program that answers as `gh pr list` and `gh pr create` do, and keeps its calls."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project in a git repository whose remote is a folder."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-0123456789")
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Someone")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "someone@example.com")
    root = tmp_path / "project"
    project = write_project(root)
    (root / ".gitignore").write_text(".trace2evolve/\n")
    for command in (
        ["init", "-q", "-b", "main"],
        ["add", "-A"],
        ["commit", "-q", "-m", "A project"],
        ["init", "-q", "--bare", str(tmp_path / "remote.git")],
        ["remote", "add", "origin", str(tmp_path / "remote.git")],
    ):
        assert git_text(root, *command) is not None
    return project


@pytest.fixture
def gh_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a `gh` on the PATH; returns the file with its calls."""
    folder, log = tmp_path / "bin", tmp_path / "gh.json"
    folder.mkdir()
    (folder / "gh").write_text(GH.format(python=sys.executable, log=str(log)))
    (folder / "gh").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return log


def git(project: Project, *arguments: str) -> list[str]:
    output = git_text(project.root, *arguments)
    assert output is not None, arguments
    return output.splitlines()


@pytest.fixture
def server(project: Project) -> Iterator[ChatServer]:
    with ChatServer(RuleAgent(project.root)) as server:
        yield server


def search(project: Project, server: ChatServer, *arguments: str) -> int:
    table = write_table(project.root.parent, BAD, GOOD)
    return improve(project, server, "--proposer", "table", "--table", str(table), *arguments)


def test_each_proposal_is_a_commit_and_the_branch_is_published_once(
    project: Project, server: ChatServer, gh_calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = git(project, "rev-parse", "HEAD")
    assert search(project, server) == 0
    assert not gh_calls.exists()
    (branch,) = git(project, "for-each-ref", "--format=%(refname:short)", "refs/heads/improve")
    subjects = git(project, "log", "--reverse", "--format=%s", f"main..{branch}")
    found = rows(project)
    assert len(found) >= 3
    assert [subject.split(": ")[0] for subject in subjects] == [row["candidate"] for row in found]
    assert all(len(subject) <= 72 for subject in subjects)
    kept = next(row["candidate"] for row in found if row["status"] == "keep")
    place = [row["candidate"] for row in found].index(kept)
    commit = f"{branch}~{len(found) - 1 - place}"
    assert "status: keep" in git(project, "log", "-1", "--format=%b", commit)
    changed = git(project, "diff", "--name-only", f"{commit}~", commit)
    assert {f"candidates/{kept}.md", "results/improve.tsv"} < set(changed)
    assert any(name.startswith("ledger/") for name in changed)
    # The checked-out branch and its index are as before.
    assert git(project, "rev-parse", "HEAD") == head
    assert git(project, "branch", "--show-current") == ["main"]
    assert not [line for line in git(project, "status", "--short") if not line.startswith("??")]

    tip = git(project, "rev-parse", branch)
    for _ in range(2):
        assert search(project, server, "--publish") == 0
    assert git(project, "rev-parse", branch) == tip
    assert git(project, "ls-remote", "origin") == [f"{tip[0]}\trefs/heads/{branch}"]
    calls = json.loads(gh_calls.read_text())
    assert [arguments[:2] for arguments, _ in calls] == [["pr", "list"], ["pr", "create"], ["pr", "list"]]
    arguments, body = calls[1]
    assert "--draft" in arguments
    assert arguments[arguments.index("--head") + 1] == branch
    assert f"    best: {kept}" in body.splitlines()[-1]
    assert "published: https://github.example/acme/agents/pull/7" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["remote", "gh", "identity"])
def test_a_failed_publication_changes_nothing_of_the_search(
    project: Project,
    server: ChatServer,
    gh_calls: Path,
    missing: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if missing == "remote":
        git(project, "remote", "remove", "origin")
    elif missing == "gh":
        gh = gh_calls.parent / "bin" / "gh"
        gh.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('gh: Not Found (HTTP 404)')\n")
    else:
        monkeypatch.setenv("GIT_COMMITTER_NAME", "")
    assert search(project, server, "--publish") == 0
    error = capsys.readouterr().err
    assert "not published: " in error
    assert ("git commit-tree failed: " in error) == (missing == "identity")
    assert [row["status"] for row in rows(project)].count("keep") == 1
