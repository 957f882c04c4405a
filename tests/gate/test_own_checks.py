"""Checks of one's own in the gate: the exact test, missing results, and the error rate of the policy."""

from dataclasses import replace
from itertools import product
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.gate.calibrated import CALIBRATED, Calibrated
from pytest_trace2evolve.gate.decide import GateInput, decide, decision_ranks
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.policy import STRICT
from pytest_trace2evolve.gate.power import AGENTS, Design, Effect, simulate_comparisons
from pytest_trace2evolve.gate.protocols import Policy, Question
from pytest_trace2evolve.gate.significance import fisher, stratified_fisher
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.trace_check import CheckOutcome
from pytest_trace2evolve.records.verdict import CheckResult, CheckStatus, Decision, Goal, Label, Verdict
from tests.gate.own_checks import with_checks
from tests.gate_helpers import Side, lost, sim

SUITE = replace(CALIBRATED, has_fixed_tasks=True)
K, B, N, E = CheckOutcome.KEPT, CheckOutcome.BROKEN, CheckOutcome.NOT_APPLICABLE, CheckOutcome.ERROR

# The exact test.

counts = st.integers(0, 4).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))
strata = st.lists(st.tuples(counts, counts), min_size=1, max_size=5)


def stratified(tasks: list[Any]) -> float:
    old, new = ([side[index] for side in tasks] for index in (0, 1))
    arrays = [np.array([[one[field] for one in side]]) for side, field in product((old, new), (1, 0))]
    return float(stratified_fisher(*arrays)[0])


@given(strata)
def test_the_test_is_the_convolution_of_hypergeometric_counts(tasks: list[Any]) -> None:
    chances = {0: 1.0}
    for (n_old, failed_old), (n_new, failed_new) in tasks:
        total = failed_old + failed_new
        spread: dict[int, float] = {}
        for count, chance in chances.items():
            for own in range(min(n_new, total) + 1):
                share = comb(n_new, own) * comb(n_old, total - own) / comb(n_old + n_new, total)
                spread[count + own] = spread.get(count + own, 0.0) + chance * share
        chances = spread
    observed = sum(new[1] for _, new in tasks)
    expected = sum(chance for count, chance in chances.items() if count >= observed)
    assert stratified(tasks) == pytest.approx(expected, abs=1e-9)


@given(counts, counts)
def test_with_one_task_it_is_fishers_test(old: tuple[int, int], new: tuple[int, int]) -> None:
    passed = [n - failed for n, failed in (old, new)]
    assert stratified([(old, new)]) == pytest.approx(
        fisher(passed[0], old[0], passed[1], new[0])[()], abs=1e-9
    )


@given(strata, st.integers(0, 4), st.booleans())
def test_an_improvement_never_strengthens_the_evidence_of_harm(
    tasks: list[Any], index: int, on_candidate: bool
) -> None:
    (n_old, failed_old), (n_new, failed_new) = tasks[index % len(tasks)]
    better = (
        ((n_old, failed_old), (n_new, max(failed_new - 1, 0)))
        if on_candidate
        else ((n_old, min(failed_old + 1, n_old)), (n_new, failed_new))
    )
    changed = [*tasks]
    changed[index % len(tasks)] = better
    assert stratified(changed) >= stratified(tasks) - 1e-9


# One comparison.


def side(outcomes: list[str], reward: float = 1.0, name: str = "mine") -> Side:
    """Tasks by the outcomes of their trials, such as `KKBE`."""
    letters = {one.value[0].upper(): one for one in CheckOutcome}
    return [
        sim(task, reward, trial=trial).model_copy(update={"checks": {name: letters[letter]}})
        for task, trials in enumerate(outcomes)
        for trial, letter in enumerate(trials)
    ]


def judge(
    old: Side, new: Side, policy: Policy = SUITE, goal: Goal = Goal.NO_REGRESSION
) -> tuple[Verdict, CheckResult]:
    verdict = decide(GateInput(pair(old, new), policy, goal=goal, label=Label.DEVELOPMENT))
    return verdict, next(check for check in verdict.checks if check.id == "mine")


def shifted(records: Side) -> Side:
    """The same records under other ids, so that the two sides are not identical."""
    return [record.model_copy(update={"id": f"new-{record.id}"}) for record in records]


@pytest.mark.parametrize("policy", [CALIBRATED, SUITE, STRICT])
def test_more_breaches_discard(policy: Policy) -> None:
    verdict, check = judge(side(["KKKK"] * 12), shifted(side(["BBBB"] * 12)), policy)
    assert check.status is CheckStatus.FAIL
    assert check.detail == "0 → 48 of 48 simulations"
    assert check.estimate == pytest.approx(1.0)
    assert verdict.decision is Decision.DISCARD
    verdict, check = judge(side(["BBBB"] * 12), shifted(side(["KKKK"] * 12)), policy)
    assert check.status is CheckStatus.PASS
    assert verdict.decision is Decision.PROMOTE


@pytest.mark.parametrize("policy", [CALIBRATED, SUITE, STRICT])
def test_missing_results_never_pass(policy: Policy) -> None:
    """A check without any result on the candidate leaves the verdict open, under every goal."""
    for goal in Goal:
        verdict, check = judge(side(["KKKK"] * 12), shifted(side(["EEEE"] * 12)), policy, goal)
        assert check.status is CheckStatus.UNDECIDED
        assert verdict.decision is not Decision.PROMOTE
        assert check.detail == "no result in 48 of 48 simulations of the candidate"


