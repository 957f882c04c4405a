"""Runs on a Ray cluster: the executor, and the parts of a plan that it needs."""

from pytest_trace2evolve.engine.budget import Account
from pytest_trace2evolve.engine.factories import AnswerStores
from pytest_trace2evolve.engine.live import LiveSettings, RaySettings
from pytest_trace2evolve.engine.ray_actor import RemoteSuite, Side
from pytest_trace2evolve.engine.ray_cluster import Work
from pytest_trace2evolve.engine.ray_executor import PER_ACTOR, RayExecutor
from pytest_trace2evolve.project.project import LockedSuite
from pytest_trace2evolve.session.plan import Plan


def executor_of(settings: RaySettings) -> RayExecutor:
    """The executor that the options `--t2e-ray` and `--t2e-ray-…` describe."""
    per_actor, pip = settings.per_actor or PER_ACTOR, settings.pip or ()
    return RayExecutor(settings.address, per_actor=per_actor, pip=pip, env=settings.env)


def work_of(plan: Plan, account: Account, stores: AnswerStores) -> Work:
    """The suites, models and limits of a plan, for an executor."""
    suites = {
        name: RemoteSuite(
            LockedSuite(planned.suite, planned.path, planned.lock),
            planned.agent,
            plan.candidate,
            planned.identity,
        )
        for name, planned in plan.suites.items()
        if planned.recorded is None
    }
    sides: dict[Side, LiveSettings | None] = {(name, "candidate"): plan.live for name in suites}
    sides |= {(name, "baseline"): party.live for name, party in plan.baseline_sides.items()}
    return Work(plan.project, account, plan.concurrency, suites, sides, stores=stores)
