"""What a suite's candidate is compared with: a saved baseline, a results file, or an ancestor's baseline."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pytest_trace2evolve.candidates import Candidate
from pytest_trace2evolve.errors import ConfigError, ResultsError
from pytest_trace2evolve.evidence.baselines import evidence_digest, read_evidence
from pytest_trace2evolve.gate.comparable import lock_differences
from pytest_trace2evolve.gate.trials import Trials
from pytest_trace2evolve.records.evidence import Evidence, SimulationEvidence
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.workflow.locked import LockedSuite, told
from pytest_trace2evolve.workflow.project import Project
from pytest_trace2evolve.workflow.recorded.sides import load_sides, only
from pytest_trace2evolve.worlds.registry import Worlds


@dataclass(frozen=True)
class Baseline:
    """What a suite's candidate is compared with.

    Attributes:
        name: The name it was saved under, or that of the file.
        evidence: Its simulations of the suite's tasks.
        path: The file it was read from; None on a worker.
        whole: All that the file holds, where it is a baseline of ours.
        saved: Whether it is one of the project's saved baselines.
        files: The results files that it was scored from, each with the run that it names (empty if none).
    """

    name: str
    evidence: Evidence
    path: Path | None = None
    whole: Evidence | None = None
    saved: bool = False
    files: tuple[tuple[Path, str], ...] = ()

    @cached_property
    def digest(self) -> str:
        """Digest of the file's evidence, by which what replaces it names it."""
        return evidence_digest(self.whole or self.evidence)

    @cached_property
    def failing(self) -> frozenset[str]:
        """The tasks that the baseline ran and failed."""
        return frozenset(task_id for task_id, trials in self._by_task.items() if trials.passes is False)

    def trials(self, task_id: str, digest: str) -> Trials | None:
        """The baseline's trials of a task; None where it has none that ran this content and have a reward."""
        trials = self._by_task.get(task_id)
        if trials is None or not trials.measured or trials.records[0].task_digest != digest:
            return None
        return trials

    @cached_property
    def _by_task(self) -> dict[str, Trials]:
        by_task: dict[str, list[SimulationEvidence]] = {}
        for record in self.evidence.simulations:
            by_task.setdefault(record.task_id, []).append(record)
        return {task_id: Trials(tuple(records)) for task_id, records in by_task.items()}


Found = tuple[dict[str, Baseline], tuple[str, ...]]
"""Baselines by suite, and notes on what was renumbered."""


def find_baselines(
    chosen: str | None,
    suites: Sequence[LockedSuite],
    project: Project,
    lineage: Sequence[Candidate],
    worlds: Worlds,
    *,
    here: Path,
    judge: Judge | None = None,
) -> Found:
    """The baseline of each suite that has one.

    Args:
        chosen: A path (relative to `here`), or the name of a saved baseline; None takes the nearest
            ancestor's.
        suites: The suites of the run.
        project: Where saved baselines lie.
        lineage: The candidate and its ancestors.
        worlds: Opens the worlds that results files are scored on.
        here: The folder that the user stands in.
        judge: Judge of natural-language assertions.

    Raises:
        ConfigError: `chosen` is neither a path nor a saved baseline of any suite.
        ResultsError: a baseline is damaged, or of another suite, domain or lock.
    """
    if chosen is None:
        return _inherited(suites, project, lineage), ()
    if is_path(here / chosen):
        return _from_path(here / chosen, suites, worlds, judge)
    paths = {one.name: project.baseline_path(one.name, chosen) for one in suites}
    found = {
        one.name: _checked(one, Baseline(chosen, read_evidence(paths[one.name]), saved=True), paths[one.name])
        for one in suites
        if paths[one.name].exists()
    }
    if suites and not found:
        saved = sorted({name for one in suites for name in project.baseline_names(one.name)})
        raise ConfigError(
            f"baseline {chosen!r} is no file and no saved baseline of {', '.join(paths)}; "
            f"saved are {', '.join(saved) or 'none'}"
        )
    return found, ()


