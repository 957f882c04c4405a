"""Derives the evidence label and the test number of a claim on a sealed split from the ledger.

Evidence is clean if no candidate of the lineage was frozen after a sealed trace was accessed.

Each claim of an improvement is a numbered test of its split, and each run with more trials is a further
analysis of that test; `alpha_spending` gives their levels. A draw that could have been judged instead, or
that showed its figures under a different goal or policy, is a further chance to be wrong, so it counts as an
analysis.
Every other candidate or agent that was drawn without a claim could have been chosen instead, so it counts as
a test.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import NamedTuple, Protocol

from pytest_trace2evolve.records.ledger import (
    Access,
    BaselineSave,
    DatedEntry,
    Draw,
    DrawOrigin,
    Evaluation,
    Repair,
)
from pytest_trace2evolve.records.verdict import Decision, Goal, Label

_OWN_AGENTS = (DrawOrigin.RESUMABLE, DrawOrigin.UNSTORED)
"""Origins of draws of a project's own agents, which each run makes anew."""


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
        """The day on which the candidate was frozen; None if it is not frozen."""

    def has_seen(self, suite: str, split: str) -> bool:
        """Whether the candidate's front matter says that its author had seen the split."""


@dataclass(frozen=True)
class SealedSplit:
    """A split whose traces must stay unread, with the ids of its tasks."""

    suite: str
    split: str
    domain: str
    tasks: Collection[str]

    def is_shown_by(self, access: Access) -> bool:
        """Whether an access names this split, or opened a task that is now in this split."""
        if (access.suite, access.split) == (self.suite, self.split):
            return True
        return access.domain == self.domain and access.task in self.tasks


class EvidenceLabel(NamedTuple):
    """A label, with the reason why it is not clean; the reason is empty if it is clean."""

    label: Label
    reason: str = ""


def label_of(
    lineage: Sequence[FrozenCandidate], split: SealedSplit, entries: Iterable[DatedEntry]
) -> EvidenceLabel:
    """The label of evidence on a sealed split, given the candidate's lineage and all entries of the ledger.

    Returns:
        Clean, or development with a reason that names the first candidate of the lineage whose history
        makes the evidence unclean. An access on the day of a freeze counts as before the freeze. A candidate
        without `frozen_at`, or a candidate that was judged earlier with a different text, counts as frozen
        now.
    """
    entries = list(entries)
    accesses = sorted(
        (entry for entry in entries if isinstance(entry, Access) and split.is_shown_by(entry)),
        key=lambda access: (access.first_day, access.at, access.name),
    )
    versions = [version for entry in entries if isinstance(entry, Evaluation) for version in entry.versions]
    for candidate in lineage:
        is_edited = any(
            version.id == candidate.id and version.digest != candidate.digest for version in versions
        )
        if reason := _unclean_reason(candidate, split, accesses, is_edited=is_edited):
            return EvidenceLabel(Label.DEVELOPMENT, reason)
    return EvidenceLabel(Label.CLEAN)


def _unclean_reason(
    candidate: FrozenCandidate, split: SealedSplit, accesses: Sequence[Access], *, is_edited: bool
) -> str:
    """The reason why a candidate's evidence on a split is not clean; empty if it is clean."""
    name, frozen_at = f"{split.suite}::{split.split}", candidate.frozen_at
    if candidate.has_seen(split.suite, split.split):
        return f"candidate {candidate.id} was informed by {name}"
    if not accesses or not (is_edited or frozen_at is None or accesses[0].first_day <= frozen_at):
        return ""
    access_text = f"traces of {name} were read (task {accesses[0].task}, {accesses[0].first_day})"
    if is_edited:
        change = "was changed after it had been judged: give it a new id"
        return f"{access_text}, and candidate {candidate.id} {change}"
    if frozen_at is None:
        return f"{access_text}, and candidate {candidate.id} is not frozen: it has no frozen_at"
    return f"{access_text}, and candidate {candidate.id} was frozen on {frozen_at}, not before"


