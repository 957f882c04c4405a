"""What a live run tells while it runs: how far it is, in one line that fits the width there is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_FEWEST_ENDED = 3
"""Simulations that must have ended before a time left is told."""

_DROPPED = ("tokens", "resumed", "waiting", "running", "cost", "baseline", "reward", "time", "lost")
"""The parts of the line, those first that a narrow terminal goes without."""


@dataclass(frozen=True)
class Progress:
    """How far a run is at one moment.

    Attributes:
        total: Simulations of the run.
        done: Those that finished, in this run or in an earlier one.
        resumed: Those among `done` that were taken from an earlier run.
        lost: Those that infrastructure took.
        running: Those under way.
        reward: Mean over the tasks reported so far; None before the first.
        baseline_reward: The baseline's mean over the same tasks; None without a baseline.
        tokens: Tokens used so far.
        cost: US dollars spent so far; None where no price is known.
        seconds: Since the run began.
    """

    total: int
    done: int
    resumed: int
    lost: int
    running: int
    reward: float | None
    baseline_reward: float | None
    tokens: int
    cost: float | None
    seconds: float

    @property
    def waiting(self) -> int:
        """Simulations that have not begun."""
        return max(0, self.total - self.done - self.lost - self.running)

    @property
    def seconds_left(self) -> float | None:
        """Until the run ends, at the pace so far; None while that would be a guess.

        Those under way count as half done, which they are on average. A pace means something once as
        many have ended as are under way: before that, the first ones are still on their way.
        """
        ended = self.done - self.resumed + self.lost
        under_way = self.running / 2
        left = self.running - under_way + self.waiting
        if ended < max(_FEWEST_ENDED, self.running) or left <= 0:
            return None
        return left * self.seconds / (ended + under_way)


def progress_line(progress: Progress, width: int) -> str:
    """The progress in one line of at most `width` columns.

    What is unknown or zero is left out. A narrow line goes without tokens first, then without what was
    taken from before, waiting, running, cost, baseline, reward, time and lost. It is empty where not
    even the bare count fits: half a number would be a wrong one.
    """
    parts = _parts(progress)
    candidates = [_joined(parts)]
    for name in _DROPPED:
        if parts.pop(name, None) is not None:
            candidates.append(_joined(parts))
    candidates.append(f"{progress.done}/{progress.total}")
    return next((line for line in candidates if len(line) <= width), "")


def _parts(progress: Progress) -> dict[str, str]:
    """All that there is to tell, by name."""
    parts = {"done": f"{progress.done} of {progress.total} done"}
    if progress.resumed:
        parts["resumed"] = f" ({progress.resumed} from before)"
    for name in ("running", "waiting", "lost"):
        if count := getattr(progress, name):
            parts[name] = f"{count} {name}"
    if progress.reward is not None:
        parts["reward"] = f"reward {progress.reward:.3f}"
        if progress.baseline_reward is not None:
            parts["baseline"] = f" (baseline {progress.baseline_reward:.3f})"
    if progress.tokens:
        parts["tokens"] = f"{short(progress.tokens)} tokens"
    if progress.cost:
        parts["cost"] = "under $0.01" if progress.cost < 0.01 else f"${progress.cost:,.2f}"
    left = progress.seconds_left
    parts["time"] = (
        f"{_clock(progress.seconds)} so far" if left is None else f"{_clock(math.ceil(left))} left"
    )
    return parts


def _joined(parts: Mapping[str, str]) -> str:
    def told(names: Sequence[str], separator: str = ", ") -> str:
        return separator.join(parts[name] for name in names if name in parts)

    groups = (
        ", ".join(filter(None, (told(("done", "resumed"), ""), told(("running", "waiting", "lost"))))),
        told(("reward", "baseline"), ""),
        told(("tokens", "cost")),
        told(("time",)),
    )
    return " · ".join(filter(None, groups))


def short(count: int) -> str:
    """A count with two or three figures and its unit: 812, 9.4 k, 312 k, 3.1 M."""
    value, unit = float(count), ""
    for larger in (" k", " M", " G"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{value:.0f}{unit}"


def _clock(seconds: float) -> str:
    """Seconds as m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
