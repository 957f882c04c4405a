"""Laws of comparisons, for all figures and policies."""

from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.decide import GateInput, decide, worst_decision
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.policy import STRICT
from pytest_trace2evolve.gate.protocols import Policy
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.records.verdict import Decision, Goal, GuardAnswer, Label, Verdict
from tests.gate_helpers import Side, lost, side, sim, strict

LAW = settings(deadline=None, max_examples=25)
GOALS = st.sampled_from(Goal)
POLICIES = st.sampled_from([CALIBRATED, STRICT])
NOT_PROMOTED = (Decision.DISCARD, Decision.INCONCLUSIVE)
REWARDS = st.sampled_from([0.0, 0.25, 0.3, 1.0])

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
    reward = draw(REWARDS | st.none() if missing else REWARDS)
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


def judged(sides: Sides, policy: Policy, goal: Goal, *, guard: bool = False, partial: str = "") -> Verdict:
    return decide(
        GateInput(pair(*sides), policy, goal=goal, label=Label.CLEAN, is_guard=guard, partial_reason=partial)
    )


def lose(sides: Sides, data: st.DataObject, most: int) -> None:
    """Lose some simulations of either side."""
    pool = [(which, place) for which in (0, 1) for place in range(len(sides[which]))]
    for which, place in data.draw(st.sets(st.sampled_from(pool), min_size=1, max_size=most)) if pool else ():
        sides[which][place] = lost(sides[which][place], before_it_ran=data.draw(st.booleans()))


@LAW
@given(SIDES, POLICIES, GOALS, st.data())
def test_the_order_of_records_does_not_matter(sides, policy, goal, data):
    shuffled = tuple(data.draw(st.permutations(records)) for records in sides)
    assert judged(shuffled, policy, goal) == judged(sides, policy, goal)


@settings(LAW, max_examples=50)
@given(SIDES, POLICIES, GOALS, st.data())
def test_losing_simulations_never_yields_a_promotion(sides, policy, goal, data):
    before = judged(sides, policy, goal).decision
    lose(sides, data, 4)
    after = judged(sides, policy, goal).decision
    # More data may settle what `calibrated` left open; a discard stays one, and `strict` compares points.
    excluded = NOT_PROMOTED if policy is STRICT else (Decision.DISCARD,)
    assert not (before in excluded and after is Decision.PROMOTE)


@LAW
@given(near_promotions(), GOALS, st.integers(0, 10), st.sampled_from([0, 1]), st.booleans())
def test_losing_one_simulation_of_eleven_never_yields_a_promotion(sides, goal, place, which, early):
    before = strict(*sides, goal).decision
    sides[which][place] = lost(sides[which][place], before_it_ran=early)
    assert not (before in NOT_PROMOTED and strict(*sides, goal).decision is Decision.PROMOTE)


@LAW
@given(SIDES, POLICIES, st.data())
def test_a_loss_on_a_guard_never_turns_a_discard_into_no_objection(sides, policy, data):
    if judged(sides, policy, Goal.HOLD, guard=True).decision is not Decision.DISCARD:
        return
    place = data.draw(st.integers(0, len(sides[1]) - 1))
    sides[1][place] = lost(sides[1][place])
    assert judged(sides, policy, Goal.HOLD, guard=True).decision is not None


@LAW
@given(SIDES, POLICIES)
def test_of_two_sides_at_most_one_improves_on_the_other(sides, policy):
    both_ways = [judged(order, policy, Goal.IMPROVE).decision for order in (sides, sides[::-1])]
    assert both_ways.count(Decision.PROMOTE) <= 1


@LAW
@given(SIDES, POLICIES)
def test_a_side_is_never_better_than_itself(sides, policy):
    assert judged((sides[0], sides[0]), policy, Goal.IMPROVE).decision in NOT_PROMOTED


