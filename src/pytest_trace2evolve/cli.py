"""The `trace2evolve` command: what can be done without pytest."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from pytest_trace2evolve import __version__
from pytest_trace2evolve.commands import (
    baselines,
    calibrate,
    capabilities,
    cases,
    comment,
    compare,
    environment,
    evolve,
    experiment,
    init,
    ledger,
    lint,
    lock,
    pocket,
    power,
    promote,
    routing,
    score,
    serve,
    show,
    train,
)
from pytest_trace2evolve.errors import Trace2EvolveError, shortened
from pytest_trace2evolve.report.inert import inert_line

EXIT_USAGE = 2

EXIT_INTERRUPTED = 130
"""Of a command that Ctrl-C ended, as shells have it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns its exit status.

    0 and more are the subcommand's own; 2 is bad input and 130 Ctrl-C, told in one line on standard error.
    """
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except BrokenPipeError:
        # The reader has gone (`… | head`); nothing more can be said to it, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        then = "; the same command goes on" if getattr(options, "goes_on", False) else ""
        print(f"trace2evolve: interrupted{then}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (Trace2EvolveError, OSError) as error:
        print(shortened(f"trace2evolve: {inert_line(str(error))}"), file=sys.stderr)
        return EXIT_USAGE


class _Parser(argparse.ArgumentParser):
    """Reports wrong arguments in lines that end, however long the arguments are."""

    def error(self, message: str) -> NoReturn:
        super().error(shortened(inert_line(message)))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="trace2evolve", description="Evaluate tool-using agents; gate changes.")
    parser.add_argument("--version", action="version", version=f"trace2evolve {__version__}")
    _add_root(parser, default=None)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (
        init,
        score,
        compare,
        calibrate,
        power,
        lock,
        lint,
        baselines,
        promote,
        show,
        ledger,
        comment,
        cases,
        serve,
        pocket,
        capabilities,
        environment,
        train,
        routing,
        evolve,
        experiment,
    ):
        command.add(commands)
    for subparser in commands.choices.values():
        _add_root_to_commands(subparser)
    return parser


def _add_root(parser: argparse.ArgumentParser, default: object) -> None:
    parser.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        default=default,
        help="project folder (default: the nearest parent with suites/)",
    )


def _add_root_to_commands(parser: argparse.ArgumentParser) -> None:
    """Accept `--root` after the name of a command too: messages advise it there, and users append it."""
    # Without a default: a default would replace the value given before the command's name.
    _add_root(parser, default=argparse.SUPPRESS)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for further in action.choices.values():
                _add_root_to_commands(further)


if __name__ == "__main__":
    sys.exit(main())
