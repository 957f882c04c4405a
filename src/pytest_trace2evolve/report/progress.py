"""Shows the progress of a live run as plain lines, and its expected and actual usage."""

import contextlib
import math
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TextIO

import pytest

from pytest_trace2evolve.records.budget import Budgets, RunTotals, SimulationState
from pytest_trace2evolve.records.completion import Usage
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.report.formatting import format_count, format_dollars
from pytest_trace2evolve.scoring.metrics import Trials, trials_by_task
from pytest_trace2evolve.utils.sanitize import sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.engine.engine import Engine
    from pytest_trace2evolve.session.estimate import Estimate
    from pytest_trace2evolve.session.plan import PlannedSuite


_MIN_ENDED = 3
"""The number of simulations that must have ended before the remaining time is shown."""

_MIN_WAIT = 60.0
"""The seconds after which an answer that has not come is shown."""

_DROP_ORDER = (
    "tokens",
    "resumed",
    "reruns",
    "waiting",
    "oldest",
    "running",
    "cost",
    "baseline",
    "reward",
    "time",
    "lost",
)
"""The parts of the line, in the order in which a narrow terminal drops them."""

_GROUPS = (
    ("done", "reruns", "resumed", "running", "waiting", "lost", "oldest"),
    ("reward", "baseline"),
    ("tokens", "cost"),
    ("time",),
)
"""The parts of the line in their order, between dots."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run at one moment.

    Attributes:
        total: Simulations of the run.
        done: Simulations that have finished, in this run or in an earlier one.
        resumed: Simulations among `done` that come from an earlier run.
        lost: Simulations that were lost to infrastructure failures.
        running: Simulations in progress.
        reward: Mean reward over the tasks reported so far; None before the first one.
        baseline_reward: The baseline's mean reward over the same tasks; None without a baseline.
        tokens: Tokens used so far.
        cost: US dollars spent so far; None if no price is known.
        seconds: Seconds since the run began.
        reruns: Simulations among `total` that were added to confirm regressions.
        oldest: The running task whose model has not answered for the longest time, and these seconds.
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
    oldest: tuple[str, float] = ("", 0.0)

    @property
    def waiting(self) -> int:
        """The number of simulations that have not started."""
        return max(0, self.total - self.done - self.lost - self.running)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the run ends; None while there is too little to base an estimate on.

        A running simulation counts as half done, which is true on average. The estimate needs at least as
        many ended simulations as running ones.
        """
        ended = self.done - self.resumed + self.lost
        half_running = self.running / 2
        remaining = self.running - half_running + self.waiting
        if ended < max(_MIN_ENDED, self.running) or remaining <= 0:
            return None
        return remaining * self.seconds / (ended + half_running)


def progress_line(progress: Progress, width: int) -> str:
    """Describe the progress in one line of at most `width` columns.

    Unknown and zero figures are left out. A narrow line drops its parts in the order of `_DROP_ORDER`. If not
    even the count fits, the line is empty, because a truncated number would be wrong.
    """
    parts = _parts(progress)
    for name in ("", *_DROP_ORDER):
        parts.pop(name, None)
        groups = ("".join(parts.get(part, "") for part in group) for group in _GROUPS)
        line = " · ".join(group.removeprefix(", ") for group in groups if group)
        if len(line) <= width:
            return line
    count = f"{progress.done}/{progress.total}"
    return count if len(count) <= width else ""


def _parts(progress: Progress) -> dict[str, str]:
    parts = {"done": f"{progress.done} of {progress.total} done"}
    if progress.reruns:
        parts["reruns"] = f" ({progress.reruns} added to confirm regressions)"
    if progress.resumed:
        parts["resumed"] = f" ({progress.resumed} from before)"
    for name in ("running", "waiting", "lost"):
        if count := getattr(progress, name):
            parts[name] = f", {count} {name}"
    task, seconds = progress.oldest
    if seconds >= _MIN_WAIT:
        parts["oldest"] = f" ({sanitize_line(task, 40)} waits {_format_duration(seconds)} for an answer)"
    if progress.reward is not None:
        parts["reward"] = f"reward {progress.reward:.3f}"
        if progress.baseline_reward is not None:
            parts["baseline"] = f" (baseline {progress.baseline_reward:.3f})"
    if progress.tokens:
        parts["tokens"] = f", {format_short_count(progress.tokens)} tokens"
    if progress.cost:
        parts["cost"] = ", under $0.01" if progress.cost < 0.01 else f", ${progress.cost:,.2f}"
    seconds_left = progress.seconds_left
    parts["time"] = (
        f"{_format_duration(progress.seconds)} so far"
        if seconds_left is None
        else f"{_format_duration(math.ceil(seconds_left))} left"
    )
    return parts


