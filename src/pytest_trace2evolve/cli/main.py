"""The `trace2evolve` command: runs what can be done without pytest."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO, cast

from pytest_trace2evolve.cli.commands import COMMANDS
from pytest_trace2evolve.cli.parser import build_parser
from pytest_trace2evolve.errors import LONGEST_LINE, Trace2EvolveError
from pytest_trace2evolve.utils.crashes import EXIT_CRASH, OutputError, crash_line, discard
from pytest_trace2evolve.utils.files import find_root
from pytest_trace2evolve.utils.sanitize import SanitizedStream, sanitize_line

EXIT_USAGE = 2

EXIT_INTERRUPTED = 130
"""Of a command that Ctrl-C ended, as in shells."""

EXIT_PIPE = 141
"""Of a command whose output nobody reads any more (`… | head`), as in shells."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of `trace2evolve`; returns its exit status: see `run`."""
    return run(build_parser(COMMANDS), arguments)


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> int:
    """Run the command that a parser finds in its arguments; returns its exit status.

    The parser sets `command`, a function of the parsed options, and may set `resumable`.

    The status is the command's own, or 2 for bad input, 3 for a crash or an output that cannot be written,
    130 for Ctrl-C, each with one line on standard error, or 141 if the reader of the output is gone.
    """
    with _sanitized_streams():
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
        remedy = "; rerun the same command to resume" if getattr(options, "resumable", False) else ""
        print(f"trace2evolve: interrupted{remedy}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (Trace2EvolveError, OSError) as error:
        here = _current_folder()
        text = error if here is not None else "the current folder was deleted; change to another one"
        print(sanitize_line(f"trace2evolve: {text}", LONGEST_LINE), file=sys.stderr)
        return EXIT_USAGE
    # `SystemExit` too: the code of a project, which a command runs, must not choose the command's status.
    except BaseException as error:
        print(f"trace2evolve: {crash_line(error, _project_folder(options))}", file=sys.stderr)
        return EXIT_CRASH


def _current_folder() -> Path | None:
    """The current folder; None if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _project_folder(options: argparse.Namespace) -> Path | None:
    """The folder of the project that a command works in, if there is one."""
    here = _current_folder()
    root: Path | None = getattr(options, "root", None) or (None if here is None else find_root(here))
    return root if root is not None and (root / "suites").is_dir() else None


class _Output(SanitizedStream):
    """The standard output. Failing to write it is no missing file of the command, so it has its own error;
    argparse ignores any `OSError`."""

    def write(self, text: str) -> int:
        with _as_output_error():
            return super().write(text)

    def flush(self) -> None:
        with _as_output_error():
            self.raw.flush()


class _Errors(SanitizedStream):
    """The standard error. If it cannot be written, there is nowhere to say so."""

    def write(self, text: str) -> int:
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
def _sanitized_streams() -> Iterator[None]:
    """Sanitize whatever a command prints. A standard stream that is closed discards what it gets."""
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