@LAW
@given(far_apart())
def test_a_side_against_itself_is_identical_evidence_and_holds(sides):
    verdict = judged((sides[0], sides[0]), CALIBRATED, Goal.HOLD)
    assert verdict.identical
    assert verdict.decision is Decision.PROMOTE


@LAW
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


@LAW
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


@LAW
@given(SIDES, st.sampled_from(["", "stopped by -x"]))
def test_a_guard_never_promotes_and_withholds_only_for_what_is_missing(sides, partial):
    decision = strict(*sides, is_guard=True, partial_reason=partial).decision
    assert decision is not Decision.PROMOTE
    if decision is Decision.INCONCLUSIVE:
        compared = {record.task_id for record in sides[0]} & {record.task_id for record in sides[1]}
        assert partial or not compared or any(record.reward is None for side in sides for record in side)


@LAW
@given(far_apart(), GOALS, st.booleans(), st.data())
def test_a_further_breach_of_any_kind_never_makes_harm_less_likely(both, goal, guard, data):
    before = judged(both, CALIBRATED, goal, guard=guard)
    place = data.draw(st.integers(0, len(both[1]) - 1))
    record = both[1][place]
    if record.invariants is None:
        return
    kind = data.draw(st.sampled_from(Invariant))
    both[1][place] = record.model_copy(update={"invariants": {**record.invariants, kind: 1}})
    after = judged(both, CALIBRATED, goal, guard=guard)
    p = [next((one.p for one in each.checks if one.id == "invariants"), None) for each in (before, after)]
    if p[0] is not None:
        assert p[1] is not None
        assert p[1] <= p[0] + 1e-9
    ranks = [(one.decision or Decision.PROMOTE).rank for one in (before, after)]
    assert ranks[1] <= ranks[0]


@LAW
@given(far_apart(), GOALS, st.sampled_from([1, 40]))
def test_a_guard_without_harm_has_no_small_p_and_rules_out_twenty_points(both, goal, times):
    verdict = judged(repeated(both, times), CALIBRATED, goal, guard=True)
    if verdict.guard is not GuardAnswer.NO_HARM_DETECTED:
        assert verdict.decision in (Decision.DISCARD, Decision.INCONCLUSIVE)
        return
    assert verdict.decision is None
    assert all(one.p is None or one.p > 0.05 for one in verdict.checks)
    if goal is not Goal.NO_REGRESSION:
        is_detected = verdict.detectable is not None and verdict.detectable <= 0.20 + 1e-9
        assert is_detected or verdict.reason.endswith("is excluded")


@LAW
@given(far_apart(), st.data())
def test_no_regression_passes_nothing_that_another_goal_discards(both, data):
    """Lost simulations included: a candidate that is discarded without them never passes with them."""
    others = [judged(both, CALIBRATED, goal).decision for goal in (Goal.HOLD, Goal.IMPROVE)]
    verdict = judged(both, CALIBRATED, Goal.NO_REGRESSION)
    assert verdict.label is not Label.CLEAN
    if Decision.DISCARD in others:
        assert verdict.decision is Decision.DISCARD
    lose(both, data, 4)
    if verdict.decision is Decision.DISCARD:
        assert judged(both, CALIBRATED, Goal.NO_REGRESSION).decision is not Decision.PROMOTE


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


@LAW
@given(DECISIONS, DECISIONS, st.data())
def test_the_worst_of_several_verdicts_depends_on_neither_order_nor_grouping(first, second, data):
    whole = worst_decision([*first, *second])
    assert worst_decision([worst_decision(first), worst_decision(second)]) is whole
    assert worst_decision(data.draw(st.permutations([*first, *second]))) is whole


@LAW
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
    assert judged((old, new), CALIBRATED, Goal.HOLD).decision is Decision.DISCARD
    assert judged((old, new), CALIBRATED, Goal.HOLD, guard=True).decision is Decision.DISCARD
    assert judged((new, old), CALIBRATED, Goal.IMPROVE).decision is Decision.PROMOTE
