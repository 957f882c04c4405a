"""What several subcommands share: the judge, the project they stand in, pictures and progress."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.project.project import Project, find_root
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.environments.registry import Environments
    from pytest_trace2evolve.session.planner import Resources
    from pytest_trace2evolve.worlds.registry import Worlds


def judge_options(parser: argparse.ArgumentParser) -> None:
    """Declare how a judge of natural-language assertions is named."""
    parser.add_argument("--judge", metavar="MODEL", help="judge of natural-language assertions")
    parser.add_argument(
        "--judge-base-url", metavar="URL", help="the judge's endpoint (default: OPENAI_BASE_URL)"
    )


def judge_of(options: argparse.Namespace) -> Judge | None:
    """The judge that was asked for."""
    if options.judge is None:
        return None
    from pytest_trace2evolve.judges.chat import ChatJudge

    return ChatJudge(options.judge, base_url=options.judge_base_url)


def nearest_project(options: argparse.Namespace) -> Project | None:
    """The project that the command stands in; None where it stands in none and none was named."""
    return project_of(options) if options.root or find_root(Path.cwd()) else None


def project_of(options: argparse.Namespace) -> Project:
    """The project that the command is about: `--root`, or the nearest folder upwards with `suites/`.

    Raises:
        ConfigError: there is none.
    """
    try:
        root = options.root.resolve() if options.root else find_root(Path.cwd())
    except RuntimeError:  # Python 3.11 and 3.12 raise it for a link that leads to itself
        raise ConfigError(f"--root {options.root}: its links lead in a circle; name another folder") from None
    if root is None:
        raise ConfigError("no suites/ in this folder or above it; name the project's folder with --root DIR")
    if not (root / "suites").is_dir():
        raise ConfigError(f"--root {options.root}: it holds no suites/; name the project's folder")
    return Project(root=root, suites_folder=root / "suites")


def worlds_of(project: Project | None) -> "Worlds":
    """Worlds of all providers: of this package, of installed ones, and of the project's hooks."""
    from pytest_trace2evolve.worlds.registry import Worlds

    return Worlds() if project is None else project.open_worlds()


def resources_of(project: Project) -> "Resources":
    """What a run may use: the built-in worlds, agents and checks, and those of the project's hooks.

    Raises:
        ConfigError: the project's hooks cannot be loaded.
    """
    from pytest_trace2evolve.engine.participants import BUILT_IN_AGENTS
    from pytest_trace2evolve.session.planner import Resources

    extensions = project.extensions
    agents = {**BUILT_IN_AGENTS, **extensions.agents}
    return Resources(project, project.open_worlds(), agents, extensions.checks)


def environments_of(project: Project | None) -> "Environments":
    """All environments: of this package, of installed ones, of the project's hooks, and its synthesized ones.
    The caller closes them.

    Raises:
        ConfigError: the project's hooks cannot be loaded, or a capability is registered twice.
        GeneratorError: a synthesized one is damaged, or was changed after it was admitted.
        WorldError: the target of one cannot be opened.
    """
    from pytest_trace2evolve.environments.generated import project_environments
    from pytest_trace2evolve.environments.registry import Environments

    return Environments() if project is None else project_environments(project)


def at_least(option: str, number: int, least: int, most: int = 1_000_000) -> int:
    """A whole number that is neither too small nor too large.

    Raises:
        ConfigError: it is.
    """
    if number < least:
        raise ConfigError(f"{option} {number}: must be {least} or more")
    if number > most:
        raise ConfigError(f"{option} {number}: must be {most} or less")
    return number


def share(option: str, number: float) -> float:
    """A difference of rewards: above 0 and below 1.

    Raises:
        ConfigError: it is not.
    """
    if not 0 < number < 1:
        raise ConfigError(f"{option} {number:g}: must lie between 0 and 1; five points are 0.05")
    return number


def refuse_picture(path: Path) -> None:
    """Before anything is worked out: the picture can be drawn, and its file written.

    Raises:
        ConfigError: its name ends otherwise, or its folder does not exist.
        MissingExtraError: matplotlib is not installed.
    """
    from pytest_trace2evolve.report.plots import FORMATS
    from pytest_trace2evolve.utils.optional import require

    if path.suffix[1:].lower() not in FORMATS:
        raise ConfigError(f"--picture {path}: must end in .{' or .'.join(FORMATS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"--picture {path}: its folder does not exist; make it first")
    require("matplotlib", extra="plot")


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Callable[..., None]]:
    """Progress on standard error, a line a tenth without a terminal; what it yields sets how far it is."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    # A bar is drawn past the sanitiser, which lets no cursor move.
    console = Console(file=getattr(sys.stderr, "raw", sys.stderr))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    tenth = 0
    with Progress(
        *columns, TextColumn("{task.fields[word]}"), console=console, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task(sanitize_line(what), total=total, word="")

        def show(done: int, word: str = "", of: int | None = None) -> None:
            word = sanitize_line(word)
            nonlocal tenth
            whole = total if of is None else of
            progress.update(bar, completed=done, word=word, total=whole)
            reached = done * 10 // whole if whole else 0
            if reached > tenth and not console.is_terminal:
                print(f"{what} {done}/{whole} {word}".rstrip(), file=sys.stderr)
            tenth = reached

        yield show
