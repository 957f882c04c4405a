"""Finds providers of worlds by name, and opens their worlds. No other module opens worlds."""

import functools
import importlib
import importlib.metadata
import inspect
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, cast

from pytest_trace2evolve.errors import WorldError, name_suggestion
from pytest_trace2evolve.records.evidence import Code
from pytest_trace2evolve.records.protocols import World, rules_of
from pytest_trace2evolve.records.rules import Rules
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.utils.import_path import is_import_path, load_object
from pytest_trace2evolve.utils.optional import describe_entry_point, entry_points

WorldFactory = Callable[[str], World]
"""Opens the world of a domain; raises `WorldError` for an unknown domain."""

WorldName = tuple[str, str]
"""A world: its provider's name and its domain."""

DEFAULT_PROVIDER = "inspect_evals"

_BUILT_IN_PROVIDERS = {
    "inspect_evals": ("pytest_trace2evolve.worlds.inspect_evals", "InspectWorld"),
    "tau2": ("pytest_trace2evolve.worlds.upstream", "UpstreamWorld"),
    "toolsandbox": ("pytest_trace2evolve.worlds.toolsandbox.world", "ToolSandboxWorld"),
    "trace2evolve": ("pytest_trace2evolve.worlds.support.world", "SupportWorld"),
}

_TAU2_INTERFACE = "τ²"
"""The interface name that the providers of τ²'s own domains share; no provider has this name."""

ENTRY_POINT_GROUP = "trace2evolve.worlds"
"""Entry-point group of providers in installed packages: a name and a `WorldFactory`."""


class Worlds:
    """Opens worlds, each pair of provider and domain once.

    Args:
        extra: Further providers by name, from the hook `pytest_t2e_worlds`, or a callable that returns these
            providers. The callable is called when providers are first needed.
        folder: The project's root, from which worlds with an import path are imported.
        find_agent_files: Returns the files that define the project's agents.
    """

    def __init__(
        self,
        extra: Mapping[str, WorldFactory] | Callable[[], Mapping[str, WorldFactory]] | None = None,
        folder: Path | None = None,
        find_agent_files: Callable[[], Collection[Path]] = tuple,
    ) -> None:
        self._find_agent_files = find_agent_files
        self._load_extra = extra if callable(extra) else lambda: extra or {}
        self._folder = folder
        self._open_worlds: dict[WorldName, World] = {}
        self._code: dict[WorldName, Code] = {}
        self._extended_worlds: dict[tuple[str, str, tuple[Path, ...]], World] = {}

    @functools.cached_property
    def _extra(self) -> Mapping[str, WorldFactory]:
        return self._load_extra()

    def providers(self) -> list[str]:
        return sorted({*_BUILT_IN_PROVIDERS, *self._extra, *_installed_providers()})

    def open(self, provider: str, domain: str) -> World:
        """Return the world of a domain.

        Raises:
            WorldError: the provider is unknown, or does not have the domain.
            MissingExtraError: the provider's package is not installed.
            ConfigError: further providers cannot be loaded, or a name is registered twice.
        """
        key = (provider, domain)
        if key not in self._open_worlds:
            self._open_worlds[key] = self._find_factory(provider)(domain)
        return self._open_worlds[key]

    def open_extended(
        self,
        provider: str,
        domain: str,
        files: tuple[Path, ...],
        read_tasks: Callable[[], Mapping[str, Sequence[Task]]],
    ) -> World:
        """Return the world of a domain with the tasks of `files`, which `read_tasks` reads once."""
        key = (provider, domain, files)
        if key not in self._extended_worlds:
            self._extended_worlds[key] = with_tasks(self.open(provider, domain), read_tasks())
        return self._extended_worlds[key]

    def code(self, provider: str, domain: str) -> Code:
        """Return the code behind the tools of a domain's world.

        A declared `fingerprint` stands for the code. Otherwise, the code is that of the world's `code_roots`
        without docstrings, which belong to the candidate, or that of its factory and its class.
        """
        from pytest_trace2evolve.evidence.identity import code_of

        key = (provider, domain)
        if key not in self._code:
            world = self.open(provider, domain)
            roots, shared = getattr(world, "code_roots", None), self._find_agent_files()
            self._code[key] = (
                code_of(
                    self._origin(provider), type(world), owner=world, shared=shared, policy=world.policy()
                )
                if roots is None
                else code_of(*roots(), shared=shared, has_docstrings=False, policy=world.policy())
            )
        return self._code[key]

    def is_built_in(self, provider: str) -> bool:
        """Return whether a provider is built in and not replaced by a different provider."""
        return (
            provider in _BUILT_IN_PROVIDERS
            and provider not in self._extra
            and provider not in _installed_providers()
        )

    def interface_of(self, provider: str, domain: str) -> WorldName:
        """Identify a world's tool interface; worlds share an interface if an agent's calls mean the same.

        `inspect_evals` and `tau2` have the same τ² domains. The domain `telecom-workflow` has the tools of
        telecom, and the support world has those of τ² retail. Any other world, and every world of a further
        provider, has its own interface.
        """
        if self.is_built_in(provider):
            if provider in ("inspect_evals", "tau2"):
                return _TAU2_INTERFACE, domain.removesuffix("-workflow")
            if (provider, domain) == ("trace2evolve", "support"):
                return _TAU2_INTERFACE, "retail"
        return provider, domain

    def _find_factory(self, provider: str) -> WorldFactory:
        if is_import_path(provider):
            return self._import(provider)
        if provider in self._extra:
            return to_factory(self._extra[provider], provider)
        if provider in _installed_providers():
            return to_factory(_installed_providers()[provider].load(), provider)
        if provider not in _BUILT_IN_PROVIDERS:
            raise WorldError(f"unknown provider {provider!r}; {name_suggestion(provider, self.providers())}")
        module, name = _BUILT_IN_PROVIDERS[provider]
        return cast(WorldFactory, getattr(importlib.import_module(module), name))

    def _origin(self, provider: str) -> object:
        """Return the object of a project or a package from which a provider's worlds come."""
        if is_import_path(provider):
            return load_object(provider, self._folder or Path.cwd())
        return self._extra[provider] if provider in self._extra else self._find_factory(provider)

    def _import(self, path: str) -> WorldFactory:
        """Import a world, or a function that opens one, from the project.

        Raises:
            WorldError: the path cannot be imported, or names neither a world nor such a function.
        """
        folder = self._folder or Path.cwd()
        try:
            imported_object = load_object(path, folder)
        except WorldError as error:
            raise WorldError(f"world {path!r}: {error}") from None
        except (Exception, SystemExit) as error:  # a module of the project can raise anything
            cause = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise WorldError(
                f"world {path!r} cannot be imported from {folder}: {cause}; correct the path or the module"
            ) from error
        if is_world(imported_object):
            return lambda domain: cast(World, imported_object)
        factory = to_factory(imported_object, path)

        def open_world(domain: str) -> World:
            # A function of the project may take the domain or nothing.
            try:
                world: object = factory(domain) if _takes_domain(imported_object) else imported_object()
            except WorldError:
                raise
            except Exception as error:
                cause = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                raise WorldError(f"world {path!r} cannot be opened: {cause}; correct it") from error
            if not is_world(world):
                raise WorldError(
                    f"world {path!r} returned a {type(world).__name__}, not a world; make one with "
                    "World.from_tools"
                )
            return cast(World, world)

        return open_world


