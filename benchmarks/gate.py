"""How often the gate errs, and what it finds, over agents whose truth is known.

python benchmarks/gate.py [--rows 2000] [--jobs 2] [--part small] [--write]

Prints tables in Markdown; `--write` puts them into gate-figures.md here and draws docs/pictures/gate.svg.
With `--part`, it replaces the tables of these parts and leaves all others, and the picture, as they are.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from gate_tables import SMALL_ROWS, picture, tables, write, write_parts
from scipy import stats

from pytest_trace2evolve.gate.agents import (
    AGENTS,
    Agent,
    Change,
    Design,
    Effect,
    SimulatedStages,
    simulate_stages,
)
from pytest_trace2evolve.gate.alpha_spending import stage_alpha
from pytest_trace2evolve.gate.calibrated import CALIBRATED, Calibrated
from pytest_trace2evolve.gate.checks import compute_findings, evaluate
from pytest_trace2evolve.gate.columns import ACTION_METRICS, INVARIANTS, Floats
from pytest_trace2evolve.gate.decide import decision_ranks
from pytest_trace2evolve.gate.intervals import GUARDED_DROP, predictive_power
from pytest_trace2evolve.gate.pairs import Comparisons
from pytest_trace2evolve.gate.policy import STRICT
from pytest_trace2evolve.gate.protocols import FAIL, UNDECIDED, Policy, Question
from pytest_trace2evolve.gate.significance import fisher
from pytest_trace2evolve.gate.tallies import REWARD
from pytest_trace2evolve.records.verdict import Goal

ALPHA = 0.05
SIZES = ((20, 4), (40, 1), (40, 3), (40, 8), (114, 1), (114, 4), (114, 8), (300, 1), (300, 4), (300, 8))
COMPARED = ((40, 3), (114, 4))
"""Sizes at which other rules are told too."""

EVEN, FEW, MIXED = Change.EVEN, Change.FEW, Change.MIXED
EFFECTS = (
    Effect(0.0),
    Effect(0.10, MIXED),
    *(Effect(size, change) for size in (-0.10, -0.05, 0.10) for change in (EVEN, FEW)),
    Effect(0.05),
)
CURVE = (-0.15, -0.10, -0.05, 0.0, 0.05, 0.10, 0.15)
SCHEDULE = (2, 4, 8)
LOSSES = (0.01, 0.05)
CLAIMS = (Goal.IMPROVE, Goal.HOLD)
HARM_SIZES = ((12, 4), (20, 4), (36, 3), (40, 8), (114, 4))
"""Sizes at which guards and goal `no-regression` are simulated."""

HARMS = (Effect(0.0), *(Effect(size, change) for size in (-0.10, -0.20) for change in (EVEN, FEW)))
INVARIANT_SIZES = ((12, 4), (36, 3), (114, 4))
BREACHES = (0.0, 0.05)
RISES = (0.0, 0.10, 1 / 3)
SMALL_SIZES = ((8, 4), (12, 3), (12, 4), (12, 5), (12, 8), (20, 4), (36, 3), (114, 4))
"""Sizes of suites of a project's own, at which goal `no-regression` is simulated with estimand `suite`."""

SMALL_LOSSES = (-0.10, -0.20, -0.30)
ALIKE = {f"alike {rate}": Agent(rate, 100 - rate) for rate in (50, 60, 75, 90)}
"""Agents with about the same chance of success on every task, in percent."""

KINDS = {**AGENTS, "near-deterministic": Agent(0.06, 0.03)}
SUITE = Calibrated(name="suite", has_fixed_tasks=True)


@dataclass(frozen=True)
class Found:
    """What one rule decided on simulated comparisons.

    Attributes:
        part: Which part of the study it belongs to.
        agent, tasks, trials, effect: What was simulated; of a mixed effect the true difference is 0.
        rule: Who decided, and on what (`live`, `recorded`); goal and margin with it.
        share: By decision, or of another figure, its share or mean.
        rows: How many comparisons it rests on.
    """

    part: str
    agent: str
    tasks: int
    trials: int
    effect: Effect
    rule: str
    share: dict[str, float]
    rows: int


