"""What the ledger's levels cost and find: one candidate analysed at 4, 8 and 16 trials, and the next one.

python benchmarks/ledger.py [--rows 4000] [--jobs 2] [--write]

Prints tables in Markdown; `--write` puts them into gate-figures.md here.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from scipy import stats

from pytest_trace2evolve.gate.agents import AGENTS, Change, Design, Effect, simulate_stages
from pytest_trace2evolve.gate.alpha_spending import alpha_share
from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.decide import decision_ranks
from pytest_trace2evolve.gate.protocols import Question
from pytest_trace2evolve.records.verdict import Decision, Goal

BEGIN, END = "<!-- figures: benchmarks/ledger.py --write -->", "<!-- end of the ledger's figures -->"
SCHEDULE = (4, 8, 16)
ANALYSES = tuple(alpha_share(1, analysis) for analysis in (1, 2, 3))
TESTS = tuple(alpha_share(test) for test in (1, 2, 3))
"""Shares if more trials were another test each, as they were until analyses were counted."""

NULLS = (Effect(0.0), Effect(0.10, Change.MIXED))
GAINS = (Effect(0.05), Effect(0.10))
PROMOTE, OPEN, DISCARD = (Decision(one).rank for one in ("promote", "inconclusive", "discard"))


@dataclass(frozen=True)
class Job:
    """One thing to simulate; `cumulative` is whether an analysis holds the trials of those before."""

    agent: str
    tasks: int
    effect: Effect
    cumulative: bool
    rows: int


@dataclass(frozen=True)
class Found:
    """Shares of the comparisons, for the levels of one rule.

    Attributes:
        job: What was simulated.
        rule: `analyses`, `tests`, or `next` for the next candidate with four trials.
        promoted: Share promoted after 4, 8 and 16 trials; for `next` at the levels of test 2 and of test 4.
        discarded: Share discarded after 16 trials.
    """

    job: Job
    rule: str
    promoted: tuple[float, ...]
    discarded: float = 0.0


def jobs(rows: int) -> Iterator[Job]:
    """All that is simulated."""
    for tasks, agent, effect, cumulative in product((114, 40), AGENTS, NULLS, (True, False)):
        yield Job(agent, tasks, effect, cumulative, rows)
    for tasks, agent, effect in product((114, 40), AGENTS, GAINS):
        yield Job(agent, tasks, effect, True, rows)


def simulate(job: Job) -> list[Found]:
    """One job; its chance depends on nothing but itself."""
    seed = [*job.agent.encode(), job.tasks, *str(job.effect).encode(), job.cumulative]
    # Recorded: fresh trials of broken tasks would discard most candidates that lose and win.
    design = Design(job.tasks, 0, is_live=False)
    drawn = simulate_stages(
        np.random.default_rng(seed),
        AGENTS[job.agent],
        job.effect,
        design,
        job.rows,
        SCHEDULE,
        cumulative=job.cumulative,
    )
    found = []
    for rule, shares in (("analyses", ANALYSES), ("tests", TESTS)):
        rank, promoted = np.full(job.rows, OPEN), []
        for compared, part in zip(drawn.stages, shares, strict=True):
            now = decision_ranks(CALIBRATED, compared, Question(Goal.IMPROVE, share=part))
            rank = np.where(rank == OPEN, now, rank)
            promoted.append(float((rank == PROMOTE).mean()))
        found.append(Found(job, rule, tuple(promoted), float((rank == DISCARD).mean())))
    further = [
        float(
            (
                decision_ranks(CALIBRATED, drawn.stages[0], Question(Goal.IMPROVE, share=part)) == PROMOTE
            ).mean()
        )
        for part in (alpha_share(2, 1), alpha_share(4))
    ]
    return [*found, Found(job, "next", tuple(further))]


def tables(found: Sequence[Found]) -> str:
    """The tables in Markdown."""
    rows = found[0].job.rows
    limit = CALIBRATED.alpha * alpha_share(1)
    cells = [one for one in found if one.rule == "analyses" and one.job.effect in NULLS]
    chance = float(stats.binom.ppf(0.99 ** (1 / len(cells)), rows, limit)) / rows
    head = (
        f"{rows:,} comparisons for each figure, from recorded runs: percent promoted so far, for reliable / "
        f"medium / noisy agents. All analyses of test 1 together may promote {100 * limit:.2f} % of "
        "candidates "
        f"without a gain (by chance up to {100 * chance:.2f} in {len(cells)} cells)."
    )
    lines = [
        "| tasks, change | after 4 | after 8 | after 16 | discarded |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for tasks, effect, cumulative in product((40, 114), NULLS, (True, False)):
        data = "trials added" if cumulative else "all trials new"
        name = "10 points lost and won" if effect.size else "same agent"
        cell = _of(found, "analyses", tasks, effect, cumulative)
        figures = [_cell(one.promoted[at] for one in cell) for at in range(3)]
        discarded = _cell(one.discarded for one in cell)
        lines.append(f"| {tasks}, {name}, {data} | {' | '.join([*figures, discarded])} |")
    gains = [
        "| tasks, gain | rule | after 4 | after 8 | after 16 | the next candidate, 4 trials |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    rules = (("analyses", "one test, three analyses"), ("tests", "three tests"))
    for tasks, effect, (place, (rule, name)) in product((40, 114), GAINS, enumerate(rules)):
        cell = _of(found, rule, tasks, effect, True)
        figures = [_cell(one.promoted[at] for one in cell) for at in range(3)]
        figures.append(_cell(one.promoted[place] for one in _of(found, "next", tasks, effect, True)))
        gains.append(f"| {tasks}, +{round(100 * effect.size)} | {name} | {' | '.join(figures)} |")
    return "\n\n".join([head, "\n".join(lines), "\n".join(gains)]) + "\n"


def _of(found: Sequence[Found], rule: str, tasks: int, effect: Effect, cumulative: bool) -> list[Found]:
    wanted = (rule, tasks, effect, cumulative)
    return [one for one in found if (one.rule, one.job.tasks, one.job.effect, one.job.cumulative) == wanted]


def _cell(shares: Iterator[float]) -> str:
    return " / ".join(f"{100 * one:.1f}" for one in shares)


def write(path: Path, text: str) -> None:
    """Put the tables between the markers of a page."""
    before, rest = path.read_text(encoding="utf-8").split(BEGIN)
    path.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def main() -> None:
    """Simulate everything and print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs) as pool:
        found = [one for part in pool.map(simulate, jobs(options.rows)) for one in part]
    text = tables(found)
    print(text)
    if options.write:
        write(Path(__file__).with_name("gate-figures.md"), text)


if __name__ == "__main__":
    main()
