"""Helpers that several commands share: the project, the judge, plots and progress."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.utils.files import find_root
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.environments.registry import Environments
    from pytest_trace2evolve.project.project import Project
    from pytest_trace2evolve.records.protocols import Judge
    from pytest_trace2evolve.worlds.registry import Worlds


def judge_of(options: argparse.Namespace) -> "Judge | None":
    """The judge that `--judge` names."""
    if options.judge is None:
        return None
    from pytest_trace2evolve.judges.chat import ChatJudge

    return ChatJudge(options.judge, base_url=options.judge_base_url)


def nearest_project(options: argparse.Namespace) -> "Project | None":
    """The project of `--root`, or else of the current folder; None if there is neither."""
    return project_of(options) if options.root or find_root(Path.cwd()) else None


def project_of(options: argparse.Namespace) -> "Project":
    """The project of `--root`, or of the nearest folder upwards with `suites/`.

    Raises:
        ConfigError: there is no project.
    """
    from pytest_trace2evolve.project.project import Project

    try:
        root = options.root.resolve() if options.root else find_root(Path.cwd())
    except RuntimeError:  # Python 3.11 and 3.12 raise this for a circular link
        raise ConfigError(f"--root {options.root}: its links lead in a circle; name another folder") from None
    if root is None:
        raise ConfigError("no suites/ in this folder or above it; name the project's folder with --root DIR")
    if not (root / "suites").is_dir():
        raise ConfigError(f"--root {options.root}: it holds no suites/; name the project's folder")
    return Project(root=root, suites_folder=root / "suites")


def worlds_of(project: "Project | None") -> "Worlds":
    """Open the worlds of all providers: this package, installed packages, and the project's hooks."""
    from pytest_trace2evolve.worlds.registry import Worlds

    return Worlds() if project is None else project.open_worlds()


def environments_of(project: "Project | None") -> "Environments":
    """Open all environments: built-in, installed, from the project's hooks, and synthesized in the project.

    The caller closes the environments.
    """
    from pytest_trace2evolve.environments.generated import project_environments
    from pytest_trace2evolve.environments.registry import Environments

    return Environments() if project is None else project_environments(project)


def check_plot(path: Path | None) -> None:
    """Check that a plot can be drawn and written, before anything is computed."""
    if path is None:
        return
    from pytest_trace2evolve.utils.optional import require
    from pytest_trace2evolve.utils.plots import FORMATS

    if path.suffix[1:].lower() not in FORMATS:
        raise ConfigError(f"--plot {path}: must end in .{' or .'.join(FORMATS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: its folder does not exist; make it first")
    require("matplotlib", extra="plot")


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Callable[..., None]]:
    """Show progress on standard error, and yield the function that updates it.

    Without a terminal, one line is printed per tenth of the work.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    # The bar bypasses the sanitizer, which blocks cursor movements.
    console = Console(file=getattr(sys.stderr, "raw", sys.stderr))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    tenth = 0
    with Progress(
        *columns, TextColumn("{task.fields[word]}"), console=console, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task(sanitize_line(what), total=total, word="")

        def show(done: int, word: str = "", of: int | None = None) -> None:
            nonlocal tenth
            word = sanitize_line(word)
            whole = total if of is None else of
            progress.update(bar, completed=done, word=word, total=whole)
            reached = done * 10 // whole if whole else 0
            if reached > tenth and not console.is_terminal:
                print(f"{what} {done}/{whole} {word}".rstrip(), file=sys.stderr)
            tenth = reached

        yield show
