"""`show --serve`: a local server of pages about a project. It reads, and records accesses to traces.

Every request must name a loopback host or carry the token, and must not come from another site. Only a POST
with the server's nonce opens a sealed trace.
"""

import argparse
import asyncio
import hmac
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlencode

from pytest_trace2evolve.cli.common import project_of
from pytest_trace2evolve.errors import ConfigError, Trace2EvolveError
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.report import view
from pytest_trace2evolve.report.page import page_html
from pytest_trace2evolve.report.summary import SUMMARY_NAME, read_summary
from pytest_trace2evolve.session.ledger import ProjectLedger, split_histories
from pytest_trace2evolve.session.page_data import run_facts
from pytest_trace2evolve.session.runs import (
    RunningSessions,
    candidate_columns,
    candidate_tree,
    list_runs,
    recorded_verdicts,
    run_folders,
)
from pytest_trace2evolve.session.traces import failed_tasks, open_trace, sealed_splits_of_task
from pytest_trace2evolve.utils.optional import require

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
TOKEN_COOKIE = "trace2evolve_token"
EVENT_SECONDS = 1.0
"""The time between two looks at the running sessions."""


def serve(options: argparse.Namespace) -> int:
    """Serve the project's pages until Ctrl-C."""
    project = project_of(options)
    host, _, port = options.serve.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ConfigError(f"--serve {options.serve}: expected PORT or HOST:PORT, with a port below 65536")
    require("starlette", extra="view")
    uvicorn = require("uvicorn", extra="view")
    is_local = host in {*LOOPBACK_HOSTS, "::1"}
    token = None if is_local else secrets.token_urlsafe(24)

    class Server(uvicorn.Server):  # type: ignore[name-defined,misc]  # an optional package
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                name = f"[{host}]" if ":" in host else host
                place = f"{name}:{self.servers[0].sockets[0].getsockname()[1]}"
                query = f"/?{urlencode({'token': token})}" if token else ""
                print(f"serving {project.root}: http://{place}{query} (Ctrl-C stops)", flush=True)

    config = uvicorn.Config(
        make_app(project, token),
        host=host,
        port=int(port),
        log_level="error",
        timeout_graceful_shutdown=1,  # a page that waits for events keeps its connection
    )
    Server(config).run()
    return 0


