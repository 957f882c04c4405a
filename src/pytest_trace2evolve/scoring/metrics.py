"""Metrics over simulations, and the compact records of scored simulations that the gate reads."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from pytest_trace2evolve.records.base import Later, Record
from pytest_trace2evolve.records.completion import answer_seconds, called_models, usage_of
from pytest_trace2evolve.records.evidence import ActionCount, SimulationEvidence
from pytest_trace2evolve.records.message import GREETING, Requestor
from pytest_trace2evolve.records.rules import Finding, Invariant
from pytest_trace2evolve.records.score import UNKNOWN_TOOL, Score, Status, ToolType
from pytest_trace2evolve.records.trace_check import CheckOutcome

if TYPE_CHECKING:
    from pytest_trace2evolve.records.task import Task
    from pytest_trace2evolve.records.trace import Simulation
    from pytest_trace2evolve.scoring.trace_checks import CheckResult

SUCCESS = 1.0 - 1e-6
"""The smallest reward that is a success (tau2's tolerance)."""


def is_success(reward: float) -> bool:
    """Whether a reward is a success."""
    return reward >= SUCCESS


@dataclass(frozen=True)
class Trials:
    """The trials of one task on one side, with the outcome that its test item reports."""

    records: tuple[SimulationEvidence, ...]

    @property
    def measured_records(self) -> list[SimulationEvidence]:
        """The trials that have a reward."""
        return [record for record in self.records if record.status is Status.MEASURED]

    @property
    def reward(self) -> float | None:
        """Mean reward over the measured trials."""
        return _mean_or_none([record.reward for record in self.measured_records if record.reward is not None])

    @property
    def pass_count(self) -> int:
        """The number of trials that succeeded."""
        return sum(is_success(record.reward or 0.0) for record in self.measured_records)

    @property
    def passes(self) -> bool | None:
        """Whether more than half of the measured trials succeed; None if nothing was measured."""
        measured = self.measured_records
        return 2 * self.pass_count > len(measured) if measured else None


def trials_by_task(records: Iterable[SimulationEvidence]) -> dict[str, Trials]:
    """Group the simulations of one side by task."""
    by_task: dict[str, list[SimulationEvidence]] = {}
    for record in records:
        by_task.setdefault(record.task_id, []).append(record)
    return {task: Trials(tuple(group)) for task, group in by_task.items()}


class InvariantCounts(Record):
    """How many simulations were checked for invariants, and how many broke any and each of them."""

    simulations: int
    broke: int
    by_invariant: dict[Invariant, int]


class CheckCounts(Record):
    """Numbers of simulations for one of the project's own checks.

    Attributes:
        measured: Simulations with a result, including those that the check does not apply to.
        applies, broken: Simulations that the check applies to, and that broke it.
        failed: Simulations without a result.
    """

    measured: int
    applies: int
    broken: int
    failed: int = 0


class Metrics(Record):
    """Figures over the simulations of one side; a figure is None if nothing was measured for it.

    `pass_hat` maps k to pass^k, for k up to the smallest number of measured trials of any task. `invariants`
    is None if no simulation was checked for invariants. `recorded_reward` and `agreement` cover the measured
    simulations with a recorded reward. `checks` is None if no measured simulation has outcomes of the
    project's own checks.
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
    invariants: InvariantCounts | None = None
    checks: Later[dict[str, CheckCounts]] = None


def compute_metrics(simulations: Iterable[SimulationEvidence]) -> Metrics:
    """Compute the metrics of one side. Values are averaged over the trials of each task, then over tasks."""
    records = list(simulations)
    measured_records = [record for record in records if record.status is Status.MEASURED]
    groups = [trials.records for trials in trials_by_task(measured_records).values()]
    records_with_reward = [record for record in measured_records if record.recorded_reward is not None]
    trials = min((len(group) for group in groups), default=0)
    statuses = Counter(record.status for record in records)
    return Metrics(
        simulations=len(records),
        tasks=len({record.task_id for record in records}),
        measured=len(measured_records),
        infrastructure_errors=statuses[Status.INFRASTRUCTURE_ERROR],
        not_measured=statuses[Status.NOT_MEASURED],
        reward=_mean_or_none([fmean(record.reward or 0.0 for record in group) for group in groups]),
        recorded_reward=_recorded_reward(records_with_reward),
        agreement=_mean_or_none(
            [float(record.reward == record.recorded_reward) for record in records_with_reward]
        ),
        pass_hat={
            k: fmean(pass_hat(Trials(tuple(group)).pass_count, len(group), k) for group in groups)
            for k in range(1, trials + 1)
        },
        action_match=_action_match(groups),
        read_action_match=_action_match(groups, ToolType.READ),
        write_action_match=_action_match(groups, ToolType.WRITE),
        terminations=dict(sorted(Counter(record.termination_reason for record in records).items())),
        invariants=_invariant_counts(measured_records),
        checks=_check_counts(measured_records),
    )


def _mean_or_none(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _recorded_reward(records: Iterable[SimulationEvidence]) -> float | None:
    """Mean of the recorded rewards, averaged like the computed ones."""
    by_task: dict[str, list[float]] = {}
    for record in records:
        if record.recorded_reward is not None:
            by_task.setdefault(record.task_id, []).append(record.recorded_reward)
    return _mean_or_none([fmean(rewards) for rewards in by_task.values()])


def pass_hat(successes: int, trials: int, k: int) -> float:
    """Probability that k trials, drawn without replacement, all succeed: C(successes, k) / C(trials, k).

    Source: Yao et al., τ-bench, arXiv 2406.12045.

    Raises:
        ValueError: fewer than k trials.
    """
    if trials < k:
        raise ValueError(f"pass^{k} needs at least {k} trials, got {trials}")
    return math.comb(successes, k) / math.comb(trials, k)


def _action_match(groups: Iterable[Sequence[SimulationEvidence]], *kinds: str) -> float | None:
    shares = [
        [share for record in group if (share := record.action_share(*kinds)) is not None] for group in groups
    ]
    return _mean_or_none([fmean(group) for group in shares if group])


def _invariant_counts(records: Iterable[SimulationEvidence]) -> InvariantCounts | None:
    checked_counts = [record.invariants for record in records if record.invariants is not None]
    if not checked_counts:
        return None
    broken_counts = Counter(name for counts in checked_counts for name, count in counts.items() if count)
    return InvariantCounts(
        simulations=len(checked_counts),
        broke=sum(any(counts.values()) for counts in checked_counts),
        by_invariant={name: broken_counts[name] for name in Invariant if broken_counts[name]},
    )


def _check_counts(records: Iterable[SimulationEvidence]) -> dict[str, CheckCounts] | None:
    outcomes_by_id: dict[str, Counter[CheckOutcome]] = {}
    for record in records:
        for name, outcome in record.checks.items():
            outcomes_by_id.setdefault(name, Counter())[outcome] += 1
    return {
        name: CheckCounts(
            measured=sum(outcomes.values()) - outcomes[CheckOutcome.ERROR],
            applies=outcomes[CheckOutcome.KEPT] + outcomes[CheckOutcome.BROKEN],
            broken=outcomes[CheckOutcome.BROKEN],
            failed=outcomes[CheckOutcome.ERROR],
        )
        for name, outcomes in sorted(outcomes_by_id.items())
    } or None


def count_breaches(findings: Iterable[Finding], score: Score) -> dict[Invariant, int]:
    """The number of breaches of each invariant; unbroken ones are absent unless looked for."""
    counts = Counter(finding.invariant for finding in findings)
    checked = {Invariant.COLLATERAL_CHANGE: score.collateral, Invariant.MINEFIELD: score.minefields}
    counts.update({invariant: 0 for invariant, result in checked.items() if result is not None})
    return {invariant: counts[invariant] for invariant in Invariant if invariant in counts}


_ROLES: tuple[Requestor, ...] = ("assistant", "user")


def to_evidence(
    simulation: "Simulation",
    task: "Task",
    score: Score,
    types: Mapping[str, ToolType],
    *,
    solo: bool = False,
    findings: Sequence[Finding] | None = None,
    check_results: "Mapping[str, CheckResult] | None" = None,
) -> SimulationEvidence:
    """The compact record of one scored simulation. A simulation without a trial number gets trial 0.

    `solo` is whether the run is in solo mode. A trace that ended before the user spoke does not show this.
    `findings` holds the breaches of invariants; None if the simulation was not checked. `check_results` holds
    the results of the project's own checks.
    """
    costs = [cost for cost in (simulation.agent_cost, simulation.user_cost) if cost is not None]
    record = SimulationEvidence(
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
        usage={role: usage for role in _ROLES if (usage := usage_of(simulation.trace, role)).calls},
        invariants=None if findings is None else count_breaches(findings, score),
        models=called_models(simulation.trace),
        lost=simulation.losses,
        critical=task.is_critical,
        checks={name: result.outcome for name, result in (check_results or {}).items()},
        turns=sum(message.role == "assistant" and message.content != GREETING for message in simulation.trace)
        or None,
        seconds=answer_seconds(simulation.trace),
    )
    # Pydantic keeps a set of field names for each record, a third of its size: equal ones are shared.
    for part in (record, *record.actions.values(), *record.usage.values()):
        fields = part.__pydantic_fields_set__
        object.__setattr__(part, "__pydantic_fields_set__", _FIELD_SETS.setdefault(frozenset(fields), fields))
    return record


_FIELD_SETS: dict[frozenset[str], set[str]] = {}


def _action_counts(task: "Task", score: Score, types: Mapping[str, ToolType]) -> dict[str, ActionCount]:
    """The gold actions by tool type.

    `matched` is set only if the simulation was measured and its actions were checked.
    """
    totals = Counter(str(types.get(action.name, UNKNOWN_TOOL)) for action in task.actions)
    if score.status is not Status.MEASURED or not score.actions:
        return {kind: ActionCount(total=total) for kind, total in totals.items()}
    matched = dict.fromkeys(totals, 0)
    for check in score.actions:
        matched[check.tool_type] += check.matched
    return {kind: ActionCount(total=total, matched=matched[kind]) for kind, total in totals.items()}
