"""What both commands share: options, one-line errors, progress, and files that are complete or absent."""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError
from rich.console import Console
from rich.progress import Progress

from pytest_trace2evolve.errors import ConfigError, MissingExtraError, Trace2EvolveError

REPOSITORY = Path(__file__).resolve().parents[1]

R = TypeVar("R", bound=BaseModel)
OnProgress = Callable[[int, int], None]
"""Called with how many of how many are done."""


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Run the chosen command; returns the exit status. Errors of the package become one line."""
    options = parser.parse_args(arguments)
    try:
        status: int = options.command(options)
    except Trace2EvolveError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; run the same command again to resume", file=sys.stderr)
        return 130
    return status


def at_least(option: str, value: int | None, minimum: int, maximum: int = 1_000_000) -> int | None:
    """Check an option's value; None stays None.

    Raises:
        ConfigError: it is too small or too large.
    """
    if value is not None and value < minimum:
        raise ConfigError(f"{option} {value}: must be {minimum} or more")
    if value is not None and value > maximum:
        raise ConfigError(f"{option} {value}: must be {maximum} or less")
    return value


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on standard error; yields a function that takes how many of how many are done, and a text."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def show(done: int, total: int, text: str = "") -> None:
            progress.update(task, completed=done, total=total, description=f"{what} {text}".strip())

        yield show


def require_packages(packages: Mapping[str, str]) -> None:
    """Check that packages are installed; the values are the extras that install them.

    Raises:
        MissingExtraError: one is not.
    """
    for package, extra in packages.items():
        if (package in sys.modules and sys.modules[package] is None) or not importlib.util.find_spec(package):
            raise MissingExtraError(
                f"{package!r} is not installed; run: pip install 'pytest-trace2evolve[{extra}]'"
            )


def digest(value: Any) -> str:
    """Digest of a JSON value, equal for equal content; the one that manifests of adapters hold."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def write_files(files: Mapping[Path, str]) -> None:
    """Write each file completely or not at all; no file is replaced before all are on the disk.

    Raises:
        OSError: a file cannot be written.
    """
    with contextlib.ExitStack() as stack:
        ready: dict[Path, str] = {}
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, ready[path] = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            stack.callback(Path(ready[path]).unlink, missing_ok=True)
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(ready[path]).chmod(0o644)
        for path, temporary in ready.items():
            Path(temporary).replace(path)


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """The object of a JSON file.

    Raises:
        ConfigError: the file is missing or damaged; names it and the remedy.
    """
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not valid JSON ({error}); {remedy}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: damaged: not a JSON object; {remedy}")
    return value


def read_record(path: Path, kind: type[R], remedy: str) -> R:
    """A record from its JSON file.

    Raises:
        ConfigError: the file is missing or damaged; names it and the remedy.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        cause = " ".join(str(error).split())[:300]
        raise ConfigError(f"{path}: damaged or missing ({cause}); {remedy}") from None


@contextlib.contextmanager
def locked(folder: Path, message: str) -> Iterator[None]:
    """Keep other processes out of a folder.

    Raises:
        ConfigError: another process is in it; says so with `message`.
    """
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(f"{folder}: {message}") from None
    try:
        yield
    finally:
        lock.release()
