"""From a score to the compact record that the gate reads."""

import math
from collections.abc import Mapping, Sequence

from pytest_trace2evolve.records.evidence import ActionCount, SimulationEvidence
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.rules import Finding
from pytest_trace2evolve.records.score import UNKNOWN_TOOL, Score, Status, ToolType
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.records.wire import usage_of
from pytest_trace2evolve.scoring.invariants import counts

_SIDES: tuple[Requestor, ...] = ("assistant", "user")


def as_evidence(
    simulation: Simulation,
    task: Task,
    score: Score,
    types: Mapping[str, ToolType],
    *,
    solo: bool = False,
    found: Sequence[Finding] | None = None,
) -> SimulationEvidence:
    """The compact record of one scored simulation; its trial defaults to 0.

    `solo` is the run's mode: a trace alone does not tell, where it broke off before the user spoke. `found`
    is what broke an invariant; None where that was not asked.
    """
    costs = [cost for cost in (simulation.agent_cost, simulation.user_cost) if cost is not None]
    return SimulationEvidence(
        id=simulation.id,
        task_id=simulation.task_id,
        trial=simulation.trial or 0,
        status=score.status,
        termination_reason=simulation.termination_reason,
        reward=score.reward,
        recorded_reward=simulation.recorded_reward,
        components=score.components,
        actions=_action_counts(task, score, types),
        task_digest=task.digest_in(solo=solo),
        seed=simulation.seed,
        cost=total if costs and math.isfinite(total := sum(costs)) else None,
        note=score.note,
        usage={role: used for role in _SIDES if (used := usage_of(simulation.trace, role)).calls},
        invariants=None if found is None else counts(found),
    )


def _action_counts(task: Task, score: Score, types: Mapping[str, ToolType]) -> dict[str, ActionCount]:
    """Totals from the task; matched only where the simulation's actions were checked and it was measured."""
    totals: dict[str, int] = {}
    for action in task.actions:
        kind = str(types.get(action.name, UNKNOWN_TOOL))
        totals[kind] = totals.get(kind, 0) + 1
    if score.status is not Status.MEASURED or not score.actions:
        return {kind: ActionCount(total=total) for kind, total in totals.items()}
    matched = dict.fromkeys(totals, 0)
    for check in score.actions:
        matched[check.tool_type] += check.matched
    return {kind: ActionCount(total=total, matched=matched[kind]) for kind, total in totals.items()}
