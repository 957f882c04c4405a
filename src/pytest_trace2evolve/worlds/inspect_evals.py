"""τ² domains of the PyPI package `inspect_evals`, with its data and toolkits but without its scorers.

Tasks, policies and digests come straight from the package's files. Sessions run the package's toolkits, and
schemas are read from its tools; both are imported without `inspect_ai` if possible.
"""

import contextlib
import functools
import gzip
import importlib.metadata
import importlib.util
import os
import re
import tomllib
import types
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic_core
from pydantic import BaseModel, TypeAdapter

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolSchema, World
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.task_revision import task_revision
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.optional import require
from pytest_trace2evolve.utils.reading import convert_failures
from pytest_trace2evolve.worlds import banking
from pytest_trace2evolve.worlds.copy_on_write import OverlayDatabase, WriteMode, clone
from pytest_trace2evolve.worlds.inspect_domains import BANKING, DOMAINS, Toolkit
from pytest_trace2evolve.worlds.light_import import import_toolkits
from pytest_trace2evolve.worlds.retail_rules import RULES_BY_DOMAIN
from pytest_trace2evolve.worlds.toolkit import ToolkitSession

PROVIDER = "inspect_evals"

_RESTORE_REMEDY = "restore it from a tau2-bench checkout"

_RUNNER_MODULES = frozenset({"__init__", "agents", "dataset", "scorer", "solver"})
"""Modules that run and score a domain's tasks in Inspect; the domain's tools do not use them."""


