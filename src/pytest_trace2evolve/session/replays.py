"""Recorded runs to replay: which simulations each suite gets, and which files belong to none.

Scoring whole files again: what `trace2evolve score` does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.results import ResultsFile, combine, read_results
from pytest_trace2evolve.evidence.run_folder import safe_id
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.records.evidence import Mode
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.metrics import Metrics, metrics
from pytest_trace2evolve.session.sides import (
    Scored,
    domain_of,
    expand,
    mode_of,
    origin_of,
    provenance,
    rescore,
)
from pytest_trace2evolve.worlds.registry import Worlds


@dataclass(frozen=True)
class Replayed:
    """One recorded simulation, with the task that its own file says it ran."""

    simulation: Simulation
    task: Task


@dataclass(frozen=True)
class Recorded:
    """The recorded simulations of one candidate in one domain and mode, by task id."""

    by_task: Mapping[str, list[Replayed]]
    files: tuple[ResultsFile, ...]
    notes: tuple[str, ...]


def read_replays(paths: Sequence[Path]) -> dict[Mode, Recorded]:
    """Recorded runs by domain and mode; the files that share both are one candidate's.

    Raises:
        ResultsError: a file cannot be read or trusted, names no domain, or differs from another of its
            domain and mode in what one side must agree in.
    """
    files: dict[Mode, list[ResultsFile]] = {}
    for path in expand(paths):
        file = read_results(path)
        files.setdefault(mode_of(file), []).append(file)
    return {mode: _recorded(group) for mode, group in files.items()}


def _recorded(group: Sequence[ResultsFile]) -> Recorded:
    simulations, notes = combine(group)
    origin_of(group)  # refuses files that are not of one side
    ran = {simulation.id: file.tasks[simulation.task_id] for file in group for simulation in file.simulations}
    by_task: dict[str, list[Replayed]] = {}
    for simulation in simulations:
        named = simulation.model_copy(update={"id": safe_id(simulation.id)})
        by_task.setdefault(simulation.task_id, []).append(Replayed(named, ran[simulation.id]))
    return Recorded(by_task, tuple(group), notes)


def refuse_others(recorded: Mapping[Mode, Recorded], candidate: Candidate) -> None:
    """See that a candidate is given no run of another; with an adapter, only what says whose it is.

    Raises:
        ResultsError: a file is another candidate's, or that of an earlier text of it, or says of none whose
            it is and the candidate talks with an adapter.
    """
    for file in (file for group in recorded.values() for file in group.files):
        ref = provenance(file).candidate
        if ref is None and not candidate.adapter:
            continue
        if ref is None or ref.digest != candidate.digest:
            whose = "no candidate that is known" if ref is None else f"candidate {ref.id!r}"
            if ref is not None and ref.id == candidate.id:
                whose = f"an earlier version of candidate {ref.id!r}"
            raise ResultsError(
                f"{file.path}: is of {whose}, and --t2e-replay gives candidate {candidate.id!r} only what it "
                f"said itself{', with the weights that it has' if candidate.adapter else ''}: run it live"
            )


def refuse_strays(recorded: Mapping[Mode, Recorded], suites: Sequence[Suite], *, suites_named: bool) -> None:
    """Every replayed file belongs to a selected suite, and every suite that was named gets one.

    Raises:
        ResultsError: a file's domain and mode are no selected suite's, or a named suite's are no file's.
    """
    if not recorded:
        return
    for mode, group in recorded.items():
        if mode not in {suite.mode for suite in suites}:
            files = ", ".join(str(file.path) for file in group.files)
            has = ", ".join(f"{suite.name} ({suite.mode.brief})" for suite in suites) or "none of this domain"
            mend = "; a suite with solo = true takes them" if mode.solo else ""
            raise ResultsError(f"{files}: results of domain {mode}, and the selected suites are {has}{mend}")
    for suite in suites:
        if suites_named and suite.mode not in recorded:
            raise ResultsError(
                f"suite {suite.name!r} is of domain {suite.mode}, and no --t2e-replay file is; "
                f"they hold {', '.join(mode.brief for mode in recorded)}"
            )


@dataclass(frozen=True)
class ScoredFile:
    """One results file with every simulation scored again."""

    path: Path
    domain: str
    scored: tuple[Scored, ...]
    metrics: Metrics
    notes: tuple[str, ...]


def rescore_files(
    paths: Sequence[Path], worlds: Worlds, provider: str | None, judge: Judge | None
) -> list[ScoredFile]:
    """Score files one by one; all are read before the first is scored, so that bad input is told at once.

    Raises:
        ResultsError: a file cannot be read or trusted.
        WorldError: a domain or provider is unknown.
    """
    files = [read_results(path) for path in expand(paths)]
    return [_scored(file, worlds, provider, judge) for file in files]


def _scored(file: ResultsFile, worlds: Worlds, provider: str | None, judge: Judge | None) -> ScoredFile:
    scored = rescore(file, worlds, provider, judge)
    unclear = [one.record for one in scored if one.record.note and one.record.reward is None]
    notes = [f"{len(unclear)} not scored, first {unclear[0].id!r}: {unclear[0].note}"] if unclear else []
    return ScoredFile(
        path=file.path,
        domain=domain_of(file),
        scored=tuple(scored),
        metrics=metrics(one.record for one in scored),
        notes=tuple(notes),
    )
