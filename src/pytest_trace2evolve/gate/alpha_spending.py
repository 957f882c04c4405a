"""The levels of tests: which test and analysis of a sealed split a claim is, and what each stage may spend.

Every claim of an improvement on the same sealed tasks is one more chance to be wrong. The k-th test of a
split may spend α_k = α·6/(π²k²) in total, so that all tests together, however many, are wrong with at most α
(Bonferroni's inequality with the weights of the Basel series, which add up to 1).

More trials of the same claim continue its test. Analysis j of test k has level α_k·¾·(¼)^(j-1); these levels
add up to α_k. The number of analyses is not known beforehand (as in Lan and DeMets, Biometrika 1983), and a
later analysis may hold the data of an earlier one or fresh data alone. Bonferroni's inequality holds for any
dependence between them. Decision page 0006 gives the reasons for these weights.

A draw of the same split that was not judged, and on which the claim could have been made instead, is one more
chance to be wrong. So each such draw takes the place of an analysis. Each other
candidate or agent that was drawn and claimed nothing could have been chosen instead: it counts as a test.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

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
class AlphaSpending:
    """Which test of its split a claim is, and which analysis of that test: so which level it may spend.

    Attributes:
        number: The number of its test, from 1; None for a claim that is no test with a number.
        analysis: The number of the analysis within the test, from 1; None for a repeat of a test that was
            recorded before analyses were counted and has spent its whole level at once.
        recorded: The recorded verdict that this run repeats; None if it is a new analysis.
        continued: The recorded inconclusive verdict whose test this run continues with more trials.
        trials: The most trials a task of this claim, earlier runs included: more continue its test.
        abandoned: Draws on which the claim could have been made instead, and that were not judged.
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


