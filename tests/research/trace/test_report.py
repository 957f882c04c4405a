"""The text, the tables and the pictures of an experiment."""

from collections.abc import Callable
from typing import Any

import pytest

from research.trace.plan import ARMS, COUNTED, CURVED, POINTS, Plan, label_of
from research.trace.report import (
    METHOD,
    METHOD_OF_ONE,
    adapters_svg,
    curve_svg,
    percent,
    plan_text,
    points,
    results_markdown,
    results_text,
    share,
)
from research.trace.results import Results
from tests.research.trace.sample import PLAN


def test_the_plan_shows_equal_rollouts() -> None:
    text = plan_text(Plan())
    rows = {line.split()[0]: line.split()[1:6] for line in text.splitlines() if line.split()[0] in ARMS}
    assert set(rows) == set(ARMS)
    assert {row[0] for arm, row in rows.items() if arm not in ("base", "single-whole")} == {"3072"}
    assert rows["single-whole"] == ["(×3)", "3072", "6144", "180", "4800"]
    assert rows["single"] == ["3072", "0", "180", "4800", "the"]
    assert rows["control"][3] == "1600"
    assert rows["direct"][3] == "0"
    assert "Control: multi_step_task_completion." in text


def test_the_report_has_all_arms_and_caveats(results: Results) -> None:
    text = results_markdown(results)
    for arm in set(ARMS) - {"single-whole"}:
        assert f"| `{arm}` |" in text
    assert text.count("| `single-whole (×2)` |") == 4 + len((*POINTS, 1.0)), "nowhere without its factor"
    assert "| `single-whole` |" not in text
    assert "| `single-whole (×2)` | 1024 |" in text
    assert METHOD in text
    assert text.startswith("2 seeds, ")
    assert "Earlier reports covered" not in text
    assert "the embedded model cannot write prompts" in text
    assert "512 rollouts to train the adapters that it did not choose" in text
    assert "Right on 4 of 8 tasks of one capability" in text
    assert "each task counts once (equal for every seed)" in text


def test_the_report_has_the_primary_comparison_calibration_and_the_control(results: Results) -> None:
    text = results_markdown(results)
    [merged] = [versus.rewards for versus in results.against if versus.arm == "merged"]
    primary = (
        "The primary comparison, which was named in advance: `routed` minus `merged` on all tasks, "
        f"{points(merged.every)} points. All other comparisons are secondary."
    )
    assert primary in text
    assert primary in results_text(results)
    table = text.partition("### `routed` minus each arm, points")[2].partition("###")[0]
    assert [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")] == [
        label_of(PLAN, arm) for arm in ARMS if arm != "routed"
    ]
    assert f"| `merged` | {points(merged.one)} |" in table
    assert (
        "with these rollouts: 3200 for `merged`, `single`, `weight-merge`, `routed`, `routed-turns`, "
        "`oracle-routed`, `single-whole`; 1600 for `control`; none for `base`, `direct`, `gepa`."
    ) in text
    control = results.control
    assert (
        "In its own environment, `multi_step_task_completion`, the control reached "
        f"{share(control.after)} on held-out scenarios, compared with "
        f"{share(control.before)} for the base: a change of "
        f"{points(control.change)} points."
    ) in text
    assert percent(results.arms[1].rewards.two) in results_text(results)


def test_the_report_of_one_seed_says_nothing_of_seeds(results: Results) -> None:
    plan = PLAN.model_copy(update={"seeds": 1})
    text = results_markdown(results.model_copy(update={"plan": plan}))
    assert text.startswith("1 seed, ")
    assert METHOD_OF_ONE in text
    assert METHOD not in text


def test_the_report_names_earlier_results_and_rerouted_tasks(results: Results) -> None:
    plan = PLAN.model_copy(update={"seeds": 3})
    other = results.model_copy(update={"plan": plan, "earlier": (1, 2), "rerouted": 3})
    text = results_markdown(other)
    assert "Earlier reports covered 1 seed and 2 seeds; the number of 3 seeds was chosen" in text
    played = PLAN.tasks * len(PLAN.cells)
    assert (
        f"each task counts once (3 of all {played} tasks are routed differently with a different seed)"
        in text
    )


# Pictures


@pytest.fixture
def figure_of(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Results], bytes]], Any]:
    """Draws a picture twice, which gives equal files, and returns its figure."""
    figures = pytest.importorskip("matplotlib.figure")

    def draw(make: Callable[[Results], bytes]) -> Any:
        found: list[Any] = []
        save = figures.Figure.savefig

        def record(self: Any, *args: Any, **options: Any) -> None:
            found.append(self)
            save(self, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(figures.Figure, "savefig", record)
            assert make(results) == make(results)
        return found[0]

    return draw


def lines(axis: Any) -> dict[str, Any]:
    """The lines of an axis, by their labels."""
    return {container.get_label(): container.lines[0] for container in axis.containers}


def test_pictures_can_be_compared(figure_of: Callable[..., Any]) -> None:
    curve, counted = figure_of(curve_svg), figure_of(adapters_svg)
    for figure, arms in ((curve, CURVED), (counted, COUNTED)):
        assert len({axis.get_ylim() for axis in figure.axes}) == 1
        assert "Bars: 95 % intervals." in figure.get_suptitle()
        for axis in figure.axes:
            assert list(lines(axis)) == [label_of(PLAN, arm) for arm in arms]
    by_rollouts, by_count = lines(curve.axes[0]), lines(counted.axes[0])
    assert len({line.get_color() for line in by_rollouts.values()}) == len(CURVED)
    assert all(by_rollouts[arm].get_color() == by_count[arm].get_color() for arm in COUNTED)
    dashed = [arm for arm, line in by_rollouts.items() if line.get_linestyle() == "--"]
    assert dashed == ["single-whole (×2)"]
    assert "single-whole (×2), dashed: each of its 2 adapters got so many." in curve.get_suptitle()


def test_a_line_goes_through_its_arms_points(figure_of: Callable[..., Any], results: Results) -> None:
    figure = figure_of(curve_svg)
    arms = {arm.name: arm for arm in results.arms}
    for axis, last, first in zip(
        figure.axes,
        (arms["control"].rewards.one, arms["control"].rewards.two, arms["control"].wishes.every),
        (arms["base"].rewards.one, arms["base"].rewards.two, arms["base"].wishes.every),
        strict=True,
    ):
        heights = list(lines(axis)["control"].get_ydata())
        assert (heights[0], heights[-1]) == (first.mean, last.mean)
