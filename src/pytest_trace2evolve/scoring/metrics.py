"""Metrics over simulations: mean reward, pass^k, action match, terminations.

From a score to the compact record that the gate reads.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.completion import usage_of
from pytest_trace2evolve.records.evidence import ActionCount, SimulationEvidence
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.rules import Finding, Invariant
from pytest_trace2evolve.records.score import UNKNOWN_TOOL, Score, Status, ToolType
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.invariants import counts

SUCCESS_TOLERANCE = 1e-6
"""tau2's: a reward within this of 1 is a success."""


class Alarms(Record):
    """How invariants fared: simulations held against them, those that broke any, and by invariant."""

    simulations: int
    broke: int
    by_invariant: dict[Invariant, int]


class Metrics(Record):
    """Figures over the measured simulations; None where nothing of the kind was measured.

    `pass_hat` maps k to pass^k, for k up to the smallest number of measured trials of any task. `invariants`
    is None where no simulation was held against any.
    """

    simulations: int
    tasks: int
    measured: int
    infrastructure_errors: int
    not_measured: int
    reward: float | None
    recorded_reward: float | None
    agreement: float | None
    pass_hat: dict[int, float]
    action_match: float | None
    read_action_match: float | None
    write_action_match: float | None
    terminations: dict[str, int]
    invariants: Alarms | None = None


def succeeded(reward: float) -> bool:
    """Whether a reward is a success."""
    return abs(reward - 1.0) <= SUCCESS_TOLERANCE


def pass_hat(successes: int, trials: int, k: int) -> float:
    """Chance that k trials drawn from those made all succeed: C(successes, k) / C(trials, k).

    Source: Yao et al., τ-bench, arXiv 2406.12045.

    Raises:
        ValueError: fewer than k trials.
    """
    if trials < k:
        raise ValueError(f"pass^{k} needs at least {k} trials, there are {trials}")
    return math.comb(successes, k) / math.comb(trials, k)


def metrics(simulations: Iterable[SimulationEvidence]) -> Metrics:
    """Metrics of one side: means over a task's trials first, then over tasks."""
    records = list(simulations)
    measured = [record for record in records if record.status is Status.MEASURED]
    by_task: dict[str, list[SimulationEvidence]] = {}
    for record in measured:
        by_task.setdefault(record.task_id, []).append(record)
    compared = [record for record in measured if record.recorded_reward is not None]
    trials = min((len(group) for group in by_task.values()), default=0)
    statuses = Counter(record.status for record in records)
    return Metrics(
        simulations=len(records),
        tasks=len({record.task_id for record in records}),
        measured=len(measured),
        infrastructure_errors=statuses[Status.INFRASTRUCTURE_ERROR],
        not_measured=statuses[Status.NOT_MEASURED],
        reward=_mean([fmean(record.reward or 0.0 for record in group) for group in by_task.values()]),
        recorded_reward=_recorded(records),
        agreement=_mean([float(record.reward == record.recorded_reward) for record in compared]),
        pass_hat={k: fmean(_pass_hat(group, k) for group in by_task.values()) for k in range(1, trials + 1)},
        action_match=_action_match(by_task.values()),
        read_action_match=_action_match(by_task.values(), ToolType.READ),
        write_action_match=_action_match(by_task.values(), ToolType.WRITE),
        terminations=dict(sorted(Counter(record.termination_reason for record in records).items())),
        invariants=_alarms(measured),
    )


def _alarms(records: Iterable[SimulationEvidence]) -> Alarms | None:
    watched = [record.invariants for record in records if record.invariants is not None]
    if not watched:
        return None
    broke = Counter(name for one in watched for name, count in one.items() if count)
    return Alarms(
        simulations=len(watched),
        broke=sum(any(one.values()) for one in watched),
        by_invariant={name: broke[name] for name in Invariant if broke[name]},
    )


def _recorded(records: Iterable[SimulationEvidence]) -> float | None:
    """Mean of the recorded rewards, averaged as our own are; what infrastructure took counts in neither."""
    by_task: dict[str, list[float]] = {}
    for record in records:
        if record.recorded_reward is not None and record.status is not Status.INFRASTRUCTURE_ERROR:
            by_task.setdefault(record.task_id, []).append(record.recorded_reward)
    return _mean([fmean(rewards) for rewards in by_task.values()])


def _pass_hat(group: Sequence[SimulationEvidence], k: int) -> float:
    return pass_hat(sum(succeeded(record.reward or 0.0) for record in group), len(group), k)


def _action_match(groups: Iterable[Sequence[SimulationEvidence]], *kinds: str) -> float | None:
    shares = [
        [share for record in group if (share := record.action_share(*kinds)) is not None] for group in groups
    ]
    return _mean([fmean(group) for group in shares if group])


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


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