def spending_of(entries: Iterable[Dated], claim: Claim) -> AlphaSpending:
    """The test and the analysis that a claim is.

    Args:
        entries: All entries of the ledger, in any order.
        claim: The present claim.

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
    split = _SealedSplit(entries, claim)
    return split.spending() if claim.counts else split.uncounted_spending()


class _SealedSplit:
    """The ledger's entries on the split of a claim."""

    def __init__(self, entries: Iterable[Dated], claim: Claim) -> None:
        self.claim = claim
        self.entries = list(entries)
        place = (claim.suite, claim.split, claim.lock)
        here = [
            entry
            for entry in self.entries
            if isinstance(entry, Draw | Evaluation) and (entry.suite, entry.split, entry.lock) == place
        ]
        self.draws = [entry for entry in here if isinstance(entry, Draw)]
        self.judged = [entry for entry in here if isinstance(entry, Evaluation) and entry.has_verdict]
        self.ended = {entry.draw for entry in self.judged}
        clean = [entry for entry in here if isinstance(entry, Evaluation) and entry.claims_clean]
        self.claims = sorted(clean, key=_age)

    def spending(self) -> AlphaSpending:
        """The place of a claim with a test number."""
        claim = self.claim
        same = [entry for entry in self.claims if entry.has_verdict and self._is_same(entry)]
        trials = max(claim.trials, claim.most)
        abandoned = self.abandoned_draws(same)
        if same:
            recorded = _standing(same)
            analysed = max(entry.trials for entry in same)
            if recorded.decision is not Decision.INCONCLUSIVE or trials <= analysed:
                number, trials = _number(recorded), max(trials, analysed)
                return AlphaSpending(number, recorded.analysis, recorded, None, trials, abandoned)
            # Branches may have made the same analysis at once: each has spent.
            analyses = [entry for entry in same if entry.analysis is not None and entry.repeats is None]
            if analyses:
                number = max(_number(entry) for entry in analyses)
                last = max(entry.analysis or 0 for entry in analyses)
                analysis = 1 + max(last, len(analyses) + len(abandoned))
                return AlphaSpending(number, analysis, None, recorded, trials, abandoned)
        return AlphaSpending(self._next_number(), 1 + len(abandoned), None, None, trials, abandoned)

    def uncounted_spending(self) -> AlphaSpending:
        """The place of a claim without a test number: it repeats the same claim too."""
        same = [
            entry
            for entry in self.judged
            if not entry.claims_clean and entry.goal is self.claim.goal and self._is_same(entry)
        ]
        trials = max(self.claim.trials, self.claim.most)
        analysed = max((entry.trials for entry in same), default=0)
        # A run with more trials supersedes what is not final.
        since = min((entry.at for entry in same if entry.trials == analysed), default=None)
        final = [one for one in same if one.decision is Decision.DISCARD or one.at >= (since or one.at)]
        recorded = min(final, key=lambda entry: entry.decision.rank, default=None)
        if recorded is None or (recorded.decision is Decision.INCONCLUSIVE and trials > analysed):
            # Its verdict does not count any more, so its draw is one that could be chosen instead.
            return AlphaSpending(None, None, None, None, trials, self.abandoned_draws(()))
        trials = max(trials, analysed)
        return AlphaSpending(None, None, recorded, None, trials, self.abandoned_draws(same))

    def abandoned_draws(self, same: Collection[Evaluation]) -> tuple[Draw, ...]:
        """Draws on which the claim could have been made instead, and that no verdict names; oldest first.

        Of the candidate these are the first draws of a store (it was deleted since, or is another machine's)
        and the whole draws of gated runs that ended without a verdict. If a recorded draw is judged, every
        draw could have been recorded and judged. Of the baseline they are all whole draws of a model that
        were not judged when it was a candidate, but one; and of an agent whose simulations are not stored all
        saved baselines that no test used, or, if the baseline is no saved one, all whole draws but one.

        Args:
            same: The verdicts of the same claim: what they judged was not abandoned.
        """
        claim = self.claim
        first: dict[str, Draw] = {}
        for draw in sorted(self.draws, key=_age):
            first.setdefault(draw.draw, draw)
        judged = {claim.draw, *(entry.draw for entry in same)}
        own = [
            draw
            for draw in first.values()
            if _drawn_by(draw) == (claim.candidate, claim.agent)
            and draw.draw not in judged
            and self._could_be_judged(draw)
        ]
        if claim.recorded_run and claim.draw not in first:
            own = own[:-1]  # one of them is what was recorded
        if claim.measured == (claim.candidate, claim.agent):
            return tuple(own[:-1])  # the baseline is one of them, and the candidate's own is not among them
        of_baseline = [draw for draw in first.values() if _drawn_by(draw) == claim.measured]
        measured = [
            draw
            for draw in of_baseline
            if draw.draw not in self.ended | {claim.draw}
            and (draw.made is Origin.KEPT or (draw.made is not Origin.PLAYED and draw.whole))
        ]
        if claim.baseline_run in {draw.run for draw in of_baseline if draw.made is Origin.UNSTORED}:
            saving = self._saving_runs(same) - {claim.baseline_run}
            measured = [draw for draw in measured if draw.made is not Origin.UNSTORED or draw.run in saving]
        else:
            measured = measured[:-1]
        return tuple(sorted([*own, *measured], key=_age))

    def _is_same(self, entry: Evaluation) -> bool:
        """Whether an entry is of the same claim: of all that identifies it, only the trials may differ."""
        claim = self.claim
        if _drawn_by(entry) != (claim.candidate, claim.agent):
            return False
        if _settings_part(entry.policy) != _settings_part(claim.policy):
            return False
        if entry.baseline_identity is None:
            return entry.baseline.digest == claim.evidence
        return entry.baseline_identity == claim.baseline

    def _could_be_judged(self, draw: Draw) -> bool:
        if draw.made in (Origin.KEPT, Origin.CACHED, Origin.PLAYED) or self.claim.recorded_run:
            return True
        return draw.gated and draw.whole and draw.draw not in self.ended

    def _saving_runs(self, same: Collection[Evaluation]) -> set[str]:
        """Runs that saved a baseline of the suite which no test used; the claim's own, if it is no test."""
        tests = self.claims if self.claim.counts else []
        used = {entry.baseline_evidence for entry in [*same, *tests] if entry.has_verdict}
        return {
            entry.run
            for entry in self.entries
            if isinstance(entry, Saved)
            and entry.suite == self.claim.suite
            and entry.baseline.digest not in used
        }

    def _next_number(self) -> int:
        """The number of a new test; if tests may have been lost, never lower than it was before."""
        verdicts = {entry.name for entry in self.claims if entry.has_verdict}
        tests: dict[str, set[tuple[object, ...]]] = {}
        for entry in self.claims:
            spent = tests.setdefault(entry.candidate.digest, set())
            if entry.alpha is not None and entry.repeats not in verdicts:
                spent.add(_identity(entry))
        own = len(tests.pop(self.claim.candidate, ()))
        others = sum(max(1, len(spent)) for spent in tests.values())
        number = 1 + own + others + self._only_drawn()
        repairs = [one for one in self.entries if isinstance(one, Repair) and self.claim.lock in one.locks]
        lowest = [number + sum(repair.lost for repair in repairs)]
        for repair in repairs:
            known = [_number(entry) for entry in self.claims if entry.at < repair.at]
            since = [_number(entry) for entry in self.claims if entry.at > repair.at]
            lowest += [max(known, default=0) + repair.lost + 1, max(since, default=0) + 1]
        return max(lowest)

    def _only_drawn(self) -> int:
        """How many other candidates and agents were drawn and claimed nothing: each could have been chosen.

        A setting of a model changes an agent, and need not change what it does, so the same candidate with
        another agent counts, wherever in the suite it was drawn: a setting may be chosen by what it does on
        the guards. A saved baseline that no test used could have been the claim's. Its own does not count.
        """
        claim, saving = self.claim, self._saving_runs(())
        elsewhere = [
            entry
            for entry in self.entries
            if isinstance(entry, Draw)
            and (entry.suite, entry.lock, entry.candidate.digest)
            == (claim.suite, claim.lock, claim.candidate)
        ]
        drawn = {
            _drawn_by(draw)
            for draw in (*self.draws, *elsewhere)
            if self._could_be_judged(draw)
            or (draw.whole and draw.run in saving)
            or (
                draw.whole
                and draw.made in (Origin.FRESH, Origin.CACHED)
                and draw.candidate.digest == claim.measured[0]
            )
        }
        known = {(claim.candidate, claim.agent), claim.measured, *map(_drawn_by, self.claims)}
        return len(drawn - known)


