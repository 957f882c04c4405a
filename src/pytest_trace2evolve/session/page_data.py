"""Gathers what a report page or an export shows of a run or a comparison.

Traces of sealed splits are read only for an export that asks for them. Before a trace of a task is shown, the
access is recorded if the ledger records accesses to its split.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import unified_diff
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_trace2evolve.errors import Trace2EvolveError
from pytest_trace2evolve.evidence.baselines import read_evidence
from pytest_trace2evolve.evidence.ledger import evidence_file_path
from pytest_trace2evolve.evidence.results import combine_results, decode_results, read_results
from pytest_trace2evolve.evidence.run_folder import RunStore
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.completion import Usage, usage_of
from pytest_trace2evolve.records.evidence import CandidateRef, Evidence, Provenance, SimulationEvidence
from pytest_trace2evolve.records.failure import Failure
from pytest_trace2evolve.records.rules import Finding
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.records.verdict import RunSummary
from pytest_trace2evolve.scoring.metrics import is_success
from pytest_trace2evolve.session.compare import Comparison
from pytest_trace2evolve.session.evidence_sources import domain_of, file_provenance, find_run
from pytest_trace2evolve.session.ledger import ProjectLedger, SplitHistory, record_access, split_histories
from pytest_trace2evolve.session.traces import (
    FindWorld,
    broken_rules,
    explain,
    files_by_suite,
    open_world,
    record_first_accesses,
    sealed_splits_of_task,
)
from pytest_trace2evolve.utils.git import git_text
from pytest_trace2evolve.worlds.registry import Worlds

ReadTrace = Callable[[str], Simulation | None]
"""Returns the simulation with an id; None if its trace is not at hand."""


@dataclass(frozen=True)
class PageTrace:
    """A trace that may be shown, with the rules that it breaks and the explanation of its failure."""

    record: SimulationEvidence
    simulation: Simulation
    findings: tuple[Finding, ...] = ()
    failure: Failure | None = None


@dataclass(frozen=True)
class PageSuite:
    """One suite of a page.

    Attributes:
        name: The suite's name; empty for a comparison of files.
        baseline, candidate: The evidence of both sides; `baseline` is None if there is no baseline.
        splits: The tasks of each split; empty if no project here locks the suite.
        tags: The families and tags of the tasks.
        sealed: The tasks whose traces must not be shown.
        traces: By task, the traces of the baseline and of the candidate. Tasks that pass every trial on both
            sides and break no rule have none.
    """

    name: str
    baseline: Evidence | None
    candidate: Evidence
    splits: Mapping[str, frozenset[str]] = field(default_factory=dict)
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sealed: frozenset[str] = frozenset()
    traces: Mapping[str, tuple[list[PageTrace], list[PageTrace]]] = field(default_factory=dict)


@dataclass(frozen=True)
class PageFacts:
    """The content of a page besides the verdicts.

    Attributes:
        changes: What was changed: a title and the lines of a unified difference each.
        lineage: The candidate and its ancestors, nearest first.
        histories: The history of each split that the run judged.
    """

    suites: tuple[PageSuite, ...]
    changes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    lineage: tuple[Candidate, ...] = ()
    histories: tuple[SplitHistory, ...] = ()


def run_facts(
    folder: Path,
    summary: RunSummary,
    project: Project,
    worlds: Worlds,
    failures: Mapping[tuple[str, str], Failure] | None = None,
) -> PageFacts:
    """Read the content of the page of a gated run from its folder and its project.

    Args:
        failures: Explanations that are known already, by suite and task.

    Raises:
        ResultsError: a file of the folder is missing or damaged.
        LedgerError: an access to a trace could not be recorded.
    """
    suites = _run_suites(folder, summary, project, worlds, failures or {})
    sides = [(suite.baseline.provenance, suite.candidate.provenance) for suite in suites if suite.baseline]
    ledger = ProjectLedger(project)
    judged = [
        (suite.name, verdict.split) for suite in summary.suites for verdict in suite.verdicts if verdict.split
    ]
    try:
        lineage = project.candidates.lineage(summary.candidate)
        histories = [history for name in judged for history in split_histories(project, ledger, *name)]
    except Trace2EvolveError:  # the run is stored, but the candidates or the lock have changed since
        lineage, histories = [], []
    changed_code = dict.fromkeys(
        name for suite in summary.suites if suite.compared for name in suite.compared.changed_code
    )
    return PageFacts(
        tuple(suites),
        tuple(_changes(project, *sides[0], list(changed_code))) if sides else (),
        tuple(lineage),
        tuple(histories),
    )


def _changes(
    project: Project, old: Provenance, new: Provenance, changed_code: Sequence[str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the differences of the candidates' texts and settings, and of edited code."""
    texts = [_candidate_texts(project, side.candidate) for side in (old, new)]
    for title in dict.fromkeys((*texts[0], *texts[1])) if all(texts) else ():
        before, after = (side.get(title, "").splitlines() for side in texts)
        if before != after:
            yield title, tuple(unified_diff(before, after, "baseline", "candidate", lineterm="", n=2))
    for name in changed_code:
        text = git_text(project.root, "diff", "HEAD", "--", name) if (project.root / name).is_file() else None
        lines = (text or "").splitlines()
        start = next((index for index, line in enumerate(lines) if line.startswith("---")), len(lines))
        yield f"code: {name}", tuple(lines[start:])