def is_world(value: object) -> bool:
    """Whether a value is a world, and not a class or a function that makes one."""
    return not isinstance(value, type) and hasattr(value, "open") and hasattr(value, "tools")


def to_factory(value: object, name: str) -> WorldFactory:
    """Return a factory unchanged; for a world, return a factory that opens it.

    Raises:
        WorldError: the value is neither a world nor a factory. The factory of a world raises it for a domain
            that the world does not have.
    """
    if is_world(value):
        world = cast(World, value)

        def open_domain(domain: str) -> World:
            if domain not in (world.domain, name):
                raise WorldError(f"world {name!r} has no domain {domain!r}; it has only {world.domain!r}")
            return world

        return open_domain
    if not callable(value):
        raise WorldError(
            f"world {name!r} is a {type(value).__name__}, not a world; make one with World.from_tools"
        )
    if isinstance(value, type) and not hasattr(value, "open"):
        raise WorldError(
            f"world {name!r} is the class {value.__name__}, not a world; make one with "
            f"World.from_tools({value.__name__})"
        )
    return cast(WorldFactory, value)


def _takes_domain(factory: object) -> bool:
    """Whether a factory has a parameter for the domain."""
    try:
        return bool(inspect.signature(cast(Any, factory)).parameters)
    except (TypeError, ValueError):
        return True


def provider_owners() -> dict[str, str]:
    """Return built-in and installed providers with their owners. Raises `ConfigError` if two share a name."""
    owners = dict.fromkeys(_BUILT_IN_PROVIDERS, "pytest-trace2evolve")
    return owners | {name: describe_entry_point(point) for name, point in _installed_providers().items()}


@functools.cache
def _installed_providers() -> dict[str, importlib.metadata.EntryPoint]:
    return entry_points(ENTRY_POINT_GROUP, "world", _BUILT_IN_PROVIDERS)


def with_tasks(world: World, extra_tasks: Mapping[str, Sequence[Task]]) -> World:
    """Return a world with further tasks and splits, such as a project's synthetic cases.

    Args:
        world: The world; its own tasks may be validated lazily and are not read here.
        extra_tasks: Tasks by the name of their split; ids must be unique, also among the world's own tasks.
    """
    return cast(World, _ExtendedWorld(world, extra_tasks))


class _ExtendedWorld:
    def __init__(self, world: World, extra_tasks: Mapping[str, Sequence[Task]]) -> None:
        self._world = world
        tasks_by_id = {task.id: task for split in extra_tasks.values() for task in split}
        self._tasks = ChainMap(tasks_by_id, cast(MutableMapping[str, Task], world.tasks()))
        self._extra_splits = {name: [task.id for task in split] for name, split in extra_tasks.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def tasks(self) -> Mapping[str, Task]:
        return self._tasks

    def splits(self) -> Mapping[str, Sequence[str]]:
        return {**self._world.splits(), **self._extra_splits}

    def rules(self) -> Rules | None:  # `isinstance(world, SupportsRules)` ignores `__getattr__`
        return rules_of(self._world)
