"""Gating two sets of evidence without pytest."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import ResultsError, SuiteError
from pytest_trace2evolve.gate.comparable import differences, unrecorded
from pytest_trace2evolve.gate.decide import decide
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.policy import DEFAULT_POLICY, get_policy
from pytest_trace2evolve.records.evidence import Evidence
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.verdict import Goal, Label, Verdict
from pytest_trace2evolve.scoring.metrics import Metrics, metrics
from pytest_trace2evolve.workflow.project import Project
from pytest_trace2evolve.workflow.sides import load_sides, only
from pytest_trace2evolve.worlds.registry import Worlds


@dataclass(frozen=True)
class Comparison:
    """A verdict on two sides, and what they are."""

    verdict: Verdict
    baseline: Metrics
    candidate: Metrics
    baseline_name: str
    candidate_name: str
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The documented JSON form."""
        return {**self.verdict.to_json(), "notes": list(self.notes)}


def compare(
    baseline: Sequence[Path],
    candidate: Sequence[Path],
    worlds: Worlds,
    *,
    policy: str | None = None,
    goal: Goal = Goal.IMPROVE,
    provider: str | None = None,
    project: Project | None = None,
    suite: str | None = None,
    split: str | None = None,
    judge: Judge | None = None,
) -> Comparison:
    """Gate all tasks common to both sides, or those of a suite or split.

    Evidence given as files proves nothing about who looked at it: its label is *development*.

    Raises:
        PolicyError: unknown policy.
        ResultsError: a side cannot be read, is empty, or is of another domain than the other.
        SuiteError, LockError: the suite or split is unknown, or not as locked.
    """
    chosen = get_policy(policy or DEFAULT_POLICY)
    tasks, provider = _locked_tasks(project, suite, split, worlds, provider)
    old, old_notes = _one_side(baseline, worlds, provider, judge)
    new, new_notes = _one_side(candidate, worlds, provider, judge)
    domains = (old.provenance.domain, new.provenance.domain)
    if domains[0] != domains[1]:
        raise ResultsError(
            f"the baseline is of domain {domains[0]!r}, the candidate of {domains[1]!r}; "
            "only runs of one domain can be compared"
        )
    digests = [{record.task_id: record.task_digest for record in side.simulations} for side in (old, new)]
    found = list(
        differences(old.provenance, new.provenance, baseline_tasks=digests[0], candidate_tasks=digests[1])
    )
    if found:
        raise ResultsError(
            f"{_named(baseline)} and {_named(candidate)} cannot be compared: {'; '.join(found)}"
        )
    missing = unrecorded(old.provenance, new.provenance)
    left_out: dict[str, str] = {}
    if tasks is not None and project is not None and suite is not None:
        wanted = project.suite(suite).mode
        if old.provenance.mode != wanted:
            raise ResultsError(
                f"suite {suite!r} is of domain {wanted}, and the runs are of {old.provenance.mode}; "
                "name a suite of theirs"
            )
        old, new, left_out = _as_locked(old, new, tasks)
    verdict = decide(
        pair(old.simulations, new.simulations).leaving_out(left_out),
        chosen,
        goal=goal,
        label=Label.DEVELOPMENT,
        suite=suite,
        split=split,
    )
    return Comparison(
        verdict=verdict,
        baseline=metrics(old.simulations),
        candidate=metrics(new.simulations),
        baseline_name=_named(baseline),
        candidate_name=_named(candidate),
        notes=(*old_notes, *new_notes, *((missing,) if missing else ())),
    )


def _locked_tasks(
    project: Project | None, suite: str | None, split: str | None, worlds: Worlds, provider: str | None
) -> tuple[dict[str, str] | None, str | None]:
    """The tasks of a suite or split by their locked digests, and the suite's provider; None for no suite."""
    if suite is None or project is None:
        return None, provider
    described = project.suite(suite)
    locked = project.locked(described, worlds)
    if split is not None and split not in locked.splits:
        raise SuiteError(f"suite {suite!r} has no split {split!r}; it has {', '.join(locked.splits)}")
    return (locked.splits[split] if split is not None else locked.tasks), provider or described.provider


def _one_side(
    paths: Sequence[Path], worlds: Worlds, provider: str | None, judge: Judge | None
) -> tuple[Evidence, tuple[str, ...]]:
    sides, notes = load_sides(paths, worlds, provider, judge)
    if len(sides) != 1:
        domains = ", ".join(side.provenance.mode.brief for side in sides)
        raise ResultsError(f"{_named(paths)}: holds several domains ({domains}); compare one at a time")
    if not sides[0].simulations:
        raise ResultsError(f"{_named(paths)}: holds no simulation")
    return sides[0], notes


def _as_locked(
    old: Evidence, new: Evidence, tasks: dict[str, str]
) -> tuple[Evidence, Evidence, dict[str, str]]:
    """Both sides cut to the locked tasks, without simulations of other content under the same id."""
    left_out: dict[str, str] = {}
    cut = []
    for side, name in ((only(old, tasks), "baseline"), (only(new, tasks), "candidate")):
        records = side.simulations
        other = {record.task_id for record in records if record.task_digest != tasks[record.task_id]}
        left_out |= dict.fromkeys(other, f"its content on the {name} differs from the lock")
        cut.append((side, other))
    gone = cut[0][1] | cut[1][1]
    kept = [only(side, tasks.keys() - gone) for side, _ in cut]
    return kept[0], kept[1], left_out


def _named(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths)
