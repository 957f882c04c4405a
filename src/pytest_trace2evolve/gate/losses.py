"""Bounds second tosses: simulations that were lost before they were measured.

If failures are lost more often than successes, the candidate looks better than it is, and nothing in the
rewards shows it. A promotion must therefore also hold with these simulations at their worst, except for few
of them that no other trial makes suspicious.
"""

import math
from collections.abc import Sequence

from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.scoring.metrics import is_success

TRUSTED_SHARE = 1 / 6
"""The number of second tosses that may count as measured, as a share of the square root of a side's
simulations; at least one. That many move the mean by about a sixth of its standard error."""

Records = Sequence[SimulationEvidence]


def without_second_tosses(baseline: Records, candidate: Records) -> tuple[Records, Records]:
    """Return both sides with each suspicious second toss marked as lost, so that it counts at its worst.

    Suspicious is a simulation that was lost more than once, or that has a trial of its task, never lost, that
    had the worse outcome for a promotion: a failure of the candidate, or a success of the baseline. If more
    second tosses than `TRUSTED_SHARE` allows favour the candidate, all of them are suspicious.
    """
    suspects, trusted = set(), set()
    for records, is_worst in ((baseline, True), (candidate, False)):
        measured = [record for record in records if record.reward is not None]
        is_worse = {record.id: is_success(record.reward or 0.0) is is_worst for record in measured}
        worse_tasks = {record.task_id for record in measured if is_worse[record.id] and not record.lost}
        for record in measured:
            if record.lost > 1 or (record.lost and record.task_id in worse_tasks):
                suspects.add(record.id)
            elif record.lost and not is_worse[record.id]:
                trusted.add(record.id)
    if len(trusted) > max(1, int(TRUSTED_SHARE * math.sqrt(min(len(baseline), len(candidate))))):
        suspects |= trusted
    changes: dict[str, object] = {
        "status": Status.INFRASTRUCTURE_ERROR,
        "reward": None,
        "invariants": None,
        "checks": {},
    }
    old, new = (
        [record.model_copy(update=changes) if record.id in suspects else record for record in side]
        for side in (baseline, candidate)
    )
    return old, new
