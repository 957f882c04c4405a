"""Significance tests: the sign-flip test, Fisher's and McNemar's exact tests, and Holm's adjustment.

The sign-flip test asks whether paired differences are as likely to be negative as positive. Under the null
hypothesis, each task's difference keeps its size and takes either sign with equal probability. The
probability of a sum as low as the observed one is then the probability that a random half of the differences
sums to 0 or more. This probability can only grow with each difference, so an improvement of one task never
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
"""The number of random halves that are drawn if the exact distribution cannot be computed."""

SEED = 20_261_120
TOLERANCE = 1e-9

_MAX_LATTICE = 1 << 18
"""Maximum number of lattice points for which the exact distribution is computed."""

_SCALES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 18, 20, 24, 28, 30, 32, 36, 40, 48, 60, 64, 72, 84,
           90, 100, 120, 168, 180, 240, 360, 420, 720, 840, 1260, 1680, 2520, 5040)  # fmt: skip
"""Common denominators for means of a few trials and for shares of a few actions."""


@dataclass(frozen=True)
class SignFlip:
    """One-sided p-values by comparison: of a sum as low as the observed one, and of a sum as high."""

    low: Floats
    high: Floats


def sign_flip(differences: Floats, trials: int = 1) -> SignFlip:
    """Apply the sign-flip test to each row of differences.

    Args:
        differences: Candidate minus baseline, shape (R, N); NaN if a task has no difference.
        trials: A common multiple of the tasks' numbers of trials, so that every mean over trials is a
            multiple of 1 / `trials`.

    Returns:
        p-values of shape (R,). They are exact, by the characteristic function of the sum, if all differences
        of a row lie on a lattice that is coarse enough to sum over. Otherwise they come from 9,999 random
        halves with a fixed seed.
    """
    values = np.nan_to_num(differences, nan=0.0)
    scales = _lattice_scales(values, trials)
    low, high = np.empty(len(values)), np.empty(len(values))
    for scale in np.unique(scales):
        rows = scales == scale
        chunk = values[rows]
        flips = (
            _exact_sign_flip(np.rint(chunk * scale).astype(np.int64))
            if scale
            else _resampled_sign_flip(chunk)
        )
        low[rows], high[rows] = flips.low, flips.high
    return SignFlip(low, high)


def _lattice_scales(differences: Floats, trials: int) -> Counts:
    """Return, by row, the smallest factor that makes all differences whole; 0 if the lattice gets too long.

    A row's scale does not depend on the other rows.
    """
    rows = np.arange(len(differences))
    scales = np.zeros(len(differences), dtype=np.int64)
    sizes = np.abs(differences)
    totals = sizes.sum(axis=1)
    distinct, size_index = np.unique(sizes, return_inverse=True)
    size_index = size_index.reshape(sizes.shape)
    for scale in sorted({*_SCALES, *(trials * actions for actions in range(1, 13))}):
        rows = rows[2 * totals[rows] * scale + 1 <= _MAX_LATTICE]
        if not rows.size:
            break
        is_whole = np.abs(distinct * scale - np.rint(distinct * scale)) < 1e-7
        has_scale = is_whole[size_index[rows]].all(axis=1)
        scales[rows[has_scale]] = scale
        rows = rows[~has_scale]
    return scales


def _exact_sign_flip(steps: Counts) -> SignFlip:
    """Compute p-values from the exact distribution of the sum of randomly signed whole numbers, by row.

    The characteristic function of the sum is the product of cos(size · θ) over tasks. Rows share the few
    distinct sizes, so the logarithm is one matrix product. The sum has the same parity as the total of all
    sizes, so half of the sum, rounded up, determines it. This halves the number of points to compute.
    """
    levels = np.unique([0, *np.unique(np.abs(steps))])
    sizes = levels[1:]
    rows = steps.shape[0]
    if not sizes.size:
        return SignFlip(np.ones(rows), np.ones(rows))
    totals = np.abs(steps).sum(axis=1)
    half_total = (int(totals.max()) + 1) // 2
    length = _fast_length(2 * half_total + 1)
    angles = np.pi * np.arange(length // 2 + 1) / length
    cosines = np.cos(np.outer(sizes, angles))
    logs = np.log(np.maximum(np.abs(cosines), 1e-300))
    is_negative = (cosines < 0).astype(np.float64)
    half_phases = np.exp(-1j * angles)
    low, high = np.empty(rows), np.empty(rows)
    chunk_rows = max(1, (1 << 20) // length)
    for start in range(0, rows, chunk_rows):
        chunk_steps = steps[start : start + chunk_rows]
        is_odd = totals[start : start + chunk_rows] % 2
        counts = _count_by_row(np.searchsorted(levels, np.abs(chunk_steps)), len(levels))[:, 1:]
        signs = 1.0 - 2.0 * (np.rint(counts @ is_negative) % 2)
        waves = np.exp(counts @ logs) * signs
        chances = np.fft.irfft(np.where(is_odd[:, None] == 1, waves * half_phases, waves), length, axis=1)
        chances = np.roll(chances, half_total, axis=1)[:, : 2 * half_total + 1]
        cumulative = np.cumsum(chances, axis=1)
        index = np.arange(chunk_steps.shape[0]), (chunk_steps.sum(axis=1) + is_odd) // 2 + half_total
        low[start : start + chunk_rows] = cumulative[index]
        high[start : start + chunk_rows] = 1.0 - cumulative[index] + chances[index]
    return SignFlip(np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0))


def _count_by_row(indices: Counts, size: int) -> Floats:
    """How often each row holds each index below `size`, shape (R, `size`)."""
    offsets = size * np.arange(len(indices))[:, None]
    counts = np.bincount((indices + offsets).ravel(), minlength=size * len(indices))
    return counts.reshape(len(indices), size).astype(np.float64)


@cache
def _fast_length(min_length: int) -> int:
    """Return the smallest number of at least `min_length` without a prime factor above 5.

    Fast Fourier transforms of such a length are fast.

    `scipy.fft.next_fast_len` gives the same number, but takes longer to import than all of numpy.
    """
    length = min_length
    while 60**19 % length:  # each factor at most 19 times: enough up to half a million
        length += 1
    return length


def _resampled_sign_flip(differences: Floats) -> SignFlip:
    """Estimate p-values from random halves, the same for all rows; the observed half counts as one sample."""
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
    """Return Fisher's exact one-sided p-value of the hypothesis that the candidate passes at least as often.

    The p-value is small if the candidate is worse than the baseline. Arrays broadcast.
    """
    counts = np.stack(
        np.broadcast_arrays(baseline_passed, baseline_trials, candidate_passed, candidate_trials)
    )
    distinct, indices = np.unique(counts.reshape(4, -1), axis=1, return_inverse=True)
    p = np.array([_fisher(*numbers) for numbers in distinct.T.tolist()], dtype=np.float64)
    return p[indices].reshape(counts.shape[1:])


def stratified_fisher(
    baseline_failed: Counts, baseline_trials: Counts, candidate_failed: Counts, candidate_trials: Counts
) -> Floats:
    """Return the exact one-sided p-value of the hypothesis that the candidate fails no task more often.

    Given the number of failures of each task on both sides together, the candidate's share of them is
    hypergeometric. The p-value is the probability that the candidate gets as many failures as it did, or
    more, over all tasks. This can only grow if a candidate's failure turns into a success.
    Source: Mantel and Haenszel (1959); the exact form is that of Birch (1964), The detection of partial
    association.

    Args:
        baseline_failed, baseline_trials, candidate_failed, candidate_trials: Counts of shape (R, N).
    """
    failed = baseline_failed + candidate_failed
    base = (
        int(max(baseline_trials.max(initial=0), candidate_trials.max(initial=0), failed.max(initial=0))) + 1
    )
    strata, indices = np.unique(
        (baseline_trials * base + candidate_trials) * base + failed, return_inverse=True
    )
    indices = indices.reshape(failed.shape)
    tables = [_hypergeometric(code // base**2, code // base % base, code % base) for code in strata.tolist()]
    # The characteristic function of the sum is the product over tasks, which share few distinct strata.
    length = _fast_length(int(failed.sum(axis=1).max(initial=0)) + 1)
    angles = 2 * np.pi * np.arange(length // 2 + 1) / length
    functions = np.array(
        [np.exp(-1j * np.outer(angles, np.arange(len(table)))) @ np.array(table) for table in tables]
    )
    logs, phases = np.log(np.maximum(np.abs(functions), 1e-300)), np.angle(functions)
    p = np.empty(len(failed))
    chunk_rows = max(1, (1 << 20) // length)
    for start in range(0, len(failed), chunk_rows):
        chunk = indices[start : start + chunk_rows]
        counts = _count_by_row(chunk, len(tables))
        waves = np.exp(counts @ logs + 1j * (counts @ phases))
        chances = np.fft.irfft(waves, length, axis=1)
        tails = np.cumsum(chances[:, ::-1], axis=1)[:, ::-1]
        sums = candidate_failed[start : start + chunk_rows].sum(axis=1)
        p[start : start + chunk_rows] = tails[np.arange(len(chunk)), sums]
    # The transform's errors must not lift a p-value above a level that it equals, such as 1/20.
    return np.clip(np.round(p, 12), 0.0, 1.0)


@lru_cache(maxsize=1 << 16)
def _hypergeometric(baseline_trials: int, candidate_trials: int, failed: int) -> tuple[float, ...]:
    """Return the chances that the candidate has 0, 1, … of the failures of one task."""
    ways = comb(baseline_trials + candidate_trials, failed)
    return tuple(
        comb(candidate_trials, count) * comb(baseline_trials, failed - count) / ways
        for count in range(min(failed, candidate_trials) + 1)
    )


@lru_cache(maxsize=1 << 16)
def _fisher(passed: int, trials: int, other_passed: int, other_trials: int) -> float:
    """Return the probability that the first side gets at least `passed` of all passes, exactly."""
    total = passed + other_passed
    ways = comb(trials, passed) * comb(other_trials, other_passed)
    tail = 0
    for count in range(passed, min(trials, total) + 1):
        tail += ways
        ways = ways * (trials - count) * (total - count) // ((count + 1) * (other_trials - total + count + 1))
    return tail / comb(trials + other_trials, total)


def mcnemar(worse: Floats, better: Floats) -> Floats:
    """Return the exact one-sided p-value for more tasks turning worse than better (binomial)."""
    min_worse = np.maximum(worse, 1)
    p = scipy.special.betainc(min_worse, np.maximum(worse + better, min_worse) - min_worse + 1, 0.5)
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
    raw_p = np.stack([p[name] for name in names])
    scaled_p = np.where(np.isnan(raw_p), np.inf, raw_p / weight)
    order = np.argsort(scaled_p, axis=0, kind="stable")
    ranked_p = np.take_along_axis(scaled_p, order, axis=0)
    ranked_weights = np.take_along_axis(np.where(np.isnan(raw_p), 0.0, weight), order, axis=0)
    remaining = np.cumsum(ranked_weights[::-1], axis=0)[::-1]
    stepped_p = np.maximum.accumulate(np.where(np.isinf(ranked_p), 0.0, ranked_p) * remaining, axis=0)
    adjusted = np.empty_like(stepped_p)
    np.put_along_axis(adjusted, order, np.minimum(stepped_p, 1.0), axis=0)
    return {name: np.where(np.isnan(raw_p[i]), np.nan, adjusted[i]) for i, name in enumerate(names)}
