"""Extensions: the worlds, agents, checks and environments that hooks register, for pytest and for commands.

The project's own checks need no hook: `check` and `judged_check` declare them in a `conftest.py` of the
project or in the module that `[tool.trace2evolve]` names. A pytest session reads the hooks of its own
configuration (`read_hook`). A command has no session: it lets pytest load the project's `conftest.py` and
plugins, and reads the same hooks (`load_extensions`).
"""

import contextlib
import importlib
import importlib.metadata
import io
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from pytest_trace2evolve.errors import ConfigError, Trace2EvolveError, duplicate_name_error
from pytest_trace2evolve.project.tool_settings import FILE_NAME, read_tool_settings
from pytest_trace2evolve.records.capability import BUILT_IN_CAPABILITIES
from pytest_trace2evolve.records.evidence import CHAT, REFERENCE_AGENTS, REPLAY
from pytest_trace2evolve.records.protocols import Offer
from pytest_trace2evolve.records.trace_check import TraceCheck, checks_in, short_location
from pytest_trace2evolve.utils.optional import CHECK_GROUP, describe_entry_point, entry_points
from pytest_trace2evolve.worlds.registry import WorldFactory, is_world
from pytest_trace2evolve.worlds.registry import provider_owners as registered_worlds

if TYPE_CHECKING:
    import pytest

    from pytest_trace2evolve.gate.protocols import Check  # imports numpy, which most commands do not need
    from pytest_trace2evolve.project.candidates import AgentFactory

READER_PLUGIN = "trace2evolve-extensions"
"""The name of the plugin that `load_extensions` registers. In its session, our own plugin does nothing."""

DISTRIBUTION = "pytest-trace2evolve"

_MAX_MESSAGE_LENGTH = 300
"""The maximum length of an exception's message in an error."""

_hookimpl = pluggy.HookimplMarker("pytest")  # pytest.hookimpl, without the import of pytest


@dataclass(frozen=True)
class Extensions:
    """Everything that the hooks of a project and of its plugins register, by kind and name.

    `trace_checks` holds the project's own checks of traces.
    """

    worlds: Mapping[str, WorldFactory] = field(default_factory=dict)
    agents: "Mapping[str, AgentFactory]" = field(default_factory=dict)
    checks: "Mapping[str, Check]" = field(default_factory=dict)
    environments: "Mapping[str, Offer]" = field(default_factory=dict)
    trace_checks: Mapping[str, TraceCheck] = field(default_factory=dict)


def read_hooks(config: "pytest.Config", suites_folder: Path) -> Extensions:
    """Read all hooks of a configuration, and the project's own checks of traces.

    Raises:
        ConfigError: a hook fails, returns a value of the wrong type, or registers a name that is taken; or a
            check of traces cannot be loaded, or its name is taken.
    """
    registrations = {kind: read_hook(config, kind) for kind in _KIND_NAMES}
    trace_checks = read_trace_checks(config, suites_folder, registrations["checks"])
    return Extensions(**registrations, trace_checks=trace_checks)


def read_trace_checks(
    config: "pytest.Config", suites_folder: Path, gate_checks: Mapping[str, object]
) -> dict[str, TraceCheck]:
    """Read the checks of traces in a project's `conftest.py` files and in the module that its settings name.

    Args:
        gate_checks: The checks of the gate that hooks register, whose names are taken.

    Raises:
        ConfigError: the module cannot be imported, or a name is taken.
    """
    conftest_files = {folder / "conftest.py" for folder in (config.rootpath, suites_folder)}
    modules = [
        plugin
        for plugin in config.pluginmanager.get_plugins()
        if isinstance(plugin, ModuleType) and Path(getattr(plugin, "__file__", None) or "") in conftest_files
    ]
    modules.sort(key=lambda module: len(Path(module.__file__ or "").parts))
    return collect_trace_checks(config.rootpath, modules, gate_checks)


def collect_trace_checks(
    root: Path, modules: Iterable[ModuleType] = (), gate_checks: Iterable[str] = ()
) -> dict[str, TraceCheck]:
    """Collect the checks of traces in modules and in the module that the project's settings name, by id.

    A check that several modules import counts once.

    Raises:
        ConfigError: the named module cannot be imported, or a name is taken; the message names both places.
    """
    modules = list(modules)
    settings = read_tool_settings(root)
    if settings.checks is not None:
        modules.append(_import_module(root, settings.checks))
    trace_checks: dict[str, TraceCheck] = {}
    for trace_check in (trace_check for module in modules for trace_check in checks_in(module)):
        location = short_location(trace_check.location, root)
        known_check = trace_checks.setdefault(trace_check.id, trace_check)
        if known_check is not trace_check:
            raise duplicate_name_error(
                "check", trace_check.id, short_location(known_check.location, root), location
            )
    if trace_checks:
        from pytest_trace2evolve.gate.policy import RESERVED_IDS

        owners = dict.fromkeys(RESERVED_IDS, DISTRIBUTION) | dict(_reserved_names("checks"))
        owners |= dict.fromkeys(gate_checks, "hook pytest_t2e_checks")
        for name, trace_check in trace_checks.items():
            if name in owners:
                location = short_location(trace_check.location, root)
                raise duplicate_name_error("check", name, owners[name], location)
    return {
        name: replace(trace_check, timeout=settings.check_timeout)
        for name, trace_check in trace_checks.items()
    }


