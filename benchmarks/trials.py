"""Unequal trials, and stages with a saved baseline: error rates, power and simulations.

python benchmarks/trials.py level --rows 10000     # no-effect comparisons for 162 designs
python benchmarks/trials.py designs --rows 2000    # stages as they were before and are now
python benchmarks/trials.py recorded FILE...       # A/A of recorded results, resampled
python benchmarks/trials.py confirm --rows 1000    # promotions confirmed by fresh trials of both sides
python benchmarks/trials.py --write                # the tables and docs/pictures/stages.svg

Each finished cell is kept as a line of build/trials.jsonl, so an interrupted run can be continued.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from pytest_trace2evolve.gate.agents import AGENTS, Agent, Design, Effect, simulate_stages
from pytest_trace2evolve.gate.calibrated import CALIBRATED
from pytest_trace2evolve.gate.calibration import Pool, pool_of
from pytest_trace2evolve.gate.checks import compute_findings
from pytest_trace2evolve.gate.decide import decision_ranks
from pytest_trace2evolve.gate.pairs import Comparisons
from pytest_trace2evolve.gate.power import simulate_runs
from pytest_trace2evolve.gate.protocols import Question
from pytest_trace2evolve.gate.tallies import METRICS, REWARD, Tally
from pytest_trace2evolve.records.verdict import Decision, Goal
from pytest_trace2evolve.session.compare import read_side
from pytest_trace2evolve.worlds.registry import Worlds

CELLS = Path(__file__).resolve().parents[1] / "build" / "trials.jsonl"
BEGIN, END = "<!-- figures: benchmarks/trials.py --write -->", "<!-- end of the figures of trials -->"
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
    """A/A of recorded results, at equal and at unequal trials; `NAME-trial-N` are trials of one agent."""
    for name, trials, saved in product(
        sorted({_agent_name(file) for file in files}), (1, 2, 4, 8), (4, 8, 16)
    ):
        paths = [str(file) for file in files if _agent_name(file) == name]
        yield {"agent": name, "files": paths, "trials": trials, "saved": saved}


def _agent_name(file: Path) -> str:
    return file.name.partition(".json")[0].partition("-trial-")[0]


@cache
def _read_pool(files: tuple[str, ...]) -> Pool:
    return pool_of(read_side([Path(file) for file in files], Worlds(), None, None).columns)


def recorded(cell: dict[str, Any], rows: int) -> dict[str, float]:
    """Decisions on two sides that are drawn, with replacement, from the recorded trials of each task."""
    pool = _read_pool(tuple(cell["files"]))
    random = np.random.default_rng([rows, cell["trials"], cell["saved"], *cell["agent"].encode()])
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


def confirm_cells() -> Iterator[dict[str, Any]]:
    """Promotions that fresh trials of both sides would have to confirm."""
    for agent, effect in product(AGENTS_OF_DESIGNS, (0.0, 0.05, 0.10)):
        yield {"agent": agent, "effect": effect}


def confirm(cell: dict[str, Any], rows: int) -> dict[str, float]:
    """A gain at 114 × 8 against 8, the same with 8 + 8 fresh trials, and the luck of one baseline."""
    agent, tasks, trials = AGENTS_OF_DESIGNS[cell["agent"]], 114, 8
    random = np.random.default_rng([rows, *cell["agent"].encode(), round(1000 * cell["effect"])])
    drawn = simulate_stages(
        random,
        agent,
        Effect(cell["effect"]),
        Design(tasks, trials, is_live=False),
        rows,
        (trials, trials),
        cumulative=False,
    )
    first, fresh = (stage.sign_flip_test(REWARD).high <= LEVELS[0] for stage in drawn.stages)
    baseline = drawn.stages[0].baseline
    gains = np.zeros(rows)
    for _ in range(10):
        candidate = Tally.of_successes(random.binomial(trials, drawn.new), trials)
        gains += Comparisons(baseline, candidate).sign_flip_test(REWARD).high <= LEVELS[0]
    return {
        "promote": float(first.mean()),
        "confirmed": float((first & fresh).mean()),
        "several": float((gains >= 2).mean()),
        "many": float((gains >= 4).mean()),
    }


PARTS = {"level": level, "design": design, "recorded": recorded, "confirm": confirm}


def simulate(job: tuple[str, dict[str, Any], int]) -> dict[str, Any]:
    """One cell."""
    part, cell, rows = job
    return {"part": part, "rows": rows, "cell": cell, "found": PARTS[part](cell, rows)}


def known_cells() -> list[dict[str, Any]]:
    """The cells that are finished."""
    return [json.loads(line) for line in CELLS.read_text().splitlines()] if CELLS.exists() else []


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _percent(*shares: float) -> str:
    return " / ".join(f"{100 * share:.1f}" for share in shares)


def level_tables(cells: list[dict[str, Any]]) -> str:
    """Every no-effect design, and the worst of them."""
    by_key = {tuple(item["cell"].values()): item["found"] for item in cells}
    text = []
    for spread in SPREADS:
        known = {key: found for key, found in by_key.items() if key[0] == spread}
        if not known:
            continue
        pairs = sorted({key[2:4] for key in known})
        rows = []
        for tasks, rate, mixed in sorted({(key[1], *key[4:]) for key in known}):
            kind = f"{tasks} tasks, {rate:.1f}, {'mixed' if mixed else 'none'}"
            found = [known.get((spread, tasks, *pair, rate, mixed)) for pair in pairs]
            rows.append(
                [
                    kind,
                    *("" if one is None else _percent(one["gain 0.05"], one["harm 0.05"]) for one in found),
                ]
            )
        worst = {name: max(found[name] for found in known.values()) for name in next(iter(known.values()))}
        text.append(
            f"Standard deviation of the tasks' log-odds {spread:g}; {len(known)} designs of "
            f"{cells[0]['rows']:,} comparisons. Percent that show a gain / harm at .05, by trials of the "
            "candidate against those of the baseline. Worst: "
            f"gain {_percent(worst['gain 0.05'])}, harm {_percent(worst['harm 0.05'])}; at .0221 "
            f"{_percent(worst['gain 0.0221'])} and {_percent(worst['harm 0.0221'])}; lower bound above 0 "
            f"{_percent(worst['low > 0'])}, upper bound below 0 {_percent(worst['high < 0'])}.\n\n"
            + _table(["tasks, pass rate, effects", *(f"{k} v {n}" for k, n in pairs)], rows)
        )
    return "\n\n".join(text)


def design_table(cells: list[dict[str, Any]]) -> str:
    """Stages before and now."""
    found = {tuple(item["cell"].values()): item["found"] for item in cells}
    rows = []
    for tasks, agent, effect, name in sorted(found):
        if name == "before" or (tasks, agent, effect, "before") not in found:
            continue
        old, new = found[tasks, agent, effect, "before"], found[tasks, agent, effect, name]
        rows.append(
            [
                f"{tasks}, {agent}, {100 * effect:+g}, {name}",
                *(f"{_percent(old[key])} → {_percent(new[key])}" for key in ("promote", "discard")),
                f"{old['simulations']:,.0f} → {new['simulations']:,.0f}",
                f"{new['simulations'] / old['simulations']:.2f}",
            ]
        )
    heading = ["tasks, agent, true gain, baseline", "promoted", "discarded", "simulations", "ratio"]
    runs = " or ".join(f"{count:,}" for count in sorted({item["rows"] for item in cells}, reverse=True))
    return f"{runs} runs a row; mean simulations, with confirmation.\n\n" + _table(heading, rows)


def recorded_table(cells: list[dict[str, Any]]) -> str:
    """A/A of recorded results."""
    names = sorted({item["cell"]["agent"] for item in cells})
    rows = []
    for trials, saved in sorted({(item["cell"]["trials"], item["cell"]["saved"]) for item in cells}):
        found = {
            item["cell"]["agent"]: item["found"]
            for item in cells
            if (item["cell"]["trials"], item["cell"]["saved"]) == (trials, saved)
        }
        shares = [_percent(found[name]["promote"], found[name]["discard"]) for name in names]
        rows.append([f"{trials} v {saved}", *shares])
    text = f"{cells[0]['rows']:,} resamples a figure: percent promoted / discarded by goal `improve`."
    return f"{text}\n\n" + _table(["trials", *names], rows)


def confirm_table(cells: list[dict[str, Any]]) -> str:
    """What fresh trials of both sides would cost and change."""
    rows = [
        [
            f"{item['cell']['agent']}, {100 * item['cell']['effect']:+g}",
            *(_percent(item["found"][key]) for key in ("promote", "confirmed", "several", "many")),
            f"{item['found']['promote'] * 2 * 8 * 114:,.0f}",
        ]
        for item in cells
    ]
    heading = [
        "agent, true gain", "promoted", "and confirmed", "≥ 2 of 10 promoted", "≥ 4 of 10", "simulations",
    ]  # fmt: skip
    text = (
        "114 × 8 trials against 8 of the baseline at .05; confirmed by 8 + 8 fresh trials of all tasks at "
        ".05. Ten equal candidates against one baseline; mean simulations of the confirmation."
    )
    return f"{text}\n\n" + _table(heading, rows)


TABLES = {
    "level": ("Unequal trials without an effect", level_tables),
    "recorded": ("A/A of recorded models, unequal trials", recorded_table),
    "design": ("Stages of 2, 4 and 8 trials against a saved baseline", design_table),
    "confirm": ("Confirming promotions", confirm_table),
}


def picture(cells: list[dict[str, Any]], path: Path) -> None:
    """Power and mean cost against the true gain, before and now, for 114 tasks of the mixed agent."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    looks = {"before": "#6b6b6b", "8 saved": "#1f5fa8", "16 saved": "#d08a1d"}
    with rc_context({"svg.hashsalt": "trace2evolve", "svg.fonttype": "path", "font.size": 9}):
        figure = Figure(figsize=(8.4, 3.4), layout="constrained")
        axes = figure.subplots(1, 2)
        for axis, key, scale in zip(axes, ("promote", "simulations"), (100, 1), strict=True):
            for name, colour in looks.items():
                points = sorted(
                    (100 * item["cell"]["effect"], scale * item["found"][key])
                    for item in cells
                    if (item["cell"]["tasks"], item["cell"]["agent"]) == (114, "mixed")
                    and item["cell"]["design"] == name
                )
                label = name if name == "before" else f"now, {name.split()[0]} saved trials"
                axis.plot(*zip(*points, strict=True), color=colour, label=label, marker="o", markersize=3)
            axis.set_xlabel("true difference, points")
            axis.set_ylim(bottom=0)
            axis.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel("promoted, %")
        axes[1].set_ylabel("mean simulations, with confirmation")
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
        )
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Simulate what is missing, and print or write the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=PARTS)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    cells = {
        "level": level_cells(),
        "design": design_cells(),
        "recorded": recorded_cells(options.files),
        "confirm": confirm_cells(),
    }
    done = [(item["part"], item["rows"], item["cell"]) for item in known_cells()]
    jobs = [(options.part, cell, options.rows) for cell in cells.get(options.part, ())]
    CELLS.parent.mkdir(exist_ok=True)
    missing = [job for job in jobs if (job[0], job[2], job[1]) not in done]
    with ProcessPoolExecutor(options.jobs) as pool, CELLS.open("a") as file:
        for found in pool.map(simulate, missing):
            print(json.dumps(found), file=file, flush=True)
    known = {part: [item for item in known_cells() if item["part"] == part] for part in TABLES}
    parts = [
        f"### {title}\n\n{table(known[part])}\n" for part, (title, table) in TABLES.items() if known[part]
    ]
    text = "\n".join(parts)
    print(text)
    if options.write:
        page = Path(__file__).with_name("gate-figures.md")
        before, rest = page.read_text(encoding="utf-8").split(BEGIN)
        page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")
        picture(known["design"], CELLS.parents[1] / "docs" / "pictures" / "stages.svg")


if __name__ == "__main__":
    main()
