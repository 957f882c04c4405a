"""Draws of a sealed split that no verdict names: each was a chance, and takes a part of the level."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.gate.alpha_spending import alpha_share
from pytest_trace2evolve.gate.claims import Claim, spending_of
from pytest_trace2evolve.records.ledger import (
    BaselineSave,
    ContentVersion,
    DatedEntry,
    Draw,
    DrawOrigin,
    Evaluation,
)
from pytest_trace2evolve.records.verdict import Decision, Goal, Label, Verdict
from pytest_trace2evolve.session.verdicts import combine_with_ledger
from tests.ledger_helpers import ROOT, at, judged

KEPT, FRESH, PLAYED, UNSTORED = DrawOrigin.KEPT, DrawOrigin.FRESH, DrawOrigin.PLAYED, DrawOrigin.UNSTORED
RESUMABLE = DrawOrigin.RESUMABLE


def drawn(minutes: float, name: str, **further: Any) -> Draw:
    """A whole draw of a gated run of v1, on desk::heldout."""
    fields: dict[str, Any] = {
        "suite": "desk",
        "split": "heldout",
        "lock": "lock-1",
        "candidate": ContentVersion(id="v1", digest="text of v1"),
        "agent": "agent",
        "draw": name * 32,
        "made": FRESH,
        "gated": True,
        "whole": True,
        "run": f"run {name}",
    }
    return Draw(root=ROOT.name, parents=(ROOT.name,), at=at(minutes), **{**fields, **further})


def claim(letter: str = "f", **further: Any) -> Claim:
    """A claim of v1 on desk::heldout."""
    fields: dict[str, Any] = {
        "candidate": "text of v1",
        "agent": "agent",
        "baseline": "who v0 is",
        "policy": "calibrated",
        "trials": 4,
        "draw_id": letter * 32,
    }
    return Claim("desk", "heldout", "lock-1", **{**fields, **further})


HOLDS = {"goal": Goal.HOLD, "is_numbered": False}


@pytest.mark.parametrize(
    ("further", "counts"),
    [
        ({}, True),
        ({"made": KEPT, "gated": False, "whole": False}, True),
        ({"made": UNSTORED}, True),
        ({"gated": False}, False),
        ({"whole": False}, False),
        ({"made": UNSTORED, "gated": False}, False),
        ({"made": RESUMABLE, "gated": False}, False),
        ({"made": RESUMABLE, "whole": False}, True),  # it could have been resumed as a whole run
        ({"lock": "lock-2"}, False),
        ({"split": "transfer"}, False),
        ({"candidate": ContentVersion(id="v2", digest="text of v2")}, False),  # it makes the claim test 2
    ],
)
def test_what_could_have_been_judged_instead_counts(further: dict[str, Any], counts: bool) -> None:
    entries = [drawn(0, "a", **further), drawn(1, "f")]
    for goal in ({}, HOLDS):
        look = spending_of(entries, claim(**goal))
        assert [one.run for one in look.abandoned_draws] == (["run a"] if counts else [])
    assert spending_of(entries, claim()).analysis == 1 + counts


@pytest.mark.parametrize("whole", [True, False])
def test_a_recorded_draw_could_have_been_any(whole: bool) -> None:
    """Parts of several draws could have been put together."""
    entries = [drawn(number, name, gated=False, whole=whole) for number, name in enumerate("abc")]
    assert len(spending_of(entries, claim("b", is_recorded_run=True)).abandoned_draws) == 2
    assert len(spending_of(entries, claim("0", is_recorded_run=True)).abandoned_draws) == 2, (
        "one of three was recorded"
    )
    assert spending_of(entries, claim("f")).abandoned_draws == ()


OTHERS = [
    {"goal": Goal.NO_REGRESSION},
    {"goal": Goal.HOLD},
    {"goal": Goal.HOLD, "policy": "strict"},
    {"goal": Goal.IMPROVE, "policy": "strict", "alpha": None},
    {"goal": Goal.IMPROVE, "label": Label.DEVELOPMENT},
]


@given(
    st.lists(
        st.tuples(st.sampled_from(OTHERS), st.sampled_from(Decision), st.sampled_from(DrawOrigin)),
        max_size=6,
    )
)
def test_a_draw_that_another_goal_or_policy_judged_counts(
    looks: list[tuple[dict[str, Any], Decision, DrawOrigin]],
) -> None:
    """In all orders, and after every decision, each look at a further draw is an analysis of the test."""
    entries: list[DatedEntry] = []
    for place, (further, decision, made) in enumerate(looks):
        draw = drawn(2 * place, f"{place}", made=made)
        entries += [draw, judged(at(2 * place + 1), decision=decision, draw=draw.draw, **further)]
    look = spending_of([*entries, drawn(99, "f")], claim())
    assert (look.number, look.analysis, look.repeated_verdict) == (1, 1 + len(looks), None)
    assert len(look.abandoned_draws) == len(looks)
    on_the_same_draw = [
        entry.model_copy(update={"draw": "f" * 32}) if isinstance(entry, Evaluation) else entry
        for entry in entries
        if isinstance(entry, Evaluation)
    ]
    assert spending_of([drawn(0, "f"), *on_the_same_draw], claim()).analysis == 1, "there was no choice"


def test_a_claim_of_another_policy_is_another_test_and_counts_once() -> None:
    entries = [drawn(0, "a"), judged(at(1), policy="mine", draw="a" * 32), drawn(2, "f")]
    look = spending_of(entries, claim())
    assert (look.number, look.analysis) == (2, 1)
    held = spending_of(entries, claim(**HOLDS))
    assert len(held.abandoned_draws) == 1, "the figures were seen"


@given(st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), max_size=6), st.booleans())
def test_each_number_of_trials_of_a_draw_is_a_look(numbers: list[int], gated: bool) -> None:
    """Whoever looks after each trial, and claims when it looks best, has made as many tests."""
    entries = [
        drawn(place, "f", made=KEPT, trials=trials, gated=gated, whole=False, run=f"run {place}")
        for place, trials in enumerate(numbers)
    ]
    others = set(numbers) - {4}
    look = spending_of([*entries, drawn(50, "f", made=KEPT, trials=4)], claim())
    assert look.analysis == 1 + len(others)
    claimed = [
        judged(at(60 + place), trials=trials, draw="f" * 32, decision=Decision.INCONCLUSIVE, analysis=1)
        for place, trials in enumerate(sorted(others)[:1])
        if trials < 4
    ]
    assert spending_of([*entries, *claimed], claim()).analysis == 1 + len(others)
    old = [drawn(0, "f", made=KEPT), drawn(1, "f", made=KEPT, trials=4)]
    assert spending_of(old, claim()).analysis == 1, "an older version recorded no number"


def test_a_judged_draw_is_not_abandoned_and_the_next_analysis_follows_it() -> None:
    entries: list[DatedEntry] = [
        drawn(0, "a"),
        drawn(1, "b"),
        judged(at(2), decision=Decision.INCONCLUSIVE, analysis=2, draw="b" * 32),
        drawn(3, "f"),
    ]
    look = spending_of(entries, claim(trials=8))
    assert ([one.run for one in look.abandoned_draws], look.analysis) == (["run a"], 3)
    again = spending_of([*entries, drawn(2.5, "c")], claim(trials=8))
    assert again.analysis == 4


def test_a_run_without_a_verdict_leaves_its_draw_abandoned() -> None:
    """What is lost when a draw looks bad must not make a new draw free."""
    entries: list[DatedEntry] = [
        drawn(0, "a"),
        judged(at(1), decision=Decision.INCONCLUSIVE, alpha=None, draw="a" * 32),
        drawn(2, "f"),
    ]
    assert spending_of(entries, claim()).analysis == 2


V2 = {"candidate": ContentVersion(id="v2", digest="text of v2")}


@pytest.mark.parametrize(
    ("further", "counts"),
    [
        ({}, True),
        ({"whole": False}, False),
        ({"gated": False}, False),
        ({"gated": False, "made": KEPT}, True),
        ({"whole": False, "made": KEPT}, True),
        ({"gated": False, "made": UNSTORED}, False),
        ({"lock": "lock-2"}, False),
    ],
)
def test_another_candidate_that_was_only_drawn_is_a_test(further: dict[str, Any], counts: bool) -> None:
    """Whoever draws ten candidates and claims for the luckiest has made ten tests."""
    entries = [drawn(0, "a", **V2, **further), drawn(1, "f")]
    assert spending_of(entries, claim()).number == 1 + counts
    assert spending_of(entries, claim(is_recorded_run=True)).number == 1 + (further != {"lock": "lock-2"})
    assert spending_of(entries, claim(baseline_digests=("text of v2", "agent"))).number == 1, (
        "it is the baseline"
    )
    claimed = judged(at(2), name="v2", draw="a" * 32)
    assert spending_of([*entries, claimed], claim()).number == 2, "its test is counted once"


def saved(minutes: float, run: str, evidence: str, **further: Any) -> BaselineSave:
    """A saved baseline of desk, measured by a run."""
    version = ContentVersion(id="v0", digest=evidence)
    fields: dict[str, Any] = {"suite": "desk", "baseline": version, "run": run, **further}
    return BaselineSave(root=ROOT.name, parents=(ROOT.name,), at=at(minutes), **fields)


V0 = {"candidate": ContentVersion(id="v0", digest="text of v0"), "gated": False, "made": UNSTORED}
MEASURED = {"baseline_digests": ("text of v0", "agent")}


def test_a_baseline_whose_simulations_are_not_stored_counts_where_it_was_saved() -> None:
    entries = [
        drawn(0, "a", **V0),
        saved(1, "run a", "low"),
        drawn(2, "b", **V0),
        saved(3, "run b", "lower"),
        drawn(4, "c", **V0),
        drawn(5, "f", made=UNSTORED),
    ]
    one = spending_of(entries, claim(**MEASURED, baseline_run="run b"))
    assert ([draw.run for draw in one.abandoned_draws], one.number, one.analysis) == (["run a"], 1, 2)
    file = spending_of(entries, claim(**MEASURED, baseline_run="a replay"))
    assert len(file.abandoned_draws) == 2, "a file may hold any of the three"


def test_a_saved_baseline_that_a_test_used_does_not_count() -> None:
    """An agent's baseline is measured again for more trials."""
    open_ = {"decision": Decision.INCONCLUSIVE, "draw": "b" * 32}
    entries = [
        drawn(0, "a", **V0),
        saved(1, "run a", "two trials"),
        drawn(2, "b", made=UNSTORED),
        judged(at(3), trials=2, baseline_evidence="two trials", **open_),
        drawn(4, "c", **V0),
        saved(5, "run c", "four trials"),
        drawn(6, "f", made=UNSTORED),
    ]
    look = spending_of(entries, claim(**MEASURED, baseline_run="run c"))
    assert (look.number, look.analysis, look.abandoned_draws) == (1, 2, ())
    held = spending_of(entries, claim(**MEASURED, baseline_run="run c", **HOLDS))
    assert [draw.run for draw in held.abandoned_draws] == ["run a", "run b"], (
        "no claim to be not worse used the baseline, and the other claim showed the figures of the draw"
    )


