"""The request of a session: its project, the context of its options, and its suites and pressure tests.

Workers of xdist import this module, so it imports the dependencies of a run only inside functions.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_trace2evolve.errors import LONGEST_LINE, ConfigError, Trace2EvolveError
from pytest_trace2evolve.plugin.options import has_options
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.engine.live import Address
    from pytest_trace2evolve.session.planner import Resources
    from pytest_trace2evolve.session.settings import Context


def usage_error(what: object) -> pytest.UsageError:
    """Make a usage error of one sanitised line from a message or an exception.

    Sanitising is necessary here, because pytest does not print usage errors through its terminal writer.
    """
    return pytest.UsageError(sanitize_line(str(what), LONGEST_LINE - len("ERROR: ")))


def project_of(config: pytest.Config) -> Project:
    """The project that pytest runs in.

    Raises:
        pytest.UsageError: the suites lie outside the rootdir.
    """
    folder = Path(os.path.normpath(config.rootpath / (config.getini("t2e_suites") or "suites")))
    if not folder.is_relative_to(config.rootpath):
        raise usage_error(f"t2e_suites: {folder} lies outside the rootdir {config.rootpath}")
    return Project(root=config.rootpath, suites_folder=folder)


def resources_of(config: pytest.Config) -> "Resources":
    """The resources that the project and its plugins offer.

    Raises:
        pytest.UsageError: a file of the project or a hook is invalid.
    """
    from pytest_trace2evolve.engine.factories import BUILT_IN_AGENTS
    from pytest_trace2evolve.project.extensions import registered
    from pytest_trace2evolve.session.planner import Resources
    from pytest_trace2evolve.worlds.registry import Worlds

    project = project_of(config)
    try:
        _ = project.splits
        agents = {**BUILT_IN_AGENTS, **registered(config, "agents")}
        return Resources(project, Worlds(registered(config, "worlds")), agents, registered(config, "checks"))
    except (Trace2EvolveError, OSError) as error:
        raise usage_error(error) from None


def context_of(config: pytest.Config, served: "Mapping[str, Address] | None" = None) -> "Context":
    """The folders to which options refer, the ini keys behind some options, and addresses of servers."""
    from pytest_trace2evolve.session.settings import Context

    return Context(
        root=config.rootpath,
        here=config.invocation_params.dir,
        suites=config.getini("t2e_suites"),
        agent=config.getini("t2e_agent"),
        gate=config.getini("t2e_gate"),
        served=served or {},
    )


def max_age(config: pytest.Config) -> float | None:
    """The days after which a baseline draws a warning; None if the ini key is not set.

    Raises:
        ConfigError: the value is not a number above 0.
    """
    text = config.getini("t2e_baseline_max_age")
    if not text:
        return None
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 0.0 < days < float("inf"):
        raise ConfigError(f"t2e_baseline_max_age: {text!r} is not a number of days above 0")
    return days


def narrowing_option(config: pytest.Config) -> str:
    """A note that names the first option that narrows a run to parts of splits; empty if no option does."""
    given = {
        "-k": config.option.keyword,
        "--lf": getattr(config.option, "lf", False),
        "--deselect": getattr(config.option, "deselect", None),
    }
    names = [name for name, value in given.items() if value]
    return f"{names[0]} narrows the run" if names else ""


@dataclass(frozen=True)
class Selection:
    """The suites and pressure tests that a session runs.

    Attributes:
        suites: Names of suites.
        pressure: Whether pressure tests may run.
        left_out: Suites and pressure tests that do not run, because no agent is named.
        may_embed: Whether the embedded model is the agent if no agent is named.
    """

    suites: tuple[str, ...]
    pressure: bool
    left_out: tuple[str, ...] = ()
    may_embed: bool = True


def places_of(config: pytest.Config) -> list[Path]:
    """The paths given on the command line."""
    here = config.invocation_params.dir
    return [(here / str(arg).split("::", 1)[0]).resolve() for arg in config.args]


def pressure_folder(root: Path) -> Path:
    """The folder of a project's pressure tests."""
    return root.resolve() / "synthetic"


def names_pressure(config: pytest.Config) -> bool:
    """Whether a given path is the folder of pressure tests or lies inside it."""
    folder = pressure_folder(config.rootpath)
    return any(place == folder or folder in place.parents for place in places_of(config))


def select(config: pytest.Config, project: Project) -> Selection:
    """Select the suites and pressure tests of a session.

    A session without options runs the suites and pressure tests that a path names or that have an agent in
    the project's settings. It leaves out all others, so a plain `pytest` still runs the other tests.

    Raises:
        SuiteError: the file of a suite is invalid.
    """
    asked = has_options(config)
    suites = suites_under(config, project)
    pressure = _may_run_pressure(config, with_files=asked)
    if asked or config.option.collectonly:
        return Selection(tuple(suites), pressure)
    has_agent = bool(config.getini("t2e_agent"))
    named = [name for name in suites if _names_suite(config, project, name)]
    kept = [
        name for name in suites if has_agent or name in named or project.suite(name).default_agent is not None
    ]
    left = [f"suite {name}" for name in suites if name not in kept]
    runs_pressure = pressure and (has_agent or names_pressure(config))
    folder = pressure_folder(config.rootpath)
    if pressure and not runs_pressure and any(folder.rglob("test_*.py")):
        left.append(f"the pressure tests of {folder.name}/")
    may_embed = names_pressure(config) or any(name in named for name in kept)
    return Selection(tuple(kept), runs_pressure, tuple(left), may_embed)


def suites_under(config: pytest.Config, project: Project) -> list[str]:
    """The suites whose files lie under the paths given on the command line."""
    places, folder = places_of(config), project.suites_folder.resolve()
    return [
        name
        for name in project.suite_names
        if any(place in (path := folder / f"{name}.toml", *path.parents) for place in places)
    ]


def _names_suite(config: pytest.Config, project: Project, name: str) -> bool:
    """Whether a given path is the file of a suite or the folder of suites."""
    folder = project.suites_folder.resolve()
    return any(place in (folder, folder / f"{name}.toml") for place in places_of(config))


def _may_run_pressure(config: pytest.Config, *, with_files: bool) -> bool:
    """Whether the given paths may contain tests that run cases.

    Such tests lie in `synthetic/` or, if `with_files`, in any given Python file.
    """
    folder = pressure_folder(config.rootpath)
    return any(
        (with_files and place.suffix == ".py")
        or (folder.is_dir() and place in (folder, *folder.parents))
        or folder in place.parents
        for place in places_of(config)
    )
