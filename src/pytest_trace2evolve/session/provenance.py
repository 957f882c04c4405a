"""Determines the provenance of evidence, and digests that identify simulations and tests."""

from collections.abc import Iterable, Iterator

from pytest_trace2evolve.engine.live import CandidateSetup, LiveSettings
from pytest_trace2evolve.evidence.draws import simulation_key
from pytest_trace2evolve.models.settings import CALL_TIMEOUT
from pytest_trace2evolve.project.lock import LOCK_NAME
from pytest_trace2evolve.records.evidence import (
    DUMMY_USER,
    SCRIPTED_USER,
    SLOT_USER,
    Provenance,
    Settings,
    split_texts,
    with_texts,
)
from pytest_trace2evolve.records.score import SCORER_VERSION
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.session.evidence_sources import file_provenance
from pytest_trace2evolve.session.plan import Plan, PlannedSuite
from pytest_trace2evolve.session.traces import SEALED_ROLES, sealed_splits_of_task
from pytest_trace2evolve.utils.canonical import digest


def provenance_of(plan: Plan, planned_suite: PlannedSuite) -> Provenance:
    """Return the provenance of the evidence of one suite of a run."""
    common_fields = {
        "suite": planned_suite.suite.name,
        "domain": planned_suite.suite.domain,
        "provider": planned_suite.suite.provider,
        "lock": planned_suite.lock.digest,
        "lock_parts": planned_suite.lock.parts,
        "provider_version": planned_suite.lock.provider_version,
        "task_revision": planned_suite.lock.task_revision,
        "scorer_version": SCORER_VERSION,
        "candidate": plan.candidate.to_ref(),
        "judge": getattr(plan.judge, "model", None),
        "run_id": plan.run_id,
        "created_at": plan.started_at,
    }
    checks = plan.trace_checks.recorded_origins
    if planned_suite.recorded_runs is not None:
        recorded_provenance = file_provenance(planned_suite.recorded_runs.files[0])
        sources = tuple(file.path.name for file in planned_suite.recorded_runs.files)
        provenance = recorded_provenance.model_copy(update={**common_fields, "sources": sources})
        return provenance.model_copy(update={"checks": checks if provenance.is_conversational else None})
    provenance = Provenance(
        **common_fields,
        world=planned_suite.identity.world,
        agent=agent_settings(planned_suite, plan.live),
        user=user_settings(plan, planned_suite),
        max_steps=planned_suite.suite.max_steps,
        max_errors=planned_suite.suite.max_errors,
        timeout=planned_suite.suite.timeout,
        call_timeout=None if plan.live is None else plan.live.call_timeout,
    )
    return provenance.model_copy(update={"checks": checks if provenance.is_conversational else None})


def agent_settings(planned_suite: PlannedSuite, live: LiveSettings | None) -> Settings:
    """Return the agent's settings, as evidence records them, in a suite that is not replayed."""
    if live is None:
        return planned_suite.identity.agent
    return with_texts(live.agent_settings(), split_texts(planned_suite.identity.agent)[1])


def user_settings(plan: Plan, planned_suite: PlannedSuite) -> Settings:
    """Return the user's settings, as evidence records them, in a suite that is not replayed."""
    if planned_suite.suite.solo:
        return Settings(implementation=DUMMY_USER)
    if plan.live is None:
        return planned_suite.identity.user
    if planned_suite.suite.is_scripted and plan.live.uses_scripts:
        suite = planned_suite.suite
        names = [SCRIPTED_USER] * bool(suite.case_splits) + [SLOT_USER] * bool(suite.task_splits)
        return Settings(implementation=", ".join(names))
    return plan.live.user_settings().model_copy(update={"guidelines": planned_suite.guidelines})