class Guard:
    """Rejects requests of other hosts, of other sites and without the token, before the app sees them."""

    def __init__(self, app: "ASGIApp", token: str | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse, RedirectResponse, Response

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        response: Response | None = None
        host = request.headers.get("host", "").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if self._token is None and name not in LOOPBACK_HOSTS:
            response = PlainTextResponse("the Host header names no loopback address", 403)
        elif request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            response = PlainTextResponse("the request comes from another site", 403)
        elif self._token is not None and not self._is_token(request.cookies.get(TOKEN_COOKIE)):
            response = PlainTextResponse("open the address that show --serve printed", 403)
            if self._is_token(request.query_params.get("token")):
                response = RedirectResponse("/", 303)
                response.set_cookie(TOKEN_COOKIE, self._token, httponly=True, samesite="strict")
        await (response or self._app)(scope, receive, send)

    def _is_token(self, text: str | None) -> bool:
        return hmac.compare_digest((text or "").encode(), (self._token or "").encode())


def make_app(project: Project, token: str | None = None) -> "Guard":
    """Make the server's application.

    Args:
        project: The project whose runs are shown.
        token: What requests must carry; None accepts requests to loopback hosts without a token.
    """
    from starlette.applications import Starlette
    from starlette.routing import Route

    pages = Pages(project)
    return Guard(
        Starlette(
            routes=[
                Route("/", pages.board),
                Route("/candidates", pages.candidates),
                Route("/ledger", pages.ledger),
                Route("/events", pages.events),
                Route("/runs/{run}", pages.run),
                Route("/runs/{run}/trace", pages.trace, methods=["GET", "POST"]),
            ],
            exception_handlers={Trace2EvolveError: _problem},
        ),
        token,
    )


def _page(text: str, status: int = 200) -> "Response":
    from starlette.responses import HTMLResponse

    headers = {"Cache-Control": "no-store", "Content-Security-Policy": "frame-ancestors 'none'"}
    return HTMLResponse(text, status, headers)


def _problem(request: "Request", error: Exception) -> "Response":
    return _page(view.view_page("problem", "this cannot be shown", text=str(error)), 409)


class Pages:
    """The pages of one project. Their methods run in threads, except `events`."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._sessions = RunningSessions(project)
        self._nonce = secrets.token_urlsafe(24)

    def board(self, request: "Request") -> "Response":
        """Show the verdicts over time, and all runs."""
        return _page(view.board(list(recorded_verdicts(self._project)), list_runs(self._project)))

    def candidates(self, request: "Request") -> "Response":
        """Show the candidates of a suite next to each other."""
        suites = list(self._project.lock.suites)
        suite = request.query_params.get("suite", suites[0] if suites else "")
        columns = candidate_columns(self._project, suite) if suite in suites else []
        return _page(view.candidates(suites, suite, columns, candidate_tree(self._project)))

    def ledger(self, request: "Request") -> "Response":
        """Show the ledger's entries."""
        ledger = ProjectLedger(self._project)
        return _page(view.ledger(split_histories(self._project, ledger), ledger.problems))

    async def events(self, request: "Request") -> "Response":
        """Send the state of the running sessions whenever it changes."""
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import StreamingResponse

        async def stream() -> AsyncIterator[str]:
            shown = ""
            while not await request.is_disconnected():
                text = json.dumps(await run_in_threadpool(self._sessions.read))
                yield f"data: {text}\n\n" if text != shown else ": still here\n\n"
                shown = text
                await asyncio.sleep(EVENT_SECONDS)

        return StreamingResponse(
            stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    def run(self, request: "Request") -> "Response":
        """Show the report page of a gated run, or the failed tasks of another one."""
        folder = self._folder(request)

        def link(suite: str, task: str) -> str:
            query = urlencode({"suite": suite, "task": task}, errors="replace")
            return f"/runs/{quote(folder.name, errors='replace')}/trace?{query}"

        if (folder / SUMMARY_NAME).exists():
            summary = read_summary(folder / SUMMARY_NAME)
            facts = run_facts(folder, summary, self._project, self._project.open_worlds())
            return _page(page_html(summary, facts, link))
        failed = failed_tasks(str(folder), project=self._project, base_folder=self._project.root)
        reason = "The run has no summary: it was not gated, or an earlier version wrote it."
        return _page(view.view_page("failed", folder.name, failed=failed, link=link, reason=reason))

    async def trace(self, request: "Request") -> "Response":
        """Show a trace. If it is sealed, ask first."""
        from starlette.concurrency import run_in_threadpool

        body = (await request.body()).decode("utf-8", "replace") if request.method == "POST" else ""
        nonce = parse_qs(body).get("nonce", [""])[0]
        return await run_in_threadpool(self._trace, request, nonce)

    def _trace(self, request: "Request", nonce: str) -> "Response":
        from starlette.exceptions import HTTPException

        folder, query = self._folder(request), request.query_params
        suite, task = query.get("suite", ""), query.get("task", "")
        trial = (
            int(query["trial"])
            if query.get("trial", "").isascii() and query.get("trial", "").isdigit()
            else None
        )
        if suite not in self._project.lock.suites:
            raise HTTPException(404)
        sealed = sealed_splits_of_task(self._project, self._project.lock.suites[suite].domain, task)
        is_confirmed = hmac.compare_digest(nonce.encode(), self._nonce.encode())
        if (sealed or nonce) and not is_confirmed:
            splits = ", ".join(map("::".join, sealed))
            return _page(view.view_page("sealed", folder.name, task=task, splits=splits, nonce=self._nonce))
        found = open_trace(
            str(folder), task, project=self._project, base_folder=self._project.root, trial=trial, suite=suite
        )
        recorded = ", ".join(map("::".join, found.recorded_splits))
        note = f"recorded in the ledger: this access to {recorded}" if recorded else found.note
        return _page(view.trace(found, note))

    def _folder(self, request: "Request") -> Path:
        """Return the folder of the run that the address names."""
        from starlette.exceptions import HTTPException

        folders = {path.name: path for path in run_folders(self._project)}
        if (folder := folders.get(request.path_params["run"])) is None:
            raise HTTPException(404, "no such run")
        return folder
