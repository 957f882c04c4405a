"""A project's ledger as runs and commands use it: labels, test numbers, new entries, histories of splits."""

import getpass
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from pytest_trace2evolve.errors import LedgerError, ResultsError, SuiteError, nearest
from pytest_trace2evolve.evidence import scoreboard
from pytest_trace2evolve.evidence.baselines import evidence_digest
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
from pytest_trace2evolve.records.ledger import (
    Access,
    BaselineSave,
    Dated,
    Draw,
    Evaluation,
    Repair,
    Traces,
    Version,
)
from pytest_trace2evolve.records.verdict import Decision, Goal, Label, RunVerdict, Verdict
from pytest_trace2evolve.session.plan import Plan, PlannedSuite
from pytest_trace2evolve.utils.canonical import digest

DECIDING = (Role.GATE, Role.DEVELOPMENT)
"""Roles of the splits whose evaluations are recorded."""

Made = TypeVar("Made", bound=Dated)

SplitName = tuple[str, str]
"""A suite and one of its splits."""


class ProjectLedger:
    """A project's ledger as it was read, with methods that append entries.

    Attributes:
        entries: All entries, oldest first.
        root: The name of the root that the entries chain to.
        problems: The problems of the ledger, a line each. A damaged ledger gives no clean label and withholds
            promotions until a repair accepts the damage.
        damaged: The entries that have a problem; see `History`.
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
        missing = [problem for problem in _missing_entries(project, self.entries) if problem not in accepted]
        self.problems = (*history.problems, *missing)

    def label(
        self, lineage: Sequence[Candidate], suite: LockedSuite, split: str, role: Role
    ) -> EvidenceLabel:
        """The label of a split's evidence for the first candidate of `lineage`; a downgrade has a reason."""
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
        """Whether a live run of this project ever drew a split."""
        draws = (entry for entry in self.entries if isinstance(entry, Draw))
        return any((draw.suite, draw.split) == (suite, split) for draw in draws)

    @property
    def lost(self) -> int:
        """The number of entries that are missing or unreadable; each may have been a test."""
        known = {entry.name for entry in self.entries}
        return len(self.damaged.keys() - known - {self.root}) + len(self.problems) - len(self.damaged)

    @property
    def damage(self) -> str:
        """A phrase for messages, which says that the ledger is damaged."""
        count = len(self.problems)
        return (
            f"the ledger is damaged ({count} problem{'' if count == 1 else 's'}: see 'trace2evolve ledger')"
        )

    def spending(self, claim: Claim) -> AlphaSpending:
        """The test and analysis numbers of a clean claim on its split; see `spending_of`."""
        return spending_of(self.entries, claim)

    def repair(self, who: str) -> Repair:
        """Accept the present damage, and no later damage.

        From then on, each missing or unreadable entry counts as one test of every split.

        Raises:
            LockError: `suites.lock` is damaged.
            OSError: the entry could not be written.
        """
        locks = {entry.lock for entry in self.entries if isinstance(entry, Evaluation)}
        locks |= {lock.digest for lock in self._project.lock.suites.values()}
        fields = {
            "problems": self.problems,
            "files": dict(self.damaged),
            "lost": self.lost,
            "locks": tuple(sorted(locks)),
        }
        return self._ledger.append(_signed(Repair, who=who, **fields))

    def record(
        self, plan: Plan, planned: PlannedSuite, verdict: Verdict, claim: Claim, whole: RunVerdict
    ) -> Evaluation:
        """Record the gate's decision on a split.

        Args:
            plan: The run's plan.
            planned: The suite.
            verdict: The verdict on the whole split, with its `decision` set.
            claim: The judged claim, even if the goal claims nothing.
            whole: The verdict of the whole run, as `verdict.json` will hold it.

        Raises:
            OSError: the entry could not be written.
        """
        assert verdict.decision is not None
        assert planned.baseline is not None
        sealed = plan.project.splits[claim.split].role is Role.GATE
        recorded = self.spending(claim).recorded if sealed else None
        too_little = verdict.decision is Decision.INCONCLUSIVE and unmeasured(verdict)
        # A run that measured too little for a promotion is not a test, so a later whole run still can be
        # one. A goal that claims nothing spends nothing.
        spends = not too_little and verdict.goal is not Goal.NO_REGRESSION
        return self._ledger.append(
            _maker(
                Evaluation,
                suite=claim.suite,
                split=claim.split,
                lock=claim.lock,
                candidate=Version(id=plan.candidate.id, digest=claim.candidate),
                ancestors=tuple(Version(id=one.id, digest=one.digest) for one in plan.lineage[1:]),
                agent=claim.agent,
                baseline=Version(id=planned.baseline.name, digest=claim.evidence),
                baseline_identity=claim.baseline,
                policy=claim.policy,
                goal=verdict.goal,
                trials=claim.trials,
                decision=verdict.decision,
                label=verdict.label,
                look=verdict.look,
                analysis=verdict.analysis,
                alpha=verdict.alpha if spends else None,
                repeats=recorded.name if recorded is not None else None,
                run=plan.run_id,
                baseline_evidence=planned.baseline.digest if planned.baseline.saved else None,
                evidence=whole.suites[claim.suite].evidence.digest,
                verdict=digest(whole.model_dump(mode="json")),
                draw=claim.draw or None,
            )
        )

    def record_saved(self, suite: str, name: str, evidence: Evidence, replaces: str | None) -> BaselineSave:
        """Record that a baseline was saved; `replaces` is the digest of the file's earlier content.

        Raises:
            OSError: the entry could not be written.
        """
        version = Version(id=name, digest=evidence_digest(evidence))
        run = evidence.provenance.run_id or "unknown"
        return self._ledger.append(
            _maker(BaselineSave, suite=suite, baseline=version, replaces=replaces, run=run)
        )

    def record_traces(
        self, suite: str, run: str, folder: Path, account: tuple[str, str] | None = None
    ) -> Traces:
        """Record the digest of a suite's traces in the folder of a run, so that later edits are detected.

        Args:
            suite, run: The suite, and the id of the run.
            folder: The folder of the traces.
            account: The draw of the store that the run used, and the head of the draw's account.

        Raises:
            OSError: the entry could not be written.
            ResultsError: the folder cannot be read.
        """
        draw, head = account or (None, None)
        return self._ledger.append(
            _maker(Traces, suite=suite, run=run, digest=traces_digest(folder), draw=draw, account=head)
        )


