"""Extensions: the worlds, agents, checks and environments that hooks register, for pytest and for commands.

A pytest session reads the hooks of its own configuration (`registered`). A command has no session: it lets
pytest load the project's `conftest.py` and plugins, and reads the same hooks (`load`).
"""

import contextlib
import importlib.metadata
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from pytest_trace2evolve.errors import ConfigError, Trace2EvolveError, name_taken
from pytest_trace2evolve.project.pytest_ini import ini_words
from pytest_trace2evolve.records.capability import BUILT_IN_CAPABILITIES
from pytest_trace2evolve.records.evidence import CHAT, REFERENCE_AGENTS, REPLAY
from pytest_trace2evolve.records.protocols import Offer
from pytest_trace2evolve.utils.optional import CHECKS, described, entry_points
from pytest_trace2evolve.worlds.registry import WorldFactory
from pytest_trace2evolve.worlds.registry import registered as registered_worlds

if TYPE_CHECKING:
    import pytest

    from pytest_trace2evolve.gate.protocols import Check  # imports numpy, which most commands do not need
    from pytest_trace2evolve.project.candidates import AgentFactory

READER = "trace2evolve-extensions"
"""The name under which `load` registers its plugin. Our own plugin does nothing in the session of `load`."""

DISTRIBUTION = "pytest-trace2evolve"

_REQUIRES = re.compile(r"^Requires-Dist: pytest[-_.]trace2evolve\b", re.MULTILINE | re.IGNORECASE)

_SHOWN_LETTERS = 300
"""The most characters of an exception's message that an error repeats."""

_hookimpl = pluggy.HookimplMarker("pytest")  # pytest.hookimpl, without the import of pytest


@dataclass(frozen=True)
class Extensions:
    """Everything that the hooks of a project and of its plugins register, by kind and name."""

    worlds: Mapping[str, WorldFactory] = field(default_factory=dict)
    agents: "Mapping[str, AgentFactory]" = field(default_factory=dict)
    checks: "Mapping[str, Check]" = field(default_factory=dict)
    environments: "Mapping[str, Offer]" = field(default_factory=dict)


def read_hooks(config: "pytest.Config") -> Extensions:
    """Read all hooks of a configuration.

    Raises:
        ConfigError: a hook fails, returns a value of the wrong type, or registers a name that is taken.
    """
    return Extensions(**{kind: registered(config, kind) for kind in _WHAT})


_WHAT = {"worlds": "world", "agents": "agent", "checks": "check", "environments": "environment"}
"""The kinds of extensions, each with its name in messages."""


def registered(config: "pytest.Config", kind: str) -> dict[str, Any]:
    """Read the hook `pytest_t2e_<kind>` and return its registrations by name. Raises like `read_hooks`."""
    manager, name = config.pluginmanager, f"pytest_t2e_{kind}"
    found: dict[str, Any] = {}
    owners = dict(_taken(kind))
    plugins = [hook.plugin for hook in getattr(config.hook, name).get_hookimpls() if not hook.wrapper]
    for plugin in plugins:
        # Plugins are asked one at a time, so that an error can name the owner of a registration.
        ask = manager.subset_hook_caller(name, [other for other in plugins if other is not plugin])
        owner = _owner(plugin, manager, config.rootpath)
        try:
            answers = ask(config=config)
            if not isinstance(answers, list):
                raise TypeError(f"a wrapper returned a {type(answers).__name__}, not the list of answers")
            entries = [
                entry for answer in answers for entry in _entries(answer, kind, f"{owner}: hook {name}")
            ]
        except (KeyboardInterrupt, Trace2EvolveError):
            raise
        except BaseException as error:  # including `SystemExit` and pytest's outcome exceptions
            raise ConfigError(
                f"{_line_in(error, plugin, owner)}: hook {name} failed: {_described(error)}; correct the hook"
            ) from error
        for key, value in entries:
            if key in owners:
                raise name_taken(_WHAT[kind], key, owners[key], owner)
            found[key], owners[key] = value, owner
    return found


