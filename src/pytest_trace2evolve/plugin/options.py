"""Command-line options and ini keys.

Imports only the standard library and pytest, because pytest loads this module in every session.
"""

import argparse

import pytest

from pytest_trace2evolve.session.option_table import OPTIONS


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and ini key."""
    group = parser.getgroup("trace2evolve", "evaluate tool-using agents and gate changes to them")
    for option in OPTIONS:
        names = [option.alias, option.flag] if option.alias else [option.flag]
        group.addoption(*names, **option.argparse())
    parser.addini("t2e_suites", "folder of suites; setting it activates trace2evolve", default="")
    parser.addini("t2e_agent", "agent of suites that name none", default="")
    parser.addini("t2e_gate", "gate policy of runs that name none (default: calibrated)", default="")
    parser.addini("t2e_baseline_max_age", "days after which a baseline draws a warning", default="")


def has_options(config: pytest.Config) -> bool:
    """Whether an option of the plugin asks for a run; without one, only suites in the given paths run."""
    return are_given(config.option)


def are_given(parsed: argparse.Namespace) -> bool:
    """Whether the parsed options include one of this plugin."""
    return any(getattr(parsed, option.destination, None) is not None for option in OPTIONS)


def is_active(config: pytest.Config) -> bool:
    """Whether an option or the ini key `t2e_suites` activates the plugin."""
    return has_options(config) or bool(config.getini("t2e_suites"))
