"""Where the evidence of a run comes from."""

from pytest_trace2evolve.records.evidence import Provenance
from pytest_trace2evolve.scoring.reward import SCORER_VERSION
from pytest_trace2evolve.workflow.planning.plan import Plan, PlannedSuite
from pytest_trace2evolve.workflow.recorded.sides import provenance
from pytest_trace2evolve.workflow.running.agents import user_settings


def provenance_of(plan: Plan, planned: PlannedSuite) -> Provenance:
    """Where the evidence of one suite of a run comes from."""
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
