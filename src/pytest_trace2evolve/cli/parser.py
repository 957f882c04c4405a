"""Build argument parsers from declared commands. A command's code is imported only when it runs."""

import argparse
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from pytest_trace2evolve import __version__
from pytest_trace2evolve.errors import MAX_LINE_LENGTH, ConfigError, name_suggestion
from pytest_trace2evolve.utils.files import find_root
from pytest_trace2evolve.utils.option_types import parse_finite, parse_integer
from pytest_trace2evolve.utils.sanitize import sanitize_line


class Parser(argparse.ArgumentParser):
    """An argument parser with error messages of limited length and without abbreviated options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        super().error(sanitize_line(message, MAX_LINE_LENGTH - len(f"{self.prog}: error: ")))


ValueCheck = Callable[[str, Any], None]
"""A function of an option's name and value that raises `ConfigError` to reject the value."""


@dataclass(frozen=True)
class Option:
    """One option or positional argument: its names, its `add_argument` keywords and its value check."""

    name: str
    settings: Mapping[str, Any]
    check: ValueCheck | None = None
    short_name: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The short name, if there is one, followed by the long name."""
        return (self.short_name, self.name) if self.short_name else (self.name,)


def text_option(
    name: str, metavar: str | None, help_text: str, check: ValueCheck | None = None, **settings: Any
) -> Option:
    """Declare an option whose value is text."""
    return Option(name, {"metavar": metavar, "help": help_text, **settings}, check)


def integer_option(
    name: str, metavar: str | None, help_text: str, check: ValueCheck | None = None, **settings: Any
) -> Option:
    """Declare an option whose value is an integer."""
    return text_option(name, metavar, help_text, check, type=parse_integer, **settings)


def number_option(
    name: str, metavar: str | None, help_text: str, check: ValueCheck | None = None, **settings: Any
) -> Option:
    """Declare an option whose value is a finite number."""
    return text_option(name, metavar, help_text, check, type=parse_finite, **settings)


def range_check(minimum: int, maximum: int = 1_000_000) -> ValueCheck:
    """Return a check that a number is between `minimum` and `maximum`, both included."""

    def check(option: str, number: int) -> None:
        if number < minimum:
            raise ConfigError(f"{option} {number}: must be {minimum} or more")
        if number > maximum:
            raise ConfigError(f"{option} {number}: must be {maximum} or less")

    return check


def check_positive(option: str, number: float) -> None:
    """Check that a number is more than 0."""
    if number <= 0:
        raise ConfigError(f"{option} {number:g}: must be more than 0")


def check_share(option: str, number: float) -> None:
    """Check that a difference of rewards is between 0 and 1, both excluded."""
    if not 0 < number < 1:
        raise ConfigError(f"{option} {number:g}: must be between 0 and 1; for 5 points, give 0.05")


def path_option(name: str, metavar: str | None, help_text: str | None = None, **settings: Any) -> Option:
    """Declare an option whose value is a path."""
    return Option(name, {"metavar": metavar, "help": help_text, "type": Path, **settings})


def flag_option(name: str, help_text: str, short_name: str = "") -> Option:
    """Declare an option without a value."""
    return Option(name, {"action": "store_true", "help": help_text}, short_name=short_name)


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
        keys: Names of the ini keys that the command reads; each value becomes an attribute of the options.
        actions: The subcommands, if there are any.
        defaults: Further attributes of the parsed options. `resumable` means that the same command resumes
            after an interruption.
    """

    name: str
    help: str
    examples: tuple[str, ...] = ()
    run: str = ""
    options: tuple[Option, ...] = ()
    keys: tuple[str, ...] = ()
    actions: tuple["Command", ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)


INTRODUCTION = """\
Evaluate tool-using agents, gate changes to them, and improve them.

start:
  trace2evolve init --for own                   make a project to edit
  pytest --candidate v0 --t2e-save-baseline v0  measure it and save a baseline
  pytest --candidate v1                         gate a change to it
"""


