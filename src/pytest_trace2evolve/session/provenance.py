"""The provenance of evidence, and the identity of simulations and tests as digests."""

from pytest_trace2evolve.engine.live import Party
from pytest_trace2evolve.evidence.draws import simulation_key
from pytest_trace2evolve.project.suites import Role
from pytest_trace2evolve.records.evidence import DUMMY_USER, SCRIPTED_USER, Provenance, Settings
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.scoring.reward import SCORER_VERSION
from pytest_trace2evolve.session.evidence_sources import provenance
from pytest_trace2evolve.session.plan import Plan, PlannedSuite
from pytest_trace2evolve.utils.canonical import digest


def provenance_of(plan: Plan, planned: PlannedSuite) -> Provenance:
    """The provenance of the evidence of one suite of a run."""
    common = {
        "suite": planned.suite.name,
        "domain": planned.suite.domain,
        "provider": planned.suite.provider,
        "lock": planned.lock.digest,
        "lock_parts": planned.lock.parts,
        "provider_version": planned.lock.provider_version,
        "scorer_version": SCORER_VERSION,
        "candidate": plan.candidate.ref(),
        "judge": getattr(plan.judge, "model", None),
        "run_id": plan.run_id,
        "created_at": plan.started,
    }
    if planned.recorded is not None:
        recorded = provenance(planned.recorded.files[0])
        sources = tuple(file.path.name for file in planned.recorded.files)
        return recorded.model_copy(update={**common, "sources": sources})
    return Provenance(
        **common,
        world=planned.identity.world,
        agent=plan.live.agent_settings() if plan.live else planned.identity.agent,
        user=user_settings(plan, planned),
        max_steps=planned.suite.max_steps,
        max_errors=planned.suite.max_errors,
        timeout=planned.suite.timeout,
    )


def user_settings(plan: Plan, planned: PlannedSuite) -> Settings:
    """The user's settings, as evidence records them, in a suite that is not replayed."""
    if planned.suite.solo:
        return Settings(implementation=DUMMY_USER)
    if plan.live is None:
        return planned.identity.user
    if planned.suite.scripted and plan.live.scripts:
        return Settings(implementation=SCRIPTED_USER)
    return plan.live.user_settings().model_copy(update={"guidelines": planned.guidelines})


NAMED_ROLES = (Role.GATE, Role.GUARD)
"""Roles of the splits whose draws the ledger names, because candidates are judged on these splits."""


def key_of(plan: Plan, planned: PlannedSuite, task: Task, trial: int, party: Party | None = None) -> str:
    """The key of a task's trial in a live run; `party` replaces the plan's candidate and models."""
    candidate, live = (plan.candidate, plan.live) if party is None else (party.candidate, party.live)
    assert live is not None
    lock, suite, world = planned.lock, planned.suite, planned.identity.world
    # Unset values are left out, so that the keys of earlier runs do not change.
    timeout = [] if suite.timeout is None else [suite.timeout]
    return simulation_key(
        {
            "candidate": candidate.digest,
            "task": task.digest_in(solo=suite.solo),
            "task_id": task.id,
            "world": [lock.provider, lock.domain, lock.policy, lock.tools, lock.data],
            # Code that cannot be identified gives a key that no other run has.
            **({} if world is None else {"code": world.digest or plan.run_id}),
            "agent": live.agent_settings().model_dump(mode="json"),
            "user": user_settings(plan, planned).model_dump(mode="json"),
            "trial": trial,
            # A cassette's answers differ from those of a live model with the same settings.
            **({"cassette": live.cassette.header.digest} if live.cassette else {}),
            "budgets": [suite.max_steps, suite.max_errors, *timeout],
            # A simulation drawn outside this split has no ledger entry, and could be picked for its result.
            **({"sealed": place} if (place := sealed_place(plan, planned, task.id)) else {}),
        }
    )


def sealed_place(plan: Plan, planned: PlannedSuite, task_id: str) -> str:
    """The `suite::split` of a task whose draws the ledger names; empty for a task of any other split."""
    split = next((name for name, tasks in planned.lock.splits.items() if task_id in tasks), None)
    if split is None or plan.project.splits[split].role not in NAMED_ROLES:
        return ""
    return f"{planned.name}::{split}"


def conditions(plan: Plan, planned: PlannedSuite) -> str:
    """Digest of the conditions of a suite's live run, without the tasks, the candidate and its agent.

    Code that cannot be identified gives a digest that no other run has.
    """
    suite, world = planned.suite, planned.identity.world
    code = None if world is None else world.digest or plan.run_id
    user = user_settings(plan, planned).model_dump(mode="json")
    return digest([user, code, suite.max_steps, suite.max_errors, suite.timeout])


def tested(plan: Plan, origin: Provenance) -> str:
    """Digest of the tested agent, without the candidate's text; equal digests mean the same test.

    For an agent that is not built in, the digest includes the code of its user and world.

    Code that cannot be identified gives a digest that no other run has.
    """
    agent = origin.agent.model_dump(mode="json")
    if origin.agent.code is None:
        return digest(agent)
    codes = [code for code in (origin.agent.code, origin.user.code, origin.world) if code is not None]
    unknown = plan.run_id if any(code.unknown for code in codes) else ""
    return digest([agent, [code.digest for code in codes], unknown])
