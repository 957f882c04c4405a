"""Derives the evidence label and the test number of a claim on a sealed split from the ledger.

Evidence is clean if no candidate of the lineage was frozen after a sealed trace was accessed.

Each claim of an improvement is a numbered test of its split, and each run with more trials is a further
analysis of that test; `alpha_spending` gives their levels. A draw of the split that was not judged, but on
which the claim could have been made instead, is a further chance to be wrong, so it counts as an analysis.
Every other candidate or agent that was drawn without a claim could have been chosen instead, so it counts as
a test.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import NamedTuple, Protocol

from pytest_trace2evolve.records.ledger import Access, BaselineSave, Dated, Draw, Evaluation, Origin, Repair
from pytest_trace2evolve.records.verdict import Decision, Goal, Label


class FrozenCandidate(Protocol):
    """The properties of a candidate on which its evidence label depends."""

    @property
    def id(self) -> str:
        """The candidate's name."""

    @property
    def digest(self) -> str:
        """The digest of the candidate's text."""

    @property
    def frozen_at(self) -> date | None:
        """The day after which the candidate's text may not change; None if it is not frozen."""

    def saw(self, suite: str, split: str) -> bool:
        """Whether the candidate's front matter says that its author had seen the split."""


@dataclass(frozen=True)
class SealedSplit:
    """A split whose traces must stay unread, with the ids of its tasks."""

    suite: str
    split: str
    domain: str
    tasks: Collection[str]

    def shown_by(self, access: Access) -> bool:
        """Whether an access names this split, or opened a task that the split holds now."""
        if (access.suite, access.split) == (self.suite, self.split):
            return True
        return access.domain == self.domain and access.task in self.tasks


class EvidenceLabel(NamedTuple):
    """A label, with the reason why it is not clean; the reason is empty if it is clean."""

    label: Label
    reason: str = ""


def label_of(
    lineage: Sequence[FrozenCandidate], split: SealedSplit, entries: Iterable[Dated]
) -> EvidenceLabel:
    """The label of evidence on a sealed split, given the candidate's lineage and all entries of the ledger.

    Returns:
        Clean, or development with the first candidate of the lineage that makes the evidence unclean. An
        access on the day of a freeze counts as before the freeze. A candidate without `frozen_at`, or a
        candidate that was judged earlier with a different text, counts as frozen now.
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
    """The reason why a candidate's evidence on a split is not clean; empty if it is clean."""
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
        candidate, agent: Digests of the candidate and of the agent's identity. The same text on a different
            model is a different claim.
        baseline: Identity of the baseline: a digest of its candidate, agent and lock, not of its simulations.
        policy: The gate's policy.
        trials: The candidate's trials per task.
        most: The candidate's trials per task at the last stage of its run; 0 without stages.
        evidence: Digest of the baseline's evidence on the split, by which entries without `baseline_identity`
            name their baseline.
        goal: The goal of the claim. Only `improve` on clean evidence is a test with a number.
        counts: Whether the claim is a test with a number.
        draw: The id of the judged draw; empty if it is not known.
        recorded_run: Whether the draw was made before this run and not read from the store, as in a replay or
            with a cassette.
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
    """The test and analysis numbers of a claim, which determine the level that the claim may spend.

    Attributes:
        number: The number of the test, from 1; None for a claim without a test number.
        analysis: The number of the analysis within the test, from 1; None for a repeat of a test that was
            recorded before analyses were counted and has spent its whole level at once.
        recorded: The recorded verdict that this run repeats; None if the run is a new analysis.
        continued: The recorded inconclusive verdict whose test this run continues with more trials.
        trials: The most trials per task of this claim, including earlier runs. A run with more trials
            continues the test.
        abandoned: The draws that were not judged, but on which the claim could have been made instead.
    """

    number: int | None
    analysis: int | None = 1
    recorded: Evaluation | None = None
    continued: Evaluation | None = None
    trials: int = 0
    abandoned: tuple[Draw, ...] = ()


