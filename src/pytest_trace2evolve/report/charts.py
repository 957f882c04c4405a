"""Draws charts of a report page as SVG, whose horizontal positions are percentages of the available width."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pytest_trace2evolve.records.verdict import CheckResult
from pytest_trace2evolve.report.figures import interval_text

_MARGIN_PERCENT = 2.0
_STEPS = (1, 2, 5, 10, 20, 25, 50, 100)
_ROW = Markup('<svg class="plot" width="100%" height="26" role="img" aria-label="{}">{}</svg>')
_CHART = Markup('<svg class="plot chart" width="100%" height="220" role="img" aria-label="{}">{}</svg>')


@dataclass(frozen=True)
class Axis:
    """The common axis of several rows, in shares from -1 to 1."""

    low: float
    high: float

    @classmethod
    def of(cls, checks: Sequence[CheckResult]) -> "Axis":
        """Return the axis that fits the intervals, margins and detectable changes of checks."""
        values = [0.0, -0.02, 0.02]
        for check in checks:
            values += [value for value in (check.estimate, check.low, check.high) if value is not None]
            values += [check.threshold or 0.0]
            values += [sign * min(check.detectable, 1.0) for sign in (-1, 1) if check.detectable is not None]
        return cls(max(-1.0, min(values)), min(1.0, max(values)))

    def percent(self, value: float) -> str:
        """Return the horizontal position of a value."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return f"{_MARGIN_PERCENT + share * (100 - 2 * _MARGIN_PERCENT):.2f}%"

    def width(self, low: float, high: float) -> str:
        return f"{float(self.percent(high)[:-1]) - float(self.percent(low)[:-1]):.2f}%"

    @property
    def ticks(self) -> list[float]:
        """Round values inside the axis, at most nine."""
        step = next((step for step in _STEPS if (self.high - self.low) * 100 / step <= 8), _STEPS[-1])
        first, last = -int(-self.low * 100 // step), int(self.high * 100 // step)
        return [index * step / 100 for index in range(first, last + 1)]


def check_row(check: CheckResult, axis: Axis) -> Markup:
    """Draw a check: its estimate with the interval, zero, the margin and the smallest detectable change."""
    if check.estimate is None:
        return Markup("")
    parts = []
    if check.detectable is not None:
        low, high = -min(check.detectable, 1.0), min(check.detectable, 1.0)
        parts.append(
            Markup('<rect class="band" x="{}" width="{}" y="3" height="20"/>').format(
                axis.percent(low), axis.width(low, high)
            )
        )
    parts.append(_line("zero", axis.percent(0), 0, axis.percent(0), 26))
    if check.threshold:
        parts.append(_line("margin", axis.percent(check.threshold), 0, axis.percent(check.threshold), 26))
    if check.low is not None and check.high is not None:
        parts.append(_line("interval", axis.percent(check.low), 13, axis.percent(check.high), 13))
    parts.append(Markup('<circle cx="{}" cy="13" r="5"/>').format(axis.percent(check.estimate)))
    return _ROW.format(f"change {interval_text(check)} points", Markup("").join(parts))


def axis_row(axis: Axis) -> Markup:
    """Draw the ticks of an axis, in percentage points."""
    parts = [
        Markup('<text x="{}" y="16">{}</text>').format(
            axis.percent(tick), f"{100 * tick:+.0f}".replace("+0", "0")
        )
        for tick in axis.ticks
    ]
    return _ROW.format("axis, percentage points", Markup("").join(parts))


@dataclass(frozen=True)
class ClimbPoint:
    """A proposal in the chart of a search.

    Attributes:
        simulations: The number of simulations of the search so far.
        origin: Position of the parent: its simulations, and its gain over the root.
        gain: Gain over the root: the parent's gain and the proposal's own, on discovery, from -1 to 1.
    """

    name: str
    state: str
    simulations: int
    origin: tuple[int, float]
    gain: float
    error: float


def climb_chart(points: Sequence[ClimbPoint]) -> Markup:
    """Draw each proposal's gain over the root against the simulations so far, with a line from its parent."""
    if not points:
        return Markup("")
    top = max(0.02, *(point.gain + point.error for point in points))
    low = min(-0.02, *(point.gain - point.error for point in points))
    most = max(point.simulations for point in points)

    def at(simulations: float, gain: float) -> tuple[str, float]:
        return f"{3 + 94 * simulations / most:.2f}%", round(12 + 196 * (top - gain) / (top - low), 1)

    parts = [_line("zero", *at(0, 0), *at(most, 0))]
    parts += [
        Markup('<text class="{}" x="{}" y="{}">{}</text>').format(*label)
        for label in (
            ("start", "0%", 10, f"{100 * top:+.0f}"),
            ("start", "0%", 218, f"{100 * low:+.0f}"),
            ("end", "100%", 218, f"{most:,} simulations"),
        )
    ]
    for point in points:
        x, y = at(point.simulations, point.gain)
        parts.append(_line("lineage", *at(*point.origin), x, y))
        ends = (at(point.simulations, point.gain + sign * point.error) for sign in (-1, 1))
        parts.append(_line("error", *next(ends), *next(ends)))
        title = f"{point.name}: {100 * point.gain:+.1f} ± {100 * point.error:.1f} points, {point.state}"
        parts.append(
            Markup('<circle class="{}" cx="{}" cy="{}" r="5"><title>{}</title></circle>').format(
                point.state, x, y, title
            )
        )
    return _CHART.format(f"gain of {len(points)} proposals against simulations", Markup("").join(parts))


def _line(name: str, x1: str, y1: float, x2: str, y2: float) -> Markup:
    return Markup('<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(name, x1, y1, x2, y2)