@dataclass(frozen=True)
class Claim:
    """A claim about a candidate on a sealed split.

    Attributes:
        suite, split, lock: The sealed split, under its suite's lock.
        candidate, agent: Digests of the candidate and of the agent's identity. The same text on a different
            model is a different claim.
        baseline: Identity of the baseline: a digest of its candidate, agent and lock, not of its simulations.
        policy: The gate's policy.
        trials: The candidate's trials per task.
        max_trials: The candidate's trials per task at the last stage of its run; 0 without stages.
        evidence: Digest of the baseline's evidence on the split, by which entries without `baseline_identity`
            name their baseline.
        goal: The goal of the claim. Only `improve` on clean evidence is a test with a number.
        is_numbered: Whether the claim is a test with a number.
        draw_id: The id of the judged draw; empty if it is not known.
        is_recorded_run: Whether the draw was made before this run and not read from the store, as in a replay
            or with a cassette.
        baseline_digests: Digests of the baseline's candidate and agent; empty if they are not known.
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
    max_trials: int = 0
    evidence: str = ""
    goal: Goal = Goal.IMPROVE
    is_numbered: bool = True
    draw_id: str = ""
    is_recorded_run: bool = False
    baseline_digests: tuple[str, str] = ("", "")
    baseline_run: str = ""


@dataclass(frozen=True)
class AlphaSpending:
    """The test and analysis numbers of a claim, which determine the level that the claim may spend.

    Attributes:
        number: The number of the test, from 1; None for a claim without a test number.
        analysis: The number of the analysis within the test, from 1; None for a repeat of a test that was
            recorded before analyses were counted and has spent its whole level at once.
        repeated_verdict: The recorded verdict that this run repeats; None if the run is a new analysis.
        continued_verdict: The recorded inconclusive verdict whose test this run continues with more trials.
        trials: The largest number of trials per task of this claim, including earlier runs. A run with more
            trials continues the test.
        abandoned_draws: The other draws and numbers of trials that could have been judged instead.
    """

    number: int | None
    analysis: int | None = 1
    repeated_verdict: Evaluation | None = None
    continued_verdict: Evaluation | None = None
    trials: int = 0
    abandoned_draws: tuple[Draw, ...] = ()


def spending_of(entries: Iterable[DatedEntry], claim: Claim) -> AlphaSpending:
    """The test and analysis numbers of a claim, given all entries of the ledger in any order.

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
    history = _SplitHistory(entries, claim)
    return history.spending() if claim.is_numbered else history.unnumbered_spending()


