"""Gives runs and commands access to a project's ledger: labels, test numbers, entries and histories."""

import getpass
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from pytest_trace2evolve.errors import LedgerError, SuiteError, name_suggestion
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
from pytest_trace2evolve.gate.decide import awaits_simulations
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.project.project import LockedSuite, Project
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.evidence import Evidence, Provenance, Settings, SimulationEvidence
from pytest_trace2evolve.records.ledger import (
    Access,
    BaselineSave,
    ContentVersion,
    DatedEntry,
    Draw,
    Evaluation,
    Repair,
    TracesEntry,
)
from pytest_trace2evolve.records.verdict import Decision, Goal, Label, RunVerdict, Verdict
from pytest_trace2evolve.session.plan import Plan, PlannedSuite
from pytest_trace2evolve.utils.canonical import digest

DECIDING_ROLES = (Role.GATE, Role.DEVELOPMENT)
"""Roles of the splits whose evaluations are recorded."""

EntryT = TypeVar("EntryT", bound=DatedEntry)

SplitName = tuple[str, str]
"""A suite and one of its splits."""


class ProjectLedger:
    """A project's ledger as it was read, with methods that append entries.

    Attributes:
        entries: All entries, oldest first.
        problems: The problems of the ledger, one line each. While there are any, no label is clean, and
            nothing is promoted on a sealed split.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._ledger = Ledger(project.ledger_folder)
        self._history = self._ledger.read()
        self.entries: Sequence[DatedEntry] = self._history.entries_by_time
        self.problems = self._history.problems

    def label(
        self, lineage: Sequence[Candidate], suite: LockedSuite, split: str, role: Role
    ) -> EvidenceLabel:
        """Return the label of a split's evidence for candidate `lineage[0]`, and the reason if not clean."""
        if role is Role.GUARD:
            return EvidenceLabel(Label.SYNTHETIC if split == Label.SYNTHETIC else Label.TRANSFER)
        if role is not Role.GATE:
            return EvidenceLabel(Label.DEVELOPMENT, "its tasks may be read")
        if self.problems:
            return EvidenceLabel(
                Label.DEVELOPMENT,
                f"{self.damage_text}; restore it, or accept the damage with 'trace2evolve ledger repair'",
            )
        sealed_split = SealedSplit(suite.name, split, suite.suite.domain, suite.lock.splits[split].keys())
        return label_of(lineage, sealed_split, self.entries)

    def has_draws_of(self, suite: str, split: str) -> bool:
        """Return whether a live run of this project has ever drawn a split."""
        draws = (entry for entry in self.entries if isinstance(entry, Draw))
        return any((draw.suite, draw.split) == (suite, split) for draw in draws)

    @property
    def lost_entries(self) -> int:
        """The number of entries that are missing or unreadable; each may have been a test."""
        known_names = {entry.name for entry in self.entries}
        return len(self._history.damaged_digests.keys() - known_names - {self._history.root})

    @property
    def damage_text(self) -> str:
        """A phrase for messages that says that the ledger is damaged, and where to see the problems."""
        count = len(self.problems)
        return (
            f"the ledger is damaged ({count} problem{'' if count == 1 else 's'}: see 'trace2evolve ledger')"
        )

    def spending(self, claim: Claim) -> AlphaSpending:
        """Return the test and analysis numbers of a claim on its split; see `spending_of`."""
        return spending_of(self.entries, claim)

    def repair(self, user: str) -> Repair:
        """Accept the present damage, but no later damage.

        From then on, each missing or unreadable entry counts as one test of every split.

        Raises:
            LockError: `suites.lock` is damaged.
            OSError: the entry could not be written.
        """
        locks = {entry.lock for entry in self.entries if isinstance(entry, Evaluation)}
        locks |= {lock.digest for lock in self._project.lock.suites.values()}
        fields = {
            "problems": self.problems,
            "files": dict(self._history.damaged_digests),
            "lost": self.lost_entries,
            "locks": tuple(sorted(locks)),
        }
        return self._ledger.append(entry_maker(Repair, who=user, **fields))

    def record(
        self, plan: Plan, planned: PlannedSuite, verdict: Verdict, claim: Claim, run_verdict: RunVerdict
    ) -> Evaluation:
        """Record the gate's decision on a split.

        Args:
            plan: The run's plan.
            planned: The suite.
            verdict: The verdict on the whole split, with its `decision` set.
            claim: The judged claim, even if the goal claims nothing.
            run_verdict: The verdict of the whole run, as `verdict.json` will hold it.

        Raises:
            OSError: the entry could not be written.
        """
        assert verdict.decision is not None
        assert planned.baseline is not None
        repeated_verdict = self.spending(claim).repeated_verdict
        is_unmeasured = verdict.decision is Decision.INCONCLUSIVE and awaits_simulations(verdict)
        # A run that lost simulations and decided nothing is not a test: the same draw with all simulations
        # still can be one. If it can be promoted, the lost simulations at their worst changed nothing. A goal
        # that claims nothing spends nothing.
        spends_alpha = not is_unmeasured and verdict.goal is not Goal.NO_REGRESSION
        return self._ledger.append(
            entry_maker(
                Evaluation,
                suite=claim.suite,
                split=claim.split,
                lock=claim.lock,
                candidate=ContentVersion(id=plan.candidate.id, digest=claim.candidate),
                ancestors=tuple(
                    ContentVersion(id=ancestor.id, digest=ancestor.digest) for ancestor in plan.lineage[1:]
                ),
                agent=claim.agent,
                baseline=ContentVersion(id=planned.baseline.name, digest=claim.evidence),
                baseline_identity=claim.baseline,
                policy=claim.policy,
                goal=verdict.goal,
                # A run that stopped for futility has spent the level of all its stages.
                trials=max(claim.trials, claim.max_trials)
                if verdict.decision is Decision.INCONCLUSIVE
                else claim.trials,
                decision=verdict.decision,
                label=verdict.label,
                look=verdict.look,
                analysis=verdict.analysis,
                alpha=verdict.alpha if spends_alpha else None,
                repeats=repeated_verdict.name if repeated_verdict is not None else None,
                run=plan.run_id,
                baseline_evidence=planned.baseline.digest if planned.baseline.is_saved else None,
                evidence=run_verdict.suites[claim.suite].evidence.digest,
                verdict=digest(run_verdict.model_dump(mode="json")),
                draw=claim.draw_id or None,
                figures=_figures(verdict),
            )
        )

    def record_baseline_save(
        self, suite: str, name: str, evidence: Evidence, replaces: str | None
    ) -> BaselineSave:
        """Record that a baseline was saved; `replaces` is the digest of the file's earlier content.

        Raises:
            OSError: the entry could not be written.
        """
        version = ContentVersion(id=name, digest=evidence_digest(evidence))
        run = evidence.provenance.run_id or "unknown"
        return self._ledger.append(
            entry_maker(BaselineSave, suite=suite, baseline=version, replaces=replaces, run=run)
        )

    def record_traces(self, suite: str, run: str, folder: Path) -> TracesEntry:
        """Record the digest of a suite's traces in the folder of a run, so that later edits are detected.

        Raises:
            OSError: the entry could not be written.
            ResultsError: the folder cannot be read.
        """
        return self._ledger.append(
            entry_maker(TracesEntry, suite=suite, run=run, digest=traces_digest(folder))
        )


