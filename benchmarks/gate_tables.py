"""The tables and the picture of benchmarks/gate.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    from gate import Found

ALPHA = 0.05
THREE = ("reliable", "medium", "noisy")
SMALL_ROWS = 4
"""Comparisons of small suites for each comparison of the other parts."""

BEGIN, END = "<!-- figures: benchmarks/gate.py --write -->", "<!-- end of figures -->"


def tables(found: Sequence[Found]) -> str:
    """All tables in Markdown."""
    here = {one.part for one in found}
    parts = [
        (title, table(found))
        for part, title, table in (
            ("main", "Requirements", _requirements),
            ("main", "Live, by size", lambda found: _by_size(found, "live")),
            ("main", "Recorded, by size", lambda found: _by_size(found, "recorded")),
            ("main", "The printed interval", _intervals),
            ("main", "Other rules", _others),
            ("main", "Near-deterministic agents, live", _near),
            ("stages", "Stages of 2, 4 and 8 trials compared with one analysis of 8", _stages),
            ("lost", "Lost simulations", _lost),
            ("suite", "Estimand `suite`", _suite),
            ("harm", "Requirements for guards, `no-regression` and invariants", _harm_requirements),
            ("harm", "Guards", _guards),
            ("harm", "Goal `no-regression`", _no_regression),
            ("invariants", "Invariants by kind", _invariants),
            ("small", "Requirements for small suites", _small_requirements),
            ("small", "Small suites by kind of agent, 12 × 4", _small_kinds),
            ("small", "Small suites by size", _small_sizes),
        )
        if part in here
    ]
    rows = min(one.rows for one in found) // (SMALL_ROWS if here == {"small"} else 1)
    error = 100 * float(np.sqrt(ALPHA * (1 - ALPHA) / rows))
    head = f"{rows:,} comparisons for each figure: a rate of 5 % has a standard error of {error:.2f} points."
    return "\n\n".join([head, *(f"### {title}\n\n{text}" for title, text in parts)]) + "\n"


def write(path: Path, text: str) -> None:
    """Put the tables between the markers of a page."""
    page = path.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


def write_parts(path: Path, text: str) -> None:
    """Replace only the given tables between the markers of a page; a table that is new goes to the end."""
    page = path.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    old, after = rest.split(END)
    head, *sections = old.strip().split("\n\n### ")
    new_head, *new_sections = text.strip().split("\n\n### ")
    if head != new_head:
        raise SystemExit(f"{path} says {head!r}, and this run {new_head!r}: give the same --rows")
    replaced = {title: body for title, _, body in (one.partition("\n") for one in (*sections, *new_sections))}
    figures = "\n\n### ".join([head, *(f"{title}\n{body}" for title, body in replaced.items())])
    path.write_text(f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}", encoding="utf-8")


def _allowed(rows: int, cells: int) -> float:
    """What the largest of so many rates of 5 % may be by chance, in 99 of 100 studies."""
    return float(stats.binom.ppf(0.99 ** (1 / cells), rows, ALPHA)) / rows


def _pick(
    found: Iterable[Found],
    rule: str,
    size: float,
    change: str = "even",
    part: str = "main",
    near: bool = False,
) -> list[Found]:
    return [
        one
        for one in found
        if one.part == part
        and one.rule == rule
        and one.effect.size == size
        and (one.effect.change == change or size == 0)
        and (one.agent in THREE) is not near
    ]


def _at(found: Iterable[Found], tasks: int, trials: int) -> list[Found]:
    return [one for one in found if (one.tasks, one.trials) == (tasks, trials)]


def _cells(found: Iterable[Found], what: str) -> str:
    """The three agents' figures in percent: reliable / medium / noisy."""
    by_agent = {one.agent: one.share[what] for one in found}
    return " / ".join(f"{100 * by_agent[agent]:.1f}" for agent in by_agent)


