"""Runs by their names, the splits that hold a task, and the ledger's word that a trace was looked at."""

import getpass
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from pytest_trace2evolve.errors import ConfigError, LedgerError, ResultsError, nearest
from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.records.ledger import Seen
from pytest_trace2evolve.workflow.project import Project
from pytest_trace2evolve.workflow.recorded.baselines import is_path

Place = tuple[str, str]
"""A suite and one of its splits."""


def find_run(run: str, project: Project | None, here: Path) -> Path:
    """Where a run lies.

    Args:
        run: A run's id or the beginning of one, a run folder, or a results file.
        project: Where runs lie; None where there is none.
        here: The folder that paths start from.

    Raises:
        ConfigError: there is none of that name, or several.
    """
    if is_path(here / run):
        return here / run
    if project is None:
        raise ConfigError(f"{run}: no such path, and no project here whose runs could be meant; give --root")
    folder = project.runs_folder
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    found = [name for name in names if name.startswith(run)] if run else []
    if len(found) == 1 or run in found:
        return folder / (run if run in found else found[0])
    if found:
        raise ConfigError(f"run {run!r} is the beginning of several: {', '.join(found[:5])}")
    raise ConfigError(f"{run!r} is no path and no run in {folder}; {nearest(run, names[-20:])}")


def splits_with(project: Project, domain: str, task: str) -> Iterator[Place]:
    """Every split of the project that holds a task: it is one task, whichever suite it was run in."""
    for suite, lock in project.lock.suites.items():
        for split, tasks in lock.splits.items():
            if lock.domain != domain or task not in tasks:
                continue
            if split not in project.splits:
                raise ResultsError(f"{project.lock_path}: unknown split {split!r}; run 'trace2evolve lock'")
            yield suite, split


def record_look(
    project: Project, place: Place, domain: str, task: str, trials: tuple[int, ...], run: str
) -> None:
    """Write down that trials of a task were looked at.

    Raises:
        LedgerError: it could not be written; then nothing may be shown.
    """

    def make(root: str, parents: tuple[str, ...], at: datetime) -> Seen:
        return Seen(
            root=root,
            parents=parents,
            at=at,
            domain=domain,
            suite=place[0],
            split=place[1],
            task=task,
            trials=trials,
            run=run,
            who=user_name(),
            day=at.astimezone().date(),
        )

    try:
        Ledger(project.ledger_folder).append(make)
    except OSError as error:
        raise LedgerError(
            f"{project.ledger_folder}: the look could not be recorded ({error.strerror or error}), and so "
            "nothing is shown; make the folder writable"
        ) from None


def user_name() -> str:
    """Who runs this process, as the machine calls them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "unknown"
