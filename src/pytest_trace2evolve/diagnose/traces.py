"""Traces to learn from: the traces of runs and results files, without sealed splits.

If capabilities were mined from the tasks that decide, the scores that judge them would also have chosen them.
So tasks of sealed splits are left out. If such a split is named explicitly, the ledger records the access.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve.diagnose.behavior_features import Behavior
from pytest_trace2evolve.errors import ConfigError, nearest
from pytest_trace2evolve.evidence.results import ResultsFile, combine, read_results
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.capability import Outcome
from pytest_trace2evolve.records.evidence import Mode
from pytest_trace2evolve.scoring.metrics import succeeded
from pytest_trace2evolve.session.evidence_sources import (
    ScoredSimulation,
    expand,
    mode_of,
    provenance,
    rescore,
)
from pytest_trace2evolve.session.ledger import record_access
from pytest_trace2evolve.session.traces import find_run, splits_with
from pytest_trace2evolve.worlds.registry import WorldName, Worlds

SplitName = tuple[str, str]
"""A suite, and one of its splits."""


@dataclass(frozen=True)
class TraceSet:
    """Traces of one domain.

    Attributes:
        behaviors: The features of each trace.
        policy: The policy that the agents followed.
        notes: The omissions, and their reasons.
        splits: The splits of each task; empty for a task that is in no suite of the project.
        ran_in: The distinct worlds in which the runs were made.
    """

    behaviors: tuple[Behavior, ...]
    policy: str
    notes: tuple[str, ...]
    splits: Mapping[str, tuple[SplitName, ...]]
    ran_in: tuple[WorldName, ...]

    @property
    def outcomes(self) -> list[Outcome]:
        """The identity of each trace, and whether it passed."""
        return [behavior.outcome for behavior in self.behaviors]


def gather(
    runs: Sequence[str],
    worlds: Worlds,
    *,
    project: Project | None,
    here: Path,
    splits: Sequence[str] = (),
    suite: str = "",
    provider: str | None = None,
    check_world: Callable[[str, WorldName], None] | None = None,
) -> TraceSet:
    """Gather the scored traces of runs that may be learned from.

    Args:
        runs: Ids of runs or prefixes of ids, run folders, or results files.
        worlds: Opens the domain of the runs.
        project: The project whose suites say which tasks are sealed; None if there is no project.
        here: The folder to which paths are relative.
        splits: Sealed splits to include; the accesses are recorded.
        suite: The suite to read, if runs have several.
        provider: The world's provider, for files that do not name one.
        check_world: Called with each file's name and its world before any trace is scored; raises if the
            world does not fit the purpose.

    Raises:
        ConfigError: a run or a split is unknown, several domains are mixed, or nothing is left.
        ResultsError: a file cannot be read, or a simulation is named twice.
        LedgerError: an access could not be recorded.
    """
    files = _files(runs, project, here, suite)
    mode = _single_mode(files)
    ran_in: dict[WorldName, None] = {}
    for file in files:
        origin = provenance(file)
        ran_in[provider or origin.provider, mode.domain] = None
        if check_world is not None:
            check_world(f"run {origin.run_id or file.path.name}", (provider or origin.provider, mode.domain))
    _check_splits(splits, project)
    _check_locked(project, mode)
    combine(files)  # rejects a duplicate simulation
    readable = _Readable(project, mode, splits)
    for file in files:
        name = provenance(file).run_id or os.path.relpath(file.path, here)
        for scored in rescore(file, worlds, provider):
            readable.add(name, scored)
    notes = readable.notes()
    if project is None:
        notes.append("no project here says which tasks decide: all traces are read")
    notes += _agents_note(files)
    measured = [(run, scored) for run, scored in readable.traces if scored.record.reward is not None]
    if unclear := len(readable.traces) - len(measured):
        notes.append(f"{unclear} traces have no reward and are left out")
    if not measured:
        reasons = f": {'; '.join(notes)}" if notes else ""
        raise ConfigError(f"no trace to learn from in {', '.join(runs)}{reasons}")
    readable.record_accesses(measured)
    world = worlds.open(next(iter(ran_in))[0], mode.domain)
    behaviors = tuple(
        Behavior(
            scored.simulation,
            scored.task,
            world,
            passed=succeeded(scored.record.reward or 0.0),
            findings=scored.found,
            run=run,
        )
        for run, scored in measured
    )
    return TraceSet(behaviors, world.policy(solo=mode.solo), tuple(notes), readable.splits, tuple(ran_in))


def _files(runs: Sequence[str], project: Project | None, here: Path, suite: str) -> list[ResultsFile]:
    paths = [find_run(run, project, here) for run in runs]
    files = [read_results(path) for path in expand(paths)]
    if not suite:
        return files
    names = [provenance(file).suite or file.path.name for file in files]
    if suite not in names:
        raise ConfigError(
            f"--suite {suite}: {', '.join(runs)} holds no such suite; {nearest(suite, {*names})}"
        )
    return [file for file, name in zip(files, names, strict=True) if name == suite]


def _single_mode(files: Sequence[ResultsFile]) -> Mode:
    modes = {mode_of(file): file for file in files}
    if not modes:
        raise ConfigError("no results in what was named: a run folder holds results.json")
    if len(modes) > 1:
        named = ", ".join(sorted(f"{mode} ({file.path.name})" for mode, file in modes.items()))
        raise ConfigError(f"several domains at once: {named}; name results of one domain")
    return next(iter(modes))


def _check_splits(splits: Sequence[str], project: Project | None) -> None:
    for name in splits:
        if project is None:
            raise ConfigError(f"--include-sealed {name}: no project here has splits; give --root")
        if name not in project.splits:
            raise ConfigError(f"--include-sealed {name}: no such split; {nearest(name, project.splits)}")


def _check_locked(project: Project | None, mode: Mode) -> None:
    """Require a lock of every suite of the domain, because only the lock says which tasks decide."""
    if project is None:
        return
    for name in project.suite_names:
        if project.suite(name).domain == mode.domain and name not in project.lock.suites:
            raise ConfigError(
                f"suite {name!r} of domain {mode.domain} is not in {project.lock_path}, which says what "
                "decides; run 'trace2evolve lock'"
            )


def _agents_note(files: Sequence[ResultsFile]) -> list[str]:
    """A note if the runs have several agents or candidates, which could explain a contrast."""
    sides = {
        (origin.agent.model, origin.candidate.id if origin.candidate else None)
        for origin in map(provenance, files)
    }
    if len(sides) < 2:
        return []
    named = sorted(" as ".join(part or "?" for part in side) for side in sides)
    return [f"traces of several agents ({', '.join(named)}): a contrast may be theirs, not a capability's"]


class _Readable:
    """The traces that may be read, each with the name of its run, and the splits of the tasks."""

    def __init__(self, project: Project | None, mode: Mode, named: Sequence[str]) -> None:
        self._project = project
        self._domain = mode.domain
        self._named = named
        self._left_out: Counter[str] = Counter()
        self.traces: list[tuple[str, ScoredSimulation]] = []
        self.splits: dict[str, tuple[SplitName, ...]] = {}

    def add(self, run: str, scored: ScoredSimulation) -> None:
        """Keep a trace unless its task is in a sealed split that was not named."""
        task = scored.simulation.task_id
        if task not in self.splits:
            found = splits_with(self._project, self._domain, task) if self._project is not None else ()
            self.splits[task] = tuple(found)
        sealed = [split for _, split in self._sealed(task) if split not in self._named]
        if sealed:
            self._left_out[sealed[0]] += 1
        else:
            self.traces.append((run, scored))

    def _sealed(self, task: str) -> list[SplitName]:
        """The splits of a task that decide or guard."""
        if self._project is None:
            return []
        splits = self._project.splits
        return [place for place in self.splits[task] if splits[place[1]].role is not Role.REPORT]

    def notes(self) -> list[str]:
        """The omissions, and their reasons."""
        return [
            f"{count} traces of split {split!r} are left out: it decides or guards, and is not learned from"
            for split, count in self._left_out.items()
        ]

    def record_accesses(self, read: Sequence[tuple[str, ScoredSimulation]]) -> None:
        """Record accesses to sealed tasks in the ledger, before any of their content is shown."""
        trials: dict[tuple[str, str], set[int]] = {}
        for run, scored in read:
            trials.setdefault((run, scored.simulation.task_id), set()).add(scored.record.trial)
        for (run, task), seen in trials.items():
            for place in self._sealed(task):
                assert self._project is not None
                record_access(self._project, place, self._domain, task, tuple(sorted(seen)), run)