def test_missing_results_do_not_pass_because_the_evidence_is_identical() -> None:
    records = side(["EEEE"] * 12)
    verdict, check = judge(records, records)
    assert check.status is CheckStatus.UNDECIDED
    assert verdict.decision is not Decision.PROMOTE


def test_a_few_missing_results_do_not_block_and_do_not_convict() -> None:
    _, check = judge(side(["KKKK"] * 20), shifted(side(["KKKE", *["KKKK"] * 19])))
    assert check.status is CheckStatus.PASS
    # Too many of them: more than a tenth.
    _, check = judge(side(["KKKK"] * 20), shifted(side([*["KKKE"] * 10, *["KKKK"] * 10])))
    assert check.status is CheckStatus.UNDECIDED
    # Eight missing results could be the breaches that show harm.
    _, check = judge(side(["KKKK"] * 20), shifted(side([*["EEEE"] * 2, *["KKKK"] * 18])))
    assert check.status is CheckStatus.UNDECIDED


def test_a_check_that_applies_to_nothing_says_so() -> None:
    verdict, check = judge(side(["NNNN"] * 12), shifted(side(["NNNN"] * 12)))
    assert (check.status, check.detail) == (CheckStatus.NOT_APPLICABLE, "applies to no simulation")
    assert verdict.decision is Decision.PROMOTE


def test_an_ungated_check_decides_nothing() -> None:
    pairs = pair(side(["KKKK"] * 12), shifted(side(["BBBB"] * 12)))
    pairs = pairs.with_ungated_checks({"mine": "not gated: agreement not measured", "other": "unused"})
    verdict = decide(GateInput(pairs, SUITE, goal=Goal.NO_REGRESSION, label=Label.DEVELOPMENT))
    assert verdict.decision is Decision.PROMOTE
    assert [check.detail for check in verdict.checks if check.id == "mine"] == [
        "not gated: agreement not measured"
    ]
    assert "other" not in {check.id for check in verdict.checks}


outcome_texts = st.lists(st.text("KBNE", min_size=4, max_size=4), min_size=3, max_size=8)


@given(outcome_texts, st.data())
@pytest.mark.parametrize("policy", [CALIBRATED, SUITE, STRICT])
def test_a_verdict_with_missing_results_holds_for_every_outcome_of_them(
    policy: Policy, old: list[str], data: st.DataObject
) -> None:
    """A pass or a failure with missing results stays one for all possible missing results."""
    new = data.draw(st.lists(st.text("KBNE", min_size=4, max_size=4), min_size=len(old), max_size=len(old)))
    _, check = judge(side(old), shifted(side(new)), policy, Goal.HOLD)

    def fill(tasks: list[str]) -> list[str]:
        return [
            "".join(data.draw(st.sampled_from("KB")) if one == "E" else one for one in task) for task in tasks
        ]

    _, filled = judge(side(fill(old)), shifted(side(fill(new))), policy, Goal.HOLD)
    if check.status is CheckStatus.FAIL:
        assert filled.status is CheckStatus.FAIL
    if check.status is CheckStatus.PASS:
        assert filled.status in (CheckStatus.PASS, CheckStatus.NOT_APPLICABLE)


@given(outcome_texts, st.data())
def test_a_lost_simulation_never_turns_a_discard_into_a_promotion(
    outcomes: list[str], data: st.DataObject
) -> None:
    new = shifted(side(outcomes))
    old = side(["KKKK"] * len(outcomes))
    decision = judge(old, new)[0].decision
    index = data.draw(st.integers(0, len(new) - 1))
    fewer: list[SimulationEvidence] = [*new]
    fewer[index] = lost(new[index])
    after = decide(
        GateInput(pair(old, fewer), SUITE, goal=Goal.NO_REGRESSION, label=Label.DEVELOPMENT)
    ).decision
    assert {decision, after} != {Decision.DISCARD, Decision.PROMOTE}


# Many comparisons.


@pytest.mark.parametrize("has_fixed_tasks", [False, True])
@pytest.mark.parametrize(("tasks", "breach_rates"), [(12, [0.1]), (12, [0.3] * 6), (60, [0.1, 0.1, 0.02])])
def test_checks_do_not_raise_the_error_rate(
    tasks: int, breach_rates: list[float], has_fixed_tasks: bool
) -> None:
    """An agent compared with itself is discarded in at most 5 % of comparisons."""
    random, rows = np.random.default_rng(3), 2_000
    policy: Calibrated = replace(CALIBRATED, has_fixed_tasks=has_fixed_tasks)
    design = Design(tasks, 4, is_live=False)
    comparisons = simulate_comparisons(random, AGENTS["medium"], Effect(), design, rows)
    comparisons = with_checks(random, comparisons, breach_rates)
    for goal in Goal:
        ranks = decision_ranks(policy, comparisons, Question(goal))
        assert np.mean(ranks == Decision.DISCARD.rank) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / rows)


def test_a_dropped_question_is_found_on_a_small_suite() -> None:
    """Twelve tasks of four trials, half of which break the check: found under estimand `suite`."""
    random, rows = np.random.default_rng(4), 500
    design = Design(12, 4, is_live=False)
    comparisons = simulate_comparisons(random, AGENTS["medium"], Effect(), design, rows)
    comparisons = with_checks(random, comparisons, [0.1, 0.05, 0.05], rise=0.5)
    ranks = decision_ranks(SUITE, comparisons, Question(Goal.NO_REGRESSION))
    assert np.mean(ranks == Decision.DISCARD.rank) >= 0.9