@dataclass(frozen=True)
class Job:
    """One thing to simulate."""

    part: str
    agent: str
    tasks: int
    trials: int
    effect: Effect
    rows: int
    lost: float = 0.0
    breaches: float | None = None
    rise: float = 0.0


def jobs(rows: int) -> Iterator[Job]:
    """All that is simulated, the longest first."""
    for (tasks, trials), agent, effect in product(sorted(SIZES, reverse=True), KINDS, EFFECTS):
        yield Job("main", agent, tasks, trials, effect, rows)
    for (tasks, trials), size in product(COMPARED, CURVE):
        yield Job("curve", "medium", tasks, trials, Effect(size), rows)
    for tasks, agent, size in product((40, 114), AGENTS, (-0.10, 0.0, 0.05, 0.10)):
        yield Job("stages", agent, tasks, SCHEDULE[-1], Effect(size), rows)
    for (tasks, trials), agent, lost, size in product(COMPARED, AGENTS, LOSSES, (0.0, -0.10)):
        yield Job("lost", agent, tasks, trials, Effect(size), rows, lost)
    sizes = ((20, 4), (40, 3), (114, 4), (114, 2))
    for (tasks, trials), agent, size in product(sizes, KINDS, (-0.10, 0.0, 0.05)):
        yield Job("suite", agent, tasks, trials, Effect(size), rows)
    for (tasks, trials), agent, effect in product(HARM_SIZES, KINDS, HARMS):
        yield Job("harm", agent, tasks, trials, effect, rows)
    for (tasks, trials), agent, breaches, rise in product(INVARIANT_SIZES, AGENTS, BREACHES, RISES):
        yield Job("invariants", agent, tasks, trials, Effect(), rows, breaches=breaches, rise=rise)
    losses = [Effect(size, change, is_exact=True) for size in SMALL_LOSSES for change in (EVEN, FEW)]
    for (tasks, trials), agent, effect in product(SMALL_SIZES, KINDS | ALIKE, (Effect(), *losses)):
        yield Job("small", agent, tasks, trials, effect, SMALL_ROWS * rows)


def simulate(job: Job) -> list[Found]:
    """One job; its chance depends on nothing but itself."""
    seed = [*job.part.encode(), *job.agent.encode(), job.tasks, job.trials, *str(job.effect).encode()]
    breaches = [] if job.breaches is None else [round(1000 * job.breaches), round(1000 * job.rise)]
    random = np.random.default_rng([*seed, round(1000 * job.lost), *breaches])
    design = Design(
        job.tasks,
        job.trials,
        max_fresh_simulations=CALIBRATED.max_fresh_simulations,
        lost_rate=job.lost,
        breach_rate=job.breaches,
        breach_rate_increase=job.rise,
    )
    schedule = SCHEDULE if job.part == "stages" else (job.trials,)
    drawn = simulate_stages(random, (KINDS | ALIKE)[job.agent], job.effect, design, job.rows, schedule)
    return [
        Found(job.part, job.agent, job.tasks, job.trials, job.effect, rule, share, job.rows)
        for rule, share in _PARTS[job.part](job, drawn)
    ]


Shares = Iterator[tuple[str, dict[str, float]]]


def _main(job: Job, drawn: SimulatedStages) -> Shares:
    (live,) = drawn.stages
    recorded = replace(live, fresh_p=None)
    for name, compared in (("live", live), ("recorded", recorded)):
        yield f"calibrated {name} improve", _decided(compared, CALIBRATED, Goal.IMPROVE)
        for margin in (0.05, 0.10):
            policy = replace(CALIBRATED, margins={REWARD: margin})
            yield f"calibrated {name} hold {margin:.2f}", _decided(compared, policy, Goal.HOLD)
    truth = 0.0 if job.effect.change is MIXED else job.effect.size
    found = compute_findings(live, CALIBRATED.rules(Question(Goal.HOLD)))[REWARD]
    yield "interval", _covered(found.low, found.high, np.full(job.rows, truth))
    differences = live.difference(REWARD)
    yield "t interval", _covered(*_student(differences), np.full(job.rows, truth))
    yield from _others(job, live, differences)