def build_parser(groups: Mapping[str, Sequence[Command]]) -> argparse.ArgumentParser:
    """Build the parser of `trace2evolve` from its commands, by group."""
    commands = [command for group in groups.values() for command in group]
    width = max(len(command.name) for command in commands)
    group_texts = [
        "\n".join([f"{title}:", *(f"  {command.name:<{width}}  {command.help}" for command in group)])
        for title, group in groups.items()
    ]
    parser = Parser(
        prog="trace2evolve",
        usage="trace2evolve [--root DIR] COMMAND …",
        description="\n\n".join([INTRODUCTION.rstrip(), *group_texts]),
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
        subparser = parsers.add_parser(
            command.name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            epilog="\n".join(["examples:", *(f"  {line}" for line in command.examples)]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        checks: list[tuple[str, str, ValueCheck]] = []
        for option in command.options:
            destination = subparser.add_argument(*option.names, **option.settings).dest
            if option.check is not None:
                checks.append((option.name, destination, option.check))
        if command.actions:
            _add_commands(subparser.add_subparsers(required=True, metavar="ACTION"), command.actions)
        else:
            subparser.set_defaults(command=partial(_run_command, command, checks), **command.defaults)
            if command.keys:
                subparser.add_argument(
                    "-o",
                    metavar="KEY=VALUE",
                    action="append",
                    dest="overrides",
                    help=f"override an ini key, as in pytest, of: {', '.join(command.keys)}",
                )
        # `--root` may also follow the command's name, because messages advise that and users append options.
        # With a default, this `--root` would override one that precedes the name.
        _add_root(subparser, default=argparse.SUPPRESS)


def _add_root(parser: argparse.ArgumentParser, default: object) -> None:
    parser.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        default=default,
        help="project folder (default: the nearest parent with suites/)",
    )


def _read_keys(names: Sequence[str], options: argparse.Namespace) -> None:
    """Store the ini keys of a command in its options, without `t2e_`, and with it for the command's runs."""
    from pytest_trace2evolve.project.pytest_ini import ini_value
    from pytest_trace2evolve.session.option_table import OPTIONS

    overrides: dict[str, str] = {}
    for text in options.overrides or ():
        key, separator, overrides[key] = text.partition("=")
        known = [option.destination for option in OPTIONS if option.name in names]
        if key not in known or not separator:
            raise ConfigError(f"-o {text}: expected KEY=VALUE; {name_suggestion(key, known)}")
    root = options.root or find_root(Path.cwd()) or Path.cwd()
    for option in OPTIONS:
        if option.is_key and option.name in names:
            key = option.destination
            value = option.parse(overrides[key] if key in overrides else ini_value(root, key) or "")
            setattr(options, key, value)
            if value is not None or not hasattr(options, key.removeprefix("t2e_")):
                setattr(options, key.removeprefix("t2e_"), value)


def _run_command(
    command: Command, checks: Sequence[tuple[str, str, ValueCheck]], options: argparse.Namespace
) -> int:
    if command.keys:
        _read_keys(command.keys, options)
    for name, destination, check in checks:
        parsed_value = getattr(options, destination)
        for value in parsed_value if isinstance(parsed_value, list) else [parsed_value]:
            if value is not None:
                check(name, value)
    module, _, name = command.run.partition(":")
    function = getattr(importlib.import_module(f"pytest_trace2evolve.cli.{module}"), name)
    status: int = function(options)
    return status


# ---- options that commands of several groups share

JSON_OPTION = flag_option("--json", "print JSON")
SUITE_OPTION = text_option("--suite", "NAME", "only this suite")
SPLIT_OPTION = text_option("--split", "SPLIT", "only this split")
BASE_URL_OPTION = text_option("--base-url", "URL", "the model's endpoint (default: OPENAI_BASE_URL)")
DRY_RUN_OPTION = flag_option("--dry-run", "print what would be done; change nothing")
JUDGE_OPTION = text_option(
    "--judge", "MODEL", "judge model, for assertions in natural language, and capabilities"
)
