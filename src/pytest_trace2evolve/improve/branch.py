"""Commits the proposals of a search to a branch of its own, and publishes it as a draft pull request."""

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_trace2evolve.errors import GitHubError
from pytest_trace2evolve.utils.git import GIT_SECONDS, git_text, is_ignored
from pytest_trace2evolve.utils.sanitize import sanitize_line

REMOTE = "origin"
"""The remote to which the branch is pushed."""

MAX_SUBJECT_LENGTH = 72


class SearchBranch:
    """A branch with one commit for each decided proposal.

    Commits are made with an index of their own, so the checked-out branch, its index and its files stay as
    they are. Outside a git repository, and before its first commit, nothing is committed.

    Args:
        root: The project.
        name: The name of the branch, which begins where the project's repository is now.
    """

    def __init__(self, root: Path, name: str) -> None:
        self._root, self.name = root, name
        self._ref = f"refs/heads/{name}"

    def commit(self, candidate: str, subject: str, body: str, paths: Sequence[Path]) -> None:
        """Commit files as they are now, unless the branch has a commit of this candidate.

        Raises:
            GitHubError: git rejects the commit.
        """
        tip, head = (
            (git_text(self._root, "rev-parse", "--verify", "--quiet", ref) or "").strip()
            for ref in (self._ref, "HEAD")
        )
        if not (parent := tip or head):
            return
        subjects = self._run("git", "log", "--format=%s", parent).splitlines()
        if any(line.startswith(f"{candidate}: ") for line in subjects):
            return
        title = sanitize_line(f"{candidate}: {subject}", MAX_SUBJECT_LENGTH)
        added = [str(path) for path in paths if path.exists() and not is_ignored(self._root, path)]
        with tempfile.TemporaryDirectory(prefix="trace2evolve-") as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            self._run("git", "read-tree", parent, env=index)
            self._run("git", "add", "--", *added, env=index)
            tree = self._run("git", "write-tree", env=index)
        commit = self._run("git", "commit-tree", tree, "-p", parent, "-F", "-", stdin=f"{title}\n\n{body}\n")
        self._run("git", "update-ref", self._ref, commit, tip or "0" * len(commit))

    def publish(self, title: str, body: str) -> str:
        """Push the branch, open a draft pull request for it unless one is open, and return its URL.

        Raises:
            GitHubError: git or `gh` fails, does not end in time, or is not installed.
        """
        self._run("git", "push", "--quiet", REMOTE, f"{self._ref}:{self._ref}")
        query = ("--head", self.name, "--state", "open", "--json", "url", "--jq", ".[].url")
        if urls := self._run("gh", "pr", "list", *query):
            return urls.splitlines()[0]
        draft = ("--draft", "--head", self.name, "--title", title, "--body-file", "-")
        return self._run("gh", "pr", "create", *draft, stdin=body)

    def _run(self, *command: str, env: Mapping[str, str] | None = None, stdin: str = "") -> str:
        name = " ".join(command[: 3 if command[0] == "gh" else 2])
        try:
            done = subprocess.run(
                command,
                cwd=self._root,
                env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "GH_PROMPT_DISABLED": "1", **(env or {})},
                input=stdin,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=GIT_SECONDS,
            )
        except FileNotFoundError:
            raise GitHubError(f"{command[0]} is not installed; install it") from None
        except subprocess.TimeoutExpired:
            raise GitHubError(f"{name} did not end within {GIT_SECONDS} seconds") from None
        if done.returncode:
            raise GitHubError(f"{name} failed: {sanitize_line(done.stderr, 300)}")
        return done.stdout.strip()