class _SplitHistory:
    """The ledger's entries on the split of a claim."""

    def __init__(self, entries: Iterable[DatedEntry], claim: Claim) -> None:
        self.claim = claim
        self.entries = list(entries)
        split_key = (claim.suite, claim.split, claim.lock)
        split_entries = [
            entry
            for entry in self.entries
            if isinstance(entry, Draw | Evaluation) and (entry.suite, entry.split, entry.lock) == split_key
        ]
        self.draws = [entry for entry in split_entries if isinstance(entry, Draw)]
        self.verdicts = [
            entry for entry in split_entries if isinstance(entry, Evaluation) and entry.has_verdict
        ]
        self.judged_draw_ids = {entry.draw for entry in self.verdicts}
        clean_evaluations = [
            entry for entry in split_entries if isinstance(entry, Evaluation) and entry.claims_clean
        ]
        self.clean_claims = sorted(clean_evaluations, key=_age_key)

    def spending(self) -> AlphaSpending:
        """The test and analysis of a claim with a test number."""
        claim = self.claim
        own_verdicts = [
            entry for entry in self.clean_claims if entry.has_verdict and self._is_same_claim(entry)
        ]
        trials = max(claim.trials, claim.max_trials)
        abandoned_draws = self.abandoned_draws(own_verdicts)
        if own_verdicts:
            standing_verdict = _standing_verdict(own_verdicts)
            analysed_trials = max(entry.trials for entry in own_verdicts)
            if standing_verdict.decision is not Decision.INCONCLUSIVE or trials <= analysed_trials:
                test_number, trials = _test_number(standing_verdict), max(trials, analysed_trials)
                return AlphaSpending(
                    test_number, standing_verdict.analysis, standing_verdict, None, trials, abandoned_draws
                )
            # Branches may have made the same analysis concurrently. Each has spent its level.
            analyses = [
                entry for entry in own_verdicts if entry.analysis is not None and entry.repeats is None
            ]
            if analyses:
                test_number = max(_test_number(entry) for entry in analyses)
                last_analysis = max(entry.analysis or 0 for entry in analyses)
                analysis = 1 + max(last_analysis, len(analyses) + len(abandoned_draws))
                return AlphaSpending(test_number, analysis, None, standing_verdict, trials, abandoned_draws)
        return AlphaSpending(
            self._next_test_number(), 1 + len(abandoned_draws), None, None, trials, abandoned_draws
        )

    def unnumbered_spending(self) -> AlphaSpending:
        """The verdict that a claim without a test number repeats, if any, and its abandoned draws."""
        own_verdicts = [
            entry
            for entry in self.verdicts
            if not entry.claims_clean and entry.goal is self.claim.goal and self._is_same_claim(entry)
        ]
        trials = max(self.claim.trials, self.claim.max_trials)
        analysed_trials = max((entry.trials for entry in own_verdicts), default=0)
        # A run with more trials supersedes verdicts that are not final.
        first_full_at = min(
            (entry.at for entry in own_verdicts if entry.trials == analysed_trials), default=None
        )
        final_verdicts = [
            entry
            for entry in own_verdicts
            if entry.decision is Decision.DISCARD or entry.at >= (first_full_at or entry.at)
        ]
        worst_verdict = min(final_verdicts, key=lambda entry: entry.decision.rank, default=None)
        if worst_verdict is None or (
            worst_verdict.decision is Decision.INCONCLUSIVE and trials > analysed_trials
        ):
            # The earlier verdict no longer counts, so its draw could have been chosen instead.
            return AlphaSpending(None, None, None, None, trials, self.abandoned_draws(()))
        trials = max(trials, analysed_trials)
        return AlphaSpending(None, None, worst_verdict, None, trials, self.abandoned_draws(own_verdicts))

    def abandoned_draws(self, own_verdicts: Collection[Evaluation]) -> tuple[Draw, ...]:
        """The draws that could have been judged instead of the claim's own, oldest first.

        For the candidate, the first draw of each store counts (deleted since, or on a different machine), and
        so does each whole draw of a gated run that no test has judged, whatever its goal and policy. A draw
        counts again for each further number of trials, since the number could be chosen by its results. If a
        recorded draw is judged, every draw counts, since each could have been recorded and judged.

        For the baseline of a model, all whole draws except one count, without the draws that were judged when
        the baseline was a candidate. For the baseline of a project's own agent, all saved baselines that no
        test used count, or all whole draws except one if the baseline is not a saved one.

        Args:
            own_verdicts: The verdicts of the same claim. Draws that they judged were not abandoned.
        """
        claim = self.claim
        first_draws: dict[str, Draw] = {}
        first_looks: dict[tuple[str, int | None], Draw] = {}
        for draw in sorted(self.draws, key=_age_key):
            first_draws.setdefault(draw.draw, draw)
            first_looks.setdefault((draw.draw, draw.trials), draw)
        tests = self.clean_claims if claim.is_numbered else []
        judged = {claim.draw_id: {max(claim.trials, claim.max_trials)}}
        for entry in [*own_verdicts, *(test for test in tests if test.has_verdict and test.alpha)]:
            judged.setdefault(entry.draw or "", set()).add(entry.trials)
        judged_runs = {entry.run for entry in own_verdicts}
        own_draws = [
            draw
            for draw in first_looks.values()
            if _agent_key(draw) == (claim.candidate, claim.agent)
            and (draw.draw not in judged or draw.trials not in {None, *judged[draw.draw]})
            and draw.run not in judged_runs
            and self._could_be_judged(draw, self.judged_draw_ids if claim.goal is Goal.NO_REGRESSION else ())
        ]
        if claim.is_recorded_run and claim.draw_id not in first_draws:
            own_draws = own_draws[:-1]  # one of these draws is the recorded draw
        if claim.baseline_digests == (claim.candidate, claim.agent):
            return tuple(
                own_draws[:-1]
            )  # one of these draws is the baseline's; the candidate's draw is not among them
        baseline_draws = [draw for draw in first_draws.values() if _agent_key(draw) == claim.baseline_digests]
        unused_baseline_draws = [
            draw
            for draw in baseline_draws
            if draw.draw not in self.judged_draw_ids | {claim.draw_id}
            and (draw.made is DrawOrigin.KEPT or (draw.made is not DrawOrigin.PLAYED and draw.whole))
        ]
        if claim.baseline_run in {draw.run for draw in baseline_draws if draw.made in _OWN_AGENTS}:
            saving_runs = self._runs_with_unused_baseline(own_verdicts) - {claim.baseline_run}
            unused_baseline_draws = [
                draw
                for draw in unused_baseline_draws
                if draw.made not in _OWN_AGENTS or draw.run in saving_runs
            ]
        else:
            unused_baseline_draws = unused_baseline_draws[:-1]
        return tuple(sorted([*own_draws, *unused_baseline_draws], key=_age_key))

    def _is_same_claim(self, entry: Evaluation) -> bool:
        """Whether an entry records the same claim. Only the number of trials may differ."""
        claim = self.claim
        if _agent_key(entry) != (claim.candidate, claim.agent):
            return False
        if _settings_part(entry.policy) != _settings_part(claim.policy):
            return False
        if entry.baseline_identity is None:
            return entry.baseline.digest == claim.evidence
        return entry.baseline_identity == claim.baseline

    def _could_be_judged(self, draw: Draw, judged_ids: Collection[str | None]) -> bool:
        if draw.made in (DrawOrigin.KEPT, DrawOrigin.CACHED, DrawOrigin.PLAYED) or self.claim.is_recorded_run:
            return True
        # A narrowed run that was interrupted can be resumed as a whole run.
        is_complete = draw.whole or draw.made is DrawOrigin.RESUMABLE
        return draw.gated and is_complete and draw.draw not in judged_ids

    def _runs_with_unused_baseline(self, own_verdicts: Collection[Evaluation]) -> set[str]:
        """The runs that saved a baseline of the suite that no test used.

        If the claim has no test number, only the verdicts of `own_verdicts` count as uses.
        """
        tests = self.clean_claims if self.claim.is_numbered else []
        used_evidence = {entry.baseline_evidence for entry in [*own_verdicts, *tests] if entry.has_verdict}
        return {
            entry.run
            for entry in self.entries
            if isinstance(entry, BaselineSave)
            and entry.suite == self.claim.suite
            and entry.baseline.digest not in used_evidence
        }

    def _next_test_number(self) -> int:
        """The number of a new test. After a loss of entries, it is never lower than before the loss."""
        verdict_names = {entry.name for entry in self.clean_claims if entry.has_verdict}
        tests: dict[str, set[tuple[object, ...]]] = {}
        for entry in self.clean_claims:
            spent_tests = tests.setdefault(entry.candidate.digest, set())
            if entry.alpha is not None and entry.repeats not in verdict_names:
                spent_tests.add(_test_identity(entry))
        own_count = len(tests.pop(self.claim.candidate, ()))
        other_count = sum(max(1, len(spent_tests)) for spent_tests in tests.values())
        test_number = 1 + own_count + other_count + self._count_unclaimed_agents()
        repairs = [
            entry for entry in self.entries if isinstance(entry, Repair) and self.claim.lock in entry.locks
        ]
        min_numbers = [test_number + sum(repair.lost for repair in repairs)]
        for repair in repairs:
            numbers_before = [_test_number(entry) for entry in self.clean_claims if entry.at < repair.at]
            numbers_after = [_test_number(entry) for entry in self.clean_claims if entry.at > repair.at]
            min_numbers += [
                max(numbers_before, default=0) + repair.lost + 1,
                max(numbers_after, default=0) + 1,
            ]
        return max(min_numbers)

    def _count_unclaimed_agents(self) -> int:
        """The number of other candidates and agents that ran without a claim and could have been tested.

        A setting of a model changes the agent's identity, though not necessarily its behaviour. The same
        candidate with a different agent therefore counts, wherever in the suite it was drawn, because a
        setting may be chosen by its results on the guards. A saved baseline that no test used counts too,
        since it could have been the claim's baseline. The claim's own baseline does not count.
        """
        claim, saving_runs = self.claim, self._runs_with_unused_baseline(())
        other_split_draws = [
            entry
            for entry in self.entries
            if isinstance(entry, Draw)
            and (entry.suite, entry.lock, entry.candidate.digest)
            == (claim.suite, claim.lock, claim.candidate)
        ]
        drawn_agents = {
            _agent_key(draw)
            for draw in (*self.draws, *other_split_draws)
            if self._could_be_judged(draw, self.judged_draw_ids)
            or (draw.whole and draw.run in saving_runs)
            or (
                draw.whole
                and draw.made in (DrawOrigin.FRESH, DrawOrigin.CACHED)
                and draw.candidate.digest == claim.baseline_digests[0]
            )
        }
        claimed_agents = {
            (claim.candidate, claim.agent),
            claim.baseline_digests,
            *map(_agent_key, self.clean_claims),
        }
        return len(drawn_agents - claimed_agents)


