"""An experiment as text: its plan and its results, in the terminal and as Markdown, with two pictures."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pytest_trace2evolve.utils.plots import draw_picture
from research.trace.plan import (
    ARMS,
    MERGES,
    PRIMARY,
    ROUTED,
    Plan,
    calibration_of,
    candidates_of,
    label_of,
    pieces_of,
    scenarios_for,
    trained_for,
)
from research.trace.results import Arm, Figures, Mean, Point, Results

REPORT, RESULTS = "report.md", "results.json"
CURVE, ADAPTERS = "rollouts.svg", "adapters.svg"
"""The files that are written next to the pieces."""

METHOD = (
    "Means over seeds and tasks. Intervals are 95 %: seeds and tasks within their cell are two crossed "
    "random factors (analysis of variance, Satterthwaite's degrees of freedom); if all rewards are equal, "
    "Wilson's over tasks. Each interval holds separately."
)
"""The note on intervals of several seeds."""

METHOD_OF_ONE = (
    "Means over the tasks of one seed. Intervals are 95 %, over tasks within their cell, without the spread "
    "over seeds; if all rewards are equal, Wilson's. Each interval holds separately."
)
"""The note on intervals of a single seed."""

RULES = (
    "`gepa` samples its sentences from `cases/content/rules.toml`, because the embedded model cannot write "
    "prompts. The model was trained with these sentences, so this arm does not show how GEPA performs with "
    "a model that reflects."
)
"""The note on the arm `gepa`."""


def plan_text(plan: Plan) -> str:
    """Rollouts of every arm, before anything begins."""
    choosing = {arm: len(names) for arm, names in candidates_of(plan).items()}
    others = plan.rollouts * (len(plan.capabilities) - 1)
    rows = []
    for arm, description in ARMS.items():
        trained = sum(plan.rollouts_of(training) for training in trained_for(plan, arm, plan.capabilities[0]))
        counts = (
            plan.rollouts if arm == "gepa" else trained,
            others if arm == "single-whole" else 0,
            choosing.get(arm, 0) * plan.validation * len(plan.cells),
            calibration_of(plan, arm),
        )
        rows.append((label_of(plan, arm), *map(str, counts), description))
    headings = ("arm", "training", "other adapters", "choosing", "calibration", "what it is")
    return (
        f"{_columns(headings, rows)}\n"
        f"Rollouts for each of {plan.seeds} seeds; calibration runs once, in advance; "
        f"{len(plan.trainings())} adapters per seed. Evaluation, outside the budgets: "
        f"{len(pieces_of(plan))} × "
        f"{plan.tasks * len(plan.cells)} held-out tasks per seed, and "
        f"{sum(scenarios_for(plan, arm) for arm in ARMS)} rollouts in environments.\n"
        f"Selected: {', '.join(plan.capabilities)}. Control: {plan.control}."
    )


def results_text(results: Results) -> str:
    """The arms and the primary comparison."""
    rows = [_row(results.plan, arm) for arm in results.arms]
    return "\n".join([_columns(_HEADINGS, rows), _primary(results), method_of(results.plan), RULES])


def method_of(plan: Plan) -> str:
    """How the intervals of an experiment are made."""
    return METHOD if plan.seeds > 1 else METHOD_OF_ONE


_HEADINGS = (
    "arm",
    "rollouts",
    "one capability, %",
    "two, %",
    "all, %",
    "change, points",
    "wishes, %",
    "environments",
)


def _row(plan: Plan, arm: Arm) -> tuple[str, ...]:
    return (
        label_of(plan, arm.name),
        str(arm.trained + arm.besides),
        percent(arm.rewards.one),
        percent(arm.rewards.two),
        percent(arm.rewards.every),
        points(arm.change.every) if arm.trained else "",
        percent(arm.wishes.every),
        share(arm.environments),
    )


def percent(mean: Mean) -> str:
    """A mean in per cent with its interval."""
    return _with_interval(mean, lambda value: f"{100 * value:.1f}")


def points(mean: Mean) -> str:
    """A difference in points with its interval."""
    return _with_interval(mean, lambda value: f"{100 * value:+.1f}".replace("-", "−"))


def share(mean: Mean) -> str:
    """A mean reward with its interval."""
    return _with_interval(mean, lambda value: f"{value:.2f}")


def _with_interval(mean: Mean, number: Callable[[float], str]) -> str:
    if mean.low is None or mean.high is None:
        return number(mean.mean)
    return f"{number(mean.mean)} ({number(mean.low)} to {number(mean.high)})"


def _columns(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(headings) - 1)]
    lines = [headings, rule, *([cell or "–" for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: str) -> str:
    return f"`{text}`"


def results_markdown(results: Results) -> str:
    """Render all results as a section of the docs."""
    plan = results.plan
    cells = [cell.name for cell in plan.cells]
    count = len(plan.capabilities)
    labels = results.confusion.labels
    counts = zip(labels, results.confusion.counts, strict=True)
    parts = [
        (
            f"{plan.seeds} seed{'s' * (plan.seeds > 1)}, {plan.rollouts} training rollouts per arm and seed, "
            f"{plan.tasks} held-out tasks per cell ({len(cells)} cells), {plan.scenarios} held-out "
            "scenarios × "
            f"{plan.repeats} rollouts per environment. {method_of(plan)}"
        ),
        _table(_HEADINGS, [(_code(name), *row) for name, *row in (_row(plan, arm) for arm in results.arms)]),
        _primary(results),
        _outside_budgets(results),
        _control(results),
        "### By cell, %",
        _table(
            ("arm", *map(_code, cells)),
            [
                (_code(label_of(plan, arm.name)), *(percent(arm.cells[name]) for name in cells))
                for arm in results.arms
            ],
        ),
        "### Change against the base, points",
        _table(
            ("arm", "one capability", "two", "all"),
            [
                (_code(label_of(plan, arm.name)), *_each(arm.change, points))
                for arm in results.arms
                if arm.trained
            ],
        ),
        f"### `{ROUTED}` minus each arm, points",
        _table(
            ("arm", "one capability", "two", "all", "wishes"),
            [
                (_code(label_of(plan, other.arm)), *_each(other.rewards, points), points(other.wishes.every))
                for other in results.against
            ],
        ),
        "### By training rollouts, %",
        f"![Reward by training rollouts]({CURVE})",
        _points(plan, results.curve, "rollouts"),
        (
            f"Each of the {count} adapters of `single-whole` got the rollouts in the table, {count} times as "
            "many in all. At each point, the row shows the adapter that was chosen at the end."
        ),
        "### By number of adapters, %",
        f"![Reward by number of adapters]({ADAPTERS})",
        _points(plan, results.adapters, "adapters"),
        "### The router",
        (
            f"Right on {results.confusion.correct} of {results.confusion.total} tasks of one "
            "capability. Rows show the required capability, and columns the choice. The base model "
            "routes, so "
            f"the seed has no effect and each task counts once ({_rerouted(results)})."
        ),
        _table(("", *map(_code, labels)), [(_code(label), *map(str, row)) for label, row in counts]),
        "### Choices",
        _table(
            ("seed", "single", "single-whole", "weight in weight-merge"),
            [
                (str(number), _code(chosen.single), _code(chosen.whole), MERGES[chosen.merge])
                for number, chosen in enumerate(results.choices, start=1)
            ],
        ),
        *(
            f"Seed {number}, instruction of `gepa`:\n\n```text\n{text or '(none)'}\n```"
            for number, text in enumerate(results.instructions, start=1)
        ),
        RULES,
    ]
    return "\n\n".join(parts) + "\n"


def _primary(results: Results) -> str:
    [found] = [versus.rewards.every for versus in results.against if versus.arm == PRIMARY]
    text = (
        f"The primary comparison, which was named in advance: `{ROUTED}` minus `{PRIMARY}` on all tasks, "
        f"{points(found)} points. All other comparisons are secondary."
    )
    if not results.earlier:
        return text
    seeds = " and ".join(f"{count} seed{'s' * (count > 1)}" for count in results.earlier)
    return (
        f"{text} Earlier reports covered {seeds}; the number of {results.plan.seeds} seeds was chosen "
        "with these results known."
    )


def _outside_budgets(results: Results) -> str:
    spent = [
        f"`{arm.name}`: {arm.choosing} rollouts on validation tasks"
        + (
            f", and {arm.besides} rollouts to train the adapters that it did not choose"
            if arm.besides
            else ""
        )
        for arm in results.arms
        if arm.choosing
    ]
    groups: dict[int, list[str]] = {}
    for arm in results.arms:
        groups.setdefault(arm.calibrated, []).append(_code(arm.name))
    calibrated = [f"{count} for {', '.join(names)}" for count, names in groups.items() if count]
    return (
        f"Outside the budgets, for each seed: {'; '.join(spent)}. All evaluations took {results.evaluated} "
        "rollouts. The environments were calibrated once for all seeds, in advance, on other scenarios and "
        f"outside the budgets, with these rollouts: {'; '.join(calibrated)}; none for "
        f"{', '.join(groups.get(0, []))}. Rollouts during the development of the environments were not "
        "counted."
    )


def _control(results: Results) -> str:
    found = results.control
    return (
        f"In its own environment, `{found.environment}`, the control reached {share(found.after)} on "
        "held-out "
        f"scenarios, compared with {share(found.before)} for the base: a change of "
        f"{points(found.change)} points."
    )


def _rerouted(results: Results) -> str:
    played = results.plan.tasks * len(results.plan.cells)
    if not results.rerouted:
        return "equal for every seed"
    return f"{results.rerouted} of all {played} tasks are routed differently with a different seed"


def _each(figures: Figures, text: Callable[[Mean], str]) -> tuple[str, str, str]:
    return text(figures.one), text(figures.two), text(figures.every)


def _points(plan: Plan, found: Sequence[Point], what: str) -> str:
    rows = [
        (
            _code(label_of(plan, point.arm)),
            str(point.at),
            *_each(point.rewards, percent),
            percent(point.wishes.every),
        )
        for point in found
    ]
    return _table(("arm", what, "one capability", "two", "all", "wishes"), rows)


# Pictures

_PANELS: dict[str, Callable[[Point], Mean]] = {
    "reward, one capability": lambda point: point.rewards.one,
    "reward, two capabilities": lambda point: point.rewards.two,
    "share of wishes, all tasks": lambda point: point.wishes.every,
}
_COLORS = {
    "direct": "#2f6fb3",
    "merged": "#c9a24f",
    "routed": "#3f8f5f",
    "oracle-routed": "#7db88f",
    "control": "#7a7a7a",
    "gepa": "#8d5fa8",
    "single-whole": "#c0504d",
}
_BARS = "Bars: 95 % intervals. At 0: the base model."


def curve_svg(results: Results) -> bytes:
    """Reward by training rollouts as SVG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    whole, count = label_of(results.plan, "single-whole"), len(results.plan.capabilities)
    title = f"{_BARS} {whole}, dashed: each of its {count} adapters got so many."
    return _picture(results, results.curve, "training rollouts", title)


