"""`trace2evolve show --serve`: its pages, who may see them, and sealed traces only on request."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
import uvicorn

from pytest_trace2evolve.cli.view import make_app
from pytest_trace2evolve.project.project import Project
from tests.plugin.conftest import DeskProject
from tests.plugin.test_failures import PLANTED, accesses, vault


class Site:
    """A server of a project's pages in a thread."""

    def __init__(self, root: Path, token: str | None = None) -> None:
        app = make_app(Project(root, root / "suites"), token)
        config = uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    def ask(self, path: str, body: str | None = None, **headers: str) -> tuple[int, str]:
        """The status and the text of an answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET" if body is None else "POST", path, body, names)
        answer = connection.getresponse()
        text = answer.read().decode()
        cookie = answer.headers.get("set-cookie", "")
        connection.close()
        return answer.status, text + cookie

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture
def site(project: DeskProject) -> Iterator[Site]:
    project.baseline()
    project.after("--candidate=v1")
    opened = Site(project.root)
    yield opened
    opened.close()


def last_run(project: DeskProject) -> str:
    return project.runs[-1].name


def test_the_pages_show_verdicts_candidates_and_the_ledger(project: DeskProject, site: Site) -> None:
    status, text = site.ask("/")
    assert status == 200
    assert "Verdicts over time: <bdi>desk · heldout</bdi>" in text
    assert 'class="badge small promote"' in text
    assert '<svg class="plot"' in text
    assert text.count(f'href="/runs/{last_run(project)}"') == 2
    status, text = site.ask("/candidates?suite=desk")
    assert re.findall(r'<th class="figure"><bdi>(\w+)</bdi>', text) == ["v1", "v0"]
    assert '<td class="figure broken"><span class="state">0/1</span>' in text
    assert re.findall(r'<li class="depth-(\d)"><b><bdi>(\w+)', text) == [
        ("0", "v0"),
        ("1", "v1"),
        ("2", "v2"),
    ]
    status, text = site.ask("/ledger")
    assert "v1 against v0: PROMOTE" in text


def test_a_run_shows_its_report_page(project: DeskProject, site: Site) -> None:
    status, text = site.ask(f"/runs/{last_run(project)}")
    page = (project.runs[-1] / "report.html").read_text(encoding="utf-8")
    assert status == 200
    without_links = re.sub(r'<a class="tag" href="[^"]*">sealed</a>', "", text)
    assert without_links == re.sub(r'<span class="tag" title="the ledger[^"]*">sealed</span>', "", page)
    ungated = project.runs[0].name
    assert "The run has no summary" in site.ask(f"/runs/{ungated}")[1]
    assert site.ask("/runs/..")[0] == 404
    assert site.ask("/runs/%2e%2e%2fruns")[0] == 404


def test_requests_of_others_are_rejected(project: DeskProject, site: Site) -> None:
    assert site.ask("/", Host="evil.example")[0] == 403
    assert site.ask("/", Host=f"localhost:{site.port}")[0] == 200
    assert site.ask("/", Sec_Fetch_Site="cross-site")[0] == 403
    guarded = Site(project.root, "a-token")
    try:
        assert guarded.ask("/")[0] == 403
        assert guarded.ask("/?token=a-guess")[0] == 403
        status, cookie = guarded.ask("/?token=a-token")
        assert (status, "HttpOnly" in cookie, "SameSite=strict" in cookie) == (303, True, True)
        assert guarded.ask("/", Cookie="trace2evolve_token=a-token", Host="desk.example")[0] == 200
    finally:
        guarded.close()


def test_a_sealed_trace_is_shown_after_its_access_is_recorded(
    project: DeskProject, capsys: pytest.CaptureFixture[str]
) -> None:
    vault(project, "heldout", capsys)
    project.after("--candidate=v0", "--t2e-save-baseline=v0", "--t2e-gate=off")
    project.after("--candidate=v1")
    site = Site(project.root)
    try:
        _, page = site.ask(f"/runs/{last_run(project)}")
        link = f"/runs/{last_run(project)}/trace?suite=desk&amp;task=vault"
        assert f'<a class="tag" href="{link}">sealed</a>' in page
        path = link.replace("&amp;", "&")
        _, question = site.ask(path)
        assert "desk::heldout, which is sealed" in question
        nonce = re.findall(r'name="nonce" value="([^"]+)"', question)[0]
        assert "which is sealed" in site.ask(path, "nonce=guess")[1]
        assert "which is sealed" in site.ask(path, "")[1]
        assert list(accesses(project)) == []
        assert not any(word in page + question for word in PLANTED)
        _, text = site.ask(path, urllib.parse.urlencode({"nonce": nonce}))
        assert "recorded in the ledger: this access to desk::heldout" in text
        assert all(word in text for word in ("agentword", "callword", "userword"))
        assert list(accesses(project)) == [("heldout", "vault")]
    finally:
        site.close()


def test_a_running_session_is_counted_until_it_ends(project: DeskProject) -> None:
    folder = project.root / ".trace2evolve" / "runs" / "2026-11-29T000000-v1-abc" / "simulations"
    folder.mkdir(parents=True)
    for number, reward in enumerate([1.0, 0.0, None]):
        content = {"id": str(number), "reward_info": None if reward is None else {"reward": reward}}
        (folder / f"{number}.json").write_text(json.dumps(content))
    command = [
        sys.executable,
        "-m",
        "pytest_trace2evolve.cli",
        "show",
        "--serve",
        "--root",
        str(project.root),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()[2]
        with urllib.request.urlopen(f"{address}/events", timeout=60) as events:
            line = next(line for line in events if line.startswith(b"data:"))
            (session,) = json.loads(line.removeprefix(b"data:"))
            assert session == {"run": folder.parent.name, "passed": 1, "failed": 1, "lost": 1}
            (folder.parent / "results.json").write_text("{}")
            assert json.loads(next(line for line in events if line.startswith(b"data:"))[5:]) == []
            server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) in (0, -signal.SIGINT, 130)
