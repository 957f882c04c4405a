"""The `trace2evolve` command, for all operations other than pytest sessions."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO, cast

from pytest_trace2evolve.cli.commands import COMMANDS
from pytest_trace2evolve.cli.parser import build_parser
from pytest_trace2evolve.errors import MAX_LINE_LENGTH, Trace2EvolveError
from pytest_trace2evolve.utils.crashes import (
    EXIT_BROKEN_PIPE,
    EXIT_CRASH,
    OutputError,
    redirect_to_null,
    write_crash_report,
)
from pytest_trace2evolve.utils.files import find_root
from pytest_trace2evolve.utils.sanitize import SanitizedStream, sanitize_line

EXIT_USAGE = 2

EXIT_INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended, as in shells."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of `trace2evolve`, and return its exit status (see `run`)."""
    return run(build_parser(COMMANDS), arguments)


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments, run the command that they name, and return its exit status.

    The parser sets `command`, a function of the parsed options, and may set `resumable`.

    The status is the command's own, or one of these:

    - 2 for bad input, 3 for a crash or an output that cannot be written, and 130 for Ctrl-C, each with one
      line on standard error
    - 141 if the output pipe was closed
    """
    with _sanitize_streams():
        try:
            try:
                return _run(parser, arguments)
            finally:  # also flush output that argparse printed before it exited
                sys.stdout.flush()
        except BrokenPipeError:
            redirect_to_null(sys.stdout)
            return EXIT_BROKEN_PIPE
        except OutputError as error:
            redirect_to_null(sys.stdout)
            print(f"trace2evolve: {error}", file=sys.stderr)
            return EXIT_CRASH


def _run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    options = _parse(parser, list(sys.argv[1:] if arguments is None else arguments))
    command: Callable[[argparse.Namespace], int] = options.command
    status = EXIT_BROKEN_PIPE
    try:
        status = command(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        redirect_to_null(sys.stdout)
        return status
    except OutputError:
        raise
    except KeyboardInterrupt:
        remedy = "; rerun the same command to resume" if getattr(options, "resumable", False) else ""
        print(f"trace2evolve: interrupted{remedy}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (Trace2EvolveError, OSError) as error:
        current_folder = _current_folder()
        message = (
            error
            if current_folder is not None
            else "the current folder was deleted; change to an existing one"
        )
        print(sanitize_line(f"trace2evolve: {message}", MAX_LINE_LENGTH), file=sys.stderr)
        return EXIT_USAGE
    # `SystemExit` too, because project code that a command runs must not choose the command's status.
    except BaseException as error:
        print(f"trace2evolve: {write_crash_report(error, _project_folder(options))}", file=sys.stderr)
        return EXIT_CRASH


def _parse(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """Parse arguments; those after `--` are options for pytest if the command takes any.

    Behind a second positional argument, argparse does not assign them itself.
    """
    options, rest = parser.parse_known_args(arguments)
    tail = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    if rest and hasattr(options, "arguments") and rest in (tail, ["--", *tail]):
        options.arguments = tail
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return options


def _current_folder() -> Path | None:
    """Return the current folder, or None if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _project_folder(options: argparse.Namespace) -> Path | None:
    """Return the folder of the project that a command works in, or None."""
    current_folder = _current_folder()
    root: Path | None = getattr(options, "root", None) or (
        None if current_folder is None else find_root(current_folder)
    )
    return root if root is not None and (root / "suites").is_dir() else None


class _OutputStream(SanitizedStream):
    """Sanitized standard output. A failed write raises `OutputError`.

    Otherwise, `run` would report an `OSError` as bad input, and argparse would ignore it.
    """

    def write(self, text: str) -> int:
        with _raise_output_error():
            return super().write(text)

    def flush(self) -> None:
        with _raise_output_error():
            self.raw.flush()


class _ErrorStream(SanitizedStream):
    """Sanitized standard error. A failed write is ignored, because no other stream could report it."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            redirect_to_null(self.raw)
            return len(text)


@contextlib.contextmanager
def _raise_output_error() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error.strerror or error) from None


@contextlib.contextmanager
def _sanitize_streams() -> Iterator[None]:
    """Sanitize everything that a command prints. Output to a closed standard stream is discarded."""
    original_streams = sys.stdout, sys.stderr
    # Otherwise `print` to a closed standard error would write to the standard output, which may be JSON.
    with Path(os.devnull).open("w", encoding="utf-8") as null_stream:
        sys.stdout, sys.stderr = (
            cast("TextIO", stream_class(stream or null_stream, is_terminal=bool(stream and stream.isatty())))
            for stream_class, stream in zip((_OutputStream, _ErrorStream), original_streams, strict=True)
        )
        try:
            yield
        finally:
            sys.stdout, sys.stderr = original_streams