def test_a_renamed_policy_is_the_same_claim() -> None:
    entries: list[DatedEntry] = [
        judged(at(1), policy="mine 12345678", goal=Goal.HOLD, decision=Decision.DISCARD)
    ]
    renamed = spending_of(entries, claim(policy="other 12345678", **HOLDS)).repeated_verdict
    assert renamed is not None
    assert spending_of(entries, claim(policy="mine 87654321", **HOLDS)).repeated_verdict is None


def test_the_same_agent_under_another_setting_is_a_further_test() -> None:
    entries = [drawn(number, name, agent=f"seed {number}", made=KEPT) for number, name in enumerate("abc")]
    assert spending_of(entries, claim()).number == 4
    assert spending_of([*entries, judged(at(9), agent="seed 1")], claim()).number == 4


def test_a_baseline_that_was_drawn_again_counts() -> None:
    v0 = {"candidate": ContentVersion(id="v0", digest="text of v0"), "gated": False}
    entries = [drawn(0, "a", made=KEPT, **v0), drawn(1, "b", **v0), drawn(2, "c", **v0), drawn(3, "f")]
    assert spending_of(entries, claim(baseline_digests=("text of v0", "agent"))).analysis == 3
    assert spending_of(entries, claim(baseline_digests=("text of v0", "another"))).analysis == 1