def _import_module(root: Path, name: str) -> ModuleType:
    """Import a module of a project, with the project's root first on `sys.path`."""
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    try:
        return importlib.import_module(name)
    except (KeyboardInterrupt, Trace2EvolveError):
        raise
    except BaseException as error:  # including `SystemExit`
        locations = [
            f"{frame.filename}:{frame.lineno}"
            for frame in traceback.extract_tb(error.__traceback__)
            if Path(frame.filename).is_relative_to(root)
        ]
        location = f" ({short_location(locations[-1], root)})" if locations else ""
        raise ConfigError(
            f"{root / FILE_NAME}: checks = {name!r}: the module cannot be imported: "
            f"{_describe_error(error)}{location}; correct the module or the setting"
        ) from error


_KIND_NAMES = {"worlds": "world", "agents": "agent", "checks": "check", "environments": "environment"}
"""The name of each kind of extension in messages."""


def read_hook(config: "pytest.Config", kind: str) -> dict[str, Any]:
    """Read the hook `pytest_t2e_<kind>` and return its registrations by name. Raises like `read_hooks`."""
    manager, name = config.pluginmanager, f"pytest_t2e_{kind}"
    registrations: dict[str, Any] = {}
    owners = dict(_reserved_names(kind))
    plugins = [hook.plugin for hook in getattr(config.hook, name).get_hookimpls() if not hook.wrapper]
    for plugin in plugins:
        # Plugins are asked one at a time, so that an error can name the owner of a registration.
        call_hook = manager.subset_hook_caller(
            name, [other_plugin for other_plugin in plugins if other_plugin is not plugin]
        )
        owner = _owner_name(plugin, manager, config.rootpath)
        try:
            results = call_hook(config=config)
            if not isinstance(results, list):
                raise TypeError(
                    f"a wrapper returned a {type(results).__name__}, expected the list of results"
                )
            entries = [
                entry
                for result in results
                for entry in _validate_registrations(result, kind, f"{owner}: hook {name}")
            ]
        except (KeyboardInterrupt, Trace2EvolveError):
            raise
        except BaseException as error:  # including `SystemExit` and pytest's outcome exceptions
            raise ConfigError(
                f"{_location_of(error, plugin, owner)}: hook {name} failed: {_describe_error(error)}; "
                "correct the hook"
            ) from error
        for key, value in entries:
            if key in owners:
                raise duplicate_name_error(_KIND_NAMES[kind], key, owners[key], owner)
            registrations[key], owners[key] = value, owner
    return registrations


