"""Opens traces, and lists the failed tasks of a run.

An access to a trace of a sealed split is recorded in the ledger before anything is shown.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pytest_trace2evolve.errors import (
    ConfigError,
    ResultsError,
    name_suggestion,
)
from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.evidence.results import (
    ResultsFile,
    combine_results,
    read_findings,
    read_results,
)
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.evidence import Provenance
from pytest_trace2evolve.records.failure import Failure
from pytest_trace2evolve.records.ledger import Access
from pytest_trace2evolve.records.protocols import World, rules_of
from pytest_trace2evolve.records.rules import Finding
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.failures import explain_failure
from pytest_trace2evolve.scoring.invariants import find_breaches
from pytest_trace2evolve.scoring.metrics import is_success
from pytest_trace2evolve.scoring.reward import collateral_changes, recorded_verdicts
from pytest_trace2evolve.session.evidence_sources import (
    domain_of,
    expand_run_folders,
    file_provenance,
    find_run,
)
from pytest_trace2evolve.session.ledger import SplitName, record_access
from pytest_trace2evolve.worlds.registry import Worlds


def splits_of_task(project: Project, domain: str, task: str) -> Iterator[SplitName]:
    """Yield every split of the project that holds a task, in any suite."""
    for suite, lock in project.lock.suites.items():
        for split, tasks in lock.splits.items():
            if lock.domain != domain or task not in tasks:
                continue
            if split not in project.splits:
                raise ResultsError(f"{project.lock_path}: unknown split {split!r}; run 'trace2evolve lock'")
            yield suite, split


SEALED_ROLES = (Role.GATE, Role.GUARD)
"""Roles of the splits on which candidates are judged, and to which they must not be fitted.