def adapters_svg(results: Results) -> bytes:
    """Reward by the number of adapters as SVG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    each = results.plan.rollouts // len(results.plan.capabilities)
    return _picture(results, results.adapters, f"adapters, {each} training rollouts each", _BARS)


def _picture(results: Results, found: Sequence[Point], x_label: str, title: str) -> bytes:
    base = next(arm for arm in results.arms if arm.name == "base")
    arms = list(dict.fromkeys(point.arm for point in found))
    lines = {
        arm: [
            Point(arm=arm, at=0, rewards=base.rewards, wishes=base.wishes),
            *sorted((point for point in found if point.arm == arm), key=lambda point: point.at),
        ]
        for arm in arms
    }
    places = sorted({point.at for line in lines.values() for point in line})

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, len(_PANELS), sharey=True)
        for axis, (heading, mean_in) in zip(panels, _PANELS.items(), strict=True):
            for number, (arm, line) in enumerate(lines.items()):
                # Next to each other: intervals on top of one another could not be told apart.
                shift = (number - (len(arms) - 1) / 2) * places[-1] / 120
                means = [mean_in(point) for point in line]
                below = [0.0 if mean.low is None else max(0.0, mean.mean - mean.low) for mean in means]
                above = [0.0 if mean.high is None else max(0.0, mean.high - mean.mean) for mean in means]
                axis.errorbar(
                    [point.at + shift for point in line],
                    [mean.mean for mean in means],
                    yerr=[below, above],
                    fmt="o--" if arm == "single-whole" else "o-",  # another budget than the axis says
                    markersize=3,
                    linewidth=1.2,
                    elinewidth=0.6,
                    color=_COLORS[arm],
                    label=label_of(results.plan, arm),
                )
            axis.set_title(heading, fontsize=9)
            axis.set_xlabel(x_label)
            axis.set_ylim(bottom=0)
            axis.set_xticks(places)
            axis.tick_params(labelleft=True)
            axis.spines[["top", "right"]].set_visible(False)
        figure.suptitle(title, fontsize=8)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)

    return draw_picture(draw, width=10.8, height=4.2)