def is_path(place: Path) -> bool:
    """Whether something lies at a path; a name that could be none (too long, a zero in it) is none."""
    try:
        return place.exists()
    except (OSError, ValueError):
        return False


def _inherited(
    suites: Sequence[LockedSuite], project: Project, lineage: Sequence[Candidate]
) -> dict[str, Baseline]:
    found: dict[str, Baseline] = {}
    for one in suites:
        paths = ((ancestor, project.baseline_path(one.name, ancestor.id)) for ancestor in lineage[1:])
        nearest = next(((ancestor, path) for ancestor, path in paths if path.exists()), None)
        if nearest is not None:
            ancestor, path = nearest
            evidence = read_evidence(path)
            _require_candidate(ancestor, evidence, path)
            found[one.name] = _checked(one, Baseline(ancestor.id, evidence, saved=True), path)
    return found


def _require_candidate(ancestor: Candidate, evidence: Evidence, path: Path) -> None:
    """See that a baseline under an ancestor's name is the ancestor's.

    Raises:
        ResultsError: another candidate was measured, or the ancestor was changed since.
    """
    measured = evidence.provenance.candidate
    if measured is None or measured.digest == ancestor.digest:
        return
    which = "an earlier text of it" if measured.id == ancestor.id else f"candidate {measured.id!r}"
    raise ResultsError(
        f"{path}: has the name of candidate {ancestor.id!r}, and {which} was measured; measure "
        f"{ancestor.id!r} again (pytest --candidate {ancestor.id} --t2e-save-baseline {ancestor.id} "
        f"--t2e-baseline-mode update), or name the baseline with --t2e-baseline {ancestor.id}"
    )


def _from_path(path: Path, suites: Sequence[LockedSuite], worlds: Worlds, judge: Judge | None) -> Found:
    providers = {one.suite.provider for one in suites}
    provider = providers.pop() if len(providers) == 1 else None
    files: list[tuple[Path, str]] = []
    sides, notes = load_sides(
        [path],
        worlds,
        provider,
        judge,
        by_suite=True,
        on_file=lambda file: files.append((file.path, file.run)),
    )
    found = {
        one.name: _checked(one, Baseline(path.name, side, files=tuple(files)), path)
        for one in suites
        if (side := _side_of(one, sides)) is not None
    }
    if suites and not found:
        modes = ", ".join(dict.fromkeys(side.provenance.mode.brief for side in sides))
        raise ResultsError(f"{path}: results of domain {modes}, and the selected suites are {told(suites)}")
    return found, notes


def _side_of(one: LockedSuite, sides: Sequence[Evidence]) -> Evidence | None:
    """The side that is of a suite; else one of its domain and mode, which may name no suite, or another."""
    same = [side for side in sides if side.provenance.mode == one.suite.mode]
    for name in (one.name, None):
        for side in same:
            if side.provenance.suite == name:
                return side
    return next(iter(same), None)


def _checked(one: LockedSuite, baseline: Baseline, path: Path) -> Baseline:
    """A baseline that may be compared on a suite, cut to the suite's tasks."""
    origin = baseline.evidence.provenance
    if origin.suite not in (None, one.name):
        raise ResultsError(f"{path}: a baseline of suite {origin.suite!r}, not of {one.name!r}")
    now = origin.model_copy(update={"lock": one.lock.digest, "lock_parts": one.lock.parts})
    digests = {record.task_id: record.task_digest for record in baseline.evidence.simulations}
    if found := list(lock_differences(origin, now, digests, one.lock.tasks)):
        raise ResultsError(
            f"{path}: measured under another lock than {one.name!r} has now: {'; '.join(found)}; "
            "measure the baseline again (pytest --t2e-save-baseline NAME --t2e-baseline-mode update)"
        )
    kept = only(baseline.evidence, one.lock.tasks)
    return replace(baseline, evidence=kept, path=path, whole=baseline.evidence)
