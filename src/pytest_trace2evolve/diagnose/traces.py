"""Traces to learn from: those of runs and results files, without those of sealed splits.

Capabilities that were mined from the tasks that decide would be chosen by the very scores that they are held
against. So tasks of such splits are left out; who names one all the same has that written into the ledger.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_trace2evolve.diagnose.behavior_features import Conduct, read_conduct
from pytest_trace2evolve.errors import ConfigError, nearest
from pytest_trace2evolve.evidence.results import ResultsFile, combine, read_results
from pytest_trace2evolve.gate.columns import SUCCESS
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.capability import Outcome
from pytest_trace2evolve.records.evidence import Mode
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.session.sources import ScoredSimulation, expand, mode_of, provenance, rescore
from pytest_trace2evolve.session.traces import find_run, record_access, splits_with
from pytest_trace2evolve.worlds.registry import WorldName, Worlds


@dataclass(frozen=True)
class Gathered:
    """Traces of one domain.

    Attributes:
        conducts: What was done in each.
        world: The domain.
        policy: The policy that the agents had.
        notes: What was left out, and why.
        splits: The splits that they are of, by task; empty for tasks that no suite of the project holds.
        ran_in: The worlds in which the runs were made, each once.
    """

    conducts: tuple[Conduct, ...]
    world: World
    policy: str
    notes: tuple[str, ...]
    splits: Mapping[str, tuple[tuple[str, str], ...]]
    ran_in: tuple[WorldName, ...] = ()

    @property
    def outcomes(self) -> list[Outcome]:
        """The traces, with whether they passed."""
        return [
            Outcome(
                trace=one.simulation.id,
                run=one.run,
                task=one.task.id,
                trial=one.simulation.trial or 0,
                passed=one.passed,
            )
            for one in self.conducts
        ]


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
) -> Gathered:
    """The scored traces of runs that may be learned from.

    Args:
        runs: Ids of runs or how they begin, run folders, results files.
        worlds: Where domains are opened.
        project: Whose suites say which tasks are sealed; None where there is none.
        here: The folder that paths start from.
        splits: Splits to take beside those that may be read; looks at sealed ones are recorded.
        suite: Which suite of runs over several.
        provider: The world's provider, for files that do not say.
        check_world: Gets each file's name and its world before any trace is scored; raises if the world does
            not fit the purpose.

    Raises:
        ConfigError: a run or a split is unknown, several domains are mixed, or nothing is left.
        ResultsError: a file cannot be read, or a simulation is named twice.
        LedgerError: a look could not be recorded.
    """
    files = _files(runs, project, here, suite)
    mode = _one_mode(files)
    ran_in: dict[WorldName, None] = {}
    for file in files:
        origin = provenance(file)
        ran_in[provider or origin.provider, mode.domain] = None
        if check_world is not None:
            check_world(f"run {origin.run_id or file.path.name}", (provider or origin.provider, mode.domain))
    _known(splits, project)
    _locked(project, mode)
    scored = _scored(files, worlds, provider, here)
    kept, left_out, held = _readable(scored, mode, project, splits)
    notes = [
        f"{count} traces of split {name!r} are left out: {why}" for (name, why), count in left_out.items()
    ]
    if project is None:
        notes.append("no project here says which tasks decide: all traces are read")
    notes += _several(files)
    measured = [(run, one) for run, one in kept if one.record.reward is not None]
    if unclear := len(kept) - len(measured):
        notes.append(f"{unclear} traces have no reward and are left out")
    if not measured:
        told = f": {'; '.join(notes)}" if notes else ""
        raise ConfigError(f"no trace to learn from in {', '.join(runs)}{told}")
    _record_looks(measured, held, mode, project)
    origin = provenance(files[0])
    world = worlds.open(provider or origin.provider, mode.domain)
    conducts = tuple(
        read_conduct(
            one.simulation,
            one.task,
            one.score,
            world,
            passed=one.record.reward is not None and one.record.reward >= SUCCESS,
            found=one.found,
            run=run,
        )
        for run, one in measured
    )
    return Gathered(conducts, world, world.policy(solo=mode.solo), tuple(notes), held, tuple(ran_in))


def _files(runs: Sequence[str], project: Project | None, here: Path, suite: str) -> list[ResultsFile]:
    paths = [find_run(run, project, here) for run in runs]
    files = [read_results(path) for path in expand(paths)]
    if not suite:
        return files
    named = {provenance(file).suite or file.path.name for file in files}
    chosen = [file for file in files if (provenance(file).suite or file.path.name) == suite]
    if not chosen:
        raise ConfigError(f"--suite {suite}: {', '.join(runs)} holds no such suite; {nearest(suite, named)}")
    return chosen


def _one_mode(files: Sequence[ResultsFile]) -> Mode:
    modes = {mode_of(file): file for file in files}
    if not modes:
        raise ConfigError("no results in what was named: a run folder holds results.json")
    if len(modes) > 1:
        named = ", ".join(sorted(f"{mode} ({file.path.name})" for mode, file in modes.items()))
        raise ConfigError(f"several domains at once: {named}; name results of one domain")
    return next(iter(modes))


def _known(splits: Sequence[str], project: Project | None) -> None:
    known = project.splits if project is not None else {}
    for name in splits:
        if project is None:
            raise ConfigError(f"--split {name}: no project here has splits; give --root")
        if name not in known:
            raise ConfigError(f"--split {name}: no such split; {nearest(name, known)}")


def _locked(project: Project | None, mode: Mode) -> None:
    """Every suite of the domain must be locked: nothing else says which of its tasks decide."""
    if project is None:
        return
    for name in project.suite_names:
        if project.suite(name).domain == mode.domain and name not in project.lock.suites:
            raise ConfigError(
                f"suite {name!r} of domain {mode.domain} is not in {project.lock_path}, which says what "
                "decides; run 'trace2evolve lock'"
            )


def _several(files: Sequence[ResultsFile]) -> list[str]:
    """A note where the runs are of several agents or candidates: then those may be what is contrasted."""
    sides = {(one.agent.model, one.candidate.id if one.candidate else None) for one in map(provenance, files)}
    if len(sides) < 2:
        return []
    named = sorted(" as ".join(part or "?" for part in side) for side in sides)
    return [f"traces of several agents ({', '.join(named)}): a contrast may be theirs, not a capability's"]


def _scored(
    files: Sequence[ResultsFile], worlds: Worlds, provider: str | None, here: Path
) -> dict[str, list[ScoredSimulation]]:
    """The simulations by the name of their run, scored again."""
    combine(files)  # refuses a simulation that is there twice
    scored: dict[str, list[ScoredSimulation]] = {}
    for file in files:
        name = provenance(file).run_id or os.path.relpath(file.path, here)
        scored.setdefault(name, []).extend(rescore(file, worlds, provider))
    return scored


def _readable(
    scored: Mapping[str, Sequence[ScoredSimulation]],
    mode: Mode,
    project: Project | None,
    splits: Sequence[str],
) -> tuple[
    list[tuple[str, ScoredSimulation]], Counter[tuple[str, str]], dict[str, tuple[tuple[str, str], ...]]
]:
    """What may be read; what is left out, by split and reason; and the splits that hold each task."""
    kept: list[tuple[str, ScoredSimulation]] = []
    left_out: Counter[tuple[str, str]] = Counter()
    held: dict[str, tuple[tuple[str, str], ...]] = {}
    for run, one in ((run, one) for run, several in scored.items() for one in several):
        task = one.simulation.task_id
        if task not in held:
            held[task] = tuple(splits_with(project, mode.domain, task)) if project is not None else ()
        sealed = [
            split
            for _, split in held[task]
            if project is not None and project.splits[split].role is not Role.REPORT and split not in splits
        ]
        if sealed:
            left_out[sealed[0], "it decides or guards, and is not learned from"] += 1
        else:
            kept.append((run, one))
    return kept, left_out, held


def _record_looks(
    read: Sequence[tuple[str, ScoredSimulation]],
    held: Mapping[str, tuple[tuple[str, str], ...]],
    mode: Mode,
    project: Project | None,
) -> None:
    """Write down which sealed tasks are read, before anything of them is told."""
    trials: dict[tuple[str, str], set[int]] = {}
    for run, one in read:
        trials.setdefault((run, one.simulation.task_id), set()).add(one.record.trial)
    for (run, task), seen in trials.items():
        for place in held[task]:
            if project is not None and project.splits[place[1]].role is not Role.REPORT:
                record_access(project, place, mode.domain, task, tuple(sorted(seen)), run)
