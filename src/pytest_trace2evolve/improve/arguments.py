"""Declares and parses the options of a search's runs.

Every command declares these options, so this module imports little.
"""

import argparse
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

from pytest_trace2evolve.errors import ConfigError, name_suggestion
from pytest_trace2evolve.session.option_table import OPTIONS, Option

_DECISIVE_OPTIONS = (
    *("suite", "trials", "gate", "goal", "max-reruns", "judge", "judge-base-url"),
    *("user-model", "user-base-url", "temperature", "seed", "reasoning-effort", "extra-body"),
    *("model", "base-url", "agent"),
)
"""Options that change the result of a run."""

_PACING_OPTIONS = (
    *("api-key-env", "user-api-key-env", "concurrency", "call-timeout", "requests-per-minute", "cache"),
)
"""Options that change the pace of a run."""

SEARCH_RUN_OPTIONS = tuple(
    option
    for option in OPTIONS
    if option.name != "suite" and option.name in (*_DECISIVE_OPTIONS, *_PACING_OPTIONS)
)
"""The options that a search passes to each of its runs. The search has a suite and budgets of its own."""


class _Parser(argparse.ArgumentParser):
    """A parser that raises `ConfigError` for invalid arguments."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise `ConfigError`."""
        raise ConfigError(message)


def parse_run_options(arguments: Sequence[str], namespace: argparse.Namespace) -> None:
    """Parse the options of runs, which follow `--`, into a namespace.

    Raises:
        ConfigError: an option is not one of the runs' options, or its value is invalid.
    """
    parser = _Parser()
    for option in SEARCH_RUN_OPTIONS:
        if not option.is_key:
            parser.add_argument(option.flag, **option.argparse_arguments())
    _, unknown_arguments = parser.parse_known_args(arguments, namespace)
    if unknown_arguments:
        flag = unknown_arguments[0].partition("=")[0]
        flags = [option.flag for option in SEARCH_RUN_OPTIONS if not option.is_key]
        raise ConfigError(
            f"{unknown_arguments[0]}: not an option of a search's runs; {name_suggestion(flag, flags)}; "
            "see trace2evolve improve --help"
        )


def run_values(source: Any) -> SimpleNamespace:
    """Return the values of all options of a run; options that are not passed on are None.

    Args:
        source: An object with an attribute for each given option.
    """
    values = dict.fromkeys((option.destination for option in OPTIONS), None)
    values |= {option.destination: getattr(source, option.destination, None) for option in SEARCH_RUN_OPTIONS}
    return SimpleNamespace(**values)


def run_arguments(values: Any) -> list[str]:
    """Return the options of a run as command-line arguments."""
    return [
        option.flag if option.is_flag else f"{option.flag}={text}"
        for option in SEARCH_RUN_OPTIONS
        if not option.is_key
        for text in _option_texts(option, values)
    ]


def key_arguments(values: Any) -> list[str]:
    """Return the ini keys of a run as arguments that override them."""
    given = [
        (option.destination, _option_texts(option, values)) for option in SEARCH_RUN_OPTIONS if option.is_key
    ]
    return [f"-o{name}={' '.join(texts)}" for name, texts in given if texts]


def search_values(values: Any) -> dict[str, list[str]]:
    """Return the values that change the outcome of a search by flag, normalized so that 1 equals 1.0."""
    values_by_flag = {}
    for option in OPTIONS:
        if option.name in _DECISIVE_OPTIONS:
            texts = [_normalize(text) for text in _option_texts(option, values)]
            values_by_flag[option.flag] = sorted(set(texts)) if option.is_repeatable else texts
    return values_by_flag


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
