"""Draws of a sealed split that no verdict names: each was a chance, and takes a part of the level."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.gate.decide import decide
from pytest_trace2evolve.gate.looks import Claim, look_of, share, uncounted_share
from pytest_trace2evolve.gate.pairs import pair
from pytest_trace2evolve.gate.policy import CALIBRATED
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.ledger import Dated, Draw, Origin, Version
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.verdict import Decision, Goal, Label, Verdict
from pytest_trace2evolve.workflow.judging.verdicts import with_recorded
from tests.ledger_helpers import ROOT, at, judged

KEPT, FRESH, PLAYED, UNSTORED = Origin.KEPT, Origin.FRESH, Origin.PLAYED, Origin.UNSTORED


def drawn(minutes: float, name: str, **further: Any) -> Draw:
    """A whole draw of a gated run of v1, on desk::heldout."""
    fields: dict[str, Any] = {
        "suite": "desk",
        "split": "heldout",
        "lock": "lock-1",
        "candidate": Version(id="v1", digest="text of v1"),
        "agent": "agent",
        "draw": name * 32,
        "made": FRESH,
        "gated": True,
        "whole": True,
        "run": f"run {name}",
    }
    return Draw(root=ROOT.name, parents=(ROOT.name,), at=at(minutes), **{**fields, **further})


def claim(letter: str = "f", **further: Any) -> Claim:
    fields: dict[str, Any] = {"agent": "agent", "baseline": "who v0 is", "policy": "calibrated", "trials": 4}
    fields = {**fields, "draw": letter * 32} | further
    return Claim("desk", "heldout", "lock-1", "text of v1", **fields)


HOLDS = {"goal": Goal.HOLD, "counts": False}


def test_without_another_draw_nothing_changes() -> None:
    look = look_of([drawn(0, "f")], claim())
    assert (look.number, look.analysis, look.abandoned) == (1, 1, ())
    assert uncounted_share(0) == 1.0


@pytest.mark.parametrize(
    ("further", "counts"),
    [
        ({}, True),
        ({"made": KEPT, "gated": False, "whole": False}, True),
        ({"made": UNSTORED}, True),
        ({"gated": False}, False),
        ({"whole": False}, False),
        ({"made": UNSTORED, "gated": False}, False),
        ({"lock": "lock-2"}, False),
        ({"split": "transfer"}, False),
        ({"candidate": Version(id="v2", digest="text of v2")}, False),  # it makes the claim test 2
    ],
)
def test_what_could_have_been_judged_instead_counts(further: dict[str, Any], counts: bool) -> None:
    entries = [drawn(0, "a", **further), drawn(1, "f")]
    for goal in ({}, HOLDS):
        look = look_of(entries, claim(**goal))
        assert [one.run for one in look.abandoned] == (["run a"] if counts else [])
    assert look_of(entries, claim()).analysis == 1 + counts


def test_a_recorded_draw_could_have_been_any_whole_one() -> None:
    entries = [drawn(number, name, gated=False) for number, name in enumerate("abc")]
    assert len(look_of(entries, claim("b", recorded_run=True)).abandoned) == 2
    assert len(look_of(entries, claim("0", recorded_run=True)).abandoned) == 2, "one of three was recorded"
    assert look_of(entries, claim("f")).abandoned == ()


def test_a_judged_draw_is_not_abandoned_and_the_next_analysis_follows_it() -> None:
    entries: list[Dated] = [
        drawn(0, "a"),
        drawn(1, "b"),
        judged(at(2), decision=Decision.INCONCLUSIVE, analysis=2, draw="b" * 32),
        drawn(3, "f"),
    ]
    look = look_of(entries, claim(trials=8))
    assert ([one.run for one in look.abandoned], look.analysis) == (["run a"], 3)
    again = look_of([*entries, drawn(2.5, "c")], claim(trials=8))
    assert again.analysis == 4


def test_a_run_without_a_verdict_leaves_its_draw_abandoned() -> None:
    """What is lost when a draw looks bad must not make a new draw free."""
    entries: list[Dated] = [
        drawn(0, "a"),
        judged(at(1), decision=Decision.INCONCLUSIVE, alpha=None, draw="a" * 32),
        drawn(2, "f"),
    ]
    assert look_of(entries, claim()).analysis == 2


def test_the_same_agent_under_another_setting_is_a_further_test() -> None:
    entries = [drawn(number, name, agent=f"seed {number}", made=KEPT) for number, name in enumerate("abc")]
    assert look_of(entries, claim()).number == 4
    assert look_of([*entries, judged(at(9), agent="seed 1")], claim()).number == 4


def test_a_baseline_that_was_drawn_again_counts() -> None:
    v0 = {"candidate": Version(id="v0", digest="text of v0"), "gated": False}
    entries = [drawn(0, "a", made=KEPT, **v0), drawn(1, "b", **v0), drawn(2, "c", **v0), drawn(3, "f")]
    assert look_of(entries, claim(measured=("text of v0", "agent"))).analysis == 3
    assert look_of(entries, claim(measured=("text of v0", "another"))).analysis == 1


@pytest.mark.parametrize("goal", [Goal.HOLD, Goal.NO_REGRESSION])
def test_the_worse_verdict_of_the_same_claim_stands(goal: Goal) -> None:
    entries: list[Dated] = [
        drawn(0, "a"),
        judged(at(1), goal=goal, decision=Decision.DISCARD, draw="a" * 32),
        drawn(2, "f"),
    ]
    look = look_of(entries, claim(goal=goal, counts=False))
    assert (look.number, look.abandoned) == (None, ())
    fresh = Verdict(decision=Decision.PROMOTE, policy="calibrated", goal=goal, label=Label.DEVELOPMENT)
    verdict = with_recorded(fresh, look)
    assert verdict.decision is Decision.DISCARD
    assert "recorded: DISCARD on 2026-11-20; now: PROMOTE; the worse of the two counts" in verdict.reason
    other = look_of(entries, claim(goal=goal, counts=False, baseline="who v9 is"))
    assert other.recorded is None


def test_more_trials_supersede_an_open_verdict_that_holds_nothing() -> None:
    entries: list[Dated] = [judged(at(1), goal=Goal.HOLD, decision=Decision.INCONCLUSIVE, trials=4)]
    assert look_of(entries, claim(trials=8, **HOLDS)).recorded is None
    entries += [judged(at(2), goal=Goal.HOLD, decision=Decision.PROMOTE, trials=8)]
    standing = look_of(entries, claim(trials=8, **HOLDS)).recorded
    assert standing is not None
    assert standing.decision is Decision.PROMOTE


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
    entries: list[Dated] = []
    spent: dict[tuple[int | None, int | None], float] = {}
    for place, (what, name, trials, decision) in enumerate(steps):
        version = Version(id=name, digest=f"text of {name}")
        draw = drawn(2 * place, f"{place:x}"[0], candidate=version)
        draw = draw.model_copy(update={"draw": f"{place:032x}", "run": f"run {place}"})
        asked = Claim(
            "desk",
            "heldout",
            "lock-1",
            version.digest,
            "agent",
            "who v0 is",
            "calibrated",
            trials,
            draw=draw.draw,
        )
        look = look_of([*entries, draw], asked)
        entries.append(draw)
        if look.recorded is None:
            assert look.analysis is not None
            assert look.number is not None
            spent[place, None] = share(look.number, look.analysis)
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
                    repeats=None if look.recorded is None else look.recorded.name,
                    run=f"run {place}",
                    draw=draw.draw,
                )
            )
    assert sum(spent.values()) <= 1.0 + 1e-9


def simulated(rng: np.random.Generator, rates: np.ndarray, side: str) -> list[SimulationEvidence]:
    """Simulations of a side, two trials a task."""
    return [
        SimulationEvidence(
            id=f"{side}-{task}-{trial}-{rng.integers(1 << 40)}",
            task_id=str(task),
            trial=trial,
            status=Status.MEASURED,
            reward=float(rng.random() < rate),
            termination_reason="user_stop",
            task_digest=f"task {task}",
        )
        for task, rate in enumerate(rates)
        for trial in range(2)
    ]


def attack(seed: int, how: str) -> tuple[bool, float]:
    """An agent against itself on 40 tasks: whether an attack reached a promotion, and its best p.

    The attacker makes up to ten whole draws, and stops at each that does not look better than the baseline
    by ten points: `redraw` ends such a run, `loss` has a fifth of its simulations lost.
    """
    rng = np.random.default_rng(seed)
    rates = rng.beta(0.7, 0.7, size=40)
    baseline = simulated(rng, rates, "old")
    mean = np.mean([one.reward for one in baseline])
    entries: list[Dated] = []
    best = 1.0
    for number in range(10):
        new = simulated(rng, rates, f"new-{number}")
        name = f"{number:032x}"
        entries.append(drawn(2 * number, "0").model_copy(update={"draw": name, "run": f"run {number}"}))
        good = np.mean([one.reward for one in new]) >= mean + 0.1
        if not good and how == "redraw":
            continue
        if not good:
            for place in random.Random(seed).sample(range(len(new)), len(new) // 5):
                new[place] = new[place].model_copy(
                    update={"status": Status.INFRASTRUCTURE_ERROR, "reward": None}
                )
        look = look_of(entries, claim("", draw=name))
        verdict = decide(
            pair(baseline, new),
            CALIBRATED,
            goal=Goal.IMPROVE,
            label=Label.CLEAN,
            expected=40,
            look=look.number,
            analysis=look.analysis,
        )
        verdict = with_recorded(verdict, look)
        best = min([best, *(one.p for one in verdict.checks if one.id == "reward_improved" and one.p)])
        if verdict.decision is Decision.PROMOTE:
            return True, best
        lost = any(one.reward is None for one in new)
        entries.append(
            judged(
                at(2 * number + 1),
                decision=verdict.decision,
                trials=2,
                look=look.number,
                analysis=look.analysis,
                alpha=None if lost else verdict.alpha,
                repeats=None if look.recorded is None else look.recorded.name,
                run=f"run {number}",
                draw=name,
            )
        )
    return False, best


@pytest.mark.parametrize("how", ["redraw", "loss"])
def test_the_redraw_attack_promotes_no_more_often_than_the_level(how: str) -> None:
    """200 attacks with ten draws each; without the count of draws about a fifth of them succeeds."""
    found = [attack(seed, how) for seed in range(200)]
    promoted = sum(one for one, _ in found)
    naive = sum(best <= 0.05 * share(1, 1) for _, best in found)
    print(f"{how}: {promoted} of 200 promoted; {naive} would be at the level of a first draw")
    assert promoted / 200 <= 0.05 * share(1)
    assert naive > promoted
