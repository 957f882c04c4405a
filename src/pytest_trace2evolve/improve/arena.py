"""Measures and gates the candidates of a search in sessions of a project, and stores every answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from statistics import fmean

from pytest_trace2evolve.diagnose.diagnosis import count_failure_kinds
from pytest_trace2evolve.diagnose.traces import TraceSet, gather_traces
from pytest_trace2evolve.errors import (
    BudgetError,
    CandidateError,
    ConfigError,
    GitHubError,
    ProposalError,
    ResultsError,
)
from pytest_trace2evolve.evidence.ledger import check_promotion
from pytest_trace2evolve.improve.leaks import MAX_HYPOTHESIS_LENGTH, SealedContent, check_draft
from pytest_trace2evolve.improve.proposers import Draft, Request
from pytest_trace2evolve.improve.reflect import render_conversation
from pytest_trace2evolve.improve.search import PairedGain, Rewards, Row, Status, paired_gain, search
from pytest_trace2evolve.improve.search_sessions import OnProgress, SearchPlan, SearchSessions, search_lock
from pytest_trace2evolve.project.candidates import ADAPTER_SEPARATOR, Candidate, render_child
from pytest_trace2evolve.records.completion import NO_USAGE
from pytest_trace2evolve.records.improvement import Proposal, SearchState
from pytest_trace2evolve.records.verdict import CheckStatus, Decision
from pytest_trace2evolve.session.ledger import ProjectLedger
from pytest_trace2evolve.session.planner import Resources
from pytest_trace2evolve.session.promote import record_adapter_verdict
from pytest_trace2evolve.session.runs import read_verdict
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import read_text

RESULTS_HEADER = ("candidate", "parent", "hypothesis", "discovery_gain", "verdict", "simulations", "status")
"""The columns of `results/improve.tsv`, in AutoResearch's form: one line for each proposal, kept or not."""


@dataclass(frozen=True)
class SearchResult:
    """The outcome of a search.

    Attributes:
        best: The last promoted candidate; the root if none was promoted.
        stopped: Which budget ended the search; empty if none did.
        null_gain: The difference of the null arm from the root on discovery; None without a null arm.
        means: The mean reward on discovery of the root and of the null arm.
        best_of_two: The mean over discovery tasks of the better of the root's two runs.
    """

    state: SearchState
    rows: tuple[Row, ...]
    best: str
    stopped: str = ""
    null_gain: PairedGain | None = None
    means: tuple[float, ...] = ()
    best_of_two: float | None = None


def improve(
    plan: SearchPlan, resources: Resources, on_progress: OnProgress = lambda line: None
) -> SearchResult:
    """Search for better candidates until a budget is spent; the same plan resumes an interrupted search.

    Raises:
        ConfigError: the root passes or fails every discovery task, or another process runs the search.
        ResultsError: stored evidence is damaged or was edited, or cannot be compared.
        EndpointError, ModelFolderError, StorageError: a session failed; see `session.run`.
        OSError: a file cannot be written.
    """
    with search_lock(plan.folder(resources.project)):
        arena = SessionArena(plan, resources, on_progress)
        rows: list[Row] = []
        stopped = ""
        try:
            arena.measure_root()
            arena.measure_null_arm()
            for row in search(arena, plan.root, plan.groups, plan.rules):
                rows.append(arena.record(row))
        except BudgetError as error:
            stopped = str(error)
        finally:
            arena.close()
    promoted = [row.candidate for row in rows if row.status is Status.KEEP]
    rewards = arena.state.rewards
    root, null = rewards.get(plan.root, {}), rewards.get(plan.null_arm, {})
    shared = root.keys() & null.keys()
    return SearchResult(
        arena.state,
        tuple(rows),
        promoted[-1] if promoted else plan.root,
        stopped,
        paired_gain(root, null) if shared else None,
        tuple(fmean(side.values()) for side in (root, null) if side),
        fmean(max(root[task], null[task]) for task in shared) if shared else None,
    )


