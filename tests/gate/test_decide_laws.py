"""What is counted over many comparisons is what the gate decides of each."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.gate.alpha_spending import Stage
from pytest_trace2evolve.gate.calibrated import CALIBRATED, Calibrated
from pytest_trace2evolve.gate.columns import AGENT_ERRORS, INVARIANT_METRICS, INVARIANTS
from pytest_trace2evolve.gate.confirm import CLEARED, CONFIRMED, FreshResult
from pytest_trace2evolve.gate.decide import GateInput, decide, decision_ranks
from pytest_trace2evolve.gate.pairs import Comparisons, Pairs, pair
from pytest_trace2evolve.gate.policy import STRICT, Strict
from pytest_trace2evolve.gate.protocols import Question
from pytest_trace2evolve.gate.tallies import Tally
from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.records.verdict import (
    Decision,
    Goal,
    Label,
)
from tests.gate.verdicts import judged
from tests.gate_helpers import Side, sim

LAW = settings(deadline=None, max_examples=30)
POLICIES = st.sampled_from(
    [
        CALIBRATED,
        STRICT,
        Calibrated(has_fixed_tasks=True),
        Calibrated(
            blocks_on_suspected=True, margins={"reward": 0.3, "action_match": 0.2}, weights={"max_steps": 0}
        ),
    ]
)
REWARDS = st.sampled_from([0.0, 1.0, 1.0, 0.5, None])


@st.composite
def comparisons(draw: st.DrawFn) -> list[Pairs]:
    """A few comparisons of as many tasks each; some hold fractions, some have lost simulations."""
    tasks, trials = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    live, watched = draw(st.booleans()), draw(st.booleans())
    found = []
    for _ in range(draw(st.integers(1, 3))):
        rewards = draw(st.sampled_from([REWARDS, st.sampled_from([0.0, 1.0])]))
        better = draw(st.booleans())
        sides: tuple[Side, Side] = [], []
        for (which, side), task, trial in product(enumerate(sides), range(tasks), range(trials)):
            reward = float(which) if better and draw(st.booleans()) else draw(rewards)
            failed_end = draw(st.sampled_from([*["user_stop"] * 8, "max_steps", "agent_error"]))
            end = failed_end if reward == 0.0 else "user_stop"
            record = sim(task, reward, trial=trial, end=end, read=(task % 3, draw(st.integers(0, task % 3))))
            kind = draw(st.sampled_from([Invariant.PROMISES, Invariant.CONSENT])) if watched else None
            broken = {kind: draw(st.integers(0, 1))} if kind and reward is not None else None
            update = {"id": f"{which}-{task}-{trial}", "invariants": broken}
            side.append(record.model_copy(update=update))
        if draw(st.booleans()):
            sides[0][:] = [
                record.model_copy(update={"critical": record.task_id in "01"}) for record in sides[0]
            ]
        pairs = pair(*sides)
        if live:
            p = draw(st.sampled_from([1e-4, 0.02, 0.7]))
            pairs = pairs.with_fresh_results(dict.fromkeys(pairs.broken_tasks(), FreshResult(p, p)))
        found.append(pairs)
    return found


def stacked(comparisons: Sequence[Pairs]) -> Comparisons:
    """The same comparisons as rows of one."""

    def side(which: int) -> Tally:
        parts = [pairs.sides[which] for pairs in comparisons]
        none = np.zeros(parts[0].trials.shape)  # a side of which nothing was measured

        def of_kind(one: Tally, name: str, kind: str) -> np.ndarray:
            # A kind that a side broke in no trial has no key: all its trials kept it.
            rest = one.checked.get(INVARIANTS, none) if kind in INVARIANT_METRICS else none
            rest = one.measured if kind == AGENT_ERRORS else rest
            return np.asarray(getattr(one, name).get(kind, rest))

        return Tally(
            **{
                name: {
                    kind: np.stack([of_kind(one, name, kind) for one in parts])
                    for kind in sorted({kind for one in parts for kind in one.matched})
                }
                if name in ("matched", "checked")
                else np.stack([getattr(one, name) for one in parts])
                for name in Tally.__dataclass_fields__
            }
        )

    rows = [one.comparisons for one in comparisons]
    asked = {kind: np.vstack([row.has_actions[kind] for row in rows]) for kind in rows[0].has_actions}
    fresh = None if rows[0].fresh_p is None else np.vstack([row.fresh_p for row in rows])
    critical = np.vstack([row.is_critical for row in rows])
    return Comparisons(side(0), side(1), fresh_p=fresh, is_critical=critical, has_actions=asked)


@LAW
@given(comparisons(), POLICIES, st.sampled_from(Goal), st.booleans(), st.sampled_from([1.0, 0.2]))
def test_a_row_comes_out_as_the_gate_decides_it(
    found: list[Pairs], policy: Strict | Calibrated, goal: Goal, guard: bool, level: float
) -> None:
    stage, question = Stage(1, 1, 1, 0.05 * level), Question(goal, is_guard=guard, stage_alpha=0.05 * level)
    rows = decision_ranks(policy, stacked(found), question)
    for rank, pairs in zip(rows, found, strict=True):
        verdict = decide(
            GateInput(
                pairs,
                policy,
                goal=goal,
                label=Label.DEVELOPMENT,
                is_guard=guard,
                stage=stage,
            )
        )
        assert guard or verdict.decision is not None
        assert rank == (verdict.decision or Decision.PROMOTE).rank, verdict


@LAW
@given(comparisons(), POLICIES, st.sampled_from(Goal), st.booleans(), st.data())
def test_fresh_trials_decide_between_all_cleared_and_all_confirmed(
    found: list[Pairs], policy: Strict | Calibrated, goal: Goal, guard: bool, data: st.DataObject
) -> None:
    """So a session leaves them out if these two and the verdict without any are the same."""
    pairs = found[0]
    names = list(pairs.select_names(pairs.comparisons.is_broken[0]))

    def rank(fresh: dict[str, FreshResult]) -> int:
        tried = pairs.with_fresh_results(fresh)
        verdict = decide(GateInput(tried, policy, goal=goal, label=Label.DEVELOPMENT, is_guard=guard))
        return (verdict.decision or Decision.PROMOTE).rank

    results = st.sampled_from([CLEARED, CONFIRMED, FreshResult(0.02, 0.02), FreshResult(0.3, 0.1), None])
    mixed = {name: result for name in names if (result := data.draw(results)) is not None}
    worst, best = rank(dict.fromkeys(names, CONFIRMED)), rank(dict.fromkeys(names, CLEARED))
    assert min(worst, rank({})) <= rank(mixed) <= max(best, rank({}))


@pytest.mark.parametrize("goal", Goal)
def test_one_trial_a_task_shows_nothing_of_these_very_tasks(goal: Goal) -> None:
    """Estimand `suite` rests on how much trials of a task differ, which one trial cannot say."""
    old = [sim(task, 1.0) for task in range(30)]
    new = [sim(task, 1.0).model_copy(update={"id": f"new-{task}"}) for task in range(30)]
    verdict = decide(
        GateInput(pair(old, new), Calibrated(has_fixed_tasks=True), goal=goal, label=Label.CLEAN)
    )
    assert verdict.decision is Decision.INCONCLUSIVE
    assert "needs two trials of a task on either side" in verdict.checks[0].detail
    assert verdict.settling == ()


RECORDS = st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0.0, 1.0, None])), min_size=1, max_size=24)


def numbered(found: list[tuple[int, float | None]]) -> Side:
    trials: dict[int, int] = {}
    records = []
    for task, reward in found:
        trials[task] = trials.get(task, -1) + 1
        records.append(
            sim(task, reward, trial=trials[task], read=(1, None if reward is None else int(reward)))
        )
    return records


def filled(side: Side, reward: float) -> Side:
    return [
        one if one.reward is not None else sim(one.task_id, reward, trial=one.trial, read=(1, int(reward)))
        for one in side
    ]


@settings(max_examples=30)
@given(RECORDS, RECORDS, st.sampled_from(Goal), st.booleans(), st.sampled_from([CALIBRATED, STRICT]))
def test_a_discard_holds_with_the_missing_at_their_best(
    old: list[Any], new: list[Any], goal: Goal, guard: bool, policy: Any
) -> None:
    """And without anything missing nothing is withheld and nothing is asked."""
    sides = numbered(old), numbered(new)
    verdict = judged(*sides, goal, policy, is_guard=guard)
    best = judged(filled(sides[0], 0.0), filled(sides[1], 1.0), goal, policy, is_guard=guard)
    whole = all(one.reward is not None for side in sides for one in side)
    if verdict.decision is Decision.DISCARD:
        assert best.decision is Decision.DISCARD or not (best.checks and verdict.checks)
    if whole:
        assert not {"best_case", "worst_case", "measured", "lost_again"} & {one.id for one in verdict.checks}
        assert best == verdict