@pytest.mark.parametrize("goal", [Goal.HOLD, Goal.NO_REGRESSION])
def test_the_worse_verdict_of_the_same_claim_stands(goal: Goal) -> None:
    entries: list[DatedEntry] = [
        drawn(0, "a"),
        judged(at(1), goal=goal, decision=Decision.DISCARD, draw="a" * 32),
        drawn(2, "f"),
    ]
    look = spending_of(entries, claim(goal=goal, is_numbered=False))
    assert (look.number, look.abandoned_draws) == (None, ())
    fresh = Verdict(decision=Decision.PROMOTE, policy="calibrated", goal=goal, label=Label.DEVELOPMENT)
    verdict = combine_with_ledger(fresh, look)
    assert verdict.decision is Decision.DISCARD
    assert "recorded: DISCARD on 2026-11-20; now: PROMOTE; the worse of the two counts" in verdict.reason
    other = spending_of(entries, claim(goal=goal, is_numbered=False, baseline="who v9 is"))
    assert other.repeated_verdict is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["judge", "abandon"]),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from([2, 4, 8, 16]),
        st.sampled_from(Decision),
    ),
    max_size=16,
)


@given(STEPS)
def test_no_sequence_of_draws_spends_more_than_alpha(steps: Sequence[tuple[str, str, int, Decision]]) -> None:
    """Every draw, judged or not, could have promoted at the level that it would have had."""
    entries: list[DatedEntry] = []
    spent: dict[tuple[int | None, int | None], float] = {}
    for place, (what, name, trials, decision) in enumerate(steps):
        version = ContentVersion(id=name, digest=f"text of {name}")
        draw = drawn(2 * place, f"{place:x}"[0], candidate=version)
        draw = draw.model_copy(update={"draw": f"{place:032x}", "run": f"run {place}"})
        look = spending_of(
            [*entries, draw], claim(candidate=version.digest, trials=trials, draw_id=draw.draw)
        )
        entries.append(draw)
        if look.repeated_verdict is None:
            assert look.analysis is not None
            assert look.number is not None
            spent[place, None] = alpha_share(look.number, look.analysis)
        if what == "judge":
            entries.append(
                judged(
                    at(2 * place + 1),
                    name=name,
                    trials=trials,
                    decision=decision,
                    look=look.number,
                    analysis=look.analysis,
                    alpha=0.01,
                    repeats=None if look.repeated_verdict is None else look.repeated_verdict.name,
                    run=f"run {place}",
                    draw=draw.draw,
                )
            )
    assert sum(spent.values()) <= 1.0 + 1e-9
