"""`trace2evolve comment`: a run's summary as one comment on its pull request."""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.errors import ConfigError, GitHubError

if TYPE_CHECKING:
    from pytest_trace2evolve.records.verdict import RunSummary

TOKEN_VAR = "GITHUB_TOKEN"

_UNTRUSTED = (
    "> **Measured by the pull request's own code, which nobody has reviewed.** Its figures are a claim; "
    "run it again after a review before you believe them."
)


def add_comment(commands: Any) -> None:
    """Declare the command."""
    comment = commands.add_parser(
        "comment", help="tell a pull request of a run, in one comment that is renewed"
    )
    comment.add_argument("file", type=Path, metavar="FILE", help="what pytest --t2e-summary FILE.json wrote")
    comment.add_argument("--repo", metavar="OWNER/NAME", help="repository (default: GITHUB_REPOSITORY)")
    where = comment.add_mutually_exclusive_group(required=True)
    where.add_argument("--pr", type=_number, metavar="N", help="number of the pull request")
    where.add_argument(
        "--head", metavar="OWNER:BRANCH", help="or the branch that it comes from; then --sha is needed"
    )
    comment.add_argument("--sha", type=_sha, metavar="SHA", help="the commit that was measured")
    comment.add_argument(
        "--key", help="tells several comments of one pull request apart (default: its suites)"
    )
    comment.add_argument(
        "--author", metavar="LOGIN", help="who writes the comment (default: the token's owner)"
    )
    comment.add_argument("--run-url", type=_url, metavar="URL", help="page of the job that measured")
    comment.add_argument(
        "--untrusted", action="store_true", help="the run was that of unreviewed code: say so"
    )
    comment.add_argument(
        "--best-effort", action="store_true", help="exit 0 with one line where GitHub refuses or is away"
    )
    comment.set_defaults(command=_comment)


def _comment(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.report.summary import read_summary

    if options.head and not options.sha:
        raise ConfigError("--head names a branch, which moves: give --sha, the commit that was measured, too")
    summary = read_summary(options.file)
    try:
        told = _post(options, summary)
    except GitHubError as error:
        if not options.best_effort:
            raise
        print(f"trace2evolve: no comment: {error}; the job's summary tells the same", file=sys.stderr)
        return 0
    print(told)
    return 0


def _post(options: argparse.Namespace, summary: "RunSummary") -> str:
    from pytest_trace2evolve.report.comments import API_URL, GitHub, marker
    from pytest_trace2evolve.report.github import COMMENT_LIMIT, run_markdown

    repository = options.repo or os.environ.get("GITHUB_REPOSITORY")
    if not repository:
        raise ConfigError("which repository? give --repo OWNER/NAME or set GITHUB_REPOSITORY")
    token = os.environ.get(TOKEN_VAR)
    if not token:
        raise GitHubError(f"no token: set {TOKEN_VAR} to one that may write to pull requests")
    mark = marker(options.key or "+".join(sorted(suite.name for suite in summary.suites)))
    head = "\n\n".join([mark, _UNTRUSTED] if options.untrusted else [mark])

    def rendered(limit: int) -> str:
        return run_markdown(summary, limit=limit, head=head, foot=_foot(options))

    github = GitHub(repository, token, api_url=os.environ.get("GITHUB_API_URL") or API_URL)
    number = options.pr
    if number is None:
        number = github.pull_request(options.head, options.sha)
    if number is None:
        return f"no comment: no open pull request has {options.head} at {options.sha}"
    posted = github.post(number, mark, rendered, limit=COMMENT_LIMIT, author=options.author)
    return f"comment {'made' if posted.created else 'renewed'}: {posted.url}"


def _foot(options: argparse.Namespace) -> str:
    """What was measured and where: words of our own, and values whose form was checked."""
    facts = []
    if options.sha:
        facts.append(f"commit `{options.sha[:12]}`")
    if options.run_url:
        facts.append(f"[job and artifacts]({options.run_url})")
    return f"*{' · '.join(facts)}*" if facts else ""


def _number(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a pull request")
    return int(text)


def _sha(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{40}([0-9a-f]{24})?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole commit id")
    return text


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://[A-Za-z0-9._~:/?#%&=+-]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the address of a page")
    return text
