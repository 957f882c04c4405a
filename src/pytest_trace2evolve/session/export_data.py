"""Gathers a run's simulations for an export, without sealed traces unless their accesses are recorded."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve.evidence.results import combine_results
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.completion import Usage, usage_of
from pytest_trace2evolve.records.evidence import Provenance
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.session.evidence_sources import domain_of, file_provenance, find_run
from pytest_trace2evolve.session.ledger import record_access
from pytest_trace2evolve.session.traces import (
    files_by_suite,
    record_first_accesses,
    sealed_splits_of_task,
)


@dataclass(frozen=True)
class ExportedSuite:
    """The simulations of one suite of a run.

    Attributes:
        run, name: The names of the run and of the suite, or of the file.
        splits: The splits of each task, as far as a project here locks the suite.
        simulations: In the order of the file.
        usages: The usage of the agent in each simulation, by id.
        sealed: The tasks whose simulations have figures only, without messages.
    """

    run: str
    name: str
    origin: Provenance
    domain: str
    tasks: Mapping[str, Task]
    splits: Mapping[str, tuple[str, ...]]
    simulations: tuple[Simulation, ...]
    usages: Mapping[str, Usage]
    sealed: frozenset[str]


def exported_suites(
    run: str, project: Project | None, base_folder: Path, *, opens_sealed: bool = False
) -> list[ExportedSuite]:
    """Read the suites of a run, and record the accesses to the traces that leave.

    Args:
        run: As in `find_run`.
        opens_sealed: Whether the traces of sealed splits leave too. The ledger records each.

    Raises:
        ConfigError: no run matches, or several match.
        ResultsError: the run cannot be read.
        LedgerError: an access could not be recorded, so nothing may be exported.
    """
    path = find_run(run, project, base_folder)
    suites = []
    for name, file in files_by_suite(path, "", run).items():
        origin, domain = file_provenance(file), domain_of(file)
        simulations = combine_results([file])[0]
        trials: dict[str, list[int]] = {}
        for simulation in simulations:
            trials.setdefault(simulation.task_id, []).append(simulation.trial or 0)
        run_name = origin.run_id or path.name
        sealed: set[str] = set()
        if origin.suite is not None and (project is None or origin.suite not in project.lock.suites):
            sealed = set(trials)  # nothing here says which of its traces are sealed
        elif project is not None:
            splits = {task: sealed_splits_of_task(project, domain, task) for task in trials}
            sealed = set() if opens_sealed else {task for task in trials if splits[task]}
            for task in trials.keys() - sealed:
                for split in splits[task]:
                    record_access(project, split, domain, task, tuple(sorted(trials[task])), run_name)
            shown = {task: min(trials[task]) for task in trials if task not in sealed}
            record_first_accesses(project, domain, shown, run_name)
        lock = project.lock.suites.get(name) if project else None
        suites.append(
            ExportedSuite(
                run_name,
                name,
                origin,
                domain,
                file.tasks,
                {
                    task: tuple(
                        split for split, tasks in (lock.splits if lock else {}).items() if task in tasks
                    )
                    for task in trials
                },
                tuple(
                    simulation.model_copy(update={"messages": []})
                    if simulation.task_id in sealed
                    else simulation
                    for simulation in simulations
                ),
                {simulation.id: usage_of(simulation.trace, "assistant") for simulation in simulations},
                frozenset(sealed),
            )
        )
    return suites
