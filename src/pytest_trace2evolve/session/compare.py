"""Gates two sets of evidence, without pytest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_trace2evolve.errors import ResultsError, SuiteError
from pytest_trace2evolve.evidence.column_reader import is_in_lines, read_both, read_columns
from pytest_trace2evolve.gate.columns import Columns, Floats, columns
from pytest_trace2evolve.gate.comparable import agent_changes, differences, unequal_trials, unrecorded
from pytest_trace2evolve.gate.decide import decide
from pytest_trace2evolve.gate.pairs import REWARD, pair, tally
from pytest_trace2evolve.gate.policy import DEFAULT_POLICY
from pytest_trace2evolve.project.policies import find_policy
from pytest_trace2evolve.records.evidence import ComparedSides, Provenance, side_of
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.verdict import Goal, Label, Verdict
from pytest_trace2evolve.scoring.metrics import Metrics
from pytest_trace2evolve.session.evidence_sources import load_evidence
from pytest_trace2evolve.worlds.registry import Worlds

if TYPE_CHECKING:
    from pytest_trace2evolve.project.project import Project


@dataclass(frozen=True)
class Side:
    """One side of a comparison: its name, provenance, simulations as columns, and notes."""

    name: str
    provenance: Provenance
    columns: Columns
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """A verdict on two sides, with the figures, names and settings of both."""

    verdict: Verdict
    baseline: Metrics
    candidate: Metrics
    baseline_name: str
    candidate_name: str
    compared: ComparedSides
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The documented JSON form."""
        compared = self.compared.model_dump(mode="json")
        return {**self.verdict.to_json(), "compared": compared, "notes": list(self.notes)}


def compare(
    baseline: Sequence[Path],
    candidate: Sequence[Path],
    worlds: Worlds,
    *,
    policy: str | None = None,
    goal: Goal = Goal.IMPROVE,
    provider: str | None = None,
    project: "Project | None" = None,
    suite: str | None = None,
    split: str | None = None,
    judge: Judge | None = None,
) -> Comparison:
    """Gate all tasks common to both sides, or those of a suite or split.

    Evidence from files is labeled *development*, because its earlier readers are unknown. The sides may be
    of different agents, since no candidate is promoted here; a note names each difference.

    Raises:
        PolicyError: the policy is unknown or broken.
        ResultsError: a side cannot be read, is empty, or cannot be compared with the other.
        SuiteError, LockError: the suite or split is unknown, or differs from the lock.
    """
    chosen = find_policy(policy or DEFAULT_POLICY, project)
    tasks: Mapping[str, str] | None = None
    if project is not None and suite is not None:
        described = project.suite(suite)
        locked = project.locked(described, worlds)
        if split is not None and split not in locked.splits:
            raise SuiteError(f"suite {suite!r} has no split {split!r}; it has {', '.join(locked.splits)}")
        tasks = locked.tasks if split is None else locked.splits[split]
        provider = provider or described.provider
    old, new = _both_sides(baseline, candidate, worlds, provider, judge)
    _check_comparable(old, new)
    missing = unrecorded(old.provenance, new.provenance)
    changes = agent_changes(old.provenance, new.provenance).values()
    left_out: dict[str, str] = {}
    sides = old.columns, new.columns
    if project is not None and suite is not None and tasks is not None:
        mode = project.suite(suite).mode
        if old.provenance.mode != mode:
            raise ResultsError(
                f"suite {suite!r} is of domain {mode}, and the runs are of {old.provenance.mode}; "
                "name a suite of theirs"
            )
        sides, left_out = _cut_to_lock(*sides, tasks)
    pairs = pair(*sides).leaving_out(left_out)
    if chosen.equal_trials:
        counts = [dict(zip(pairs.names, side.trials.tolist(), strict=True)) for side in pairs.sides]
        if unequal := unequal_trials(*counts):
            raise ResultsError(f"policy {chosen.name!r}: {unequal}")
    verdict = decide(
        pairs,
        chosen,
        goal=goal,
        label=Label.DEVELOPMENT,
        suite=suite,
        split=split,
        expected=len(tasks) if tasks is not None else len(pairs.names) + len(pairs.left_out),
    )
    return Comparison(
        verdict=verdict,
        baseline=figures_of(sides[0]),
        candidate=figures_of(sides[1]),
        baseline_name=_short_name(old.name),
        candidate_name=_short_name(new.name),
        compared=ComparedSides(baseline=side_of(old.provenance), candidate=side_of(new.provenance)),
        notes=(
            *old.notes,
            *new.notes,
            *((missing,) if missing else ()),
            *(f"the agents differ: {phrase}" for phrases in changes for phrase in phrases),
        ),
    )


