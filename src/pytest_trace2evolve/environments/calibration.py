"""Whether an environment teaches a model anything: figures of groups of rollouts, and what they must be.

GRPO learns from differences within a group of rollouts of one scenario. Where all of a group get the same
reward there is nothing to learn, so a base model must neither always succeed nor always fail. The targets are
those of Trace2Evolve's training design (TRACE, arXiv 2604.05336, calibrates on 100 seeds × 16 rollouts).
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, pstdev

from pytest_trace2evolve.records.environment import TOP, Figures

SEEDS, ROLLOUTS = 100, 16
"""Scenarios of a calibration, and rollouts of each."""

ADJUSTMENTS = 5
"""How often the difficulty is changed before somebody is asked."""

MEAN = (0.2, 0.6)
STD_LEAST = 0.05
SAME_MOST = 0.2
INFORMATIVE_LEAST = 0.5
"""Least and most mean reward; least spread; most groups all at the top or at 0; least groups that differ."""

LOST_MOST = 0.05
"""Share of lost rollouts above which nothing is said of the rest."""

KS = (1, 4, 8, 16)


def figures(groups: Sequence[Sequence[float]], lost: int = 0) -> Figures:
    """Figures of groups of rewards, one group a scenario. A group of less than two rewards is left out.

    Raises:
        ValueError: no group holds two rewards.
    """
    whole = [group for group in groups if len(group) > 1]
    if not whole:
        raise ValueError("no group holds two rewards")
    rewards = [reward for group in whole for reward in group]
    return Figures(
        groups=len(whole),
        rollouts=len(rewards),
        lost=lost,
        mean=fmean(rewards),
        std=fmean(map(pstdev, whole)),
        all_top=_share(whole, lambda group: min(group) == TOP),
        all_zero=_share(whole, lambda group: max(group) == 0),
        informative=_share(whole, lambda group: min(group) < max(group)),
        pass_at={k: found for k in KS if (found := _pass_at(whole, k)) is not None},
    )


def pass_at(total: int, passed: int, k: int) -> float:
    """The chance that one of k rollouts passes, estimated without bias from `passed` of `total`.

    1 − C(n − c, k) / C(n, k): Chen et al. 2021, "Evaluating Large Language Models Trained on Code", eq. 1.

    Raises:
        ValueError: there are fewer than k rollouts, or more passed than there are.
    """
    if not (1 <= k <= total and 0 <= passed <= total):
        raise ValueError(f"pass@{k} of {passed} in {total} rollouts is not defined")
    return 1 - math.comb(total - passed, k) / math.comb(total, k)


def outside(found: Figures) -> tuple[str, ...]:
    """What lies outside of the targets, a phrase each; empty where a model can learn here."""
    low, high = MEAN
    told = []
    if not low <= found.mean <= high:
        told.append(f"mean reward {found.mean:.2f}, wanted {low:g} to {high:g}")
    if found.std < STD_LEAST:
        told.append(f"spread within a group {found.std:.3f}, wanted {STD_LEAST:g} or more")
    if found.all_top > SAME_MOST:
        told.append(f"{found.all_top:.0%} of the groups all at the top, wanted {SAME_MOST:.0%} at most")
    if found.all_zero > SAME_MOST:
        told.append(f"{found.all_zero:.0%} of the groups all at 0, wanted {SAME_MOST:.0%} at most")
    if found.informative < INFORMATIVE_LEAST:
        told.append(f"{found.informative:.0%} of the groups differ, wanted {INFORMATIVE_LEAST:.0%} or more")
    return tuple(told)


def direction(found: Figures) -> int:
    """Whether scenarios must become harder (1) or easier (-1), by what is further from its target."""
    too_high = max(found.mean - MEAN[1], found.all_top - SAME_MOST)
    too_low = max(MEAN[0] - found.mean, found.all_zero - SAME_MOST)
    if max(too_high, too_low) <= 0:
        return 1 if found.mean > sum(MEAN) / 2 else -1
    return 1 if too_high >= too_low else -1


def _share(groups: Sequence[Sequence[float]], holds: Callable[[Sequence[float]], bool]) -> float:
    return sum(map(holds, groups)) / len(groups)


def _pass_at(groups: Sequence[Sequence[float]], k: int) -> float | None:
    found = [pass_at(len(group), sum(one == TOP for one in group), k) for group in groups if len(group) >= k]
    return fmean(found) if found else None