def spending_of(entries: Iterable[Dated], claim: Claim) -> AlphaSpending:
    """The test and the analysis of a claim, given all entries of the ledger in any order.

    Returns:
        A repeat if the same claim has a verdict, unless that verdict is inconclusive and this run has more
        trials than all earlier runs. Such a run is the next analysis of the same test. A claim without a
        verdict is a new test, whose number is one more than the tests so far. Every other candidate with a
        claim counts at least once, every test of a candidate that spent α counts, and so does every other
        candidate and agent that was only drawn.

        At least n - 1 tests are therefore counted before the n-th test that spends α. The n-th test gets at
        most the n-th share, and all shares together are at most 1. Each entry that was lost before a repair
        counts as a test, and no test after the repair has a lower number than a recorded test.
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
        """The test and analysis of a claim with a test number."""
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
            # Branches may have made the same analysis concurrently. Each has spent its level.
            analyses = [entry for entry in same if entry.analysis is not None and entry.repeats is None]
            if analyses:
                number = max(_number(entry) for entry in analyses)
                last = max(entry.analysis or 0 for entry in analyses)
                analysis = 1 + max(last, len(analyses) + len(abandoned))
                return AlphaSpending(number, analysis, None, recorded, trials, abandoned)
        return AlphaSpending(self._next_number(), 1 + len(abandoned), None, None, trials, abandoned)

    def uncounted_spending(self) -> AlphaSpending:
        """The verdict that a claim without a test number repeats, if any, and its abandoned draws."""
        same = [
            entry
            for entry in self.judged
            if not entry.claims_clean and entry.goal is self.claim.goal and self._is_same(entry)
        ]
        trials = max(self.claim.trials, self.claim.most)
        analysed = max((entry.trials for entry in same), default=0)
        # A run with more trials supersedes verdicts that are not final.
        since = min((entry.at for entry in same if entry.trials == analysed), default=None)
        final = [
            entry for entry in same if entry.decision is Decision.DISCARD or entry.at >= (since or entry.at)
        ]
        recorded = min(final, key=lambda entry: entry.decision.rank, default=None)
        if recorded is None or (recorded.decision is Decision.INCONCLUSIVE and trials > analysed):
            # The earlier verdict no longer counts, so its draw could have been chosen instead.
            return AlphaSpending(None, None, None, None, trials, self.abandoned_draws(()))
        trials = max(trials, analysed)
        return AlphaSpending(None, None, recorded, None, trials, self.abandoned_draws(same))

    def abandoned_draws(self, same: Collection[Evaluation]) -> tuple[Draw, ...]:
        """The draws on which the claim could have been made instead and that no verdict names, oldest first.

        For the candidate, these are the first draws of a store (deleted since, or on a different machine) and
        the whole draws of gated runs that ended without a verdict. If a recorded draw is judged, every draw
        counts, since each could have been recorded and judged.

        For the baseline of a model, these are all whole draws except one, without those judged when it was a
        candidate. For the baseline of an agent whose simulations are not stored, these are all saved
        baselines that no test used, or all whole draws except one if the baseline is not a saved baseline.

        Args:
            same: The verdicts of the same claim. Draws that they judged were not abandoned.
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
            own = own[:-1]  # one of these draws is the recorded draw
        if claim.measured == (claim.candidate, claim.agent):
            return tuple(own[:-1])  # the baseline is one of these draws; the candidate's is not among them
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
        """Whether an entry is of the same claim. Only the trials may differ."""
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
        """The runs that saved a baseline of the suite that no test used.

        If the claim has no test number, only the verdicts of `same` count as uses.
        """
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
        """The number of a new test. After a loss of entries, it is never lower than before the loss."""
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
        """The number of other candidates and agents that ran without a claim and could have been claimed
        instead.

        A setting of a model changes the agent's identity, though not necessarily its behaviour. The same
        candidate with a different agent therefore counts, wherever in the suite it was drawn, because a
        setting may be chosen by its results on the guards. A saved baseline that no test used counts too,
        since it could have been the claim's baseline. The claim's own baseline does not count.
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
    """The digests of an entry's candidate and agent."""
    return entry.candidate.digest, entry.agent


def _settings_part(version: str) -> str:
    """The part of a policy's version that identifies its settings: a built-in's name, or a digest."""
    return version.rpartition(" ")[2]


def _standing(same: Collection[Evaluation]) -> Evaluation:
    """The verdict that stands among all verdicts of one claim, given oldest first.

    A discard is final. Otherwise the worst verdict of the latest analysis and its repeats stands. If all
    entries date from before analyses were counted, the worst of all stands.
    """
    latest = max(entry.analysis or 0 for entry in same)
    final = [entry for entry in same if entry.decision is Decision.DISCARD or (entry.analysis or 0) == latest]
    return min(final, key=lambda entry: entry.decision.rank)


def _identity(entry: Evaluation) -> tuple[object, ...]:
    """The identity of a test. Before analyses were counted, each number of trials was a separate test."""
    if entry.baseline_identity is None or entry.analysis is None:
        return entry.agent, entry.baseline.digest, _settings_part(entry.policy), entry.trials
    return entry.agent, entry.baseline_identity, _settings_part(entry.policy)


def _number(entry: Evaluation) -> int:
    assert entry.look is not None, "a clean claim has a number"
    return entry.look
