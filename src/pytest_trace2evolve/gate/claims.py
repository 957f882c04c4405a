"""What the ledger says of a claim on a sealed split: its label, and which test of the split it is.

Evidence is clean if no candidate of the lineage was frozen after a sealed trace was accessed.

Each claim of an improvement is a test of its split with a number, and each run with more trials one more
analysis of it; `alpha_spending` gives their levels. A draw of the split that was not judged, and on which the
claim could have been made instead, is one more chance to be wrong, so it takes the place of an analysis. Each
other candidate or agent that was drawn and claimed nothing could have been chosen instead: it counts as a
test.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import NamedTuple, Protocol

from pytest_trace2evolve.records.ledger import Access, BaselineSave, Dated, Draw, Evaluation, Origin, Repair
from pytest_trace2evolve.records.verdict import Decision, Goal, Label


class FrozenCandidate(Protocol):
    """A candidate as far as its label depends on it."""

    @property
    def id(self) -> str:
        """Its name."""

    @property
    def digest(self) -> str:
        """Identifies its text."""

    @property
    def frozen_at(self) -> date | None:
        """The day after which its text may not change; None if it is not frozen."""

    def saw(self, suite: str, split: str) -> bool:
        """Whether its front matter says that its author had seen the split."""


@dataclass(frozen=True)
class SealedSplit:
    """A split whose traces are to stay unread, with the ids of its tasks."""

    suite: str
    split: str
    domain: str
    tasks: Collection[str]

    def shown_by(self, access: Access) -> bool:
        """Whether an access was to this split: by its name, or to a task that it holds now."""
        if (access.suite, access.split) == (self.suite, self.split):
            return True
        return access.domain == self.domain and access.task in self.tasks


class EvidenceLabel(NamedTuple):
    """A label, and why it is no better; the reason is empty if it is clean."""

    label: Label
    reason: str = ""


def label_of(
    lineage: Sequence[FrozenCandidate], split: SealedSplit, entries: Iterable[Dated]
) -> EvidenceLabel:
    """The label of evidence of a candidate and its ancestors on a sealed split, by all entries of the ledger.

    Returns:
        Clean, or development with the first candidate of the lineage that it fails on. An access on the day
        of a freeze counts as before it. A candidate without `frozen_at`, or one that was judged before with
        another text, counts as frozen now.
    """
    entries = list(entries)
    accesses = sorted(
        (entry for entry in entries if isinstance(entry, Access) and split.shown_by(entry)),
        key=lambda access: (access.first_day, access.at, access.name),
    )
    versions = [version for entry in entries if isinstance(entry, Evaluation) for version in entry.versions]
    for candidate in lineage:
        edited = any(each.id == candidate.id and each.digest != candidate.digest for each in versions)
        if reason := _unclean(candidate, split, accesses, edited=edited):
            return EvidenceLabel(Label.DEVELOPMENT, reason)
    return EvidenceLabel(Label.CLEAN)


def _unclean(
    candidate: FrozenCandidate, split: SealedSplit, accesses: Sequence[Access], *, edited: bool
) -> str:
    """Why a candidate's evidence on a split is not clean; empty if it is."""
    name, frozen = f"{split.suite}::{split.split}", candidate.frozen_at
    if candidate.saw(split.suite, split.split):
        return f"candidate {candidate.id} was informed by {name}"
    if not accesses or not (edited or frozen is None or accesses[0].first_day <= frozen):
        return ""
    seen = f"traces of {name} were looked at (task {accesses[0].task}, {accesses[0].first_day})"
    if edited:
        return f"{seen}, and candidate {candidate.id} was changed after it had been judged: give it a new id"
    if frozen is None:
        return f"{seen}, and candidate {candidate.id} is not frozen: it has no frozen_at"
    return f"{seen}, and candidate {candidate.id} was frozen on {frozen}, not before"


@dataclass(frozen=True)
class Claim:
    """A claim to be better, on clean evidence.

    Attributes:
        suite, split, lock: The sealed split, under its suite's lock.
        candidate, agent: Digests of the candidate and of the agent's identity: the same text on another model
            is another claim.
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


def spending_of(entries: Iterable[Dated], claim: Claim) -> AlphaSpending:
    """The test and the analysis that a claim is, by all entries of the ledger in any order.

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
    split = _SplitHistory(entries, claim)
    return split.spending() if claim.counts else split.uncounted_spending()


class _SplitHistory:
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
        final = [
            entry for entry in same if entry.decision is Decision.DISCARD or entry.at >= (since or entry.at)
        ]
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
            if isinstance(entry, BaselineSave)
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
        repairs = [
            entry for entry in self.entries if isinstance(entry, Repair) and self.claim.lock in entry.locks
        ]
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
