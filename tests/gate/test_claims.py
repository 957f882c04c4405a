"""Claims on a sealed split: when their evidence is clean, which test they are, and what each costs."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.gate.alpha_spending import alpha_share
from pytest_trace2evolve.gate.claims import AlphaSpending, Claim, SealedSplit, label_of, spending_of
from pytest_trace2evolve.records.ledger import (
    BaselineSave,
    ContentVersion,
    DatedEntry,
    Draw,
    DrawOrigin,
    Evaluation,
    Repair,
)
from pytest_trace2evolve.records.verdict import Decision, Goal, Label, Verdict
from pytest_trace2evolve.session.verdicts import combine_with_ledger
from tests.ledger_helpers import ROOT, START, at, judged, seen

OPEN, WORSE = Decision.INCONCLUSIVE, Decision.DISCARD
KEPT, PLAYED, UNSTORED, RESUMABLE = (
    DrawOrigin.KEPT,
    DrawOrigin.PLAYED,
    DrawOrigin.UNSTORED,
    DrawOrigin.RESUMABLE,
)

# Labels.

SPLIT = SealedSplit("desk", "heldout", "desk", {"close", "note"})
READ = "traces of desk::heldout were read (task close, 2026-11-20), and candidate "
FROZEN = READ + "v1 was frozen on 2026-11-{}, not before"


@dataclass(frozen=True)
class Made:
    """A candidate with its history."""

    id: str = "v1"
    frozen_at: date | None = None
    digest: str = "text of v1"
    places: frozenset[str] = field(default=frozenset())

    def has_seen(self, suite: str, split: str) -> bool:
        return f"{suite}::{split}" in self.places


def unclean(entries: list[DatedEntry], *lineage: Made) -> str:
    """The reason why evidence is not clean; empty if it is."""
    label, reason = label_of(lineage or (Made(),), SPLIT, entries)
    assert label is (Label.DEVELOPMENT if reason else Label.CLEAN)
    return reason


def on(day: int) -> date:
    return date(2026, 11, day)


@pytest.mark.parametrize(
    ("moment", "day", "frozen", "reason"),
    [
        (START, on(20), on(19), ""),
        (START, on(20), on(20), FROZEN.format(20)),
        (START, on(20), on(21), FROZEN.format(21)),
        (START, on(20), None, READ + "v1 is not frozen: it has no frozen_at"),
        # The evening in California is the next morning in UTC; the morning in Tokyo is the day before.
        (datetime(2026, 11, 21, 6, 30, tzinfo=UTC), on(20), on(20), FROZEN.format(20)),
        (datetime(2026, 11, 20, 20, 0, tzinfo=UTC), on(21), on(20), FROZEN.format(20)),
        (datetime(2026, 11, 21, 0, 0, tzinfo=UTC), on(21), on(20), ""),
    ],
)
def test_a_candidate_must_be_frozen_the_day_before_an_access_on_both_calendars(
    moment: datetime, day: date, frozen: date | None, reason: str
) -> None:
    assert unclean([seen(moment, day=day)], Made(frozen_at=frozen)) == reason
    assert unclean([judged()], Made(frozen_at=frozen)) == "", "without an access, anything is clean"


def test_the_whole_lineage_must_be_frozen_and_uninformed() -> None:
    child = Made("v2", on(1), "text of v2")
    assert unclean([seen()], child, Made()) == READ + "v1 is not frozen: it has no frozen_at"
    assert unclean([seen()], child, Made(frozen_at=on(1))) == ""
    informed = Made("v0", on(1), places=frozenset({"desk::heldout"}))
    assert unclean([], Made(), informed) == "candidate v0 was informed by desk::heldout"
    assert unclean([], Made(), Made("v0", places=frozenset({"desk::development"}))) == ""


@pytest.mark.parametrize(
    ("verdict", "is_edited"),
    [
        (judged(text="another"), True),
        (judged(text="another", goal=Goal.HOLD), True),
        (judged(name="v9", ancestors=(ContentVersion(id="v1", digest="x"),)), True),
        (judged(), False),
    ],
)
def test_a_candidate_that_was_judged_with_another_text_is_a_new_one(
    verdict: Evaluation, is_edited: bool
) -> None:
    reason = READ + "v1 was changed after it had been judged: give it a new id"
    assert unclean([seen(), verdict], Made(frozen_at=on(1))) == (reason if is_edited else "")
    assert unclean([verdict], Made(frozen_at=on(1))) == "", "nothing was read"


@pytest.mark.parametrize(
    ("access", "is_clean"),
    [
        ({"suite": "desk", "split": "heldout", "task": "gone"}, False),
        ({"suite": "desk", "split": "development", "task": "other"}, True),
        ({"suite": "more", "split": "heldout", "task": "other"}, True),
        ({"suite": "more", "split": "development", "task": "note"}, False),  # the same task of the domain
        ({"suite": "more", "split": "heldout", "task": "note", "domain": "shop"}, True),
    ],
)
def test_an_access_counts_for_its_split_and_for_its_task(access: dict[str, str], is_clean: bool) -> None:
    assert (unclean([seen(**access)]) == "") is is_clean


# Numbers of tests and analyses.


def claim(name: str = "v9", **further: Any) -> Claim:
    """A claim of a candidate on desk::heldout."""
    fields = {"agent": "agent", "baseline": "who v0 is", "policy": "calibrated", "trials": 4}
    fields |= {"evidence": "evidence of v0", **further}
    return Claim("desk", "heldout", "lock-1", f"text of {name}", **fields)


def spent(entries: Sequence[DatedEntry], name: str = "v9", **further: Any) -> AlphaSpending:
    return spending_of(entries, claim(name, **further))


def old(*arguments: Any, **further: Any) -> Evaluation:
    """An entry from before analyses were counted."""
    return judged(*arguments, **{"analysis": None, "baseline_identity": None, **further})


def test_each_candidate_with_a_clean_claim_on_the_locked_split_is_a_test() -> None:
    assert spent([]) == AlphaSpending(1, 1, trials=4)
    assert spent([judged()]) == AlphaSpending(2, 1, trials=4)
    assert spent([judged(), judged(at(1), name="v2", look=2)]).number == 3
    others = (
        *({"goal": Goal.HOLD}, {"goal": Goal.NO_REGRESSION}, {"label": Label.DEVELOPMENT}),
        *({"suite": "more"}, {"split": "other"}, {"lock": "lock-2"}),
    )
    for entry in (seen(), *(judged(**other) for other in others)):
        assert spent([entry]).number == 1


def test_the_same_claim_repeats_its_verdict_and_the_worst_of_an_analysis_stands() -> None:
    first = judged()
    worse = judged(at(1), decision=OPEN, repeats=first.name)
    better = judged(at(2), repeats=worse.name)
    assert spent([first], "v1") == AlphaSpending(1, repeated_verdict=first, trials=4)
    assert spent([better, first, worse], "v1").repeated_verdict == worse
    early, late = judged(at(3), decision=WORSE), judged(at(4), decision=WORSE)
    assert spent([first, late, early, better], "v1", trials=99).repeated_verdict == early, (
        "discards are final"
    )
    renamed = judged(at(1), policy="mine 12345678", goal=Goal.HOLD, decision=WORSE)
    held = {"goal": Goal.HOLD, "is_numbered": False}
    assert spent([renamed], "v1", policy="other 12345678", **held).repeated_verdict == renamed
    assert spent([renamed], "v1", policy="mine 87654321", **held).repeated_verdict is None
    assert spent([renamed], "v1", policy="mine 12345678", baseline="v9", **held).repeated_verdict is None


def test_more_trials_continue_an_inconclusive_test() -> None:
    first, other = judged(decision=OPEN), judged(at(1), name="v2", look=2)
    for trials in (1, 3, 4):
        assert spent([first, other], "v1", trials=trials) == AlphaSpending(
            1, repeated_verdict=first, trials=4
        )
    following = AlphaSpending(1, 2, continued_verdict=first, trials=8)
    assert spent([first, other], "v1", trials=8) == following
    second = judged(at(2), decision=OPEN, trials=8, analysis=2)
    following = AlphaSpending(1, 3, continued_verdict=second, trials=16)
    assert spent([first, other, second], "v1", trials=16) == following
    assert spent([first, second], "v2").number == 2, "however many analyses, it is one test"
    promoted = judged(at(3), trials=16, analysis=3)
    assert spent([first, second, promoted], "v1", trials=16).repeated_verdict == promoted


def test_a_verdict_that_spent_its_level_comes_before_one_that_could_not() -> None:
    idle, paid = judged(at(1), alpha=None, decision=OPEN), judged(at(2))
    assert spent([idle], "v1") == AlphaSpending(1, trials=4)
    assert spent([idle, paid], "v1").repeated_verdict == paid
    undecided = judged(at(2), decision=OPEN)
    second = judged(at(3), alpha=None, decision=OPEN, analysis=2, trials=8)
    following = AlphaSpending(1, 2, continued_verdict=undecided, trials=8)
    assert spent([undecided, second], "v1", trials=8) == following
    strict = judged(policy="strict", alpha=None)
    assert spent([strict], "v1").number == 1
    assert spent([strict, judged(at(1), policy="strict", alpha=None, trials=1)], "v2").number == 2
    assert spent([strict], "v1", policy="strict", trials=8).repeated_verdict == strict


@pytest.mark.parametrize("other", [{"agent": "x"}, {"baseline": "x"}, {"policy": "x"}])
def test_another_agent_baseline_or_policy_is_a_new_test(other: dict[str, str]) -> None:
    assert spent([judged()], "v1", **other).number == 2
    fields = {"baseline_identity": "x"} if "baseline" in other else other
    entries = [judged(), judged(at(1), look=2, **fields)]
    assert spent(entries, "v2").number == 3, "each such test counts for those that come later"


def test_entries_from_before_analyses_have_spent_their_whole_level() -> None:
    first = old(decision=OPEN)
    assert spent([first], "v1") == AlphaSpending(1, None, repeated_verdict=first, trials=4)
    assert spent([first], "v1", trials=8).number == 2
    assert spent([first, old(at(1), trials=8, look=2), old(at(2), trials=16, look=3)], "v2").number == 4
    assert spent([first], "v1", evidence="x").number == 2, "its baseline is known by its evidence alone"
    again = judged(at(1), analysis=None, trials=2, decision=OPEN, repeats=first.name)
    assert spent([first, again], "v2").number == 2, "a repeat spends nothing"
    assert old().name == "9f6946c99eccf9447ac821c3fdd3085a", "an older entry keeps its name"
    assert not {"analysis", "baseline_identity"} & old().to_json().keys()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"goal": Goal.HOLD, "look": None, "analysis": 2}, "analysis 2 is set, but look is not"),
        ({"goal": Goal.HOLD}, "look 1 does not match goal hold and label clean"),
        (
            {"goal": Goal.NO_REGRESSION, "look": None, "analysis": None},
            "label clean with goal no-regression, which claims nothing",
        ),
    ],
)
def test_an_evaluation_that_contradicts_itself_is_no_entry(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Evaluation.model_validate({**judged().to_json(), **changes})


def test_entries_lost_before_a_repair_count_as_tests() -> None:
    repair = Repair(
        root=ROOT.name,
        parents=(ROOT.name,),
        at=at(5),
        who="ann",
        day=at(5).date(),
        problems=("an entry is missing",),
        lost=2,
        locks=("lock-1",),
    )
    assert spent([repair]).number == 3
    assert spent([judged(look=4), repair]).number == 7, "never lower than before the loss"
    assert spent([repair, judged(at(9), look=8)]).number == 9
    assert spent([repair.model_copy(update={"locks": ("lock-2",)})]).number == 1


@pytest.mark.parametrize(("recorded", "now"), [*itertools.product(Decision, Decision)])
def test_the_worse_of_the_recorded_and_the_fresh_decision_counts(recorded: Decision, now: Decision) -> None:
    fresh = Verdict(decision=now, policy="calibrated", goal=Goal.IMPROVE, label=Label.CLEAN)
    verdict = combine_with_ledger(fresh, spent([judged(decision=recorded)], "v1"))
    assert verdict.decision is min(recorded, now, key=lambda one: one.rank)
    dated = f"recorded: {recorded.value.upper()} on 2026-11-20; now: {now.value.upper()}"
    assert verdict.reason.startswith(f"{dated}; the worse of the two counts")
    following = combine_with_ledger(fresh, spent([judged(decision=OPEN, look=2)], "v1", trials=8), "a reason")
    assert following.decision is now
    tail = "continues test 2: INCONCLUSIVE on 2026-11-20, with 4 trials a task"
    assert following.reason == f"a reason; {tail}"


# Draws that no verdict names: each was a chance, and takes a part of the level.


def drawn(minutes: float, name: str, **further: Any) -> Draw:
    """A whole draw of a gated run of v1, on desk::heldout."""
    fields: dict[str, Any] = {
        "suite": "desk",
        "split": "heldout",
        "lock": "lock-1",
        "candidate": ContentVersion(id="v1", digest="text of v1"),
        "agent": "agent",
        "draw": name * 32,
        "made": DrawOrigin.FRESH,
        "gated": True,
        "whole": True,
        "run": f"run {name}",
    }
    return Draw(root=ROOT.name, parents=(ROOT.name,), at=at(minutes), **{**fields, **further})


def saved(minutes: float, run: str, evidence: str) -> BaselineSave:
    """A baseline of desk that a run saved."""
    version = ContentVersion(id="v0", digest=evidence)
    return BaselineSave(
        root=ROOT.name, parents=(ROOT.name,), at=at(minutes), suite="desk", baseline=version, run=run
    )


def of(name: str) -> dict[str, Any]:
    return {"candidate": ContentVersion(id=name, digest=f"text of {name}")}


def counted(entries: Sequence[DatedEntry], letter: str = "f", **further: Any) -> AlphaSpending:
    """What a claim of v1 that judges a draw has."""
    return spending_of(entries, claim("v1", evidence="", draw_id=letter * 32, **further))


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
    ],
)
def test_a_draw_that_could_have_been_judged_instead_counts(further: dict[str, Any], counts: bool) -> None:
    """Of the candidate itself, as an analysis; of another candidate or agent, as a test."""
    entries = [drawn(0, "a", **further), drawn(1, "f")]
    for goal in ({}, HOLDS):
        runs = [one.run for one in counted(entries, **goal).abandoned_draws]
        assert runs == (["run a"] if counts else [])
    assert counted(entries).analysis == 1 + counts
    another = [drawn(0, "a", **of("v2"), **further), drawn(1, "f")]
    assert counted(another).number == 1 + counts
    assert counted(another, baseline_digests=("text of v2", "agent")).number == 1, "it is the baseline"
    if "lock" not in further and "split" not in further:
        assert counted(another, is_recorded_run=True).number == 2
        claimed = [*another, judged(at(2), name="v2", draw="a" * 32)]
        assert counted(claimed).number == 2, "its test is counted once"


@pytest.mark.parametrize("whole", [True, False])
def test_a_recorded_draw_could_have_been_any(whole: bool) -> None:
    """Parts of several draws could have been put together."""
    entries = [drawn(number, name, gated=False, whole=whole) for number, name in enumerate("abc")]
    for letter in "b0":  # one of the three, or a recording of one of them
        assert len(counted(entries, letter, is_recorded_run=True).abandoned_draws) == 2
    assert counted(entries).abandoned_draws == ()


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
    draws = [drawn(2 * place, f"{place}", made=made) for place, (*_, made) in enumerate(looks)]
    verdicts = [
        judged(at(2 * place + 1), decision=decision, draw=f"{place}" * 32, **further)
        for place, (further, decision, _) in enumerate(looks)
    ]
    look = counted([*draws, *verdicts, drawn(99, "f")])
    assert (look.number, look.analysis, look.repeated_verdict) == (1, 1 + len(looks), None)
    assert len(look.abandoned_draws) == len(looks)
    own = [entry.model_copy(update={"draw": "f" * 32}) for entry in verdicts]
    assert counted([drawn(0, "f"), *own]).analysis == 1, "there was no choice"


@given(st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), max_size=6), st.booleans())
def test_each_number_of_trials_of_a_draw_is_a_look(numbers: list[int], gated: bool) -> None:
    """Whoever looks after each trial, and claims when it looks best, has made as many tests."""
    entries: list[DatedEntry] = [
        drawn(place, "f", made=KEPT, trials=trials, gated=gated, whole=False, run=f"run {place}")
        for place, trials in enumerate(numbers)
    ]
    others = set(numbers) - {4}
    assert counted([*entries, drawn(50, "f", made=KEPT, trials=4)]).analysis == 1 + len(others)
    if others and min(others) < 4:
        entries.append(judged(at(60), trials=min(others), draw="f" * 32, decision=OPEN))
    assert counted(entries).analysis == 1 + len(others)
    unnumbered = [drawn(0, "f", made=KEPT), drawn(1, "f", made=KEPT, trials=4)]
    assert counted(unnumbered).analysis == 1, "an older version recorded no number"


def test_a_judged_draw_is_not_abandoned_and_one_without_a_verdict_is() -> None:
    verdict = judged(at(2), decision=OPEN, analysis=2, draw="b" * 32)
    entries = [drawn(0, "a"), drawn(1, "b"), verdict, drawn(3, "f")]
    look = counted(entries, trials=8)
    assert ([one.run for one in look.abandoned_draws], look.analysis) == (["run a"], 3)
    assert counted([*entries, drawn(2.5, "c")], trials=8).analysis == 4
    lost = judged(at(1), decision=OPEN, alpha=None, draw="a" * 32)
    assert counted([drawn(0, "a"), lost, drawn(2, "f")]).analysis == 2, "losses make no draw free"
    mine = [drawn(0, "a"), judged(at(1), policy="mine", draw="a" * 32), drawn(2, "f")]
    assert (counted(mine).number, counted(mine).analysis) == (2, 1), "another policy is another test"
    assert len(counted(mine, **HOLDS).abandoned_draws) == 1, "the figures were seen"


@pytest.mark.parametrize("goal", [Goal.HOLD, Goal.NO_REGRESSION])
def test_the_verdict_of_a_claim_without_a_number_stands_and_abandons_nothing(goal: Goal) -> None:
    entries = [drawn(0, "a"), judged(at(1), goal=goal, decision=WORSE, draw="a" * 32), drawn(2, "f")]
    look = counted(entries, goal=goal, is_numbered=False)
    assert (look.number, look.abandoned_draws, look.repeated_verdict) == (None, (), entries[1])


def test_another_setting_of_the_agent_is_a_further_test() -> None:
    entries = [drawn(number, name, agent=f"seed {number}", made=KEPT) for number, name in enumerate("abc")]
    assert counted(entries).number == 4
    assert counted([*entries, judged(at(9), agent="seed 1")]).number == 4


# Baselines.

V0 = {**of("v0"), "gated": False, "made": UNSTORED}
MEASURED = {"baseline_digests": ("text of v0", "agent")}


def test_a_baseline_that_was_drawn_again_counts() -> None:
    v0 = {**of("v0"), "gated": False}
    entries = [drawn(0, "a", made=KEPT, **v0), drawn(1, "b", **v0), drawn(2, "c", **v0), drawn(3, "f")]
    assert counted(entries, **MEASURED).analysis == 3
    assert counted(entries, baseline_digests=("text of v0", "another")).analysis == 1


def test_a_baseline_whose_simulations_are_not_stored_counts_if_it_was_saved() -> None:
    runs = [drawn(0, "a", **V0), saved(1, "run a", "low"), drawn(2, "b", **V0), saved(3, "run b", "lower")]
    entries = [*runs, drawn(4, "c", **V0), drawn(5, "f", made=UNSTORED)]
    look = counted(entries, **MEASURED, baseline_run="run b")
    assert ([draw.run for draw in look.abandoned_draws], look.number, look.analysis) == (["run a"], 1, 2)
    replayed = counted(entries, **MEASURED, baseline_run="a replay")
    assert len(replayed.abandoned_draws) == 2, "a file may hold any of the three"


def test_a_saved_baseline_that_a_test_used_does_not_count() -> None:
    """An agent's baseline is measured again for more trials."""
    first = [drawn(0, "a", **V0), saved(1, "run a", "two trials"), drawn(2, "b", made=UNSTORED)]
    used = judged(at(3), trials=2, baseline_evidence="two trials", decision=OPEN, draw="b" * 32)
    second = [drawn(4, "c", **V0), saved(5, "run c", "four trials"), drawn(6, "f", made=UNSTORED)]
    look = counted([*first, used, *second], **MEASURED, baseline_run="run c")
    assert (look.number, look.analysis, look.abandoned_draws) == (1, 2, ())
    held = counted([*first, used, *second], **MEASURED, baseline_run="run c", **HOLDS)
    assert [draw.run for draw in held.abandoned_draws] == ["run a", "run b"], (
        "no claim to be not worse used the baseline, and the other claim showed the figures of the draw"
    )