def _age_key(entry: DatedEntry) -> tuple[datetime, str]:
    return entry.at, entry.name


def _agent_key(entry: Draw | Evaluation) -> tuple[str, str]:
    """The digests of an entry's candidate and agent."""
    return entry.candidate.digest, entry.agent


def _settings_part(version: str) -> str:
    """The part of a policy's version that identifies its settings: a built-in's name, or a digest."""
    return version.rpartition(" ")[2]


def _standing_verdict(own_verdicts: Collection[Evaluation]) -> Evaluation:
    """The verdict that stands among all verdicts of one claim, given oldest first.

    A discard is final. Otherwise the worst verdict of the latest analysis and its repeats stands. If all
    entries date from before analyses were counted, the worst of all stands.
    """
    latest_analysis = max(entry.analysis or 0 for entry in own_verdicts)
    final_verdicts = [
        entry
        for entry in own_verdicts
        if entry.decision is Decision.DISCARD or (entry.analysis or 0) == latest_analysis
    ]
    return min(final_verdicts, key=lambda entry: entry.decision.rank)


def _test_identity(entry: Evaluation) -> tuple[object, ...]:
    """The identity of a test. Before analyses were counted, each number of trials was a separate test."""
    if entry.baseline_identity is None or entry.analysis is None:
        return entry.agent, entry.baseline.digest, _settings_part(entry.policy), entry.trials
    return entry.agent, entry.baseline_identity, _settings_part(entry.policy)


def _test_number(entry: Evaluation) -> int:
    assert entry.look is not None, "a clean claim has a number"
    return entry.look
