"""Create or update the comment of a pull request through GitHub's REST API."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from pytest_trace2evolve.errors import ConfigError, GitHubError
from pytest_trace2evolve.records.verdict import RunSummary
from pytest_trace2evolve.report.github import MAX_COMMENT_BYTES, run_markdown
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.secrets import Secrets

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

API_URL = "https://api.github.com"
ACTIONS_AUTHOR = "github-actions[bot]"
"""The author of comments written with the token of a GitHub job."""

MAX_TRIES = 5
MAX_PAUSE_SECONDS = 60.0
"""The maximum pause between tries. If GitHub asks for a longer one, posting the comment fails."""

MAX_PAGES = 100
COMMENTS_PER_PAGE = 100
"""The maximum number of comments that GitHub returns per page."""

MAX_ANSWER_BYTES = 64 << 20
"""Enough for a page of a hundred escaped comments of up to 65,536 characters."""

MAX_KEY_LENGTH = 100
"""The maximum length of a key in a marker, in characters. A longer key is replaced by its digest."""

_UNTRUSTED_NOTE = (
    "> **Measured by unreviewed code of the pull request.** Its figures are only a claim; rerun it after a "
    "review before you trust them."
)

_REPOSITORY = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")


class _RetryError(Exception):
    """A failed request that may succeed later; `pause` is the pause in seconds that GitHub asks for."""

    def __init__(self, message: str, pause: float | None = None) -> None:
        super().__init__(message)
        self.pause = pause


class _TooLongError(Exception):
    """GitHub rejected a comment because it is too long."""


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
    """A client for the part of GitHub's API that posts a comment.

    Args:
        repository: `owner/name`.
        token: The token that authorizes requests. It never appears in messages.
        api_url: The URL of the API.
        sleep: The function that waits between tries; None uses `time.sleep`.
        timeout: Seconds for one request with its complete response.

    Requests raise GitHubError if GitHub rejects them or does not answer in several tries.
    """

    def __init__(
        self,
        repository: str,
        token: str,
        *,
        api_url: str = API_URL,
        sleep: Callable[[float], None] | None = None,
        timeout: float = 30.0,
    ) -> None:
        from pytest_trace2evolve.utils.http import bounded_client, tls_context

        if not _REPOSITORY.fullmatch(repository):
            raise ConfigError(f"--repo {repository!r} is not OWNER/NAME")
        self._repository = repository
        self._secrets = Secrets([token])
        self._sleep = sleep or time.sleep
        self._timeout = timeout
        self._client = partial(
            bounded_client,
            MAX_ANSWER_BYTES,
            base_url=api_url.rstrip("/"),
            timeout=timeout,
            verify=tls_context(),
            headers={
                "accept": "application/vnd.github+json",
                "authorization": f"Bearer {token}",
                "user-agent": "pytest-trace2evolve",
                "x-github-api-version": "2022-11-28",
            },
        )

    def pull_request(self, head: str, sha: str) -> int | None:
        """Return the number of the open pull request for a branch at a commit; None if there is none.

        Args:
            head: The branch, as `owner:branch`.
            sha: The commit.
        """
        path = f"/repos/{self._repository}/pulls"
        pulls = self._retry(lambda: self._request("GET", path, params={"head": head, "state": "open"}))
        for pull in _dict_items(pulls):
            pull_head = pull.get("head")
            if isinstance(pull_head, dict) and (pull_head.get("label"), pull_head.get("sha")) == (head, sha):
                return int(pull["number"])
        return None

    def post(
        self,
        number: int,
        marker_line: str,
        render: Callable[[int], str],
        *,
        max_bytes: int,
        author: str | None = None,
    ) -> PostedComment:
        """Update the comment with this marker on a pull request, or create it.

        Args:
            number: The pull request's number.
            marker_line: The first line of the comment, which identifies it.
            render: Returns the text of the comment, with the marker, in at most the given number of bytes.
            max_bytes: The first limit; halved up to three times if GitHub rejects the text as too long.
            author: The author of the comment that is updated; None means the token's owner.
        """
        author = author or self._retry(self._token_owner)
        for divisor in (1, 2, 4, 8):
            body = render(max_bytes // divisor)
            try:
                # Each try searches again, so that a lost response does not create a second comment.
                return self._retry(partial(self._update, number, marker_line, body, author))
            except _TooLongError:
                continue
        raise GitHubError(f"GitHub rejects a comment of {max_bytes // 8} bytes as too long")

    def _update(self, number: int, marker_line: str, body: str, author: str) -> PostedComment:
        issues = f"/repos/{self._repository}/issues"
        for comment in self._comments(f"{issues}/{number}/comments"):
            user = comment.get("user")
            is_own = isinstance(user, dict) and user.get("login") == author
            if is_own and str(comment.get("body") or "").startswith(marker_line):
                path = f"{issues}/comments/{int(comment['id'])}"
                return PostedComment(
                    _comment_url(self._request("PATCH", path, json={"body": body})), is_new=False
                )
        created_comment = self._request("POST", f"{issues}/{number}/comments", json={"body": body})
        return PostedComment(_comment_url(created_comment), is_new=True)

    def _comments(self, path: str) -> Iterator[dict[str, Any]]:
        for page in range(1, MAX_PAGES + 1):
            comments = self._request("GET", path, params={"per_page": COMMENTS_PER_PAGE, "page": page})
            yield from _dict_items(comments)
            if not isinstance(comments, list) or len(comments) < COMMENTS_PER_PAGE:
                return
        max_comments = MAX_PAGES * COMMENTS_PER_PAGE
        raise GitHubError(
            f"GitHub lists more than {max_comments:,} comments on this pull request; delete some of them"
        )

    def _token_owner(self) -> str:
        try:
            user = self._request("GET", "/user")
        except GitHubError:  # the token of a job may not read its owner
            return ACTIONS_AUTHOR
        login = user.get("login") if isinstance(user, dict) else None
        return login if isinstance(login, str) else ACTIONS_AUTHOR

    def _retry(self, attempt: Callable[[], T]) -> T:
        """Call `attempt`, retry it with increasing delays, and return its result."""
        for attempt_number in range(1, MAX_TRIES + 1):
            try:
                return attempt()
            except _RetryError as error:
                pause = error.pause if error.pause is not None else 2.0 ** (attempt_number - 1)
                if attempt_number == MAX_TRIES or pause > MAX_PAUSE_SECONDS:
                    pause_text = (
                        f", and asks to wait {pause:.0f} seconds" if pause > MAX_PAUSE_SECONDS else ""
                    )
                    message = self._secrets.remove_from(
                        f"GitHub did not answer in {attempt_number} tries{pause_text}: {error}"
                    )
                    raise GitHubError(message) from None
                self._sleep(pause)
        raise AssertionError("the loop returns or raises")

    def _request(self, method: str, path: str, **arguments: Any) -> Any:
        """Send a request, and return the JSON of its response."""
        import httpx2

        from pytest_trace2evolve.utils.http import run_with_timeout

        async def send() -> httpx2.Response:
            async with self._client() as client:
                return await client.request(method, path, **arguments)

        try:
            response = run_with_timeout(self._timeout, send)
        except TimeoutError:
            raise _RetryError(f"no complete response within {self._timeout:g} seconds") from None
        except httpx2.HTTPError as error:
            raise _RetryError(f"{type(error).__name__}: {error}") from None
        if response.is_success:
            try:
                return response.json()
            except (ValueError, RecursionError):
                raise _RetryError("the response is not JSON") from None
        reason = _error_reason(response)
        if response.status_code >= 500 or response.status_code == 429 or _is_rate_limit(response, reason):
            raise _RetryError(f"{response.status_code} {reason}", _requested_pause(response))
        if response.status_code == 422 and method in ("POST", "PATCH") and "too long" in reason:
            raise _TooLongError
        raise GitHubError(
            self._secrets.remove_from(f"GitHub rejects {method} {path}: {response.status_code} {reason}")
        )


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

    def render(max_bytes: int) -> str:
        return run_markdown(summary, max_bytes=max_bytes, head=head, foot=foot)

    return github.post(pull_request, marker_line, render, max_bytes=MAX_COMMENT_BYTES, author=author)


def _dict_items(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _comment_url(comment: Any) -> str:
    return str(comment.get("html_url") or "") if isinstance(comment, dict) else ""


def _error_reason(response: "httpx2.Response") -> str:
    """Return GitHub's reason for rejecting a request, in one line."""
    try:
        error_body = response.json()
    except (ValueError, RecursionError):
        return response.reason_phrase
    if not isinstance(error_body, dict):
        return ""
    errors = _dict_items(error_body.get("errors"))
    messages = [error_body.get("message"), *(item.get("message") for item in errors)]
    return " ".join(" ".join(str(message or "") for message in messages).split())[:300]


def _is_rate_limit(response: "httpx2.Response", reason: str) -> bool:
    if response.status_code != 403:
        return False
    is_spent = response.headers.get("x-ratelimit-remaining") == "0"
    return is_spent or "retry-after" in response.headers or "rate limit" in reason.lower()


def _requested_pause(response: "httpx2.Response") -> float | None:
    """Return the seconds that GitHub asks the client to wait; None if it does not ask."""
    retry_after = response.headers.get("retry-after", "")
    if retry_after.isdecimal():
        return float(retry_after)
    reset_time = response.headers.get("x-ratelimit-reset", "")
    if response.headers.get("x-ratelimit-remaining") == "0" and reset_time.isdecimal():
        return max(0.0, float(reset_time) - time.time())
    return None
