"""One comment on a pull request that every run renews, through GitHub's REST API."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from pytest_trace2evolve.errors import ConfigError, GitHubError
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.secrets import Secrets

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

API_URL = "https://api.github.com"
ACTIONS_AUTHOR = "github-actions[bot]"
"""Who writes what a job's own token writes."""

TRIES = 5
LONGEST_PAUSE = 60.0
"""Seconds; where GitHub asks for more, the comment is given up rather than the job's time."""

_PAGE = 100
"""Comments a page: the most that GitHub gives."""

MAX_PAGES = 100
"""Pages of comments that are looked through."""

MAX_PAGE = 64 << 20
"""Bytes of an answer: a page holds a hundred comments of up to 65,536 characters, escaped."""

LONGEST_KEY = 100
"""Characters of a key that stand in the mark as they are; a longer one is digested."""

_REPOSITORY = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")


class _TryAgainError(Exception):
    """A request that may do later; `pause` is what GitHub asks for, in seconds."""

    def __init__(self, why: str, pause: float | None = None) -> None:
        super().__init__(why)
        self.pause = pause


class _TooLongError(Exception):
    """GitHub finds the comment too long."""


@dataclass(frozen=True)
class Posted:
    """What became of a comment: its address, and whether it was made anew."""

    url: str
    created: bool


def marker(key: str) -> str:
    """The hidden line by which a comment is found again; `key` tells several comments apart."""
    # A comment of HTML must hold no two hyphens in a row.
    key = key if len(key) <= LONGEST_KEY else digest_text(key)
    return f"<!-- trace2evolve: {quote(key, safe='').replace('-', '%2D')} -->"