def _figures(verdict: Verdict) -> dict[str, float]:
    sides = {"": verdict.candidate, "baseline_": verdict.baseline}
    figures = {
        f"{prefix}{name}": round(value, 4)
        for prefix, side in sides.items()
        for name in ("reward", "action_match", "read_action_match", "write_action_match", "max_steps")
        if (value := getattr(side, name)) is not None
    }
    return figures | {"fixed": len(verdict.fixed), "broken": len(verdict.broken)}


def record_access(
    project: Project,
    split_name: SplitName,
    domain: str,
    task: str,
    trials: tuple[int, ...],
    run: str,
    *,
    only_first: bool = False,
) -> None:
    """Record that somebody opened trials of a task; with `only_first`, unless an access is recorded already.

    Raises:
        LedgerError: the entry could not be written, so nothing may be shown.
    """
    place = {"domain": domain, "suite": split_name[0], "split": split_name[1], "task": task}
    make_entry = entry_maker(Access, who=user_name(), trials=trials, run=run, **place)
    repeats = [has_fields(Access, place)] if only_first else []
    try:
        Ledger(project.ledger_folder).append(make_entry, *repeats)
    except OSError as error:
        raise LedgerError(
            f"{project.ledger_folder}: the access could not be recorded ({error.strerror or error}), so "
            "nothing is shown; make the folder writable"
        ) from None


def user_name() -> str:
    """Return the name of the user who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "unknown"


def baseline_identity(origin: Provenance) -> str | None:
    """Return the digest of a baseline's candidate, agent, lock and code, independent of its simulations.

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
    """Return the smallest number of trials of a task."""
    return min(Counter(record.task_id for record in records).values(), default=0)


