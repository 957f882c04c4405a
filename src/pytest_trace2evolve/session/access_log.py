"""The ledger as a run and its commands use it: labels, the numbers of claims, and what is written down."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence import scoreboard
from pytest_trace2evolve.evidence.baselines import evidence_digest as whole_digest
from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.evidence.results import traces_digest
from pytest_trace2evolve.gate.claims import (
    AlphaSpending,
    Claim,
    EvidenceLabel,
    SealedSplit,
    label_of,
    spending_of,
)
from pytest_trace2evolve.gate.decide import unmeasured
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.project.project import LockedSuite, Project
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.evidence import Evidence, Provenance, Settings, SimulationEvidence
from pytest_trace2evolve.records.ledger import BaselineSave, Dated, Draw, Evaluation, Repair, Traces, Version
from pytest_trace2evolve.records.verdict import Decision, Goal, Label, RunVerdict, Verdict
from pytest_trace2evolve.session.plan import Plan, PlannedSuite
from pytest_trace2evolve.utils.canonical import digest

DECIDING = (Role.GATE, Role.DEVELOPMENT)
"""Roles of the splits whose evaluations are written down."""


class Looks:
    """What a project's ledger said when it was read, and what follows from it.

    Attributes:
        entries: Everything in it, oldest first.
        problems: What is wrong with it, a line each. A damaged ledger gives no clean label and withholds
            promotions, until a repair accepts the damage.
        damaged: The entries that have a problem: see `History`.
    """

    def __init__(self, project: Project, now: datetime | None = None) -> None:
        self._project = project
        self._ledger = Ledger(project.ledger_folder)
        history = self._ledger.read(now)
        self.entries: Sequence[Dated] = history.in_time
        self.root = history.root
        self.damaged = history.damaged
        repairs = [entry for entry in self.entries if isinstance(entry, Repair)]
        accepted = {problem for entry in repairs for problem in entry.problems}
        lacking = [one for one in _without_entry(project, self.entries) if one not in accepted]
        self.problems = (*history.problems, *lacking)

    def label(
        self, lineage: Sequence[Candidate], suite: LockedSuite, split: str, role: Role
    ) -> EvidenceLabel:
        """What kind of evidence a split is for a candidate, and why it is no better.

        Args:
            lineage: The candidate and its ancestors.
            suite: The suite, as locked.
            split: One of its splits.
            role: The split's role.
        """
        if role is Role.GUARD:
            return EvidenceLabel(Label.SYNTHETIC if split == Label.SYNTHETIC else Label.TRANSFER)
        if role is not Role.GATE:
            return EvidenceLabel(Label.DEVELOPMENT)
        if self.problems:
            return EvidenceLabel(
                Label.DEVELOPMENT,
                f"{self.damage}; restore it, or accept the damage with 'trace2evolve ledger repair'",
            )
        sealed = SealedSplit(suite.name, split, suite.suite.domain, suite.lock.splits[split].keys())
        return label_of(lineage, sealed, self.entries)

    def names_draws(self, suite: str, split: str) -> bool:
        """Whether a split was ever drawn by live runs of this project."""
        return any(isinstance(one, Draw) and (one.suite, one.split) == (suite, split) for one in self.entries)

    def repair(self, who: str) -> Repair:
        """Accept all damage that there is now. Exactly these problems no longer count.

        Each entry that is missing or cannot be read counts as one test of every split from then on, since it
        may have been one.

        Args:
            who: Who accepts it.

        Raises:
            LockError: `suites.lock` is damaged.
            OSError: the entry could not be written.
        """
        locks = {entry.lock for entry in self.entries if isinstance(entry, Evaluation)}
        locks |= {lock.digest for lock in self._project.lock.suites.values()}

        def make(root: str, parents: tuple[str, ...], at: datetime) -> Repair:
            return Repair(
                root=root,
                parents=parents,
                at=at,
                who=who,
                day=at.astimezone().date(),
                problems=self.problems,
                files=dict(self.damaged),
                lost=self.lost,
                locks=tuple(sorted(locks)),
            )

        return self._ledger.append(make)

    @property
    def lost(self) -> int:
        """How many entries are missing or cannot be read: each may have been a test."""
        known = {entry.name for entry in self.entries}
        return len(self.damaged.keys() - known - {self.root}) + len(self.problems) - len(self.damaged)

    @property
    def damage(self) -> str:
        """That the ledger is damaged, for a message."""
        count = len(self.problems)
        return (
            f"the ledger is damaged ({count} problem{'' if count == 1 else 's'}: see 'trace2evolve ledger')"
        )

    def look(self, claim: Claim) -> AlphaSpending:
        """The test of its split, and the analysis, that a clean claim is; see `spending_of`."""
        return spending_of(self.entries, claim)

    def record(
        self, plan: Plan, planned: PlannedSuite, verdict: Verdict, claim: Claim, whole: RunVerdict
    ) -> Evaluation:
        """Write down that a split was judged.

        Args:
            plan: The run's plan.
            planned: The suite.
            verdict: The gate's answer on the whole split: `decision` is set.
            claim: What was judged, whether or not it claims anything.
            whole: The verdict of the whole run, as `verdict.json` is to hold it.

        Raises:
            OSError: it could not be written.
        """
        assert verdict.decision is not None
        assert planned.baseline is not None
        sealed = plan.project.splits[claim.split].role is Role.GATE
        recorded = self.look(claim).recorded if sealed else None
        idle = verdict.decision is Decision.INCONCLUSIVE and unmeasured(verdict)
        ancestors = tuple(Version(id=one.id, digest=one.digest) for one in plan.lineage[1:])
        fields = {
            "suite": claim.suite,
            "split": claim.split,
            "lock": claim.lock,
            "candidate": Version(id=plan.candidate.id, digest=claim.candidate),
            "ancestors": ancestors,
            "agent": claim.agent,
            "baseline": Version(id=planned.baseline.name, digest=claim.evidence),
            "baseline_identity": claim.baseline,
            "policy": claim.policy,
            "goal": verdict.goal,
            "trials": claim.trials,
            "decision": verdict.decision,
            "label": verdict.label,
            "look": verdict.look,
            "analysis": verdict.analysis,
            # A run that measured too little for a promotion has tested nothing: a whole run still may. A goal
            # that claims nothing spends nothing.
            "alpha": None if idle or verdict.goal is Goal.NO_REGRESSION else verdict.alpha,
            "repeats": recorded.name if recorded is not None else None,
            "run": plan.run_id,
            "baseline_evidence": planned.baseline.digest if planned.baseline.saved else None,
            "evidence": whole.suites[claim.suite].evidence.digest,
            "verdict": digest(whole.model_dump(mode="json")),
            "draw": claim.draw or None,
        }

        def make(root: str, parents: tuple[str, ...], at: datetime) -> Evaluation:
            return Evaluation(root=root, parents=parents, at=at, **fields)

        return self._ledger.append(make)

    def record_saved(self, suite: str, name: str, evidence: Evidence, replaces: str | None) -> BaselineSave:
        """Write down that a baseline was saved.

        Args:
            suite, name: The baseline's suite and name.
            evidence: What its file holds.
            replaces: Digest of what the file held before; None if there was none.

        Raises:
            OSError: it could not be written.
        """
        version = Version(id=name, digest=whole_digest(evidence))
        run = evidence.provenance.run_id or "unknown"

        def make(root: str, parents: tuple[str, ...], at: datetime) -> BaselineSave:
            return BaselineSave(
                root=root, parents=parents, at=at, suite=suite, baseline=version, replaces=replaces, run=run
            )

        return self._ledger.append(make)

    def record_traces(
        self, suite: str, run: str, folder: Path, account: tuple[str, str] | None = None
    ) -> Traces:
        """Write down what a run left of a suite in its folder, by which an edit of it is found.

        Args:
            suite, run: The suite, and the id of the run.
            folder: Where the run left its traces.
            account: The draw of the store that it used, and the head of the draw's account.

        Raises:
            OSError: it could not be written.
            ResultsError: the folder cannot be read.
        """
        held = traces_digest(folder)

        def make(root: str, parents: tuple[str, ...], at: datetime) -> Traces:
            draw, head = account or (None, None)
            return Traces(
                root=root, parents=parents, at=at, suite=suite, run=run, digest=held, draw=draw, account=head
            )

        return self._ledger.append(make)


def baseline_identity(origin: Provenance) -> str | None:
    """Identifies a baseline by its candidate, agent and lock, whatever its simulations.

    None if its candidate or its agent was not recorded, or if code of its user or world cannot be identified.
    """
    if origin.candidate is None or origin.agent == Settings():
        return None
    # A setting that came later and is not set changes nothing.
    agent = origin.agent.model_dump(mode="json", exclude_none=True)
    parts = {"candidate": origin.candidate.digest, "agent": agent, "lock": origin.lock}
    codes = {"user": origin.user.code, "world": origin.world}
    if any(code is not None and code.unknown for code in codes.values()):
        return None
    own = {name: code for name, code in codes.items() if code is not None}
    known = {name: code.digest for name, code in own.items() if code.files or code.fingerprint is not None}
    return digest({**parts, **known})


def trials_of(records: Iterable[SimulationEvidence]) -> int:
    """Trials a task; the smallest number, where tasks differ."""
    counts: dict[str, int] = {}
    for record in records:
        counts[record.task_id] = counts.get(record.task_id, 0) + 1
    return min(counts.values(), default=0)


def _without_entry(project: Project, entries: Iterable[Dated]) -> Iterator[str]:
    """Clean lines of the scoreboard whose run the ledger does not know: an entry that no other named."""
    known = {(entry.run, entry.suite, entry.split) for entry in entries if isinstance(entry, Evaluation)}
    told: set[tuple[str, str, str]] = set()
    try:
        for line in scoreboard.read(project.scoreboard):
            key = (line["run"], line["suite"], line["split"])
            if line["label"] == Label.CLEAN and key not in known | told:
                told.add(key)
                yield (
                    f"ledger: holds no entry of run {key[0]} on {key[1]}::{key[2]}, which "
                    f"{project.scoreboard.name} calls clean; restore the entry from git"
                )
    except ResultsError as error:
        yield str(error)
