"""Opening a trace: finding it, and writing down that it was looked at before anything of it is told.

Runs by their names, the splits that hold a task, and the ledger's word that a trace was looked at.
"""

import getpass
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pytest_trace2evolve.errors import (
    ConfigError,
    LedgerError,
    MissingExtraError,
    ResultsError,
    WorldError,
    nearest,
)
from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.evidence.results import ResultsFile, combine, read_results, written_findings
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.evidence import Provenance
from pytest_trace2evolve.records.ledger import Seen
from pytest_trace2evolve.records.protocols import rules_of
from pytest_trace2evolve.records.rules import Finding
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.invariants import find_breaches
from pytest_trace2evolve.session.baselines import is_path
from pytest_trace2evolve.session.sides import domain_of, expand, provenance
from pytest_trace2evolve.worlds.registry import Worlds

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


@dataclass(frozen=True)
class Opened:
    """A trace that may be shown: what had to be written down is.

    Attributes:
        simulation: The simulation with its trace.
        origin: Where it comes from.
        run: The run's name, or the file's.
        trials: All trials of the task that lie there.
        recorded: The splits whose ledger entries say that this was looked at.
        note: Why nothing was recorded, where nothing was.
        found: What breaks an invariant in the trace.
    """

    simulation: Simulation
    origin: Provenance
    run: str
    trials: tuple[int, ...]
    recorded: tuple[Place, ...]
    note: str
    found: tuple[Finding, ...] = ()


def open_trace(
    run: str, task: str, *, project: Project | None, here: Path, trial: int | None = None, suite: str = ""
) -> Opened:
    """Find the trace of a simulation, and record the look.

    Args:
        run: A run's id or the beginning of one, a run folder, or a results file.
        task: The task's id.
        project: Whose ledger to write, and where its runs lie; None where there is none.
        here: The folder that paths start from.
        trial: Which trial; the first, where none is named.
        suite: Which suite of a run over several.

    Raises:
        ConfigError: no such run, task or trial, or several; names what there is.
        ResultsError: the run cannot be read.
        LedgerError: the look could not be recorded; nothing of the trace was told.
    """
    path = find_run(run, project, here)
    file = _holding([read_results(one) for one in expand([path])], task, suite, run)
    origin = provenance(file)
    simulations = {one.trial or 0: one for one in combine([file])[0] if one.task_id == task}
    chosen = min(simulations) if trial is None else trial
    if chosen not in simulations:
        known = ", ".join(map(str, sorted(simulations)))
        raise ConfigError(f"task {task!r} of {run} has no trial {chosen}; it has {known}")
    places, note = _places(project, origin, domain_of(file), task)
    name = origin.run_id or path.name
    for place in places:
        assert project is not None
        record_look(project, place, domain_of(file), task, (chosen,), name)
    simulation = simulations[chosen]
    return Opened(
        simulation,
        origin,
        name,
        tuple(sorted(simulations)),
        tuple(places),
        note,
        _found(simulation, origin, project),
    )


def _found(simulation: Simulation, origin: Provenance, project: Project | None) -> tuple[Finding, ...]:
    """What breaks an invariant: as the run wrote it, else by the rules of a world that can be opened here."""
    if (written := written_findings(simulation)) is not None:
        return written
    if not origin.conversational:
        return ()
    try:
        worlds = Worlds() if project is None else project.open_worlds()
        rules = rules_of(worlds.open(origin.provider, origin.domain))
    except (WorldError, MissingExtraError):
        return ()
    return () if rules is None else find_breaches(simulation.trace, rules)


def _holding(files: Sequence[ResultsFile], task: str, suite: str, run: str) -> ResultsFile:
    """The one file that holds simulations of a task."""
    by_suite = {provenance(file).suite or file.path.name: file for file in files}
    if suite and suite not in by_suite:
        raise ConfigError(f"{run} holds no suite {suite!r}; {nearest(suite, by_suite)}")
    wanted = {name: file for name, file in by_suite.items() if not suite or name == suite}
    ran = {name: {one.task_id for one in file.simulations} for name, file in wanted.items()}
    found = [name for name in wanted if task in ran[name]]
    if not found:
        known = nearest(task, {one for tasks in ran.values() for one in tasks})
        raise ConfigError(f"{run} holds no simulation of task {task!r}; {known}")
    if len(found) > 1:
        raise ConfigError(f"task {task!r} is in several suites of {run}: {', '.join(found)}; give --suite")
    return wanted[found[0]]


def _places(
    project: Project | None, origin: Provenance, domain: str, task: str
) -> tuple[Sequence[Place], str]:
    """The sealed splits that hold a task, or why there is none."""
    if origin.suite is not None and (project is None or origin.suite not in project.lock.suites):
        where = f"{project.lock_path} does not hold" if project else "no project here holds"
        raise ConfigError(
            f"the run is of suite {origin.suite!r}, which {where}: the look could not be recorded; "
            "give the run's project as --root"
        )
    if project is None:
        return (), "nothing was recorded: there is no project here"
    holding = list(splits_with(project, domain, task))
    sealed = [(suite, split) for suite, split in holding if project.splits[split].role is not Role.REPORT]
    if sealed:
        return sealed, ""
    if holding:
        return (), f"nothing was recorded: {'::'.join(holding[0])} may be read"
    return (), f"nothing was recorded: no suite of {project.root.name} holds the task"
