"""Bounds the second toss of simulations that were lost before they were measured.

A simulation that is lost and made again is tossed twice. If failures are lost more often than successes, the
candidate looks better than it is, and nothing in the rewards shows it. A promotion must therefore also hold
with these simulations at their worst, except for few of them that no other trial makes suspicious.
"""

import math
from collections.abc import Sequence

from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.scoring.metrics import is_success

TRUSTED_SHARE = 1 / 6
"""The number of second tosses that may count as measured, as a share of the square root of a side's
simulations; at least one. That many move the mean by less than a sixth of its standard error."""

Records = Sequence[SimulationEvidence]


def without_second_tosses(baseline: Records, candidate: Records) -> tuple[Records, Records]:
    """Return both sides with each suspicious second toss marked as lost, so that it counts at its worst.

    Suspicious is a simulation that was lost more than once, or that has a trial of its task, never lost, that
    had the worse outcome for a promotion: a failure of the candidate, or a success of the baseline. If more
    second tosses than `TRUSTED_SHARE` allows favour the candidate, all of them are suspicious.
    """
    sides = (baseline, True), (candidate, False)
    suspects = {record.id for side in sides for record in _suspects(*side)}
    trusted = [
        record.id
        for records, is_worst in sides
        for record in records
        if record.lost and record.id not in suspects and _is_success(record) is (not is_worst)
    ]
    size = min(len(baseline), len(candidate))
    if len(trusted) > max(1, int(TRUSTED_SHARE * math.sqrt(size))):
        suspects.update(trusted)
    old, new = ([_lose(one) if one.id in suspects else one for one in side] for side, _ in sides)
    return old, new


def _suspects(records: Records, is_worst: bool) -> list[SimulationEvidence]:
    """The second tosses that are suspicious by themselves; `is_worst` is the worse outcome of the side."""
    worse_tasks = {
        record.task_id for record in records if not record.lost and _is_success(record) is is_worst
    }
    return [record for record in records if record.lost > (0 if record.task_id in worse_tasks else 1)]


def _is_success(record: SimulationEvidence) -> bool | None:
    return None if record.reward is None else is_success(record.reward)


def _lose(record: SimulationEvidence) -> SimulationEvidence:
    changes: dict[str, object] = {
        "status": Status.INFRASTRUCTURE_ERROR,
        "reward": None,
        "invariants": None,
        "checks": {},
    }
    return record.model_copy(update=changes)
