"""Renders a run as Markdown for GitHub, and posts it as a comment through `gh`."""

import json
import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from pytest_trace2evolve.errors import ConfigError, GitHubError, shorten
from pytest_trace2evolve.records.verdict import Decision, RunSummary
from pytest_trace2evolve.report.conclusion import headline
from pytest_trace2evolve.report.verdict import run_report
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.sanitize import sanitize, sanitize_file
from pytest_trace2evolve.utils.secrets import Secrets

MAX_COMMENT_BYTES = 65_536
"""GitHub's limit for a comment, in characters. A text never has fewer bytes than characters."""

MAX_STEP_SUMMARY_BYTES = 1 << 20
"""GitHub's limit for the summary of one step: 1 MiB."""

MIN_VERDICT_BYTES = 4_096
"""The smallest allowed limit in bytes, into which a verdict always fits."""

MAX_NAME_LENGTH, MAX_TEXT_LENGTH = 240, 400
"""Maximum lengths of an untrusted name and of an untrusted sentence, in characters."""

MAX_CLIPPED_LENGTH = 1_000
"""Maximum length of a text of the report, in characters."""

REPORT_WIDTH = 110
"""Columns of the report."""

_DECISION_SIGNS = {Decision.PROMOTE: "✅", Decision.DISCARD: "❌", Decision.INCONCLUSIVE: "⚠️"}

_NON_SPACE_BLANK = re.compile(r"[^\S ]")
"""White space other than the plain space, such as newlines, tabs and wide spaces."""


def run_markdown(
    summary: RunSummary, *, max_bytes: int = MAX_STEP_SUMMARY_BYTES, head: str = "", foot: str = ""
) -> str:
    """Render a run, verdict first, as Markdown of at most `max_bytes` bytes in UTF-8.

    If the text is too long, the figures of the checks are left out, and then all but the conclusion.

    Args:
        summary: The run; its texts are shown as code.
        max_bytes: The maximum number of bytes; `MIN_VERDICT_BYTES` or more.
        head: Trusted Markdown for the beginning, on lines of its own.
        foot: Trusted Markdown for the end.

    Raises:
        ValueError: head, foot and the verdict do not fit into the limit.
    """
    summary = RunSummary.model_validate(_clip(summary.model_dump(mode="json")))
    parts = [head, f"## {_headline(summary)}"]
    parts += [f"⚠️ Changes of tasks, baselines or policies: {len(summary.changes)}"] if summary.changes else []
    command = f"\n\nto reproduce: {shlex.join(summary.command)}" if summary.command else ""
    for verbosity in (1, 0, -1):
        report = run_report(summary, (), width=REPORT_WIDTH, has_colour=False, verbosity=verbosity)
        text = _join([*parts, code_block(report + command), foot])
        if len(text.encode()) <= max_bytes:
            return text
        command = ""
    note = "*Shortened: the rest is in the run's evidence and log.*"
    room = max_bytes - len(_join([*parts, note, foot]).encode()) - 2
    if room < 0:
        raise ValueError(f"{max_bytes} bytes are too few for a verdict")
    block = code_block(report).encode()[:room].decode(errors="ignore")
    return _join([*parts, block, note, foot])


def _clip(value: Any) -> Any:
    """Shorten every text in a JSON value, because a foreign one may be megabytes long."""
    if isinstance(value, dict):
        return {key: _clip(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clip(item) for item in value]
    return shorten(value, MAX_CLIPPED_LENGTH) if isinstance(value, str) else value


def _join(parts: list[str]) -> str:
    return "\n\n".join(part for part in parts if part.strip()) + "\n"


def _headline(summary: RunSummary) -> str:
    """Render the verdict in one line."""
    if summary.trouble:
        return (
            f"⚠️ No verdict on {code_span(summary.candidate)}: {code_span(summary.trouble, MAX_TEXT_LENGTH)}"
        )
    if summary.decision is None:
        return f"No verdict on {code_span(summary.candidate)}"
    decision = f"{_DECISION_SIGNS[summary.decision]} {summary.decision.value.capitalize()}"
    return f"{decision}: {headline(summary, code_span, 'its baseline')}"


def code_span(text: str, max_length: int = MAX_NAME_LENGTH) -> str:
    """Render an untrusted text as a code span of one line, cut to `max_length` characters."""
    # Cut first, because a text may be megabytes long. Collapsing white space then shortens it only a little.
    line = " ".join(_escape_invisible(text[: 2 * max_length]).split())
    clipped = line if len(line) <= max_length else line[: max_length - 1] + "…"
    if not clipped:
        return "*(empty)*"
    fence = "`" * (max((len(run) for run in re.findall("`+", clipped)), default=0) + 1)
    # A backtick at either end would join the fence; CommonMark strips one space from both ends.
    padding = " " if clipped[0] == "`" or clipped[-1] == "`" else ""
    return f"{fence}{padding}{clipped}{padding}{fence}"


def code_block(text: str) -> str:
    """Render an untrusted text as an indented code block that keeps its lines."""
    return "\n".join(f"    {sanitize_file(_escape_invisible(line))}".rstrip() for line in text.split("\n"))


def _escape_invisible(text: str) -> str:
    """Escape the control, format, private and unassigned characters of a text."""
    return sanitize(_NON_SPACE_BLANK.sub(" ", text))


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
