"""A side's figures from its columns, as `scoring.metrics` has them of records."""

import numpy as np

from pytest_trace2evolve.gate.columns import Columns, Floats
from pytest_trace2evolve.gate.tally import Tally, pass_hat, tally
from pytest_trace2evolve.scoring.metrics import Metrics


def figures_of(side: Columns) -> Metrics:
    """Means over a task's trials first, then over tasks.

    pass^k is given for k = 1, 2, 4, 8 and 16; of terminations only those at max steps are known.
    """
    sums = tally(side, np.arange(len(side.tasks)), len(side.tasks))
    hits = int(side.max_steps.sum())
    return Metrics(
        simulations=side.size,
        tasks=len(side.tasks),
        measured=int(side.measured.sum()),
        infrastructure_errors=side.size - int(side.measured.sum()),
        not_measured=0,
        reward=_mean(sums.mean_reward),
        recorded_reward=None,
        agreement=None,
        pass_hat=_pass_hat(sums),
        action_match=_mean(sums.share("action_match")),
        read_action_match=_mean(sums.share("read_action_match")),
        write_action_match=_mean(sums.share("write_action_match")),
        terminations={"max_steps": hits} if hits else {},
    )


def _pass_hat(sums: Tally) -> dict[int, float]:
    some = sums.measured > 0
    return {k: float(shares.mean()) for k, shares in pass_hat(sums.only(some)).items()}


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None
