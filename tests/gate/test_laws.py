"""Laws of the gate: order, losses, guards, and that many comparisons are decided as each is."""

from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.gate.alpha_spending import Stage
from pytest_trace2evolve.gate.calibrated import CALIBRATED, Calibrated
from pytest_trace2evolve.gate.columns import AGENT_ERRORS, INVARIANT_METRICS, INVARIANTS
from pytest_trace2evolve.gate.confirm import CLEARED, CONFIRMED, FreshResult
from pytest_trace2evolve.gate.decide import GateInput, decide, decision_ranks, worst_decision
from pytest_trace2evolve.gate.pairs import Comparisons, Pairs, pair
from pytest_trace2evolve.gate.policy import STRICT, Strict
from pytest_trace2evolve.gate.protocols import Policy, Question
from pytest_trace2evolve.gate.tallies import Tally
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.records.verdict import Decision, Goal, GuardAnswer, Label, Verdict
from tests.gate.verdicts import judged
from tests.gate_helpers import Side, lost, side, sim, strict

LAWS = settings(deadline=None, max_examples=25)
GOALS = st.sampled_from(Goal)
BUILT_IN = st.sampled_from([CALIBRATED, STRICT])
NOT_PROMOTED = (Decision.DISCARD, Decision.INCONCLUSIVE)
FRACTIONS = st.sampled_from([0.0, 0.25, 0.3, 1.0])

Sides = tuple[Side, Side]


@st.composite
def far_apart(draw: st.DrawFn) -> Sides:
    """Two sides of up to a dozen tasks with the same trials, often far apart, so that verdicts do fall."""
    trials = draw(st.integers(1, 3))
    lean = draw(st.sampled_from([(0.1, 0.9), (0.9, 0.1), (0.5, 0.5), (0.9, 0.9)]))
    random = draw(st.randoms(use_true_random=False))
    both: Sides = ([], [])
    tempers = [draw(st.sampled_from([None, 0.0, 0.1, 0.9])) for _ in both]
    for task in range(draw(st.integers(1, 12))):
        for records, rate, name, temper in zip(both, lean, "bc", tempers, strict=True):
            for trial in range(trials):
                records.append(_record(random, task, trial, rate, name, temper))
    return both


def _record(
    random: Random, task: int, trial: int, rate: float, name: str, temper: float | None
) -> SimulationEvidence:
    """A simulation; `temper` is how often it breaks an invariant, None where nobody looks."""
    reward = float(random.random() < rate)
    end = "max_steps" if not reward and random.random() < 0.3 else "user_stop"
    matched = 2 if reward else random.randrange(3)
    record = sim(task, reward, trial=trial, end=end, read=(2, matched), write=(1, int(reward)))
    kinds = (Invariant.CONSENT, Invariant.CONSENT, Invariant.PROMISES)
    broken = None if temper is None else {random.choice(kinds): 1} if random.random() < temper else {}
    return record.model_copy(update={"id": f"{name}-{task}-{trial}", "invariants": broken})


@st.composite
def records(
    draw: st.DrawFn, task: int, trial: int, totals: tuple[int, int], missing: bool = True
) -> SimulationEvidence:
    """One simulation of a task with so many gold read and write actions."""
    end = draw(st.sampled_from(["user_stop", "agent_stop", "user_stop", "timeout", "max_steps"]))
    reward = draw(FRACTIONS | st.none() if missing else FRACTIONS)
    checked = end not in ("timeout", "max_steps")
    matched = [draw(st.integers(0, total)) if checked else None for total in totals]
    read, write = zip(totals, matched, strict=True)
    if reward is not None and not checked:
        reward = 0.0
    return sim(task, reward, trial=trial, end=end, read=read, write=write)


