"""The part of GitHub's API that comments take, on loopback, and a `gh` that calls it."""

import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

LIMIT = 65_536
REPOSITORY = "acme/agents"
Answer = tuple[int, Any, dict[str, str]]

GH = """#!{python}
import json, os, sys, urllib.error, urllib.request

def call(path):
    data = sys.stdin.buffer.read() if "--input" in sys.argv else None
    headers = {{"authorization": "token " + os.environ["GH_TOKEN"]}}
    url = "{url}/" + path
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=sys.argv[3])) as answer:
        return answer.read().decode()

assert sys.argv[1:3] == ["api", "--method"], sys.argv
path = sys.argv[-1]
try:
    if "--paginate" not in sys.argv or "per_page" not in path:
        print(call(path))
    else:
        page, size = 1, 100
        while size == 100:
            text = call(path + "&page=" + str(page))
            print(text, end="")
            page, size = page + 1, len(json.loads(text))
except urllib.error.HTTPError as error:
    text = error.read().decode()
    print(text)
    sys.exit("gh: " + json.loads(text)["message"] + " (HTTP " + str(error.code) + ")")
"""
"""A program that calls the fake as `gh api` calls GitHub (gh 2.23)."""


class FakeGitHub:
    """Comments and pull requests of one repository; `plan` may answer a request instead.

    Attributes:
        login: Whose token it is; empty for a job's own, which may not ask.
        comments: All comments by pull request, in the order in which they were made.
        pulls: What the list of open pull requests holds.
        plan: Called with method and path before anything else; None from it serves the request as usual.
        requests: Method and path of each request, in order.
    """

    def __init__(self) -> None:
        self.login = ""
        self.comments: dict[int, list[dict[str, Any]]] = {}
        self.pulls: list[dict[str, Any]] = []
        self.plan: Callable[[str, str], Answer | None] = lambda method, path: None
        self.requests: list[tuple[str, str]] = []
        self.tokens: set[str] = set()
        self._ids = iter(range(1_000, 10_000))
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else {}
                status, record, headers = fake.serve(self.command, self.path, body)
                fake.tokens.add(self.headers.get("authorization", ""))
                content = record if isinstance(record, bytes) else json.dumps(record).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PATCH = answer  # noqa: N815 - the names that the base class asks for

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def install(self, folder: Path) -> Path:
        """Write a `gh` that calls this server into a folder for the PATH, and return the folder."""
        folder.mkdir(exist_ok=True)
        (folder / "gh").write_text(GH.format(python=sys.executable, url=self.url), encoding="utf-8")
        (folder / "gh").chmod(0o755)
        return folder

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def add(self, number: int, body: str, login: str = "github-actions[bot]") -> dict[str, Any]:
        """Put a comment on a pull request."""
        comment = {"id": next(self._ids), "body": body, "user": {"login": login}}
        comment["html_url"] = f"https://github.example/{REPOSITORY}/pull/{number}#{comment['id']}"
        self.comments.setdefault(number, []).append(comment)
        return comment

    def serve(self, method: str, target: str, body: dict[str, Any]) -> Answer:
        """Answer one request."""
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        self.requests.append((method, path))
        planned = self.plan(method, path)
        if planned is not None:
            return planned
        if path == "/user":
            return (200, {"login": self.login}, {}) if self.login else refusal(403)
        parts = path.removeprefix(f"/repos/{REPOSITORY}/").split("/")
        match method, parts:
            case "GET", ["pulls"]:
                return 200, self.pulls, {}
            case "GET", ["issues", number, "comments"]:
                size, page = int(query["per_page"][0]), int(query["page"][0])
                return 200, self.comments.get(int(number), [])[(page - 1) * size : page * size], {}
            case "POST", ["issues", number, "comments"]:
                assert len(body["body"]) <= LIMIT
                return 201, self.add(int(number), body["body"], self.login or "github-actions[bot]"), {}
            case "PATCH", ["issues", "comments", wanted]:
                (found,) = (
                    one for some in self.comments.values() for one in some if str(one["id"]) == wanted
                )
                assert len(body["body"]) <= LIMIT
                found["body"] = body["body"]
                return 200, found, {}
        return refusal(404)


def refusal(status: int, message: str = "", **headers: str) -> Answer:
    """An error as GitHub words it."""
    texts = {403: "Resource not accessible by integration", 404: "Not Found", 500: "Server Error"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, {"message": message or texts.get(status, "")}, named