class GitHub:
    """The little of GitHub's API that one comment takes.

    Args:
        repository: `owner/name`.
        token: What it asks with; nothing shows it.
        api_url: The API of github.com, or of a server of one's own.
        sleep: Waits for some seconds between tries; None sleeps.
        timeout: Seconds for one request and its whole answer.

    Raises:
        ConfigError: `repository` is none.
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
        import httpx2

        from pytest_trace2evolve.utils.http import bounded_client

        if not _REPOSITORY.fullmatch(repository):
            raise ConfigError(f"--repo {repository!r} is not OWNER/NAME")
        self._repository = repository
        self._secrets = Secrets([token])
        self._sleep = sleep or time.sleep
        self._timeout = timeout
        self._client = partial(
            bounded_client,
            MAX_PAGE,
            base_url=api_url.rstrip("/"),
            timeout=timeout,
            verify=httpx2.create_ssl_context(),
            headers={
                "accept": "application/vnd.github+json",
                "authorization": f"Bearer {token}",
                "user-agent": "pytest-trace2evolve",
                "x-github-api-version": "2022-11-28",
            },
        )

    def pull_request(self, head: str, sha: str) -> int | None:
        """The open pull request whose head is branch `head` (`owner:branch`) at commit `sha`; None for none.

        Raises:
            GitHubError: GitHub refuses, or does not answer.
        """
        path = f"/repos/{self._repository}/pulls"
        found = self._again(lambda: self._ask("GET", path, params={"head": head, "state": "open"}))
        for pull in _dictionaries(found):
            branch = pull.get("head")
            if isinstance(branch, dict) and (branch.get("label"), branch.get("sha")) == (head, sha):
                return int(pull["number"])
        return None

    def post(
        self,
        number: int,
        mark: str,
        rendered: Callable[[int], str],
        *,
        limit: int,
        author: str | None = None,
    ) -> Posted:
        """Renew the comment with this mark on a pull request, or make it.

        Args:
            number: The pull request's number.
            mark: The comment's first line.
            rendered: The comment's text of at most so many bytes, the mark included.
            limit: Bytes to begin with; halved up to three times where GitHub finds the text too long.
            author: Who must have written the comment that is renewed; None: whoever the token is.

        Raises:
            GitHubError: GitHub refuses, or does not answer.
        """
        author = author or self._again(self._whose)
        for share in (1, 2, 4, 8):
            body = rendered(limit // share)
            try:
                # The search is a part of each try: a comment that was made although its answer was lost is
                # found then, and not made twice.
                return self._again(partial(self._renew, number, mark, body, author))
            except _TooLongError:
                continue
        raise GitHubError(f"GitHub finds a comment of {limit // 8} bytes too long")

    def _renew(self, number: int, mark: str, body: str, author: str) -> Posted:
        issue = f"/repos/{self._repository}/issues"
        for comment in self._comments(f"{issue}/{number}/comments"):
            writer = comment.get("user")
            own = isinstance(writer, dict) and writer.get("login") == author
            if own and str(comment.get("body") or "").startswith(mark):
                changed = self._ask("PATCH", f"{issue}/comments/{int(comment['id'])}", json={"body": body})
                return Posted(_address(changed), created=False)
        made = self._ask("POST", f"{issue}/{number}/comments", json={"body": body})
        return Posted(_address(made), created=True)

    def _comments(self, path: str) -> Iterator[dict[str, Any]]:
        for page in range(1, MAX_PAGES + 1):
            found = self._ask("GET", path, params={"per_page": _PAGE, "page": page})
            yield from _dictionaries(found)
            if not isinstance(found, list) or len(found) < _PAGE:
                return
        raise GitHubError(f"GitHub lists more than {MAX_PAGES * _PAGE:,} comments; delete some of them")

    def _whose(self) -> str:
        """Who the token is. A job's own token may not ask."""
        try:
            found = self._ask("GET", "/user")
        except GitHubError:
            return ACTIONS_AUTHOR
        login = found.get("login") if isinstance(found, dict) else None
        return login if isinstance(login, str) else ACTIONS_AUTHOR

    def _again(self, attempt: Callable[[], T]) -> T:
        """What an attempt comes to, tried again with growing pauses.

        Raises:
            GitHubError: it was refused, or no try was answered.
        """
        for number in range(1, TRIES + 1):
            try:
                return attempt()
            except _TryAgainError as error:
                pause = error.pause if error.pause is not None else 2.0 ** (number - 1)
                if number == TRIES or pause > LONGEST_PAUSE:
                    waits = f", and asks to wait {pause:.0f} seconds" if pause > LONGEST_PAUSE else ""
                    why = self._secrets.out_of(f"GitHub did not answer in {number} tries{waits}: {error}")
                    raise GitHubError(why) from None
                self._sleep(pause)
        raise AssertionError("a loop over tries ends in one of them")

    def _ask(self, method: str, path: str, **content: Any) -> Any:
        """One request's answer as JSON."""
        import httpx2

        from pytest_trace2evolve.utils.http import answered_within

        async def ask() -> httpx2.Response:
            async with self._client() as client:
                return await client.request(method, path, **content)

        try:
            answer = answered_within(self._timeout, ask)
        except TimeoutError:
            raise _TryAgainError(f"no whole answer within {self._timeout:g} seconds") from None
        except httpx2.HTTPError as error:
            raise _TryAgainError(f"{type(error).__name__}: {error}") from None
        if answer.is_success:
            try:
                return answer.json()
            except (ValueError, RecursionError):
                raise _TryAgainError("its answer is not JSON") from None
        said = _said(answer)
        if answer.status_code >= 500 or answer.status_code == 429 or _slow_down(answer, said):
            raise _TryAgainError(f"{answer.status_code} {said}", _asked_pause(answer))
        if answer.status_code == 422 and method in ("POST", "PATCH") and "too long" in said:
            raise _TooLongError
        raise GitHubError(
            self._secrets.out_of(f"GitHub refuses {method} {path}: {answer.status_code} {said}")
        )


def _dictionaries(found: Any) -> list[dict[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _address(comment: Any) -> str:
    return str(comment.get("html_url") or "") if isinstance(comment, dict) else ""


def _said(answer: "httpx2.Response") -> str:
    """What GitHub says of a refusal, in one line."""
    try:
        record = answer.json()
    except (ValueError, RecursionError):
        return answer.reason_phrase
    message = str(record.get("message") or "") if isinstance(record, dict) else ""
    errors = record.get("errors") if isinstance(record, dict) else None
    details = [str(one.get("message") or "") for one in _dictionaries(errors)]
    return " ".join(" ".join([message, *details]).split())[:300]


def _slow_down(answer: "httpx2.Response", said: str) -> bool:
    """Whether a 403 is GitHub's rate limit and no refusal."""
    if answer.status_code != 403:
        return False
    spent = answer.headers.get("x-ratelimit-remaining") == "0"
    return spent or "retry-after" in answer.headers or "rate limit" in said.lower()


def _asked_pause(answer: "httpx2.Response") -> float | None:
    """The seconds that GitHub asks to wait."""
    after = answer.headers.get("retry-after", "")
    if after.isdecimal():
        return float(after)
    reset = answer.headers.get("x-ratelimit-reset", "")
    if answer.headers.get("x-ratelimit-remaining") == "0" and reset.isdecimal():
        return max(0.0, float(reset) - time.time())
    return None