STEPS = st.lists(
    st.tuples(
        st.booleans(), st.sampled_from("abc"), st.sampled_from([2, 4, 8, 16]), st.sampled_from(Decision)
    ),
    max_size=16,
)


@given(STEPS)
def test_no_sequence_of_draws_spends_more_than_alpha(
    steps: Sequence[tuple[bool, str, int, Decision]],
) -> None:
    """Every draw, judged or not, could have promoted at the level that it would have had."""
    entries: list[DatedEntry] = []
    spent_share = 0.0
    for place, (is_judged, name, trials, decision) in enumerate(steps):
        draw = drawn(2 * place, "0", run=f"run {place}", **of(name))
        draw = draw.model_copy(update={"draw": f"{place:032x}"})
        look = spent([*entries, draw], name, trials=trials, draw_id=draw.draw)
        entries.append(draw)
        if look.repeated_verdict is None:
            assert look.analysis is not None
            assert look.number is not None
            spent_share += alpha_share(look.number, look.analysis)
        if is_judged:
            repeats = look.repeated_verdict.name if look.repeated_verdict else None
            numbers = {"look": look.number, "analysis": look.analysis, "repeats": repeats}
            further = {"name": name, "trials": trials, "decision": decision, "run": draw.run, **numbers}
            entries.append(judged(at(2 * place + 1), draw=draw.draw, **further))
    assert spent_share <= 1.0 + 1e-9
