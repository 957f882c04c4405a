"""Tests that share an error: Holm's adjustment, tasks judged one by one, and counts of tasks that changed."""

from collections.abc import Mapping

import numpy as np
import scipy

from pytest_trace2evolve.gate.columns import Counts, Flags, Floats
from pytest_trace2evolve.gate.confirm import fisher
from pytest_trace2evolve.gate.tally import Comparisons


def holm(p: Mapping[str, Floats], weights: Mapping[str, float]) -> dict[str, Floats]:
    """Holm's step-down adjustment over the checks of each comparison, weighted if levels differ.

    Source: Holm (1979), A simple sequentially rejective multiple test procedure; the weighted form there too.
    NaN stands for a check that does not apply and does not count.
    """
    names = list(p)
    if not names:
        return {}
    weight = np.array([weights.get(name, 1.0) for name in names])[:, None]
    raw = np.stack([p[name] for name in names])
    scaled = np.where(np.isnan(raw), np.inf, raw / weight)
    order = np.argsort(scaled, axis=0, kind="stable")
    ranked = np.take_along_axis(scaled, order, axis=0)
    weights_ranked = np.take_along_axis(np.where(np.isnan(raw), 0.0, weight), order, axis=0)
    left = np.cumsum(weights_ranked[::-1], axis=0)[::-1]
    stepped = np.maximum.accumulate(np.where(np.isinf(ranked), 0.0, ranked) * left, axis=0)
    adjusted = np.empty_like(stepped)
    np.put_along_axis(adjusted, order, np.minimum(stepped, 1.0), axis=0)
    return {name: np.where(np.isnan(raw[i]), np.nan, adjusted[i]) for i, name in enumerate(names)}


def mcnemar(worse: Floats, better: Floats) -> Floats:
    """Exact one-sided p that more tasks turned worse than better, by the binomial distribution."""
    least = np.maximum(worse, 1)
    p = scipy.special.betainc(least, np.maximum(worse + better, least) - least + 1, 0.5)
    return np.where(worse > 0, p, 1.0)


def confirmed_regressions(compared: Comparisons, alpha: float) -> Flags:
    """The broken tasks that are confirmed at a level by Holm over their family, shape (R, N)."""
    p, size = task_p(compared)
    order = np.argsort(p, axis=1, kind="stable")
    ranked = np.take_along_axis(p, order, axis=1)
    left = np.maximum(size[:, None] - np.arange(p.shape[1]), 1)
    stepped = np.maximum.accumulate(ranked * left, axis=1)
    confirmed = np.empty(p.shape, dtype=np.bool_)
    np.put_along_axis(confirmed, order, stepped <= alpha, axis=1)
    return confirmed


def task_p(compared: Comparisons) -> tuple[Floats, Counts]:
    """p of each task (1 if nothing speaks against it), and how many tasks share the error.

    With fresh trials the family is the tasks that have some: chosen by the main trials, judged by the fresh
    ones alone. Without, the main trials that flag a task also judge it, so all tasks are the family.
    """
    if compared.fresh is not None:
        unknown = np.isnan(compared.fresh)
        return np.where(unknown, 1.0, compared.fresh), (~unknown).sum(axis=1)
    broken, old, new = compared.broken, compared.baseline, compared.candidate
    p = np.ones(broken.shape)
    p[broken] = fisher(*(counts[broken] for counts in (old.passed, old.measured, new.passed, new.measured)))
    return p, np.full(broken.shape[0], broken.shape[1])