class InspectWorld(World):
    """One τ² domain of `inspect_evals`.

    Args:
        store: The content of the agent's database; None uses the package's own content.
        import_modules: Imports the modules of the toolkits by name.

    Raises:
        WorldError: the package does not have this domain.
        MissingExtraError: the package is not installed.
    """

    provider = PROVIDER

    def __init__(
        self,
        domain: str,
        store: Mapping[str, Any] | None = None,
        import_modules: Callable[[Sequence[str]], Sequence[types.ModuleType]] = import_toolkits,
    ) -> None:
        if domain not in DOMAINS:
            domains = ", ".join(sorted(DOMAINS))
            raise WorldError(f"provider {PROVIDER!r} has no domain {domain!r}; it has {domains}")
        self.domain = domain
        self._spec = DOMAINS[domain]
        self._toolkits: dict[Requestor, Toolkit] = {"assistant": self._spec.agent}
        if self._spec.user is not None:
            self._toolkits["user"] = self._spec.user
        self._folder = data_folder() / self._spec.folder
        self._store = store
        self._import_modules = import_modules
        self._databases: dict[str, BaseModel] = {}

    @functools.cached_property
    def _tau2_folder(self) -> Path | None:
        """The domain's folder in tau2's data folder if `TAU2_DATA_DIR` names one, as tau2 resolves it."""
        if not (value := os.environ.get("TAU2_DATA_DIR")):
            return None
        folder = Path(value) / "tau2" / "domains" / self.domain
        with contextlib.suppress(OSError):
            if (folder / "tasks.json").is_file():
                return folder
        raise WorldError(
            f"TAU2_DATA_DIR is {value!r}, but there is no file {folder / 'tasks.json'}; set it to the 'data' "
            "folder of a tau2-bench checkout, or unset it to use the tasks of inspect_evals"
        )

    @functools.cached_property
    def _tasks(self) -> Mapping[str, Task]:
        if (folder := self._tau2_folder) is None:
            return LazyTasks(read_data(self._folder / "tasks.json"))
        with convert_failures(folder / "tasks.json", WorldError, _RESTORE_REMEDY):
            # tau2 reads banking's tasks from a file each.
            records = [read_data(path) for path in sorted(folder.glob("tasks/task_*.json"))]
            tasks = TypeAdapter(list[Task]).validate_python(records or read_data(folder / "tasks.json"))
        return {task.id: task for task in tasks}

    def tasks(self) -> Mapping[str, Task]:
        return self._tasks

    def splits(self) -> Mapping[str, Sequence[str]]:
        """Return the benchmark's own splits; a domain without splits gets `base` with all its tasks."""
        path = (self._tau2_folder or self._folder) / "split_tasks.json"
        if not path.exists():
            return {"base": list(self._tasks)}
        with convert_failures(path, WorldError, _RESTORE_REMEDY):
            splits = TypeAdapter(dict[str, list[str]]).validate_python(read_data(path))
            if missing := {task_id for ids in splits.values() for task_id in ids} - self._tasks.keys():
                raise ValueError(f"names task {min(missing)!r}, which does not exist")
        return splits

    def task_revision(self) -> str:
        """Return the revision of the benchmark's base tasks."""
        return task_revision(self._tasks, self.splits().get("base", self._tasks))

    def policy(self, *, solo: bool = False) -> str:
        """Build the policy as upstream's environment does. Raises `WorldError` if there is no solo mode."""
        parts = self._spec.solo_policy if solo else self._spec.policy
        if not parts:
            raise WorldError(f"domain {self.domain!r} has no solo mode")
        texts = []
        for tag, name in parts:
            text = self._insert_components((self._folder / name).read_text(encoding="utf-8"))
            texts.append(f"<{tag}>\n{text}\n</{tag}>" if tag else text)
        return "\n".join(texts)

    def _insert_components(self, text: str) -> str:
        """Replace banking's `{{component:NAME}}` with the text of `NAME.md` in its components folder."""
        components = self._folder / "prompts" / "components"
        return re.sub(
            r"\{\{component:(\w+)\}\}",
            lambda match: (components / f"{match.group(1)}.md").read_text(encoding="utf-8"),
            text,
        )

    def guidelines(self) -> str:
        name = "simulation_guidelines_tools.txt" if self._spec.user else "simulation_guidelines.txt"
        return (self._folder.parents[1] / "user_simulator" / name).read_text(encoding="utf-8")

    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        """The tools offered to one side, in the package's order."""
        return self._schemas.get(requestor, [])

    @functools.cached_property
    def _schemas(self) -> dict[Requestor, list[ToolSchema]]:
        return {
            side: _read_schemas(toolkit, self._import_modules) for side, toolkit in self._toolkits.items()
        }

    def tool_types(self) -> Mapping[str, ToolType]:
        return {
            name: tool_type
            for toolkit in self._toolkits.values()
            for name, tool_type in toolkit.tools.items()
        }

    def rules(self) -> Rules | None:
        return RULES_BY_DOMAIN.get(self.domain)

    def has_tool(self, name: str) -> bool:
        return any(name in toolkit.callable_tools for toolkit in self._toolkits.values())

    def changes_state(self, name: str) -> bool:
        return name in self._writers

    @functools.cached_property
    def _writers(self) -> frozenset[str]:
        return frozenset[str]().union(*(toolkit.writer_tools for toolkit in self._toolkits.values()))

    def open(self, *, solo: bool = False) -> ToolkitSession:
        spec, mode = self._spec, WriteMode()
        agent = _instantiate(self._toolkit_class(spec.agent))
        agent.db = OverlayDatabase(self._database(spec.agent), mode)
        if hasattr(agent.db, banking.UNGRADED_TABLE):
            setattr(agent.db, banking.UNGRADED_TABLE, None)
        user = None
        if spec.user is not None:
            user = _instantiate(self._toolkit_class(spec.user))
            user.db = agent.db if spec.is_database_shared else clone(self._database(spec.user))
        return ToolkitSession(
            agent=agent,
            user=user,
            tools={side: toolkit.callable_tools for side, toolkit in self._toolkits.items()},
            writers=self._writers,
            functions=self._functions,
            record_tools=spec.agent.record_tools,
            sorted_tools=spec.agent.sorted_tools,
            hidden_readers=frozenset(spec.agent.hidden_tools) - self._writers,
            mode=mode,
            sync=self._sync,
            solo=solo,
        )

    def data_digest(self) -> str:
        files = dict.fromkeys(toolkit.database for toolkit in self._toolkits.values())
        return digest([read_data(self._folder / name) for name in files])

    @functools.cached_property
    def fingerprint(self) -> str:
        """Digest of the toolkits' sources, which changes only with a release that changes these sources."""
        package = self._folder.parents[2]
        folders = package / self._spec.agent.module.split(".")[2], package / "environment"
        sources = {
            f"{folder.name}/{path.name}": digest_text(path.read_text(encoding="utf-8"))
            for folder in folders
            for path in folder.glob("*.py")
            if path.stem not in _RUNNER_MODULES
        }
        if self.domain == BANKING.folder:
            sources["corrections"] = banking.REVISION
        return digest(sources)

    def version(self) -> str:
        return importlib.metadata.version("inspect_evals")

    @functools.cached_property
    def _modules(self) -> dict[str, types.ModuleType]:
        """The toolkits' modules by name, all imported in the same way because they share classes."""
        names = [toolkit.module for toolkit in self._toolkits.values()]
        if self._spec.sync_class is not None:
            names.append(self._spec.sync_class[0])
        return dict(zip(names, self._import_modules(names), strict=True))

    def _toolkit_class(self, toolkit: Toolkit) -> Any:
        return getattr(self._modules[toolkit.module], toolkit.name)

    def _database(self, toolkit: Toolkit) -> BaseModel:
        if toolkit.name not in self._databases:
            model = self._toolkit_class(toolkit).model_fields["db"].annotation
            store = self._store if toolkit is self._spec.agent else None
            content = read_data(self._folder / toolkit.database) if store is None else store
            self._databases[toolkit.name] = model.model_validate(content)
        return self._databases[toolkit.name]

    @functools.cached_property
    def _functions(self) -> dict[str, Callable[..., Any]]:
        """Offered tools that are not methods of a toolkit; these tools use no database."""
        functions: dict[str, Callable[..., Any]] = {}
        for toolkit in self._toolkits.values():
            names = [name for name in toolkit.tools if not hasattr(self._toolkit_class(toolkit), name)]
            if names:
                wrappers = _make_wrappers(toolkit, *self._import_modules([toolkit.wrappers]))
                functions |= {name: functools.partial(_run_to_end, wrappers[name]) for name in names}
        return functions

    @functools.cached_property
    def _sync(self) -> Callable[[Any, Any], None] | None:
        if self._spec.sync_class is None:
            return None
        module, name = self._spec.sync_class
        sync_tools = getattr(self._modules[module], name).sync_tools
        return lambda agent, user: sync_tools(types.SimpleNamespace(tools=agent, user_tools=user))


