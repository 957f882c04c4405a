"""The tests of a sealed split, their analyses, and the level of each."""

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import multivariate_normal, norm

from pytest_trace2evolve.gate.alpha_spending import Stage, alpha_share, stage_alpha
from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.claims import AlphaSpending, Claim, spending_of
from pytest_trace2evolve.gate.decide import decision_ranks
from pytest_trace2evolve.gate.pairs import Comparisons
from pytest_trace2evolve.gate.power import AGENTS, Design, Effect, simulate_comparisons, simulate_stages
from pytest_trace2evolve.gate.protocols import Question
from pytest_trace2evolve.records.ledger import DatedEntry, Evaluation
from pytest_trace2evolve.records.verdict import Decision, Goal, Label, Verdict
from pytest_trace2evolve.session.verdicts import combine_with_ledger
from tests.ledger_helpers import at, judged, seen

OPEN, WORSE = Decision.INCONCLUSIVE, Decision.DISCARD


def claim(name: str = "v9", **further: Any) -> Claim:
    fields: dict[str, Any] = {
        "suite": "desk",
        "split": "heldout",
        "lock": "lock-1",
        "candidate": f"text of {name}",
        "agent": "agent",
        "baseline": "who v0 is",
        "policy": "calibrated",
        "trials": 4,
        "evidence": "evidence of v0",
    }
    return Claim(**{**fields, **further})


def old(*arguments: Any, **further: Any) -> Evaluation:
    """An entry from before analyses were counted."""
    return judged(*arguments, **{"analysis": None, "baseline_identity": None, **further})


def number(entries: list[DatedEntry], wanted: Claim) -> int:
    look = spending_of(entries, wanted)
    assert (look.repeated_verdict, look.continued_verdict, look.analysis) == (None, None, 1)
    return look.number


def test_the_first_claim_is_test_1_and_each_further_candidate_the_next() -> None:
    assert number([], claim()) == 1
    assert number([judged()], claim()) == 2
    assert number([judged(), judged(at(1), name="v2", look=2)], claim()) == 3


def test_all_analyses_of_all_tests_together_spend_no_more_than_alpha() -> None:
    assert alpha_share(1) == pytest.approx(6 / math.pi**2)
    assert alpha_share(2) == pytest.approx(alpha_share(1) / 4)
    assert 0.9999 < sum(alpha_share(k) for k in range(1, 20_000)) < 1
    assert [alpha_share(2, j) / alpha_share(2) for j in (1, 2, 3)] == pytest.approx([0.75, 0.1875, 0.046875])
    assert sum(alpha_share(2, j) for j in range(1, 60)) == pytest.approx(alpha_share(2))


@pytest.mark.parametrize(
    "entry",
    [
        seen(),
        judged(goal=Goal.HOLD),
        judged(label=Label.DEVELOPMENT),
        judged(suite="more"),
        judged(split="other"),
        judged(lock="lock-2"),
    ],
)
def test_only_clean_claims_on_the_same_locked_split_count(entry: DatedEntry) -> None:
    assert number([entry], claim()) == 1


def test_the_same_claim_repeats_the_recorded_verdict() -> None:
    first = judged(name="v2", look=2, decision=WORSE)
    assert spending_of([judged(), first], claim("v2")) == AlphaSpending(2, repeated_verdict=first, trials=4)


def test_the_worst_verdict_of_an_analysis_and_its_repeats_stands() -> None:
    first = judged()
    worse = judged(at(1), decision=OPEN, repeats=first.name)
    better = judged(at(2), repeats=worse.name)
    assert spending_of([better, first, worse], claim("v1")).repeated_verdict == worse
    early, late = judged(at(3), decision=WORSE), judged(at(4), decision=WORSE)
    assert spending_of([first, late, early, better], claim("v1", trials=99)).repeated_verdict == early, (
        "discards are final"
    )


def test_more_trials_continue_an_inconclusive_test() -> None:
    first = judged(decision=OPEN)
    other = judged(at(1), name="v2", look=2)
    assert spending_of([first, other], claim("v1", trials=8)) == AlphaSpending(
        1, 2, continued_verdict=first, trials=8
    )
    second = judged(at(2), decision=OPEN, trials=8, analysis=2)
    assert spending_of([first, other, second], claim("v1", trials=16)) == AlphaSpending(
        1, 3, continued_verdict=second, trials=16
    )
    assert number([first, second], claim("v2")) == 2, "however many analyses, it is one test"
    promoted = judged(at(3), trials=16, analysis=3)
    assert spending_of([first, second, promoted], claim("v1", trials=16)).repeated_verdict == promoted


