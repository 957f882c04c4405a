"""Which test of a sealed split a clean claim is, which analysis of that test, and at which level.

Every claim of an improvement on the same sealed tasks is one more chance to be wrong. The k-th test of a
split may spend α_k = α·6/(π²k²) in total, so that all tests together, however many, are wrong with at most α
(Bonferroni's inequality with the weights of the Basel series, which add up to 1).

More trials of the same claim continue its test. Analysis j of test k has level α_k·¾·(¼)^(j-1); these levels
add up to α_k. The number of analyses is not known beforehand (as in Lan and DeMets, Biometrika 1983), and a
later analysis may hold the data of an earlier one or fresh data alone. Bonferroni's inequality holds for any
dependence between them. Decision page 0006 gives the reasons for these weights.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.records.ledger import Dated, Evaluation, Repair
from pytest_trace2evolve.records.verdict import Decision

FIRST_SHARE = 0.75
"""The first analysis' share of its test's level. Each further one has a quarter of the share before it."""


@dataclass(frozen=True)
class Claim:
    """A claim to be better, on clean evidence.

    Attributes:
        suite, split, lock: The sealed split, under its suite's lock.
        candidate: Digest of the candidate.
        agent: Digest of the agent's identity: the same text on another model is another claim.
        baseline: Identity of the baseline: a digest of its candidate, agent and lock, not of its simulations.
        policy: The gate's policy.
        trials: The candidate's trials a task.
        most: Those at the last stage of its run; 0 without stages.
        evidence: Digest of the baseline's evidence on the split, by which entries without `baseline_identity`
            name their baseline.
    """

    suite: str
    split: str
    lock: str
    candidate: str
    agent: str
    baseline: str
    policy: str
    trials: int
    most: int = 0
    evidence: str = ""


@dataclass(frozen=True)
class Look:
    """A claim's place among the tests of its split.

    Attributes:
        number: The number of its test, from 1.
        analysis: The number of the analysis within the test, from 1; None for a repeat of a test that was
            recorded before analyses were counted and has spent its whole level at once.
        recorded: The recorded verdict that this run repeats; None if it is a new analysis.
        continued: The recorded inconclusive verdict whose test this run continues with more trials.
        trials: The most trials a task of this claim, earlier runs included: more continue its test.
    """

    number: int
    analysis: int | None = 1
    recorded: Evaluation | None = None
    continued: Evaluation | None = None
    trials: int = 0


def share(number: int, analysis: int | None = None) -> float:
    """The share of α that a test has, or one analysis of it.

    Args:
        number: The test's number k, from 1: its share is 6/(π²k²).
        analysis: The analysis' number j, from 1: it has ¾·(¼)^(j-1) of the test's share. None: the whole.
    """
    whole = 6.0 / (math.pi * number) ** 2
    return whole if analysis is None else whole * FIRST_SHARE * (1.0 - FIRST_SHARE) ** (analysis - 1)


def look_of(entries: Iterable[Dated], claim: Claim) -> Look:
    """The test and the analysis that a claim is.

    Args:
        entries: All that the ledger holds; their order does not matter.
        claim: What is claimed now.

    Returns:
        A repeat if the same claim has a verdict, unless that verdict is inconclusive and this run has more
        trials than all runs before: such a run is the next analysis of the same test. A claim without a
        verdict is a new test. Its number is one more than the tests so far: every other candidate that
        claimed counts once, and so does every test of a candidate that spent α.

        So at least n - 1 is counted before the n-th test that spends α. Its share is at most the n-th, and
        all shares together are at most 1. Entries that were lost before a repair count as a test each, and no
        test after it has a lower number than one that is recorded.
    """
    entries = list(entries)
    made = claims_on(entries, claim.suite, claim.split, claim.lock)
    same = [entry for entry in made if _is_same(entry, claim) and entry.has_verdict]
    trials = max(claim.trials, claim.most)
    if same:
        recorded = _standing(same)
        analysed = max(entry.trials for entry in same)
        if recorded.decision is not Decision.INCONCLUSIVE or trials <= analysed:
            most = max(trials, analysed)
            return Look(_number(recorded), recorded.analysis, recorded=recorded, trials=most)
        # Branches may have made the same analysis at once: each has spent.
        analyses = [entry for entry in same if entry.analysis is not None and entry.repeats is None]
        if analyses:
            number = max(_number(entry) for entry in analyses)
            last = max(entry.analysis or 0 for entry in analyses)
            return Look(number, 1 + max(last, len(analyses)), continued=recorded, trials=trials)
    repairs = [entry for entry in entries if isinstance(entry, Repair) and claim.lock in entry.locks]
    return Look(_after_repairs(_next_number(made, claim.candidate), made, repairs), trials=trials)


def claims_on(entries: Iterable[Dated], suite: str, split: str, lock: str) -> list[Evaluation]:
    """The clean claims on a sealed split, oldest first."""
    found = [
        entry
        for entry in entries
        if isinstance(entry, Evaluation)
        and entry.claims_clean
        and (entry.suite, entry.split, entry.lock) == (suite, split, lock)
    ]
    return sorted(found, key=lambda entry: (entry.at, entry.name))


def _is_same(entry: Evaluation, claim: Claim) -> bool:
    """Whether an entry is of the same claim: of all that identifies it, only the trials may differ."""
    if (entry.candidate.digest, entry.agent, entry.policy) != (claim.candidate, claim.agent, claim.policy):
        return False
    if entry.baseline_identity is None:
        return entry.baseline.digest == claim.evidence
    return entry.baseline_identity == claim.baseline


def _standing(same: Sequence[Evaluation]) -> Evaluation:
    """The verdict that stands after these of one claim, oldest first.

    A discard is final. Else it is the worst of the latest analysis and its repeats. Of entries from before
    analyses were counted the worst stands.
    """
    latest = max(entry.analysis or 0 for entry in same)
    final = [entry for entry in same if entry.decision is Decision.DISCARD or (entry.analysis or 0) == latest]
    return min(final, key=lambda entry: entry.decision.rank)


def _next_number(made: Sequence[Evaluation], candidate: str) -> int:
    """The number of a new test of a candidate, after these claims."""
    verdicts = {entry.name for entry in made if entry.has_verdict}
    tests: dict[str, set[tuple[object, ...]]] = {}
    for entry in made:
        spent = tests.setdefault(entry.candidate.digest, set())
        if entry.alpha is not None and entry.repeats not in verdicts:
            spent.add(_test(entry))
    own = len(tests.pop(candidate, ()))
    return 1 + own + sum(max(1, len(spent)) for spent in tests.values())


def _after_repairs(number: int, made: Sequence[Evaluation], repairs: Sequence[Repair]) -> int:
    """The number of a new test, where tests may have been lost: never lower than it was before."""
    lowest = [number + sum(one.lost for one in repairs)]
    for one in repairs:
        known = [_number(entry) for entry in made if entry.at < one.at]
        since = [_number(entry) for entry in made if entry.at > one.at]
        lowest += [max(known, default=0) + one.lost + 1, max(since, default=0) + 1]
    return max(lowest) if repairs else number


def _test(entry: Evaluation) -> tuple[object, ...]:
    """The identity of a test. Before analyses were counted, another number of trials was another test."""
    if entry.baseline_identity is None or entry.analysis is None:
        return entry.agent, entry.baseline.digest, entry.policy, entry.trials
    return entry.agent, entry.baseline_identity, entry.policy


def _number(entry: Evaluation) -> int:
    assert entry.look is not None, "a clean claim has a number"
    return entry.look