@st.composite
def tables(draw: st.DrawFn) -> Sides:
    """Two sides of a few tasks and trials, with all that can go wrong."""
    sides: Sides = ([], [])
    for task in range(draw(st.integers(1, 5))):
        totals = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
        for one in sides:
            for trial in range(draw(st.integers(0, 3))):
                one.append(draw(records(task, trial, totals)))
    return sides


@st.composite
def near_promotions(draw: st.DrawFn) -> Sides:
    """Eleven measured tasks, the candidate as good as the baseline or better but for at most two of them."""
    olds = draw(st.lists(st.booleans(), min_size=11, max_size=11))
    news = [old or draw(st.booleans()) for old in olds]
    baseline = [sim(task, float(old), read=(2, 1)) for task, old in enumerate(olds)]
    candidate = [sim(task, float(new), read=(2, 1)) for task, new in enumerate(news)]
    for task in draw(st.sets(st.integers(0, 10), max_size=2)):
        candidate[task] = draw(records(task, 0, (2, 0), missing=False))
    return baseline, candidate


SIDES = st.one_of(tables(), near_promotions(), far_apart())


def verdict_on(
    sides: Sides, policy: Policy, goal: Goal, *, guard: bool = False, partial: str = ""
) -> Verdict:
    return decide(
        GateInput(pair(*sides), policy, goal=goal, label=Label.CLEAN, is_guard=guard, partial_reason=partial)
    )


def lose(sides: Sides, data: st.DataObject, most: int) -> None:
    """Lose some simulations of either side."""
    pool = [(which, place) for which in (0, 1) for place in range(len(sides[which]))]
    for which, place in data.draw(st.sets(st.sampled_from(pool), min_size=1, max_size=most)) if pool else ():
        sides[which][place] = lost(sides[which][place], before_it_ran=data.draw(st.booleans()))


@LAWS
@given(SIDES, BUILT_IN, GOALS, st.data())
def test_the_order_of_records_does_not_matter(sides, policy, goal, data):
    shuffled = tuple(data.draw(st.permutations(records)) for records in sides)
    assert verdict_on(shuffled, policy, goal) == verdict_on(sides, policy, goal)


@settings(LAWS, max_examples=50)
@given(SIDES, BUILT_IN, GOALS, st.data())
def test_losing_simulations_never_yields_a_promotion(sides, policy, goal, data):
    before = verdict_on(sides, policy, goal).decision
    lose(sides, data, 4)
    after = verdict_on(sides, policy, goal).decision
    # More data may settle what `calibrated` left open; a discard stays one, and `strict` compares points.
    excluded = NOT_PROMOTED if policy is STRICT else (Decision.DISCARD,)
    assert not (before in excluded and after is Decision.PROMOTE)


@LAWS
@given(near_promotions(), GOALS, st.integers(0, 10), st.sampled_from([0, 1]), st.booleans())
def test_losing_one_simulation_of_eleven_never_yields_a_promotion(sides, goal, place, which, early):
    before = strict(*sides, goal).decision
    sides[which][place] = lost(sides[which][place], before_it_ran=early)
    assert not (before in NOT_PROMOTED and strict(*sides, goal).decision is Decision.PROMOTE)


@LAWS
@given(SIDES, BUILT_IN, st.data())
def test_a_loss_on_a_guard_never_turns_a_discard_into_no_objection(sides, policy, data):
    if verdict_on(sides, policy, Goal.HOLD, guard=True).decision is not Decision.DISCARD:
        return
    place = data.draw(st.integers(0, len(sides[1]) - 1))
    sides[1][place] = lost(sides[1][place])
    assert verdict_on(sides, policy, Goal.HOLD, guard=True).decision is not None


@LAWS
@given(SIDES, BUILT_IN)
def test_of_two_sides_at_most_one_improves_on_the_other(sides, policy):
    both_ways = [verdict_on(order, policy, Goal.IMPROVE).decision for order in (sides, sides[::-1])]
    assert both_ways.count(Decision.PROMOTE) <= 1


