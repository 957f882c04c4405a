"""Fresh trials of a task that fell, made inside its item; and what the item's letter is without them."""

from collections.abc import Callable
from dataclasses import replace

from pytest_trace2evolve.engine.pool import Job
from pytest_trace2evolve.engine.simulations import Simulations
from pytest_trace2evolve.errors import BudgetError, EndpointError
from pytest_trace2evolve.evidence.account import Account
from pytest_trace2evolve.records.evidence import Fresh, SimulationEvidence
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.scoring.metrics import Trials
from pytest_trace2evolve.session.confirmation import FIRST_TRIAL, SideName
from pytest_trace2evolve.session.plan import Plan, PlannedSuite
from pytest_trace2evolve.session.task_run import TaskRun

Measure = Callable[[Job], SimulationEvidence]
"""Waits for a simulation, scores it and stores its trace."""

SIDES: tuple[SideName, ...] = ("baseline", "candidate")


def flagged(planned: PlannedSuite, task_id: str, run: TaskRun) -> bool:
    """Whether a task passes on the baseline and not on the candidate."""
    before = (
        None if planned.baseline is None else planned.baseline.trials(task_id, planned.lock.tasks[task_id])
    )
    return bool(before and before.passes) and Trials(run.records).passes is False


def may_have_fallen(planned: PlannedSuite, task_id: str, run: TaskRun) -> bool:
    """Whether a task is flagged, or might be if its lost trials had been measured: a loss hides no fall."""
    if planned.baseline is None or not run.records:
        return False
    before = planned.baseline.trials(task_id, planned.lock.tasks[task_id])
    if before is None:
        return False
    lost = len(before.records) - len(before.measured)
    passes = 2 * (before.passed + lost) > len(before.records)
    return passes and 2 * Trials(run.records).passed <= len(run.records)


def suspected(plan: Plan, planned: PlannedSuite, split: str, run: TaskRun, task_id: str) -> bool:
    """Whether a failed task only may have fallen: its own p does not say so, among all tasks of its split.

    An item judges alone, so its level is that of the split divided by the tasks that could have fallen.
    """
    if plan.policy is None or not plan.policy.confirms or not flagged(planned, task_id, run):
        return False
    assert planned.baseline is not None
    tasks = planned.lock.splits[split]
    compared = sum(planned.baseline.trials(name, digest) is not None for name, digest in tasks.items())
    return _own_p(planned, run, task_id) > plan.alpha / compared


def _own_p(planned: PlannedSuite, run: TaskRun, task_id: str) -> float:
    from pytest_trace2evolve.gate.confirm import fisher, fresh_result

    if run.fresh is not None:
        return fresh_result(run.fresh).p
    assert planned.baseline is not None
    before = planned.baseline.trials(task_id, planned.lock.tasks[task_id])
    assert before is not None
    after = Trials(run.records)
    return float(fisher(_passed(before), len(before.measured), _passed(after), len(after.measured)))


def _passed(trials: Trials) -> int:
    return sum(bool(Trials((record,)).passes) for record in trials.measured)


class Confirmer:
    """Makes fresh trials where a task fell; one in each process.

    Args:
        plan: What is run.
        simulations: Makes simulations.
        account: Counts the run's fresh ones; None where none can be made.
    """

    def __init__(self, plan: Plan, simulations: Simulations, account: Account | None) -> None:
        self._plan = plan
        self._simulations = simulations
        self._account = account

    def confirmed(self, planned: PlannedSuite, task_id: str, run: TaskRun, measure: Measure) -> TaskRun:
        """The same run, with fresh trials where its task may have fallen, or why it has none."""
        confirm = self._plan.confirm
        if confirm is None or run.unfinished or not may_have_fallen(planned, task_id, run):
            return run
        refused = confirm.refused.get(planned.name, "")
        if refused or confirm.budget == 0 or self._account is None:
            return replace(run, unconfirmed=refused or "--t2e-confirm 0")
        try:
            return self._made(planned, task_id, run, measure, self._account)
        except (BudgetError, EndpointError) as error:
            # Either stops the run, as its other items will be told; the main trials of this one are whole.
            return replace(run, unconfirmed=str(error))

    def _made(
        self, planned: PlannedSuite, task_id: str, run: TaskRun, measure: Measure, account: Account
    ) -> TaskRun:
        from pytest_trace2evolve.gate.confirm import next_step, step_passes

        assert self._plan.confirm is not None
        most = self._plan.confirm.budget
        made: dict[SideName, list[SimulationEvidence]] = {side: [] for side in SIDES}
        done = 0
        while more := next_step(*step_passes(made["baseline"], made["candidate"]), done):
            if not account.reserve(f"{planned.name}\n{task_id}\n{done}", len(SIDES) * more, most):
                return replace(run, unconfirmed=f"the {most} fresh simulations of --t2e-confirm are spent")
            for side, records in self._step(planned.name, task_id, done, more, measure).items():
                made[side] += records
            done += more
        fresh = Fresh(baseline=tuple(made["baseline"]), candidate=tuple(made["candidate"]))
        return replace(run, fresh=fresh)

    def _step(
        self, suite: str, task_id: str, done: int, more: int, measure: Measure
    ) -> dict[SideName, list[SimulationEvidence]]:
        jobs = {
            side: [
                Job(suite, task_id, FIRST_TRIAL[side] + done + number, baseline=side == "baseline")
                for number in range(more)
            ]
            for side in SIDES
        }
        everything = [job for side in SIDES for job in jobs[side]]
        self._simulations.ask(everything)
        records = {job: measure(job) for job in everything}
        # Once more what infrastructure took, where a journal lets it go on; what is lost again stays lost. An
        # agent of one's own has no journal and would be drawn a second time.
        lost = [
            job
            for job, record in records.items()
            if record.status is not Status.MEASURED and self._simulations.journaled
        ]
        self._simulations.again(lost)
        records |= {job: measure(job) for job in lost}
        return {side: [records[job] for job in jobs[side]] for side in SIDES}
