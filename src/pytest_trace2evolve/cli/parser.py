"""Parsers made from commands that are declared as data. A command's code is imported when it runs."""

import argparse
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from pytest_trace2evolve import __version__
from pytest_trace2evolve.errors import LONGEST_LINE, ConfigError
from pytest_trace2evolve.utils.option_types import finite, integer
from pytest_trace2evolve.utils.sanitize import sanitize_line


class Parser(argparse.ArgumentParser):
    """Reports wrong arguments in lines of limited length, and accepts no abbreviations of options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        super().error(sanitize_line(message, LONGEST_LINE - len(f"{self.prog}: error: ")))


Check = Callable[[str, Any], None]
"""A function of an option's name and value that raises `ConfigError` to reject the value."""


@dataclass(frozen=True)
class Option:
    """One option or positional argument: names, keywords of `add_argument`, and a check of its value."""

    name: str
    settings: Mapping[str, Any]
    check: Check | None = None
    short: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The short name, if there is one, and the name."""
        return (self.short, self.name) if self.short else (self.name,)


def text(name: str, metavar: str | None, help: str, check: Check | None = None, **settings: Any) -> Option:
    """An option that takes a text."""
    return Option(name, {"metavar": metavar, "help": help, **settings}, check)


def whole(name: str, metavar: str | None, help: str, check: Check | None = None, **settings: Any) -> Option:
    """An option that takes a whole number."""
    return text(name, metavar, help, check, type=integer, **settings)


def real(name: str, metavar: str | None, help: str, check: Check | None = None, **settings: Any) -> Option:
    """An option that takes a number."""
    return text(name, metavar, help, check, type=finite, **settings)


def at_least(least: int, most: int = 1_000_000) -> Check:
    """Return a check that a number is at least `least` and at most `most`."""

    def check(option: str, number: int) -> None:
        if number < least:
            raise ConfigError(f"{option} {number}: must be {least} or more")
        if number > most:
            raise ConfigError(f"{option} {number}: must be {most} or less")

    return check


def share(option: str, number: float) -> None:
    """Check that a difference of rewards lies between 0 and 1."""
    if not 0 < number < 1:
        raise ConfigError(f"{option} {number:g}: must lie between 0 and 1; five points are 0.05")


def path(name: str, metavar: str | None, help: str | None = None, **settings: Any) -> Option:
    """An option that takes a path."""
    return Option(name, {"metavar": metavar, "help": help, "type": Path, **settings})


def flag(name: str, help: str, short: str = "") -> Option:
    """An option that takes no value."""
    return Option(name, {"action": "store_true", "help": help}, short=short)


def pattern(expression: str, what: str) -> Callable[[str], str]:
    """Return an option type for texts that match an expression; `what` names such a text in errors."""

    def value_of(text: str) -> str:
        if not re.fullmatch(expression, text):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return text

    return value_of


@dataclass(frozen=True)
class OneOf:
    """Mutually exclusive options; if `required`, one of the options must be given."""

    options: tuple[Option, ...]
    required: bool = False


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        name: The command's name.
        help: The command's line in the list of commands.
        examples: Command lines at the end of the command's help.
        run: The function that runs the command, as `module:function` of this package; empty if there are
            actions.
        options: The command's options, in the order of the help.
        declare: Functions that add further options to the command's parser.
        actions: The subcommands.
        defaults: Further attributes of the parsed options. `resumable` means that the same command resumes
            after an interruption.
    """

    name: str
    help: str
    examples: tuple[str, ...] = ()
    run: str = ""
    options: tuple[Option | OneOf, ...] = ()
    declare: tuple[Callable[[argparse.ArgumentParser], None], ...] = ()
    actions: tuple["Command", ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)


START = """\
Evaluate tool-using agents, gate changes to them, and improve them.

start:
  trace2evolve init                  add suites and candidates to a project
  pytest --candidate v6 -n 8         evaluate a candidate against its baseline
  trace2evolve show RUN --failed     list the tasks that failed
"""


def build_parser(groups: Mapping[str, Sequence[Command]]) -> argparse.ArgumentParser:
    """Build the parser of `trace2evolve` from commands by group."""
    commands = [command for group in groups.values() for command in group]
    width = max(len(command.name) for command in commands)
    listed = [
        "\n".join([f"{title}:", *(f"  {command.name:<{width}}  {command.help}" for command in group)])
        for title, group in groups.items()
    ]
    parser = Parser(
        prog="trace2evolve",
        usage="trace2evolve [--root DIR] COMMAND …",
        description="\n\n".join([START.rstrip(), *listed]),
        epilog="'trace2evolve COMMAND --help' shows the options of a command, and examples.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"trace2evolve {__version__}")
    _add_root(parser, default=None)
    # The description lists the commands by group, which argparse does not support.
    parsers = parser.add_subparsers(
        required=True, prog="trace2evolve", metavar="COMMAND", help=argparse.SUPPRESS
    )
    _add_commands(parsers, commands)
    return parser


def _add_commands(parsers: "argparse._SubParsersAction[Any]", commands: Sequence[Command]) -> None:
    for command in commands:
        added = parsers.add_parser(
            command.name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            epilog="\n".join(["examples:", *(f"  {line}" for line in command.examples)]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        checks: list[tuple[str, str, Check]] = []
        for option in command.options:
            if isinstance(option, OneOf):
                group = added.add_mutually_exclusive_group(required=option.required)
                for choice in option.options:
                    group.add_argument(*choice.names, **choice.settings)
                continue
            destination = added.add_argument(*option.names, **option.settings).dest
            if option.check is not None:
                checks.append((option.name, destination, option.check))
        for declare in command.declare:
            declare(added)
        if command.actions:
            _add_commands(added.add_subparsers(required=True, metavar="ACTION"), command.actions)
        else:
            added.set_defaults(command=partial(_run, command.run, checks), **command.defaults)
        # `--root` may also follow the command's name, because messages advise that and users append options.
        # A default here would replace a value given before the name.
        _add_root(added, default=argparse.SUPPRESS)


def _add_root(parser: argparse.ArgumentParser, default: object) -> None:
    parser.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        default=default,
        help="project folder (default: the nearest parent with suites/)",
    )


def _run(place: str, checks: Sequence[tuple[str, str, Check]], options: argparse.Namespace) -> int:
    for name, destination, check in checks:
        given = getattr(options, destination)
        for value in given if isinstance(given, list) else [given]:
            if value is not None:
                check(name, value)
    module, _, name = place.partition(":")
    function = getattr(importlib.import_module(f"pytest_trace2evolve.cli.{module}"), name)
    status: int = function(options)
    return status


# ---- options that commands of several groups share

JSON = flag("--json", "print JSON")
PLOT = path("--plot", "FILE", "write a plot (.svg or .png)")
SUITE = text("--suite", "NAME", "only this suite")
SPLIT = text("--split", "SPLIT", "only this split")
PROVIDER = text("--provider", None, "the world's provider (default: inspect_evals)")
JUDGE_URL = text("--judge-base-url", "URL", "the judge's endpoint (default: OPENAI_BASE_URL)")
CONTENT = text(
    "--content", None, "wording: train (default) or heldout", choices=("train", "heldout"), default="train"
)