def _entries(answer: Any, kind: str, hook: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(answer, Mapping):
        raise ConfigError(
            f"{hook} returned a {type(answer).__name__}; return a mapping of names to {_WHAT[kind]}s"
        )
    for key, value in answer.items():
        if not isinstance(key, str) or not key:
            raise ConfigError(f"{hook} registers the name {key!r}; a name is a text that is not empty")
        if not _fits(value, kind):
            wanted = {"checks": "a Check", "environments": "an Offer"}.get(kind, "a callable")
            raise ConfigError(f"{hook} registers {key!r} as a {type(value).__name__}; give {wanted}")
        yield key, value


def _fits(value: Any, kind: str) -> bool:
    if kind == "environments":
        return isinstance(value, Offer)
    if kind == "checks":
        return hasattr(value, "id") and callable(getattr(value, "evaluate", None))
    return callable(value)


def _taken(kind: str) -> Mapping[str, str]:
    """Names that are registered without a hook, with their owners."""
    if kind == "worlds":
        return registered_worlds()
    if kind == "agents":
        return dict.fromkeys((*REFERENCE_AGENTS, CHAT, REPLAY), DISTRIBUTION)
    if kind == "checks":
        return {name: described(point) for name, point in entry_points(CHECKS, "check").items()}
    return registered_environments()


ENVIRONMENTS = "trace2evolve.environments"
"""The entry-point group of installed environments: the name is the capability, the value an `Offer`."""

_BUILT_IN_ENVIRONMENTS = frozenset(capability.name for capability in BUILT_IN_CAPABILITIES)


def environment_entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """The environments that installed packages offer, by capability."""
    return entry_points(ENVIRONMENTS, "environment", _BUILT_IN_ENVIRONMENTS)


def registered_environments() -> dict[str, str]:
    """The environments that no hook registers, with their owners."""
    own = dict.fromkeys(_BUILT_IN_ENVIRONMENTS, DISTRIBUTION)
    return own | {name: described(point) for name, point in environment_entry_points().items()}


def _owner(plugin: Any, manager: pluggy.PluginManager, root: Path) -> str:
    """The name of a plugin in messages: its file in the project, else its module or class."""
    file = getattr(plugin, "__file__", None)
    if file is not None:
        path = Path(file)
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else plugin.__name__
    return manager.get_name(plugin) or type(plugin).__name__


def _line_in(error: BaseException, plugin: Any, owner: str) -> str:
    """The owner, with the last line of the plugin's own file in the traceback of an error."""
    file = getattr(plugin, "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{owner}:{lines[-1]}" if lines else owner


def _described(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())[:_SHOWN_LETTERS]
    except Exception as other:
        text = f"its message cannot be shown ({type(other).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def may_register(root: Path, suites_folder: Path) -> bool:
    """Whether a file or plugin that pytest would load for a project may implement a hook.

    These are a `conftest.py` in the root or in the folder of suites, a plugin named by `-p` or
    `PYTEST_PLUGINS`, and an installed plugin whose distribution requires this one. The check does not import
    pytest.
    """
    if any((folder / "conftest.py").is_file() for folder in (root, suites_folder)):
        return True
    words = (*ini_words(root, "addopts"), *os.environ.get("PYTEST_ADDOPTS", "").split())
    if os.environ.get("PYTEST_PLUGINS") or any(word.startswith("-p") for word in words):
        return True
    # The metadata is searched as text, because parsing it for each plugin would take longer than all else.
    return any(
        re.search(_REQUIRES, point.dist.read_text("METADATA") or "")
        for point in importlib.metadata.entry_points(group="pytest11")
        if point.dist is not None and point.name != "trace2evolve"
    )


_QUICK = ("--capture=no", "-p", "no:unraisableexception")
"""Options that save time: no capture of output, and no second garbage collection after the imports."""


def load(root: Path, suites_folder: Path) -> Extensions:
    """Load a project as `pytest <suites folder>` does, and read the hooks.

    pytest reads its settings, imports the plugins and the conftest files, and configures them. It collects
    and runs nothing. Output of pytest and of these files is discarded.

    Raises:
        ConfigError: pytest cannot be configured there (the message names the file and the error), or
            `read_hooks` raises.
    """
    import pytest

    reader = _Reader(pytest.exit)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            pytest.main([*_QUICK, f"--rootdir={root}", str(suites_folder)], plugins=[reader])
    except BaseException as error:
        reader.error = reader.error or error
    # pytest removes the folders of its ini key `pythonpath` again, but factories may import from them later.
    sys.path += [folder for folder in reader.path if folder not in sys.path]
    if reader.error is not None:
        if isinstance(reader.error, KeyboardInterrupt | Trace2EvolveError):
            raise reader.error
        raise _unloadable(reader.error, root) from reader.error
    if reader.found is None:
        lines = [line.strip().removeprefix("ERROR: ") for line in said.getvalue().splitlines()]
        why = " ".join(line for line in lines if line)[:_SHOWN_LETTERS] or "it ended without a message"
        raise ConfigError(f"pytest cannot be configured in {root}: {why}; correct its settings there")
    return reader.found


def _unloadable(error: BaseException, root: Path) -> ConfigError:
    """Return a one-line error for an exception that a project's file raised.

    If a conftest file raised it, pytest has wrapped the exception.
    """
    cause: BaseException = getattr(error, "cause", None) or error
    own = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(cause.__traceback__)
        if Path(frame.filename).is_relative_to(root)
    ]
    place = own[-1] if own else str(getattr(error, "path", root))
    return ConfigError(f"{place}: cannot be loaded by pytest: {_described(cause)}; correct the file")


class _Reader:
    """Reads the hooks once every plugin is configured, then ends the session.

    Attributes:
        found: The registrations; None until they are read.
        error: The exception that prevented reading them; None if none was raised.
        path: `sys.path` while the hooks were read.
    """

    __name__ = READER  # the name under which pytest registers the plugin

    def __init__(self, end: Callable[..., Any]) -> None:
        self._end = end
        self.found: Extensions | None = None
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
            self.found = read_hooks(config)
        except BaseException as error:
            self.error = error
        self._end("the hooks are read", returncode=0)

    @_hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: "pytest.ExceptionInfo[BaseException]") -> None:
        """Shorten a traceback that is never shown, because pytest parses the files of all its frames."""
        excinfo.traceback = excinfo.traceback.cut(path=__file__)