def _age(entry: Dated) -> tuple[datetime, str]:
    return entry.at, entry.name


def _drawn_by(entry: Draw | Evaluation) -> tuple[str, str]:
    """Digests of the candidate and the agent."""
    return entry.candidate.digest, entry.agent


def _settings_part(version: str) -> str:
    """The part of a policy's version that names its settings: a built-in's name, or another's digest."""
    return version.rpartition(" ")[2]


def _standing(same: Collection[Evaluation]) -> Evaluation:
    """The verdict that stands after these of one claim, oldest first.

    A discard is final. Else it is the worst of the latest analysis and its repeats. Of entries from before
    analyses were counted the worst stands.
    """
    latest = max(entry.analysis or 0 for entry in same)
    final = [entry for entry in same if entry.decision is Decision.DISCARD or (entry.analysis or 0) == latest]
    return min(final, key=lambda entry: entry.decision.rank)


def _identity(entry: Evaluation) -> tuple[object, ...]:
    """The identity of a test. Before analyses were counted, another number of trials was another test."""
    if entry.baseline_identity is None or entry.analysis is None:
        return entry.agent, entry.baseline.digest, _settings_part(entry.policy), entry.trials
    return entry.agent, entry.baseline_identity, _settings_part(entry.policy)


def _number(entry: Evaluation) -> int:
    assert entry.look is not None, "a clean claim has a number"
    return entry.look


@dataclass(frozen=True)
class Stage:
    """One stage of a staged run, which may stop at any of them.

    Attributes:
        number: Which it is, from 1.
        of: How many there are.
        trials: Trials a task and side up to and with this stage.
        alpha: The level at which it tests.
        most: Trials up to and with the last stage.
        schedule: Trials at every stage.
    """

    number: int
    of: int
    trials: int
    alpha: float
    most: int = 0
    schedule: tuple[int, ...] = ()

    @property
    def last(self) -> bool:
        """Whether no further stage follows."""
        return self.number == self.of

    def __str__(self) -> str:
        return f"stage {self.number} of {self.of}: {self.trials} trial{'' if self.trials == 1 else 's'}"


def stage_alpha(alpha: float, schedule: Sequence[int]) -> float:
    """The nominal level of every stage with which a one-sided test of them all has level `alpha`.

    Args:
        alpha: The overall level, between 0 and 1.
        schedule: Trials at each stage, rising.

    The statistics of the stages are jointly normal, and those of stages with n and m ≥ n trials correlate
    by sqrt(n/m), since the later holds the earlier's trials (Pocock, Biometrika 1977; unequal steps as in
    Lan and DeMets, 1983). If tasks differ in their gain, which more trials do not average out, stages
    correlate more, and the level is kept with something to spare.
    """
    if len(schedule) == 1:
        return alpha
    from scipy.optimize import brentq
    from scipy.special import ndtri

    crossing = _crossing_probability(schedule)
    level = brentq(
        lambda nominal: crossing(-ndtri(nominal)) - alpha, alpha / len(schedule) * 0.99, alpha, xtol=1e-9
    )
    return float(level)


def _crossing_probability(schedule: Sequence[int]) -> Callable[[float], float]:
    """The probability, by a bound, that any stage's statistic passes it although nothing differs.

    By recursion over the stages (Armitage, McPherson and Rowe, 1969): the density of the sum so far, cut off
    where the run has stopped, is carried through the independent increment of the next stage.
    """
    import numpy as np
    from scipy.special import ndtr

    nodes, node_weights = np.polynomial.legendre.leggauss(200)  # exact to eight decimals
    far = 8.0  # standard deviations beyond which nothing is integrated

    def density(x: np.ndarray, scale: float) -> np.ndarray:
        return np.asarray(np.exp(-((x / scale) ** 2) / 2.0) / np.sqrt(2.0 * np.pi) / scale)

    def points(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
        half = (high - low) / 2.0
        return low + half * (nodes + 1.0), node_weights * half

    def crossing(bound: float) -> float:
        crossed = float(ndtr(-bound))
        deviation = math.sqrt(schedule[0])
        at, weights = points(-far * deviation, bound * deviation)
        reached = density(at, deviation)
        for before, now in pairwise(schedule):
            step, limit = math.sqrt(now - before), bound * math.sqrt(now)
            crossed += float(np.sum(weights * reached * ndtr(-(limit - at) / step)))
            further, further_weights = points(-far * math.sqrt(now), limit)
            reached = density(further[:, None] - at[None, :], step) @ (weights * reached)
            at, weights = further, further_weights
        return crossed

    return crossing
