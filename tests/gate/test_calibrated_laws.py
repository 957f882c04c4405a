"""What policy `calibrated` may not do, whatever the figures."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.decide import decide
from pytest_trace2evolve.gate.intervals import bounds
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.significance import holm, sign_flip
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.records.verdict import Decision, Goal, GuardAnswer, Label, Verdict
from tests.gate_helpers import Side, lost, sim

LAW = settings(deadline=None, max_examples=40)
GOALS = st.sampled_from(Goal)
ENDS = st.sampled_from(["user_stop", "agent_stop", "max_steps"])


@st.composite
def sides(draw: st.DrawFn, whole: bool = True) -> tuple[Side, Side]:
    """Two sides of up to a dozen tasks with the same trials, often far apart, so that verdicts do fall."""
    trials = draw(st.integers(1, 3))
    lean = draw(st.sampled_from([(0.1, 0.9), (0.9, 0.1), (0.5, 0.5), (0.9, 0.9)]))
    random = draw(st.randoms(use_true_random=False))
    both: tuple[Side, Side] = ([], [])
    tempers = [draw(st.sampled_from([None, 0.0, 0.1, 0.9])) for _ in both]
    for task in range(draw(st.integers(1, 12))):
        for one, rate, name, temper in zip(both, lean, "bc", tempers, strict=True):
            for trial in range(trials):
                one.append(_record(random, task, trial, rate, name, temper))
    return both


def _record(
    random, task: int, trial: int, rate: float, name: str, temper: float | None
) -> SimulationEvidence:
    """A simulation; `temper` is how often it breaks an invariant, None where nobody looks."""
    reward = float(random.random() < rate)
    end = "max_steps" if not reward and random.random() < 0.3 else "user_stop"
    matched = 2 if reward else random.randrange(3)
    record = sim(task, reward, trial=trial, end=end, read=(2, matched), write=(1, int(reward)))
    kinds = (Invariant.CONSENT, Invariant.CONSENT, Invariant.PROMISES)
    broken = None if temper is None else {random.choice(kinds): 1} if random.random() < temper else {}
    return record.model_copy(update={"id": f"{name}-{task}-{trial}", "invariants": broken})


def calibrated(baseline: Side, candidate: Side, goal: Goal, *, guard: bool = False) -> Decision | None:
    return decide(pair(baseline, candidate), CALIBRATED, goal=goal, label=Label.CLEAN, guard=guard).decision


@LAW
@given(sides(), GOALS, st.data())
def test_the_order_of_records_does_not_matter(both, goal, data):
    shuffled = [data.draw(st.permutations(one)) for one in both]
    first, second = (decide(pair(*one), CALIBRATED, goal=goal, label=Label.CLEAN) for one in (both, shuffled))
    assert first == second


@settings(LAW, max_examples=60)
@given(sides(), GOALS, st.data())
def test_losing_simulations_never_turns_a_discard_into_a_promotion(both, goal, data):
    before = calibrated(*both, goal)
    pool = [(which, place) for which in (0, 1) for place in range(len(both[which]))]
    for which, place in data.draw(st.sets(st.sampled_from(pool), min_size=1, max_size=4)):
        both[which][place] = lost(both[which][place], before_it_ran=data.draw(st.booleans()))
    after = calibrated(*both, goal)
    assert not (before is Decision.DISCARD and after is Decision.PROMOTE)


@LAW
@given(sides(), st.data())
def test_a_loss_on_a_guard_never_turns_a_discard_into_no_objection(both, data):
    if calibrated(*both, Goal.HOLD, guard=True) is not Decision.DISCARD:
        return
    place = data.draw(st.integers(0, len(both[1]) - 1))
    both[1][place] = lost(both[1][place])
    assert calibrated(*both, Goal.HOLD, guard=True) is not None


@LAW
@given(sides(), GOALS)
def test_of_two_sides_at_most_one_improves_on_the_other(both, goal):
    decisions = [calibrated(*both, Goal.IMPROVE), calibrated(*reversed(both), Goal.IMPROVE)]
    assert decisions.count(Decision.PROMOTE) <= 1


@LAW
@given(sides())
def test_a_side_against_itself_holds_and_never_improves(both):
    verdicts = [
        decide(pair(both[0], both[0]), CALIBRATED, goal=goal, label=Label.CLEAN)
        for goal in (Goal.HOLD, Goal.IMPROVE)
    ]
    assert all(verdict.identical for verdict in verdicts)
    assert [verdict.decision for verdict in verdicts] == [Decision.PROMOTE, Decision.INCONCLUSIVE]


@settings(LAW, max_examples=60)
@given(sides(), GOALS, st.booleans(), st.data())
def test_a_further_breach_of_any_kind_never_makes_harm_less_likely(both, goal, guard, data):
    def judged() -> Verdict:
        return decide(pair(*both), CALIBRATED, goal=goal, label=Label.CLEAN, guard=guard)

    before = judged()
    place = data.draw(st.integers(0, len(both[1]) - 1))
    record = both[1][place]
    if record.invariants is None:
        return
    kind = data.draw(st.sampled_from(Invariant))
    both[1][place] = record.model_copy(update={"invariants": {**record.invariants, kind: 1}})
    after = judged()
    p = [next((one.p for one in each.checks if one.id == "invariants"), None) for each in (before, after)]
    if p[0] is not None:
        assert p[1] is not None
        assert p[1] <= p[0] + 1e-9
    ranks = [(one.decision or Decision.PROMOTE).rank for one in (before, after)]
    assert ranks[1] <= ranks[0]


@settings(LAW, max_examples=60)
@given(sides(), GOALS, st.sampled_from([1, 40]))
def test_a_guard_without_harm_has_no_small_p_and_could_have_detected_twenty_points(both, goal, times):
    verdict = decide(pair(*repeated(both, times)), CALIBRATED, goal=goal, label=Label.CLEAN, guard=True)
    if verdict.guard is not GuardAnswer.NO_HARM_DETECTED:
        assert verdict.decision in (Decision.DISCARD, Decision.INCONCLUSIVE)
        return
    assert verdict.decision is None
    assert all(one.p is None or one.p > 0.05 for one in verdict.checks)
    if goal is not Goal.NO_REGRESSION:
        assert verdict.detectable is not None
        assert verdict.detectable <= 0.20 + 1e-9


@settings(LAW, max_examples=60)
@given(sides(), st.data())
def test_no_regression_passes_nothing_that_another_goal_discards(both, data):
    """Lost simulations included: a candidate that is discarded without them never passes with them."""
    others = [calibrated(*both, goal) for goal in (Goal.HOLD, Goal.IMPROVE)]
    verdict = decide(pair(*both), CALIBRATED, goal=Goal.NO_REGRESSION, label=Label.CLEAN)
    assert verdict.label is not Label.CLEAN
    if Decision.DISCARD in others:
        assert verdict.decision is Decision.DISCARD
    pool = [(which, place) for which in (0, 1) for place in range(len(both[which]))]
    for which, place in data.draw(st.sets(st.sampled_from(pool), max_size=4)):
        both[which][place] = lost(both[which][place], before_it_ran=data.draw(st.booleans()))
    if verdict.decision is Decision.DISCARD:
        assert calibrated(*both, Goal.NO_REGRESSION) is not Decision.PROMOTE


def repeated(both: tuple[Side, Side], times: int) -> tuple[Side, Side]:
    """Each task so many times, under ids of its own."""
    return tuple(
        [
            record.model_copy(update={"id": f"{record.id}-{copy}", "task_id": f"{record.task_id}-{copy}"})
            for copy in range(times)
            for record in one
        ]
        for one in both
    )


DIFFERENCES = st.lists(st.integers(-6, 6), min_size=1, max_size=10)


@LAW
@given(DIFFERENCES, st.sampled_from([1, 2, 3, 4, 7]))
def test_the_sign_flip_is_the_exact_permutation_test(steps, scale):
    differences = np.array(steps, dtype=float) / scale
    found = sign_flip(differences[None, :])
    signs = 1 - 2 * ((np.arange(1 << len(steps))[:, None] >> np.arange(len(steps))) & 1)
    sums = signs @ np.abs(np.array(steps))
    assert np.isclose(found.low[0], (sums <= sum(steps)).mean())
    assert np.isclose(found.high[0], (sums >= sum(steps)).mean())


@LAW
@given(DIFFERENCES, st.data())
def test_a_better_task_never_makes_harm_more_likely(steps, data):
    place = data.draw(st.integers(0, len(steps) - 1))
    better = list(steps)
    better[place] += data.draw(st.integers(1, 5))
    before, after = (sign_flip(np.array(one, dtype=float)[None, :] / 12) for one in (steps, better))
    assert after.low[0] >= before.low[0] - 1e-9
    assert after.high[0] <= before.high[0] + 1e-9


def test_the_sign_flip_agrees_with_scipys_permutation_test():
    random = np.random.default_rng(3)
    differences = random.integers(-3, 4, 9) / 3
    by_scipy = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", alternative="less", n_resamples=np.inf
    )
    assert np.isclose(sign_flip(differences[None, :]).low[0], by_scipy.pvalue)


def test_differences_off_any_lattice_are_resampled_close_to_the_truth():
    random = np.random.default_rng(5)
    differences = random.normal(0.2, 0.5, (1, 12))
    signs = 1 - 2 * ((np.arange(1 << 12)[:, None] >> np.arange(12)) & 1)
    exact = (signs @ np.abs(differences[0]) >= differences.sum()).mean()
    found = sign_flip(differences)
    assert abs(found.high[0] - exact) < 4 * np.sqrt(exact * (1 - exact) / 9_999) + 1e-3
    assert found.high[0] == sign_flip(differences).high[0]


P = st.floats(0.0, 1.0) | st.just(float("nan"))


@LAW
@given(st.lists(P, min_size=1, max_size=7), st.data())
def test_holm_is_between_the_raw_p_and_bonferroni_and_keeps_their_order(raw, data):
    names = [f"check-{place}" for place in range(len(raw))]
    adjusted = holm({name: np.array([p]) for name, p in zip(names, raw, strict=True)}, {})
    known = [(p, float(adjusted[name][0])) for name, p in zip(names, raw, strict=True) if not np.isnan(p)]
    assert all(np.isnan(adjusted[name][0]) for name, p in zip(names, raw, strict=True) if np.isnan(p))
    for p, q in known:
        assert p - 1e-12 <= q <= min(1.0, p * len(known)) + 1e-12
    ordered = [q for _, q in sorted(known)]
    assert ordered == sorted(ordered)


@LAW
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.floats(0.01, 0.2))
def test_bounds_hold_the_mean_between_them_and_mirror(values, alpha):
    found, mirrored = (bounds(np.array([one]), alpha) for one in (values, [-value for value in values]))
    assert found.low[0] <= found.estimate[0] + 1e-12 <= found.high[0] + 2e-12
    assert np.isclose(found.low[0], -mirrored.high[0])
    assert -1 <= found.low[0] <= found.high[0] <= 1


def test_without_a_discordant_task_the_bound_is_that_of_as_many_equal_outcomes():
    found = bounds(np.zeros((1, 40)), 0.05)
    assert np.isclose(found.low[0], -(1 - 0.05 ** (1 / 40)))
    assert found.deviation[0] > 0


def test_the_laws_speak_of_discards_and_promotions_that_do_come_about():
    old = [sim(task, float(task < 11), read=(2, 2), write=(1, 1)) for task in range(12)]
    new = [
        sim(task, 0.0, read=(2, 0), write=(1, 0)).model_copy(update={"id": f"n{task}"}) for task in range(12)
    ]
    assert calibrated(old, new, Goal.HOLD) is Decision.DISCARD
    assert calibrated(old, new, Goal.HOLD, guard=True) is Decision.DISCARD
    assert calibrated(new, old, Goal.IMPROVE) is Decision.PROMOTE
