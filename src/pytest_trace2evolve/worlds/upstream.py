"""τ² domains of upstream's own package `tau2` (sierra-research/tau2-bench).

`tau2` needs Python 3.12 or later and is not on PyPI, so this package has no extra for it. `tau2` is imported
when a world is made, with its log disabled; `loguru.logger.enable("tau2")` enables the log again.
"""

import contextlib
import copy
import functools
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolSchema, World, WorldSession
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Action, InitializationData, Task
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.optional import quiet_import
from pytest_trace2evolve.worlds.copy_on_write import OverlayDatabase, WriteMode, clone
from pytest_trace2evolve.worlds.inspect_evals import LazyTasks
from pytest_trace2evolve.worlds.retail_rules import RULES
from pytest_trace2evolve.worlds.toolkit import ToolkitSession

PROVIDER = "tau2"

_OPTIONS: dict[str, dict[str, Any]] = {
    # Upstream's default retrieval calls an embedding service at the start, and needs a sandbox.
    "banking_knowledge": {"retrieval_variant": "grep_only"},
}


class UpstreamWorld(World):
    """One τ² domain of upstream's `tau2`.

    Banking is opened with the `grep_only` retrieval, which needs no service. All methods that read the
    domain's data files raise `WorldError` if that fails.

    Raises:
        WorldError: `tau2` cannot be imported, or has no such domain.
    """

    provider = PROVIDER

    def __init__(self, domain: str) -> None:
        self.domain = domain
        self._registry = _import_registry(domain)
        known = self._registry.get_domains()
        if domain not in known:
            raise WorldError(
                f"provider {PROVIDER!r} has no domain {domain!r}; it has {', '.join(sorted(known))}"
            )

    @functools.cached_property
    def _tasks(self) -> LazyTasks:
        with self._reading("tasks"):
            tasks = self._registry.get_tasks_loader(self.domain)(None)
        return LazyTasks([task.model_dump(mode="json", exclude_unset=True) for task in tasks])

    def tasks(self) -> Mapping[str, Task]:
        return self._tasks

    def splits(self) -> Mapping[str, Sequence[str]]:
        """Return the benchmark's own splits; a domain without splits gets `base` with all its tasks."""
        load = self._registry.get_task_splits_loader(self.domain)
        with self._reading("splits"):
            splits: Mapping[str, Sequence[str]] | None = load and load()
        return splits or {"base": list(self._tasks)}

    def policy(self, *, solo: bool = False) -> str:
        """Return the policy of upstream's environment. Raises `WorldError` if there is no solo mode."""
        text: str = (self._solo_environment if solo else self._environment).get_policy()
        return text

    def guidelines(self) -> str:
        """Return upstream's guidelines of the user simulator, without the placeholder for a voice persona."""
        simulator = quiet_import("tau2.user.user_simulator")
        text: str = simulator.get_global_user_sim_guidelines(use_tools=bool(self.tools("user")))
        return text.replace("<PERSONA_GUIDELINES>", "")

    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        """The tools offered to one side, in upstream's order; discoverable tools are not offered."""
        toolkit = self._toolkits.get(requestor)
        offered = [] if toolkit is None else toolkit.get_tools().values()
        return [ToolSchema.model_validate(tool.openai_schema["function"]) for tool in offered]

    def tool_types(self) -> Mapping[str, ToolType]:
        """Return the types of the offered tools; on equal names, the user's tool counts, as upstream."""
        return self._types

    @functools.cached_property
    def _types(self) -> dict[str, ToolType]:
        return {
            name: ToolType(toolkit.tool_type(name).value)
            for toolkit in self._toolkits.values()
            for name in toolkit.tools
            if not toolkit.is_discoverable(name)
        }

    def rules(self) -> Rules | None:
        return RULES.get(self.domain)

    def has_tool(self, name: str) -> bool:
        return name in self._mutating

    def changes_state(self, name: str) -> bool:
        return self._mutating.get(name, False)

    @functools.cached_property
    def _mutating(self) -> dict[str, bool]:
        """Whether each callable tool changes a database, by name; on equal names, the agent's tool counts."""
        return {
            name: bool(toolkit.tool_mutates_state(name))
            for toolkit in reversed(self._toolkits.values())
            for name in toolkit.tools
        }

    @functools.cached_property
    def _writers(self) -> frozenset[str]:
        return frozenset(name for name, mutating in self._mutating.items() if mutating)

    @functools.cached_property
    def _callable(self) -> dict[Requestor, frozenset[str]]:
        return {side: frozenset(toolkit.tools) for side, toolkit in self._toolkits.items()}

    @functools.cached_property
    def _hidden_readers(self) -> frozenset[str]:
        """The discoverable tools that only read, if the agent's toolkit can log their calls."""
        agent = self._toolkits["assistant"]
        discoverable = agent.get_discoverable_tools() if hasattr(agent, "set_read_log_allowlist") else ()
        return frozenset(name for name in discoverable if not self._mutating[name])

    def open(self, *, solo: bool = False) -> "UpstreamSession":
        mode = WriteMode()
        agent, user = self._copies(mode)
        if self._hidden_readers:
            agent.set_read_log_allowlist(self._hidden_readers)
        return UpstreamSession(
            initial={side: toolkit.db for side, toolkit in self._toolkits.items()},
            hidden_readers=self._hidden_readers,
            agent=agent,
            user=user,
            tools=self._callable,
            writers=self._writers,
            mode=mode,
            sync=self._sync,
            solo=solo,
        )

    def data_digest(self) -> str:
        databases = {id(toolkit.db): toolkit.db for toolkit in self._toolkits.values()}
        return digest([database.model_dump(mode="json") for database in databases.values()])

    @functools.cached_property
    def fingerprint(self) -> str:
        """Digest of the toolkits' sources, which changes only with a release that changes these sources."""
        sources: list[Any] = [*map(type, self._toolkits.values()), quiet_import("tau2.environment.toolkit")]
        return digest(
            {
                f"{folder.name}/{path.name}": digest_text(path.read_text(encoding="utf-8"))
                for folder in {Path(inspect.getfile(source)).parent for source in sources}
                for path in folder.glob("*.py")
            }
        )

    def version(self) -> str:
        return importlib.metadata.version("tau2")

    @functools.cached_property
    def _environment(self) -> Any:
        """The environment that sessions are copied from; no tool is called on it."""
        with self._reading("databases"):
            return self._construct()

    @functools.cached_property
    def _solo_environment(self) -> Any:
        with self._reading("policies"):
            try:
                return self._construct(solo_mode=True)
            except ValueError:  # raised by upstream's constructors
                raise WorldError(f"domain {self.domain!r} has no solo mode") from None

    def _construct(self, **options: Any) -> Any:
        constructor = self._registry.get_env_constructor(self.domain)
        return constructor(**_OPTIONS.get(self.domain, {}), **options)

    @functools.cached_property
    def _toolkits(self) -> dict[Requestor, Any]:
        toolkits: dict[Requestor, Any] = {"assistant": self._environment.tools}
        if self._environment.user_tools is not None:
            toolkits["user"] = self._environment.user_tools
        return toolkits

    def _copies(self, mode: WriteMode) -> tuple[Any, Any]:
        """Copy both toolkits, over an overlay of the agent's database and a copy of the user's database.

        If upstream's toolkits share one database, the copies share one too.
        """
        agent, user = self._toolkits["assistant"], self._toolkits.get("user")
        memo: dict[int, Any] = {id(agent.db): OverlayDatabase(agent.db, mode)}
        if user is not None and user.db is not agent.db:
            memo[id(user.db)] = clone(user.db)
        for part in vars(agent).values():
            # Indexes over banking's documents are large, and no tool changes them.
            if type(part).__module__.startswith("tau2.knowledge."):
                memo[id(part)] = part
        copies: tuple[Any, Any] = copy.deepcopy((agent, user), memo)
        return copies

    def _sync(self, agent: Any, user: Any) -> None:
        environment = copy.copy(self._environment)
        environment.tools, environment.user_tools = agent, user
        environment.sync_tools()

    @contextlib.contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise WorldError(
                f"the {what} of domain {self.domain!r} cannot be read: {error}; set TAU2_DATA_DIR to the "
                "folder 'data' of a tau2-bench checkout"
            ) from None