Their traces stay unread, and the ledger records their draws.
"""


def sealed_splits_of_task(project: Project, domain: str, task: str) -> list[SplitName]:
    """Return the sealed splits of the project that hold a task; its traces may be read if there are none.

    A split that the project does not define counts as sealed.
    """
    return [
        (suite, split)
        for suite, lock in project.lock.suites.items()
        for split, tasks in lock.splits.items()
        if lock.domain == domain and task in tasks and _is_sealed(project, split)
    ]


def record_first_accesses(project: Project, domain: str, trials: Mapping[str, int], run: str) -> None:
    """Record that a run shows a trial of each of several tasks that may be read, if a split decides by them.

    Evidence of that split is never clean. The entry counts if the task is in a sealed split later. Only the
    first access to a task can matter for that, so no others are recorded.

    Raises:
        LedgerError: an entry could not be written, so nothing may be shown.
    """
    known = {
        (entry.suite, entry.split, entry.task)
        for entry in Ledger(project.ledger_folder).read().entries.values()
        if isinstance(entry, Access) and entry.domain == domain
    }
    for task, trial in trials.items():
        for suite, split in splits_of_task(project, domain, task):
            if project.splits[split].role is Role.DEVELOPMENT and (suite, split, task) not in known:
                record_access(project, (suite, split), domain, task, (trial,), run, only_first=True)


@dataclass(frozen=True)
class OpenedTrace:
    """A trace that may be shown, because a required record of the access has been written.

    Attributes:
        simulation: The simulation with its trace.
        origin: The provenance of the simulation.
        run: The run's name, or the file's.
        trials: All trials of the task in the run.
        recorded_splits: The splits whose ledger entries record this access.
        note: The reason why no access was recorded; empty if an access was recorded.
        findings: The breaches of invariants in the trace.
        failure: The explanation of a failed simulation; None if it passed or cannot be explained here.
    """

    simulation: Simulation
    origin: Provenance
    run: str
    trials: tuple[int, ...]
    recorded_splits: tuple[SplitName, ...]
    note: str
    findings: tuple[Finding, ...] = ()
    failure: Failure | None = None
    task: Task | None = None


def open_trace(
    run: str,
    task: str,
    *,
    project: Project | None,
    base_folder: Path,
    trial: int | None = None,
    suite: str = "",
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
    path = find_run(run, project, base_folder)
    file = _find_file(task, files_by_suite(path, suite, run), run)
    origin, domain = file_provenance(file), domain_of(file)
    simulations = {
        simulation.trial or 0: simulation
        for simulation in combine_results([file])[0]
        if simulation.task_id == task
    }
    trial_number = min(simulations) if trial is None else trial
    if trial_number not in simulations:
        known_trials = ", ".join(map(str, sorted(simulations)))
        raise ConfigError(f"task {task!r} of {run} has no trial {trial_number}; it has {known_trials}")
    recorded_splits, note = _recorded_splits(project, origin, domain, task)
    name = origin.run_id or path.name
    for recorded_split in recorded_splits:
        assert project is not None
        record_access(project, recorded_split, domain, task, (trial_number,), name)
    simulation, reward = simulations[trial_number], simulations[trial_number].recorded_reward
    find_world = cache(lambda: open_world(origin, project))
    has_failed = reward is not None and not is_success(reward)
    has_rules = origin.is_conversational or read_findings(simulation) is not None
    return OpenedTrace(
        simulation,
        origin,
        name,
        tuple(sorted(simulations)),
        tuple(recorded_splits),
        note,
        broken_rules(simulation, file.tasks[task], find_world) if has_rules else (),
        explain(simulation, file.tasks[task], find_world) if has_failed else None,
        file.tasks[task],
    )


def open_world(origin: Provenance, project: Project | None, worlds: Worlds | None = None) -> World | None:
    """Open the world in which simulations were made; None if it cannot be opened here or has changed.

    `worlds` are the project's worlds, if they are open already.
    """
    try:
        if worlds is None:
            worlds = Worlds() if project is None else project.open_worlds()
        if project is None or origin.suite is None:
            return worlds.open(origin.provider, origin.domain)
        if project.lock.suites[origin.suite].digest == origin.lock:
            return project.world(project.suite(origin.suite), worlds)
    except Exception:  # a project's own world may raise anything when it is made
        return None
    return None


FindWorld = Callable[[], World | None]
"""Opens the world in which simulations were made; None if it cannot be opened here or has changed."""


def explain(simulation: Simulation, task: Task | None, find_world: FindWorld) -> Failure | None:
    """Explain a failed simulation in its world; None without a task or a world."""
    if task is None or (world := find_world()) is None:
        return None
    try:
        return explain_failure(simulation, task, world, recorded_verdicts(simulation, task))
    except Exception:  # the code of a project's own world may raise anything
        return None


def broken_rules(simulation: Simulation, task: Task | None, find_world: FindWorld) -> tuple[Finding, ...]:
    """Return the recorded breaches of rules; if none are recorded, those that the world's rules show."""
    recorded = read_findings(simulation)
    if recorded is not None or (world := find_world()) is None:
        return recorded or ()
    try:
        rules = rules_of(world)
        found = () if rules is None else find_breaches(simulation.trace, rules)
        return *found, *((collateral_changes(task, simulation.trace, world) if task else ()) or ())
    except Exception:  # the code of a project's own world may raise anything
        return ()


@dataclass(frozen=True)
class FailedTask:
    """A task that failed at least one trial.

    Attributes:
        splits: The splits that hold the task.
        is_sealed: Whether a sealed split holds the task.
        failed_trials, measured_trials: The number of failed trials, and of all measured trials.
        reward: The mean reward over the measured trials.
    """

    suite: str
    task: str
    splits: tuple[SplitName, ...]
    is_sealed: bool
    failed_trials: int
    measured_trials: int
    reward: float


@dataclass(frozen=True)
class FailedTasks:
    """The failed tasks of a run.

    Attributes:
        task_count: The number of all tasks.
        unmeasured_tasks: The number of tasks without a reward in any trial.
    """

    run: str
    candidate: str | None
    task_count: int
    unmeasured_tasks: int
    failed_tasks: tuple[FailedTask, ...]