def _curve(job: Job, drawn: SimulatedStages) -> Shares:
    (live,) = drawn.stages
    for goal in CLAIMS:
        yield f"calibrated live {goal.value}", _decided(live, CALIBRATED, goal)
        yield f"strict {goal.value}", _decided(live, STRICT, goal)
    yield from _others(job, live, live.difference(REWARD))


def _stages(job: Job, drawn: SimulatedStages) -> Shares:
    level = stage_alpha(ALPHA, SCHEDULE)
    for goal in CLAIMS:
        last = drawn.stages[-1]
        yield f"one look {goal.value}", _decided(last, CALIBRATED, goal)
        rank, used = np.full(job.rows, 1), np.full(job.rows, float(SCHEDULE[-1]))
        for compared, trials in zip(drawn.stages, SCHEDULE, strict=True):
            now = decision_ranks(CALIBRATED, compared, Question(goal, stage_alpha=level))
            settled = (rank == 1) & (used == SCHEDULE[-1]) & (now != 1)
            rank, used = np.where(settled, now, rank), np.where(settled, trials, used)
            if goal is Goal.IMPROVE and trials < SCHEDULE[-1]:
                rules = CALIBRATED.rules(Question(goal, stage_alpha=level))
                p = compute_findings(compared, rules)[REWARD].gain_p
                power = predictive_power(p, level, trials / SCHEDULE[-1])
                is_open = (rank == 1) & (used == SCHEDULE[-1])
                used = np.where(is_open & (power < CALIBRATED.futility), trials, used)
        yield f"staged {goal.value}", {**_shares(rank), "trials": float(used.mean())}


def _lost(job: Job, drawn: SimulatedStages) -> Shares:
    (live,) = drawn.stages
    for goal in CLAIMS:
        rank = decision_ranks(CALIBRATED, live, Question(goal))
        yield f"lost {job.lost:.0%} {goal.value}", _shares(rank)


def _suite(job: Job, drawn: SimulatedStages) -> Shares:
    """These very tasks: what is true is the mean over them, a comparison each its own."""
    (live,) = drawn.stages
    truth = (drawn.new - drawn.old).mean(axis=1)
    found = compute_findings(live, SUITE.rules(Question(Goal.HOLD)))[REWARD]
    covered = _covered(found.low, found.high, truth)
    rank = {goal: decision_ranks(SUITE, live, Question(goal)) for goal in CLAIMS}
    worse = truth <= -0.10
    share = float((rank[Goal.HOLD][worse] == 2).mean()) if worse.any() else float("nan")
    covered |= {"worse promoted": share, "worse": float(worse.mean())}
    yield "interval", covered
    for goal in CLAIMS:
        yield goal.value, _shares(rank[goal])


def _harm(job: Job, drawn: SimulatedStages) -> Shares:
    """Guards and goal `no-regression`."""
    (live,) = drawn.stages
    guard = Question(Goal.HOLD, is_guard=True)
    for name, compared in (("live", live), ("recorded", replace(live, fresh_p=None))):
        few = ~CALIBRATED.rules_out(compared, guard, GUARDED_DROP)
        yield (
            f"guard {name}",
            {**_shares(decision_ranks(CALIBRATED, compared, guard)), "few": float(few.mean())},
        )
        yield f"no-regression {name}", _decided(compared, CALIBRATED, Goal.NO_REGRESSION)


def _invariants(job: Job, drawn: SimulatedStages) -> Shares:
    """The check of invariants, and what it adds to the discards of the whole policy."""
    (live,) = drawn.stages
    base = f"{job.breaches:.2f} {job.rise:.2f}"
    answer = evaluate(live, CALIBRATED.rules(Question(Goal.HOLD))).status_codes[INVARIANTS]
    yield (
        f"check {base}",
        {"fail": float((answer == FAIL).mean()), "open": float((answer == UNDECIDED).mean())},
    )
    without = replace(CALIBRATED, weights={INVARIANTS: 0.0})
    for goal in (Goal.HOLD, Goal.NO_REGRESSION):
        yield f"with {goal.value} {base}", _decided(live, CALIBRATED, goal)
        yield f"without {goal.value} {base}", _decided(live, without, goal)


