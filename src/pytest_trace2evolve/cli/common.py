"""What several commands share: the project, the judge, pictures and progress."""

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
    """The project of `--root`, or the one that the current folder is in, if any."""
    return project_of(options) if options.root or find_root(Path.cwd()) else None


def project_of(options: argparse.Namespace) -> "Project":
    """The project of `--root`, or of the nearest folder upwards with `suites/`; an error without one."""
    from pytest_trace2evolve.project.project import Project

    try:
        root = options.root.resolve() if options.root else find_root(Path.cwd())
    except RuntimeError:  # Python 3.11 and 3.12 raise it for a link that leads to itself
        raise ConfigError(f"--root {options.root}: its links lead in a circle; name another folder") from None
    if root is None:
        raise ConfigError("no suites/ in this folder or above it; name the project's folder with --root DIR")
    if not (root / "suites").is_dir():
        raise ConfigError(f"--root {options.root}: it holds no suites/; name the project's folder")
    return Project(root=root, suites_folder=root / "suites")


def worlds_of(project: "Project | None") -> "Worlds":
    """Worlds of all providers: of this package, of installed ones, and of the project's hooks."""
    from pytest_trace2evolve.worlds.registry import Worlds

    return Worlds() if project is None else project.open_worlds()


def environments_of(project: "Project | None") -> "Environments":
    """All environments: of this package, of installed ones, of the project's hooks, and its synthesized ones.
    The caller closes them."""
    from pytest_trace2evolve.environments.generated import project_environments
    from pytest_trace2evolve.environments.registry import Environments

    return Environments() if project is None else project_environments(project)


def check_plot(path: Path | None) -> None:
    """Check that a picture can be drawn and written, before anything is computed."""
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
    """Progress on standard error, a line a tenth without a terminal; yields the function that sets it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    # A bar is drawn past the sanitizer, which lets no cursor move.
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
