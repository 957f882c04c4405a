"""How often fresh trials of a baseline contradict its recorded trials, if it changed and if it did not.

python benchmarks/stale_baselines.py [--repeats 20000]

The candidate is the baseline with the same change: a dependency of both fails more often. "worse candidate"
is an unchanged baseline with a candidate that fails everything, which flags the most tasks. Prints a table in
Markdown: percentages of runs.
"""

import argparse
from collections.abc import Callable

import numpy as np
import scipy.special

from pytest_trace2evolve.gate.confirm import MAX_CONTRADICTING_P, STEP_TRIALS, _contradicting_p

MAX_FLAGGED = 40
"""The tasks for which the budget of 640 fresh simulations suffices at 8 + 8 each."""

RATES: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "all tasks at .3": lambda rng, size: np.full(size, 0.3),
    "all tasks at .5": lambda rng, size: np.full(size, 0.5),
    "all tasks at .7": lambda rng, size: np.full(size, 0.7),
    "all tasks at .9": lambda rng, size: np.full(size, 0.9),
    "uniform": lambda rng, size: rng.uniform(size=size),
    "near 0 or 1": lambda rng, size: rng.beta(0.5, 0.5, size),
}
"""The pass rates of the tasks on the baseline when it was saved."""


def contradicting_share(
    name: str,
    trials: int,
    tasks: int,
    *,
    fall: float = 0.0,
    fallen_tasks: int | None = None,
    best_of: int = 1,
    is_candidate_broken: bool = False,
    repeats: int = 20_000,
) -> float:
    """The share of runs in which the rule fires.

    Args:
        name: The key of the pass rates.
        trials: Recorded trials of each task on each side.
        fall: The fall of the pass rate, of all tasks or of the first `fallen_tasks`.
        best_of: The baseline is the best of so many equal agents by its recorded trials.
        is_candidate_broken: Whether the candidate fails every task.
    """
    rng = np.random.default_rng(44)
    old = RATES[name](rng, (repeats, tasks))
    has_fallen = np.arange(tasks) < (tasks if fallen_tasks is None else fallen_tasks)
    new = np.where(has_fallen, np.clip(old - fall, 0.0, 1.0), old)
    records = rng.binomial(trials, old, (best_of, repeats, tasks))
    recorded = records[records.sum(axis=2).argmax(axis=0), np.arange(repeats)]
    candidate = rng.binomial(trials, 0.0 * new if is_candidate_broken else new)
    fresh = rng.binomial(STEP_TRIALS, new)
    is_flagged = (2 * recorded > trials) & (2 * candidate <= trials)
    is_flagged &= np.cumsum(is_flagged, axis=1) <= MAX_FLAGGED
    table = np.array(
        [
            [_contradicting_p(passed, trials, again) for again in range(STEP_TRIALS + 1)]
            for passed in range(trials + 1)
        ]
    )
    p = np.sort(np.where(is_flagged, table[recorded, fresh], 1.0), axis=1)
    rank = np.arange(1, tasks + 1)
    tail = scipy.special.betainc(rank, tasks + 1 - rank, p).min(axis=1)
    return float((tail <= MAX_CONTRADICTING_P).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20_000)
    repeats = parser.parse_args().repeats
    print("| tasks × trials | rates | unchanged | worse candidate | best of 10 | −50 points | fails all |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for tasks, trials in ((40, 4), (40, 2), (40, 1), (12, 4), (12, 2)):
        for name in RATES:
            shares = [
                contradicting_share(name, trials, tasks, repeats=repeats),
                contradicting_share(name, trials, tasks, is_candidate_broken=True, repeats=repeats),
                contradicting_share(name, trials, tasks, best_of=10, repeats=max(repeats // 10, 1)),
                contradicting_share(name, trials, tasks, fall=0.5, repeats=repeats),
                contradicting_share(name, trials, tasks, fall=1.0, repeats=repeats),
            ]
            cells = [f"{100 * share:.1f}" for share in shares]
            print(f"| {tasks} × {trials} | {name} | {' | '.join(cells)} |")
    for tasks in (8, 12, 20, 40):
        shares = [
            contradicting_share("all tasks at .9", 4, tasks, fall=1.0, fallen_tasks=count, repeats=repeats)
            for count in (1, 2, 3)
        ]
        print(f"{tasks} tasks × 4 at .9, of which 1, 2 or 3 fail now: {[round(100 * x, 1) for x in shares]}")


if __name__ == "__main__":
    main()
