"""Finds the baselines that candidates are compared with, and reports facts about saved baselines."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.errors import ConfigError, ResultsError
from pytest_trace2evolve.evidence.baselines import evidence_digest, read_evidence
from pytest_trace2evolve.gate.comparable import lock_differences
from pytest_trace2evolve.records.evidence import Evidence
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.scoring.metrics import Trials, trials_by_task
from pytest_trace2evolve.session.evidence_sources import load_evidence, path_exists
from pytest_trace2evolve.session.trace_checks import NO_TRACE_CHECKS, TraceChecks
from pytest_trace2evolve.utils.git import checked_out
from pytest_trace2evolve.worlds.registry import Worlds

if TYPE_CHECKING:
    from pytest_trace2evolve.project.candidates import Candidate
    from pytest_trace2evolve.project.lock import SuiteLock
    from pytest_trace2evolve.project.project import LockedSuite, Project


@dataclass(frozen=True)
class Baseline:
    """The evidence that a suite's candidate is compared with.

    Attributes:
        name: The name under which the baseline was saved, or the name of the file.
        evidence: The baseline's simulations of the suite's tasks.
        path: The file that the baseline was read from; None on a worker.
        full_evidence: All evidence of the baseline, including other tasks; None if `evidence` is all of it.
        is_saved: Whether this is one of the project's saved baselines.
        files: The scored results files, each with the run that the file names (empty if none).
    """

    name: str
    evidence: Evidence
    path: Path | None = None
    full_evidence: Evidence | None = None
    is_saved: bool = False
    files: tuple[tuple[Path, str], ...] = ()

    @property
    def all_evidence(self) -> Evidence:
        """All evidence of the file, including tasks and trials that the run does not compare."""
        return self.full_evidence or self.evidence

    @cached_property
    def digest(self) -> str:
        """Digest of the file's evidence. A baseline that replaces this one records the digest."""
        return evidence_digest(self.all_evidence)

    def trials(self, task_id: str, digest: str) -> Trials | None:
        """Return the baseline's trials of a task; None if no trial ran this content and has a reward."""
        trials = self._trials_by_task.get(task_id)
        if trials is None or not trials.measured_records or trials.records[0].task_digest != digest:
            return None
        return trials

    @cached_property
    def _trials_by_task(self) -> dict[str, Trials]:
        return trials_by_task(self.evidence.simulations)


BaselinesAndNotes = tuple[dict[str, Baseline], tuple[str, ...]]
"""Baselines by suite, and notes on renumbered trials."""


def find_baselines(
    name_or_path: str | None,
    suites: Sequence["LockedSuite"],
    project: "Project",
    lineage: Sequence["Candidate"],
    worlds: Worlds,
    *,
    base_folder: Path,
    commit: str | None = None,
    uses_own: bool = False,
    judge: Judge | None = None,
    trace_checks: TraceChecks = NO_TRACE_CHECKS,
) -> BaselinesAndNotes:
    """Find the baseline of each suite that has one.

    Args:
        name_or_path: The name of a saved baseline, such as `v0` or `desk/v0`, or a path relative to
            `base_folder`; None selects the baseline of the nearest ancestor that has one.
        lineage: The candidate and its ancestors.
        base_folder: The folder that paths start from.
        commit: The commit whose saved baselines are used; None uses those of the project's files.
        uses_own: Whether the candidate's own baseline precedes those of its ancestors.
        trace_checks: The project's own checks that results files are measured by.

    Raises:
        ConfigError: `name_or_path` is neither a path nor a saved baseline of any suite.
        ResultsError: a baseline is damaged, or belongs to a different suite, domain or lock.
    """
    base = None if commit is None else checked_out(project.root, commit)[0]
    notes: list[str] = []
    if name_or_path is None:
        return _nearest_baselines(suites, project, lineage, base, notes, uses_own=uses_own), tuple(notes)
    if path_exists(base_folder / name_or_path):
        return _baselines_from_path(base_folder / name_or_path, suites, worlds, judge, trace_checks)
    owner, _, name = name_or_path.rpartition("/")
    paths = {suite.name: _saved_path(project, suite.name, name, base) for suite in suites}
    baselines = {
        suite.name: _read_saved(suite, name, path, project, notes)
        for suite in suites
        if owner in ("", suite.name) and (path := paths[suite.name]).exists()
    }
    if suites and not baselines:
        saved_names = sorted({name for suite in suites for name in project.baseline_names(suite.name)})
        raise ConfigError(
            f"baseline {name_or_path!r} is neither a file nor a saved baseline of {', '.join(paths)}; "
            f"saved are {', '.join(saved_names) or 'none'}"
        )
    return baselines, tuple(notes)


def _saved_path(project: "Project", suite: str, name: str, base: Path | None) -> Path:
    """Return the path of a saved baseline; or that of a commit below `base` if the two differ."""
    path = project.baseline_path(suite, name)
    if base is None:
        return path
    base_path = base / path.relative_to(project.root)
    is_same = base_path.exists() and path.exists() and base_path.read_bytes() == path.read_bytes()
    return path if is_same else base_path


