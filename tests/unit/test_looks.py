"""The numbers of clean claims on a sealed split, and what each may be tested at."""

import json
import math
from typing import Any

import pytest

from pytest_trace2evolve.gate.looks import Claim, Look, look_of, share
from pytest_trace2evolve.records.ledger import Dated, Evaluation, Version
from pytest_trace2evolve.records.verdict import Decision, Goal, Label
from tests.ledger_helpers import at, judged, seen


def claim(name: str = "v9", **further: Any) -> Claim:
    fields: dict[str, Any] = {
        "suite": "desk",
        "split": "heldout",
        "lock": "lock-1",
        "candidate": f"text of {name}",
        "agent": "agent",
        "baseline": "evidence of v0",
        "policy": "calibrated",
        "trials": 4,
    }
    return Claim(**{**fields, **further})


def number(entries: list[Dated], wanted: Claim) -> int:
    look = look_of(entries, wanted)
    assert look.recorded is None
    return look.number


def test_the_first_claim_is_look_1_and_each_further_candidate_the_next() -> None:
    assert number([], claim()) == 1
    assert number([judged()], claim()) == 2
    assert number([judged(), judged(at(1), name="v2", look=2)], claim()) == 3


def test_all_claims_together_spend_no_more_than_alpha() -> None:
    assert share(1) == pytest.approx(6 / math.pi**2)
    assert share(2) == pytest.approx(share(1) / 4)
    assert 0.9999 < sum(share(k) for k in range(1, 20_000)) < 1


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
def test_only_clean_claims_on_the_same_locked_split_count(entry: Dated) -> None:
    assert number([entry], claim()) == 1


def test_the_same_claim_repeats_the_recorded_verdict() -> None:
    first = judged(name="v2", look=2, decision=Decision.DISCARD)
    assert look_of([judged(), first], claim("v2")) == Look(2, first)


def test_of_two_branches_that_judged_the_same_the_earlier_is_repeated() -> None:
    early, late = judged(at(1), decision=Decision.DISCARD), judged(at(2))
    assert look_of([late, early], claim("v1")).recorded == early


def test_a_claim_that_spent_its_level_comes_before_one_that_could_not() -> None:
    idle, spent = judged(at(1), alpha=None, decision=Decision.INCONCLUSIVE), judged(at(2))
    assert look_of([idle], claim("v1")) == Look(1, idle)
    assert look_of([idle, spent], claim("v1")).recorded == spent


def test_a_staged_run_repeats_what_was_judged_at_a_later_stage() -> None:
    ended = judged(trials=8, decision=Decision.INCONCLUSIVE)
    assert look_of([ended], claim("v1", trials=2, most=8)) == Look(1, ended)
    assert look_of([ended], claim("v1", trials=2, most=4)).recorded is None, "a shorter schedule is another"
    assert look_of([ended], claim("v1", trials=2)).recorded is None


@pytest.mark.parametrize("trials", [1, 3, 8, 16])
def test_other_trials_are_a_new_look(trials: int) -> None:
    assert number([judged()], claim("v1", trials=trials)) == 2


@pytest.mark.parametrize("other", [{"agent": "x"}, {"baseline": "x"}, {"policy": "x"}])
def test_another_agent_baseline_or_policy_is_a_new_look(other: dict[str, str]) -> None:
    assert number([judged()], claim("v1", **other)) == 2
    baseline = {"baseline": Version(id="v0", digest="x")} if "baseline" in other else other
    entries = [judged(), judged(at(1), look=2, **baseline)]
    assert number(entries, claim("v2")) == 3, "each such test counts for those that come later"


def test_a_policy_without_alpha_makes_its_candidate_count_once() -> None:
    strict = judged(policy="strict", alpha=None)
    assert number([strict], claim("v1")) == 1
    assert number([strict, judged(at(1), policy="strict", alpha=None, trials=1)], claim("v2")) == 2
    assert number([strict, judged(at(1))], claim("v2")) == 2


def test_a_goal_that_claims_nothing_counts_nothing_and_is_never_clean() -> None:
    idle = judged(goal=Goal.NO_REGRESSION, label=Label.DEVELOPMENT, alpha=None)
    assert not idle.claims_clean
    assert look_of([idle], claim("v2")).number == 1
    with pytest.raises(ValueError, match="label clean with goal no-regression, which claims nothing"):
        Evaluation.model_validate_json(json.dumps({**idle.to_json(), "label": "clean"}))
