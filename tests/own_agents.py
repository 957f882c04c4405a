"""Agents of a project's own, run by the engine against a small world: a notebook with three tools."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from pytest_trace2evolve import World
from pytest_trace2evolve.engine.conversation import Assignment, Limits, declare_nothing, simulate
from pytest_trace2evolve.engine.function_agent import FunctionFactory
from pytest_trace2evolve.engine.live import AgentFunction, LiveSettings
from pytest_trace2evolve.evidence.journal import Journal
from pytest_trace2evolve.models.prices import Price
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.records.budget import NO_BUDGETS
from pytest_trace2evolve.records.completion import NO_USAGE, Usage
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply

SOURCE = Path(__file__).resolve().parents[1] / "src"


class Author(BaseModel):
    name: str
    email: str | None = None


class Notes(BaseModel):
    notes: dict[str, str] = {}


class NoteTools:
    def __init__(self, db: Notes) -> None:
        self.db = db

    def read_note(self, note_id: str) -> str:
        """Read a note.

        Args:
            note_id: The id of the note, such as N1.
        """
        return self.db.notes[note_id]

    def write_note(
        self,
        note_id: str,
        text: str,
        kind: Literal["memo", "task"] = "memo",
        copies: int = 1,
        tags: list[str] | None = None,
    ) -> str:
        """Write a note, or replace it.

        Args:
            note_id: The id of the note.
            text: The new text.
            kind: The kind of the note.
            copies: The number of copies.
            tags: Words that find the note.
        """
        self.db.notes[note_id] = f"{text} ({kind}, {copies}, {'+'.join(tags or [])})"
        return f"{note_id} is written."

    def sign(self, author: Author) -> str:
        """Sign the notebook."""
        return f"Signed by {author.name}."


WORLD = World.from_tools(NoteTools, data={"notes": {"N1": "milk"}}, policy="Keep the notes tidy.")

TASK = Task.model_validate(
    {"id": "notes", "user_scenario": {"instructions": "none"}, "evaluation_criteria": {"actions": []}}
)

MESSAGES = ("What does note N1 say?", "Please write note N2.")
"""The messages of the scripted user of `TASK`."""


class User:
    """Says each of its messages, and then ends."""

    def __init__(self, messages: Sequence[str] = MESSAGES) -> None:
        self._messages = messages

    async def respond(self, history: Sequence[Message]) -> Message:
        n_said = sum(message.role == "user" for message in history)
        content = self._messages[n_said] if n_said < len(self._messages) else "###STOP###"
        return Message(role="user", content=content)


@dataclass
class CountingMeter:
    """Counts the usage, as the account of a run does; raises `error` if it is set."""

    usage: Usage = NO_USAGE
    error: Exception | None = None
    n_admitted: int = 0
    budgets: Any = NO_BUDGETS

    async def admit(self) -> None:
        self.n_admitted += 1
        self.raise_if_stopped()

    def raise_if_stopped(self) -> None:
        if self.error is not None:
            raise self.error

    def spend(self, usage: Usage) -> None:
        self.usage += usage


@dataclass
class Runner:
    """Runs simulations of one agent.

    Attributes:
        path: The import path or the URL of the agent.
        folder: The folder to import from.
        base_url: The endpoint of the agent's models.
        timeout: Seconds that the agent has for each step.
    """

    path: str
    folder: Path
    base_url: str = "http://127.0.0.1:9/v1"
    timeout: float = 120.0
    messages: Sequence[str] = MESSAGES
    prices: dict[str, Price] = field(default_factory=dict)
    meter: CountingMeter = field(default_factory=CountingMeter)
    model: str = "gpt-test"
    parameters: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    needs_prices: bool = False
    candidate: Candidate = field(default_factory=lambda: Candidate(id="v0", instruction="Be brief."))
    _closers: list[Callable[[], Any]] = field(default_factory=list)
    factory: FunctionFactory = field(init=False)

    def __post_init__(self) -> None:
        is_url = self.path.startswith("http")
        function = AgentFunction(
            path=self.path,
            folder=self.folder,
            log_folder=self.folder / "logs",
            timeout=self.timeout,
            parameters=self.parameters,
            prices=self.prices,
            needs_prices=self.needs_prices,
            url=self.path if is_url else "",
        )
        model = ModelSettings(model=self.model, base_url=self.base_url, timeout=self.timeout)
        settings = LiveSettings(agent=model, user=model, function=function)
        self.factory = FunctionFactory(settings, self._closers.append, self.meter, **self.options)
        self._real_make = self.factory._make
        self.factory._make = self._make  # type: ignore[method-assign]

    def _make(self, task: Task, world: Any, candidate: Candidate, exchange: Any, _: Any) -> Any:
        return self._real_make(task, world, candidate, exchange, lambda *_: User(self.messages))

    async def simulate(
        self,
        trial: int = 0,
        *,
        task: Task = TASK,
        journal: Journal | None = None,
        timeout: float | None = None,
        before_use: Any = declare_nothing,
    ) -> Simulation:
        """Run one simulation."""
        limits = Limits(max_steps=40, timeout=timeout)
        assignment = Assignment(task, WORLD, self.factory, self.candidate, trial, limits)
        return await simulate(assignment, journal, before_use)

    async def close(self) -> None:
        """End the agent's processes and the proxy."""
        for closer in self._closers:
            await closer()

    def run(self, n_trials: int = 1, **options: Any) -> list[Simulation]:
        """Run simulations one after the other, and close everything."""

        async def all_trials() -> list[Simulation]:
            try:
                return [await self.simulate(trial, **options) for trial in range(n_trials)]
            finally:
                await self.close()

        return asyncio.run(all_trials())


