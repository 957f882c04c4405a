"""Unequal trials, and stages with a saved baseline: error rates, power and simulations.

python benchmarks/trials.py level --rows 10000     # no-effect comparisons for 162 designs
python benchmarks/trials.py designs --rows 2000    # stages as they were before and are now
python benchmarks/trials.py recorded FILE...       # A/A of recorded results, resampled
python benchmarks/trials.py --write                # the tables and docs/pictures/stages.svg

Each finished cell is kept as a line of build/trials.jsonl, so an interrupted run can be continued.
"""

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.calibration import pool_of
from pytest_trace2evolve.gate.checks import compute_findings
from pytest_trace2evolve.gate.decide import decision_ranks
from pytest_trace2evolve.gate.pairs import METRICS, REWARD, Comparisons, Tally
from pytest_trace2evolve.gate.power import AGENTS, Agent, Design, Effect
from pytest_trace2evolve.gate.protocols import Question
from pytest_trace2evolve.gate.stages import simulate_runs
from pytest_trace2evolve.records.verdict import Decision, Goal
from pytest_trace2evolve.session.compare import read_side
from pytest_trace2evolve.worlds.registry import Worlds

CELLS = Path(__file__).resolve().parents[1] / "build" / "trials.jsonl"
LEVELS = (0.05, 0.0221)
"""The level of one analysis, and that of each of three stages."""

SPREADS = (0.0, 1.0)
"""Standard deviation of the tasks' log-odds of success: all tasks alike, or as different as usual."""

MIXED = 0.5
"""Standard deviation of the effects on the log-odds; their mean is such that the mean rate is unchanged."""

SCHEDULE = (2, 4, 8)
AGENTS_OF_DESIGNS = {
    "near-deterministic": Agent(0.06, 0.03),
    "noisy": AGENTS["noisy"],
    "mixed": AGENTS["medium"],
}
EFFECTS = (-0.05, 0.0, 0.025, 0.05, 0.075, 0.10, 0.15)
DESIGNS = {"before": None, "8 saved": 8, "16 saved": 16}
"""The baseline's trials at every stage. Before, they were as many as the candidate's, no stage ended for
futility, and all broken tasks got fresh trials."""


def level_cells() -> Iterator[dict[str, Any]]:
    """All no-effect designs."""
    for spread, tasks, trials, saved, rate, mixed in product(
        SPREADS, (20, 56, 114), (2, 4, 8), (2, 8, 16), (0.3, 0.6, 0.9), (0.0, MIXED)
    ):
        yield {
            "spread": spread,
            "tasks": tasks,
            "trials": trials,
            "saved": saved,
            "rate": rate,
            "mixed": mixed,
        }


def level(cell: dict[str, Any], rows: int) -> dict[str, float]:
    """Shares of comparisons without an effect that show a gain or harm at each level, or miss 0."""
    random = np.random.default_rng([rows, *(round(1000 * value) for value in cell.values())])
    shape, spread, mixed = (rows, cell["tasks"]), cell["spread"], cell["mixed"]
    log_odds = random.normal(scale=spread, size=shape) if spread else np.zeros(shape)
    old = scipy.special.expit(log_odds + _centre(cell["rate"], spread))
    new = old
    if mixed:
        effects = random.normal(scale=mixed, size=shape) + _centre(cell["rate"], np.hypot(spread, mixed))
        new = scipy.special.expit(log_odds + effects)
    comparisons = Comparisons(
        Tally.of_successes(random.binomial(cell["saved"], old), cell["saved"]),
        Tally.of_successes(random.binomial(cell["trials"], new), cell["trials"]),
    )
    policy = replace(CALIBRATED, weights=dict.fromkeys(METRICS, 0.0))
    finding = compute_findings(comparisons, policy.rules(Question(Goal.IMPROVE)))[REWARD]
    shares = {
        f"{name} {alpha}": float((p <= alpha).mean())
        for name, p in (("gain", finding.gain_p), ("harm", finding.harm_p))
        for alpha in LEVELS
    }
    return {
        **shares,
        "low > 0": float((finding.low > 0).mean()),
        "high < 0": float((finding.high < 0).mean()),
    }


def _centre(rate: float, spread: float) -> float:
    """The mean log-odds with which the mean rate over tasks is `rate`."""
    quantiles = spread * scipy.special.ndtri((np.arange(20_001) + 0.5) / 20_001)
    return float(
        scipy.optimize.brentq(lambda centre: scipy.special.expit(centre + quantiles).mean() - rate, -20, 20)
    )


