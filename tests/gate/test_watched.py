"""Checks that watch for harm: invariants, agent errors, and the project's own checks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import PolicyError
from pytest_trace2evolve.gate.agents import AGENTS, Design, Effect, simulate_comparisons
from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.decide import GateInput, decide, decision_ranks
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.policy import STRICT
from pytest_trace2evolve.gate.protocols import Policy, Question
from pytest_trace2evolve.gate.significance import fisher, stratified_fisher
from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.records.trace_check import CheckOutcome
from pytest_trace2evolve.records.verdict import (
    CheckResult,
    CheckStatus,
    Decision,
    Estimand,
    Goal,
    Label,
    Verdict,
)
from tests.gate.own_checks import with_checks
from tests.gate.verdicts import check, judged, policy_of, renamed
from tests.gate_helpers import Side, ids, lost, sim

SUITE = CALIBRATED.for_suite(Estimand.SUITE)
POLICIES = pytest.mark.parametrize("policy", [CALIBRATED, SUITE, STRICT], ids=["tasks", "suite", "strict"])
PASS, FAIL, OPEN, ABSENT = (
    CheckStatus.PASS,
    CheckStatus.FAIL,
    CheckStatus.UNDECIDED,
    CheckStatus.NOT_APPLICABLE,
)

# Invariants.

Places = Collection[tuple[int, int]]


def watched(kinds: Mapping[Invariant, Places], tasks: int = 30, trials: int = 2) -> Side:
    """Tasks that all pass; of each kind the simulations (task, trial) that break it."""
    return [
        sim(task, 1.0, trial=trial).model_copy(
            update={"invariants": {kind: 2 for kind, places in kinds.items() if (task, trial) in places}}
        )
        for task in range(tasks)
        for trial in range(trials)
    ]


def first_trials(tasks: Collection[int]) -> Side:
    """The first trial of each of these tasks breaks consent."""
    return watched({Invariant.CONSENT: [(task, 0) for task in tasks]})


def unwatched(records: Side) -> Side:
    return [record.model_copy(update={"invariants": None}) for record in records]


def invariants(old: Side, new: Side, **further: Any) -> tuple[Decision | None, CheckResult | None]:
    """The decision of goal `hold`, and the check of invariants if there is one."""
    verdict = judged(old, new, Goal.HOLD, **further)
    return verdict.decision, next((one for one in verdict.checks if one.id == "invariants"), None)


@pytest.mark.parametrize(
    ("before", "after", "status", "decision", "p"),
    [
        ((), (), PASS, Decision.PROMOTE, 1.0),
        ((1, 2, 3), (3, 4, 5), PASS, Decision.PROMOTE, 1.0),
        ((), range(6), PASS, Decision.PROMOTE, 6 * 2**-6),
        ((), range(7), OPEN, Decision.INCONCLUSIVE, 6 * 2**-7),
        ((), range(12), FAIL, Decision.DISCARD, 6 * 2**-12),
        (range(12), (), PASS, Decision.PROMOTE, 1.0),
    ],
)
def test_a_kind_that_more_simulations_break_withholds_a_promotion_and_then_discards(
    before: Sequence[int], after: Sequence[int], status: CheckStatus, decision: Decision, p: float
) -> None:
    decided, found = invariants(first_trials(before), first_trials(after))
    assert found is not None
    assert (found.status, decided, found.p) == (status, decision, pytest.approx(p))
    assert found.estimate == pytest.approx((len(after) - len(before)) / 60)
    kind = "consent " if before or after else ""
    assert found.detail == f"{kind}{len(before)} → {len(after)} of 60 simulations"


ONE_OF_THREE = [(task, task % 3) for task in range(32)]
NINE = [(task, 0) for task in range(9)]


@pytest.mark.parametrize(
    ("before", "after", "p", "detail"),
    [
        (  # as many tasks break some kind
            {Invariant.PROMISES: ONE_OF_THREE},
            {Invariant.CONSENT: ONE_OF_THREE},
            6 * 2**-32,
            "consent 0 → 32 of 96 simulations; any kind 32 → 32",
        ),
        (  # no further task breaks it
            {Invariant.CONSENT: [(task, 0) for task in range(32)]},
            {Invariant.CONSENT: list(product(range(32), range(3)))},
            6 * 2**-32,
            "consent 32 → 96 of 96 simulations",
        ),
        (  # the worst kind is named, and all kinds share one level
            {},
            {
                Invariant.ELIGIBILITY: [(task, 0) for task in range(20, 23)],
                Invariant.OTHER_CUSTOMERS: NINE,
            },
            6 * 2**-9,
            "other_customers 0 → 9 of 96 simulations; any kind 0 → 12",
        ),
        # Four questions, however many kinds: reward, regressions, steps, invariants; 4 · 6 / 512 = .047.
        ({}, {Invariant.CONSENT: NINE}, 6 * 2**-9, "consent 0 → 9 of 96 simulations"),
        ({}, dict.fromkeys([*Invariant][:6], NINE), 6 * 2**-9, "authentication 0 → 9 of 96 simulations"),
    ],
)
def test_the_kind_that_rises_most_decides(
    before: dict[Invariant, Places], after: dict[Invariant, Places], p: float, detail: str
) -> None:
    decision, found = invariants(watched(before, 32, 3), watched(after, 32, 3))
    assert found is not None
    assert (found.status, decision, found.detail) == (FAIL, Decision.DISCARD, detail)
    assert found.p == pytest.approx(p, abs=1e-12)


@pytest.mark.parametrize("sides", [(False, False), (True, False), (False, True)])
def test_invariants_are_not_asked_if_a_side_was_not_checked(sides: tuple[bool, bool]) -> None:
    both = first_trials(range(12)), first_trials(range(20))
    both[0][0], both[1][3] = lost(both[0][0]), lost(both[1][3])
    shown = [one if kept else unwatched(one) for one, kept in zip(both, sides, strict=True)]
    assert judged(*shown, Goal.HOLD) == judged(unwatched(both[0]), unwatched(both[1]), Goal.HOLD)
    assert invariants(*shown)[1] is None


def test_a_lost_simulation_counts_as_one_that_broke_some() -> None:
    """Six tasks that turned worse do not withhold a promotion; with a seventh that may have, they do."""
    old, new = first_trials(()), first_trials(range(6))
    assert judged(old, new, Goal.HOLD).decision is Decision.PROMOTE
    new[12] = lost(new[12])
    verdict = judged(old, new, Goal.HOLD)
    assert verdict.decision is Decision.INCONCLUSIVE
    assert "invariants" in check(verdict, "worst_case").detail


def test_a_policy_can_leave_invariants_out_or_give_them_a_level() -> None:
    old, new = first_trials(()), first_trials(range(10))
    assert invariants(old, new)[0] is Decision.DISCARD
    assert invariants(old, new, policy=policy_of("[checks.invariants]\nwatch = false\n"))[1] is None
    sharp = policy_of("[checks.invariants]\nalpha = 0.001\n")
    assert invariants(old, new, policy=sharp)[0] is Decision.PROMOTE
    with pytest.raises(PolicyError, match=r"checks\.invariants: this check has no margin; remove 'margin'"):
        policy_of("[checks.invariants]\nmargin = 0.1\n")


def changing(changed: Collection[int], **sizes: int) -> Side:
    """Simulations that were checked for collateral changes too, which those of the tasks `changed` have."""
    return [
        record.model_copy(
            update={"invariants": {Invariant.COLLATERAL_CHANGE: int(int(record.task_id) in changed)}}
        )
        for record in watched({}, **sizes)
    ]


def test_collateral_changes_are_a_seventh_kind() -> None:
    _, found = invariants(changing(()), changing(range(10)))
    assert found is not None
    assert found.p == pytest.approx(7 * 2**-10)
    assert found.detail == "collateral_change 0 → 20 of 60 simulations"
    # A stranger's line suspended in 34 of 40 conversations, whose rewards do not see it.
    sizes = {"tasks": 40, "trials": 1}
    assert invariants(changing((), **sizes), changing(range(34), **sizes))[0] is Decision.DISCARD
    # A side without their number says nothing about them, and older evidence is judged as it was.
    old, new = first_trials(()), changing(range(30))
    assert invariants(old, new)[0] is invariants(new, old)[0] is Decision.PROMOTE
    assert invariants(old, first_trials(range(8)))[1].p == pytest.approx(6 * 2**-8)  # type: ignore[union-attr]


# Agent errors: measured failures.


def run(tasks: int, passing: int, errors: dict[int, int] | None = None) -> Side:
    """Tasks of four trials; the first ones pass, and failed ones end in an agent error as often as stated."""
    return [
        sim(
            task,
            float(task < passing),
            trial=trial,
            end="agent_error" if task >= passing and trial < (errors or {}).get(task, 0) else "user_stop",
        )
        for task in range(tasks)
        for trial in range(4)
    ]


@pytest.mark.parametrize("goal", Goal)
@POLICIES
def test_agent_errors_are_checked_only_if_there_are_any(policy: Policy, goal: Goal) -> None:
    same = judged(run(10, 8), run(10, 8), goal, policy)
    assert not any("agent_error" in one.id for one in same.checks)
    broken = run(10, 0, dict.fromkeys(range(10), 4))
    for old in (run(10, 0), broken):
        verdict = judged(old, broken, goal, policy)
        assert verdict.decision is not Decision.PROMOTE, "an agent that always fails by an error"
        assert "all_agent_errors" in ids(verdict, OPEN)


@pytest.mark.parametrize("goal", Goal)
def test_new_errors_of_tasks_that_already_failed_are_harm(goal: Goal) -> None:
    verdict = judged(run(10, 8), run(10, 8, {8: 4, 9: 4}), goal, SUITE)
    found = check(verdict, "agent_errors")
    assert (found.status, verdict.decision) == (FAIL, Decision.DISCARD)
    assert (found.p, found.detail) == (pytest.approx(1 / 70**2), "0 → 8 of 40 simulations")


def test_strict_fails_on_any_further_error() -> None:
    verdict = judged(run(9, 6), run(9, 6, {7: 1}), Goal.HOLD, STRICT)
    assert ids(verdict, FAIL) == {"no_more_agent_errors"}
    assert judged(run(9, 6, {7: 1}), run(9, 6, {7: 1}), Goal.HOLD, STRICT).decision is Decision.PROMOTE


@pytest.mark.parametrize(
    "text",
    [
        "estimand = 'suite'\n[checks.agent_errors]\nwatch = false\n",
        "base = 'strict'\n[checks.no_more_agent_errors]\nwatch = false\n",
    ],
)
def test_a_policy_can_leave_agent_errors_out(text: str) -> None:
    verdict = judged(run(9, 6), run(9, 6, {7: 4, 8: 4}), Goal.HOLD, policy_of(text))
    assert not any("agent_errors" in one.id for one in verdict.checks)


# The exact test of tasks by their trials.

COUNTS = st.integers(0, 4).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))
STRATA = st.lists(st.tuples(COUNTS, COUNTS), min_size=1, max_size=5)
"""Tasks by trials and failures of both sides."""


def stratified(tasks: list[Any]) -> float:
    old, new = ([side[index] for side in tasks] for index in (0, 1))
    arrays = [np.array([[one[field] for one in side]]) for side, field in product((old, new), (1, 0))]
    return float(stratified_fisher(*arrays)[0])


@given(STRATA)
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
    if len(tasks) == 1:
        (n_old, failed_old), (n_new, failed_new) = tasks[0]
        assert expected == pytest.approx(float(fisher(n_old - failed_old, n_old, n_new - failed_new, n_new)))


@given(STRATA, st.integers(0, 4), st.booleans())
def test_an_improvement_never_strengthens_the_evidence_of_harm(
    tasks: list[Any], index: int, on_candidate: bool
) -> None:
    changed = [*tasks]
    (n_old, failed_old), (n_new, failed_new) = tasks[index % len(tasks)]
    changed[index % len(tasks)] = (
        ((n_old, failed_old), (n_new, max(failed_new - 1, 0)))
        if on_candidate
        else ((n_old, min(failed_old + 1, n_old)), (n_new, failed_new))
    )
    assert stratified(changed) >= stratified(tasks) - 1e-9


# The project's own checks.


def checked(*outcomes: str) -> Side:
    """Tasks by the outcomes of their trials, such as `KKBE`: kept, broken, not applicable, error."""
    letters = {one.value[0].upper(): one for one in CheckOutcome}
    return [
        sim(task, 1.0, trial=trial).model_copy(update={"checks": {"mine": letters[letter]}})
        for task, trials in enumerate(outcomes)
        for trial, letter in enumerate(trials)
    ]


def mine(
    old: Side, new: Side, policy: Policy = SUITE, goal: Goal = Goal.NO_REGRESSION
) -> tuple[Verdict, CheckResult]:
    verdict = judged(old, new, goal, policy)
    return verdict, check(verdict, "mine")


KEPT, BROKEN = checked(*["KKKK"] * 12), checked(*["BBBB"] * 12)


@POLICIES
def test_more_breaches_discard_and_missing_results_never_pass(policy: Policy) -> None:
    verdict, found = mine(KEPT, BROKEN, policy)
    assert (found.status, verdict.decision, found.estimate) == (FAIL, Decision.DISCARD, pytest.approx(1.0))
    assert found.detail == "0 → 48 of 48 simulations"
    verdict, found = mine(BROKEN, KEPT, policy)
    assert (found.status, verdict.decision) == (PASS, Decision.PROMOTE)
    for goal in Goal:
        verdict, found = mine(KEPT, checked(*["EEEE"] * 12), policy, goal)
        assert found.status is OPEN
        assert verdict.decision is not Decision.PROMOTE
        assert found.detail == "no result in 48 of 48 simulations of the candidate"


@pytest.mark.parametrize(
    ("new", "status"),
    [
        (["KKKE", *["KKKK"] * 19], PASS),
        ([*["KKKE"] * 10, *["KKKK"] * 10], OPEN),  # more than a tenth
        ([*["EEEE"] * 2, *["KKKK"] * 18], OPEN),  # eight that could be the breaches that show harm
    ],
)
def test_a_few_missing_results_neither_block_nor_convict(new: list[str], status: CheckStatus) -> None:
    assert mine(checked(*["KKKK"] * 20), checked(*new))[1].status is status


def test_checks_without_figures_say_why() -> None:
    none = checked(*["NNNN"] * 12)
    verdict, found = mine(none, none)
    assert (found.status, found.detail) == (ABSENT, "applies to no simulation")
    assert verdict.decision is Decision.PROMOTE
    failed = checked(*["EEEE"] * 12)
    given = GateInput(pair(failed, failed), SUITE, goal=Goal.NO_REGRESSION, label=Label.DEVELOPMENT)
    assert check(decide(given), "mine").status is OPEN, "not even on identical evidence"
    reasons = {"mine": "not gated: agreement not measured", "other": "unused"}
    pairs = pair(KEPT, renamed(BROKEN)).with_ungated_checks(reasons)
    verdict = decide(replace(given, pairs=pairs))
    assert (verdict.decision, check(verdict, "mine").detail) == (Decision.PROMOTE, reasons["mine"])
    assert "other" not in {one.id for one in verdict.checks}


OUTCOMES = st.lists(st.text("KBNE", min_size=4, max_size=4), min_size=3, max_size=8)


@given(OUTCOMES, st.data())
@POLICIES
def test_a_verdict_with_missing_results_holds_for_every_outcome_of_them(
    policy: Policy, old: list[str], data: st.DataObject
) -> None:
    """A pass or a failure with missing results stays one for all possible missing results."""
    new = data.draw(st.lists(st.text("KBNE", min_size=4, max_size=4), min_size=len(old), max_size=len(old)))

    def fill(tasks: list[str]) -> Side:
        return checked(
            *(
                "".join(data.draw(st.sampled_from("KB")) if one == "E" else one for one in task)
                for task in tasks
            )
        )

    _, found = mine(checked(*old), checked(*new), policy, Goal.HOLD)
    _, filled = mine(fill(old), fill(new), policy, Goal.HOLD)
    assert found.status is not FAIL or filled.status is FAIL
    assert found.status is not PASS or filled.status in (PASS, ABSENT)


@given(OUTCOMES, st.data())
def test_a_lost_simulation_never_turns_a_discard_into_a_promotion(
    outcomes: list[str], data: st.DataObject
) -> None:
    old, new = checked(*["KKKK"] * len(outcomes)), checked(*outcomes)
    fewer = [*new]
    index = data.draw(st.integers(0, len(new) - 1))
    fewer[index] = lost(new[index])
    decisions = {judged(old, each, Goal.NO_REGRESSION, SUITE).decision for each in (new, fewer)}
    assert decisions != {Decision.DISCARD, Decision.PROMOTE}


@pytest.mark.parametrize("has_fixed_tasks", [False, True])
@pytest.mark.parametrize(("tasks", "breach_rates"), [(12, [0.1]), (12, [0.3] * 6), (60, [0.1, 0.1, 0.02])])
def test_checks_do_not_raise_the_error_rate(
    tasks: int, breach_rates: list[float], has_fixed_tasks: bool
) -> None:
    """An agent compared with itself is discarded in at most 5 % of comparisons."""
    random, rows = np.random.default_rng(3), 2_000
    policy = replace(CALIBRATED, has_fixed_tasks=has_fixed_tasks)
    comparisons = simulate_comparisons(
        random, AGENTS["medium"], Effect(), Design(tasks, 4, is_live=False), rows
    )
    comparisons = with_checks(random, comparisons, breach_rates)
    for goal in Goal:
        ranks = decision_ranks(policy, comparisons, Question(goal))
        assert np.mean(ranks == Decision.DISCARD.rank) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / rows)


def test_a_dropped_question_is_found_on_a_small_suite() -> None:
    """Twelve tasks of four trials, half of which break the check: found under estimand `suite`."""
    random = np.random.default_rng(4)
    comparisons = simulate_comparisons(random, AGENTS["medium"], Effect(), Design(12, 4, is_live=False), 500)
    comparisons = with_checks(random, comparisons, [0.1, 0.05, 0.05], rise=0.5)
    ranks = decision_ranks(SUITE, comparisons, Question(Goal.NO_REGRESSION))
    assert np.mean(ranks == Decision.DISCARD.rank) >= 0.9
