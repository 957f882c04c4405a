"""The part of GitHub's API that comments take: a `gh` that keeps them in a file."""

import json
import sys
from pathlib import Path
from typing import Any

LIMIT = 65_536

GH = """#!{python}
import argparse, json, os, pathlib, subprocess, sys
parser, store = argparse.ArgumentParser(), pathlib.Path({store!r})
for name in ("--jq", "--method", "-F"):
    parser.add_argument(name)
parser.add_argument("--paginate", action="store_true")
parser.add_argument("command", choices=["api"])
parser.add_argument("path")
options = parser.parse_args()
state = json.loads(store.read_text())
state["calls"].append([options.method, options.path, os.environ["GH_TOKEN"], os.environ.get("GH_HOST")])
comments, issues, answer = state["comments"], "repos/acme/agents/issues", None
body = sys.stdin.read() if options.F == "body=@-" else ""
assert len(body) <= {limit}
if options.path == "user":
    answer = {{"login": state["login"]}} if state["login"] else None
elif state["refuses"]:
    pass
elif options.method == "PATCH":
    (answer,) = (one for one in comments if options.path == issues + "/comments/" + str(one["id"]))
    answer["body"] = body
elif body:
    assert options.path == issues + "/7/comments"
    answer = {{"id": 1000 + len(comments), "body": body, "html_url": "https://github.example/7"}}
    answer["user"] = {{"login": state["login"] or "github-actions[bot]"}}
    comments.append(answer)
else:
    assert options.path == issues + "/7/comments?per_page=100" and options.paginate
    answer = comments
store.write_text(json.dumps(state))
if answer is None:
    sys.exit("gh: Resource not accessible by integration (HTTP 403)")
sys.exit(subprocess.run(["jq", "-r", options.jq], input=json.dumps(answer), text=True).returncode)
"""
"""A program that answers as `gh api` does (gh 2.23), with `jq` for its option `--jq`."""


class FakeGitHub:
    """The comments of pull request 7 of acme/agents, with a `gh` that reads and writes them.

    Attributes:
        folder: The folder with `gh`, for the PATH.
    """

    def __init__(self, folder: Path, login: str = "", *, refuses: bool = False) -> None:
        self.folder = folder
        self._store = folder / "github.json"
        folder.mkdir(exist_ok=True)
        state = {"login": login, "comments": [], "calls": [], "refuses": refuses}
        self._store.write_text(json.dumps(state), encoding="utf-8")
        text = GH.format(python=sys.executable, store=str(self._store), limit=LIMIT)
        (folder / "gh").write_text(text, encoding="utf-8")
        (folder / "gh").chmod(0o755)

    @property
    def state(self) -> dict[str, Any]:
        """The comments so far, and method, path, token and host of each call."""
        state: dict[str, Any] = json.loads(self._store.read_text(encoding="utf-8"))
        return state

    @property
    def comments(self) -> list[dict[str, Any]]:
        """All comments, in the order in which they were made."""
        comments: list[dict[str, Any]] = self.state["comments"]
        return comments

    def add(self, body: str, login: str) -> None:
        """Put a comment on the pull request."""
        state = self.state
        state["comments"].append({"id": 10 + len(state["comments"]), "body": body, "user": {"login": login}})
        self._store.write_text(json.dumps(state), encoding="utf-8")