def _read_saved(
    suite: "LockedSuite", name: str, path: Path, project: "Project", notes: list[str]
) -> Baseline:
    """Read a saved baseline. If that of a commit has another lock, the present one is used, with a note."""
    present_path = project.baseline_path(suite.name, name)
    evidence = read_evidence(path)
    if path != present_path and present_path.exists() and lock_changes(evidence, suite.lock):
        notes.append(
            f"{suite.name}: its lock has changed since the commit, so baseline {name!r} of the present files "
            "is used, which this run does not gate"
        )
        return _read_saved(suite, name, present_path, project, notes)
    return _restrict_to_suite(suite, Baseline(name, evidence, is_saved=path == present_path), path)


def _nearest_baselines(
    suites: Sequence["LockedSuite"],
    project: "Project",
    lineage: Sequence["Candidate"],
    base: Path | None,
    notes: list[str],
    *,
    uses_own: bool,
) -> dict[str, Baseline]:
    """Return, for each suite, the baseline named after the nearest candidate that has one."""
    baselines: dict[str, Baseline] = {}
    for suite in suites:
        for candidate in lineage if uses_own else lineage[1:]:
            path = _saved_path(project, suite.name, candidate.id, base)
            if not path.exists():
                continue
            baseline = _read_saved(suite, candidate.id, path, project, notes)
            # The measured candidate may be edited, and an ancestor may have been another one at a commit.
            _check_owner(baseline, candidate, may_be_edited=candidate is lineage[0] or base is not None)
            baselines[suite.name] = baseline
            break
    return baselines


def _check_owner(baseline: Baseline, candidate: "Candidate", *, may_be_edited: bool) -> None:
    """Check that a baseline that is named after a candidate holds runs of this candidate."""
    measured_candidate = baseline.evidence.provenance.candidate
    if measured_candidate is None or measured_candidate.digest == candidate.digest:
        return
    is_same_id = measured_candidate.id == candidate.id
    if is_same_id and may_be_edited:
        return
    actual_candidate = "an earlier version of it" if is_same_id else f"candidate {measured_candidate.id!r}"
    raise ResultsError(
        f"{baseline.path}: is named after candidate {candidate.id!r}, but holds runs of "
        f"{actual_candidate}; measure "
        f"{candidate.id!r} again (pytest --candidate {candidate.id} --t2e-save-baseline {candidate.id} "
        f"--t2e-baseline-mode update), or name the baseline with --t2e-baseline {candidate.id}"
    )


def _baselines_from_path(
    path: Path,
    suites: Sequence["LockedSuite"],
    worlds: Worlds,
    judge: Judge | None,
    trace_checks: TraceChecks,
) -> BaselinesAndNotes:
    providers = {suite.suite.provider for suite in suites}
    provider = providers.pop() if len(providers) == 1 else None
    loaded_evidence = load_evidence(
        [path], worlds, provider, judge, split_by_suite=True, trace_checks=trace_checks
    )
    baselines = {
        suite.name: _restrict_to_suite(suite, Baseline(path.name, side, files=loaded_evidence.files), path)
        for suite in suites
        if (side := _find_side(suite, loaded_evidence.sides)) is not None
    }
    if suites and not baselines:
        modes = ", ".join(dict.fromkeys(side.provenance.mode.short_text for side in loaded_evidence.sides))
        suites_text = ", ".join(f"{suite.name} ({suite.suite.mode.short_text})" for suite in suites)
        raise ResultsError(
            f"{path}: holds results of domain {modes}, but the selected suites are {suites_text}"
        )
    return baselines, loaded_evidence.notes


def _find_side(suite: "LockedSuite", sides: Sequence[Evidence]) -> Evidence | None:
    """Return the evidence of a suite, or else evidence of its domain and mode, preferably without a suite."""
    same_mode_sides = [side for side in sides if side.provenance.mode == suite.suite.mode]
    for name in (suite.name, None):
        for side in same_mode_sides:
            if side.provenance.suite == name:
                return side
    return next(iter(same_mode_sides), None)


def _restrict_to_suite(suite: "LockedSuite", baseline: Baseline, path: Path) -> Baseline:
    """Check that a baseline can be compared on a suite, and restrict it to the suite's tasks."""
    evidence = baseline.evidence
    if evidence.provenance.suite not in (None, suite.name):
        raise ResultsError(f"{path}: belongs to suite {evidence.provenance.suite!r}, not to {suite.name!r}")
    if changes := lock_changes(evidence, suite.lock):
        raise ResultsError(
            f"{path}: was measured under a lock that differs from the current one of {suite.name!r}: "
            f"{'; '.join(changes)}; "
            "measure the baseline again (pytest --t2e-save-baseline NAME --t2e-baseline-mode update)"
        )
    tasks = suite.lock.tasks
    records = tuple(record for record in evidence.simulations if record.task_id in tasks)
    suite_evidence = evidence.model_copy(update={"simulations": records})
    return replace(baseline, evidence=suite_evidence, path=path, full_evidence=evidence)


