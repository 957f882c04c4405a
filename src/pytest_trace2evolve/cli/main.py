"""The `trace2evolve` command, for all operations besides pytest sessions."""

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
"""Exit status of a command that Ctrl-C ended, as in shells."""

EXIT_PIPE = 141
"""Exit status of a command whose output has lost its reader (`… | head`), as in shells."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of `trace2evolve`, and return its exit status (see `run`)."""
    return run(build_parser(COMMANDS), arguments)


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments, run the command that they name, and return its exit status.

    The parser sets `command`, a function of the parsed options, and may set `resumable`.

    The status is the command's own, or one of these:

    - 2 for bad input, 3 for a crash or an output that cannot be written, and 130 for Ctrl-C, each with one
      line on standard error
    - 141 if the reader of the output is gone
    """
    with _sanitized_streams():
        try:
            try:
                return _run(parser, arguments)
            finally:  # also flush output that argparse printed before it exited
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
    # `SystemExit` too, because project code that a command runs must not choose the command's status.
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
    """The standard output. A failed write raises `OutputError`, because an `OSError` would be reported as bad
    input by `run` and ignored by argparse."""

    def write(self, text: str) -> int:
        with _as_output_error():
            return super().write(text)

    def flush(self) -> None:
        with _as_output_error():
            self.raw.flush()


class _Errors(SanitizedStream):
    """The standard error. A failed write is ignored, because no stream is left to report it."""

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
    """Sanitize all output of a command. A closed standard stream discards its output."""
    before = sys.stdout, sys.stderr
    # Otherwise `print` to a closed standard error would write to the standard output, which may be JSON.
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        sys.stdout, sys.stderr = (
            cast("TextIO", kind(stream or nowhere, terminal=bool(stream and stream.isatty())))
            for kind, stream in zip((_Output, _Errors), before, strict=True)
        )
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
