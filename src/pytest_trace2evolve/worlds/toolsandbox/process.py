"""The process in which ToolSandbox's tools run, and sessions of its databases.

One process serves all simulations of a run. Each session is a copy on write: the process shares the frames of
databases that did not change, and a session here shares the tables.
"""

import atexit
import contextlib
import itertools
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.message import Requestor, ToolCall
from pytest_trace2evolve.records.protocols import ToolResult, WorldSession
from pytest_trace2evolve.records.task import Action, Assertion, InitialState
from pytest_trace2evolve.scoring.milestones import Table
from pytest_trace2evolve.worlds.mcp_server import WorldLostError
from pytest_trace2evolve.worlds.toolsandbox.dump import Dump, Manifest

OPEN = "open_scenario"
"""The initialization action of a task, which names its scenario."""

BRIDGE = Path(__file__).with_name("bridge.py")


def bridge_environment(clone: str) -> dict[str, str]:
    """The environment of a process that runs ToolSandbox from a clone."""
    return {**os.environ, "PYTHONPATH": clone, "POLARS_MAX_THREADS": "1", "TZ": "UTC"}


class ToolProcess:
    """Runs tools in ToolSandbox's environment; starts with the first request, and again if it ended."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._command = [
            manifest.python,
            "-W",
            "ignore",
            str(BRIDGE),
            "serve",
            str(manifest.clock),
            str(folder),
        ]
        self._environment = bridge_environment(manifest.clone)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._numbers = itertools.count()
        self._sessions: set[int] = set()

    def open(self, scenario: str) -> int:
        """Start a session with a scenario's databases; returns its number."""
        number = next(self._numbers)
        self.request(do="open", session=number, scenario=scenario)
        return number

    def request(self, *, do: str, session: int, **options: Any) -> Any:
        """Send a request and return the answer.

        Raises:
            WorldLostError: the process cannot be started, or has ended since the session was opened.
        """
        with self._lock:
            if do == "open":
                self._sessions.add(session)
            elif session not in self._sessions:
                raise self._lost("it ended")
            request = {"do": do, "session": session, **options}
            try:
                process = self._process or self._start()
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except OSError as error:
                self._end()
                raise self._lost(str(error)) from error
            if not line:
                self._end()
                raise self._lost("it ended")
            return json.loads(line)

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        atexit.register(self.close)
        return self._process

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        self._sessions.clear()
        if process is not None:
            atexit.unregister(self.close)
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                process.communicate(timeout=5)
            process.kill()

    def _lost(self, reason: str) -> WorldLostError:
        return WorldLostError(
            f"the process of ToolSandbox's tools does not answer: {reason}; to see its error, run "
            f"`{' '.join(self._command)}`"
        )


class ToolSandboxSession(WorldSession):
    """The databases of one simulation.

    Attributes:
        tables: The current tables by name. A call replaces the tables that it changes.
    """

    def __init__(self, dump: Dump, process: ToolProcess) -> None:
        self._dump, self._process = dump, process
        self._number: int | None = None
        self._names: Mapping[str, str] = {}
        self._needs_network = False
        self.tables: dict[str, Table] = {}

    def initialise(self, state: InitialState | None) -> None:
        """Open the scenario that the task's only initialization action names.

        Raises:
            WorldError: there is no such action, or no such scenario.
        """
        actions = (state.initialization_actions or []) if state else []
        name = actions[0].arguments.get("name") if actions and actions[0].func_name == OPEN else None
        if not isinstance(name, str) or name not in self._dump.scenarios:
            raise WorldError(f"ToolSandbox has no scenario {name!r}; use the tasks of its own export")
        self.close()
        base = self._dump.scenarios[name].base
        self._number = self._process.open(name)
        self._names = self._dump.names_of(name)
        self._needs_network = self._dump.needs_network(base)
        self.tables = dict(self._dump.bases[base].tables)

    def close(self) -> None:
        """End the session."""
        if self._number is not None:
            with contextlib.suppress(WorldLostError):
                self._process.request(do="close", session=self._number)
        self._number = None

    def run(self, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
        """Run parallel calls of the agent, and return their results in the order in which they ran.

        A result has the keys `number` (of the call), `content`, `error` and `trace`, the traced call as JSON
        or None.

        Raises:
            WorldLostError: the process ended, or a tool that the scenario needs has no network.
        """
        known = [number for number, call in enumerate(calls) if call.name in self._names]
        results = [
            {
                "number": number,
                "error": True,
                "trace": None,
                "content": f"KeyError: unknown tool {call.name!r}",
            }
            for number, call in enumerate(calls)
            if number not in known
        ]
        if known and self._number is not None:
            requests = [
                {"id": number, "name": self._names[calls[number].name], "arguments": calls[number].arguments}
                for number in known
            ]
            answer = self._process.request(do="calls", session=self._number, calls=requests)
            for result in answer["results"]:
                if result.pop("refused") and self._needs_network:
                    raise WorldLostError(
                        f"ToolSandbox's tool {calls[result['id']].name!r} needs RapidAPI: set RAPID_API_KEY "
                        "or use suite toolsandbox-offline"
                    )
                results.append({"number": result.pop("id"), **result})
            self.tables.update({name: tuple(rows) for name, rows in answer["tables"].items()})
        return results

    def call_all(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Run parallel calls; the results are in the order of the calls."""
        results = {result["number"]: result for result in self.run(calls)}
        return [
            ToolResult(content=results[number]["content"], error=results[number]["error"])
            for number in range(len(calls))
        ]

    def call(self, name: str, arguments: Mapping[str, Any], requestor: Requestor) -> ToolResult:
        """Run one call of the agent."""
        return self.call_all([ToolCall(name=name, arguments=dict(arguments), requestor=requestor)])[0]

    def perform(self, action: Action) -> None:
        """Carry out a call of a script."""
        self.call(action.name, action.arguments, action.requestor)

    def check(self, assertion: Assertion) -> bool:
        """Always raises `WorldError`: milestones take the place of assertions."""
        raise WorldError(f"ToolSandbox has no assertion {assertion.func_name!r}")

    def sync(self) -> None:
        """Do nothing, because there is one set of databases."""

    def same_state(self, other: WorldSession) -> bool:
        """Whether all tables are equal."""
        return isinstance(other, ToolSandboxSession) and self.tables == other.tables