def _short_name(name: str) -> str:
    """A file's name without `.json` or `.json.gz`."""
    return name.removesuffix(".gz").removesuffix(".json")


def _both_sides(
    baseline: Sequence[Path],
    candidate: Sequence[Path],
    worlds: Worlds,
    provider: str | None,
    judge: Judge | None,
) -> tuple[Side, Side]:
    if len(baseline) == len(candidate) == 1 and is_in_lines(baseline[0]) and is_in_lines(candidate[0]):
        old, new = read_both((baseline[0], candidate[0]))
        return _not_empty(Side(baseline[0].name, *old)), _not_empty(Side(candidate[0].name, *new))
    return read_side(baseline, worlds, provider, judge), read_side(candidate, worlds, provider, judge)


def read_side(
    paths: Sequence[Path],
    worlds: Worlds,
    provider: str | None,
    judge: Judge | None,
    *,
    one_agent: bool = False,
) -> Side:
    """Read the simulations of one side from files; `one_agent` requires that one agent made all of them."""
    name = paths[0].name + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
    if len(paths) == 1 and is_in_lines(paths[0]):
        return _not_empty(Side(name, *read_columns(paths[0])))
    loaded = load_evidence(paths, worlds, provider, judge, one_agent=one_agent)
    if len(loaded.sides) != 1:
        domains = ", ".join(side.provenance.mode.brief for side in loaded.sides)
        raise ResultsError(f"{name}: holds several domains ({domains}); compare one at a time")
    evidence = loaded.sides[0]
    return _not_empty(Side(name, evidence.provenance, columns(evidence.simulations), loaded.notes))


def _not_empty(side: Side) -> Side:
    if not side.columns.size:
        raise ResultsError(f"{side.name}: holds no simulation")
    return side


def _check_comparable(old: Side, new: Side) -> None:
    domains = (old.provenance.domain, new.provenance.domain)
    if domains[0] != domains[1]:
        raise ResultsError(
            f"the baseline is of domain {domains[0]!r}, the candidate of {domains[1]!r}; "
            "only runs of one domain can be compared"
        )
    contents = [side.columns.contents() for side in (old, new)]
    found = list(
        differences(old.provenance, new.provenance, baseline_tasks=contents[0], candidate_tasks=contents[1])
    )
    if found:
        raise ResultsError(f"{old.name} and {new.name} cannot be compared: {'; '.join(found)}")


def _cut_to_lock(
    old: Columns, new: Columns, tasks: Mapping[str, str]
) -> tuple[tuple[Columns, Columns], dict[str, str]]:
    """Cut both sides to the locked tasks, and leave out tasks whose content differs from the lock."""
    left_out: dict[str, str] = {}
    for side, name in ((old, "baseline"), (new, "candidate")):
        other = [task for task, digest in side.contents().items() if task in tasks and digest != tasks[task]]
        left_out |= dict.fromkeys(other, f"its content on the {name} differs from the lock")
    kept = tasks.keys() - left_out.keys()
    return (old.of_tasks(kept), new.of_tasks(kept)), left_out


def figures_of(side: Columns) -> Metrics:
    """A side's figures from its columns: means over a task's trials first, then over tasks.

    pass^k covers k = 1, 2, 4, 8 and 16. Columns record only terminations at max steps.
    """
    sums = tally(side, np.arange(len(side.tasks)), len(side.tasks))
    hits = int(side.max_steps.sum())
    measured = int(side.measured.sum())
    pass_hat = sums.pass_hat(sums.measured > 0)
    return Metrics(
        simulations=side.size,
        tasks=len(side.tasks),
        measured=measured,
        infrastructure_errors=side.size - measured,
        not_measured=0,
        reward=_mean(sums.figure(REWARD)),
        recorded_reward=None,
        agreement=None,
        pass_hat={k: float(chances.mean()) for k, chances in pass_hat.items()},
        action_match=_mean(sums.figure("action_match")),
        read_action_match=_mean(sums.figure("read_action_match")),
        write_action_match=_mean(sums.figure("write_action_match")),
        terminations={"max_steps": hits} if hits else {},
    )


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None