def _candidate_texts(project: Project, ref: CandidateRef | None) -> dict[str, str]:
    """Return a candidate's texts by title; empty if its file is missing or has changed since the run."""
    try:
        candidate = project.candidates[ref.id] if ref is not None else None
    except (KeyError, Trace2EvolveError):
        return {}
    if candidate is None or ref is None or candidate.digest != ref.digest:
        return {}
    settings = {
        name: json.dumps(value, ensure_ascii=False, indent=1) for name, value in candidate.settings.items()
    }
    return {"instruction": candidate.instruction, **settings, "prompt": candidate.prompt}


def _run_suites(
    folder: Path,
    summary: RunSummary,
    project: Project,
    worlds: Worlds,
    failures: Mapping[tuple[str, str], Failure],
) -> list[PageSuite]:
    suites = []
    # A stranger's summary must not turn a name into a path.
    for suite in (suite for suite in summary.suites if suite.name in project.lock.suites):
        baseline_path = folder / "baselines" / f"{suite.name}.json"
        candidate = read_evidence(folder / evidence_file_path(suite.name))
        baseline = read_evidence(baseline_path) if baseline_path.exists() else None
        part = _suite_folder(folder, suite.name)
        header = decode_results(part / "results.json")
        tasks = _read_tasks(header.get("tasks") if isinstance(header, dict) else None)
        old_run = None if baseline is None else baseline.provenance.run_id
        old_part = _suite_folder(project.runs_folder / old_run, suite.name) if old_run else None
        reads = (
            (lambda _: None) if old_part is None else RunStore(old_part).read_simulation,
            RunStore(part).read_simulation,
        )
        known = {task: failure for (name, task), failure in failures.items() if name == suite.name}
        suites.append(page_suite(suite.name, baseline, candidate, tasks, reads, project, worlds, known))
    return suites


def _suite_folder(folder: Path, suite: str) -> Path:
    return folder / suite if (folder / suite / "results.json").exists() else folder


def compared_facts(comparison: Comparison, project: Project | None, worlds: Worlds) -> PageFacts:
    """Return the content of the page of a comparison that keeps its evidence, with one suite.

    Raises:
        LedgerError: an access to a trace could not be recorded.
    """
    assert comparison.sides is not None
    old, new = comparison.sides
    assert old.evidence is not None
    assert new.evidence is not None
    files = [[read_results(path) for path in side.files] for side in (old, new)]
    tasks = {task.id: task for side in files for file in side for task in file.tasks.values()}
    simulations: list[dict[str, Simulation]] = [
        {simulation.id: simulation for file in side for simulation in file.simulations} for side in files
    ]
    reads = (simulations[0].get, simulations[1].get)
    name = comparison.verdict.suite or ""
    suite = page_suite(name, old.evidence, new.evidence, tasks, reads, project, worlds)
    changes = () if project is None else tuple(_changes(project, old.provenance, new.provenance, ()))
    return PageFacts((suite,), changes)


