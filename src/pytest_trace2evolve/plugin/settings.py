"""The settings of a pytest session: its project, the context of its options, and its selected tests.

Xdist workers import this module, so it imports the dependencies of a run only inside functions.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_trace2evolve.errors import MAX_LINE_LENGTH, Trace2EvolveError
from pytest_trace2evolve.plugin.options import has_options
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.utils.files import real_path
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.engine.live import ServedModel
    from pytest_trace2evolve.session.planner import Resources
    from pytest_trace2evolve.session.settings import Context


def usage_error(message: object) -> pytest.UsageError:
    """Convert a message or an exception to a usage error of one sanitised line.

    Sanitising is necessary here, because pytest does not print usage errors through its terminal writer.
    """
    return pytest.UsageError(sanitize_line(str(message), MAX_LINE_LENGTH - len("ERROR: ")))


def project_of(config: pytest.Config) -> Project:
    """Return the project that pytest runs in.

    Raises:
        pytest.UsageError: the suites are outside the rootdir.
    """
    folder = Path(os.path.normpath(config.rootpath / (config.getini("t2e_suites") or "suites")))
    if not folder.is_relative_to(config.rootpath):
        raise usage_error(
            f"t2e_suites: {folder} is outside the rootdir {config.rootpath}; choose a folder inside it"
        )
    return Project(root=config.rootpath, suites_folder=folder)


def resources_of(config: pytest.Config) -> "Resources":
    """Return the worlds, agents and checks that the project and its plugins provide.

    Raises:
        pytest.UsageError: a file of the project or a hook is invalid.
    """
    from pytest_trace2evolve.engine.factories import BUILT_IN_AGENTS
    from pytest_trace2evolve.project.extensions import read_hook, read_trace_checks
    from pytest_trace2evolve.session.planner import Resources
    from pytest_trace2evolve.worlds.registry import Worlds

    project = project_of(config)
    try:
        _ = project.splits
        agents = {**BUILT_IN_AGENTS, **read_hook(config, "agents")}
        worlds = Worlds(read_hook(config, "worlds"), project.root, project.find_agent_files)
        checks = read_hook(config, "checks")
        trace_checks = read_trace_checks(config, project.suites_folder, checks)
        return Resources(project, worlds, agents, checks, trace_checks)
    except (Trace2EvolveError, OSError) as error:
        raise usage_error(error) from None


def context_of(config: pytest.Config, addresses: "Mapping[str, ServedModel] | None" = None) -> "Context":
    """Return the folders, ini keys and server addresses that options depend on."""
    from pytest_trace2evolve.session.settings import Context

    return Context(
        root=config.rootpath,
        base_folder=config.invocation_params.dir,
        suites=config.getini("t2e_suites"),
        agent=config.getini("t2e_agent"),
        gate=config.getini("t2e_gate"),
        server_addresses=addresses or {},
    )


def narrowing_note(config: pytest.Config) -> str:
    """Return a note about the first option that narrows the run; empty if no option does."""
    option_values = {
        "-k": config.option.keyword,
        "--lf": getattr(config.option, "lf", False),
        "--deselect": getattr(config.option, "deselect", None),
    }
    names = [name for name, value in option_values.items() if value]
    return f"{names[0]} narrows the run" if names else ""


@dataclass(frozen=True)
class Selection:
    """The suites and pressure tests that a session selects.

    Attributes:
        suites: Names of suites.
        has_pressure: Whether pressure tests may run.
        left_out: Descriptions of suites and pressure tests left out because no agent is named.
        may_embed: Whether the embedded model may be the agent if no agent is named.
    """

    suites: tuple[str, ...]
    has_pressure: bool
    left_out: tuple[str, ...] = ()
    may_embed: bool = True


def argument_paths(config: pytest.Config) -> list[Path]:
    """Return the paths given on the command line, without node ids."""
    current_folder = config.invocation_params.dir
    return [real_path(current_folder / str(arg).split("::", 1)[0]) for arg in config.args]


def pressure_folder(root: Path) -> Path:
    """Return the folder of a project's pressure tests."""
    return real_path(root) / "synthetic"


