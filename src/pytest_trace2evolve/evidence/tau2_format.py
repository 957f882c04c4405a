"""Writing simulations and headers in the shape that tau2's own `view` and `evaluate-trajs` read."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from pytest_trace2evolve.records.evidence import Provenance, SimulationEvidence
from pytest_trace2evolve.records.rules import Finding
from pytest_trace2evolve.records.score import Score
from pytest_trace2evolve.records.task import RewardBasis, Task
from pytest_trace2evolve.records.trace import Simulation

OWN_BLOCK = "trace2evolve"
"""The key under which our own fields lie inside tau2's `info` blocks, which tolerate further keys."""


def reward_info(score: Score) -> dict[str, Any] | None:
    """A score in tau2's `RewardInfo` shape; None where there is no reward."""
    if score.reward is None:
        return None
    checked = score.db_match is not None
    return {
        "reward": score.reward,
        "db_check": {"db_match": score.db_match, "db_reward": float(bool(score.db_match))}
        if checked
        else None,
        "env_assertions": [
            {"env_assertion": check.wanted, "met": check.met, "reward": float(check.met)}
            for check in score.env_assertions
        ],
        "action_checks": [
            {
                "action": {"action_id": "", **check.action},
                "action_match": check.matched,
                "action_reward": float(check.matched),
                "tool_type": check.tool_type if check.tool_type != "unknown" else None,
            }
            for check in score.actions
        ],
        "communicate_checks": [
            {"info": check.wanted, "met": check.met, "justification": check.note}
            for check in score.communicate
        ],
        "nl_assertions": [
            {"nl_assertion": check.wanted, "met": check.met, "justification": check.note}
            for check in score.nl_assertions
        ]
        or None,
        "reward_basis": [component.value for component in score.basis] or None,
        "reward_breakdown": _breakdown(score),
        "info": {"note": score.note} if score.note else None,
    }


def _breakdown(score: Score) -> dict[str, float] | None:
    inside: Iterable[RewardBasis] = (component for component in score.basis if component in score.components)
    return {component.value: score.components[component] for component in inside} or None


def simulation_record(simulation: Simulation, score: Score, found: Sequence[Finding] = ()) -> dict[str, Any]:
    """A simulation as it was, with our score in place of the recorded one, which is kept beside it.

    What breaks an invariant lies in our own block.
    """
    record = simulation.model_dump(mode="json", exclude_unset=True)
    own: dict[str, Any] = {"status": score.status.value}
    if simulation.recorded_reward is not None:
        own["recorded_reward"] = simulation.recorded_reward
    if score.note:
        own["note"] = score.note
    if score.judge is not None:
        own["judge"] = score.judge.model_dump(mode="json")
    if found:
        own["invariants"] = [one.model_dump(mode="json") for one in found]
    return {
        # What tau2 demands and older files lack; whatever the record says itself wins.
        "timestamp": "",
        "start_time": "",
        "end_time": "",
        "duration": 0.0,
        **record,
        "reward_info": reward_info(score),
        "info": {**(record.get("info") or {}), OWN_BLOCK: own},
    }


def written_findings(simulation: Simulation) -> tuple[Finding, ...] | None:
    """What a run wrote down as breaking an invariant; None where it wrote nothing that can be read."""
    info = getattr(simulation, "info", None)
    own = info.get(OWN_BLOCK) if isinstance(info, dict) else None
    written = own.get("invariants") if isinstance(own, dict) else None
    if not isinstance(written, list):
        return None
    try:
        return tuple(Finding.model_validate(one) for one in written)
    except ValidationError:
        return None


def header(
    provenance: Provenance,
    tasks: Iterable[Task],
    simulations: Iterable[SimulationEvidence],
    *,
    policy: str,
    git_commit: str,
    trials: int,
    max_errors: int,
) -> dict[str, Any]:
    """A results folder's `results.json`: tau2's header, the tasks, and an index of the simulations."""
    return {
        "timestamp": provenance.created_at,
        "info": {
            "git_commit": git_commit,
            "num_trials": trials,
            "max_steps": provenance.max_steps or 0,
            "max_errors": max_errors,
            "user_info": _participant(provenance.user.model_dump(mode="json")),
            "agent_info": _participant(provenance.agent.model_dump(mode="json")) | _mode(provenance),
            "environment_info": {"domain_name": provenance.domain, "policy": policy},
            OWN_BLOCK: provenance.model_dump(mode="json"),
        },
        "tasks": [task.model_dump(mode="json", exclude_unset=True) for task in tasks],
        "simulation_index": [
            {
                "id": record.id,
                "task_id": record.task_id,
                "trial": record.trial,
                "reward": record.reward,
                "termination_reason": record.termination_reason,
                "agent_cost": record.cost,
            }
            for record in simulations
        ],
    }


def _mode(provenance: Provenance) -> dict[str, Any]:
    """In solo mode tau2's own name of its solo agent: by that alone it scores a file as solo."""
    return {"implementation": "llm_agent_solo"} if provenance.mode.solo else {}


def _participant(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "implementation": settings["implementation"] or "unknown",
        "llm": settings["model"],
        "llm_args": settings["arguments"],
    }