def trial_key(
    plan: Plan, planned_suite: PlannedSuite, task: Task, trial: int, setup: CandidateSetup | None = None
) -> str:
    """Return the key of a task's trial in a live run; `setup` replaces the plan's candidate and models."""
    candidate, live = (plan.candidate, plan.live) if setup is None else (setup.candidate, setup.live)
    assert live is not None
    lock, suite, world = planned_suite.lock, planned_suite.suite, planned_suite.identity.world
    agent = agent_settings(planned_suite, live)
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
            "agent": agent.model_dump(mode="json"),
            **({"agent_run": plan.run_id} if agent.code is not None and agent.code.unknown else {}),
            "user": user_settings(plan, planned_suite).model_dump(mode="json"),
            "trial": trial,
            # A cassette's answers differ from those of a live model with the same settings.
            **({"cassette": live.cassette.header.digest} if live.cassette else {}),
            "budgets": [suite.max_steps, suite.max_errors, *timeout],
            **({"call_timeout": live.call_timeout} if live.call_timeout not in (None, CALL_TIMEOUT) else {}),
            # A simulation drawn outside this split has no ledger entry, and could be picked for its result.
            **(
                {"sealed": sealed_name}
                if (sealed_name := sealed_split_name(plan, planned_suite, task.id))
                else {}
            ),
        }
    )


def sealed_split_name(plan: Plan, planned_suite: PlannedSuite, task_id: str) -> str:
    """Return the `suite::split` of a task if the ledger records the split's draws; otherwise empty text."""
    split = next((name for name, tasks in planned_suite.lock.splits.items() if task_id in tasks), None)
    if split is None or plan.project.splits[split].role not in SEALED_ROLES:
        return ""
    return f"{planned_suite.name}::{split}"


def is_sealed_task(plan: Plan, planned_suite: PlannedSuite, task_id: str) -> bool:
    """Return whether a task belongs to a split, of any suite, whose traces should stay unread."""
    return bool(sealed_splits_of_task(plan.project, planned_suite.suite.domain, task_id))


def conditions_digest(plan: Plan, planned_suite: PlannedSuite) -> str:
    """Return the digest of a suite's conditions in a live run, without tasks, candidate and agent.

    Code that cannot be identified gives a digest that no other run has.
    """
    suite, world = planned_suite.suite, planned_suite.identity.world
    code = None if world is None else world.digest or plan.run_id
    user = user_settings(plan, planned_suite).model_dump(mode="json")
    return digest([user, code, suite.max_steps, suite.max_errors, suite.timeout])


def tested_agent_digest(plan: Plan, origin: Provenance) -> str:
    """Return the digest of the tested agent, without the candidate's text; equal digests mean the same test.

    For an agent that is not built in, the digest includes the code of its user and world.

    Code that cannot be identified gives a digest that no other run has.
    """
    agent = origin.agent.model_dump(mode="json")
    if origin.agent.code is None:
        return digest(agent)
    codes = [code for code in (origin.agent.code, origin.user.code, origin.world) if code is not None]
    unknown_run = plan.run_id if any(code.unknown for code in codes) else ""
    return digest([agent, [code.digest for code in codes], unknown_run])


def identity_notes(suites: Iterable[PlannedSuite], live: LiveSettings | None) -> Iterator[str]:
    """Yield notes on code that cannot be identified, and on locks that do not cover the code of the tools."""
    for suite in suites:
        identity = suite.identity
        agent_code = identity.agent.code
        if live is not None and live.function is not None and suite.recorded_runs is None:
            agent_code = live.function.code
        codes = {"agent": agent_code, "user": identity.user.code, "world": identity.world}
        for role, code in codes.items():
            if code is not None and code.unknown:
                yield (
                    f"{suite.name}: the code of its {role} cannot be identified ({code.unknown}): nothing is "
                    "resumed, confirmed or counted as the same test again"
                )
        if suite.lock.code is None:
            yield (
                f"{suite.name}: {LOCK_NAME} does not cover the implementation of its tools; "
                "run 'trace2evolve lock' and commit the result"
            )
