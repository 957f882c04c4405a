"""Gating two sets of evidence without pytest.

A side's figures from its columns, as `scoring.metrics` has them of records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytest_trace2evolve.errors import ResultsError, SuiteError
from pytest_trace2evolve.evidence.columns import is_in_lines, read_both, read_columns
from pytest_trace2evolve.gate.columns import Columns, Floats, columns
from pytest_trace2evolve.gate.comparable import agent_changes, differences, unequal_trials, unrecorded
from pytest_trace2evolve.gate.decide import decide
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.policy import DEFAULT_POLICY
from pytest_trace2evolve.gate.tally import Tally, pass_hat, tally
from pytest_trace2evolve.project.policies import find_policy
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.evidence import Compared, Provenance, side_of
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.verdict import Goal, Label, Verdict
from pytest_trace2evolve.scoring.metrics import Metrics
from pytest_trace2evolve.session.sides import load_sides
from pytest_trace2evolve.worlds.registry import Worlds


def figures_of(side: Columns) -> Metrics:
    """Means over a task's trials first, then over tasks.

    pass^k is given for k = 1, 2, 4, 8 and 16; of terminations only those at max steps are known.
    """
    sums = tally(side, np.arange(len(side.tasks)), len(side.tasks))
    hits = int(side.max_steps.sum())
    return Metrics(
        simulations=side.size,
        tasks=len(side.tasks),
        measured=int(side.measured.sum()),
        infrastructure_errors=side.size - int(side.measured.sum()),
        not_measured=0,
        reward=_mean(sums.mean_reward),
        recorded_reward=None,
        agreement=None,
        pass_hat=_pass_hat(sums),
        action_match=_mean(sums.share("action_match")),
        read_action_match=_mean(sums.share("read_action_match")),
        write_action_match=_mean(sums.share("write_action_match")),
        terminations={"max_steps": hits} if hits else {},
    )


def _pass_hat(sums: Tally) -> dict[int, float]:
    some = sums.measured > 0
    return {k: float(shares.mean()) for k, shares in pass_hat(sums.only(some)).items()}


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None


@dataclass(frozen=True)
class Comparison:
    """A verdict on two sides, and what they are."""

    verdict: Verdict
    baseline: Metrics
    candidate: Metrics
    baseline_name: str
    candidate_name: str
    compared: Compared
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
    project: Project | None = None,
    suite: str | None = None,
    split: str | None = None,
    judge: Judge | None = None,
) -> Comparison:
    """Gate all tasks common to both sides, or those of a suite or split.

    Evidence given as files proves nothing about who looked at it: its label is *development*. The sides may
    be of different agents, since no candidate is promoted here; a note names each difference.

    Raises:
        PolicyError: unknown policy, or a broken one.
        ResultsError: a side cannot be read, is empty, or cannot be compared with the other.
        SuiteError, LockError: the suite or split is unknown, or not as locked.
    """
    chosen = find_policy(policy or DEFAULT_POLICY, project)
    tasks, provider = _locked_tasks(project if suite else None, suite, split, worlds, provider)
    old, new = _both_sides(baseline, candidate, worlds, provider, judge)
    _refuse_incomparable(old, new)
    missing = unrecorded(old.provenance, new.provenance)
    changes = agent_changes(old.provenance, new.provenance).values()
    changed = [f"the agents differ: {phrase}" for phrases in changes for phrase in phrases]
    left_out: dict[str, str] = {}
    sides = old.columns, new.columns
    if tasks is not None and project is not None and suite is not None:
        wanted = project.suite(suite).mode
        if old.provenance.mode != wanted:
            raise ResultsError(
                f"suite {suite!r} is of domain {wanted}, and the runs are of {old.provenance.mode}; "
                "name a suite of theirs"
            )
        sides, left_out = _as_locked(*sides, tasks)
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
        baseline_name=old.name,
        candidate_name=new.name,
        compared=Compared(baseline=side_of(old.provenance), candidate=side_of(new.provenance)),
        notes=(*old.notes, *new.notes, *((missing,) if missing else ()), *changed),
    )


@dataclass(frozen=True)
class Side:
    """One side: where it comes from, its simulations as columns, and what is to be told of them."""

    name: str
    provenance: Provenance
    columns: Columns
    notes: tuple[str, ...] = ()


def _refuse_incomparable(old: Side, new: Side) -> None:
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


def _both_sides(
    baseline: Sequence[Path],
    candidate: Sequence[Path],
    worlds: Worlds,
    provider: str | None,
    judge: Judge | None,
) -> tuple[Side, Side]:
    paths = baseline, candidate
    if all(len(side) == 1 and is_in_lines(side[0]) for side in paths):
        read = read_both((baseline[0], candidate[0]))
        old, new = (_held(Side(side[0].name, *one)) for side, one in zip(paths, read, strict=True))
        return old, new
    return one_side(baseline, worlds, provider, judge), one_side(candidate, worlds, provider, judge)


def one_side(
    paths: Sequence[Path], worlds: Worlds, provider: str | None, judge: Judge | None, one_agent: bool = False
) -> Side:
    """The simulations of one side from its files, `one_agent` alone where that is asked for.

    Raises:
        ResultsError: they cannot be read or are not one side, are of several domains, or hold nothing.
    """
    name = paths[0].name + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
    if len(paths) == 1 and is_in_lines(paths[0]):
        return _held(Side(name, *read_columns(paths[0])))
    sides, notes = load_sides(paths, worlds, provider, judge, one_agent)
    if len(sides) != 1:
        domains = ", ".join(one.provenance.mode.brief for one in sides)
        raise ResultsError(f"{name}: holds several domains ({domains}); compare one at a time")
    return _held(Side(name, sides[0].provenance, columns(sides[0].simulations), notes))


def _held(side: Side) -> Side:
    if not side.columns.size:
        raise ResultsError(f"{side.name}: holds no simulation")
    return side


def _as_locked(
    old: Columns, new: Columns, tasks: Mapping[str, str]
) -> tuple[tuple[Columns, Columns], dict[str, str]]:
    """Both sides cut to the locked tasks, without those of other content under the same id."""
    left_out: dict[str, str] = {}
    for side, name in ((old, "baseline"), (new, "candidate")):
        other = [task for task, digest in side.contents().items() if task in tasks and digest != tasks[task]]
        left_out |= dict.fromkeys(other, f"its content on the {name} differs from the lock")
    kept = tasks.keys() - left_out.keys()
    return (old.of_tasks(kept), new.of_tasks(kept)), left_out
