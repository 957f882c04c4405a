"""An experiment in the terminal and as Markdown."""

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from pytest_trace2evolve.report.markdown import code, fenced, table
from pytest_trace2evolve.report.tables import fits, rendered, terminal
from research.trace.arms import (
    ARMS,
    MERGES,
    PRIMARY,
    ROUTED,
    calibrated_for,
    candidates_of,
    label_of,
    pieces_of,
    scenarios_for,
    trained_for,
)
from research.trace.intervals import Mean
from research.trace.pictures import ADAPTERS, CURVE
from research.trace.plan import Plan
from research.trace.results import Arm, Figures, Point, Results

REPORT, RESULTS = "report.md", "results.json"
"""The files that are written beside the pieces and the pictures."""

METHOD = (
    "Means over seeds and tasks. Intervals are 95 %: seeds and tasks within their cell are two crossed "
    "random factors (analysis of variance, Satterthwaite's degrees of freedom); where all rewards are equal, "
    "Wilson's over tasks. They hold one at a time."
)
"""How intervals are made of several seeds."""

METHOD_OF_ONE = (
    "Means over the tasks of one seed. Intervals are 95 %, over tasks within their cell: what another seed "
    "would change is not in them; where all rewards are equal, Wilson's. They hold one at a time."
)
"""How they are made of one."""

NARROW = "Means alone: for intervals this terminal is too narrow."
"""What is said where they are left out."""

RULES = (
    "`gepa` draws its sentences from the rulebook in `cases/content/rules.toml`: the embedded model cannot "
    "write prompts. Its training has seen these very sentences, and it says nothing of GEPA with a model "
    "that reflects."
)
"""What must be known of the arm `gepa`."""


def plan_text(plan: Plan) -> str:
    """Rollouts of every arm, before anything begins."""
    target = terminal()
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    shown.add_column("arm", no_wrap=True)
    for heading in ("training", "other adapters", "choosing", "calibration"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("what it is", overflow="fold")
    choosing = {arm: len(names) for arm, names in candidates_of(plan).items()}
    others = plan.rollouts * (len(plan.capabilities) - 1)
    for arm, told in ARMS.items():
        trained = sum(plan.rollouts_of(one) for one in trained_for(plan, arm, plan.capabilities[0]))
        trained = plan.rollouts if arm == "gepa" else trained
        chosen = choosing.get(arm, 0) * plan.validation * len(plan.cells)
        row = (trained, others if arm == "single-whole" else 0, chosen, calibrated_for(plan, arm))
        shown.add_row(Text(label_of(plan, arm)), *map(str, row), Text(told))
    target.print(shown)
    tasks = plan.tasks * len(plan.cells)
    target.print(
        f"Rollouts for each of {plan.seeds} seeds, those of calibration once and before; "
        f"{len(plan.trainings())} adapters a seed. Evaluation, in no budget: {len(pieces_of(plan))} × "
        f"{tasks} held-out tasks a seed, and {sum(scenarios_for(plan, arm) for arm in ARMS)} rollouts in "
        "environments.\n"
        f"Selected: {', '.join(plan.capabilities)}. Control: {plan.control}.",
        soft_wrap=True,
        highlight=False,
    )
    return rendered(target)


def results_text(results: Results) -> str:
    """A row an arm."""
    target = terminal()
    shown = _arms(results)
    wide = fits(shown, target)
    target.print(shown if wide else _arms(results, _mean))
    target.print(_primary(results), soft_wrap=True, highlight=False)
    told = [method_of(results.plan), RULES] if wide else [NARROW, RULES]
    target.print(f"[dim]{' '.join(told)}[/]", soft_wrap=True, highlight=False)
    return rendered(target)


def method_of(plan: Plan) -> str:
    """How the intervals of an experiment are made."""
    return METHOD if plan.seeds > 1 else METHOD_OF_ONE


def _arms(results: Results, cell: Callable[[str], str] = str) -> Table:
    wide = cell is str
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1 + wide, 0, 0))
    for place in _SHOWN:
        shown.add_column(_HEADINGS[place], justify="right" if place else "left", no_wrap=wide or not place)
    for arm in results.arms:
        first, *row = (_row(results.plan, arm)[place] for place in _SHOWN)
        shown.add_row(Text(first), *(Text(cell(one)) for one in row))
    return shown


def _mean(told: str) -> str:
    """A figure without its interval."""
    return told.partition(" (")[0]


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
_SHOWN = (0, 1, 2, 3, 5, 6, 7)
"""Columns of the terminal: means over all tasks are in the report, and their change is told here."""


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
    return _told(mean, lambda one: f"{100 * one:.1f}")


def points(mean: Mean) -> str:
    """A difference in points with its interval."""
    return _told(mean, lambda one: f"{100 * one:+.1f}".replace("-", "−"))


def share(mean: Mean) -> str:
    """A mean reward with its interval."""
    return _told(mean, lambda one: f"{one:.2f}")


def _told(mean: Mean, number: Callable[[float], str]) -> str:
    if mean.low is None or mean.high is None:
        return number(mean.mean)
    return f"{number(mean.mean)} ({number(mean.low)} to {number(mean.high)})"


