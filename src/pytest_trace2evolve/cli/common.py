"""Helpers that several commands share: the project, the judge and progress."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.utils.files import find_root, real_path
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.environments.registry import Environments
    from pytest_trace2evolve.project.project import Project
    from pytest_trace2evolve.records.protocols import Judge
    from pytest_trace2evolve.worlds.registry import Worlds


def judge_of(options: argparse.Namespace) -> "Judge | None":
    """Make the judge that `--judge` names; return None without that option."""
    if options.judge is None:
        return None
    from pytest_trace2evolve.judges.chat import ChatJudge

    return ChatJudge(options.judge, base_url=options.judge_base_url)


def nearest_project(options: argparse.Namespace) -> "Project | None":
    """Find the project of `--root`, or of the current folder; return None if there is no project."""
    return project_of(options) if options.root or find_root(Path.cwd()) else None


def project_of(options: argparse.Namespace) -> "Project":
    """Find the project: the folder of `--root`, or the nearest parent folder that contains `suites/`.

    Raises:
        ConfigError: there is no project.
    """
    from pytest_trace2evolve.project.project import Project

    try:
        root = real_path(options.root) if options.root else find_root(Path.cwd())
    except RuntimeError:  # Python 3.11 and 3.12 raise this for a circular link
        raise ConfigError(f"--root {options.root}: its links form a loop; name a different folder") from None
    if root is None:
        raise ConfigError(
            "this folder and its parents contain no suites/; name the project's folder with --root DIR"
        )
    if not (root / "suites").is_dir():
        raise ConfigError(f"--root {options.root}: it contains no suites/; name the project's folder")
    return Project(root=root, suites_folder=root / "suites")


def worlds_of(project: "Project | None") -> "Worlds":
    """Open the worlds of all providers: this package, installed packages, and the project's hooks."""
    from pytest_trace2evolve.worlds.registry import Worlds

    return Worlds() if project is None else project.open_worlds()


def environments_of(project: "Project | None") -> "Environments":
    """Open all environments: built-in, installed, provided by hooks, and synthesized in the project.

    The caller closes the environments.
    """
    from pytest_trace2evolve.environments.generated import project_environments
    from pytest_trace2evolve.environments.registry import Environments

    return Environments() if project is None else project_environments(project)


@contextmanager
def progress_bar(description: str, total: int | None) -> Iterator[Callable[..., None]]:
    """Show progress on standard error, and yield the function that updates it.

    Without a terminal, one line is printed per tenth of the work.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    # The bar bypasses the sanitizer, which blocks cursor movements.
    console = Console(file=getattr(sys.stderr, "raw", sys.stderr))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    last_tenth = 0
    with Progress(
        *columns, TextColumn("{task.fields[label]}"), console=console, disable=not console.is_terminal
    ) as progress:
        task_id = progress.add_task(sanitize_line(description), total=total, label="")

        def update(done: int, label: str = "", new_total: int | None = None) -> None:
            nonlocal last_tenth
            label = sanitize_line(label)
            current_total = total if new_total is None else new_total
            progress.update(task_id, completed=done, label=label, total=current_total)
            tenth = done * 10 // current_total if current_total else 0
            if tenth > last_tenth and not console.is_terminal:
                print(f"{description} {done}/{current_total} {label}".rstrip(), file=sys.stderr)
            last_tenth = tenth

        yield update
