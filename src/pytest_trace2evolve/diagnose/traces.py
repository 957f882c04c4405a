"""Traces to learn from: the traces of runs and results files, without splits that decide or guard.

If capabilities were mined from the tasks that decide, the same scores would both choose and judge them. So
tasks of splits that decide or guard are left out. If such a split is named, the ledger records the access.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve.diagnose.behavior_features import Behavior
from pytest_trace2evolve.errors import ConfigError, name_suggestion
from pytest_trace2evolve.evidence.results import ResultsFile, combine_results, read_results
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.capability import TraceOutcome
from pytest_trace2evolve.records.evidence import Mode
from pytest_trace2evolve.scoring.metrics import is_success
from pytest_trace2evolve.session.evidence_sources import (
    ScoredSimulation,
    expand_run_folders,
    file_provenance,
    find_run,
    mode_of,
    rescore,
)
from pytest_trace2evolve.session.ledger import record_access
from pytest_trace2evolve.session.traces import splits_of_task
from pytest_trace2evolve.worlds.registry import WorldName, Worlds

SplitName = tuple[str, str]
"""The name of a suite, and the name of one of its splits."""


@dataclass(frozen=True)
class TraceSet:
    """Traces of one domain.

    Attributes:
        behaviors: The features of each trace.
        policy: The policy that the agents followed.
        notes: Notes on omitted traces and other limits.
        splits: The splits of each task; empty for a task that is in no suite of the project.
        worlds: The distinct worlds in which the runs were made.
    """

    behaviors: tuple[Behavior, ...]
    policy: str
    notes: tuple[str, ...]
    splits: Mapping[str, tuple[SplitName, ...]]
    worlds: tuple[WorldName, ...]

    @property
    def outcomes(self) -> list[TraceOutcome]:
        """The identity of each trace, and whether it passed."""
        return [behavior.outcome for behavior in self.behaviors]


def gather_traces(
    runs: Sequence[str],
    worlds: Worlds,
    *,
    project: Project | None,
    base_folder: Path,
    splits: Sequence[str] = (),
    suite: str = "",
    provider: str | None = None,
    check_world: Callable[[str, WorldName], None] | None = None,
) -> TraceSet:
    """Gather the scored traces of runs that may be learned from.

    Args:
        runs: Ids of runs or prefixes of ids, run folders, or results files.
        worlds: Opens the world of the runs.
        project: The project whose suites say which tasks are sealed; None if there is no project.
        base_folder: The folder to which paths are relative.
        splits: Splits that decide or guard to include; the accesses are recorded.
        suite: The suite to read, if runs have several.
        provider: The world's provider, for files that do not name one.
        check_world: Called with each file's name and its world before any trace is scored; raises if the
            world does not fit the purpose.

    Raises:
        ConfigError: a run or a split is unknown, several domains are mixed, or no trace is left.
        ResultsError: a file cannot be read, or a simulation occurs twice.
        LedgerError: an access could not be recorded.
    """
    files = _read_files(runs, project, base_folder, suite)
    mode = _require_single_mode(files)
    run_worlds: dict[WorldName, None] = {}
    for file in files:
        origin = file_provenance(file)
        run_worlds[provider or origin.provider, mode.domain] = None
        if check_world is not None:
            check_world(f"run {origin.run_id or file.path.name}", (provider or origin.provider, mode.domain))
    _check_splits(splits, project)
    _check_suites_are_locked(project, mode)
    combine_results(files)  # rejects a duplicate simulation
    trace_filter = _TraceFilter(project, mode, splits)
    for file in files:
        name = file_provenance(file).run_id or os.path.relpath(file.path, base_folder)
        for scored_trace in rescore(file, worlds, provider):
            trace_filter.add(name, scored_trace)
    notes = trace_filter.notes()
    if project is None:
        notes.append("no project was found that says which tasks decide, so all traces are read")
    notes += _agent_notes(files)
    scored_traces = [
        (run, scored_trace)
        for run, scored_trace in trace_filter.traces
        if scored_trace.record.reward is not None
    ]
    if unscored_count := len(trace_filter.traces) - len(scored_traces):
        notes.append(f"{unscored_count} traces have no reward and are left out")
    if not scored_traces:
        reasons = f": {'; '.join(notes)}" if notes else ""
        raise ConfigError(f"no trace to learn from in {', '.join(runs)}{reasons}")
    trace_filter.record_accesses(scored_traces)
    world = worlds.open(next(iter(run_worlds))[0], mode.domain)
    behaviors = tuple(
        Behavior(
            scored_trace.simulation,
            scored_trace.task,
            world,
            passed=is_success(scored_trace.record.reward or 0.0),
            findings=scored_trace.findings,
            run=run,
        )
        for run, scored_trace in scored_traces
    )
    return TraceSet(
        behaviors, world.policy(solo=mode.solo), tuple(notes), trace_filter.splits, tuple(run_worlds)
    )


def _read_files(
    runs: Sequence[str], project: Project | None, base_folder: Path, suite: str
) -> list[ResultsFile]:
    paths = [find_run(run, project, base_folder) for run in runs]
    files = [read_results(path) for path in expand_run_folders(paths)]
    if not suite:
        return files
    names = [file_provenance(file).suite or file.path.name for file in files]
    if suite not in names:
        raise ConfigError(
            f"--suite {suite}: {', '.join(runs)} has no such suite; {name_suggestion(suite, {*names})}"
        )
    return [file for file, name in zip(files, names, strict=True) if name == suite]


def _require_single_mode(files: Sequence[ResultsFile]) -> Mode:
    modes = {mode_of(file): file for file in files}
    if not modes:
        raise ConfigError("no results found: a run folder must contain results.json")
    if len(modes) > 1:
        modes_text = ", ".join(sorted(f"{mode} ({file.path.name})" for mode, file in modes.items()))
        raise ConfigError(f"several domains at once: {modes_text}; name results of one domain")
    return next(iter(modes))


def _check_splits(splits: Sequence[str], project: Project | None) -> None:
    for name in splits:
        if project is None:
            raise ConfigError(f"--include-sealed {name}: no project was found that has splits; pass --root")
        if name not in project.splits:
            raise ConfigError(
                f"--include-sealed {name}: no such split; {name_suggestion(name, project.splits)}"
            )


def _check_suites_are_locked(project: Project | None, mode: Mode) -> None:
    """Require every suite of the domain to be locked, because only the lock says which tasks decide."""
    if project is None:
        return
    for name in project.suite_names:
        if project.suite(name).domain == mode.domain and name not in project.lock.suites:
            raise ConfigError(
                f"suite {name!r} of domain {mode.domain} is not in {project.lock_path}, which says which "
                "tasks decide; run 'trace2evolve lock'"
            )


def _agent_notes(files: Sequence[ResultsFile]) -> list[str]:
    """A note if the runs have several agents or candidates, which could explain a contrast."""
    agents = {
        (origin.agent.model, origin.candidate.id if origin.candidate else None)
        for origin in map(file_provenance, files)
    }
    if len(agents) < 2:
        return []
    agent_names = sorted(" as ".join(part or "?" for part in agent) for agent in agents)
    return [
        (
            f"traces of several agents ({', '.join(agent_names)}): "
            "a contrast may come from the agents, not from a capability"
        )
    ]


class _TraceFilter:
    """Collects the traces that may be read, each with the name of its run, and the splits of their tasks."""

    def __init__(self, project: Project | None, mode: Mode, included_splits: Sequence[str]) -> None:
        self._project = project
        self._domain = mode.domain
        self._included_splits = included_splits
        self._omitted_counts: Counter[str] = Counter()
        self.traces: list[tuple[str, ScoredSimulation]] = []
        self.splits: dict[str, tuple[SplitName, ...]] = {}

    def add(self, run: str, scored_trace: ScoredSimulation) -> None:
        """Keep a trace unless its task is in a split that decides or guards and was not named."""
        task = scored_trace.simulation.task_id
        if task not in self.splits:
            task_splits = (
                splits_of_task(self._project, self._domain, task) if self._project is not None else ()
            )
            self.splits[task] = tuple(task_splits)
        omitted_splits = [
            split for _, split in self._deciding_splits(task) if split not in self._included_splits
        ]
        if omitted_splits:
            self._omitted_counts[omitted_splits[0]] += 1
        else:
            self.traces.append((run, scored_trace))

    def _deciding_splits(self, task: str) -> list[SplitName]:
        """The splits of a task that decide or guard."""
        if self._project is None:
            return []
        splits = self._project.splits
        return [
            split_name for split_name in self.splits[task] if splits[split_name[1]].role is not Role.REPORT
        ]

    def notes(self) -> list[str]:
        """Say which traces were omitted, and why."""
        return [
            f"{count} traces of split {split!r} are left out: "
            "the split decides or guards, so nothing may be learned from it "
            f"(--include-sealed {split} reads them, and the ledger records it)"
            for split, count in self._omitted_counts.items()
        ]

    def record_accesses(self, read_traces: Sequence[tuple[str, ScoredSimulation]]) -> None:
        """Record accesses to tasks of splits that decide or guard, before any of their content is shown."""
        trials: dict[tuple[str, str], set[int]] = {}
        for run, scored_trace in read_traces:
            trials.setdefault((run, scored_trace.simulation.task_id), set()).add(scored_trace.record.trial)
        for (run, task), seen_trials in trials.items():
            for split_name in self._deciding_splits(task):
                assert self._project is not None
                record_access(self._project, split_name, self._domain, task, tuple(sorted(seen_trials)), run)
