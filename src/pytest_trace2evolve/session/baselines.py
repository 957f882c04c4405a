"""What a suite's candidate is compared with: a saved baseline, a results file, or an ancestor's baseline.

Saved baselines as a list: how old each is, what it measured, whether its lock is today's, its lineage.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import ConfigError, ResultsError
from pytest_trace2evolve.evidence.baselines import evidence_digest, read_evidence
from pytest_trace2evolve.gate.comparable import lock_differences
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.project.project import LockedSuite, Project, told
from pytest_trace2evolve.records.evidence import Evidence, Provenance, SimulationEvidence
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.scoring.metrics import Trials
from pytest_trace2evolve.session.sides import load_sides, only
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


SHORT = 8
"""Digits of a digest that people are shown."""


@dataclass(frozen=True)
class SavedBaseline:
    """One baseline of one suite.

    Attributes:
        path: Its file, below the project's folder.
        error: Why it could not be read; empty where it could, and everything below is unknown otherwise.
        age_days: Days since its run started; None where that was not recorded.
        trials: The smallest and the largest number of trials of a task.
        lock: `current`, `stale`, `not recorded`, or `none` where the project has no lock of that suite.
        changed: What differs between its lock and today's, a phrase each.
        replaces: Digest of the baseline before it, and `replaces_name` where that is saved here too.
        promoted_from: The run whose verdict promoted it.
    """

    suite: str
    name: str
    path: str
    error: str = ""
    digest: str | None = None
    created_at: str | None = None
    age_days: float | None = None
    candidate: str | None = None
    parent: str | None = None
    model: str | None = None
    tasks: int = 0
    trials: tuple[int, int] = (0, 0)
    simulations: int = 0
    lock: str = ""
    changed: tuple[str, ...] = ()
    replaces: str | None = None
    replaces_name: str | None = None
    promoted_from: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The documented JSON form."""
        return {**asdict(self), "trials": list(self.trials), "changed": list(self.changed)}


def saved_baselines(project: Project, now: datetime) -> list[SavedBaseline]:
    """All saved baselines of a project, by suite and name; a damaged one says so in its place.

    Raises:
        LockError: `suites.lock` is damaged.
    """
    found: list[SavedBaseline] = []
    folders = sorted(path for path in project.baselines_folder.glob("*") if path.is_dir())
    for folder in folders:
        found += _of_suite(project, folder.name, now)
    return found


def age_days(created_at: str | None, now: datetime) -> float | None:
    """Days since a time in ISO 8601 (UTC where it names no zone); None where there is none to read.

    0 for a time ahead of this machine's clock.
    """
    try:
        made = datetime.fromisoformat(created_at or "")
    except ValueError:
        return None
    made = made if made.tzinfo else made.replace(tzinfo=UTC)
    return max(0.0, (now - made).total_seconds() / 86400)


def trials_of_tasks(evidence: Evidence) -> tuple[int, int]:
    """The smallest and the largest number of trials of a task; zeros where there is none."""
    counts = Counter(record.task_id for record in evidence.simulations).values()
    return min(counts, default=0), max(counts, default=0)


def _of_suite(project: Project, suite: str, now: datetime) -> Iterator[SavedBaseline]:
    read: dict[str, Evidence | str] = {}
    for name in project.baseline_names(suite):
        try:
            read[name] = read_evidence(project.baseline_path(suite, name))
        except ResultsError as error:
            read[name] = str(error)
    digests = {name: evidence_digest(one) for name, one in read.items() if isinstance(one, Evidence)}
    names = {digest: name for name, digest in digests.items()}
    for name, evidence in read.items():
        path = _below(project.baseline_path(suite, name), project.root)
        if isinstance(evidence, str):
            yield SavedBaseline(suite, name, path, error=evidence)
            continue
        origin = evidence.provenance
        state, changed = _lock(project, suite, origin, evidence)
        yield SavedBaseline(
            suite,
            name,
            path,
            digest=digests[name],
            created_at=origin.created_at,
            age_days=age_days(origin.created_at, now),
            candidate=origin.candidate.id if origin.candidate else None,
            parent=origin.candidate.parent if origin.candidate else None,
            model=origin.agent.model,
            tasks=len({record.task_id for record in evidence.simulations}),
            trials=trials_of_tasks(evidence),
            simulations=len(evidence.simulations),
            lock=state,
            changed=changed,
            replaces=origin.replaces,
            replaces_name=names.get(origin.replaces or ""),
            promoted_from=origin.promoted_from,
        )


def _lock(
    project: Project, suite: str, origin: Provenance, evidence: Evidence
) -> tuple[str, tuple[str, ...]]:
    locked = project.lock.suites.get(suite)
    if locked is None:
        return "none", ()
    if origin.lock is None:
        return "not recorded", ()
    if origin.lock == locked.digest:
        return "current", ()
    now = origin.model_copy(update={"lock": locked.digest, "lock_parts": locked.parts})
    digests = {record.task_id: record.task_digest for record in evidence.simulations}
    return "stale", tuple(lock_differences(origin, now, digests, locked.tasks))


def _below(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()
