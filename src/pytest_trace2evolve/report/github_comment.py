"""Create or update the comment of a pull request through `gh`, the command line of GitHub."""

import json
import os
import re
import subprocess
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from pytest_trace2evolve.errors import ConfigError, GitHubError
from pytest_trace2evolve.records.verdict import RunSummary
from pytest_trace2evolve.report.github import MAX_COMMENT_BYTES, run_markdown
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.secrets import Secrets

ACTIONS_AUTHOR = "github-actions[bot]"
"""The author of comments written with the token of a GitHub job."""

TIMEOUT = 60.0
"""Seconds for one call of `gh`."""

MAX_KEY_LENGTH = 100
"""The maximum length of a key in a marker, in characters. A longer key is replaced by its digest."""

_UNTRUSTED_NOTE = (
    "> **Measured by unreviewed code of the pull request.** Its figures are only a claim; rerun it after a "
    "review before you trust them."
)

_REPOSITORY = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class PostedComment:
    """A posted comment: its URL, and whether it was created or updated."""

    url: str
    is_new: bool


def marker(key: str) -> str:
    """Return the hidden line that identifies a comment; `key` distinguishes several comments."""
    # An HTML comment must not contain two hyphens in a row.
    key = key if len(key) <= MAX_KEY_LENGTH else digest_text(key)
    return f"<!-- trace2evolve: {quote(key, safe='').replace('-', '%2D')} -->"


class GitHub:
    """The part of GitHub's API that posts a comment, called through `gh api`.

    Args:
        repository: `owner/name`.
        token: The token that authorizes requests. It never appears in messages.

    Requests raise GitHubError if `gh` is not installed, does not end in time, or fails.
    """

    def __init__(self, repository: str, token: str) -> None:
        if not _REPOSITORY.fullmatch(repository):
            raise ConfigError(f"--repo {repository!r} is not OWNER/NAME")
        self._repository = repository
        self._secrets = Secrets([token])
        self._environment = {**os.environ, "GH_TOKEN": token, "GH_ENTERPRISE_TOKEN": token}
        if host := urlsplit(os.environ.get("GITHUB_SERVER_URL", "")).netloc:
            self._environment["GH_HOST"] = host

    def pull_request(self, head: str, sha: str) -> int | None:
        """Return the number of the open pull request for a branch at a commit; None if there is none.

        Args:
            head: The branch, as `owner:branch`.
            sha: The commit.
        """
        query = urlencode({"head": head, "state": "open"})
        for pull in self._call("GET", f"repos/{self._repository}/pulls?{query}"):
            pull_head = pull.get("head")
            if isinstance(pull_head, dict) and (pull_head.get("label"), pull_head.get("sha")) == (head, sha):
                return int(pull["number"])
        return None

    def post(self, number: int, marker_line: str, body: str, author: str | None = None) -> PostedComment:
        """Update the comment with this marker on a pull request, or create it.

        Args:
            number: The pull request's number.
            marker_line: The first line of the comment, which identifies it.
            body: The text of the comment, with the marker.
            author: The author of the comment that is updated; None means the token's owner.
        """
        author = author or self._token_owner()
        issues = f"repos/{self._repository}/issues"
        for comment in self._call("GET", f"{issues}/{number}/comments?per_page=100"):
            user = comment.get("user")
            is_own = isinstance(user, dict) and user.get("login") == author
            if is_own and str(comment.get("body") or "").startswith(marker_line):
                path = f"{issues}/comments/{int(comment['id'])}"
                return PostedComment(_url(self._call("PATCH", path, body)), is_new=False)
        return PostedComment(_url(self._call("POST", f"{issues}/{number}/comments", body)), is_new=True)

    def _token_owner(self) -> str:
        try:
            (user,) = self._call("GET", "user")
        except GitHubError:  # the token of a job may not read its owner
            return ACTIONS_AUTHOR
        return str(user.get("login") or ACTIONS_AUTHOR)

    def _call(self, method: str, path: str, body: str | None = None) -> list[dict[str, Any]]:
        """Call `gh api`, and return the objects of its answer, of all pages."""
        options = ["--paginate"] if body is None else ["--input", "-"]
        try:
            done = subprocess.run(
                ["gh", "api", "--method", method, *options, path],
                input="" if body is None else json.dumps({"body": body}),
                env=self._environment,
                capture_output=True,
                encoding="utf-8",
                timeout=TIMEOUT,
                check=False,
            )
        except FileNotFoundError:
            raise GitHubError("gh is not installed; install it, since it posts the comment") from None
        except subprocess.TimeoutExpired:
            raise GitHubError(f"gh did not end within {TIMEOUT:g} seconds") from None
        if done.returncode:
            reason = " ".join(done.stderr.split())[:300]
            raise GitHubError(self._secrets.remove_from(f"{method} /{path} failed: {reason}"))
        try:
            return _objects(done.stdout)
        except ValueError:
            raise GitHubError(f"{method} /{path}: the answer is not JSON") from None


def _objects(text: str) -> list[dict[str, Any]]:
    """Return the objects in JSON texts one after the other, each an object or a list of them (a page)."""
    objects: list[dict[str, Any]] = []
    while text := text.lstrip():
        value, end = json.JSONDecoder().raw_decode(text)
        objects += [
            item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)
        ]
        text = text[end:]
    return objects


def _url(comments: list[dict[str, Any]]) -> str:
    return str(comments[0].get("html_url") or "") if comments else ""


def post_summary(
    github: GitHub,
    summary: RunSummary,
    *,
    pull_request: int | None = None,
    branch: str | None = None,
    sha: str | None = None,
    key: str | None = None,
    author: str | None = None,
    run_url: str | None = None,
    is_untrusted: bool = False,
) -> PostedComment | None:
    """Post or update the comment that reports a run on its pull request.

    Returns None if no open pull request has the branch at the commit.

    Args:
        github: The client of the repository.
        summary: The run to report.
        pull_request: The number of the pull request. By default, `branch` and `sha` identify it.
        branch: The branch of the pull request, as `owner:branch`.
        sha: The commit that was evaluated.
        key: Distinguishes several comments on a pull request (default: the names of the suites).
        author: The author of the comment to update (default: the token's owner).
        run_url: The URL of the job's page.
        is_untrusted: Whether the run executed unreviewed code.
    """
    if pull_request is None:
        pull_request = github.pull_request(branch or "", sha or "")
    if pull_request is None:
        return None
    marker_line = marker(key or "+".join(sorted(suite.name for suite in summary.suites)))
    head = "\n\n".join([marker_line, _UNTRUSTED_NOTE] if is_untrusted else [marker_line])
    # Contains only trusted words, and values whose form the caller has checked.
    facts = [f"commit `{sha[:12]}`"] if sha else []
    facts += [f"[job and artifacts]({run_url})"] if run_url else []
    foot = f"*{' · '.join(facts)}*" if facts else ""
    body = run_markdown(summary, max_bytes=MAX_COMMENT_BYTES, head=head, foot=foot)
    return github.post(pull_request, marker_line, body, author)