def failed_tasks(run: str, *, project: Project | None, base_folder: Path, suite: str = "") -> FailedTasks:
    """List the failed tasks of a run. No access is recorded, because the traces are not shown.

    Args:
        run: As in `find_run`.
        suite: The suite whose tasks are listed; empty for all suites.

    Raises:
        ConfigError: no run or suite matches, or several runs match. The message names the available ones.
        ResultsError: the run cannot be read.
    """
    path = find_run(run, project, base_folder)
    files = files_by_suite(path, suite, run)
    rewards: dict[tuple[str, str, str], list[float | None]] = {}
    for name, file in files.items():
        for simulation in combine_results([file])[0]:
            key = name, domain_of(file), simulation.task_id
            rewards.setdefault(key, []).append(simulation.recorded_reward)
    tasks = [
        _failed_task(project, *key, measured_rewards)
        for key, trial_rewards in rewards.items()
        if (measured_rewards := [reward for reward in trial_rewards if reward is not None])
        and not all(map(is_success, measured_rewards))
    ]
    origins = [file_provenance(file) for file in files.values()]
    return FailedTasks(
        next((origin.run_id for origin in origins if origin.run_id), path.name),
        next((origin.candidate.id for origin in origins if origin.candidate), None),
        len(rewards),
        sum(all(reward is None for reward in trial_rewards) for trial_rewards in rewards.values()),
        tuple(sorted(tasks, key=lambda task: (task.suite, task.is_sealed, task.splits, task.task))),
    )


def _failed_task(
    project: Project | None, suite: str, domain: str, task: str, rewards: Sequence[float]
) -> FailedTask:
    splits = [] if project is None else list(splits_of_task(project, domain, task))
    return FailedTask(
        suite,
        task,
        tuple(splits),
        project is not None and any(_is_sealed(project, split) for _, split in splits),
        sum(not is_success(reward) for reward in rewards),
        len(rewards),
        sum(rewards) / len(rewards),
    )


def _is_sealed(project: Project, split: str) -> bool:
    return split not in project.splits or project.splits[split].role in SEALED_ROLES


def files_by_suite(path: Path, suite: str, run: str) -> dict[str, ResultsFile]:
    """Return the results files of a run by suite, or only the file of the named suite."""
    files = [read_results(results_path) for results_path in expand_run_folders([path])]
    by_suite = {file_provenance(file).suite or file.path.name: file for file in files}
    if suite and suite not in by_suite:
        raise ConfigError(f"{run} holds no suite {suite!r}; {name_suggestion(suite, by_suite)}")
    return {suite: by_suite[suite]} if suite else by_suite


def _find_file(task: str, by_suite: Mapping[str, ResultsFile], run: str) -> ResultsFile:
    """Return the one file that holds simulations of a task."""
    tasks_by_suite = {
        name: {simulation.task_id for simulation in file.simulations} for name, file in by_suite.items()
    }
    suites = [name for name, tasks in tasks_by_suite.items() if task in tasks]
    if not suites:
        suggestion = name_suggestion(task, set().union(*tasks_by_suite.values()), max_names=3)
        raise ConfigError(f"{run} holds no simulation of task {task!r}; {suggestion}")
    if len(suites) > 1:
        raise ConfigError(f"task {task!r} is in several suites of {run}: {', '.join(suites)}; give --suite")
    return by_suite[suites[0]]


def _recorded_splits(
    project: Project | None, origin: Provenance, domain: str, task: str
) -> tuple[Sequence[SplitName], str]:
    """Return the splits of a task whose accesses are recorded, and a note that says why if there are none.

    An access to a `development` split costs nothing. It counts if the task is in a sealed split later.
    """
    if origin.suite is not None and (project is None or origin.suite not in project.lock.suites):
        reason = f"{project.lock_path} lacks" if project else "no project here has"
        raise ConfigError(
            f"the run is of suite {origin.suite!r}, which {reason}, so the access cannot be recorded; "
            "give the run's project with --root"
        )
    if project is None:
        return (), "nothing was recorded: there is no project here"
    splits = list(splits_of_task(project, domain, task))
    recorded_splits = [name for name in splits if project.splits[name[1]].role is not Role.REPORT]
    if recorded_splits:
        return recorded_splits, ""
    if splits:
        return (), f"nothing was recorded: {'::'.join(splits[0])} may be read"
    return (), f"nothing was recorded: no suite of {project.root.name} has the task"