@pytest.mark.parametrize("trials", [1, 3, 4])
def test_as_many_trials_or_fewer_repeat_an_inconclusive_verdict(trials: int) -> None:
    first = judged(decision=OPEN)
    assert spending_of([first], claim("v1", trials=trials)) == AlphaSpending(
        1, repeated_verdict=first, trials=4
    )


def test_a_claim_that_spent_its_level_comes_before_one_that_could_not() -> None:
    idle, spent = judged(at(1), alpha=None, decision=OPEN), judged(at(2))
    assert spending_of([idle], claim("v1")) == AlphaSpending(1, trials=4)
    assert spending_of([idle, spent], claim("v1")).repeated_verdict == spent
    second = judged(at(3), alpha=None, decision=OPEN, analysis=2, trials=8)
    undecided = judged(at(2), decision=OPEN)
    assert spending_of([undecided, second], claim("v1", trials=8)) == AlphaSpending(
        1, 2, continued_verdict=undecided, trials=8
    )


@pytest.mark.parametrize("other", [{"agent": "x"}, {"baseline": "x"}, {"policy": "x"}])
def test_another_agent_baseline_or_policy_is_a_new_test(other: dict[str, str]) -> None:
    assert number([judged()], claim("v1", **other)) == 2
    fields = {"baseline_identity": "x"} if "baseline" in other else other
    entries = [judged(), judged(at(1), look=2, **fields)]
    assert number(entries, claim("v2")) == 3, "each such test counts for those that come later"


def test_a_policy_without_alpha_makes_its_candidate_count_once() -> None:
    strict = judged(policy="strict", alpha=None)
    assert number([strict], claim("v1")) == 1
    assert number([strict, judged(at(1), policy="strict", alpha=None, trials=1)], claim("v2")) == 2
    assert number([strict, judged(at(1))], claim("v2")) == 2
    assert spending_of([strict], claim("v1", policy="strict", trials=8)).repeated_verdict == strict


def test_entries_from_before_analyses_have_spent_their_whole_level() -> None:
    first = old(decision=OPEN)
    assert spending_of([first], claim("v1")) == AlphaSpending(1, None, repeated_verdict=first, trials=4)
    assert number([first], claim("v1", trials=8)) == 2
    assert number([first, old(at(1), trials=8, look=2), old(at(2), trials=16, look=3)], claim("v2")) == 4
    assert number([first], claim("v1", evidence="x")) == 2, "its baseline is known by its evidence alone"
    again = judged(at(1), analysis=None, trials=2, decision=OPEN, repeats=first.name)
    assert number([first, again], claim("v2")) == 2, "a repeat spends nothing"


def test_entries_from_before_analyses_keep_their_names() -> None:
    entry = old()
    assert entry.name == "9f6946c99eccf9447ac821c3fdd3085a"
    assert not {"analysis", "baseline_identity"} & entry.to_json().keys()
    assert {"analysis", "baseline_identity"} <= judged().to_json().keys()


def test_an_analysis_of_no_test_is_no_entry() -> None:
    with pytest.raises(ValueError, match="analysis 2 is set, but look is not"):
        Evaluation.model_validate({**judged(goal=Goal.HOLD).to_json(), "analysis": 2})


def fresh(decision: Decision) -> Verdict:
    return Verdict(decision=decision, policy="calibrated", goal=Goal.IMPROVE, label=Label.CLEAN)


@pytest.mark.parametrize(("recorded", "now"), [*itertools.product(Decision, Decision)])
def test_the_worse_of_the_recorded_and_the_fresh_decision_counts(recorded: Decision, now: Decision) -> None:
    look = spending_of([judged(decision=recorded)], claim("v1"))
    verdict = combine_with_ledger(fresh(now), look)
    assert verdict.decision is min(recorded, now, key=lambda one: one.rank)
    message = (
        f"recorded: {recorded.value.upper()} on 2026-11-20; now: {now.value.upper()}; the worse of the two"
    )
    assert verdict.reason.startswith(f"{message} counts")


