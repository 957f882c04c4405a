"""The plugin's command-line options and ini keys.

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
        group.addoption(*names, **option.argparse_arguments())
    parser.addini("t2e_suites", "folder of suites; setting it activates trace2evolve", default="")
    parser.addini("t2e_agent", "agent for suites that do not name one", default="")
    parser.addini("t2e_gate", "gate policy for runs that do not name one (default: calibrated)", default="")
    parser.addini("t2e_baseline_max_age", "warn about baselines older than this number of days", default="")


def has_options(config: pytest.Config) -> bool:
    """Whether the command line includes an option of this plugin, which requests a run."""
    return has_options_in(config.option)


def has_options_in(namespace: argparse.Namespace) -> bool:
    """Whether parsed options include an option of this plugin."""
    return any(getattr(namespace, option.destination, None) is not None for option in OPTIONS)


def is_active(config: pytest.Config) -> bool:
    """Whether an option or the ini key `t2e_suites` activates the plugin."""
    return has_options(config) or bool(config.getini("t2e_suites"))