class LazyTasks(Mapping[str, Task]):
    """Tasks by id, validated at the first access because telecom has 2,285 tasks and a suite uses 114."""

    def __init__(self, records: Sequence[dict[str, Any]]) -> None:
        self._records = {str(record["id"]): record for record in records}
        self._tasks: dict[str, Task] = {}

    def __getitem__(self, task_id: str) -> Task:
        if task_id not in self._tasks:
            self._tasks[task_id] = Task.model_validate(self._records[task_id])
        return self._tasks[task_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


@functools.cache
def data_folder() -> Path:
    """Return the folder of the domains' data. Raises `MissingExtraError` or `WorldError` if it is missing."""
    spec = importlib.util.find_spec("inspect_evals")
    if spec is None or not spec.submodule_search_locations:
        require("inspect_evals", extra="tau2")
        raise WorldError("package 'inspect_evals' has no folder; reinstall it")
    folder = Path(spec.submodule_search_locations[0]) / "tau2" / "data" / "domains"
    if not folder.is_dir():
        raise WorldError("this version of 'inspect_evals' contains no tau2 data; install 0.26 or later")
    return folder


def read_data(path: Path) -> Any:
    """Read a JSON or TOML file, which may be stored with the additional suffix `.gz`."""
    gzip_path = path if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")
    file_bytes = gzip.decompress(gzip_path.read_bytes()) if gzip_path.exists() else path.read_bytes()
    if ".toml" in path.suffixes:
        return tomllib.loads(file_bytes.decode("utf-8"))
    return pydantic_core.from_json(file_bytes, allow_inf_nan=False)


@functools.cache
def _make_plain_class(source: Any) -> tuple[type, tuple[tuple[str, Callable[[], Any]], ...]]:
    """Return a plain class with a toolkit's functions, and factories of its fields other than the database.

    The port keeps a toolkit's state in a store of an Inspect run, which validates the state at every access.
    The same functions work on a plain object.
    """
    members = {
        key: banking.corrected(key, value) if isinstance(value, types.FunctionType) else value
        for key, value in vars(source).items()
        if isinstance(value, types.FunctionType | property | staticmethod) and not key.startswith("__")
    }
    fields = tuple(
        (key, functools.partial(info.get_default, call_default_factory=True))
        for key, info in source.model_fields.items()
        if key not in {"db", "store", "instance", "initialized"}
    )
    return type(source.__name__, (), members), fields


def _instantiate(source: Any) -> Any:
    plain_class, fields = _make_plain_class(source)
    instance = plain_class()
    for key, default in fields:
        setattr(instance, key, default())
    return instance


def _read_schemas(
    toolkit: Toolkit, import_modules: Callable[[Sequence[str]], Sequence[types.ModuleType]]
) -> list[ToolSchema]:
    module, tool_info = import_modules([toolkit.wrappers, "inspect_ai.tool._tool_info"])
    schemas = []
    for name, wrapper in _make_wrappers(toolkit, module).items():
        info = tool_info.parse_tool_info(wrapper)
        parameters = info.parameters.model_dump(mode="json", exclude_none=True)
        schemas.append(ToolSchema(name=name, description=info.description, parameters=parameters))
    return schemas


def _make_wrappers(toolkit: Toolkit, module: types.ModuleType) -> dict[str, Any]:
    """Return the port's tool wrappers by upstream's names: listed ones first, then other offered tools."""
    prefix = toolkit.wrapper_prefix
    listed_names = [
        factory.__name__.removeprefix(prefix) for factory in getattr(module, toolkit.wrapper_list)
    ]
    names = [*listed_names, *(name for name in toolkit.tools if hasattr(module, prefix + name))]
    return {name: getattr(module, prefix + name)() for name in dict.fromkeys(names)}


def _run_to_end(wrapper: Callable[..., Coroutine[Any, Any, Any]], **arguments: Any) -> Any:
    """Run a wrapper's coroutine, which never waits, without an event loop."""
    coroutine = wrapper(**arguments)
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    finally:
        coroutine.close()
    raise WorldError("a tool of inspect_evals cannot wait outside an Inspect run")