def _small(job: Job, drawn: SimulatedStages) -> Shares:
    """Goal `no-regression` on exactly these tasks, which truly lose what the effect says."""
    (live,) = drawn.stages
    without_actions = replace(SUITE, weights=dict.fromkeys(ACTION_METRICS, 0.0))
    yield "live", _decided(live, SUITE, Goal.NO_REGRESSION)
    yield "recorded", _decided(replace(live, fresh_p=None), SUITE, Goal.NO_REGRESSION)
    yield "without actions", _decided(live, without_actions, Goal.NO_REGRESSION)


_PARTS: dict[str, Callable[[Job, SimulatedStages], Shares]] = {
    "main": _main,
    "curve": _curve,
    "stages": _stages,
    "lost": _lost,
    "suite": _suite,
    "harm": _harm,
    "invariants": _invariants,
    "small": _small,
}


def _decided(compared: Comparisons, policy: Policy, goal: Goal) -> dict[str, float]:
    return _shares(decision_ranks(policy, compared, Question(goal)))


def _shares(rank: np.ndarray) -> dict[str, float]:
    shares = np.bincount(rank, minlength=3) / len(rank)
    return dict(zip(("discard", "inconclusive", "promote"), shares.tolist(), strict=True))


def _covered(low: Floats, high: Floats, truth: Floats) -> dict[str, float]:
    return {
        "covered": float(((low <= truth) & (truth <= high)).mean()),
        "low too high": float((low > truth).mean()),
        "high too low": float((high < truth).mean()),
        "width": float((high - low).mean()),
    }


def _student(differences: Floats) -> tuple[Floats, Floats]:
    """Student's two one-sided bounds, as they are without any guard."""
    n = differences.shape[1]
    mean = differences.mean(axis=1)
    reach = stats.t.ppf(1 - ALPHA, n - 1) * stats.sem(differences, axis=1)
    return mean - reach, mean + reach


def _others(job: Job, compared: Comparisons, differences: Floats) -> Shares:
    """Rules that others use: the paired t-test, mean above one standard error, a test of each task."""
    mean, error = differences.mean(axis=1), stats.sem(differences, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        t = np.where(error > 0, mean / error, np.sign(mean) * np.inf)
    t = np.nan_to_num(t, nan=0.0, posinf=1e9, neginf=-1e9)
    bound = stats.t.ppf(1 - ALPHA, job.tasks - 1)
    yield "paired t", _shares(np.where(t >= bound, 2, np.where(t <= -bound, 0, 1)))
    if (job.tasks, job.trials) not in COMPARED:
        return
    yield "mean > 1 SE", _shares(np.where(t > 1, 2, 0))
    yield "strict", _decided(compared, STRICT, Goal.IMPROVE)
    old, new, trials = compared.baseline.successes, compared.candidate.successes, job.trials
    counts = np.arange(trials + 1)
    worse = fisher(counts[:, None], trials, counts[None, :], trials)
    p = [stats.false_discovery_control(table[old, new], axis=1) for table in (worse, worse.T)]
    any_worse, any_better = ((one <= ALPHA).any(axis=1) for one in p)
    yield "Fisher, Benjamini–Hochberg", _shares(np.where(any_worse, 0, np.where(any_better, 2, 1)))


def main() -> None:
    """Simulate everything and tell it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--part", action="append", choices=_PARTS, help="simulate only this part")
    options = parser.parse_args()
    started = time.perf_counter()
    wanted = [job for job in jobs(options.rows) if job.part in (options.part or _PARTS)]
    with ProcessPoolExecutor(options.jobs) as pool:
        found = [one for part in pool.map(simulate, wanted) for one in part]
    print(f"{len(found)} figures in {time.perf_counter() - started:.0f} s\n")
    text = tables(found)
    print(text)
    figures = Path(__file__).with_name("gate-figures.md")
    if options.write and options.part:
        write_parts(figures, text)
    elif options.write:
        write(figures, text)
        picture(found, Path(__file__).resolve().parents[1] / "docs" / "pictures" / "gate.svg")


if __name__ == "__main__":
    main()
