"""Declares and parses the options of an evolution and of its runs.

Every command declares these options, so this module imports little.
"""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from pytest_trace2evolve.errors import ConfigError, name_suggestion
from pytest_trace2evolve.session.option_table import OPTIONS, Option
from pytest_trace2evolve.utils.option_types import parse_finite, parse_integer

_DECISIVE_OPTIONS = (
    *("suite", "trials", "gate", "goal", "max-reruns", "judge", "judge-base-url"),
    *("user-model", "user-base-url", "temperature", "seed", "reasoning-effort", "extra-body"),
)
"""Options that change the result of a run."""

_PACING_OPTIONS = (
    *("api-key-env", "user-api-key-env", "concurrency", "call-timeout", "requests-per-minute"),
    *("max-cost", "max-tokens", "max-minutes"),
)
"""Options that change the pace of a run, or limit the run."""

RUN_OPTIONS = tuple(option for option in OPTIONS if option.name in (*_DECISIVE_OPTIONS, *_PACING_OPTIONS))
"""The options that an evolution passes to each of its runs."""


SEARCH_RUN_OPTIONS = tuple(
    option
    for option in OPTIONS
    if option.name in ("model", "base-url", "agent", "cache")
    or (option in RUN_OPTIONS and option.name not in ("suite", "max-cost", "max-tokens", "max-minutes"))
)
"""The options that a search passes to each of its runs. The search has a suite and budgets of its own."""


class _Parser(argparse.ArgumentParser):
    """A parser that raises `ConfigError` for invalid arguments."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self._prefix = prefix

    def error(self, message: str) -> NoReturn:
        """Raise `ConfigError`."""
        raise ConfigError(f"{self._prefix}{message}")


def add_evolve_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of an evolution, without the options of its runs."""
    add = parser.add_argument
    add("--candidate", metavar="ID", help="learn from failures of this candidate")
    add("--from-run", metavar="RUN", help="learn from this run (default: a new one)")
    add("--base", type=Path, metavar="DIR", help="the base model (default: the embedded model)")
    add(
        "--max-adapters",
        type=parse_integer,
        default=3,
        metavar="N",
        help="train at most N adapters (default: 3)",
    )
    add("--preset", default="pocket", help="pocket or gpu (default: pocket)")
    add("--config", type=Path, metavar="FILE", help="TOML file with recipe values")
    add("--steps", type=parse_integer, metavar="N", help="number of optimiser steps")
    add("--heldout", type=parse_integer, metavar="N", default=60, help="number of held-out scenarios")
    parser.set_defaults(heldout_rollouts=4, parallel=None)
    add("--max-rollouts", type=parse_integer, metavar="N", help="reject a plan that needs more rollouts")
    add("--max-minutes", type=parse_finite, metavar="M", help="stop after M minutes")


def parse_run_options(
    arguments: Sequence[str], namespace: argparse.Namespace, options: Sequence[Option] = RUN_OPTIONS
) -> None:
    """Parse the options of runs, which follow `--`, into a namespace.

    Raises:
        ConfigError: an option is not one of the runs' options, or its value is invalid.
    """
    parser = _Parser()
    for option in options:
        if not option.is_key:
            parser.add_argument(option.flag, **option.argparse_arguments())
    _, unknown_arguments = parser.parse_known_args(arguments, namespace)
    if unknown_arguments:
        flag = unknown_arguments[0].partition("=")[0]
        flags = [option.flag for option in options if not option.is_key]
        owner, command = ("an evolution", "evolve") if options is RUN_OPTIONS else ("a search", "improve")
        raise ConfigError(
            f"{unknown_arguments[0]}: not an option of {owner}'s runs; {name_suggestion(flag, flags)}; "
            f"see trace2evolve {command} --help"
        )


def parse_evolve_options(text: str) -> argparse.Namespace:
    """Parse the value of `t2e_evolve_options`.

    Raises:
        ConfigError: an option is unknown, or its value is invalid.
    """
    parser = _Parser("t2e_evolve_options: ")
    add_evolve_arguments(parser)
    try:
        return parser.parse_args(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"t2e_evolve_options: {error}") from None


def run_values(source: Any, options: Sequence[Option] = RUN_OPTIONS) -> SimpleNamespace:
    """Return the values of all options of a run; options that are not passed on are None.

    Args:
        source: An object with an attribute for each given option.
        options: The options that are passed on.
    """
    values = dict.fromkeys((option.destination for option in OPTIONS), None)
    values |= {option.destination: getattr(source, option.destination, None) for option in options}
    return SimpleNamespace(**values)


def run_arguments(values: Any, options: Sequence[Option] = RUN_OPTIONS) -> list[str]:
    """Return the options of a run as command-line arguments."""
    return [
        option.flag if option.is_flag else f"{option.flag}={text}"
        for option in options
        if not option.is_key
        for text in _option_texts(option, values)
    ]


def key_arguments(values: Any, options: Sequence[Option] = RUN_OPTIONS) -> list[str]:
    """Return the ini keys of a run as arguments that override them."""
    given = [(option.destination, _option_texts(option, values)) for option in options if option.is_key]
    return [f"-o{name}={' '.join(texts)}" for name, texts in given if texts]


def decisive_values(values: Any, names: Sequence[str] = _DECISIVE_OPTIONS) -> dict[str, list[str]]:
    """Return the values that change a run's result by flag, normalized so that 1 equals 1.0."""
    values_by_flag = {}
    for option in OPTIONS:
        if option.name in names:
            texts = [_normalize(text) for text in _option_texts(option, values)]
            values_by_flag[option.flag] = sorted(set(texts)) if option.is_repeatable else texts
    return values_by_flag


def search_values(values: Any) -> dict[str, list[str]]:
    """Return the values that change the outcome of a search, as `decisive_values` does."""
    return decisive_values(values, (*_DECISIVE_OPTIONS, "model", "base-url", "agent"))


def _option_texts(option: Option, values: Any) -> list[str]:
    """Return the value of an option as a list of strings, which is empty if the option is not given."""
    value = getattr(values, option.destination)
    if value is None:
        return []
    return [str(item) for item in (value if option.is_repeatable else [value])]


def _normalize(text: str) -> str:
    try:
        return str(float(text))
    except ValueError:
        return text