class SessionArena(SearchSessions):
    """Measures and gates candidates in sessions. Stored answers are repeated without a session."""

    def __init__(self, plan: SearchPlan, resources: Resources, on_progress: OnProgress) -> None:
        super().__init__(plan, resources, on_progress)
        self._rows: list[Row] = []
        self._replayed_batches = 0
        for proposal in self.state.proposals:
            if not proposal.problem and proposal.id not in self.project.candidates:
                raise ResultsError(
                    f"{self.folder}: candidate {proposal.id!r} of this search has no file; restore "
                    f"candidates/{proposal.id}.md, or move the folder away"
                )

    # ---- the arena of the search

    def propose(self, parent: str, count: int) -> Sequence[str]:
        """Write up to `count` candidates; a rejected proposal has an id, but no file."""
        if self._replayed_batches < len(self.state.batches):
            self._replayed_batches += 1
            return self.state.batches[self._replayed_batches - 1]
        known = {name for batch in self.state.batches for name in batch}
        batch = [proposal.id for proposal in self.state.proposals if proposal.id not in known]
        while len(batch) < count and self._has_proposals_left(has_batch=bool(batch)):
            name = self._propose_one(parent)
            if name is None:
                break
            batch.append(name)
        if batch:
            self._store(batches=(*self.state.batches, tuple(batch)))
            self._replayed_batches += 1
        return batch

    def screen(self, candidate: str, tasks: Sequence[str]) -> Rewards:
        """Measure a candidate on the tasks for which no reward is stored."""
        self._raise_if_unusable(candidate)
        known = self.state.rewards.get(candidate, {})
        missing = [task for task in tasks if task not in known]
        if missing:
            with self._crashes_of(candidate):
                _, records, changes = self._run(candidate, missing, f"{len(known)}")
                self._store(**changes, **self._rewards_of(candidate, records, missing))
        known = self.state.rewards[candidate]
        return {task: known[task] for task in tasks if task in known}

    def gate(self, candidate: str, parent: str) -> Decision:
        """Compare a candidate with its parent in a session with the project's gate and ledger."""
        self._raise_if_unusable(candidate)
        if (decision := self.state.decisions.get(candidate)) is not None:
            return decision
        with self._crashes_of(candidate):
            run, _, changes = self._run(
                candidate, self.plan.gated_tasks, "gate", baseline=self.state.evidence[parent]
            )
        folder = run.plan.run_folder
        verdict = read_verdict(folder)
        decided = verdict.suites[self.plan.suite].verdict if self.plan.suite in verdict.suites else None
        if verdict.partial or decided is None:
            raise BudgetError(verdict.stopped or f"the gate's run {verdict.run} is not complete")
        self._report(f"{candidate}: the gate's verdict is {decided.value}")
        if decided is Decision.PROMOTE:
            check_promotion(folder, verdict, ProjectLedger(self.project).entries, [self.plan.suite])
        if ADAPTER_SEPARATOR in candidate:
            record_adapter_verdict(self.project, verdict)
        self._store(
            **changes,
            decisions={**self.state.decisions, candidate: decided},
            evidence={**self.state.evidence, candidate: str(folder)},
        )
        return decided

    # ---- the root and the null arm

    def measure_root(self) -> None:
        """Measure the root on all tasks, or read its rewards from the given baseline.

        Raises:
            ConfigError: the root passes or fails every discovery task, so no change of it can be screened.
        """
        root, plan = self.plan.root, self.plan
        if root not in self.state.evidence:
            if plan.baseline is not None:
                session_plan = self._session_plan(root, baseline=plan.baseline)
                baseline = session_plan.suites[plan.suite].baseline
                assert baseline is not None
                records, evidence = list(baseline.evidence.simulations), plan.baseline
                folders = () if baseline.path is None or not baseline.path.is_dir() else (str(baseline.path),)
                changes: dict[str, object] = {"runs": {**self.state.runs, root: folders}}
            else:
                self._report(f"measuring {root}")
                run, records, changes = self._run(root, [*plan.groups, *plan.gated_tasks], "all")
                evidence = str(run.plan.run_folder)
            changes["evidence"] = {**self.state.evidence, root: evidence}
            self._store(**changes, **self._rewards_of(root, records, list(plan.groups)))
        rewards = self.state.rewards[root]
        mean = fmean(rewards.values())
        if mean in (0.0, 1.0):
            raise ConfigError(
                f"{root} {'passes' if mean else 'fails'} all {len(rewards)} discovery tasks of {plan.suite}, "
                "so no change of it can be screened; write tasks that it sometimes passes"
            )
        self._report(f"{root}: mean reward {mean:.3f} on {len(rewards)} discovery tasks")

    def measure_null_arm(self) -> None:
        """Measure the root under another name on all discovery tasks; the difference is noise."""
        name = self.plan.null_arm
        if name not in self.project.candidates:
            root = self.project.candidates[self.plan.root]
            draft = Draft("The parent under another name: the difference is noise.", root.instruction)
            # A declared change gives it simulations of its own, though it changes nothing.
            self._write(draft, name, root, changes=tuple(dict.fromkeys([*root.changes, "parameters"])))
        rewards = self.screen(name, list(self.plan.groups))
        gain = paired_gain(self.state.rewards[self.plan.root], rewards)
        self._report(f"null arm: {100 * gain.mean:+.1f} points (standard error {100 * gain.error:.1f})")

    # ---- results

    def record(self, row: Row) -> Row:
        """Report the outcome of a proposal, add it to `results/improve.tsv`, and commit it.

        Returns:
            The outcome with the reason of its verdict.
        """
        row = replace(row, reason=self._reason(row))
        self._rows.append(row)
        gain = "" if row.gain is None else f"{row.gain:+.4f}"
        hypothesis = next(
            proposal.hypothesis for proposal in self.state.proposals if proposal.id == row.candidate
        )
        count = self.state.simulations_of(row.candidate)
        cells = (row.candidate, row.parent, hypothesis, gain, row.verdict, str(count), row.status.value)
        if row.candidate not in (lines := self._result_lines()):
            self._results.parent.mkdir(exist_ok=True)
            lines[row.candidate] = "\t".join(" ".join(cell.split()) for cell in cells)
            write_atomic(self._results, "\n".join([*lines.values(), ""]))
        proposed = self.project.root / "candidates" / f"{row.candidate}.md"
        facts = "\n".join(f"{name}: {cell}" for name, cell in zip(RESULTS_HEADER[1:], cells[1:], strict=True))
        branch, files = self.plan.branch(self.project), [proposed, self._results, self.project.ledger_folder]
        if row.status is Status.KEEP and (adapter := row.candidate.partition(ADAPTER_SEPARATOR)[2]):
            files.append(self.project.root / "adapters" / adapter)
        try:
            branch.commit(row.candidate, hypothesis, facts, files)
        except GitHubError as error:
            self._report(f"{row.candidate}: not committed to {branch.name}: {error}")
        points = "" if row.gain is None else f"{100 * row.gain:+.1f} points on {row.tasks} tasks, "
        self._report(f"{row.candidate} ({hypothesis}): {points}{row.verdict}: {row.status.value}")
        if row.reason:
            self._report(f"{row.candidate}: {row.reason}")
        return row

    def _reason(self, row: Row) -> str:
        """Return why a gated proposal was not promoted, in one line; empty if it was, or nothing says why."""
        if row.decision in (None, Decision.PROMOTE):
            return ""
        try:
            verdict = read_verdict(Path(self.state.evidence[row.candidate])).suites[self.plan.suite]
        except ResultsError:  # the run was deleted since
            return ""
        reasons = []
        for split in verdict.verdicts:
            checks = {
                status: ", ".join(
                    f"{c['id']} {c['detail']}" for c in split["checks"] if c["status"] == status
                )
                for status in (CheckStatus.FAIL, CheckStatus.UNDECIDED)
            }
            if split["verdict"] not in (None, Decision.PROMOTE):
                details = next(filter(None, checks.values()), "")
                reasons.append(f"{split['split']}: {details or split['reason'] or split['verdict']}")
        return "; ".join(reasons)

    @property
    def _results(self) -> Path:
        return self.project.root / "results" / "improve.tsv"

    def _result_lines(self) -> dict[str, str]:
        """The lines of `results/improve.tsv` by their first cells, the header first."""
        text = read_text(self._results, ResultsError) if self._results.exists() else "\t".join(RESULTS_HEADER)
        return {line.split("\t")[0]: line for line in text.splitlines()}

    # ---- proposals

    def _has_proposals_left(self, *, has_batch: bool) -> bool:
        limit = self.plan.budgets.proposals
        if limit is None or len(self.state.proposals) < limit:
            return True
        if has_batch:
            return False
        raise BudgetError(f"the budget of {limit} proposals is spent")

    def _propose_one(self, parent: str) -> str | None:
        """Ask the proposer once, and store its proposal, which may be rejected; None if nothing is left."""
        candidates = self.project.candidates
        taken = {*self._result_lines(), *(proposal.id for proposal in self.state.proposals)}
        name = next(
            name
            for number in range(1, 1_000_000)
            if (name := f"{self.plan.root}-{number}") not in taken and name not in candidates
        )
        usable = [proposal.id for proposal in self.state.proposals if not proposal.problem]
        digests = {candidates[name].digest for name in (self.plan.root, *usable)}
        history = [(candidates[row.candidate], row) for row in self._rows if row.candidate in usable]
        request = Request(
            parent=candidates[parent],
            tried=digests,
            history=history,
            failures=lambda: self._failures(parent),
            kinds=lambda: self._kinds(parent),
            rates=lambda: self._rates(parent),
            informed_by=self._learned_from,
            runs=tuple(Path(run).name for run in self.state.runs.get(parent, ())),
            policy=self._policy,
            number=len(self.state.proposals),
            rewards=self.state.rewards,
            conversations=self._conversations,
        )
        proposer = self.plan.proposer
        hypothesis = problem = ""
        self._check_budgets(0)
        try:
            draft = proposer.propose(request)
            if draft is None:
                return None
            hypothesis = " ".join(draft.hypothesis.split())[:MAX_HYPOTHESIS_LENGTH]
            check_draft(draft, request, self._sealed)
            if draft.adapter is not None:
                name = draft.apply(candidates[parent], name).id
            else:
                self._write(draft, name, candidates[parent])
        except (ProposalError, CandidateError) as error:
            problem, hypothesis = str(error), ""
        proposal = Proposal(id=name, parent=parent, hypothesis=hypothesis, problem=problem)
        usage = self.state.proposer_usage + getattr(proposer, "usage", NO_USAGE)
        self._store(proposals=(*self.state.proposals, proposal), proposer_usage=usage)
        return name

    def _write(self, draft: Draft, name: str, parent: Candidate, **fields: object) -> None:
        """Write the file of a proposal, and check that it reads as what was proposed."""
        child = draft.apply(
            parent,
            name,
            frozen_at=date.today(),
            informed_by=tuple(dict.fromkeys([*parent.informed_by, *self._learned_from])),
            **fields,
        )
        folder = self.project.root / "candidates"
        path = folder / f"{name}.md"
        write_atomic(path, render_child(read_text(folder / f"{parent.id}.md", CandidateError), child))
        try:
            is_same = self.project.candidates[name].digest == child.digest
        except CandidateError:
            is_same = False
        if not is_same:
            path.unlink()
            raise ProposalError("rejected: its text cannot be stored in a candidate's file")

    @cached_property
    def _learned_from(self) -> tuple[str, ...]:
        splits = self._plan_of_root.suites[self.plan.suite].lock.splits
        return tuple(
            sorted(
                f"{self.plan.suite}::{split}"
                for split, tasks in splits.items()
                if tasks.keys() & self.plan.groups.keys()
            )
        )

    def _rates(self, candidate: str) -> dict[str, float]:
        rewards: dict[str, list[float]] = {}
        for task, reward in self.state.rewards[candidate].items():
            rewards.setdefault(self.plan.groups[task], []).append(reward)
        return {group: fmean(group_rewards) for group, group_rewards in rewards.items()}

    def _failures(self, parent: str) -> list[str]:
        traces = self._traces(parent)
        return [render_conversation(behavior.trace) for behavior in traces.behaviors if not behavior.passed]

    def _conversations(self, candidate: str) -> dict[str, str]:
        behaviors = self._traces(candidate).behaviors
        return {behavior.task.id: render_conversation(behavior.trace) for behavior in behaviors}

    def _kinds(self, parent: str) -> list[str]:
        kinds, _ = count_failure_kinds(self._traces(parent).behaviors)
        return [f"{kind.count} × {kind.name}: {kind.description}" for kind in kinds if kind.count]

    def _traces(self, candidate: str) -> TraceSet:
        """The traces of a candidate on discovery tasks; sealed splits are left out."""
        return gather_traces(
            list(self.state.runs.get(candidate, ())),
            self.resources.worlds,
            project=self.project,
            base_folder=self.project.root,
            suite=self.plan.suite,
        )

    @cached_property
    def _sealed(self) -> SealedContent:
        return SealedContent(self.project, self.plan.suite, self.resources.worlds)

    @cached_property
    def _policy(self) -> str:
        suite = self.project.suite(self.plan.suite)
        return self.project.world(suite, self.resources.worlds).policy(solo=suite.solo)