def record_access(
    project: Project, place: SplitName, domain: str, task: str, trials: tuple[int, ...], run: str
) -> None:
    """Record that somebody opened trials of a task.

    Raises:
        LedgerError: the entry could not be written, so nothing may be shown.
    """
    suite, split = place
    fields = {"domain": domain, "suite": suite, "split": split, "task": task, "trials": trials, "run": run}
    try:
        Ledger(project.ledger_folder).append(_signed(Access, who=user_name(), **fields))
    except OSError as error:
        raise LedgerError(
            f"{project.ledger_folder}: the access could not be recorded ({error.strerror or error}), and so "
            "nothing is shown; make the folder writable"
        ) from None


def user_name() -> str:
    """The name of the user who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "unknown"


def baseline_identity(origin: Provenance) -> str | None:
    """Digest of a baseline's candidate, agent, lock and code, independent of its simulations.

    None if its candidate or its agent was not recorded, or if code of its user or world cannot be identified.
    """
    if origin.candidate is None or origin.agent == Settings():
        return None
    # Unset settings are excluded, so that settings added later do not change the digest.
    agent = origin.agent.model_dump(mode="json", exclude_none=True)
    parts = {"candidate": origin.candidate.digest, "agent": agent, "lock": origin.lock}
    for name, code in (("user", origin.user.code), ("world", origin.world)):
        if code is None:
            continue
        if code.unknown:
            return None
        if code.files or code.fingerprint is not None:
            parts[name] = code.digest
    return digest(parts)


def min_trials(records: Iterable[SimulationEvidence]) -> int:
    """The smallest number of trials of a task."""
    return min(Counter(record.task_id for record in records).values(), default=0)


def _maker(kind: type[Made], **fields: Any) -> Callable[[str, tuple[str, ...], datetime], Made]:
    """Return the function that `Ledger.append` calls to make an entry of a kind."""
    return lambda root, parents, at: kind(root=root, parents=parents, at=at, **fields)


def _signed(kind: type[Made], **fields: Any) -> Callable[[str, tuple[str, ...], datetime], Made]:
    """Like `_maker`, for an entry that also holds the local date."""
    return lambda root, parents, at: _maker(kind, **fields, day=at.astimezone().date())(root, parents, at)


def _missing_entries(project: Project, entries: Iterable[Dated]) -> Iterator[str]:
    """Yield a problem for each clean scoreboard line whose ledger entry is missing."""
    known = {(entry.run, entry.suite, entry.split) for entry in entries if isinstance(entry, Evaluation)}
    try:
        for line in scoreboard.read(project.scoreboard):
            run, suite, split = key = (line["run"], line["suite"], line["split"])
            if line["label"] == Label.CLEAN and key not in known:
                known.add(key)
                yield (
                    f"ledger: holds no entry of run {run} on {suite}::{split}, which "
                    f"{project.scoreboard.name} calls clean; restore the entry from git"
                )
    except ResultsError as error:
        yield str(error)


@dataclass(frozen=True)
class SplitHistory:
    """One split's part of the ledger.

    Attributes:
        suite, split: The split.
        lock: The digest of the suite's lock; None if the suite is no longer locked.
        entries: Accesses, draws and evaluations, oldest first.
        informed: Ids of the candidates whose front matter says that their authors had seen the split.
        next_test: The test number of the next new candidate with a clean claim; None if none can be made.
    """

    suite: str
    split: str
    lock: str | None
    entries: tuple[Access | Draw | Evaluation, ...]
    informed: tuple[str, ...]
    next_test: int | None


def split_histories(
    project: Project, ledger: ProjectLedger, suite: str | None = None, split: str | None = None
) -> list[SplitHistory]:
    """The histories of all splits, or of one suite or split.

    Splits without entries are included if a clean claim can be made on them, or if `split` names them.

    Raises:
        SuiteError: the suite or split is neither locked nor in the ledger.
        CandidateError, LockError: a candidate's file or the lock is broken.
    """
    entries = [entry for entry in ledger.entries if isinstance(entry, Access | Draw | Evaluation)]
    places = {(name, part) for name, lock in project.lock.suites.items() for part in lock.splits}
    places |= {(entry.suite, entry.split) for entry in entries}
    _check_known("suite", suite, {name for name, _ in places})
    _check_known("split", split, {part for name, part in places if suite in (None, name)})
    histories = [
        _history(project, ledger, place, entries)
        for place in sorted(places)
        if suite in (None, place[0]) and split in (None, place[1])
    ]
    if split is not None:
        return histories
    return [one for one in histories if one.entries or one.informed or one.next_test is not None]


def _history(
    project: Project, ledger: ProjectLedger, place: SplitName, entries: Sequence[Access | Draw | Evaluation]
) -> SplitHistory:
    suite, split = place
    lock = project.lock.suites.get(suite)
    known = project.splits.get(split)
    next_test = None
    if lock is not None and split in lock.splits and known is not None and known.role is Role.GATE:
        measured = _latest_baseline(ledger, place)
        claim = Claim(suite, split, lock.digest, "", "", "", "", 0, measured=measured)
        next_test = ledger.spending(claim).number
    return SplitHistory(
        suite=suite,
        split=split,
        lock=lock.digest if lock else None,
        entries=tuple(entry for entry in entries if (entry.suite, entry.split) == place),
        informed=tuple(name for name in project.candidates if project.candidates[name].saw(suite, split)),
        next_test=next_test,
    )


def _latest_baseline(ledger: ProjectLedger, place: SplitName) -> tuple[str, str]:
    """Digests of the candidate and the agent of the suite's latest baseline; empty if no draw names them."""
    saved = [entry for entry in ledger.entries if isinstance(entry, BaselineSave) and entry.suite == place[0]]
    if not saved:
        return "", ""
    latest = saved[-1]
    for entry in reversed(ledger.entries):
        if (
            isinstance(entry, Draw)
            and (entry.suite, entry.split) == place
            and (entry.run == latest.run or entry.candidate.id == latest.baseline.id)
        ):
            return entry.candidate.digest, entry.agent
    return "", ""


def _check_known(what: str, name: str | None, known: set[str]) -> None:
    if name is not None and name not in known:
        raise SuiteError(f"unknown {what} {name!r}, neither locked nor in the ledger; {nearest(name, known)}")