def entry_maker(
    entry_type: type[EntryT], **fields: Any
) -> Callable[[str, tuple[str, ...], datetime], EntryT]:
    """Return the function that `Ledger.append` calls to make an entry of a type, with its local date."""

    def make(root: str, parents: tuple[str, ...], at: datetime) -> EntryT:
        day = {"day": at.astimezone().date()} if "day" in entry_type.model_fields else {}
        return entry_type(root=root, parents=parents, at=at, **fields, **day)

    return make


def has_fields(entry_type: type[DatedEntry], fields: Mapping[str, Any]) -> Callable[[DatedEntry], bool]:
    """Return a function that says whether an entry has a type and some fields."""
    return lambda entry: (
        isinstance(entry, entry_type) and all(getattr(entry, name) == value for name, value in fields.items())
    )


@dataclass(frozen=True)
class SplitHistory:
    """The ledger's entries about one split, with facts that follow from them.

    Attributes:
        suite, split: The split.
        lock: The digest of the suite's lock; None if the suite is no longer locked.
        entries: Accesses, draws and evaluations, oldest first.
        informed_candidates: Ids of the candidates whose authors had seen the split, by their front matter.
        next_test: The test number of the next new candidate with a clean claim; None if none can be made.
    """

    suite: str
    split: str
    lock: str | None
    entries: tuple[Access | Draw | Evaluation, ...]
    informed_candidates: tuple[str, ...]
    next_test: int | None


def split_histories(
    project: Project, ledger: ProjectLedger, suite: str | None = None, split: str | None = None
) -> list[SplitHistory]:
    """Return the histories of all splits, or only of a suite or a split.

    Splits without entries are included if a clean claim can be made on them, or if `split` names them.

    Raises:
        SuiteError: the suite or split is neither locked nor in the ledger.
        CandidateError, LockError: a candidate's file or the lock is broken.
    """
    entries = [entry for entry in ledger.entries if isinstance(entry, Access | Draw | Evaluation)]
    split_names = {
        (name, known_split) for name, lock in project.lock.suites.items() for known_split in lock.splits
    }
    split_names |= {(entry.suite, entry.split) for entry in entries}
    _check_name("suite", suite, {name for name, _ in split_names})
    _check_name("split", split, {known_split for name, known_split in split_names if suite in (None, name)})
    histories = [
        _split_history(project, ledger, split_name, entries)
        for split_name in sorted(split_names)
        if suite in (None, split_name[0]) and split in (None, split_name[1])
    ]
    if split is not None:
        return histories
    return [
        history
        for history in histories
        if history.entries or history.informed_candidates or history.next_test is not None
    ]


def _split_history(
    project: Project,
    ledger: ProjectLedger,
    split_name: SplitName,
    entries: Sequence[Access | Draw | Evaluation],
) -> SplitHistory:
    suite, split = split_name
    lock = project.lock.suites.get(suite)
    split_spec = project.splits.get(split)
    next_test = None
    if lock is not None and split in lock.splits and split_spec is not None and split_spec.role is Role.GATE:
        baseline_digests = _latest_baseline(ledger, split_name)
        claim = Claim(suite, split, lock.digest, "", "", "", "", 0, baseline_digests=baseline_digests)
        next_test = ledger.spending(claim).number
    return SplitHistory(
        suite=suite,
        split=split,
        lock=lock.digest if lock else None,
        entries=tuple(entry for entry in entries if (entry.suite, entry.split) == split_name),
        informed_candidates=tuple(
            name for name in project.candidates if project.candidates[name].has_seen(suite, split)
        ),
        next_test=next_test,
    )


def _latest_baseline(ledger: ProjectLedger, split_name: SplitName) -> tuple[str, str]:
    """Return the digests of the latest baseline's candidate and agent; empty if no draw has them."""
    saves = [
        entry for entry in ledger.entries if isinstance(entry, BaselineSave) and entry.suite == split_name[0]
    ]
    if not saves:
        return "", ""
    latest_save = saves[-1]
    for entry in reversed(ledger.entries):
        if (
            isinstance(entry, Draw)
            and (entry.suite, entry.split) == split_name
            and (entry.run == latest_save.run or entry.candidate.id == latest_save.baseline.id)
        ):
            return entry.candidate.digest, entry.agent
    return "", ""


def _check_name(noun: str, name: str | None, known_names: set[str]) -> None:
    if name is not None and name not in known_names:
        raise SuiteError(
            f"unknown {noun} {name!r}, neither locked nor in the ledger; {name_suggestion(name, known_names)}"
        )
