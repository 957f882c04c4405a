"""The progress of a live run in one line that fits the width, and its expected and actual usage."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_trace2evolve.records.budget import Budgets, State, Totals
from pytest_trace2evolve.records.completion import Usage
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.report.formatting import counted, dollars
from pytest_trace2evolve.scoring.metrics import Trials

if TYPE_CHECKING:
    from pytest_trace2evolve.engine.engine import Engine
    from pytest_trace2evolve.session.estimate import Estimate
    from pytest_trace2evolve.session.plan import PlannedSuite

_FEWEST_ENDED = 3
"""Simulations that must have ended before the time left is shown."""

_DROPPED = ("tokens", "resumed", "reruns", "waiting", "running", "cost", "baseline", "reward", "time", "lost")
"""The parts of the line, in the order in which they are dropped on a narrow terminal."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run at one moment.

    Attributes:
        total: Simulations of the run.
        done: Simulations that finished, in this run or in an earlier one.
        resumed: Simulations among `done` that come from an earlier run.
        lost: Simulations that infrastructure ended.
        running: Simulations under way.
        reward: Mean reward over the tasks reported so far; None before the first.
        baseline_reward: The baseline's mean reward over the same tasks; None without a baseline.
        tokens: Tokens used so far.
        cost: US dollars spent so far; None if no price is known.
        seconds: Seconds since the run began.
        reruns: Simulations among `total` that were added to confirm tasks that fell.
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
    reruns: int = 0

    @property
    def waiting(self) -> int:
        """Simulations that have not begun."""
        return max(0, self.total - self.done - self.lost - self.running)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the run ends, at the pace so far; None while that would be a guess.

        Simulations under way count as half done, which they are on average. The pace means nothing until at
        least as many simulations have ended as are under way.
        """
        ended = self.done - self.resumed + self.lost
        under_way = self.running / 2
        left = self.running - under_way + self.waiting
        if ended < max(_FEWEST_ENDED, self.running) or left <= 0:
            return None
        return left * self.seconds / (ended + under_way)


def progress_line(progress: Progress, width: int) -> str:
    """The progress in one line of at most `width` columns.

    Unknown and zero figures are left out. A narrow line loses its parts in the order of `_DROPPED`. The line
    is empty if not even the bare count fits, because a truncated number would be wrong.
    """
    parts = _parts(progress)
    lines = [_joined(parts)]
    for name in _DROPPED:
        if parts.pop(name, None) is not None:
            lines.append(_joined(parts))
    lines.append(f"{progress.done}/{progress.total}")
    return next((line for line in lines if len(line) <= width), "")


def _parts(progress: Progress) -> dict[str, str]:
    parts = {"done": f"{progress.done} of {progress.total} done"}
    if progress.reruns:
        parts["reruns"] = f" ({progress.reruns} added to confirm falls)"
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
    def some(names: Iterable[str], separator: str = ", ") -> str:
        return separator.join(parts[name] for name in names if name in parts)

    groups = (
        ", ".join(
            filter(None, (some(("done", "reruns", "resumed"), ""), some(("running", "waiting", "lost"))))
        ),
        some(("reward", "baseline"), ""),
        some(("tokens", "cost")),
        some(("time",)),
    )
    return " · ".join(filter(None, groups))


def short(count: int) -> str:
    """A count with two or three digits and its unit, such as 812, 9.4 k, 312 k or 3.1 M."""
    value, unit = float(count), ""
    for larger in (" k", " M", " G"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{value:.0f}{unit}"


def _clock(seconds: float) -> str:
    """Seconds as m:ss, or as h:mm:ss from one hour."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def forecast(estimate: "Estimate", budgets: Budgets) -> str:
    """One line with the number of simulations, their likely usage, and the share that the budgets cover."""
    left = estimate.simulations - estimate.kept
    text = counted(left, "simulation") + " to make"
    if estimate.kept:
        text += f", {estimate.kept} finished before"
    if left and estimate.usage is not None:
        text += f"; as in baseline {', '.join(estimate.sources)} they take {usage_text(estimate.usage)}"
        for name, budget, needed in (
            ("cost", budgets.cost, estimate.usage.cost),
            ("tokens", budgets.tokens, estimate.usage.tokens),
        ):
            if budget is not None and needed and needed > budget:
                text += f"; --t2e-max-{name} {budget:g} suffices for about {budget / needed:.0%} of that"
    if estimate.fresh:
        text += f"; plus up to {counted(estimate.fresh, 'fresh simulation')} for confirmation"
    return text


