"""ToolSandbox as a world: its scenarios as tasks, and the score of a simulation by its milestones."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_trace2evolve.errors import TraceError, WorldError
from pytest_trace2evolve.records.message import USER_STOP_MARKS, Message, Requestor
from pytest_trace2evolve.records.protocols import ToolSchema, World
from pytest_trace2evolve.records.score import MilestoneMatch, Score, Status, ToolType
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.milestones import SANDBOX, Graph, Match, Rule, Snapshot, evaluate
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.worlds.toolsandbox import dump as exports
from pytest_trace2evolve.worlds.toolsandbox.failure_kinds import failure_kind
from pytest_trace2evolve.worlds.toolsandbox.process import OPEN, ToolProcess, ToolSandboxSession

DOMAINS = ("offline", "all")

MAX_MESSAGES = 30
"""The number of messages after the first at which a conversation ends, as upstream counts them."""

_WRITERS = ("add_", "modify_", "remove_", "send_", "set_")
"""The beginnings of the names of tools that change a database."""


class ToolSandboxWorld(World):
    """The scenarios of ToolSandbox.

    Args:
        domain: `offline` for the scenarios whose own tools need no network, or `all`.

    Raises:
        WorldError: the domain is unknown, or ToolSandbox is not exported.
    """

    provider = "toolsandbox"
    fingerprint = "toolsandbox 1"
    has_bare_prompt = True
    """The agent's prompt is the policy alone, as upstream's."""

    def __init__(self, domain: str) -> None:
        if domain not in DOMAINS:
            raise WorldError(f"provider 'toolsandbox' has no domain {domain!r}; it has {', '.join(DOMAINS)}")
        self.domain = domain
        folder = exports.export_folder()
        self._manifest = exports.read_manifest(folder)
        self._dump = exports.read_dump(folder, self._manifest.scenarios)
        self._process = ToolProcess(folder, self._manifest)
        names = [name for split in self.splits().values() for name in split]
        digests = {name: digest(base.model_dump(mode="json")) for name, base in self._dump.bases.items()}
        self._tasks = {name: _to_task(self._dump, name, digests) for name in names}

    def tasks(self) -> Mapping[str, Task]:
        return self._tasks

    def splits(self) -> Mapping[str, Sequence[str]]:
        return self._dump.splits(offline=self.domain == "offline")

    def policy(self, *, solo: bool = False) -> str:
        """The system message of the agent. Raises `WorldError` for solo mode."""
        if solo:
            raise WorldError("ToolSandbox has no solo mode")
        messages = next(iter(self._dump.bases.values())).messages
        return next(str(row["content"]) for row in messages if row["recipient"] == "AGENT")

    def guidelines(self) -> str:
        """Return an empty text, because each task has its own system message of the user."""
        return ""

    @functools.cache  # noqa: B019 - a world lives as long as its process
    def _all_tools(self) -> tuple[ToolSchema, ...]:
        tools = {
            tool.name: tool
            for base in self._dump.bases
            for tool in self._dump.schemas_of(f"{base}_all_tools", "assistant")
        }
        return tuple(tools[name] for name in sorted(tools))

    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        """Every tool of the agent, or the user's tool, which ends the conversation."""
        if requestor == "assistant":
            return self._all_tools()
        return self._dump.schemas_of(next(iter(self._dump.bases)), "user")

    def task_tools(self, task: Task) -> Sequence[ToolSchema]:
        """The agent's tools in one task."""
        return self._dump.schemas_of(task.id, "assistant")

    def tool_types(self) -> Mapping[str, ToolType]:
        return {
            tool.name: ToolType.WRITE if self.changes_state(tool.name) else ToolType.READ
            for tool in self._all_tools()
        }

    def has_tool(self, name: str) -> bool:
        return name in self.tool_types()

    def changes_state(self, name: str) -> bool:
        return name.startswith(_WRITERS)

    def open(self, *, solo: bool = False) -> ToolSandboxSession:
        return ToolSandboxSession(self._dump, self._process)

    def data_digest(self) -> str:
        """Digest of the scenarios and of ToolSandbox's own code."""
        return digest([self._manifest.scenarios, self._manifest.source, self._manifest.clock])

    def version(self) -> str:
        """The commit of the clone."""
        return self._manifest.commit

    def score(self, simulation: Simulation, task: Task) -> Score:
        """Score a simulation by the milestones and minefields of its scenario.

        Raises:
            TraceError: the calls have other results than in the trace.
            WorldError: the process of the tools is lost, or the scenario is unknown.
        """
        snapshots, origins, problem = self.trajectory(simulation.trace, task)
        if problem:
            return Score(status=Status.MEASURED, reward=0.0, note=problem)
        base = self._dump.bases[self._dump.scenarios[task.id].base]
        found = evaluate(snapshots, base.milestones, base.minefields)
        return Score(
            status=Status.MEASURED,
            reward=min(1.0, found.similarity),
            milestones=_matches(found.milestones, base.milestones, origins),
            minefields=_matches(found.minefields, base.minefields, origins),
            note=failure_kind(snapshots, base.milestones, found),
        )

    def trajectory(self, trace: Sequence[Message], task: Task) -> tuple[list[Snapshot], list[int], str]:
        """Replay the calls of a trace.

        Returns:
            The snapshots, the message of the trace from which each comes, and the reason why upstream would
            have ended with an error; empty if it would not.
        """
        session = self.open()
        session.initialise(task.initial_state)
        snapshots: list[Snapshot] = []
        origins: list[int] = []
        names = self._dump.names_of(task.id)
        try:
            for rows, unknown in _replay(session, trace, names):
                if unknown:
                    return snapshots, origins, f"call of {unknown!r}, a tool that the scenario does not have"
                for index, row in rows:
                    snapshots.append({**session.tables, SANDBOX: (row,)})
                    origins.append(index)
                if len(snapshots) > MAX_MESSAGES:
                    break
        finally:
            session.close()
        return snapshots, origins, ""