def page_suite(
    name: str,
    baseline: Evidence | None,
    candidate: Evidence,
    tasks: Mapping[str, Task],
    reads: tuple[ReadTrace, ReadTrace],
    project: Project | None,
    worlds: Worlds,
    failures: Mapping[str, Failure] | None = None,
) -> PageSuite:
    """Combine the evidence of both sides with the splits of the project and the traces that may be shown.

    Args:
        tasks: The recorded tasks, as far as they are known.
        reads: Reads a trace of the baseline, and of the candidate.
        failures: Explanations of the candidate's trials that are known already, by task.

    Raises:
        LedgerError: an access to a trace could not be recorded.
    """
    lock = None if project is None else project.lock.suites.get(name)
    records: dict[str, tuple[list[SimulationEvidence], list[SimulationEvidence]]] = {}
    for index, side in enumerate((baseline, candidate)):
        for record in () if side is None else side.simulations:
            records.setdefault(record.task_id, ([], []))[index].append(record)
    origin = candidate.provenance
    sealed = {task for task in records if project and sealed_splits_of_task(project, origin.domain, task)}
    # Without the project that locks the suite, nothing says which of its traces are sealed.
    is_known = all(
        side is None
        or side.provenance.suite is None
        or (project and side.provenance.suite in project.lock.suites)
        for side in (baseline, candidate)
    )
    if not is_known:
        sealed = set(records)
    find_world = cache(lambda: open_world(origin, project, worlds))  # few pages need it, and it takes time
    traces = {
        task: shown
        for task, sides in records.items()
        if task not in sealed
        and any(
            not is_success(record.reward or 0.0) or any((record.invariants or {}).values())
            for record in (*sides[0], *sides[1])
        )
        if any(shown := _read_traces(sides, reads, tasks.get(task), find_world, (failures or {}).get(task)))
    }
    if project is not None:
        trials = {task: (new or old)[0].record.trial for task, (old, new) in traces.items()}
        record_first_accesses(project, origin.domain, trials, origin.run_id or "comparison")
    return PageSuite(
        name,
        baseline,
        candidate,
        {} if lock is None else {split: frozenset(names) for split, names in lock.splits.items()},
        {task.id: task.tags for task in tasks.values()},
        frozenset(sealed),
        traces,
    )


def _read_traces(
    sides: tuple[Sequence[SimulationEvidence], Sequence[SimulationEvidence]],
    reads: tuple[ReadTrace, ReadTrace],
    task: Task | None,
    find_world: FindWorld,
    known_failure: Failure | None,
) -> tuple[list[PageTrace], list[PageTrace]]:
    """Read the traces of a task, and explain the candidate's first failed trial, unless one is explained."""
    shown: tuple[list[PageTrace], list[PageTrace]] = [], []
    has_explanation = known_failure is not None
    for index, (records, read) in enumerate(zip(sides, reads, strict=True)):
        for record in records:
            if (simulation := read(record.id)) is None:
                continue
            failure = None
            has_failed = record.reward is not None and not is_success(record.reward)
            if index == 1 and not has_explanation and has_failed:
                failure = explain(simulation, task, find_world)
                has_explanation = failure is not None
            elif index == 1 and known_failure is not None and record.trial == known_failure.trial:
                failure = known_failure
            has_findings = any((record.invariants or {}).values())
            findings = broken_rules(simulation, task, find_world) if has_findings else ()
            shown[index].append(PageTrace(record, simulation, findings, failure))
    return shown


def _read_tasks(values: Any) -> dict[str, Task]:
    """Return the tasks of a results file, as far as they can be read."""
    tasks = {}
    for value in values if isinstance(values, list) else ():
        try:
            task = Task.model_validate_json(json.dumps(value))
        except (ValidationError, ValueError):
            continue
        tasks[task.id] = task
    return tasks


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