def names_pressure_tests(config: pytest.Config) -> bool:
    """Whether a command-line path is the folder of pressure tests or is inside it."""
    folder = pressure_folder(config.rootpath)
    return any(path == folder or folder in path.parents for path in argument_paths(config))


def select_tests(config: pytest.Config, project: Project) -> Selection:
    """Select the suites and pressure tests of a session.

    Without options, a session selects the suites and pressure tests that a path names or that have an agent
    in the project's settings. It leaves out all others, so that a plain `pytest` still runs the other tests.

    Raises:
        SuiteError: the file of a suite is invalid.
    """
    has_run_options = has_options(config)
    suites = suites_under(config, project)
    may_run_pressure = _may_run_pressure_tests(config, includes_files=has_run_options)
    if has_run_options or config.option.collectonly:
        return Selection(tuple(suites), may_run_pressure)
    has_agent = bool(config.getini("t2e_agent") or project.settings.agent)
    named_suites = [name for name in suites if _names_suite(config, project, name)]
    selected_suites = [
        name
        for name in suites
        if has_agent or name in named_suites or project.suite(name).default_agent is not None
    ]
    left_out = [f"suite {name}" for name in suites if name not in selected_suites]
    runs_pressure = may_run_pressure and (has_agent or names_pressure_tests(config))
    folder = pressure_folder(config.rootpath)
    if may_run_pressure and not runs_pressure and any(folder.rglob("test_*.py")):
        left_out.append(f"the pressure tests of {folder.name}/")
    may_embed = names_pressure_tests(config) or any(name in named_suites for name in selected_suites)
    return Selection(tuple(selected_suites), runs_pressure, tuple(left_out), may_embed)


def suites_under(config: pytest.Config, project: Project) -> list[str]:
    """Return the suites whose files are under a path given on the command line."""
    paths, folder = argument_paths(config), real_path(project.suites_folder)
    return [
        name
        for name in project.suite_names
        if any(argument_path in (path := folder / f"{name}.toml", *path.parents) for argument_path in paths)
    ]


def has_only_suites(config: pytest.Config) -> bool:
    """Whether the paths of a session hold nothing but files of suites, as far as names of files show."""
    folder = real_path(project_of(config).suites_folder)
    is_default = has_options(config) and config.args_source is not pytest.Config.ArgsSource.ARGS
    paths = [folder] if is_default else argument_paths(config)
    if folder in paths and any(path.name != "conftest.py" for path in folder.rglob("*.py")):
        return False
    return all(path == folder or (path.parent == folder and path.suffix == ".toml") for path in paths)


def split_arguments(
    config: pytest.Config, project: Project, suites: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return the arguments that name the selected suites, and those that may name other tests."""
    folder = real_path(project.suites_folder)
    files = {folder / f"{name}.toml": project.suites_folder / f"{name}.toml" for name in suites}
    tasks: list[str] = []
    others: list[str] = []
    for argument, path in zip(map(str, config.args), argument_paths(config), strict=True):
        if path in files:
            tasks.append(argument)
            continue
        tasks += [str(name) for file, name in files.items() if path in file.parents]
        others.append(argument)
    return tasks, others


def _names_suite(config: pytest.Config, project: Project, name: str) -> bool:
    """Whether a command-line path is the file of this suite or the folder of suites."""
    folder = real_path(project.suites_folder)
    return any(path in (folder, folder / f"{name}.toml") for path in argument_paths(config))


def _may_run_pressure_tests(config: pytest.Config, *, includes_files: bool) -> bool:
    """Whether the command-line paths may contain tests that run cases.

    Such tests are in `synthetic/` or, if `includes_files` is set, in any given Python file.
    """
    folder = pressure_folder(config.rootpath)
    return any(
        (includes_files and path.suffix == ".py")
        or (folder.is_dir() and path in (folder, *folder.parents))
        or folder in path.parents
        for path in argument_paths(config)
    )
