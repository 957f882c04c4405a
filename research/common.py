"""What the commands share: one-line errors and progress."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from pytest_trace2evolve.errors import ConfigError, Trace2EvolveError
from pytest_trace2evolve.utils.reading import read_json

REPOSITORY = Path(__file__).resolve().parents[1]

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


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on standard error; yields a function that takes how many of how many are done, and a text."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def show(done: int, total: int, text: str = "") -> None:
            progress.update(task, completed=done, total=total, description=f"{what} {text}".strip())

        yield show


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """The object of a JSON file.

    Raises:
        ConfigError: the file is missing or damaged; names it and the remedy.
    """
    value = read_json(path, ConfigError, remedy)
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: damaged: not a JSON object; {remedy}")
    return value
