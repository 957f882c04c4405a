"""Reports crashes: an unhandled error ends a session or a command with status 3 and a one-line message.

The message names a file with the traceback. Status 1 would mean that the candidate is discarded.
"""

import os
import re
import select
import sys
import tempfile
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from pytest_trace2evolve import __version__
from pytest_trace2evolve.utils.canonical import storable_text
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.sanitize import sanitize_line
from pytest_trace2evolve.utils.secrets import Secrets

EXIT_CRASH = 3
"""Exit status of a session or command that crashed; pytest uses the same status for an internal error."""

EXIT_BROKEN_PIPE = 141
"""Exit status if the reader of the standard output closed it, as `head` does."""

MAX_ERROR_LENGTH = 300
"""Maximum number of characters of an exception in the message."""

_CRASH_LINE = re.compile(r"crashed: .*? (?:the traceback is in|its traceback cannot be written) [^\n]*")


class OutputError(Exception):
    """The standard output cannot be written, so a part of the output is lost."""

    def __str__(self) -> str:
        cause = super().__str__()
        return f"the standard output cannot be written ({cause}); free disk space, or redirect it elsewhere"


def write_crash_report(error: BaseException, root: Path | None) -> str:
    """Write the traceback of an unhandled error to a file, and return the line that reports error and file.

    Args:
        root: The project's folder, if there is a project.
    """
    return f"crashed: {describe_error(error)}; {write_traceback(error, root)}"


def write_traceback(error: BaseException, root: Path | None) -> str:
    """Write the traceback of an error to a file, and return the part of a message that names the file.

    The file is written to the project's `.trace2evolve/` or, if that fails, to the temporary folder.
    """
    name = f"crash-{datetime.now(UTC):%Y-%m-%dT%H%M%S}-{uuid4().hex[:6]}.log"
    folders = [*([root / ".trace2evolve"] if root is not None else []), Path(tempfile.gettempdir())]
    write_failure = ""
    for folder in folders:
        try:
            write_atomic(folder / name, _render_traceback(error))
            return f"the traceback is in {folder / name}"
        except (OSError, MemoryError, RecursionError) as write_error:
            write_failure = describe_error(write_error)
    return f"its traceback cannot be written ({write_failure})"


def shorten_internal_error(
    excrepr: Any, error: BaseException, root: Path, *, is_consequence: bool = False
) -> None:
    """Reduce pytest's report of an internal error to one line, if this package caused it.

    Args:
        excrepr: The report, which pytest is about to print or to send from a worker.
        is_consequence: Whether another internal error was reported before this one.
    """
    match = _CRASH_LINE.search(str(error)) if isinstance(error, AssertionError) else None
    if match is None and not is_consequence and not _is_package_error(error):
        return
    line = f"trace2evolve: {match[0] if match else write_crash_report(error, root)}"
    # pytest offers no other way to change what it prints.
    excrepr.toterminal = lambda writer: writer.line(line)


def end_session(error: BaseException, root: Path) -> int:
    """Report an error that escaped from a pytest session, and return the session's exit status."""
    if isinstance(error, KeyboardInterrupt):
        _print_error("interrupted while the session ended")
        return 2
    if isinstance(error, BrokenPipeError) and _has_no_reader(sys.stdout):
        redirect_to_null(sys.stdout)
        return EXIT_BROKEN_PIPE
    try:
        flush_output()
    except (OSError, OutputError):
        redirect_to_null(sys.stdout)
    _print_error(str(error) if isinstance(error, OutputError) else write_crash_report(error, root))
    return EXIT_CRASH


def require_output() -> None:
    """Require an open standard output, because pytest fails when it flushes a closed one.

    Raises:
        SystemExit: the standard output is closed.
    """
    if sys.stdout is None:
        _print_error(str(OutputError("it is closed")))
        raise SystemExit(EXIT_CRASH)


def flush_output() -> None:
    """Flush the standard output.

    Raises:
        BrokenPipeError: the reader closed it.
        OutputError: the standard output cannot be written for another reason.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error.strerror or error) from None


def redirect_to_null(stream: Any) -> None:
    """Redirect an unwritable standard stream to the null device, because Python flushes it again at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError, AttributeError):
        return  # not a file, for example in a test


def _has_no_reader(stream: Any) -> bool:
    """Whether the reader of a pipe closed it."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # errors are always reported
        return bool(poll.poll(0))
    except (OSError, ValueError, AttributeError):
        return False  # not a file, or a platform without poll


def _print_error(message: str) -> None:
    try:
        print(f"trace2evolve: {message}", file=sys.stderr)
    except OSError:
        redirect_to_null(sys.stderr)


def _is_package_error(error: BaseException) -> bool:
    """Return whether the failed hook, whose frame follows pluggy's last one, belongs to this package."""
    modules = (
        str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)
    )
    packages = [module.partition(".")[0] for module in modules]
    if "pluggy" in packages:
        packages = packages[len(packages) - packages[::-1].index("pluggy") :]
    return packages[:1] == [__name__.partition(".")[0]]


def describe_error(error: BaseException) -> str:
    """Describe an error in one short line, without secrets."""
    try:
        text = _endpoint_secrets().remove_from(f"{type(error).__name__}: {error}")
    except Exception as message_error:
        return f"{type(error).__name__} (its message cannot be shown: {type(message_error).__name__})"
    return sanitize_line(text, MAX_ERROR_LENGTH).rstrip(": ")


def _render_traceback(error: BaseException) -> str:
    header = f"pytest-trace2evolve {__version__}, Python {sys.version.split()[0]}, {sys.platform}\n\n"
    return storable_text(_endpoint_secrets().remove_from(header + "".join(traceback.format_exception(error))))


def _endpoint_secrets() -> Secrets:
    return Secrets.of_endpoint(os.environ.get("OPENAI_BASE_URL"), os.environ.get("OPENAI_API_KEY"))
