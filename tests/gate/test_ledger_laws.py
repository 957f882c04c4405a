"""Laws of the ledger: no single damage goes unseen, and no order of writing or merging changes an answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.gate.alpha_spending import alpha_share
from pytest_trace2evolve.gate.claims import Claim, SealedSplit, label_of, spending_of
from pytest_trace2evolve.records.ledger import ContentVersion, DatedEntry, Evaluation
from pytest_trace2evolve.records.verdict import Decision, Goal, Label, Verdict
from pytest_trace2evolve.session.verdicts import combine_with_ledger
from tests.gate.test_claims import Made
from tests.ledger_helpers import at, judged, ledgers, seen

LAW = settings(max_examples=50)


def claim(candidate: str, trials: int = 4, **further: Any) -> Claim:
    """A claim of a candidate on desk::heldout."""
    fields = {"agent": "agent", "baseline": "who v0 is", "policy": "calibrated", "evidence": "evidence of v0"}
    return Claim("desk", "heldout", "lock-1", candidate, trials=trials, **{**fields, **further})


@dataclass(frozen=True)
class Run:
    """A run with a claim and its own decision; `before`: recorded before analyses were counted."""

    claim: Claim
    fresh: Decision
    measured: bool
    before: bool

    @property
    def own(self) -> Decision:
        """The decision of its figures: too little data promotes nothing."""
        return self.fresh if self.measured else min(self.fresh, Decision.INCONCLUSIVE, key=_rank)


def _rank(decision: Decision) -> int:
    return decision.rank


RUNS = st.builds(
    Run,
    st.builds(
        claim,
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from([1, 2, 4, 8]),
        agent=st.sampled_from(["agent", "another"]),
        baseline=st.sampled_from(["who v0 is", "who v1 is"]),
        policy=st.sampled_from(["calibrated", "calibrated", "strict"]),
        max_trials=st.sampled_from([0, 0, 16]),
        evidence=st.sampled_from(["evidence of v0", "more of v0"]),
    ),
    fresh=st.sampled_from([Decision.INCONCLUSIVE, *Decision]),
    measured=st.sampled_from([True, True, True, False]),
    before=st.booleans(),
)


def recorded(history: Sequence[Evaluation], runs: Sequence[Run]) -> list[Evaluation]:
    """The entries that these runs add to a history, one after the other, as a session writes them."""
    entries = list(history)
    for number, run in enumerate(runs):
        look = spending_of(entries, run.claim)
        verdict = combine_with_ledger(
            Verdict(decision=run.own, policy=run.claim.policy, goal=Goal.IMPROVE, label=Label.CLEAN), look
        )
        idle = not run.measured and verdict.decision is Decision.INCONCLUSIVE
        # A staged run without a decision ends at its last stage.
        ended = run.own is Decision.INCONCLUSIVE and run.claim.max_trials
        before = (
            run.before and not any(entry.analysis for entry in entries) and look.continued_verdict is None
        )
        entries.append(
            judged(
                at(len(entries) + number / 1000),
                parents=(entries[-1].name,) if entries else (),
                name=run.claim.candidate,
                text=run.claim.candidate,
                agent=run.claim.agent,
                baseline=ContentVersion(id="v0", digest=run.claim.evidence),
                baseline_identity=None if before else run.claim.baseline,
                policy=run.claim.policy,
                trials=run.claim.max_trials if ended else run.claim.trials,
                decision=verdict.decision,
                look=look.number,
                analysis=None if before else look.analysis,
                alpha=None
                if idle or run.claim.policy == "strict"
                else alpha_share(look.number, None if before else look.analysis) / 20,
                repeats=look.repeated_verdict.name if look.repeated_verdict else None,
                run=f"run {number} after {len(history)}",
            )
        )
    return entries[len(history) :]


def spent(entries: Sequence[Evaluation]) -> float:
    """The share of alpha that entries have spent together; the level of each is as recorded."""
    return sum((entry.alpha or 0.0) * 20 for entry in entries if entry.repeats is None)


@LAW
@given(ledgers(), st.randoms(use_true_random=False))
def test_no_order_changes_a_look_or_a_label(entries: list[DatedEntry], random: object) -> None:
    shuffled = list(entries)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    split = SealedSplit("desk", "heldout", "desk", {"close"})
    for day in (None, at().date(), at(days=-1).date(), at(days=1).date()):
        lineage = [Made(frozen_at=day)]
        assert label_of(lineage, split, entries) == label_of(lineage, split, shuffled)
    for text in ("text of v1", "new"):
        for trials in (1, 2, 4):
            for evidence in ("evidence of v0", "other evidence"):
                wanted = claim(text, trials, evidence=evidence)
                assert spending_of(entries, wanted) == spending_of(shuffled, wanted)


@LAW
@given(ledgers())
def test_merging_branches_only_ever_raises_the_next_look(entries: list[DatedEntry]) -> None:
    half = len(entries) // 2
    merged = spending_of(entries, claim("new")).number
    parts = [spending_of(part, claim("new")).number for part in (entries[:half], entries[half:])]
    assert max(parts) <= merged <= sum(parts) - 1


@LAW
@given(ledgers(), st.sampled_from(["v1", "v2"]), st.integers(0, 5))
def test_one_more_look_never_cleans_anything(entries: list[DatedEntry], name: str, days: int) -> None:
    split = SealedSplit("desk", "heldout", "desk", {"close"})
    lineage = [Made(name, at(days=2).date())]
    before = label_of(lineage, split, entries).label
    after = label_of(lineage, split, [*entries, seen(at(days=days))]).label
    assert after is Label.DEVELOPMENT or (before is Label.CLEAN and days > 2)


@LAW
@given(st.lists(RUNS, max_size=14))
def test_all_tests_and_analyses_of_a_history_spend_at_most_alpha(runs: list[Run]) -> None:
    entries = recorded([], runs)
    assert spent(entries) <= 1


@st.composite
def branches(draw: st.DrawFn) -> tuple[list[Evaluation], list[list[Evaluation]]]:
    """The runs that two branches share, and those that each added."""
    base = recorded([], draw(st.lists(RUNS, max_size=6)))
    return base, [recorded(base, draw(st.lists(RUNS, max_size=6))) for _ in range(2)]


@LAW
@given(branches(), RUNS)
def test_merged_branches_spend_at_most_alpha_each_and_count_both(
    found: tuple[list[Evaluation], list[list[Evaluation]]], after: Run
) -> None:
    base, branches = found
    merged = [*base, *branches[0], *branches[1]]
    assert all(spent([*base, *branch]) <= 1 for branch in branches)
    new = claim("new")
    assert spending_of(merged, new).number >= max(spending_of([*base, *one], new).number for one in branches)
    # Every test that either branch has spent on is counted by the next.
    tests = {
        (entry.candidate.digest, entry.agent, entry.policy, entry.baseline_identity)
        for entry in merged
        if entry.alpha and entry.repeats is None and entry.baseline_identity is not None
    }
    assert spending_of(merged, new).number > len(tests)
    look = spending_of(merged, after.claim)
    if look.continued_verdict is not None:
        used = {entry.analysis for entry in merged if entry.look == look.number and is_of(entry, after.claim)}
        assert look.analysis not in used


@LAW
@given(branches(), RUNS, st.randoms(use_true_random=False))
def test_no_order_of_merged_branches_changes_what_a_run_is(
    found: tuple[list[Evaluation], list[list[Evaluation]]], after: Run, random: Any
) -> None:
    base, (ours, theirs) = found
    merged = [*base, *ours, *theirs]
    shuffled = list(merged)
    random.shuffle(shuffled)
    look = spending_of(merged, after.claim)
    assert spending_of(shuffled, after.claim) == look
    discarded = any(entry.decision is Decision.DISCARD and is_of(entry, after.claim) for entry in merged)
    if discarded:
        assert look.repeated_verdict is not None
        assert look.repeated_verdict.decision is Decision.DISCARD


def is_of(entry: Evaluation, wanted: Claim) -> bool:
    """Whether an entry with an identity of its baseline is of a claim and has a verdict."""
    mine = (entry.candidate.digest, entry.agent, entry.policy, entry.baseline_identity)
    same = mine == (wanted.candidate, wanted.agent, wanted.policy, wanted.baseline)
    return same and entry.has_verdict


@LAW
@given(st.lists(RUNS, max_size=10), RUNS)
def test_a_repeat_never_makes_a_decision_better(runs: list[Run], again: Run) -> None:
    entries = recorded([], runs)
    look = spending_of(entries, again.claim)
    (entry,) = recorded(entries, [again])
    if look.repeated_verdict is None:
        return
    assert entry.decision.rank <= min(look.repeated_verdict.decision.rank, again.own.rank)
    assert entry.look == look.repeated_verdict.look
    assert spent([*entries, entry]) == spent(entries), "and spends nothing"
    further = spending_of([*entries, entry], again.claim)
    assert further.repeated_verdict is not None
    assert further.repeated_verdict.decision.rank <= look.repeated_verdict.decision.rank, (
        "and what stands is no better"
    )


@LAW
@given(st.lists(RUNS, max_size=10), RUNS)
def test_a_discarded_claim_is_never_promoted(runs: list[Run], again: Run) -> None:
    entries = recorded([], runs)
    discards = [
        entry for entry in entries if entry.decision is Decision.DISCARD and is_of(entry, again.claim)
    ]
    (entry,) = recorded(entries, [again])
    assert not discards or entry.decision is Decision.DISCARD
