"""Options that every pytest session of a project gets, whatever it is given: `addopts` and PYTEST_ADDOPTS."""

import itertools
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from pytest_trace2evolve.engine.live import names_folder
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.improve.options import (
    DECIDING,
    GATE,
    NO_GATE,
    OFF,
    SUITE,
    parted,
    refused,
    values_of,
)
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.pytest_ini import ini_words
from pytest_trace2evolve.serving.folder import expanded

VARIABLE = "PYTEST_ADDOPTS"

_OVERRULED = frozenset({"--candidate", "--t2e-candidate", "--t2e-run-folder", "--t2e-baseline"})
"""Options of which the sessions of the gate are given their own, which count."""

_FOR_OTHER_TESTS = frozenset({"-m", "--ignore", "--ignore-glob", "--deselect"})
"""Options that leave tests out, and stand in `addopts` for other tests than those of suites. A run that lacks
tasks by which adapters are judged is refused all the same."""

_EXIT_FIRST = re.compile(r"-[hlqsv]*x[a-zA-Z]*")
"""How `-x` is written among other letters."""


def with_addopts(project: Project, session: Sequence[str], *, based: bool) -> list[str]:
    """A session's options, completed by those of `addopts` that change what comes of it.

    Args:
        session: As `read_session` gives them.
        based: Whether each session is told which model talks.

    Raises:
        ConfigError: `addopts` holds an option with which no evolution could come to an end.
    """
    found = list(session)
    held: list[str] = []
    gate = ""
    for place, words in _places(project):
        _refuse(place, words, based=based)
        here = [in_place(one, project.root) for one in _given(words)]
        gate = place if values_of(here, GATE) else gate
        held += here
    for name in DECIDING:
        given, own = values_of(held, name), values_of(session, name)
        if name == SUITE:
            found += [f"{name}={one}" for one in dict.fromkeys(given) if one not in own]
        elif given and not own:
            found.append(f"{name}={given[-1]}")
    if OFF in values_of(found, GATE)[-1:]:
        raise ConfigError(f"{gate}: {GATE} {OFF}: {NO_GATE}; leave it out")
    return found


def in_place(option: str, here: Path) -> str:
    """An option as sessions can read it, whose place is the project's folder: a model that lies in a folder
    for the customers is named by its whole path."""
    name, _, model = option.partition("=")
    if name != "--t2e-user-model" or not names_folder(model, here):
        return option
    return f"{name}={(here / expanded(Path(model))).resolve()}"


def _given(words: Sequence[str]) -> list[str]:
    """Words of which each option that decides has its value behind an equals sign."""
    return [f"{one}={after}" if one in DECIDING else one for one, after in itertools.pairwise([*words, ""])]


def _places(project: Project) -> list[tuple[str, list[str]]]:
    """Where such options stand, and the words that stand there, in the order in which pytest reads them."""
    try:
        own = shlex.split(os.environ.get(VARIABLE, ""))
    except ValueError:  # a quotation without an end, which pytest refuses
        own = []
    settings = f"addopts in the pytest settings of {project.root}"
    return [(settings, ini_words(project.root, "addopts")), (VARIABLE, own)]


def _refuse(place: str, words: Sequence[str], *, based: bool) -> None:
    for word, after in itertools.pairwise([*words, ""]):
        name, value = ("-x", None) if _EXIT_FIRST.fullmatch(word) else parted(word)
        value = after if value is None else value
        if name in ("-o", "--override-ini") and value.startswith(("t2e_", "addopts")):
            raise ConfigError(f"{place}: {name} {value}: sets what is read elsewhere; leave it out")
        if name in _OVERRULED | _FOR_OTHER_TESTS or (name == "--t2e-model" and based):
            continue
        if name == "--maxfail" and value == "0":
            continue
        if why := refused(name):
            raise ConfigError(f"{place}: {word}: {why}")