Rows = list[tuple[int, dict[str, Any]]]
"""Rows of the table of messages, each with the position of its message in the trace."""


def _replay(
    session: ToolSandboxSession, trace: Sequence[Message], names: Mapping[str, str]
) -> Iterator[tuple[Rows, str]]:
    """Yield the rows that each turn adds, and the name of an unknown tool, if one was called."""
    for index, message in enumerate(trace):
        text, calls = message.content or "", message.tool_calls or []
        if message.role == "user":
            if index and any(mark in text for mark in USER_STOP_MARKS):
                yield [(index, _row("USER", "EXECUTION_ENVIRONMENT", "end_conversation()"))], ""
                yield [(index, _row("EXECUTION_ENVIRONMENT", "USER", "None"))], ""
                return
            yield [(index, _row("USER", "AGENT", text))], ""
        elif message.role == "assistant" and not calls:
            yield [(index, _row("AGENT", "USER", text))], ""
        elif message.role == "assistant":
            unknown = next((call.name for call in calls if call.name not in names), "")
            texts = [f"{names.get(call.name)}(**{call.arguments})" for call in calls]
            yield [(index, _row("AGENT", "EXECUTION_ENVIRONMENT", text)) for text in texts], unknown
            recorded = trace[index + 1 : index + 1 + len(calls)]
            rows: Rows = []
            for result in session.run(calls):
                number = result["number"]
                content = recorded[number].content if number < len(recorded) else None
                if content is not None and content != result["content"]:
                    raise TraceError(
                        f"message {index + 1 + number} is {content[:80]!r}, but {calls[number].name} now "
                        f"gives {result['content'][:80]!r}; use the export of the run"
                    )
                rows.append((index + 1 + number, _result_row(result)))
            yield rows, ""


def _row(sender: str, recipient: str, content: str) -> dict[str, Any]:
    return {"sender": sender, "recipient": recipient, "content": content, "tool_trace": None, "failed": False}


def _result_row(result: Mapping[str, Any]) -> dict[str, Any]:
    row = _row("EXECUTION_ENVIRONMENT", "AGENT", result["content"])
    traces = None if result["trace"] is None else (result["trace"],)
    return {**row, "tool_trace": traces, "failed": result["error"]}


def _matches(match: Match, graph: Graph, origins: Sequence[int]) -> tuple[MilestoneMatch, ...]:
    return tuple(
        MilestoneMatch(
            index=index,
            similarity=similarity,
            message=origins[snapshot],
            about=", ".join(
                f"{constraint.table} {constraint.rule}"
                for constraint in graph.milestones[index]
                if constraint.rule is not Rule.UNCHANGED
            ),
        )
        for index, (snapshot, similarity) in match.snapshots.items()
    )


def _to_task(dump: exports.Dump, name: str, digests: Mapping[str, str]) -> Task:
    scenario = dump.scenarios[name]
    base = dump.bases[scenario.base]
    first = base.messages[-1]
    prompts = [row for row in base.messages[:-1] if "USER" in (row["sender"], row["recipient"])]
    return Task.model_validate(
        {
            "id": name,
            "tags": [category.lower() for category in scenario.categories],
            "user_scenario": {
                "prompts": [
                    {"from": row["sender"].lower(), "content": row["content"]}
                    for row in prompts
                    if row["recipient"] in ("USER", "AGENT")
                ],
                # The digest of the task covers what its score depends on.
                "content": digest(
                    [
                        digests[scenario.base],
                        scenario.model_dump(mode="json"),
                        [tool.model_dump(mode="json") for tool in dump.schemas_of(name, "assistant")],
                    ]
                ),
            },
            "initial_state": {
                "initialization_actions": [
                    {"env_type": "assistant", "func_name": OPEN, "arguments": {"name": name}}
                ],
                "message_history": [{"role": "user", "content": first["content"]}],
            },
            "evaluation_criteria": {},
        }
    )
