"""Recorded runs to replay: which simulations each suite gets, and which files belong to none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.results import ResultsFile, combine, read_results
from pytest_trace2evolve.evidence.store import safe_id
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.suites import Suite
from pytest_trace2evolve.workflow.sides import domain_of, expand


@dataclass(frozen=True)
class Replayed:
    """One recorded simulation, with the task that its own file says it ran."""

    simulation: Simulation
    task: Task


@dataclass(frozen=True)
class Recorded:
    """The recorded simulations of one candidate in one domain, by task id."""

    by_task: Mapping[str, list[Replayed]]
    files: tuple[ResultsFile, ...]
    notes: tuple[str, ...]


def read_replays(paths: Sequence[Path]) -> dict[str, Recorded]:
    """Recorded runs by domain; the files of one domain are one candidate's.

    Raises:
        ResultsError: a file cannot be read or trusted, or names no domain.
    """
    files: dict[str, list[ResultsFile]] = {}
    for path in expand(paths):
        file = read_results(path)
        files.setdefault(domain_of(file), []).append(file)
    return {domain: _recorded(group) for domain, group in files.items()}


def _recorded(group: Sequence[ResultsFile]) -> Recorded:
    simulations, notes = combine(group)
    ran = {simulation.id: file.tasks[simulation.task_id] for file in group for simulation in file.simulations}
    by_task: dict[str, list[Replayed]] = {}
    for simulation in simulations:
        named = simulation.model_copy(update={"id": safe_id(simulation.id)})
        by_task.setdefault(simulation.task_id, []).append(Replayed(named, ran[simulation.id]))
    return Recorded(by_task, tuple(group), notes)


def refuse_strays(recorded: Mapping[str, Recorded], suites: Sequence[Suite], *, suites_named: bool) -> None:
    """Every replayed file belongs to a selected suite, and every suite that was named gets one.

    Raises:
        ResultsError: a file's domain is no selected suite's, or a named suite's domain is no file's.
    """
    if not recorded:
        return
    for domain, group in recorded.items():
        if domain not in {suite.domain for suite in suites}:
            files = ", ".join(str(file.path) for file in group.files)
            has = ", ".join(f"{suite.name} ({suite.domain})" for suite in suites) or "none of this domain"
            raise ResultsError(f"{files}: results of domain {domain!r}, and the selected suites are {has}")
    for suite in suites:
        if suites_named and suite.domain not in recorded:
            raise ResultsError(
                f"suite {suite.name!r} is of domain {suite.domain!r}, and no --t2e-replay file is; "
                f"they hold {', '.join(recorded)}"
            )
