"""The hotel: a small project with its own world, agent, user and rules, for whole sessions over it.

A user could have written `project/` from docs/extending.md and docs/project.md alone. Every test works on a
copy of it.
"""

import atexit
import importlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply, Script
from tests.attack.sessions import Done, Sessions

TEMPLATE = Path(__file__).parent / "project"
SOURCE = Path(__file__).resolve().parents[2] / "src"

GUARDED_SUITE = """\
provider = "hotel"
domain = "hotel"
trials = 4
max_steps = 40
default_agent = "bot"

[splits]
heldout = ["cancel-flexible", "cancel-fixed", "move-free", "book-double", "book-single", "price-stay"]
transfer = { rest = "base" }
"""


class HotelProject:
    """A copy of the template in a temporary folder, and sessions over it.

    Attributes:
        root: The project's folder.
    """

    def __init__(self, pytester: pytest.Pytester, sessions: Sessions | None = None) -> None:
        self._pytester = pytester
        self._sessions = sessions
        self.root = pytester.path
        shutil.copytree(locked_template(), self.root, dirs_exist_ok=True)

    def read(self, name: str) -> str:
        """The text of a file of the project."""
        return (self.root / name).read_text(encoding="utf-8")

    def write(self, name: str, text: str) -> Path:
        """Write a file of the project."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def replace(self, name: str, old: str, new: str) -> None:
        """Replace a passage that occurs exactly once in a file.

        Raises:
            ValueError: the passage occurs never or several times.
        """
        text = self.read(name)
        if text.count(old) != 1:
            raise ValueError(f"{name}: {old!r} occurs {text.count(old)} times, not once")
        self.write(name, text.replace(old, new))

    def candidate(self, name: str, instruction: str, parent: str | None = None) -> None:
        """Write a candidate that is frozen before every run; its instruction lists skills as `- skill`."""
        lines = [f"id: {name}", *([f"parent: {parent}"] if parent else []), "frozen_at: 2026-09-03"]
        self.write(f"candidates/{name}.md", "\n".join(["---", *lines, "---", instruction, ""]))

    def guard(self) -> None:
        """Replace suite `hotel` by `guarded`, with 6 tasks in `heldout` and the other 6 in `transfer`."""
        (self.root / "suites/hotel.toml").unlink()
        self.write("suites/guarded.toml", GUARDED_SUITE)
        self.lock()

    def lock(self) -> None:
        """Renew the lock of all suites, as `trace2evolve lock` does."""
        lock(self.root)

    def run(self, *arguments: str) -> pytest.RunResult:
        """A pytest session in this process. It cannot have xdist workers: use `spawn`."""
        return self._pytester.runpytest_inprocess(*arguments)

    def spawn(self, *arguments: str) -> pytest.RunResult:
        """A pytest session in a process of its own."""
        return self._pytester.run(sys.executable, "-m", "pytest", *arguments)

    def fork(self, program: str, *arguments: str) -> Done:
        """`pytest` or `trace2evolve` in a forked process of its own in the project's folder."""
        assert self._sessions is not None
        return self._sessions.run(self.root, program, *arguments)

    def baseline(self, candidate: str = "v0", *arguments: str) -> pytest.RunResult:
        """Measure a candidate and save it as the baseline of its own name."""
        saved = f"--t2e-save-baseline={candidate}"
        result = self.run("suites", f"--candidate={candidate}", saved, "--t2e-gate=off", *arguments)
        result.stdout.fnmatch_lines([f"*baseline saved: baselines/*/{candidate}.json*"])
        return result

    @property
    def runs(self) -> list[Path]:
        """The run folders so far, oldest first."""
        folder = self.root / ".trace2evolve" / "runs"
        return sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns) if folder.exists() else []

    @property
    def verdict(self) -> dict[str, Any]:
        """The content of the last run's `verdict.json`."""
        content: dict[str, Any] = json.loads((self.runs[-1] / "verdict.json").read_text(encoding="utf-8"))
        return content

    def simulations(self, run: Path | None = None) -> list[Simulation]:
        """The simulations of a run, the last one if none is named."""
        paths = sorted((run or self.runs[-1]).rglob("simulations/*.json"))
        return [Simulation.model_validate_json(path.read_text(encoding="utf-8")) for path in paths]


