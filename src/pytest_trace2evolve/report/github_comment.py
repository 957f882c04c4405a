"""One comment on a pull request that every run updates, through GitHub's REST API."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from pytest_trace2evolve.errors import ConfigError, GitHubError
from pytest_trace2evolve.records.verdict import RunSummary
from pytest_trace2evolve.report.github import COMMENT_LIMIT, run_markdown
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.secrets import Secrets

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

API_URL = "https://api.github.com"
ACTIONS_AUTHOR = "github-actions[bot]"
"""The author of comments that are written with a job's own token."""

TRIES = 5
MAX_PAUSE = 60.0
"""The longest pause in seconds. If GitHub asks for more, the comment is given up to save the job's time."""

MAX_PAGES = 100
COMMENTS_PER_PAGE = 100
"""The most comments that GitHub returns in one page."""

MAX_ANSWER_BYTES = 64 << 20
"""Room for a page of a hundred comments of up to 65,536 characters, escaped."""

MAX_KEY = 100
"""The most characters of a key that the marker holds unchanged. A longer key is replaced by its digest."""

_UNTRUSTED = (
    "> **Measured by the pull request's own code, which nobody has reviewed.** Its figures are a claim; "
    "run it again after a review before you believe them."
)

_REPOSITORY = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")


class _RetryError(Exception):
    """A request that may succeed later; `pause` is the pause that GitHub asks for, in seconds."""

    def __init__(self, why: str, pause: float | None = None) -> None:
        super().__init__(why)
        self.pause = pause


class _TooLongError(Exception):
    """GitHub rejects the comment as too long."""


@dataclass(frozen=True)
class PostedComment:
    """The address of a comment, and whether it was created or updated."""

    url: str
    created: bool


def marker(key: str) -> str:
    """The hidden line by which a comment is found again; `key` distinguishes several comments."""
    # An HTML comment must not contain two hyphens in a row.
    key = key if len(key) <= MAX_KEY else digest_text(key)
    return f"<!-- trace2evolve: {quote(key, safe='').replace('-', '%2D')} -->"


