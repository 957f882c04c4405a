"""Which test of a sealed split a clean claim is, which analysis of that test, and at which level.

Every claim of an improvement on the same sealed tasks is one more chance to be wrong. The k-th test of a
split may spend α_k = α·6/(π²k²) in total, so that all tests together, however many, are wrong with at most α
(Bonferroni's inequality with the weights of the Basel series, which add up to 1).

More trials of the same claim continue its test. Analysis j of test k has level α_k·¾·(¼)^(j-1); these levels
add up to α_k. The number of analyses is not known beforehand (as in Lan and DeMets, Biometrika 1983), and a
later analysis may hold the data of an earlier one or fresh data alone. Bonferroni's inequality holds for any
dependence between them. Decision page 0006 gives the reasons for these weights.

A draw of the same split that was not judged, and that the claim could have been made on instead, is one more
chance to be wrong. So each such draw takes the place of an analysis: see `abandoned_draws`. Each other
candidate or agent that was drawn and claimed nothing could have been chosen instead: it counts as a test.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pytest_trace2evolve.gate.policy import settings_part
from pytest_trace2evolve.records.ledger import Dated, Draw, Evaluation, Origin, Repair, Saved
from pytest_trace2evolve.records.verdict import Decision, Goal

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
        goal: What is claimed. Only `improve` on clean evidence is a test with a number.
        counts: Whether it is such a claim.
        draw: The id of the draw that is judged; empty if it is not known.
        recorded_run: Whether the draw was made before this run, and not read from the store: a replay, or a
            cassette.
        measured: Digests of the baseline's candidate and agent; empty if they are not known.
        baseline_run: The run that measured the baseline; empty if it is not known.
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
    goal: Goal = Goal.IMPROVE
    counts: bool = True
    draw: str = ""
    recorded_run: bool = False
    measured: tuple[str, str] = ("", "")
    baseline_run: str = ""


@dataclass(frozen=True)
class Look:
    """A claim's place among the tests of its split.

    Attributes:
        number: The number of its test, from 1; None for a claim that is no test with a number.
        analysis: The number of the analysis within the test, from 1; None for a repeat of a test that was
            recorded before analyses were counted and has spent its whole level at once.
        recorded: The recorded verdict that this run repeats; None if it is a new analysis.
        continued: The recorded inconclusive verdict whose test this run continues with more trials.
        trials: The most trials a task of this claim, earlier runs included: more continue its test.
        abandoned: Draws that the claim could have been made on instead, and that were not judged.
    """

    number: int | None
    analysis: int | None = 1
    recorded: Evaluation | None = None
    continued: Evaluation | None = None
    trials: int = 0
    abandoned: tuple[Draw, ...] = ()


def share(number: int, analysis: int | None = None) -> float:
    """The share of α that a test has, or one analysis of it.

    Args:
        number: The test's number k, from 1: its share is 6/(π²k²).
        analysis: The analysis' number j, from 1: it has ¾·(¼)^(j-1) of the test's share. None: the whole.
    """
    whole = 6.0 / (math.pi * number) ** 2
    return whole if analysis is None else whole * FIRST_SHARE * (1.0 - FIRST_SHARE) ** (analysis - 1)


def uncounted_share(abandoned: int) -> float:
    """The share of α of a claim without a test number: all of it, unless draws were abandoned before it."""
    return FIRST_SHARE * (1.0 - FIRST_SHARE) ** abandoned if abandoned else 1.0


def look_of(entries: Iterable[Dated], claim: Claim) -> Look:
    """The test and the analysis that a claim is.

    Args:
        entries: All that the ledger holds; their order does not matter.
        claim: What is claimed now.

    Returns:
        A repeat if the same claim has a verdict, unless that verdict is inconclusive and this run has more
        trials than all runs before: such a run is the next analysis of the same test. A claim without a
        verdict is a new test. Its number is one more than the tests so far: every other candidate that
        claimed counts once, and so does every test of a candidate that spent α, and every other candidate
        and agent that was only drawn.

        So at least n - 1 is counted before the n-th test that spends α. Its share is at most the n-th, and
        all shares together are at most 1. Entries that were lost before a repair count as a test each, and no
        test after it has a lower number than one that is recorded.
    """
    entries = list(entries)
    if not claim.counts:
        return _uncounted(entries, claim)
    made = claims_on(entries, claim.suite, claim.split, claim.lock)
    same = [entry for entry in made if _is_same(entry, claim) and entry.has_verdict]
    trials = max(claim.trials, claim.most)
    abandoned = abandoned_draws(entries, claim, same)
    if same:
        recorded = _standing(same)
        analysed = max(entry.trials for entry in same)
        if recorded.decision is not Decision.INCONCLUSIVE or trials <= analysed:
            most = max(trials, analysed)
            return Look(
                _number(recorded), recorded.analysis, recorded=recorded, trials=most, abandoned=abandoned
            )
        # Branches may have made the same analysis at once: each has spent.
        analyses = [entry for entry in same if entry.analysis is not None and entry.repeats is None]
        if analyses:
            number = max(_number(entry) for entry in analyses)
            last = max(entry.analysis or 0 for entry in analyses)
            analysis = 1 + max(last, len(analyses) + len(abandoned))
            return Look(number, analysis, continued=recorded, trials=trials, abandoned=abandoned)
    number = _next_number(made, claim.candidate) + _only_drawn(entries, made, claim)
    repairs = [entry for entry in entries if isinstance(entry, Repair) and claim.lock in entry.locks]
    number = _after_repairs(number, made, repairs)
    return Look(number, 1 + len(abandoned), trials=trials, abandoned=abandoned)


def _uncounted(entries: Sequence[Dated], claim: Claim) -> Look:
    """The place of a claim without a test number: it repeats the same claim, as one with a number does."""
    same = [
        entry
        for entry in _on_split(entries, claim.suite, claim.split, claim.lock)
        if isinstance(entry, Evaluation)
        and not entry.claims_clean
        and entry.goal is claim.goal
        and entry.has_verdict
        and _is_same(entry, claim)
    ]
    trials = max(claim.trials, claim.most)
    analysed = max((entry.trials for entry in same), default=0)
    # A run with more trials supersedes what is not final.
    since = min((entry.at for entry in same if entry.trials == analysed), default=None)
    final = [entry for entry in same if entry.decision is Decision.DISCARD or entry.at >= (since or entry.at)]
    recorded = min(final, key=lambda entry: entry.decision.rank, default=None)
    if recorded is None or (recorded.decision is Decision.INCONCLUSIVE and trials > analysed):
        # Its verdict does not count any more, so its draw is one that could be chosen instead.
        return Look(None, None, trials=trials, abandoned=abandoned_draws(entries, claim, ()))
    abandoned = abandoned_draws(entries, claim, same)
    return Look(None, None, recorded=recorded, trials=max(trials, analysed), abandoned=abandoned)


def abandoned_draws(entries: Iterable[Dated], claim: Claim, same: Iterable[Evaluation]) -> tuple[Draw, ...]:
    """Draws that a claim could have been made on instead of its own, and that no verdict names; oldest first.

    Of the candidate these are the first draws of a store (it was deleted since, or is another machine's) and
    the whole draws of gated runs that ended without a verdict. If a recorded draw is judged, every draw could
    have been recorded and judged. Of the baseline they are all whole draws of a model that were not judged
    when it was a candidate, but one; and of an agent whose simulations are not stored all saved baselines
    that no test used, or, if the baseline is no saved one, all whole draws but one.

    Args:
        entries: All that the ledger holds.
        claim: What is claimed now, and on which draw.
        same: The verdicts of the same claim: what they judged was not abandoned.
    """
    entries, same = list(entries), list(same)
    here = _on_split(entries, claim.suite, claim.split, claim.lock)
    first: dict[str, Draw] = {}
    for entry in sorted((one for one in here if isinstance(one, Draw)), key=lambda one: (one.at, one.name)):
        first.setdefault(entry.draw, entry)
    judged = {entry.draw for entry in same}
    ended = _ended(here)
    own = [
        draw
        for draw in first.values()
        if _who(draw) == (claim.candidate, claim.agent)
        and draw.draw not in judged | {claim.draw}
        and _could_be_judged(draw, claim, ended)
    ]
    if claim.recorded_run and claim.draw not in first:
        own = own[:-1]  # one of them is what was recorded
    if claim.measured == (claim.candidate, claim.agent):
        own = own[:-1]  # the baseline is one of them, and the candidate's own is not among them
        return tuple(own)
    of_baseline = [draw for draw in first.values() if _who(draw) == claim.measured]
    measured = [
        draw
        for draw in of_baseline
        if draw.draw not in ended | {claim.draw}
        and (draw.made is Origin.KEPT or (draw.made is not Origin.PLAYED and draw.whole))
    ]
    if claim.baseline_run in {draw.run for draw in of_baseline if draw.made is Origin.UNSTORED}:
        saving = _saving_runs(entries, claim, same) - {claim.baseline_run}
        measured = [draw for draw in measured if draw.made is not Origin.UNSTORED or draw.run in saving]
    else:
        measured = measured[:-1]
    return tuple(sorted([*own, *measured], key=lambda one: (one.at, one.name)))


def _could_be_judged(draw: Draw, claim: Claim, ended: Collection[str | None]) -> bool:
    if draw.made in (Origin.KEPT, Origin.CACHED, Origin.PLAYED) or claim.recorded_run:
        return True
    return draw.gated and draw.whole and draw.draw not in ended


def _saving_runs(entries: Iterable[Dated], claim: Claim, same: Iterable[Evaluation]) -> set[str]:
    """The runs that saved a baseline of the suite which no test used; the claim's own, if it is no test."""
    entries = list(entries)
    tests = claims_on(entries, claim.suite, claim.split, claim.lock) if claim.counts else []
    used = {entry.baseline_evidence for entry in [*same, *tests] if entry.has_verdict}
    return {
        entry.run
        for entry in entries
        if isinstance(entry, Saved) and entry.suite == claim.suite and entry.baseline.digest not in used
    }


def _who(entry: Draw | Evaluation) -> tuple[str, str]:
    """Digests of the candidate and the agent."""
    return entry.candidate.digest, entry.agent


def _ended(here: Iterable[Draw | Evaluation]) -> set[str | None]:
    """The draws that a verdict names."""
    return {entry.draw for entry in here if isinstance(entry, Evaluation) and entry.has_verdict}


def _on_split(entries: Iterable[Dated], suite: str, split: str, lock: str) -> list[Draw | Evaluation]:
    return [
        entry
        for entry in entries
        if isinstance(entry, Draw | Evaluation)
        and (entry.suite, entry.split, entry.lock) == (suite, split, lock)
    ]


def _only_drawn(entries: Iterable[Dated], made: Iterable[Evaluation], claim: Claim) -> int:
    """How many other candidates and agents were drawn and claimed nothing: each could have been chosen.

    A setting of a model changes an agent, and need not change what it does, so the same candidate with
    another agent counts, wherever in the suite it was drawn: a setting may be chosen by what it does on the
    guards. A saved baseline that no test used could have been the claim's. Its own does not count.
    """
    entries = list(entries)
    here = _on_split(entries, claim.suite, claim.split, claim.lock)
    ended, saving = _ended(here), _saving_runs(entries, claim, ())
    elsewhere = [
        entry
        for entry in entries
        if isinstance(entry, Draw)
        and (entry.suite, entry.lock, entry.candidate.digest) == (claim.suite, claim.lock, claim.candidate)
    ]
    drawn = {
        _who(draw)
        for draw in (*here, *elsewhere)
        if isinstance(draw, Draw)
        and (
            _could_be_judged(draw, claim, ended)
            or (draw.whole and draw.run in saving)
            or (
                draw.whole
                and draw.made in (Origin.FRESH, Origin.CACHED)
                and draw.candidate.digest == claim.measured[0]
            )
        )
    }
    return len(drawn - {_who(entry) for entry in made} - {(claim.candidate, claim.agent), claim.measured})


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
    if _who(entry) != (claim.candidate, claim.agent):
        return False
    if settings_part(entry.policy) != settings_part(claim.policy):
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
        return entry.agent, entry.baseline.digest, settings_part(entry.policy), entry.trials
    return entry.agent, entry.baseline_identity, settings_part(entry.policy)


def _number(entry: Evaluation) -> int:
    assert entry.look is not None, "a clean claim has a number"
    return entry.look