def results_markdown(results: Results) -> str:
    """All of it, to be taken into a page of the docs."""
    plan = results.plan
    cells = [cell.name for cell in plan.cells]
    parts = [
        (
            f"{plan.seeds} seed{'s' * (plan.seeds > 1)}, {plan.rollouts} training rollouts an arm and seed, "
            f"{plan.tasks} held-out tasks a cell ({len(cells)} cells), {plan.scenarios} held-out scenarios × "
            f"{plan.repeats} rollouts an environment. {method_of(plan)}"
        ),
        table(_HEADINGS, [(code(name), *row) for name, *row in (_row(plan, arm) for arm in results.arms)]),
        _primary(results),
        _besides(results),
        _control(results),
        "### By cell, %",
        table(
            ("arm", *(code(name) for name in cells)),
            [
                (code(label_of(plan, arm.name)), *(percent(arm.cells[name]) for name in cells))
                for arm in results.arms
            ],
        ),
        "### Change against the base, points",
        table(
            ("arm", "one capability", "two", "all"),
            [
                (code(label_of(plan, arm.name)), *_each(arm.change, points))
                for arm in results.arms
                if arm.trained
            ],
        ),
        f"### `{ROUTED}` less each arm, points",
        table(
            ("arm", "one capability", "two", "all", "wishes"),
            [
                (code(label_of(plan, one.arm)), *_each(one.rewards, points), points(one.wishes.every))
                for one in results.against
            ],
        ),
        "### By training rollouts, %",
        f"![Reward by training rollouts]({CURVE})",
        _points(results, results.curve, "rollouts"),
        _whole(results),
        "### By number of adapters, %",
        f"![Reward by number of adapters]({ADAPTERS})",
        _points(results, results.adapters, "adapters"),
        "### The router",
        _router(results),
        "### What was chosen",
        _choices(results),
        RULES,
    ]
    return "\n\n".join(parts) + "\n"


def _primary(results: Results) -> str:
    [found] = [one.rewards.every for one in results.against if one.arm == PRIMARY]
    told = (
        f"The primary comparison, named beforehand: `{ROUTED}` less `{PRIMARY}` on all tasks, "
        f"{points(found)} points. All others are looks beside it."
    )
    if not results.earlier:
        return told
    seeds = "; of ".join(f"{one} seed{'s' * (one > 1)}" for one in results.earlier)
    chosen = f"whoever chose to have {results.plan.seeds} had seen them"
    return f"{told} Results were told before, of {seeds}: {chosen}."


def _besides(results: Results) -> str:
    told = [
        f"`{arm.name}`: {arm.choosing} rollouts on validation tasks"
        + (f", and {arm.besides} of training the adapters it did not choose" if arm.besides else "")
        for arm in results.arms
        if arm.choosing
    ]
    return (
        f"In no budget, for each seed: {'; '.join(told)}. Evaluations in all: {results.evaluated} rollouts. "
        f"{_calibrated(results)}"
    )


def _calibrated(results: Results) -> str:
    groups: dict[int, list[str]] = {}
    for arm in results.arms:
        groups.setdefault(arm.calibrated, []).append(code(arm.name))
    told = [f"{count} of {', '.join(names)}" for count, names in groups.items() if count]
    return (
        "Calibration of the environments, once for all seeds and before, on other scenarios and in no "
        f"budget, took these rollouts: {'; '.join(told)}; none of {', '.join(groups.get(0, []))}. That is "
        "what the docs show; what was played while the environments were made was not counted."
    )


def _control(results: Results) -> str:
    found = results.control
    return (
        f"What the control learnt: in its own environment, `{found.environment}`, {share(found.after)} on "
        f"held-out scenarios, the base {share(found.before)}; change {points(found.change)} points."
    )


def _whole(results: Results) -> str:
    count = len(results.plan.capabilities)
    return (
        f"Each of the {count} adapters of `single-whole` got the rollouts that the table says, {count} "
        "times as many in all; on its way it is the adapter that was chosen at the end."
    )


def _each(figures: Figures, told: Callable[[Mean], str]) -> tuple[str, str, str]:
    return told(figures.one), told(figures.two), told(figures.every)


def _points(results: Results, found: Sequence[Point], what: str) -> str:
    rows = [
        (
            code(label_of(results.plan, one.arm)),
            str(one.at),
            *_each(one.rewards, percent),
            percent(one.wishes.every),
        )
        for one in found
    ]
    return table(("arm", what, "one capability", "two", "all", "wishes"), rows)


def _router(results: Results) -> str:
    labels = results.confusion.labels
    rows = [
        (code(label), *map(str, row)) for label, row in zip(labels, results.confusion.counts, strict=True)
    ]
    played = results.plan.tasks * len(results.plan.cells)
    alike = (
        f"{results.rerouted} of all {played} tasks otherwise in another seed"
        if results.rerouted
        else "every seed alike"
    )
    return (
        f"Right on {results.confusion.right} of {results.confusion.total} tasks of one capability; rows are "
        "what they call for, columns what was chosen. The base routes, which no seed changes: each task "
        f"counts once ({alike}).\n\n" + table(("", *(code(one) for one in labels)), rows)
    )


def _choices(results: Results) -> str:
    rows = [
        (str(place), code(one.single), code(one.whole), MERGES[one.merge])
        for place, one in enumerate(results.choices, start=1)
    ]
    chosen = table(("seed", "single", "single-whole", "weight in weight-merge"), rows)
    told = [
        f"Seed {place}, instruction of `gepa`:\n\n{fenced(text or '(none)')}"
        for place, text in enumerate(results.instructions, start=1)
    ]
    return "\n\n".join([chosen, *told])
