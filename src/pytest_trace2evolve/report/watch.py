"""How far a live run is: from its account, and from what its items reported so far."""

from collections.abc import Mapping

from pytest_trace2evolve.evidence.account import Account
from pytest_trace2evolve.gate.trials import Trials
from pytest_trace2evolve.records.account import State
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.report.progress import Progress
from pytest_trace2evolve.workflow.planning.plan import PlannedSuite


class Watch:
    """Follows a run; `read` may be called from another thread.

    Args:
        account: The run's.
        suites: What is planned.

    Attributes:
        total: Simulations of the run; all that are planned, until it is known what was selected.
    """

    def __init__(self, account: Account, suites: Mapping[str, PlannedSuite]) -> None:
        self._account = account
        self._baseline = {
            (name, task_id): reward
            for name, planned in suites.items()
            if planned.baseline is not None
            for task_id, reward in _rewards(planned.baseline.evidence.simulations).items()
        }
        self.total = sum(len(planned.lock.tasks) * planned.trials for planned in suites.values())
        self._sums = (0, 0.0, 0, 0.0)

    def report(self, suite: str, task_id: str, records: tuple[SimulationEvidence, ...]) -> None:
        """Take in what came of a task."""
        reward = Trials(records).reward
        if reward is None:
            return
        before = self._baseline.get((suite, task_id))
        tasks, rewards, compared, befores = self._sums
        if before is not None:
            compared, befores = compared + 1, befores + before
        # One assignment, so that the reading thread sees all of it or nothing.
        self._sums = (tasks + 1, rewards + reward, compared, befores)

    def read(self) -> Progress:
        """Where the run stands."""
        totals = self._account.totals()
        made, kept = totals.states.get(State.MADE, 0), totals.states.get(State.KEPT, 0)
        tasks, rewards, compared, befores = self._sums
        return Progress(
            total=self.total + totals.fresh,
            done=made + kept,
            resumed=kept,
            lost=totals.states.get(State.LOST, 0),
            running=totals.states.get(State.RUNNING, 0),
            reward=rewards / tasks if tasks else None,
            # Of the same tasks, or it would be compared with something else.
            baseline_reward=befores / compared if compared and compared == tasks else None,
            tokens=totals.usage.tokens,
            cost=totals.usage.cost,
            seconds=totals.seconds,
        )


def _rewards(records: tuple[SimulationEvidence, ...]) -> dict[str, float]:
    groups: dict[str, list[SimulationEvidence]] = {}
    for record in records:
        groups.setdefault(record.task_id, []).append(record)
    means = {task_id: Trials(tuple(group)).reward for task_id, group in groups.items()}
    return {task_id: mean for task_id, mean in means.items() if mean is not None}