def design_cells() -> Iterator[dict[str, Any]]:
    """All designs, agents, sizes and effects."""
    for tasks, agent, effect, name in product((114, 56, 200), AGENTS_OF_DESIGNS, EFFECTS, DESIGNS):
        is_curve = (tasks, agent) == (114, "mixed")
        if is_curve or (effect in (0.0, 0.05, 0.10) and name != "16 saved"):
            yield {"tasks": tasks, "agent": agent, "effect": effect, "design": name}


def design(cell: dict[str, Any], rows: int) -> dict[str, float]:
    """Decisions and simulations of runs in stages; the baseline is measured before."""
    saved, tasks = DESIGNS[cell["design"]], cell["tasks"]
    seed = [rows, tasks, *cell["agent"].encode(), round(1000 + 1000 * cell["effect"])]
    runs = simulate_runs(
        np.random.default_rng(seed),
        AGENTS_OF_DESIGNS[cell["agent"]],
        Effect(cell["effect"]),
        Design(tasks, SCHEDULE[-1], baseline_trials=saved),
        CALIBRATED if saved else replace(CALIBRATED, futility=0.0),
        SCHEDULE,
        rows=rows,
        confirms_all=saved is None,
    )
    return {
        "promote": runs.share(Decision.PROMOTE),
        "discard": runs.share(Decision.DISCARD),
        "simulations": runs.simulations(tasks),
        "fresh": float(runs.fresh.mean()),
    }


def recorded_cells(files: list[Path]) -> Iterator[dict[str, Any]]:
    """A/A of recorded results, at equal and at unequal trials."""
    for file, trials, saved in product(files, (1, 2, 4, 8), (4, 8, 16)):
        yield {"file": str(file), "trials": trials, "saved": saved}


def recorded(cell: dict[str, Any], rows: int) -> dict[str, float]:
    """Decisions on two sides that are drawn, with replacement, from the recorded trials of each task."""
    pool = pool_of(read_side([Path(cell["file"])], Worlds(), None, None).columns)
    random = np.random.default_rng([rows, cell["trials"], cell["saved"], *cell["file"].encode()[-12:]])
    drawn = [random.binomial(n, pool.rates, (rows, pool.tasks)) for n in (cell["saved"], cell["trials"])]
    first = min(cell["saved"], cell["trials"])
    parts = [
        random.hypergeometric(passed, n - passed, first)
        for passed, n in zip(drawn, (cell["saved"], cell["trials"]), strict=True)
    ]
    comparisons = Comparisons(
        Tally.of_successes(drawn[0], cell["saved"]),
        Tally.of_successes(drawn[1], cell["trials"]),
        first_trials=(Tally.of_successes(parts[0], first), Tally.of_successes(parts[1], first)),
    )
    ranks = decision_ranks(CALIBRATED, comparisons, Question(Goal.IMPROVE))
    return {"promote": float((ranks == 2).mean()), "discard": float((ranks == 0).mean())}


PARTS = {"level": level, "design": design, "recorded": recorded}


def simulate(job: tuple[str, dict[str, Any], int]) -> dict[str, Any]:
    """One cell."""
    part, cell, rows = job
    return {"part": part, "rows": rows, "cell": cell, "found": PARTS[part](cell, rows)}


def known_cells() -> list[dict[str, Any]]:
    """The cells that are finished."""
    return [json.loads(line) for line in CELLS.read_text().splitlines()] if CELLS.exists() else []


def main() -> None:
    """Simulate what is missing, and print or write the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=PARTS)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    cells = {"level": level_cells(), "design": design_cells(), "recorded": recorded_cells(options.files)}
    done = [(item["part"], item["rows"], item["cell"]) for item in known_cells()]
    jobs = [(options.part, cell, options.rows) for cell in cells.get(options.part, ())]
    CELLS.parent.mkdir(exist_ok=True)
    missing = [job for job in jobs if (job[0], job[2], job[1]) not in done]
    with ProcessPoolExecutor(options.jobs) as pool, CELLS.open("a") as file:
        for found in pool.map(simulate, missing):
            print(json.dumps(found), file=file, flush=True)


if __name__ == "__main__":
    main()