class UpstreamSession(ToolkitSession):
    """A session over upstream's toolkits.

    Banking logs calls of discoverable tools in its database. Upstream logs calls of a read-only tool only if
    the task's gold actions call this tool, so any other read does no harm. A session does not know its task
    and therefore logs every call. When two sessions are compared, they drop the entries of read-only tools
    that no gold action called.

    Args:
        initial: The databases that the session starts from, by side.
        hidden_readers: The agent's discoverable tools that only read.
        parts: Arguments of `ToolkitSession`.
    """

    def __init__(
        self, *, initial: Mapping[Requestor, BaseModel], hidden_readers: frozenset[str], **parts: Any
    ) -> None:
        self._initial = dict(initial)
        self._unrequested = set(hidden_readers)
        super().__init__(**parts)

    def perform(self, action: Action) -> None:
        super().perform(action)
        name = action.arguments.get("agent_tool_name")
        if action.name == "call_discoverable_agent_tool" and isinstance(name, str):
            self._unrequested.discard(name)

    def same_state(self, other: WorldSession) -> bool:
        """Return whether both databases are equal, apart from log entries that no gold action requires."""
        if isinstance(other, UpstreamSession):
            unrequested = self._unrequested & other._unrequested
            self._drop_log_entries(unrequested)
            other._drop_log_entries(unrequested)
        return super().same_state(other)

    def _drop_log_entries(self, tools: set[str]) -> None:
        if not tools:
            return
        log = self.agent.db.agent_discoverable_tools.data
        for key in [key for key, entry in log.items() if entry["tool_name"] in tools]:
            del log[key]

    def _merge(self, data: InitializationData) -> None:
        """Restart from the initial databases, with `data` merged in and validated by upstream's code.

        Upstream then lets both sides share the merged database. Here each side keeps its own database,
        because telecom breaks otherwise. No task of a benchmark domain depends on the difference.
        """
        if data.agent_data is not None:
            self._merge_side("assistant", self.agent, data.agent_data)
        if data.user_data is not None:
            self._merge_side("user", self.user, data.user_data)
        self.agent.db = OverlayDatabase(self._initial["assistant"], self._mode)
        if self.user is not None:
            shared = self._initial["user"] is self._initial["assistant"]
            self.user.db = self.agent.db if shared else clone(self._initial["user"])

    def _merge_side(self, side: Requestor, toolkit: Any, update: dict[str, Any]) -> None:
        if toolkit is None:
            raise WorldError(f"initialization data for the {side}, who has no database in this domain")
        merging = copy.copy(toolkit)
        before = merging.db = self._initial[side]
        try:
            merging.update_db(update)
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in detail["loc"])
            raise WorldError(
                f"initialization data do not fit the {side}'s database at {place}: {detail['msg']}; "
                "the task belongs to another version of the benchmark"
            ) from None
        for other, database in self._initial.items():
            if database is before:
                self._initial[other] = merging.db


def _import_registry(domain: str) -> Any:
    try:
        if "tau2" not in sys.modules and importlib.util.find_spec("tau2") is not None:
            # tau2 logs its whole registry to stderr when imported, and tool calls after that.
            quiet_import("loguru").logger.disable("tau2")
        return quiet_import("tau2.registry").registry
    except ImportError as error:
        raise WorldError(
            f"provider {PROVIDER!r} cannot open {domain!r}: {error}; with Python 3.12 or later, "
            "install tau2-bench from https://github.com/sierra-research/tau2-bench"
        ) from None
