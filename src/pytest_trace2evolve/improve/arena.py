"""Measures and gates the candidates of a search in sessions of a project, and stores every answer."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from statistics import fmean

from pytest_trace2evolve.diagnose.diagnosis import count_failure_kinds
from pytest_trace2evolve.diagnose.traces import TraceSet, gather_traces
from pytest_trace2evolve.errors import BudgetError, CandidateError, ConfigError, ProposalError, ResultsError
from pytest_trace2evolve.evidence.integrity import check_promotion
from pytest_trace2evolve.improve.leaks import SealedContent
from pytest_trace2evolve.improve.loop import evolution_lock, unused_path
from pytest_trace2evolve.improve.proposers import Draft, Proposer, Request
from pytest_trace2evolve.improve.reflect import render_conversation
from pytest_trace2evolve.improve.search import (
    DEFAULT_RULES,
    PairedGain,
    Rewards,
    Row,
    Rules,
    Status,
    paired_gain,
    search,
)
from pytest_trace2evolve.project.candidates import Candidate, render_child
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.budget import Budgets
from pytest_trace2evolve.records.completion import NO_USAGE
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.improvement import Proposal, SearchState, SessionUse
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.trace import TerminationReason
from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.session.events import Event, Run, SimulationFinished
from pytest_trace2evolve.session.ledger import ProjectLedger
from pytest_trace2evolve.session.plan import Options, Plan
from pytest_trace2evolve.session.planner import Resources, make_plan
from pytest_trace2evolve.session.run_verdict import read_verdict
from pytest_trace2evolve.session.servers import LocalServers
from pytest_trace2evolve.session.session import run as run_session
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import read_record, read_text

MAX_INSTRUCTION_LENGTH = 20_000
"""Characters of a proposed instruction."""

MAX_HYPOTHESIS_LENGTH = 1_000

RESULTS_HEADER = ("candidate", "parent", "hypothesis", "discovery_gain", "verdict", "simulations", "status")
"""The columns of `results/improve.tsv`, in AutoResearch's form: one line for each proposal, kept or not."""

_STATE_FILE = "state.json"

_PROGRESS_STEP = 100
"""Simulations of a session between two lines of progress."""

OnProgress = Callable[[str], None]
"""Called with a line about the search."""


@dataclass(frozen=True)
class SearchBudgets:
    """The limits of a search over all its attempts; None means no limit.

    `cost` is in US dollars. `simulations` counts those of the first measurement and the reruns of the gate
    too, and `proposals` counts rejected ones too.
    """

    proposals: int | None = None
    simulations: int | None = None
    minutes: float | None = None
    cost: float | None = None


@dataclass(frozen=True)
class SearchPlan:
    """A search, ready to start.

    Attributes:
        root: The candidate to start from.
        suite: The suite.
        identity: Digest of everything that changes the search's outcome, without its budgets.
        options: The options of each session.
        baseline: The saved baseline or the run with the root's evidence; None to measure the root.
        groups: The discovery tasks, with the group of each.
        gated_tasks: The tasks of the splits that decide or guard.
        trials: Simulations of each task.
    """

    root: str
    suite: str
    identity: str
    proposer: Proposer
    options: Options
    budgets: SearchBudgets
    baseline: str | None
    groups: dict[str, str]
    gated_tasks: tuple[str, ...]
    trials: int
    judge: Judge | None = None
    rules: Rules = DEFAULT_RULES

    @property
    def name(self) -> str:
        """The name of the search's folder."""
        return f"{self.root}-{self.suite}-{self.identity[:12]}"

    @property
    def null_arm(self) -> str:
        """The id of the root under another name."""
        return f"{self.root}-null"


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
    folder = _folder_of(plan, resources.project)
    with evolution_lock(folder):
        arena = SessionArena(plan, resources, folder, on_progress)
        rows: list[Row] = []
        stopped = ""
        try:
            arena.measure_root()
            arena.measure_null_arm()
            for row in search(arena, plan.root, plan.groups, plan.rules):
                rows.append(row)
                arena.record(row)
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


def has_begun(plan: SearchPlan, project: Project) -> bool:
    """Whether a search has a state from which it resumes."""
    return (_folder_of(plan, project) / _STATE_FILE).exists()