@LAWS
@given(SIDES, BUILT_IN)
def test_a_side_is_never_better_than_itself(sides, policy):
    assert verdict_on((sides[0], sides[0]), policy, Goal.IMPROVE).decision in NOT_PROMOTED


@LAWS
@given(far_apart())
def test_a_side_against_itself_is_identical_evidence_and_holds(sides):
    verdict = verdict_on((sides[0], sides[0]), CALIBRATED, Goal.HOLD)
    assert verdict.identical
    assert verdict.decision is Decision.PROMOTE


@LAWS
@given(st.data())
def test_a_side_that_is_whole_holds_its_own(data):
    one = []
    for task in range(data.draw(st.integers(1, 5))):
        totals = data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
        for trial in range(data.draw(st.integers(1, 3))):
            record = data.draw(records(task, trial, totals, missing=False))
            if record.termination_reason == "max_steps":
                record = sim(task, 0.0, trial=trial, end="timeout")
            one.append(record)
    assert strict(one, one, Goal.HOLD).decision is Decision.PROMOTE


@LAWS
@given(SIDES, GOALS, st.booleans(), st.data())
def test_a_further_max_step_failure_never_improves_the_verdict(sides, goal, partial, data):
    baseline, candidate = sides
    how = {"partial_reason": "only in part"} if partial else {}
    before = strict(baseline, candidate, goal, **how).decision
    task = data.draw(st.integers(0, 5))
    trials = {record.trial for record in candidate if record.task_id == str(task)}
    trial = data.draw(st.sampled_from([*sorted(trials), len(trials)]))
    kept = [record for record in candidate if (record.task_id, record.trial) != (str(task), trial)]
    after = strict(baseline, [*kept, sim(task, 0.0, trial=trial, end="max_steps")], goal, **how).decision
    assert after.rank <= before.rank


@LAWS
@given(SIDES, st.sampled_from(["", "stopped by -x"]))
def test_a_guard_never_promotes_and_withholds_only_for_what_is_missing(sides, partial):
    decision = strict(*sides, is_guard=True, partial_reason=partial).decision
    assert decision is not Decision.PROMOTE
    if decision is Decision.INCONCLUSIVE:
        compared = {record.task_id for record in sides[0]} & {record.task_id for record in sides[1]}
        assert partial or not compared or any(record.reward is None for side in sides for record in side)


@LAWS
@given(far_apart(), GOALS, st.booleans(), st.data())
def test_a_further_breach_of_any_kind_never_makes_harm_less_likely(both, goal, guard, data):
    before = verdict_on(both, CALIBRATED, goal, guard=guard)
    place = data.draw(st.integers(0, len(both[1]) - 1))
    record = both[1][place]
    if record.invariants is None:
        return
    kind = data.draw(st.sampled_from(Invariant))
    both[1][place] = record.model_copy(update={"invariants": {**record.invariants, kind: 1}})
    after = verdict_on(both, CALIBRATED, goal, guard=guard)
    p = [next((one.p for one in each.checks if one.id == "invariants"), None) for each in (before, after)]
    if p[0] is not None:
        assert p[1] is not None
        assert p[1] <= p[0] + 1e-9
    ranks = [(one.decision or Decision.PROMOTE).rank for one in (before, after)]
    assert ranks[1] <= ranks[0]


@LAWS
@given(far_apart(), GOALS, st.sampled_from([1, 40]))
def test_a_guard_without_harm_has_no_small_p_and_rules_out_twenty_points(both, goal, times):
    verdict = verdict_on(repeated(both, times), CALIBRATED, goal, guard=True)
    if verdict.guard is not GuardAnswer.NO_HARM_DETECTED:
        assert verdict.decision in (Decision.DISCARD, Decision.INCONCLUSIVE)
        return
    assert verdict.decision is None
    assert all(one.p is None or one.p > 0.05 for one in verdict.checks)
    if goal is not Goal.NO_REGRESSION:
        is_detected = verdict.detectable is not None and verdict.detectable <= 0.20 + 1e-9
        assert is_detected or verdict.reason.endswith("is excluded")


