"""Saved baselines as a list: how old each is, what it measured, whether its lock is today's, its lineage."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.baselines import evidence_digest, read_evidence
from pytest_trace2evolve.gate.comparable import lock_differences
from pytest_trace2evolve.records.evidence import Evidence, Provenance
from pytest_trace2evolve.workflow.project import Project

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
