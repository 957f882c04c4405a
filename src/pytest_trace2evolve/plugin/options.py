"""The plugin's command-line options and ini keys.

Imports only the standard library and pytest, because pytest loads this module in every session.
"""

import argparse

import pytest

from pytest_trace2evolve.session.option_table import OPTIONS


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and ini key."""
    for option in OPTIONS:
        if option.is_key:
            parser.addini(option.destination, option.help, default="")
            continue
        names = [option.alias, option.flag] if option.alias else [option.flag]
        section = parser.getgroup(f"trace2evolve: {option.scope}")
        section.addoption(*names, **option.argparse_arguments())
    parser.addini("t2e_suites", "folder of suites; setting it activates trace2evolve", default="")
    parser.addini("t2e_agent", "agent for suites that do not name one", default="")
    parser.addini("t2e_gate", "gate policy for runs that do not name one (default: calibrated)", default="")


def has_options(config: pytest.Config) -> bool:
    """Whether the command line includes an option of this plugin, which requests a run."""
    return has_options_in(config.option)


def has_options_in(namespace: argparse.Namespace) -> bool:
    """Whether parsed options include an option of this plugin."""
    options = [option for option in OPTIONS if not option.is_key]
    return any(getattr(namespace, option.destination, None) is not None for option in options)


def read_keys(config: pytest.Config) -> None:
    """Store the values of the ini keys among the options of the command line."""
    for option in OPTIONS:
        if option.is_key:
            setattr(config.option, option.destination, option.parse(config.getini(option.destination)))


def is_active(config: pytest.Config) -> bool:
    """Whether an option or the ini key `t2e_suites` activates the plugin."""
    return has_options(config) or bool(config.getini("t2e_suites"))