@dataclass
class HotelServer:
    """A model endpoint that plays both the bot and the guest, for the agent `chat`.

    The bot has the skills that its prompt lists, so a candidate's text decides what it solves.
    """

    server: ChatServer

    @property
    def requests(self) -> int:
        """How many requests the endpoint has received so far."""
        return self.server.count.attempts

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options of a session that talks to this endpoint."""
        return ("--t2e-model=hotel-model", f"--t2e-base-url={self.server.base_url}")


@contextmanager
def hotel_server() -> Iterator[HotelServer]:
    """Serve the hotel's bot and guest on loopback."""
    with ChatServer(hotel_script()) as server:
        yield HotelServer(server)


def hotel_script() -> Script:
    """A script that solves all tasks of the template, also after a test changed its copy."""
    with imported("hotel.agent", TEMPLATE) as agent, imported("hotel.world", TEMPLATE) as world:
        tasks = world.HotelWorld("hotel").tasks().values()
        guests = [(task.user_scenario["instructions"], agent.Guest(task)) for task in tasks]

    def reply(request: ChatRequest) -> Reply:
        history = [_message(message) for message in request.messages if message["role"] != "system"]
        if "<scenario>" not in request.system:
            answer = agent.Bot(request.system).answer(history)
            calls = tuple((call.name, call.arguments) for call in answer.tool_calls or ())
            return Reply(answer.content, tool_calls=calls)
        guest = next(
            guest
            for scenario, guest in guests
            if scenario["reason_for_call"] in request.system and scenario["known_info"] in request.system
        )
        return Reply(guest.answer([_other_side(message) for message in history]))

    return reply


def _message(wire: dict[str, Any]) -> Message:
    """A message of a chat-completions request."""
    calls = [
        ToolCall(
            id=call["id"],
            name=call["function"]["name"],
            arguments=json.loads(call["function"]["arguments"]),
        )
        for call in wire.get("tool_calls") or ()
    ]
    content = wire.get("content")
    error = str(content).startswith("Error: ") if wire["role"] == "tool" else None
    return Message(role=wire["role"], content=content, tool_calls=calls or None, error=error)


def _other_side(message: Message) -> Message:
    """A message as the agent's side sees it: the user's model speaks as the assistant."""
    return message.model_copy(update={"role": "user" if message.role == "assistant" else "assistant"})


@contextmanager
def imported(name: str, root: Path) -> Iterator[ModuleType]:
    """Import a module of a project from its files as they are now, and forget all of it afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root)
        try:
            yield importlib.import_module(name)
        finally:
            forget("hotel")


@cache
def locked_template() -> Path:
    """The template with its lock, made once a process."""
    folder = tempfile.mkdtemp(prefix="t2e-hotel-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    root = Path(folder) / "project"
    shutil.copytree(TEMPLATE, root, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
    lock(root)
    return root


def lock(root: Path) -> None:
    """Renew the lock of a project's suites in this process, and forget its modules afterwards."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "path", [*sys.path])
            patch.setattr(sys, "dont_write_bytecode", True)
            assert main(["--root", str(root), "lock"]) == 0
    finally:
        forget("hotel", "conftest")


def forget(*packages: str) -> None:
    """Have modules imported anew the next time they are asked for."""
    for module in [module for module in sys.modules if module.partition(".")[0] in packages]:
        del sys.modules[module]


def prepare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment that sessions over a hotel need, in this process and in others.

    Bytecode is not kept: Python checks it by second and size, so an edit within a second could go unseen.
    """
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("COLUMNS", "240")  # no line is wrapped
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("PYTEST_ADDOPTS", "GITHUB_STEP_SUMMARY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