def lock_changes(evidence: Evidence, lock: "SuiteLock") -> tuple[str, ...]:
    """Return the differences between the lock of the evidence and the current lock, one phrase each."""
    origin = evidence.provenance
    current = origin.model_copy(
        update={"lock": lock.digest, "lock_parts": lock.parts, "task_revision": lock.task_revision}
    )
    digests = {record.task_id: record.task_digest for record in evidence.simulations}
    return tuple(lock_differences(origin, current, digests, lock.tasks))


@dataclass(frozen=True)
class BaselineFacts:
    """Facts about one baseline of one suite, as commands report them.

    Attributes:
        path: The baseline's file, relative to the project's folder.
        error: The reason why the file could not be read, or empty. With an error, no other facts are known.
        age_days: Days since the baseline's run started; None if its start was not recorded.
        newest_age_days: Days since the run that last added trials; None if none did.
        trials: The smallest and the largest number of trials of a task.
        lock: `current`, `stale`, `not recorded`, or `none` if the project has no lock of that suite.
        changed: The differences between the baseline's lock and the current lock, one phrase each.
        replaces: Digest of the baseline that this one replaced.
        replaces_name: Name of the replaced baseline, if it is among the suite's saved ones.
        promoted_from: The run whose verdict promoted this baseline.
    """

    suite: str
    name: str
    path: str = ""
    error: str = ""
    digest: str | None = None
    created_at: str | None = None
    age_days: float | None = None
    newest_age_days: float | None = None
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


def baseline_facts(suite: str, name: str, evidence: Evidence, now: datetime) -> BaselineFacts:
    """Return the facts about a baseline that its evidence records; its age is relative to `now`."""
    origin = evidence.provenance
    counts = Counter(record.task_id for record in evidence.simulations).values()
    return BaselineFacts(
        suite,
        name,
        created_at=origin.created_at,
        age_days=_age_days(origin.created_at, now),
        newest_age_days=_age_days(origin.extended_at, now),
        candidate=origin.candidate.id if origin.candidate else None,
        parent=origin.candidate.parent if origin.candidate else None,
        model=origin.agent.model,
        tasks=len(counts),
        trials=(min(counts, default=0), max(counts, default=0)),
        simulations=len(evidence.simulations),
        replaces=origin.replaces,
        promoted_from=origin.promoted_from,
    )


def _age_days(created_at: str | None, now: datetime) -> float | None:
    """Return the days since an ISO 8601 time: 0 for a future time, None for an invalid one.

    A time without a zone is in UTC.
    """
    try:
        creation_time = datetime.fromisoformat(created_at or "")
    except ValueError:
        return None
    creation_time = creation_time if creation_time.tzinfo else creation_time.replace(tzinfo=UTC)
    return max(0.0, (now - creation_time).total_seconds() / 86400)


def planned_baselines(baselines: Mapping[str, Baseline | None], started_at: str) -> list[BaselineFacts]:
    """Return the facts about the baselines of a run by suite, with their age at the run's start."""
    now = datetime.fromisoformat(started_at)
    return [
        baseline_facts(suite, baseline.name, baseline.evidence, now)
        for suite, baseline in baselines.items()
        if baseline is not None
    ]


def saved_baselines(project: "Project", now: datetime) -> list[BaselineFacts]:
    """Return the facts about a project's saved baselines, sorted by suite and name."""
    folders = sorted(path for path in project.baselines_folder.glob("*") if path.is_dir())
    return [facts for folder in folders for facts in _saved_baselines_of_suite(project, folder.name, now)]


def _saved_baselines_of_suite(project: "Project", suite: str, now: datetime) -> list[BaselineFacts]:
    baselines: list[BaselineFacts] = []
    for name in project.baseline_names(suite):
        path = project.baseline_path(suite, name)
        relative_path = path.relative_to(project.root).as_posix()
        try:
            evidence = read_evidence(path)
        except ResultsError as error:
            baselines.append(BaselineFacts(suite, name, relative_path, error=str(error)))
            continue
        facts = baseline_facts(suite, name, evidence, now)
        state, changes = _lock_state(project.lock.suites.get(suite), evidence)
        digest = evidence_digest(evidence)
        baselines.append(replace(facts, path=relative_path, digest=digest, lock=state, changed=changes))
    names = {facts.digest: facts.name for facts in baselines if facts.digest}
    return [replace(facts, replaces_name=names.get(facts.replaces or "")) for facts in baselines]


def _lock_state(lock: "SuiteLock | None", evidence: Evidence) -> tuple[str, tuple[str, ...]]:
    if lock is None:
        return "none", ()
    if evidence.provenance.lock is None:
        return "not recorded", ()
    if evidence.provenance.lock == lock.digest:
        return "current", ()
    return "stale", lock_changes(evidence, lock)