class GitHub:
    """The part of GitHub's API that one comment needs.

    Args:
        repository: `owner/name`.
        token: Authorizes the requests; no message shows it.
        api_url: The API of github.com, or of a different server.
        sleep: The function that waits between tries; None uses `time.sleep`.
        timeout: Seconds for one request and its whole answer.

    Requests raise GitHubError if GitHub refuses, or does not answer in several tries.
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
        found = self._retry(lambda: self._request("GET", path, params={"head": head, "state": "open"}))
        for pull in _dictionaries(found):
            branch = pull.get("head")
            if isinstance(branch, dict) and (branch.get("label"), branch.get("sha")) == (head, sha):
                return int(pull["number"])
        return None

    def post(
        self, number: int, mark: str, render: Callable[[int], str], *, limit: int, author: str | None = None
    ) -> PostedComment:
        """Update the comment with this marker on a pull request, or create it.

        Args:
            number: The pull request's number.
            mark: The comment's first line.
            render: Returns the comment's text in at most the given number of bytes, the marker included.
            limit: Bytes to begin with; halved up to three times if GitHub rejects the text as too long.
            author: The author of the comment that is updated; None means the token's owner.
        """
        author = author or self._retry(self._token_owner)
        for divisor in (1, 2, 4, 8):
            body = render(limit // divisor)
            try:
                # Each try searches again, so that a comment whose answer was lost is not created twice.
                return self._retry(partial(self._update, number, mark, body, author))
            except _TooLongError:
                continue
        raise GitHubError(f"GitHub finds a comment of {limit // 8} bytes too long")

    def _update(self, number: int, mark: str, body: str, author: str) -> PostedComment:
        issues = f"/repos/{self._repository}/issues"
        for comment in self._comments(f"{issues}/{number}/comments"):
            writer = comment.get("user")
            own = isinstance(writer, dict) and writer.get("login") == author
            if own and str(comment.get("body") or "").startswith(mark):
                path = f"{issues}/comments/{int(comment['id'])}"
                return PostedComment(
                    _address(self._request("PATCH", path, json={"body": body})), created=False
                )
        made = self._request("POST", f"{issues}/{number}/comments", json={"body": body})
        return PostedComment(_address(made), created=True)

    def _comments(self, path: str) -> Iterator[dict[str, Any]]:
        for page in range(1, MAX_PAGES + 1):
            found = self._request("GET", path, params={"per_page": COMMENTS_PER_PAGE, "page": page})
            yield from _dictionaries(found)
            if not isinstance(found, list) or len(found) < COMMENTS_PER_PAGE:
                return
        most = MAX_PAGES * COMMENTS_PER_PAGE
        raise GitHubError(f"GitHub lists more than {most:,} comments; delete some of them")

    def _token_owner(self) -> str:
        try:
            found = self._request("GET", "/user")
        except GitHubError:  # a job's own token is not allowed to ask
            return ACTIONS_AUTHOR
        login = found.get("login") if isinstance(found, dict) else None
        return login if isinstance(login, str) else ACTIONS_AUTHOR

    def _retry(self, attempt: Callable[[], T]) -> T:
        """Call `attempt`, retry it with increasing delays, and return its result."""
        for number in range(1, TRIES + 1):
            try:
                return attempt()
            except _RetryError as error:
                pause = error.pause if error.pause is not None else 2.0 ** (number - 1)
                if number == TRIES or pause > MAX_PAUSE:
                    waits = f", and asks to wait {pause:.0f} seconds" if pause > MAX_PAUSE else ""
                    why = self._secrets.out_of(f"GitHub did not answer in {number} tries{waits}: {error}")
                    raise GitHubError(why) from None
                self._sleep(pause)
        raise AssertionError("the loop returns or raises")

    def _request(self, method: str, path: str, **content: Any) -> Any:
        """One request's answer as JSON."""
        import httpx2

        from pytest_trace2evolve.utils.http import answered_within

        async def ask() -> httpx2.Response:
            async with self._client() as client:
                return await client.request(method, path, **content)

        try:
            answer = answered_within(self._timeout, ask)
        except TimeoutError:
            raise _RetryError(f"no whole answer within {self._timeout:g} seconds") from None
        except httpx2.HTTPError as error:
            raise _RetryError(f"{type(error).__name__}: {error}") from None
        if answer.is_success:
            try:
                return answer.json()
            except (ValueError, RecursionError):
                raise _RetryError("its answer is not JSON") from None
        reason = _reason(answer)
        if answer.status_code >= 500 or answer.status_code == 429 or _is_rate_limit(answer, reason):
            raise _RetryError(f"{answer.status_code} {reason}", _requested_pause(answer))
        if answer.status_code == 422 and method in ("POST", "PATCH") and "too long" in reason:
            raise _TooLongError
        raise GitHubError(
            self._secrets.out_of(f"GitHub refuses {method} {path}: {answer.status_code} {reason}")
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
    untrusted: bool = False,
) -> PostedComment | None:
    """Report a run in one comment on its pull request.

    Returns None if no open pull request has the branch at the commit.

    Args:
        github: The repository.
        summary: The run.
        pull_request: Its number; if not given, it is found by `branch` (`owner:branch`) and `sha`.
        sha: The commit that was measured.
        key: Distinguishes several comments of one pull request; if not given, the suites' names do.
        author: The author of the comment that is updated; if not given, the token's owner.
        run_url: Page of the job that measured.
        untrusted: Whether the run executed code that nobody reviewed.
    """
    if pull_request is None:
        pull_request = github.pull_request(branch or "", sha or "")
    if pull_request is None:
        return None
    mark = marker(key or "+".join(sorted(suite.name for suite in summary.suites)))
    head = "\n\n".join([mark, _UNTRUSTED] if untrusted else [mark])
    # Only our own words, and values whose form the caller has checked.
    facts = [f"commit `{sha[:12]}`"] if sha else []
    facts += [f"[job and artifacts]({run_url})"] if run_url else []
    foot = f"*{' · '.join(facts)}*" if facts else ""

    def render(limit: int) -> str:
        return run_markdown(summary, limit=limit, head=head, foot=foot)

    return github.post(pull_request, mark, render, limit=COMMENT_LIMIT, author=author)


def _dictionaries(found: Any) -> list[dict[str, Any]]:
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _address(comment: Any) -> str:
    return str(comment.get("html_url") or "") if isinstance(comment, dict) else ""


def _reason(answer: "httpx2.Response") -> str:
    """GitHub's reason for a refusal, in one line."""
    try:
        record = answer.json()
    except (ValueError, RecursionError):
        return answer.reason_phrase
    if not isinstance(record, dict):
        return ""
    messages = [record.get("message"), *(item.get("message") for item in _dictionaries(record.get("errors")))]
    return " ".join(" ".join(str(message or "") for message in messages).split())[:300]


def _is_rate_limit(answer: "httpx2.Response", reason: str) -> bool:
    if answer.status_code != 403:
        return False
    spent = answer.headers.get("x-ratelimit-remaining") == "0"
    return spent or "retry-after" in answer.headers or "rate limit" in reason.lower()


def _requested_pause(answer: "httpx2.Response") -> float | None:
    """The seconds that GitHub asks to wait; None if it does not ask."""
    after = answer.headers.get("retry-after", "")
    if after.isdecimal():
        return float(after)
    reset = answer.headers.get("x-ratelimit-reset", "")
    if answer.headers.get("x-ratelimit-remaining") == "0" and reset.isdecimal():
        return max(0.0, float(reset) - time.time())
    return None
