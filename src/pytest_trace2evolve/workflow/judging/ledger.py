"""The ledger as a run and its commands use it: labels, the numbers of claims, and what is written down."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from pytest_trace2evolve._canonical import digest
from pytest_trace2evolve.candidates import Candidate
from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence import scoreboard
from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.gate.decide import unmeasured
from pytest_trace2evolve.gate.labels import Labelled, SealedSplit, label_of
from pytest_trace2evolve.gate.looks import Claim, Look, look_of
from pytest_trace2evolve.records.evidence import Provenance, Settings, SimulationEvidence
from pytest_trace2evolve.records.ledger import Dated, Evaluation, Version
from pytest_trace2evolve.records.verdict import Decision, Goal, Label, Verdict
from pytest_trace2evolve.suites import Role
from pytest_trace2evolve.workflow.locked import LockedSuite
from pytest_trace2evolve.workflow.planning.plan import Plan, PlannedSuite
from pytest_trace2evolve.workflow.project import Project

DECIDING = (Role.GATE, Role.DEVELOPMENT)
"""Roles of the splits whose evaluations are written down."""


class Looks:
    """What a project's ledger said when it was read, and what follows from it.

    Attributes:
        entries: Everything in it, oldest first.
        problems: What is wrong with it, a line each. A damaged ledger gives no clean label.
    """

    def __init__(self, project: Project, now: datetime | None = None) -> None:
        self._ledger = Ledger(project.ledger_folder)
        history = self._ledger.read(now)
        self.entries: Sequence[Dated] = history.in_time
        self.problems = (*history.problems, *_without_entry(project, self.entries))

    def label(self, lineage: Sequence[Candidate], suite: LockedSuite, split: str, role: Role) -> Labelled:
        """What kind of evidence a split is for a candidate, and why it is no better.

        Args:
            lineage: The candidate and its ancestors.
            suite: The suite, as locked.
            split: One of its splits.
            role: The split's role.
        """
        if role is Role.GUARD:
            return Labelled(Label.SYNTHETIC if split == Label.SYNTHETIC else Label.TRANSFER)
        if role is not Role.GATE:
            return Labelled(Label.DEVELOPMENT)
        if self.problems:
            return Labelled(
                Label.DEVELOPMENT,
                f"the ledger is damaged ({len(self.problems)}): 'trace2evolve ledger' names what is wrong",
            )
        sealed = SealedSplit(suite.name, split, suite.suite.domain, suite.lock.splits[split].keys())
        return label_of(lineage, sealed, self.entries)

    def look(self, claim: Claim) -> Look:
        """The test of its split, and the analysis, that a clean claim is: see `gate.looks.look_of`."""
        return look_of(self.entries, claim)

    def record(self, plan: Plan, planned: PlannedSuite, verdict: Verdict, claim: Claim) -> Evaluation:
        """Write down that a split was judged.

        Args:
            plan: The run's plan.
            planned: The suite.
            verdict: The gate's answer on the whole split: `decision` is set.
            claim: What was judged, whether or not it claims anything.

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
            "draw": claim.draw or None,
        }

        def make(root: str, parents: tuple[str, ...], at: datetime) -> Evaluation:
            return Evaluation(root=root, parents=parents, at=at, **fields)

        return self._ledger.append(make)


def baseline_identity(origin: Provenance) -> str | None:
    """Identifies a baseline by its candidate, agent and lock, whatever its simulations.

    None if its candidate or its agent was not recorded.
    """
    if origin.candidate is None or origin.agent == Settings():
        return None
    # A setting that came later and is not set changes nothing.
    agent = origin.agent.model_dump(mode="json", exclude_none=True)
    parts = {"candidate": origin.candidate.digest, "agent": agent, "lock": origin.lock}
    codes = {"user": origin.user.code, "world": origin.world}
    known = {name: code.digest for name, code in codes.items() if code is not None and code.files}
    return digest({**parts, **known})


def evidence_digest(records: Iterable[SimulationEvidence]) -> str:
    """Identifies the evidence of a split, whatever order its simulations come in."""
    return digest(
        sorted(
            [record.task_id, record.trial, record.id, record.task_digest, record.status, record.reward or 0.0]
            for record in records
        )
    )


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
