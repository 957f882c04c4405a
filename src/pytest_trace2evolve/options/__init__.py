"""Command-line options and ini keys. Standard library and pytest only: this is loaded in every pytest run."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_trace2evolve.options.live import LIVE
from pytest_trace2evolve.options.run import RUN

OPTIONS = (*RUN, *LIVE)

DESTINATIONS = tuple(settings["dest"] for _, settings in OPTIONS)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and ini key."""
    group = parser.getgroup("trace2evolve", "evaluate tool-using agents and gate changes to them")
    for names, settings in OPTIONS:
        group.addoption(*names, default=None, **settings)
    parser.addini("t2e_suites", "folder of suites; setting it activates trace2evolve", default="")
    parser.addini("t2e_agent", "agent of suites that name none", default="")
    parser.addini("t2e_gate", "gate policy of runs that name none (default: calibrated)", default="")
    parser.addini("t2e_baseline_max_age", "days after which a baseline draws a warning", default="")


_WITH_PATHS = (
    "--t2e-replay",
    "--t2e-baseline",
    "--t2e-run-folder",
    "--t2e-summary",
    "--t2e-record",
    "--t2e-playback",
    "--t2e-model",
    "--t2e-user-model",
)


PATHS = frozenset(name.removeprefix("--").replace("-", "_") for name in _WITH_PATHS) - {"t2e_baseline"}
"""Destinations of options whose value is a path; a baseline's may be a name, which is checked as one."""


def joined(arguments: Sequence[str], folder: Path) -> list[str] | None:
    """The arguments with `--t2e-replay PATH` written `--t2e-replay=PATH`; None where that changes nothing.

    pytest looks for its rootdir before it knows the options of plugins. A path that follows one of ours is
    taken for a test path then, and a path outside `folder` drags the rootdir away from the project. A path
    that does not exist yet counts too: a worker that replaces another one finds what the run has written.
    """
    fixed: list[str] = []
    stray = False
    for argument in arguments:
        if fixed and fixed[-1] in _WITH_PATHS:
            stray = stray or _lies_outside(folder / argument, folder)
            fixed[-1] = f"{fixed[-1]}={argument}"
        else:
            fixed.append(argument)
    return fixed if stray else None


def _lies_outside(place: Path, folder: Path) -> bool:
    try:
        return not place.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError):  # a name too long for a path, say
        return False


def is_active(config: pytest.Config) -> bool:
    """Whether anything of ours was asked for."""
    if any(getattr(config.option, name, None) is not None for name in DESTINATIONS):
        return True
    return bool(config.getini("t2e_suites"))