def test_a_continued_test_says_what_it_continues() -> None:
    look = spending_of([judged(decision=OPEN, look=2)], claim("v1", trials=8))
    verdict = combine_with_ledger(fresh(Decision.PROMOTE), look, "a reason")
    assert verdict.decision is Decision.PROMOTE
    message = "continues test 2: INCONCLUSIVE on 2026-11-20, with 4 trials a task"
    assert verdict.reason == f"a reason; {message}"


def drawn(mean: float, rows: int, seed: int) -> Comparisons:
    """Comparisons of a medium agent, 40 tasks of 4 trials, with one that passes this share of the tasks."""
    agent = AGENTS["medium"]
    design = Design(40, 4, is_live=False)
    return simulate_comparisons(np.random.default_rng(seed), agent, Effect(mean - agent.mean), design, rows)


@pytest.mark.parametrize("cumulative", [True, False])
def test_all_analyses_of_a_test_promote_an_equal_agent_no_more_often_than_its_level(cumulative: bool) -> None:
    """At 4, 8 and 16 trials, added or all new: at most alpha's share of test 1, and chance."""
    rows = 400
    random, design = np.random.default_rng(5), Design(40, 0, is_live=False)
    drawn = simulate_stages(
        random, AGENTS["medium"], Effect(0.0), design, rows, (4, 8, 16), cumulative=cumulative
    )
    rank = np.full(rows, OPEN.rank)
    for analysis, compared in enumerate(drawn.stages, start=1):
        assert compared.candidate.trials[0, 0] == 2 * 2**analysis
        now = decision_ranks(CALIBRATED, compared, Question(Goal.IMPROVE, share=alpha_share(1, analysis)))
        rank = np.where(rank == OPEN.rank, now, rank)
    promoted = int((rank == Decision.PROMOTE.rank).sum())
    assert 0 < promoted <= stats.binom.ppf(0.999, rows, 0.05 * alpha_share(1))


def test_a_goal_that_claims_nothing_counts_nothing_and_is_never_clean() -> None:
    idle = judged(goal=Goal.NO_REGRESSION, label=Label.DEVELOPMENT, alpha=None)
    assert not idle.claims_clean
    assert spending_of([idle], claim("v2")).number == 1
    with pytest.raises(ValueError, match="label clean with goal no-regression, which claims nothing"):
        Evaluation.model_validate_json(json.dumps({**idle.to_json(), "label": "clean"}))


# Stages of one run.


SCHEDULES = st.lists(st.integers(1, 40), min_size=2, max_size=5, unique=True).map(sorted)


@pytest.mark.parametrize(("looks", "bound"), [(2, 1.875), (3, 1.992), (4, 2.067), (5, 2.122)])
def test_equal_steps_give_pococks_bounds(looks: int, bound: float) -> None:
    """His constants for a two-sided .10, which is a one-sided .05 on either side."""
    assert norm.isf(stage_alpha(0.05, range(1, looks + 1))) == pytest.approx(bound, abs=6e-4)


@settings(max_examples=5)
@given(SCHEDULES, st.floats(0.001, 0.2))
def test_the_stages_together_keep_the_level(schedule: list[int], alpha: float) -> None:
    """Against scipy's own integral of the joint normal distribution."""
    nominal = stage_alpha(alpha, schedule)
    assert alpha / len(schedule) <= nominal < alpha
    counts = np.array(schedule, dtype=float)
    ratio = counts[:, None] / counts[None, :]
    joint = multivariate_normal(cov=np.sqrt(np.minimum(ratio, 1 / ratio)))
    bound = norm.isf(nominal)
    assert 1 - joint.cdf(np.full(len(schedule), bound)) == pytest.approx(alpha, abs=2e-4)


def test_a_stage_says_where_it_stands() -> None:
    assert str(Stage(2, 3, 4, 0.02)) == "stage 2 of 3: 4 trials"
    assert str(Stage(1, 2, 1, 0.02)) == "stage 1 of 2: 1 trial"
    assert [Stage(one, 2, 1, 0.02).is_last for one in (1, 2)] == [False, True]