def _validate_registrations(result: Any, kind: str, hook: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(result, Mapping):
        raise ConfigError(
            f"{hook} returned a {type(result).__name__}, expected a mapping of names to {_KIND_NAMES[kind]}s"
        )
    for key, value in result.items():
        if not isinstance(key, str) or not key:
            raise ConfigError(f"{hook} registers the name {key!r}; a name must be a non-empty text")
        if not _has_valid_type(value, kind):
            expected = {
                "checks": "a Check",
                "environments": "an Offer",
                "worlds": "a World, or a callable that opens one",
            }.get(kind, "a callable")
            raise ConfigError(f"{hook} registers {key!r} as a {type(value).__name__}, expected {expected}")
        yield key, value


def _has_valid_type(value: Any, kind: str) -> bool:
    if kind == "environments":
        return isinstance(value, Offer)
    if kind == "checks":
        return hasattr(value, "id") and callable(getattr(value, "evaluate", None))
    return callable(value) or (kind == "worlds" and is_world(value))


def _reserved_names(kind: str) -> Mapping[str, str]:
    """Return names that are registered without a hook, with their owners."""
    if kind == "worlds":
        return registered_worlds()
    if kind == "agents":
        return dict.fromkeys((*REFERENCE_AGENTS, CHAT, REPLAY), DISTRIBUTION)
    if kind == "checks":
        return {
            name: describe_entry_point(point) for name, point in entry_points(CHECK_GROUP, "check").items()
        }
    return registered_environments()


ENVIRONMENTS = "trace2evolve.environments"
"""The entry-point group of installed environments: the name is the capability, the value an `Offer`."""

_BUILT_IN_ENVIRONMENTS = frozenset(capability.name for capability in BUILT_IN_CAPABILITIES)


def environment_entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the environments that installed packages offer, by capability."""
    return entry_points(ENVIRONMENTS, "environment", _BUILT_IN_ENVIRONMENTS)


def registered_environments() -> dict[str, str]:
    """Return the environments that no hook registers, with their owners."""
    built_in = dict.fromkeys(_BUILT_IN_ENVIRONMENTS, DISTRIBUTION)
    return built_in | {
        name: describe_entry_point(point) for name, point in environment_entry_points().items()
    }


def _owner_name(plugin: Any, manager: pluggy.PluginManager, root: Path) -> str:
    """Return the name of a plugin for messages: its file in the project, or else its module or class."""
    file = getattr(plugin, "__file__", None)
    if file is not None:
        path = Path(file)
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else plugin.__name__
    return manager.get_name(plugin) or type(plugin).__name__


def _location_of(error: BaseException, plugin: Any, owner: str) -> str:
    """Return the owner with the line of the plugin's file at which an error was raised."""
    file = getattr(plugin, "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{owner}:{lines[-1]}" if lines else owner


def _describe_error(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())[:_MAX_MESSAGE_LENGTH]
    except Exception as str_error:
        text = f"its message cannot be shown ({type(str_error).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_FAST_OPTIONS = ("--capture=no", "-p", "no:unraisableexception")
"""Options that save time: no capture of output, and no second garbage collection after the imports."""


def load_extensions(root: Path, suites_folder: Path) -> Extensions:
    """Load a project as `pytest <suites folder>` does, and read the hooks.

    pytest reads its settings, imports the plugins and the conftest files, and configures them. It collects
    and runs nothing. Output of pytest and of these files is discarded.

    Raises:
        ConfigError: pytest cannot be configured there (the message names the file and the error), or
            `read_hooks` raises.
    """
    import pytest

    reader = _HookReader(pytest.exit, suites_folder)
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(stderr):
            pytest.main([*_FAST_OPTIONS, f"--rootdir={root}", str(suites_folder)], plugins=[reader])
    except BaseException as error:
        reader.error = reader.error or error
    # pytest removes the folders of its ini key `pythonpath` again, but factories may import from them later.
    sys.path += [folder for folder in reader.path if folder not in sys.path]
    if reader.error is not None:
        if isinstance(reader.error, KeyboardInterrupt | Trace2EvolveError):
            raise reader.error
        raise _loading_error(reader.error, root) from reader.error
    if reader.extensions is None:
        lines = [line.strip().removeprefix("ERROR: ") for line in stderr.getvalue().splitlines()]
        cause = " ".join(line for line in lines if line)[:_MAX_MESSAGE_LENGTH] or "it ended without a message"
        raise ConfigError(f"pytest cannot be configured in {root}: {cause}; correct its settings there")
    return reader.extensions


def _loading_error(error: BaseException, root: Path) -> ConfigError:
    """Return a one-line error for an exception that a project's file raised.

    If a conftest file raised it, pytest has wrapped the exception.
    """
    cause: BaseException = getattr(error, "cause", None) or error
    locations = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(cause.__traceback__)
        if Path(frame.filename).is_relative_to(root)
    ]
    location = locations[-1] if locations else str(getattr(error, "path", root))
    return ConfigError(f"{location}: cannot be loaded by pytest: {_describe_error(cause)}; correct the file")


class _HookReader:
    """Reads the hooks once every plugin is configured, then ends the session.

    Attributes:
        extensions: The registrations; None until they are read.
        error: The exception that prevented reading the hooks; None if none was raised.
        path: `sys.path` while the hooks were read.
    """

    __name__ = READER_PLUGIN  # the name under which pytest registers the plugin

    def __init__(self, exit_session: Callable[..., Any], suites_folder: Path) -> None:
        self._exit = exit_session
        self._suites_folder = suites_folder
        self.extensions: Extensions | None = None
        self.error: BaseException | None = None
        self.path: list[str] = []

    @_hookimpl(wrapper=True)
    def pytest_load_initial_conftests(self) -> Generator[None, object, object]:
        """Keep the error of a conftest file, which pytest itself only prints."""
        try:
            return (yield)
        except BaseException as error:
            self.error = error
            raise

    @_hookimpl(tryfirst=True)
    def pytest_internalerror(self, excinfo: "pytest.ExceptionInfo[BaseException]") -> None:
        """Keep the error of a plugin that could not be configured."""
        self.error = excinfo.value

    @_hookimpl(trylast=True)
    def pytest_configure(self, config: "pytest.Config") -> None:
        """Read the hooks after every other `pytest_configure`, because hooks may rely on these calls."""
        self.path = [*sys.path]
        try:
            self.extensions = read_hooks(config, self._suites_folder)
        except BaseException as error:
            self.error = error
        self._exit("the hooks are read", returncode=0)

    @_hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: "pytest.ExceptionInfo[BaseException]") -> None:
        """Shorten a traceback that is never shown, because pytest parses the files of all its frames."""
        excinfo.traceback = excinfo.traceback.cut(path=__file__)
