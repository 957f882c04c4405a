"""Pictures: an arm looks the same in each, heights can be compared, and bars are explained."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from research.trace.arms import COUNTED, CURVED, label_of
from research.trace.pictures import adapters_svg, curve_svg
from research.trace.results import Results
from tests.experiments.made import PLAN, results

figures = pytest.importorskip("matplotlib.figure")


def drawn(make: Callable[[Results], bytes], found: Results, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The figure that a picture is of."""
    kept: list[Any] = []
    real = figures.Figure.savefig

    def save(self: Any, *given: Any, **told: Any) -> None:
        kept.append(self)
        real(self, *given, **told)

    monkeypatch.setattr(figures.Figure, "savefig", save)
    assert make(found) == make(found)  # equal results give equal files
    monkeypatch.undo()
    return kept[0]


def lines(axis: Any) -> dict[str, Any]:
    """Its lines, by their labels."""
    return {one.get_label(): one.lines[0] for one in axis.containers}


def test_pictures_can_be_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = results(tmp_path)
    curve, counted = (drawn(make, found, monkeypatch) for make in (curve_svg, adapters_svg))
    for figure, arms in ((curve, CURVED), (counted, COUNTED)):
        assert len({axis.get_ylim() for axis in figure.axes}) == 1
        assert "Bars: 95 % intervals." in figure.get_suptitle()
        for axis in figure.axes:
            assert list(lines(axis)) == [label_of(PLAN, arm) for arm in arms]
    one, other = lines(curve.axes[0]), lines(counted.axes[0])
    assert len({line.get_color() for line in one.values()}) == len(CURVED)
    assert {arm: one[arm].get_color() for arm in COUNTED} == {arm: other[arm].get_color() for arm in COUNTED}
    assert [arm for arm, line in one.items() if line.get_linestyle() == "--"] == ["single-whole (×2)"]
    assert "single-whole (×2), dashed: each of its 2 adapters got so many." in curve.get_suptitle()


def test_a_line_goes_through_its_arms_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = results(tmp_path)
    figure = drawn(curve_svg, found, monkeypatch)
    base, control = (next(arm for arm in found.arms if arm.name == name) for name in ("base", "control"))
    for axis, last, first in zip(
        figure.axes,
        (control.rewards.one, control.rewards.two, control.wishes.every),
        (base.rewards.one, base.rewards.two, base.wishes.every),
        strict=True,
    ):
        heights = list(lines(axis)["control"].get_ydata())
        assert (heights[0], heights[-1]) == (first.mean, last.mean)
