"""Significance tests: the sign-flip test, Fisher's and McNemar's exact tests, and Holm's adjustment.

The sign-flip test asks whether paired differences are as likely to be negative as positive. Under the null
hypothesis, each task's difference keeps its size and takes either sign with equal probability. The
probability of a sum as low as the observed one is then the probability that a random half of the differences
sums to 0 or more. It can only grow with every single difference, so an improvement of one task never
strengthens the evidence of harm.
Source: Fisher, The Design of Experiments (1935), section 21.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from math import comb

import numpy as np
import scipy
from numpy.typing import ArrayLike

from pytest_trace2evolve.gate.columns import Counts, Floats

RESAMPLES = 9_999
"""The number of random halves that are drawn if the exact distribution is out of reach."""

SEED = 20_261_120
TOLERANCE = 1e-9

_MAX_LATTICE = 1 << 18
"""Lattice points up to which the exact distribution is computed."""

_SCALES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 18, 20, 24, 28, 30, 32, 36, 40, 48, 60, 64, 72, 84,
           90, 100, 120, 168, 180, 240, 360, 420, 720, 840, 1260, 1680, 2520, 5040)  # fmt: skip
"""Common denominators for means of a few trials and for shares of a few actions."""


@dataclass(frozen=True)
class SignFlip:
    """One-sided p-values, one per comparison, of a sum as low and of a sum as high as the observed one."""

    low: Floats
    high: Floats


def sign_flip(differences: Floats, trials: int = 1) -> SignFlip:
    """Apply the sign-flip test to each row of differences.

    Args:
        differences: Candidate minus baseline, shape (R, N); NaN if a task has no difference.
        trials: A common multiple of the tasks' numbers of trials, so that every mean over trials is a
            multiple of its inverse.

    Returns:
        p-values of shape (R,). They are exact, by the characteristic function of the sum, if all differences
        of a row lie on a lattice that is coarse enough to sum over. Otherwise they come from 9,999 random
        halves with a fixed seed.
    """
    clean = np.nan_to_num(differences, nan=0.0)
    scales = _scales(clean, trials)
    low, high = np.empty(len(clean)), np.empty(len(clean))
    for scale in np.unique(scales):
        rows = scales == scale
        part = clean[rows]
        flips = _exact(np.rint(part * scale).astype(np.int64)) if scale else _by_resampling(part)
        low[rows], high[rows] = flips.low, flips.high
    return SignFlip(low, high)


def _scales(differences: Floats, trials: int) -> Counts:
    """By row, the smallest factor that makes all differences whole numbers; 0 if the lattice gets too long.

    A row's scale does not depend on the other rows.
    """
    rows = np.arange(len(differences))
    scales = np.zeros(len(differences), dtype=np.int64)
    sizes = np.abs(differences)
    totals = sizes.sum(axis=1)
    distinct, place = np.unique(sizes, return_inverse=True)
    place = place.reshape(sizes.shape)
    for scale in sorted({*_SCALES, *(trials * actions for actions in range(1, 13))}):
        rows = rows[2 * totals[rows] * scale + 1 <= _MAX_LATTICE]
        if not rows.size:
            break
        whole = np.abs(distinct * scale - np.rint(distinct * scale)) < 1e-7
        fits = whole[place[rows]].all(axis=1)
        scales[rows[fits]] = scale
        rows = rows[~fits]
    return scales


def _exact(steps: Counts) -> SignFlip:
    """The exact distribution of the sum of randomly signed whole numbers, row by row.

    The characteristic function of the sum is the product of cos(size · θ) over tasks. Rows share the few
    distinct sizes, so the logarithm is one matrix product. The sum has the same parity as the total of all
    sizes, so half of the sum, rounded up, determines it. This halves the number of points to compute.
    """
    sizes = np.unique(np.abs(steps))
    sizes = sizes[sizes > 0]
    rows = steps.shape[0]
    if not sizes.size:
        return SignFlip(np.ones(rows), np.ones(rows))
    totals = np.abs(steps).sum(axis=1)
    half = (int(totals.max()) + 1) // 2
    length = _fast_length(2 * half + 1)
    angles = np.pi * np.arange(length // 2 + 1) / length
    cosines = np.cos(np.outer(sizes, angles))
    logs = np.log(np.maximum(np.abs(cosines), 1e-300))
    negative = (cosines < 0).astype(np.float64)
    rounded_up = np.exp(-1j * angles)
    low, high = np.empty(rows), np.empty(rows)
    chunk = max(1, (1 << 20) // length)
    for start in range(0, rows, chunk):
        part = steps[start : start + chunk]
        odd = totals[start : start + chunk] % 2
        counts = np.stack([(np.abs(part) == size).sum(axis=1) for size in sizes], axis=1).astype(np.float64)
        signs = 1.0 - 2.0 * (np.rint(counts @ negative) % 2)
        waves = np.exp(counts @ logs) * signs
        chances = np.fft.irfft(np.where(odd[:, None] == 1, waves * rounded_up, waves), length, axis=1)
        chances = np.roll(chances, half, axis=1)[:, : 2 * half + 1]
        below = np.cumsum(chances, axis=1)
        place = np.arange(part.shape[0]), (part.sum(axis=1) + odd) // 2 + half
        low[start : start + chunk] = below[place]
        high[start : start + chunk] = 1.0 - below[place] + chances[place]
    return SignFlip(np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0))


@cache
def _fast_length(least: int) -> int:
    """The smallest number from `least` without a prime factor above 5, for a fast Fourier transform.

    `scipy.fft.next_fast_len` gives the same number, but takes longer to import than all of numpy.
    """
    length = least
    while 60**19 % length:  # each factor at most 19 times: enough up to half a million
        length += 1
    return length


def _by_resampling(differences: Floats) -> SignFlip:
    """Estimate p-values from random halves, the same for all rows; the observed half counts as one draw."""
    random = np.random.default_rng(SEED)
    rows, tasks = differences.shape
    low, high = np.ones(rows), np.ones(rows)
    for start in range(0, RESAMPLES, 512):
        count = min(512, RESAMPLES - start)
        sums = differences @ random.integers(0, 2, size=(tasks, count)).astype(np.float64)
        low += (sums >= -TOLERANCE).sum(axis=1)
        high += (sums <= TOLERANCE).sum(axis=1)
    return SignFlip(low / (RESAMPLES + 1), high / (RESAMPLES + 1))


def fisher(
    baseline_passed: ArrayLike,
    baseline_trials: ArrayLike,
    candidate_passed: ArrayLike,
    candidate_trials: ArrayLike,
) -> Floats:
    """Fisher's exact one-sided p-value of the hypothesis that the candidate passes at least as often.

    It is small if the candidate is worse than the baseline. Arrays broadcast.
    """
    counts = np.stack(
        np.broadcast_arrays(baseline_passed, baseline_trials, candidate_passed, candidate_trials)
    )
    distinct, place = np.unique(counts.reshape(4, -1), axis=1, return_inverse=True)
    p = np.array([_fisher(*numbers) for numbers in distinct.T.tolist()], dtype=np.float64)
    return p[place].reshape(counts.shape[1:])


@lru_cache(maxsize=1 << 16)
def _fisher(passed: int, trials: int, other_passed: int, other_trials: int) -> float:
    """The probability that the first side gets at least `passed` of all passes, in exact arithmetic."""
    total = passed + other_passed
    ways = comb(trials, passed) * comb(other_trials, other_passed)
    tail = 0
    for count in range(passed, min(trials, total) + 1):
        tail += ways
        ways = ways * (trials - count) * (total - count) // ((count + 1) * (other_trials - total + count + 1))
    return tail / comb(trials + other_trials, total)


def mcnemar(worse: Floats, better: Floats) -> Floats:
    """Exact one-sided p-value for more tasks turning worse than better, by the binomial distribution."""
    least = np.maximum(worse, 1)
    p = scipy.special.betainc(least, np.maximum(worse + better, least) - least + 1, 0.5)
    return np.where(worse > 0, p, 1.0)


def holm(p: Mapping[str, Floats], weights: Mapping[str, float]) -> dict[str, Floats]:
    """Holm's step-down adjustment over the checks of each comparison, weighted if levels differ.

    Source: Holm (1979), A simple sequentially rejective multiple test procedure, which includes the weighted
    form. NaN marks a check that does not apply and does not count.
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