def usage_text(usage: Usage) -> str:
    """The calls, the tokens, and the cost if it is known."""
    parts = [counted(usage.calls, "call"), f"{short(usage.tokens)} tokens"]
    if usage.cost is not None:
        parts.append(dollars(usage.cost))
    return ", ".join(parts)


def totals_text(totals: Totals) -> str:
    """One line for the end of a run, with its usage and the number of simulations by state."""
    names = ((State.MADE, "made"), (State.KEPT, "finished before"), (State.LOST, "lost"))
    parts = [f"{totals.states[state]} {name}" for state, name in names if totals.states.get(state)]
    usage = totals.usage
    used = [f"{short(usage.tokens)} tokens", *([] if usage.cost is None else [dollars(usage.cost)])]
    used += [_clock(totals.seconds), counted(usage.calls, "call")]
    return f"{' · '.join(used)} · simulations: {', '.join(parts) or 'none'}"


class Watch:
    """Tracks the progress of a run; `read` may be called from another thread.

    Args:
        engine: The engine of the run.
        suites: The planned suites by name.

    Attributes:
        total: Simulations of the run; all planned ones until the selection of tasks is known.
    """

    def __init__(self, engine: "Engine", suites: Mapping[str, "PlannedSuite"]) -> None:
        self._engine = engine
        self._baseline = {
            (name, task_id): reward
            for name, planned in suites.items()
            if planned.baseline is not None
            for task_id, reward in _rewards(planned.baseline.evidence.simulations).items()
        }
        self.total = sum(len(planned.lock.tasks) * planned.trials for planned in suites.values())
        self._sums = (0, 0.0, 0, 0.0)

    def report(self, suite: str, task_id: str, records: tuple[SimulationEvidence, ...]) -> None:
        """Add the trials of a task to the means."""
        reward = Trials(records).reward
        if reward is None:
            return
        before = self._baseline.get((suite, task_id))
        tasks, rewards, compared, befores = self._sums
        if before is not None:
            compared, befores = compared + 1, befores + before
        # A single assignment: the reading thread sees all four new values or none.
        self._sums = (tasks + 1, rewards + reward, compared, befores)

    def read(self) -> Progress:
        """The current progress of the run."""
        totals = self._engine.totals()
        made, kept = totals.states.get(State.MADE, 0), totals.states.get(State.KEPT, 0)
        tasks, rewards, compared, befores = self._sums
        return Progress(
            total=self.total + totals.fresh,
            done=made + kept,
            resumed=kept,
            lost=totals.states.get(State.LOST, 0),
            running=totals.states.get(State.RUNNING, 0),
            reward=rewards / tasks if tasks else None,
            # Only if both means cover the same tasks; otherwise they cannot be compared.
            baseline_reward=befores / compared if compared and compared == tasks else None,
            tokens=totals.usage.tokens,
            cost=totals.usage.cost,
            seconds=totals.seconds,
            reruns=totals.fresh,
        )


def _rewards(records: Iterable[SimulationEvidence]) -> dict[str, float]:
    groups: dict[str, list[SimulationEvidence]] = {}
    for record in records:
        groups.setdefault(record.task_id, []).append(record)
    means = {task_id: Trials(tuple(group)).reward for task_id, group in groups.items()}
    return {task_id: mean for task_id, mean in means.items() if mean is not None}
