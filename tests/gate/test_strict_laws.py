"""What no comparison may do, whatever the figures."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.gate.decide import worst
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.verdict import Decision, Goal
from tests.gate_helpers import Side, lost, side, sim, strict

LAW = settings(deadline=None, max_examples=40)
GOALS = st.sampled_from(Goal)
NOT_PROMOTED = (Decision.DISCARD, Decision.INCONCLUSIVE)
REWARDS = st.sampled_from([0.0, 0.25, 0.3, 1.0])

Sides = tuple[Side, Side]


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


SIDES = st.one_of(tables(), near_promotions())


@LAW
@given(SIDES, GOALS, st.data())
def test_the_order_of_records_does_not_matter(sides, goal, data):
    shuffled = [data.draw(st.permutations(one)) for one in sides]
    assert strict(*shuffled, goal) == strict(*sides, goal)


@settings(LAW, max_examples=60)
@given(SIDES, GOALS, st.data())
def test_losing_simulations_to_infrastructure_never_yields_a_promotion(sides, goal, data):
    before = strict(*sides, goal).decision
    pool = [(which, place) for which in (0, 1) for place in range(len(sides[which]))]
    for which, place in data.draw(st.sets(st.sampled_from(pool), min_size=1, max_size=3)) if pool else ():
        sides[which][place] = lost(sides[which][place], before_it_ran=data.draw(st.booleans()))
    after = strict(*sides, goal).decision
    assert not (before in NOT_PROMOTED and after is Decision.PROMOTE)


@LAW
@given(near_promotions(), GOALS, st.integers(0, 10), st.sampled_from([0, 1]), st.booleans())
def test_losing_one_simulation_of_eleven_never_yields_a_promotion(sides, goal, place, which, early):
    before = strict(*sides, goal).decision
    sides[which][place] = lost(sides[which][place], before_it_ran=early)
    assert not (before in NOT_PROMOTED and strict(*sides, goal).decision is Decision.PROMOTE)


@LAW
@given(SIDES, st.sampled_from([0, 1]))
def test_a_side_is_never_better_than_itself(sides, which):
    assert strict(sides[which], sides[which], Goal.IMPROVE).decision in NOT_PROMOTED


@LAW
@given(st.data())
def test_a_side_that_is_whole_holds_its_own(data):
    one = []
    for task in range(data.draw(st.integers(1, 5))):
        totals = data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
        for trial in range(data.draw(st.integers(1, 3))):
            record = data.draw(records(task, trial, totals, missing=False))
            one.append(record if not record.hit_max_steps else sim(task, 0.0, trial=trial, end="timeout"))
    assert strict(one, one, Goal.HOLD).decision is Decision.PROMOTE


@LAW
@given(SIDES)
def test_of_two_sides_at_most_one_improves_on_the_other(sides):
    decisions = [strict(*sides).decision, strict(*reversed(sides)).decision]
    assert decisions.count(Decision.PROMOTE) <= 1


@LAW
@given(SIDES, GOALS, st.booleans(), st.data())
def test_a_further_max_step_failure_never_improves_the_verdict(sides, goal, partial, data):
    baseline, candidate = sides
    how = {"partial": "only in part"} if partial else {}
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
    decision = strict(*sides, guard=True, partial=partial).decision
    assert decision is not Decision.PROMOTE
    if decision is Decision.INCONCLUSIVE:
        compared = {record.task_id for record in sides[0]} & {record.task_id for record in sides[1]}
        assert partial or not compared or any(record.reward is None for side in sides for record in side)


@LAW
@given(SIDES, st.data())
def test_a_loss_on_a_guard_never_turns_a_discard_into_no_objection(sides, data):
    if strict(*sides, guard=True).decision is not Decision.DISCARD:
        return
    baseline, candidate = sides
    position = data.draw(st.integers(0, len(candidate) - 1))
    lost = candidate[position].model_copy(
        update={
            "status": "infrastructure_error",
            "reward": None,
            "termination_reason": "infrastructure_error",
        }
    )
    after = [*candidate[:position], lost, *candidate[position + 1 :]]
    assert strict(baseline, after, guard=True).decision is not None


DECISIONS = st.lists(st.sampled_from([*Decision, None]), max_size=6)


@LAW
@given(DECISIONS, DECISIONS, st.data())
def test_the_worst_of_several_verdicts_depends_on_neither_order_nor_grouping(first, second, data):
    whole = worst([*first, *second])
    assert worst([worst(first), worst(second)]) is whole
    assert worst(data.draw(st.permutations([*first, *second]))) is whole


@LAW
@given(DECISIONS)
@example([None, None])
@example([Decision.PROMOTE, Decision.DISCARD, Decision.INCONCLUSIVE])
def test_the_worst_is_discard_before_inconclusive_before_promote_and_none_does_not_count(decisions):
    order = (Decision.DISCARD, Decision.INCONCLUSIVE, Decision.PROMOTE)
    assert worst(decisions) is next((decision for decision in order if decision in decisions), None)


def test_the_laws_about_lost_simulations_speak_of_promotions_that_do_survive_one():
    baseline, candidate = side(*[0] * 11), side(*[1] * 11)
    baseline[3] = lost(baseline[3])
    assert strict(baseline, candidate).decision is Decision.PROMOTE