@LAWS
@given(far_apart(), st.data())
def test_no_regression_passes_nothing_that_another_goal_discards(both, data):
    """Lost simulations included: a candidate that is discarded without them never passes with them."""
    others = [verdict_on(both, CALIBRATED, goal).decision for goal in (Goal.HOLD, Goal.IMPROVE)]
    verdict = verdict_on(both, CALIBRATED, Goal.NO_REGRESSION)
    assert verdict.label is not Label.CLEAN
    if Decision.DISCARD in others:
        assert verdict.decision is Decision.DISCARD
    lose(both, data, 4)
    if verdict.decision is Decision.DISCARD:
        assert verdict_on(both, CALIBRATED, Goal.NO_REGRESSION).decision is not Decision.PROMOTE


def repeated(both: Sides, times: int) -> Sides:
    """Each task so many times, under ids of its own."""
    return tuple(
        [
            record.model_copy(update={"id": f"{record.id}-{copy}", "task_id": f"{record.task_id}-{copy}"})
            for copy in range(times)
            for record in one
        ]
        for one in both
    )


DECISIONS = st.lists(st.sampled_from([*Decision, None]), max_size=6)


@LAWS
@given(DECISIONS, DECISIONS, st.data())
def test_the_worst_of_several_verdicts_depends_on_neither_order_nor_grouping(first, second, data):
    whole = worst_decision([*first, *second])
    assert worst_decision([worst_decision(first), worst_decision(second)]) is whole
    assert worst_decision(data.draw(st.permutations([*first, *second]))) is whole


@LAWS
@given(DECISIONS)
@example([None, None])
@example([Decision.PROMOTE, Decision.DISCARD, Decision.INCONCLUSIVE])
def test_the_worst_is_discard_before_inconclusive_before_promote_and_none_does_not_count(decisions):
    order = (Decision.DISCARD, Decision.INCONCLUSIVE, Decision.PROMOTE)
    assert worst_decision(decisions) is next((decision for decision in order if decision in decisions), None)


def test_the_laws_about_lost_simulations_speak_of_promotions_that_do_survive_one():
    baseline, candidate = side(*[0] * 11), side(*[1] * 11)
    baseline[3] = lost(baseline[3])
    assert strict(baseline, candidate).decision is Decision.PROMOTE


def test_the_laws_speak_of_discards_and_promotions_that_do_come_about():
    old = [sim(task, float(task < 11), read=(2, 2), write=(1, 1)) for task in range(12)]
    new = [
        sim(task, 0.0, read=(2, 0), write=(1, 0)).model_copy(update={"id": f"n{task}"}) for task in range(12)
    ]
    assert verdict_on((old, new), CALIBRATED, Goal.HOLD).decision is Decision.DISCARD
    assert verdict_on((old, new), CALIBRATED, Goal.HOLD, guard=True).decision is Decision.DISCARD
    assert verdict_on((new, old), CALIBRATED, Goal.IMPROVE).decision is Decision.PROMOTE


# Many comparisons at once.


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
        for (which, records_of_side), task, trial in product(enumerate(sides), range(tasks), range(trials)):
            reward = float(which) if better and draw(st.booleans()) else draw(rewards)
            failed_end = draw(st.sampled_from([*["user_stop"] * 8, "max_steps", "agent_error"]))
            end = failed_end if reward == 0.0 else "user_stop"
            record = sim(task, reward, trial=trial, end=end, read=(task % 3, draw(st.integers(0, task % 3))))
            kind = draw(st.sampled_from([Invariant.PROMISES, Invariant.CONSENT])) if watched else None
            broken = {kind: draw(st.integers(0, 1))} if kind and reward is not None else None
            update = {"id": f"{which}-{task}-{trial}", "invariants": broken}
            records_of_side.append(record.model_copy(update=update))
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