def _folder_of(plan: SearchPlan, project: Project) -> Path:
    return project.root / ".trace2evolve" / "improving" / plan.name


class SessionArena:
    """Measures and gates candidates in sessions. Stored answers are repeated without a session."""

    def __init__(self, plan: SearchPlan, resources: Resources, folder: Path, on_progress: OnProgress) -> None:
        self.plan, self.resources, self.folder = plan, resources, folder
        self.project: Project = resources.project
        self._report = on_progress
        self.servers = LocalServers()
        self._rows: list[Row] = []
        self._replayed_batches = 0
        self.state = self._read_state()
        self._started, self._minutes = time.monotonic(), self.state.minutes
        for proposal in self.state.proposals:
            if not proposal.problem and proposal.id not in self.project.candidates:
                raise ResultsError(
                    f"{folder}: candidate {proposal.id!r} of this search has no file; restore "
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
        if decided is Decision.PROMOTE:
            check_promotion(folder, verdict, ProjectLedger(self.project).entries, [self.plan.suite])
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

    def record(self, row: Row) -> None:
        """Report the outcome of a proposal, and add it to `results/improve.tsv`."""
        self._rows.append(row)
        gain = "" if row.gain is None else f"{row.gain:+.4f}"
        hypothesis = next(
            proposal.hypothesis for proposal in self.state.proposals if proposal.id == row.candidate
        )
        count = self.state.simulations_of(row.candidate)
        cells = (row.candidate, row.parent, hypothesis, gain, row.verdict, str(count), row.status.value)
        path = self.project.root / "results" / "improve.tsv"
        lines = read_text(path, ResultsError).splitlines() if path.exists() else ["\t".join(RESULTS_HEADER)]
        if not any(line.split("\t")[0] == row.candidate for line in lines):
            path.parent.mkdir(exist_ok=True)
            line = "\t".join(" ".join(cell.split()) for cell in cells)
            write_atomic(path, "\n".join([*lines, line, ""]))
        points = "" if row.gain is None else f"{100 * row.gain:+.1f} points on {row.tasks} tasks, "
        self._report(f"{row.candidate} ({hypothesis}): {points}{row.verdict}: {row.status.value}")

    def close(self) -> None:
        """Stop the local servers, and store the state with the minutes spent so far."""
        self.servers.close()
        self._store()

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
        taken = {proposal.id for proposal in self.state.proposals}
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
            policy=self._policy,
        )
        proposer = self.plan.proposer
        hypothesis = problem = ""
        self._check_budgets(0)
        try:
            draft = proposer.propose(request)
            if draft is None:
                return None
            hypothesis = " ".join(draft.hypothesis.split())[:MAX_HYPOTHESIS_LENGTH]
            self._check_draft(draft, request)
            self._write(draft, name, candidates[parent])
        except (ProposalError, CandidateError) as error:
            problem, hypothesis = str(error), ""
        proposal = Proposal(id=name, parent=parent, hypothesis=hypothesis, problem=problem)
        usage = self.state.proposer_usage + getattr(proposer, "usage", NO_USAGE)
        self._store(proposals=(*self.state.proposals, proposal), proposer_usage=usage)
        return name

    def _check_draft(self, draft: Draft, request: Request) -> None:
        """Reject a proposal that cannot be a candidate, or that holds content of a sealed split.

        Raises:
            ProposalError: the proposal is rejected.
        """
        for field, text, limit in (
            ("instruction", draft.instruction, MAX_INSTRUCTION_LENGTH),
            ("hypothesis", draft.hypothesis, MAX_HYPOTHESIS_LENGTH),
        ):
            if len(text) > limit:
                raise ProposalError(
                    f"rejected: its {field} has {len(text):,} characters, more than {limit:,}"
                )
            if any(ord(character) < 32 and character not in "\n\t" for character in text):
                raise ProposalError(f"rejected: its {field} holds control characters")
        if not draft.hypothesis.strip():
            raise ProposalError("rejected: it has no hypothesis")
        if not request.is_new(draft):
            raise ProposalError("rejected: it repeats an earlier candidate")
        added = _added_text(draft.instruction, request.parent.instruction)
        if leak := self._sealed.find_leak(f"{draft.hypothesis}\n{added}"):
            raise ProposalError(f"rejected: it holds {leak!r}, which is content of a sealed split")

    def _write(self, draft: Draft, name: str, parent: Candidate, **fields: object) -> None:
        """Write the file of a proposal, and check that it reads as what was proposed."""
        learned_from = {
            f"{self.plan.suite}::{split}"
            for split, tasks in self._plan_of_root.suites[self.plan.suite].lock.splits.items()
            if tasks.keys() & self.plan.groups.keys()
        }
        child = draft.apply(
            parent,
            name,
            frozen_at=date.today(),
            informed_by=tuple(dict.fromkeys([*parent.informed_by, *sorted(learned_from)])),
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

    def _failures(self, parent: str) -> list[str]:
        traces = self._traces(parent)
        return [render_conversation(behavior.trace) for behavior in traces.behaviors if not behavior.passed]

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

    # ---- sessions

    @cached_property
    def _plan_of_root(self) -> Plan:
        return self._session_plan(self.plan.root)

    def _session_plan(
        self,
        candidate: str,
        *,
        baseline: str | None = None,
        folder: Path | None = None,
        max_reruns: int | None = None,
    ) -> Plan:
        options = replace(
            self.plan.options,
            candidate=candidate,
            baseline=baseline,
            gate="off" if baseline is None else self.plan.options.gate,
            run_folder=folder,
            budgets=self._remaining_budgets(),
            max_reruns=self.plan.options.max_reruns if max_reruns is None else max_reruns,
        )
        return make_plan(options, self.resources, suite_names=(self.plan.suite,), judge=self.plan.judge)

    def _run(
        self, candidate: str, tasks: Iterable[str], purpose: str, *, baseline: str | None = None
    ) -> tuple[Run, list[SimulationEvidence], dict[str, object]]:
        """Run a session on some tasks. A session with a baseline is gated.

        Returns:
            The session, the evidence of its trials, and the changes of the state to store with its results.

        Raises:
            BudgetError: a budget does not allow the session, or ended it; finished simulations are kept.
        """
        tasks, session = list(tasks), f"{candidate}:{purpose}"
        used = self.state.sessions.get(session, SessionUse()).simulations
        needed = len(tasks) * self.plan.trials
        self._check_budgets(needed - used)
        reruns = None
        if baseline is not None and self.plan.budgets.simulations is not None:
            gate_plan = self._session_plan(candidate, baseline=baseline)
            left = self.plan.budgets.simulations - (self.state.simulations_of() - used + needed)
            reruns = min(left, gate_plan.confirmation.budget if gate_plan.confirmation else 0)
        folder = unused_path(self.folder / session.replace(":", "-"))
        plan = self._session_plan(candidate, baseline=baseline, folder=folder, max_reruns=reruns)
        records: list[SimulationEvidence] = []
        fresh: list[SimulationEvidence] = []

        def on_event(event: Event) -> None:
            if isinstance(event, SimulationFinished):
                (fresh if event.is_fresh else records).append(event.record)
                if not event.is_fresh and len(records) % _PROGRESS_STEP == 0 and len(records) < needed:
                    self._report(f"{candidate}: {len(records)} of {needed} simulations")

        task_names = [(self.plan.suite, task) for task in tasks]
        run = run_session(plan, self.resources, on_event, task_names, servers=self.servers)
        usages = [usage for record in (*records, *fresh) for usage in record.usage.values()]
        use = SessionUse(simulations=len(records) + len(fresh), usage=sum(usages, NO_USAGE))
        changes: dict[str, object] = {"sessions": {**self.state.sessions, session: use}}
        if run.exhausted_budget:
            self._store(**changes)
            self._check_budgets(0)  # names the budget of the search, of which the session had the rest
            raise BudgetError(run.exhausted_budget)
        if baseline is None:
            folders = (*self.state.runs.get(candidate, ()), str(folder))
            changes["runs"] = {**self.state.runs, candidate: folders}
        for note in run.notes:
            self._report(f"{candidate}: {note}")
        return run, records, changes

    def _check_budgets(self, simulations: int) -> None:
        """Check that the budgets allow a number of further simulations.

        Raises:
            BudgetError: a budget is spent.
        """
        budgets = self.plan.budgets
        made = self.state.simulations_of()
        if budgets.simulations is not None and made + simulations > budgets.simulations:
            raise BudgetError(
                f"the budget of {budgets.simulations} simulations does not allow {simulations} more "
                f"({made} were made)"
            )
        remaining = self._remaining_budgets()
        if remaining.minutes is not None and remaining.minutes <= 0:
            raise BudgetError(f"the budget of {budgets.minutes:g} minutes is spent")
        if remaining.cost is not None and remaining.cost <= 0:
            raise BudgetError(f"the budget of ${budgets.cost:g} is spent")

    def _remaining_budgets(self) -> Budgets:
        budgets, given = self.plan.budgets, self.plan.options.budgets
        minutes = None if budgets.minutes is None else budgets.minutes - self._total_minutes
        cost = None if budgets.cost is None else budgets.cost - (self.state.usage.cost or 0.0)
        return replace(given, minutes=minutes, cost=cost)

    def _raise_if_unusable(self, candidate: str) -> None:
        proposals = {proposal.id: proposal.problem for proposal in self.state.proposals}
        if problem := proposals.get(candidate):
            raise ProposalError(problem)
        if problem := self.state.crashes.get(candidate):
            raise ProposalError(problem, is_crash=True)

    @contextmanager
    def _crashes_of(self, candidate: str) -> Iterator[None]:
        """Store the failure of a candidate that cannot be run. A failure of the root is not its crash."""
        try:
            yield
        except (CandidateError, ProposalError) as error:
            if candidate in (self.plan.root, self.plan.null_arm):
                raise
            problem = f"crash: {error}"
            self._store(crashes={**self.state.crashes, candidate: problem})
            raise ProposalError(problem, is_crash=True) from None

    def _rewards_of(
        self, candidate: str, records: Iterable[SimulationEvidence], tasks: Sequence[str]
    ) -> dict[str, object]:
        """Return the change of the state that adds the mean reward of each task.

        Raises:
            ProposalError: every simulation ended in an error of the agent.
        """
        wanted = set(tasks)
        by_task: dict[str, list[SimulationEvidence]] = {}
        for record in records:
            if record.task_id in wanted and record.reward is not None:
                by_task.setdefault(record.task_id, []).append(record)
        measured = [record for task_records in by_task.values() for record in task_records]
        if measured and all(
            record.termination_reason == TerminationReason.AGENT_ERROR for record in measured
        ):
            raise ProposalError(f"all {len(measured)} simulations ended in an agent error")
        if not measured:
            raise ResultsError(
                f"{candidate}: none of {len(wanted)} discovery tasks was measured; "
                "rerun the same command to resume"
            )
        means = {
            task: fmean(record.reward or 0.0 for record in task_records)
            for task, task_records in by_task.items()
        }
        rewards = {**self.state.rewards.get(candidate, {}), **means}
        return {"rewards": {**self.state.rewards, candidate: rewards}}

    # ---- state

    def _read_state(self) -> SearchState:
        path = self.folder / _STATE_FILE
        if not path.exists():
            return SearchState(identity=self.plan.identity, root=self.plan.root)
        state = read_record(path, SearchState, ResultsError, "move the folder away")
        if state.identity != self.plan.identity:
            raise ResultsError(
                f"{path}: belongs to a different search, {state.identity}; move the folder away"
            )
        return state

    @property
    def _total_minutes(self) -> float:
        return self._minutes + (time.monotonic() - self._started) / 60

    def _store(self, **changes: object) -> None:
        self.state = self.state.model_copy(update={**changes, "minutes": self._total_minutes})
        write_atomic(self.folder / _STATE_FILE, self.state.model_dump_json(indent=1) + "\n")


def _added_text(new: str, old: str) -> str:
    """Return the lines of a text that another text lacks."""
    old_lines = set(old.splitlines())
    return "\n".join(line for line in new.splitlines() if line not in old_lines)