def format_short_count(count: int) -> str:
    """Format a count with two or three digits and a unit, such as 812, 9.4 k, 312 k or 3.1 M."""
    value, unit = float(count), ""
    for larger_unit in (" k", " M", " G"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger_unit
    return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{value:.0f}{unit}"


def _format_duration(seconds: float) -> str:
    """Format seconds as m:ss, or as h:mm:ss from one hour."""
    minutes, remaining_seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remaining_seconds:02}" if hours else f"{minutes}:{remaining_seconds:02}"


def forecast_text(estimate: "Estimate", budgets: Budgets) -> str:
    """Describe the simulations to make, their expected usage, and the share that the budgets cover."""
    n_to_make = estimate.simulations - estimate.stored_simulations
    text = format_count(n_to_make, "simulation") + " to make"
    if estimate.stored_simulations:
        text += f", {estimate.stored_simulations} finished before"
    if n_to_make and estimate.usage is not None:
        text += f"; as in baseline {', '.join(estimate.sources)} they take {usage_text(estimate.usage)}"
        for name, budget, expected in (
            ("cost", budgets.cost, estimate.usage.cost),
            ("tokens", budgets.tokens, estimate.usage.tokens),
        ):
            if budget is not None and expected and expected > budget:
                text += f"; --t2e-max-{name} {budget:g} covers about {budget / expected:.0%} of that"
    if estimate.max_fresh:
        text += f"; plus up to {format_count(estimate.max_fresh, 'fresh simulation')} for confirmation"
    return text


def usage_text(usage: Usage) -> str:
    """Describe usage: calls, tokens, and the cost if it is known."""
    parts = [format_count(usage.calls, "call"), f"{format_short_count(usage.tokens)} tokens"]
    if usage.cost is not None:
        parts.append(format_dollars(usage.cost))
    return ", ".join(parts)


def totals_text(totals: RunTotals) -> str:
    """Summarize a run in one line: its usage, and the number of simulations by state."""
    state_names = (
        (SimulationState.MADE, "made"),
        (SimulationState.KEPT, "finished before"),
        (SimulationState.LOST, "lost"),
    )
    parts = [f"{totals.states[state]} {name}" for state, name in state_names if totals.states.get(state)]
    usage = totals.usage
    usage_parts = [
        f"{format_short_count(usage.tokens)} tokens",
        *([] if usage.cost is None else [format_dollars(usage.cost)]),
    ]
    usage_parts += [_format_duration(totals.seconds), format_count(usage.calls, "call")]
    return f"{' · '.join(usage_parts)} · simulations: {', '.join(parts) or 'none'}"


class ProgressTracker:
    """Tracks the progress of a run. Other threads may call `read`.

    Args:
        engine: The engine of the run.
        suites: The planned suites by name.

    Attributes:
        total: Simulations of the run; all planned simulations until the selected tasks are known.
    """

    def __init__(self, engine: "Engine", suites: Mapping[str, "PlannedSuite"]) -> None:
        self._engine = engine
        self._baseline_rewards = {
            (name, task_id): reward
            for name, planned in suites.items()
            if planned.baseline is not None
            for task_id, trials in trials_by_task(planned.baseline.evidence.simulations).items()
            if (reward := trials.reward) is not None
        }
        self.total = sum(len(planned.lock.tasks) * planned.trials for planned in suites.values())
        self._sums = (0, 0.0, 0, 0.0)

    def add_task(self, suite: str, task_id: str, records: tuple[SimulationEvidence, ...]) -> None:
        """Add the trials of a task to the mean rewards."""
        reward = Trials(records).reward
        if reward is None:
            return
        baseline_reward = self._baseline_rewards.get((suite, task_id))
        tasks, rewards, compared_tasks, baseline_rewards = self._sums
        if baseline_reward is not None:
            compared_tasks, baseline_rewards = compared_tasks + 1, baseline_rewards + baseline_reward
        # One assignment, so that a reading thread sees either all new values or none.
        self._sums = (tasks + 1, rewards + reward, compared_tasks, baseline_rewards)

    def read(self) -> Progress:
        """Return the current progress of the run."""
        totals = self._engine.totals()
        made, kept = totals.states.get(SimulationState.MADE, 0), totals.states.get(SimulationState.KEPT, 0)
        tasks, rewards, compared_tasks, baseline_rewards = self._sums
        return Progress(
            total=self.total + totals.fresh,
            done=made + kept,
            resumed=kept,
            lost=totals.states.get(SimulationState.LOST, 0),
            running=totals.states.get(SimulationState.RUNNING, 0),
            reward=rewards / tasks if tasks else None,
            # Only if both means cover the same tasks; otherwise they cannot be compared.
            baseline_reward=baseline_rewards / compared_tasks
            if compared_tasks and compared_tasks == tasks
            else None,
            tokens=totals.usage.tokens,
            cost=totals.usage.cost,
            seconds=totals.seconds,
            reruns=totals.fresh,
            oldest=(totals.waiting_task, totals.waiting_seconds),
        )


