"""Simulated checks of one's own, added to simulated comparisons of agents."""

from dataclasses import replace

import numpy as np

from pytest_trace2evolve.gate.columns import APPLIES_PREFIX, CHECK_PREFIX, Floats
from pytest_trace2evolve.gate.pairs import Comparisons
from pytest_trace2evolve.gate.tallies import Tally


def with_checks(
    random: np.random.Generator,
    comparisons: Comparisons,
    breach_rates: list[float],
    rise: float = 0.0,
    failed_rate: float = 0.0,
) -> Comparisons:
    """Add checks c0, c1, …: breaches are rare on most tasks and frequent on few.

    Args:
        breach_rates: The mean chance that a simulation breaks each check.
        rise: The share of tasks on which the candidate breaks the first check in every simulation.
        failed_rate: The chance that a check has no result for a simulation.
    """
    shape = comparisons.baseline.measured.shape
    chances: dict[str, tuple[Floats, Floats]] = {}
    for number, rate in enumerate(breach_rates):
        old = random.beta(0.3, 0.3 * (1 - rate) / rate, shape)
        new = np.where(random.random(shape) < rise, 1.0, old) if number == 0 else old
        chances[f"c{number}"] = old, new

    def add(side: Tally, index: int) -> Tally:
        matched, checked = dict(side.matched), dict(side.checked)
        for name, both in chances.items():
            known = random.binomial(side.measured, 1 - failed_rate) if failed_rate else side.measured
            checked[CHECK_PREFIX + name] = checked[APPLIES_PREFIX + name] = known
            matched[CHECK_PREFIX + name] = (known - random.binomial(known, both[index])).astype(np.float64)
            matched[APPLIES_PREFIX + name] = known.astype(np.float64)
        return replace(side, matched=matched, checked=checked)

    return replace(
        comparisons, baseline=add(comparisons.baseline, 0), candidate=add(comparisons.candidate, 1)
    )
