"""The events of a session, and its result."""

from dataclasses import dataclass

from pytest_trace2evolve.gate.alpha_spending import Stage
from pytest_trace2evolve.gate.decide import worst_decision
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.verdict import Decision
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.session.trials import TaskRun
from pytest_trace2evolve.session.verdicts import SuiteOutcome

TaskName = tuple[str, str]
"""The name of a suite, and the id of one of its tasks."""


@dataclass(frozen=True)
class SimulationFinished:
    """Reports that a simulation was scored and its trace stored, or that the simulation was lost.

    Attributes:
        plan: The plan of the stage.
        record: The evidence of the simulation.
        is_fresh: Whether the simulation is fresh. Fresh simulations only confirm regressions, and enter no
            other estimate.
    """

    plan: Plan
    suite: str
    record: SimulationEvidence
    is_fresh: bool = False


@dataclass(frozen=True)
class TaskDecided:
    """Reports that all trials of a task are scored, including any reruns that confirm a regression.

    Attributes:
        plan: The plan of the last stage that ran.
        run: The trials; None if the run ended before the task was finished.
        reason: Why the run ended before the task was finished, in a few words.
        is_suspected: Whether the task regressed, perhaps by chance, and no verdict confirmed it.
    """

    plan: Plan
    suite: str
    task_id: str
    run: TaskRun | None
    reason: str = ""
    is_suspected: bool = False


@dataclass(frozen=True)
class StageFinished:
    """Reports that a stage of the run ended; `is_last` says whether no further stage follows."""

    stage: Stage
    is_last: bool
    outcomes: tuple[SuiteOutcome, ...]


@dataclass(frozen=True)
class Run:
    """The result of a run.

    Attributes:
        plan: The plan that was run; for a staged run, the plan of its last stage.
        outcomes: Figures and verdicts of each suite.
        notes: Notes for the user, a line each.
        is_measured: Whether a simulation was scored.
        error: Why evidence could not be stored, so that the run does not count; empty if all was stored.
        exhausted_budget: The budget that ended the run early; empty if none did.
        has_saved_baselines: Whether a baseline was requested, and saved for every suite that ran, with every
            trial measured and none ended by an agent error.
    """

    plan: Plan
    outcomes: tuple[SuiteOutcome, ...] = ()
    notes: tuple[str, ...] = ()
    is_measured: bool = False
    error: str = ""
    exhausted_budget: str = ""
    has_saved_baselines: bool = False

    @property
    def is_compared(self) -> bool:
        """Whether any suite was compared with a baseline."""
        return any(suite.verdicts for suite in self.outcomes)

    @property
    def decision(self) -> Decision | None:
        """The worst verdict of all suites; None if no suite decided."""
        return worst_decision(suite.decision for suite in self.outcomes)


@dataclass(frozen=True)
class VerdictReached:
    """Reports that the run is judged and stored."""

    run: Run


Event = SimulationFinished | TaskDecided | StageFinished | VerdictReached
"""An event of a session. The verdict comes last; all other events come from threads of the session."""


def ignore_event(event: Event) -> None:
    """Do nothing; this is the default callback for events."""
