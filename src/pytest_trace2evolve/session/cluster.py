"""Makes the executor of a run on a Ray cluster, and collects the data that the executor needs."""

from pytest_trace2evolve.engine.budget import Account
from pytest_trace2evolve.engine.factories import AnswerStores
from pytest_trace2evolve.engine.live import LiveSettings, RaySettings
from pytest_trace2evolve.engine.ray_actor import RemoteSuite, Side
from pytest_trace2evolve.engine.ray_cluster import RunContext
from pytest_trace2evolve.engine.ray_executor import RayExecutor
from pytest_trace2evolve.project.project import LockedSuite
from pytest_trace2evolve.session.plan import Plan


def executor_of(settings: RaySettings) -> RayExecutor:
    """Return the executor that the options `--t2e-ray` and `--t2e-ray-…` describe."""
    return RayExecutor(settings.address, pip=settings.pip or (), env=settings.env)


def work_of(plan: Plan, account: Account, stores: AnswerStores) -> RunContext:
    """Return the suites, models and limits of a plan, for an executor."""
    suites = {
        name: RemoteSuite(
            LockedSuite(planned_suite.suite, planned_suite.path, planned_suite.lock),
            planned_suite.agent,
            plan.candidate,
            planned_suite.identity,
        )
        for name, planned_suite in plan.suites.items()
        if planned_suite.recorded_runs is None
    }
    sides: dict[Side, LiveSettings | None] = {(name, "candidate"): plan.live for name in suites}
    sides |= {(name, "baseline"): setup.live for name, setup in plan.baseline_sides.items()}
    return RunContext(plan.project, account, plan.concurrency, suites, sides, stores=stores)