PRINT_INTERVAL_SECONDS = 30.0
"""Seconds between two lines."""

_PLAIN_LINE_COLUMNS = 200
"""Width of a line on an output that does not wrap; wide enough for every part."""


class ProgressDisplay:
    """Prints progress in its own thread, from `start` to `stop`. With `-q`, it prints nothing.

    Args:
        reporter: Pytest's terminal reporter, if there is one.
        read_progress: Returns the progress of the run.
        interval: Seconds between two lines.

    Attributes:
        trouble: The reason why the display stopped early, in one line; empty if it did not.
    """

    def __init__(
        self,
        reporter: pytest.TerminalReporter | None,
        read_progress: Callable[[], Progress],
        *,
        interval: float = PRINT_INTERVAL_SECONDS,
    ) -> None:
        self.trouble = ""
        self._reporter = reporter
        self._read_progress = read_progress
        self._interval = interval
        self._stop_event = threading.Event()
        self._thread: threading.Thread | None = None
        self._output: TextIO | None = None
        self._copy: TextIO | None = None
        self._is_paused = False
        self._follows_line = False  # whether pytest wrote nothing since the last line of progress

    def start(self) -> None:
        """Start showing progress. Call this in the reporting process, while no item is captured."""
        if self._reporter is None or self._reporter.config.get_verbosity() < 0 or self._thread is not None:
            return
        config = self._reporter.config
        capture = config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            try:  # a copy, because pytest redirects the original while it captures an item
                self._copy = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding)
                self._output = self._copy
            except ValueError:  # a file in memory; io.UnsupportedOperation is a ValueError
                self._output = sys.stdout
        config.pluginmanager.register(self)  # for the hooks below
        self._thread = threading.Thread(target=self._run, name="trace2evolve-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop showing progress. Repeated calls are allowed."""
        self._stop_event.set()
        if self._thread is not None:
            self._thread.join(timeout=1)  # no longer, because `read_progress` may hang
            if self._copy is not None:
                self._copy.close()

    def pytest_enter_pdb(self) -> None:
        """Print nothing while the debugger uses the terminal."""
        self._is_paused = True

    def pytest_leave_pdb(self) -> None:
        """Resume showing progress after the debugger."""
        self._is_paused = False

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logstart(self) -> None:
        """Note that pytest wrote something."""
        self._follows_line = False

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self) -> None:
        """Note that pytest wrote something."""
        self._follows_line = False

    def _run(self) -> None:
        last_printed: Progress | None = None
        try:
            while not self._stop_event.wait(self._interval):
                progress = self._read_progress()
                is_known = last_printed is not None and (
                    replace(progress, seconds=last_printed.seconds) == last_printed
                )
                if not is_known and not self._stop_event.is_set() and self.show(progress):
                    last_printed = progress
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self.trouble = f"the progress display stopped ({reason}); the run continued without it"

    def show(self, progress: Progress) -> bool:
        """Print a line, and return whether it was printed. An `OSError` means that the output was closed."""
        assert self._output is not None
        assert self._reporter is not None
        if self._is_paused:
            return False
        writer = self._reporter._tw
        columns = writer.fullwidth - 1 if self._output.isatty() else _PLAIN_LINE_COLUMNS
        line = f"trace2evolve: {progress_line(progress, columns - len('trace2evolve: '))}"
        if self._reporter.config.getoption("capture", "no") == "no":
            sys.stdout.flush()  # writes the earlier output of an item first
        is_within_line = writer.width_of_current_line > 0 and not self._follows_line
        self._output.write(("\n" if is_within_line else "") + line + "\n")
        self._output.flush()
        self._follows_line = True
        return True