def script(request: ChatRequest) -> Reply:
    """A model that reads note N1, answers with it, then writes note N2 and says so."""
    last = request.messages[-1]
    content = last.get("content")
    text = content if isinstance(content, str) else json.dumps(content)
    if last["role"] == "tool":
        return Reply(f"The notebook says: {text}")
    if "N1" in text:
        return Reply(tool_calls=(("read_note", {"note_id": "N1"}),))
    earlier = json.dumps(request.messages[:-1])
    # Without a memory of the conversation, the text is missing.
    remembered = "milk" if "The notebook says: milk" in earlier else "forgotten"
    return Reply(tool_calls=(("write_note", {"note_id": "N2", "text": remembered, "tags": ["a", "b"]}),))


EXPECTED_CALLS = [
    ("read_note", {"note_id": "N1"}),
    ("write_note", {"note_id": "N2", "text": "milk", "tags": ["a", "b"]}),
]


def calls_of(simulation: Simulation) -> list[tuple[str, dict[str, Any]]]:
    """The agent's calls of tools: names and arguments."""
    return [(call.name, call.arguments) for message in simulation.trace for call in message.tool_calls or ()]


def texts_of(simulation: Simulation) -> list[str]:
    """The agent's messages to the user, without the greeting."""
    texts = [message.content or "" for message in simulation.trace if message.role == "assistant"]
    return [text for text in texts[1:] if text]


@contextmanager
def chat_server(script: Callable[[ChatRequest], Reply] = script, **options: Any) -> Iterator[ChatServer]:
    """An endpoint whose model plays `script`."""
    with ChatServer(script, **options) as server:
        yield server


@contextmanager
def http_server(answer: Callable[[str, Any], tuple[int, bytes]]) -> Iterator[str]:
    """An HTTP server on loopback; yields its URL.

    `answer` gets the method and the JSON of each request. A body that begins like a stream is sent as one.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            self._answer(json.loads(content))

        def _answer(self, record: Any) -> None:
            status, content = answer(self.command, record)
            if not status:
                self.close_connection = True
                return
            self.send_response(status)
            is_stream = content.startswith((b"data:", b"event:", b":"))
            self.send_header("content-type", "text/event-stream" if is_stream else "application/json")
            self.send_header("content-length", str(len(content)))
            self.send_header("retry-after-ms", "1")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/chat"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
