"""Opens traces, and lists the failed tasks of a run.

An access to a trace of a sealed split is recorded in the ledger before anything is shown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve.errors import (
    ConfigError,
    MissingExtraError,
    ResultsError,
    WorldError,
    nearest,
)
from pytest_trace2evolve.evidence.results import ResultsFile, combine, read_results, written_findings
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.evidence import Provenance
from pytest_trace2evolve.records.protocols import rules_of
from pytest_trace2evolve.records.rules import Finding
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.invariants import find_breaches
from pytest_trace2evolve.scoring.metrics import succeeded
from pytest_trace2evolve.session.evidence_sources import domain_of, expand, path_exists, provenance
from pytest_trace2evolve.session.ledger import SplitName, record_access
from pytest_trace2evolve.worlds.registry import Worlds


def find_run(run: str, project: Project | None, here: Path) -> Path:
    """Find the path of a run from its id, the beginning of its id, its folder, or a results file.

    Paths are relative to the folder `here`.
    """
    if path_exists(here / run):
        return here / run
    if project is None:
        raise ConfigError(f"{run}: no such path, and no project here whose runs could be meant; give --root")
    folder = project.runs_folder
    ids = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    found = [run] if run in ids else [name for name in ids if name.startswith(run)]
    if len(found) > 1:
        shown = ", ".join(found[:5])
        raise ConfigError(f"run {run!r} is the beginning of several: {shown}; give more of the id")
    if not found:
        raise ConfigError(f"{run!r} is no path and no run in {folder}; {nearest(run, ids[-20:])}")
    return folder / found[0]


def splits_with(project: Project, domain: str, task: str) -> Iterator[SplitName]:
    """Every split of the project that holds a task, whichever suite the task was run in."""
    for suite, lock in project.lock.suites.items():
        for split, tasks in lock.splits.items():
            if lock.domain != domain or task not in tasks:
                continue
            if split not in project.splits:
                raise ResultsError(f"{project.lock_path}: unknown split {split!r}; run 'trace2evolve lock'")
            yield suite, split


@dataclass(frozen=True)
class OpenedTrace:
    """A trace that may be shown, because any access that must be recorded is recorded.

    Attributes:
        simulation: The simulation with its trace.
        origin: The provenance of the simulation.
        run: The run's name, or the file's.
        trials: All trials of the task in the run.
        recorded: The splits whose ledger entries record this access.
        note: Why no access was recorded; empty if one was.
        found: The breaches of invariants in the trace.
    """

    simulation: Simulation
    origin: Provenance
    run: str
    trials: tuple[int, ...]
    recorded: tuple[SplitName, ...]
    note: str
    found: tuple[Finding, ...] = ()


def open_trace(
    run: str, task: str, *, project: Project | None, here: Path, trial: int | None = None, suite: str = ""
) -> OpenedTrace:
    """Find the trace of a simulation, and record the access.

    Args:
        run: As in `find_run`.
        trial: The trial; None for the first one.
        suite: The suite, if the run has several.

    Raises:
        ConfigError: no run, task or trial matches, or several match. The message names the available ones.
        ResultsError: the run cannot be read.
        LedgerError: the access could not be recorded; nothing of the trace may be shown.
    """
    path = find_run(run, project, here)
    file = _file_with(task, _files_by_suite(path, suite, run), run)
    origin, domain = provenance(file), domain_of(file)
    simulations = {
        simulation.trial or 0: simulation for simulation in combine([file])[0] if simulation.task_id == task
    }
    chosen = min(simulations) if trial is None else trial
    if chosen not in simulations:
        known = ", ".join(map(str, sorted(simulations)))
        raise ConfigError(f"task {task!r} of {run} has no trial {chosen}; it has {known}")
    places, note = _sealed_places(project, origin, domain, task)
    name = origin.run_id or path.name
    for place in places:
        assert project is not None
        record_access(project, place, domain, task, (chosen,), name)
    simulation = simulations[chosen]
    return OpenedTrace(
        simulation,
        origin,
        name,
        tuple(sorted(simulations)),
        tuple(places),
        note,
        _broken_invariants(simulation, origin, project),
    )


def _broken_invariants(
    simulation: Simulation, origin: Provenance, project: Project | None
) -> tuple[Finding, ...]:
    """Return the recorded invariant violations.

    If none were recorded, check the trace by the rules of its world, if that world can be opened here.
    """
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


@dataclass(frozen=True)
class FailedTask:
    """A task that failed at least one trial.

    Attributes:
        splits: The splits that hold the task.
        is_sealed: Whether an access to the task's traces would be recorded.
        failed, measured: Trials that failed, and all that were measured.
        reward: Mean over the measured trials.
    """

    suite: str
    task: str
    splits: tuple[SplitName, ...]
    is_sealed: bool
    failed: int
    measured: int
    reward: float


@dataclass(frozen=True)
class FailedTasks:
    """The failed tasks of a run.

    Attributes:
        tasks: The number of all tasks.
        unmeasured: The number of tasks without a reward in any trial.
    """

    run: str
    candidate: str | None
    tasks: int
    unmeasured: int
    failed: tuple[FailedTask, ...]


def failed_tasks(run: str, *, project: Project | None, here: Path, suite: str = "") -> FailedTasks:
    """List the failed tasks of a run. No access is recorded, because nothing of their traces is shown.

    Args:
        run: As in `find_run`.
        suite: Only this suite, if the run has several.

    Raises:
        ConfigError: no run or suite matches, or several runs match. The message names the available ones.
        ResultsError: the run cannot be read.
    """
    path = find_run(run, project, here)
    files = _files_by_suite(path, suite, run)
    rewards: dict[tuple[str, str, str], list[float | None]] = {}
    for name, file in files.items():
        for simulation in combine([file])[0]:
            place = name, domain_of(file), simulation.task_id
            rewards.setdefault(place, []).append(simulation.recorded_reward)
    found = [
        _failed_task(project, *place, measured)
        for place, several in rewards.items()
        if (measured := [reward for reward in several if reward is not None])
        and not all(map(succeeded, measured))
    ]
    origins = [provenance(file) for file in files.values()]
    return FailedTasks(
        next((origin.run_id for origin in origins if origin.run_id), path.name),
        next((origin.candidate.id for origin in origins if origin.candidate), None),
        len(rewards),
        sum(all(reward is None for reward in several) for several in rewards.values()),
        tuple(sorted(found, key=lambda task: (task.suite, task.is_sealed, task.splits, task.task))),
    )


def _failed_task(
    project: Project | None, suite: str, domain: str, task: str, rewards: Sequence[float]
) -> FailedTask:
    holding = [] if project is None else list(splits_with(project, domain, task))
    return FailedTask(
        suite,
        task,
        tuple(holding),
        project is not None and any(_is_sealed(project, split) for _, split in holding),
        sum(not succeeded(reward) for reward in rewards),
        len(rewards),
        sum(rewards) / len(rewards),
    )


def _is_sealed(project: Project, split: str) -> bool:
    return project.splits[split].role is not Role.REPORT


def _files_by_suite(path: Path, suite: str, run: str) -> dict[str, ResultsFile]:
    """The results files of a run by suite, or only the file of the named suite."""
    files = [read_results(place) for place in expand([path])]
    by_suite = {provenance(file).suite or file.path.name: file for file in files}
    if suite and suite not in by_suite:
        raise ConfigError(f"{run} holds no suite {suite!r}; {nearest(suite, by_suite)}")
    return {suite: by_suite[suite]} if suite else by_suite


def _file_with(task: str, by_suite: Mapping[str, ResultsFile], run: str) -> ResultsFile:
    """The one file that holds simulations of a task."""
    ran = {name: {simulation.task_id for simulation in file.simulations} for name, file in by_suite.items()}
    found = [name for name, tasks in ran.items() if task in tasks]
    if not found:
        known = nearest(task, set().union(*ran.values()), most=3)
        raise ConfigError(f"{run} holds no simulation of task {task!r}; {known}")
    if len(found) > 1:
        raise ConfigError(f"task {task!r} is in several suites of {run}: {', '.join(found)}; give --suite")
    return by_suite[found[0]]


def _sealed_places(
    project: Project | None, origin: Provenance, domain: str, task: str
) -> tuple[Sequence[SplitName], str]:
    """The sealed splits that hold a task; if there are none, a note that says why."""
    if origin.suite is not None and (project is None or origin.suite not in project.lock.suites):
        where = f"{project.lock_path} does not hold" if project else "no project here holds"
        raise ConfigError(
            f"the run is of suite {origin.suite!r}, which {where}: the access could not be recorded; "
            "give the run's project as --root"
        )
    if project is None:
        return (), "nothing was recorded: there is no project here"
    holding = list(splits_with(project, domain, task))
    sealed = [(suite, split) for suite, split in holding if _is_sealed(project, split)]
    if sealed:
        return sealed, ""
    if holding:
        return (), f"nothing was recorded: {'::'.join(holding[0])} may be read"
    return (), f"nothing was recorded: no suite of {project.root.name} holds the task"