def _mean(found: Iterable[Found], what: str) -> float:
    return float(np.mean([one.share[what] for one in found]))


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heading) + " |", "| --- |" + " ---: |" * (len(heading) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _requirements(found: Sequence[Found]) -> str:
    rows = []

    def at_most(name: str, cells: list[Found], what: str) -> None:
        worst = max(cells, key=lambda one: one.share[what])
        limit = _allowed(worst.rows, len(cells))
        holds = worst.share[what] <= limit
        where = f"{worst.agent} {worst.tasks} × {worst.trials}"
        rows.append(
            (
                name,
                f"{100 * worst.share[what]:.1f} % ({where})",
                f"≤ 5 % (by chance up to {100 * limit:.1f} in {len(cells)} cells)",
                "yes" if holds else "**no**",
            )
        )

    def at_least(name: str, figure: float, limit: float, told: str, slack: float = 0.0) -> None:
        rows.append((name, told, f"≥ {100 * limit:.0f} %", "yes" if figure >= limit - slack else "**no**"))

    for name in ("live", "recorded"):
        rule = f"calibrated {name}"
        at_most(
            f"{name}: `improve` promoted at 0, same agent", _pick(found, f"{rule} improve", 0.0), "promote"
        )
        mixed = _pick(found, f"{rule} improve", 0.10, "mixed")
        at_most(f"{name}: `improve` promoted at 0, 10 points lost and won", mixed, "promote")
        for margin, change in ((0.10, "even"), (0.10, "few"), (0.05, "even"), (0.05, "few")):
            cells = _pick(found, f"{rule} hold {margin:.2f}", -margin, change)
            at_most(f"{name}: `hold` promoted at −{100 * margin:.0f}, {change}", cells, "promote")
        at_most(f"{name}: A/A discarded", _pick(found, f"{rule} hold 0.10", 0.0), "discard")
        for size in (0.05, 0.10):
            cells = _pick(found, f"{rule} improve", size)
            at_most(f"{name}: discarded at an even gain of {100 * size:.0f}", cells, "discard")
        for size in (0.05, 0.10):
            ours = _mean(_at(_pick(found, f"{rule} improve", size), 114, 4), "promote")
            t = _mean(_at(_pick(found, "paired t", size), 114, 4), "promote")
            told = f"{100 * ours / t:.0f} % ({100 * ours:.1f} of {100 * t:.1f})"
            at_least(f"{name}: share of t's power at +{100 * size:.0f}, 114 × 4", ours / t, 0.9, told)
        for (tasks, trials), limit in (((40, 3), 0.5), ((114, 4), 0.9)):
            cells = _at(_pick(found, f"{rule} hold 0.10", 0.0), tasks, trials)
            mean = _mean(cells, "promote")
            told = f"{100 * mean:.1f} % ({_cells(cells, 'promote')})"
            at_least(f"{name}: A/A promoted under `hold`, {tasks} × {trials}", mean, limit, told)
    cells = [one for one in found if one.part == "main" and one.rule == "interval" and one.agent in THREE]
    cells = [one for one in cells if one.effect.change != "mixed"]
    worst = min(cells, key=lambda one: one.share["covered"])
    told = (
        f"{100 * worst.share['covered']:.1f} % ({worst.agent} {worst.tasks} × {worst.trials}, "
        f"{worst.effect.change} {100 * worst.effect.size:+.0f})"
    )
    # The least of so many may fall short by chance, in 99 of 100 studies by no more than this.
    chance = float(stats.binom.ppf(1 - 0.99 ** (1 / len(cells)), worst.rows, 0.89)) / worst.rows
    at_least(
        f"interval: least coverage of {len(cells)} cells", worst.share["covered"], 0.89, told, 0.89 - chance
    )
    return _table(("requirement", "worst cell", "required", "met"), rows)


def _sizes(found: Iterable[Found], part: str = "main") -> list[tuple[int, int]]:
    return sorted({(one.tasks, one.trials) for one in found if one.part == part})


def _by_size(found: Sequence[Found], name: str) -> str:
    """Percent, each as reliable / medium / noisy."""
    columns: list[tuple[str, str, float, str, str]] = [
        ("`hold` A/A promoted", "hold 0.10", 0.0, "even", "promote"),
        ("`hold` −10 promoted", "hold 0.10", -0.10, "even", "promote"),
        ("… on few tasks", "hold 0.10", -0.10, "few", "promote"),
        ("`improve` A/A promoted", "improve", 0.0, "even", "promote"),
        ("`improve` +5", "improve", 0.05, "even", "promote"),
        ("`improve` +10", "improve", 0.10, "even", "promote"),
        ("A/A discarded", "hold 0.10", 0.0, "even", "discard"),
        ("−10 discarded", "hold 0.10", -0.10, "even", "discard"),
    ]
    rows = []
    for size in _sizes(found):
        row = [f"{size[0]} × {size[1]}"]
        for _, rule, effect, change, what in columns:
            row.append(_cells(_at(_pick(found, f"calibrated {name} {rule}", effect, change), *size), what))
        rows.append(row)
    told = "Percent for reliable / medium / noisy agents; margin 10 points."
    return f"{told}\n\n" + _table(("tasks × trials", *(one[0] for one in columns)), rows)


def _intervals(found: Sequence[Found]) -> str:
    rows = []
    for size in _sizes(found):
        row = [f"{size[0]} × {size[1]}"]
        for rule in ("interval", "t interval"):
            cells = [one for one in _at(found, *size) if one.part == "main" and one.rule == rule]
            cells = [one for one in cells if one.agent in THREE and one.effect.change != "mixed"]
            covered = [one.share["covered"] for one in cells]
            row.append(f"{100 * np.mean(covered):.1f} (least {100 * min(covered):.1f})")
            row.append(
                f"{100 * max(max(one.share['low too high'], one.share['high too low']) for one in cells):.1f}"
            )
            row.append(f"{100 * _mean(cells, 'width'):.1f}")
        rows.append(row)
    told = (
        "Coverage in percent over effects of 0, ±10, −5 and +5 points, even and on few tasks, three kinds of "
        "agents; nominal is 90 (each bound at 5 %). Width in points."
    )
    heading = (
        "tasks × trials",
        "covered",
        "worst side missed",
        "width",
        "t: covered",
        "worst side missed",
        "width",
    )
    return f"{told}\n\n" + _table(heading, rows)


def _others(found: Sequence[Found]) -> str:
    rules = (
        "calibrated live improve",
        "calibrated recorded improve",
        "paired t",
        "mean > 1 SE",
        "Fisher, Benjamini–Hochberg",
        "strict",
    )
    rows = []
    for size in ((40, 3), (114, 4)):
        for rule in rules:
            row = [f"{size[0]} × {size[1]}, {rule}"]
            for effect, what in (
                (0.0, "promote"),
                (0.0, "discard"),
                (0.05, "promote"),
                (0.10, "promote"),
                (-0.05, "discard"),
                (-0.10, "discard"),
            ):
                row.append(f"{100 * _mean(_at(_pick(found, rule, effect), *size), what):.1f}")
            rows.append(row)
    heading = (
        "goal `improve`",
        "A/A promoted",
        "A/A discarded",
        "+5 promoted",
        "+10 promoted",
        "−5 discarded",
        "−10 discarded",
    )
    return "Percent, mean over the three kinds of agents.\n\n" + _table(heading, rows)


def _near(found: Sequence[Found]) -> str:
    columns = (
        ("improve", 0.0, "even", "promote"),
        ("improve", 0.10, "mixed", "promote"),
        ("hold 0.10", -0.10, "even", "promote"),
        ("hold 0.10", -0.10, "few", "promote"),
        ("hold 0.05", -0.05, "few", "promote"),
        ("hold 0.10", 0.0, "even", "promote"),
        ("hold 0.10", 0.0, "even", "discard"),
    )
    rows = []
    for size in _sizes(found):
        row = [f"{size[0]} × {size[1]}"]
        for rule, effect, change, what in columns:
            cells = _at(_pick(found, f"calibrated live {rule}", effect, change, near=True), *size)
            row.append(f"{100 * _mean(cells, what):.1f}")
        intervals = [one for one in _at(found, *size) if one.rule == "interval" and one.part == "main"]
        intervals = [one for one in intervals if one.agent not in THREE and one.effect.change != "mixed"]
        row.append(f"{100 * min(one.share['covered'] for one in intervals):.1f}")
        rows.append(row)
    heading = (
        "tasks × trials",
        "`improve` at 0",
        "… 10 lost and won",
        "`hold` at −10",
        "… on few tasks",
        "`hold`, margin 5, at −5 on few",
        "`hold` A/A promoted",
        "A/A discarded",
        "least coverage",
    )
    return "Percent promoted, unless the row names something else.\n\n" + _table(heading, rows)


def _stages(found: Sequence[Found]) -> str:
    rows = []
    for tasks in (40, 114):
        for goal, size, what in (
            ("improve", 0.0, "promote"),
            ("improve", 0.05, "promote"),
            ("improve", 0.10, "promote"),
            ("hold", 0.0, "promote"),
            ("hold", -0.10, "promote"),
            ("hold", 0.0, "discard"),
            ("hold", -0.10, "discard"),
        ):
            staged = _at(_pick(found, f"staged {goal}", size, part="stages"), tasks, 8)
            single = _at(_pick(found, f"one look {goal}", size, part="stages"), tasks, 8)
            rows.append(
                (
                    f"{tasks} tasks, `{goal}`, {100 * size:+.0f}, {what}",
                    _cells(staged, what),
                    _cells(single, what),
                    f"{_mean(staged, 'trials'):.1f}",
                )
            )
    return "Percent for reliable / medium / noisy agents.\n\n" + _table(
        ("figure", "staged", "one analysis", "trials per task, staged"), rows
    )


def _lost(found: Sequence[Found]) -> str:
    rows = []
    for size in _sizes(found, "lost"):
        whole = _at(_pick(found, "calibrated live hold 0.10", 0.0), *size)
        rows.append(
            (
                f"{size[0]} × {size[1]}, none lost",
                _cells(whole, "promote"),
                _cells(_at(_pick(found, "calibrated live hold 0.10", -0.10), *size), "promote"),
                _cells(_at(_pick(found, "calibrated live improve", 0.0), *size), "promote"),
                _cells(whole, "discard"),
            )
        )
        for lost in ("1%", "5%"):
            hold = _at(_pick(found, f"lost {lost} hold", 0.0, part="lost"), *size)
            worse = _at(_pick(found, f"lost {lost} hold", -0.10, part="lost"), *size)
            improve = _at(_pick(found, f"lost {lost} improve", 0.0, part="lost"), *size)
            rows.append(
                (
                    f"{size[0]} × {size[1]}, {lost.replace('%', ' %')} lost",
                    _cells(hold, "promote"),
                    _cells(worse, "promote"),
                    _cells(improve, "promote"),
                    _cells(hold, "discard"),
                )
            )
    heading = (
        "tasks × trials",
        "`hold` A/A promoted",
        "`hold` −10 promoted",
        "`improve` A/A promoted",
        "A/A discarded",
    )
    return "Percent for reliable / medium / noisy agents.\n\n" + _table(heading, rows)


def _suite(found: Sequence[Found]) -> str:
    rows = []
    for size in _sizes(found, "suite"):
        row = [f"{size[0]} × {size[1]}"]
        for near in (False, True):
            cells = [
                one
                for effect in (-0.10, 0.0, 0.05)
                for one in _at(_pick(found, "interval", effect, part="suite", near=near), *size)
            ]
            row.append(f"{100 * min(one.share['covered'] for one in cells):.1f}")
        for rule, effect, what in (
            ("improve", 0.0, "promote"),
            ("improve", 0.05, "promote"),
            ("hold", 0.0, "promote"),
            ("hold", 0.0, "discard"),
        ):
            row.append(_cells(_at(_pick(found, rule, effect, part="suite"), *size), what))
        row.append(_cells(_at(_pick(found, "interval", -0.10, part="suite"), *size), "worse promoted"))
        rows.append(row)
    heading = (
        "tasks × trials",
        "least coverage",
        "… near-deterministic",
        "`improve` A/A promoted",
        "+5 promoted",
        "`hold` A/A promoted",
        "A/A discarded",
        "`hold` promoted where truly 10 or more worse",
    )
    told = "Live; the truth is the mean over exactly the tasks of each comparison."
    return f"{told}\n\n" + _table(heading, rows)


def _harm_requirements(found: Sequence[Found]) -> str:
    rows = []

    def at_most(name: str, cells: list[Found], limit: float = ALPHA, what: str = "discard") -> None:
        worst = max(cells, key=lambda one: one.share[what])
        allowed = float(stats.binom.ppf(0.99 ** (1 / len(cells)), worst.rows, limit)) / worst.rows
        told = f"{100 * worst.share[what]:.1f} % ({worst.agent} {worst.tasks} × {worst.trials})"
        wanted = f"≤ {100 * limit:.0f} % (by chance up to {100 * allowed:.1f} in {len(cells)} cells)"
        rows.append((name, told, wanted, "yes" if worst.share[what] <= allowed else "**no**"))

    for name in ("live", "recorded"):
        at_most(f"{name}: guard, A/A discarded", _pick(found, f"guard {name}", 0.0, part="harm"))
        missed = _pick(found, f"guard {name}", -0.20, part="harm")
        at_most(f"{name}: guard, no harm detected at −20, even", missed, 0.2, "promote")
        missed = _pick(found, f"guard {name}", -0.20, "few", part="harm")
        at_most(f"{name}: guard, no harm detected at −20, few", missed, 0.2, "promote")
        missed = [
            one
            for change in ("even", "few")
            for one in _pick(found, f"guard {name}", -0.20, change, part="harm", near=True)
        ]
        at_most(f"{name}: guard, no harm detected at −20, near-deterministic", missed, 0.2, "promote")
        at_most(
            f"{name}: `no-regression`, A/A discarded", _pick(found, f"no-regression {name}", 0.0, part="harm")
        )
    for goal in ("hold", "no-regression"):
        cells = [one for one in found if one.part == "invariants" and one.rule.startswith(f"with {goal} ")]
        at_most(
            f"live: `{goal}` with invariants, A/A discarded", [c for c in cells if c.rule.endswith(" 0.00")]
        )
    return _table(("requirement", "worst cell", "required", "met"), rows)


def _guards(found: Sequence[Found]) -> str:
    columns = (
        ("A/A: harm shown", 0.0, "even", "discard"),
        ("… suspected", 0.0, "even", "inconclusive"),
        ("… of them too few to detect 20", 0.0, "even", "few"),
        ("−10: shown", -0.10, "even", "discard"),
        ("… suspected", -0.10, "even", "inconclusive"),
        ("−10 on few: shown", -0.10, "few", "discard"),
        ("… suspected", -0.10, "few", "inconclusive"),
        ("−20: no harm detected", -0.20, "even", "promote"),
        ("−20 on few: no harm detected", -0.20, "few", "promote"),
    )
    told = (
        "Percent for reliable / medium / noisy agents. All others are *no harm detected*. A "
        "comparison with too few tasks can be suspected for a p-value too."
    )
    return f"{told}\n\n" + _harm_table(found, "guard", columns)


def _no_regression(found: Sequence[Found]) -> str:
    columns = (
        ("A/A discarded", 0.0, "even", "discard"),
        ("−10 discarded", -0.10, "even", "discard"),
        ("… on few tasks", -0.10, "few", "discard"),
        ("−20 discarded", -0.20, "even", "discard"),
        ("… on few tasks", -0.20, "few", "discard"),
    )
    told = "Percent for reliable / medium / noisy agents. All others pass."
    return f"{told}\n\n" + _harm_table(found, "no-regression", columns)


def _harm_table(found: Sequence[Found], rule: str, columns: Sequence[tuple[str, float, str, str]]) -> str:
    rows = []
    for size in _sizes(found, "harm"):
        for name in ("live", "recorded"):
            row = [f"{size[0]} × {size[1]}, {name}"]
            for _, effect, change, what in columns:
                cells = _at(_pick(found, f"{rule} {name}", effect, change, part="harm"), *size)
                row.append(_cells(cells, what))
            rows.append(row)
    return _table(("tasks × trials", *(one[0] for one in columns)), rows)


def _invariants(found: Sequence[Found]) -> str:
    """Percent, live."""
    rows = []

    def cells(size: tuple[int, int], rule: str, what: str) -> str:
        return _cells(
            [one for one in _at(found, *size) if one.part == "invariants" and one.rule == rule], what
        )

    for size in _sizes(found, "invariants"):
        for base in ("0.00", "0.05"):
            row = [f"{size[0]} × {size[1]}, {float(base):.0%}".replace("%", " %")]
            row += [cells(size, f"{name} hold {base} 0.00", "discard") for name in ("without", "with")]
            row.append(cells(size, f"check {base} 0.00", "fail"))
            row.append(cells(size, f"check {base} 0.00", "open"))
            for rise in ("0.10", "0.33"):
                row += [cells(size, f"check {base} {rise}", what) for what in ("fail", "open")]
            rows.append(row)
    heading = (
        "tasks × trials, rate of each kind",
        "A/A discarded without the check",
        "… with it",
        "A/A: check fails",
        "… undecided",
        "one kind +10: fails",
        "… undecided",
        "one kind +33: fails",
        "… undecided",
    )
    told = (
        "Percent for reliable / medium / noisy agents, live, goal `hold`. Six kinds, each broken in as many "
        "simulations as the first column says; the candidate breaks one kind more often."
    )
    return f"{told}\n\n" + _table(heading, rows)


SMALL_WAYS = ("live", "recorded", "without actions")
SMALL_COLUMNS = (
    ("A/A passes", 0.0, "even", "promote"),
    ("−10 discarded", -0.10, "even", "discard"),
    ("… on few tasks", -0.10, "few", "discard"),
    ("−20 discarded", -0.20, "even", "discard"),
    ("… on few tasks", -0.20, "few", "discard"),
    ("−30 discarded", -0.30, "even", "discard"),
    ("… on few tasks", -0.30, "few", "discard"),
)


def _pick_small(found: Iterable[Found], rule: str, size: float, change: str) -> list[Found]:
    return [
        one
        for one in found
        if (one.part, one.rule, one.effect.size) == ("small", rule, size)
        and (one.effect.change == change or size == 0)
    ]


def _small_requirements(found: Sequence[Found]) -> str:
    rows, told = [], ""
    for way in SMALL_WAYS:
        for name, size, change, what, limit in (
            ("A/A passes", 0.0, "even", "promote", 0.95),
            ("−30 discarded, even", -0.30, "even", "discard", 0.9),
            ("−30 discarded, few", -0.30, "few", "discard", 0.9),
        ):
            cells = _at(_pick_small(found, way, size, change), 12, 4)
            worst = min(cells, key=lambda one: one.share[what])
            figure = f"{100 * worst.share[what]:.1f} % ({worst.agent})"
            least = float(stats.binom.ppf(1 - 0.99 ** (1 / len(cells)), worst.rows, limit)) / worst.rows
            required = f"≥ {100 * limit:.0f} % (by chance down to {100 * least:.1f} in {len(cells)} cells)"
            met = "yes" if worst.share[what] >= least else "**no**"
            rows.append((f"12 × 4, {way}: {name}", figure, required, met))
            told = f"{worst.rows:,} comparisons for each figure of small suites."
    return f"{told}\n\n" + _table(("requirement", "worst cell", "required", "met"), rows)


def _small_kinds(found: Sequence[Found]) -> str:
    rows = []
    for agent in dict.fromkeys(one.agent for one in found if one.part == "small"):
        row = [agent]
        for _, size, change, what in SMALL_COLUMNS:
            cells = [_at(_pick_small(found, way, size, change), 12, 4) for way in SMALL_WAYS]
            shares = [one.share[what] for way in cells for one in way if one.agent == agent]
            row.append(" / ".join(f"{100 * share:.1f}" for share in shares))
        rows.append(row)
    told = "Percent in live runs / in recorded runs / in live runs of tasks without gold actions."
    return f"{told}\n\n" + _table(("agent", *(one[0] for one in SMALL_COLUMNS)), rows)


def _small_sizes(found: Sequence[Found]) -> str:
    rows = []
    for tasks, trials in _sizes(found, "small"):
        for way in SMALL_WAYS:
            row = [f"{tasks} × {trials}, {way}"]
            for _, size, change, what in SMALL_COLUMNS:
                shares = [
                    one.share[what] for one in _at(_pick_small(found, way, size, change), tasks, trials)
                ]
                row.append(f"{100 * np.mean(shares):.1f} ({100 * min(shares):.1f})")
            rows.append(row)
    told = "Percent, mean over all kinds of agents, and the least of them."
    return f"{told}\n\n" + _table(("tasks × trials", *(one[0] for one in SMALL_COLUMNS)), rows)


def picture(found: Sequence[Found], path: Path) -> None:
    """Chance of a promotion by true difference, for the policy and for other rules."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    lines = (
        ("calibrated live improve", "calibrated, improve", "#1f5fa8", "-"),
        ("calibrated live hold", "calibrated, hold", "#1f5fa8", "--"),
        ("paired t", "paired t-test", "#6b6b6b", "-"),
        ("mean > 1 SE", "mean > 1 SE", "#d08a1d", "-"),
        ("strict improve", "strict, improve", "#b5403c", "-"),
        ("Fisher, Benjamini–Hochberg", "Fisher, Benjamini–Hochberg", "#7d5ba6", "-"),
    )
    with rc_context({"svg.hashsalt": "trace2evolve", "svg.fonttype": "path", "font.size": 9}):
        figure = Figure(figsize=(8.4, 3.9), layout="constrained")
        for axis, size in zip(figure.subplots(1, 2, sharey=True), ((40, 3), (114, 4)), strict=True):
            for rule, label, colour, style in lines:
                cells = [one for one in _at(found, *size) if one.part == "curve" and one.rule == rule]
                points = sorted((100 * one.effect.size, 100 * one.share["promote"]) for one in cells)
                axis.plot(
                    *zip(*points, strict=True), style, color=colour, label=label, marker="o", markersize=3
                )
            axis.axhline(5, color="#999999", linewidth=0.7, linestyle=":")
            axis.set_title(f"{size[0]} tasks × {size[1]} trials", loc="left", fontsize=9)
            axis.set_xlabel("true difference, points")
            axis.set_ylim(-2, 102)
            axis.spines[["top", "right"]].set_visible(False)
        figure.axes[0].set_ylabel("promoted, %")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
