"""The sessions of a search: they measure candidates within its budgets, and their results are its state."""

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

from pytest_trace2evolve.errors import BudgetError, CandidateError, ConfigError, ProposalError, ResultsError
from pytest_trace2evolve.improve.branch import SearchBranch
from pytest_trace2evolve.improve.proposers import Proposer
from pytest_trace2evolve.improve.search import DEFAULT_RULES, Rules
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.budget import Budgets
from pytest_trace2evolve.records.completion import NO_USAGE
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.improvement import SearchState, SessionUse
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.trace import TerminationReason
from pytest_trace2evolve.session.events import Event, Run, SimulationFinished
from pytest_trace2evolve.session.plan import Options, Plan
from pytest_trace2evolve.session.planner import Resources, make_plan
from pytest_trace2evolve.session.servers import LocalServers
from pytest_trace2evolve.session.session import run as run_session
from pytest_trace2evolve.utils.files import lock_file, write_atomic
from pytest_trace2evolve.utils.reading import read_record

STATE_FILE = "state.json"

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

    def folder(self, project: Project) -> Path:
        """The folder of the search's state and runs."""
        return project.root / ".trace2evolve" / "improving" / self.name

    def branch(self, project: Project) -> SearchBranch:
        """The branch to which the proposals are committed."""
        return SearchBranch(project.root, f"improve/{self.name}")

    @property
    def null_arm(self) -> str:
        """The id of the root under another name."""
        return f"{self.root}-null"


class SearchSessions:
    """Runs the sessions of a search. `state` holds their results; `folder` holds the state and the runs."""

    def __init__(self, plan: SearchPlan, resources: Resources, on_progress: OnProgress) -> None:
        self.plan, self.resources, self.project = plan, resources, resources.project
        self.folder = plan.folder(self.project)
        self._report = on_progress
        self.servers = LocalServers()
        self.state = self._read_state()
        self._started, self._minutes = time.monotonic(), self.state.minutes

    def close(self) -> None:
        """Stop the local servers, and store the state with the minutes spent so far."""
        self.servers.close()
        self._store()

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
        if {record.termination_reason for record in measured} == {TerminationReason.AGENT_ERROR}:
            raise ProposalError(f"all {len(measured)} simulations ended in an agent error")
        if not measured:
            raise ResultsError(
                f"{candidate}: none of {len(wanted)} discovery tasks was measured; "
                "rerun the same command to resume"
            )
        means = {task: fmean(record.reward or 0.0 for record in done) for task, done in by_task.items()}
        rewards = {**self.state.rewards.get(candidate, {}), **means}
        return {"rewards": {**self.state.rewards, candidate: rewards}}

    # ---- state

    def _read_state(self) -> SearchState:
        path = self.folder / STATE_FILE
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
        write_atomic(self.folder / STATE_FILE, self.state.model_dump_json(indent=1) + "\n")


def unused_path(path: Path) -> Path:
    """Return the first of `path`, `path-2`, `path-3`, … that does not exist."""
    numbered_paths = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(
        possible_path
        for possible_path in itertools.chain([path], numbered_paths)
        if not possible_path.exists()
    )


@contextmanager
def search_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a search.

    Raises:
        ConfigError: another process holds the lock.
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            lock_file(handle, wait=False)
        except BlockingIOError:
            raise ConfigError(f"{folder}: in use by another process; wait for it to end") from None
        yield
    finally:
        os.close(handle)
