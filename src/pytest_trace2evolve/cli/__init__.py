"""The `trace2evolve` command: what can be done without pytest."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn, TextIO, cast

from pytest_trace2evolve import __version__
from pytest_trace2evolve.cli.environment import add_environment
from pytest_trace2evolve.cli.evidence import (
    add_baselines,
    add_ledger,
    add_lint,
    add_lock,
    add_promote,
    add_show,
)
from pytest_trace2evolve.cli.gate import add_calibrate, add_compare, add_power, add_score
from pytest_trace2evolve.cli.github import add_comment
from pytest_trace2evolve.cli.improve import add_capabilities, add_evolve, add_routing, add_train
from pytest_trace2evolve.cli.project import add_cases, add_init
from pytest_trace2evolve.cli.serve import add_serve
from pytest_trace2evolve.errors import LONGEST_LINE, Trace2EvolveError
from pytest_trace2evolve.project.project import find_root
from pytest_trace2evolve.utils.crashes import EXIT_CRASH, OutputError, crash_line, discard
from pytest_trace2evolve.utils.sanitize import SanitizedStream, sanitize_line

EXIT_USAGE = 2

EXIT_INTERRUPTED = 130
"""Of a command that Ctrl-C ended, as shells have it."""

EXIT_PIPE = 141
"""Of a command whose reader has gone before its end, as shells have it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand of `trace2evolve`; returns its exit status: see `run`."""
    return run(_parser(), arguments)


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> int:
    """Run the command that a parser finds in its arguments; returns its exit status.

    The parser sets `command`, a function of the parsed options.

    0 and more are the subcommand's own; 2 is bad input, 3 a crash or an output that cannot be written, and
    130 Ctrl-C, told in one line on standard error; 141 says that the reader of the output has gone before the
    end (`… | head`).
    """
    with _sanitized():
        try:
            try:
                return _run(parser, arguments)
            finally:  # also what argparse printed before it ended
                sys.stdout.flush()
        except BrokenPipeError:
            discard(sys.stdout)
            return EXIT_PIPE
        except OutputError as error:
            discard(sys.stdout)
            print(f"trace2evolve: {error}", file=sys.stderr)
            return EXIT_CRASH


def _run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    options = parser.parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    status = EXIT_PIPE
    try:
        status = command(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        discard(sys.stdout)
        return status
    except OutputError:
        raise
    except KeyboardInterrupt:
        then = "; the same command goes on" if getattr(options, "goes_on", False) else ""
        print(f"trace2evolve: interrupted{then}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (Trace2EvolveError, OSError) as error:
        told = error if _has_folder() else "the current folder was deleted; change to another one"
        print(sanitize_line(f"trace2evolve: {told}", LONGEST_LINE), file=sys.stderr)
        return EXIT_USAGE
    except Exception as error:
        print(f"trace2evolve: {crash_line(error, _project_folder(options))}", file=sys.stderr)
        return EXIT_CRASH


def _has_folder() -> bool:
    """Whether the current folder is still there."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def _project_folder(options: argparse.Namespace) -> Path | None:
    """The folder of the project that a command works in, if there is one."""
    root: Path | None = getattr(options, "root", None) or (find_root(Path.cwd()) if _has_folder() else None)
    return root if root is not None and (root / "suites").is_dir() else None


class _Output(SanitizedStream):
    """The standard output. What cannot be written is no missing file of the command, so it has its own error;
    argparse passes over any `OSError`."""

    def write(self, text: str) -> int:
        """Write a text; returns how many characters were taken."""
        with _as_output_error():
            return super().write(text)

    def flush(self) -> None:
        """Write out what is held back."""
        with _as_output_error():
            self.raw.flush()


class _Errors(SanitizedStream):
    """The standard error. Where it cannot be written nobody can be told so."""

    def write(self, text: str) -> int:
        """Write a text; returns how many characters were taken."""
        try:
            return super().write(text)
        except OSError:
            discard(self.raw)
            return len(text)


@contextlib.contextmanager
def _as_output_error() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error.strerror or error) from None


@contextlib.contextmanager
def _sanitized() -> Iterator[None]:
    """Sanitise whatever a command prints. A standard stream that is closed discards what it gets."""
    before = sys.stdout, sys.stderr
    # Else `print` to a closed standard error would write to the standard output, which may be JSON.
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        sys.stdout, sys.stderr = (
            cast("TextIO", kind(stream or nowhere, terminal=bool(stream and stream.isatty())))
            for kind, stream in zip((_Output, _Errors), before, strict=True)
        )
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


class Parser(argparse.ArgumentParser):
    """Reports wrong arguments in lines that end, however long the arguments are."""

    def error(self, message: str) -> NoReturn:
        super().error(sanitize_line(message, LONGEST_LINE - len(f"{self.prog}: error: ")))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="trace2evolve", description="Evaluate tool-using agents; gate changes.")
    parser.add_argument("--version", action="version", version=f"trace2evolve {__version__}")
    _add_root(parser, default=None)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (
        add_init,
        add_score,
        add_compare,
        add_calibrate,
        add_power,
        add_lock,
        add_lint,
        add_baselines,
        add_promote,
        add_show,
        add_ledger,
        add_comment,
        add_cases,
        add_serve,
        add_capabilities,
        add_environment,
        add_train,
        add_routing,
        add_evolve,
    ):
        add(commands)
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
