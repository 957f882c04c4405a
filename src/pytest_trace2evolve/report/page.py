"""Renders the report page: one HTML file that loads nothing and executes only its own script.

The page shows recorded verdicts and counts, and computes no statistics. It is written with a
Content-Security-Policy that permits only the script and the style of this package, by their hashes.
"""

import base64
import hashlib
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.ledger import Evaluation
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.task import natural_sort_key
from pytest_trace2evolve.records.trace import REGULAR_ENDS
from pytest_trace2evolve.records.verdict import (
    RATIO_UNIT,
    CheckResult,
    CheckStatus,
    RunSummary,
    SuiteSummary,
    Verdict,
)
from pytest_trace2evolve.report.charts import Axis, axis_row, check_row
from pytest_trace2evolve.report.conclusion import (
    FIXED_TASKS_TEXT,
    baseline_names,
    headline,
    is_guard,
    reason_and_next_steps,
    show_command,
)
from pytest_trace2evolve.report.evidence import entry_line, next_test_text
from pytest_trace2evolve.report.figures import (
    CHECK_NAMES,
    CHECK_SIGNS,
    check_figure,
    detectable_text,
    is_in_points,
    p_text,
    pass_hat_rows,
    share_text,
    usage_rows,
)
from pytest_trace2evolve.report.page_traces import MAX_BYTES, pack_traces, start_text
from pytest_trace2evolve.scoring.metrics import Trials, is_success, trials_by_task
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.sanitize import sanitize, sanitize_line

if TYPE_CHECKING:
    from pytest_trace2evolve.session.ledger import SplitHistory
    from pytest_trace2evolve.session.page_data import PageFacts, PageSuite

PAGE_NAME = "report.html"
"""The file of a run's folder that holds its page."""

MAX_NAME_LENGTH, MAX_LINE_LENGTH = 200, 2_000
"""Maximum numbers of characters of a name and of a line of text."""

_GAINS = frozenset({"reward", "pass rate", "actions", "read actions", "write actions"})
"""Checks whose figure rises if the candidate is better; the others count harm."""

_STATES = (
    ("confirmed", "confirmed regression"),
    ("suspected", "suspected regression"),
    ("broken", "broken"),
    ("fault", "new fault"),
    ("lost", "lost"),
    ("lower", "same, lower"),
    ("same", "same"),
    ("higher", "same, higher"),
    ("left-out", "not compared"),
    ("fixed", "fixed"),
)
"""States of a task and their titles, in the order of the page: the worst change first."""

_FAULTY_ENDS = {"max_steps": "steps", "agent_error": "agent errors"}
"""Ends of simulations that a check counts, with the name of the check."""

MAX_EVALUATIONS = 10
"""Maximum number of evaluations of a split that the page lists."""

MAX_STARTS = 3
"""Maximum number of tasks that the page names first."""

_RANKS = {state: rank for rank, (state, _) in enumerate(_STATES)}


@dataclass(frozen=True)
class Side:
    """One side's trials of a task: counts, mean reward, cost and tokens of a trial, and faults.

    Faults are broken rules, and the ends of `_FAULTY_ENDS`, with the number of trials that have each.
    """

    passed: int
    measured: int
    lost: int
    reward: float | None
    cost: float | None
    tokens: int | None
    faults: Counter[str]

    @property
    def passes(self) -> bool:
        """Whether more than half of the measured trials succeed."""
        return 2 * self.passed > self.measured

    @property
    def text(self) -> str:
        return (f"{self.passed}/{self.measured}" if self.measured else "–") + (
            f" ({self.lost} lost)" if self.lost else ""
        )


@dataclass(frozen=True)
class Row:
    """One task of the page."""

    suite: str
    split: str
    task: str
    state: str
    baseline: Side
    candidate: Side
    faults: tuple[str, ...]
    tags: tuple[str, ...]
    is_sealed: bool

    @property
    def name(self) -> str:
        return sanitize_line(self.task, MAX_NAME_LENGTH)

    @property
    def title(self) -> str:
        return dict(_STATES)[self.state]

    @property
    def change(self) -> float:
        """The change of the mean reward; 0 if either side was not measured."""
        if self.baseline.reward is None or self.candidate.reward is None:
            return 0.0
        return self.candidate.reward - self.baseline.reward


def write_page(path: Path, summary: RunSummary, facts: "PageFacts") -> None:
    """Write the page of a run or a comparison.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        write_atomic(path, page_html(summary, facts))
    except OSError as error:
        cause = error.strerror or error
        raise ConfigError(f"{path}: the page cannot be written: {cause}; name another file") from None


def page_html(
    summary: RunSummary, facts: "PageFacts", trace_link: Callable[[str, str], str] | None = None
) -> str:
    """Render the page of a run or a comparison as HTML.

    Args:
        trace_link: The address at which a sealed trace can be opened, by suite and task; None in a file.
    """
    script, style = resource("page.js"), resource("page.css")
    reason, advice, command = reason_and_next_steps(summary)
    decision = None if summary.trouble else summary.decision
    by_name = {suite.name: suite for suite in facts.suites}
    rows = task_rows(summary, facts.suites)
    counts = Counter(row.state for row in rows)
    traces, omitted_count = _pack(rows, by_name)
    baselines = baseline_names(summary)
    claim = (
        "No verdict"
        if decision is None
        else headline(summary, _line, _line(baselines) or "its baseline", CHECK_NAMES)
    )
    return render(
        "page.html",
        script=script,
        style=style,
        policy=content_policy(script, style),
        trace_link=trace_link,
        summary=summary,
        decision=decision.value if decision else "none",
        claim=claim,
        baselines=_line(baselines),
        reason=_line(reason),
        advice=_line(advice),
        command=_line(command),
        verdicts=[_verdict_view(suite, verdict) for suite in summary.suites for verdict in suite.verdicts],
        rows=rows,
        traces=traces,
        omitted_count=omitted_count,
        starts=_starts(rows, by_name),
        changes=[
            (_line(title), [_difference_line(line) for line in lines]) for title, lines in facts.changes
        ],
        compared=[(suite.name, suite.compared.lines) for suite in summary.suites if suite.compared],
        failures=[(suite.name, failure_counts(suite)) for suite in facts.suites if suite.baseline],
        lineage=facts.lineage,
        histories=[_history(history) for history in facts.histories],
        reproduce=_line(shlex.join(summary.command)),
        show=show_command(summary) if summary.evidence else "",
        states=[(state, title, counts[state]) for state, title in _STATES if counts[state]],
        tags=sorted({tag for row in rows for tag in row.tags}),
        splits=list(dict.fromkeys((row.suite, row.split) for row in rows)),
        has_faults=any(row.faults for row in rows),
        line=_line,
        share=share_text,
    )


def _pack(rows: Sequence[Row], suites: Mapping[str, "PageSuite"]) -> tuple[dict[int, str], int]:
    """Return the packed traces by row, as many as fit into the page, and the number of other tasks."""
    packed: dict[int, str] = {}
    size, omitted_count = 0, 0
    for index, row in enumerate(rows):
        if (sides := suites[row.suite].traces.get(row.task)) is None:
            continue
        text = pack_traces(sides)
        if size + len(text) > MAX_BYTES:
            omitted_count += 1
            continue
        size += len(text)
        packed[index] = text
    return packed, omitted_count


def _starts(rows: Sequence[Row], suites: Mapping[str, "PageSuite"]) -> list[tuple[int, Row, str]]:
    """Return the first rows that got worse, each with its index and what went wrong in its traces."""
    starts = []
    for index, row in enumerate(rows[:MAX_STARTS]):
        if _RANKS[row.state] <= _RANKS["fault"] or row.faults:
            _, traces = suites[row.suite].traces.get(row.task, ([], []))
            starts.append((index, row, start_text(traces, row.faults)))
    return starts


def _line(text: object) -> str:
    return sanitize_line(str(text), MAX_LINE_LENGTH)


@cache
def resource(name: str) -> str:
    """Return the text of a template, a script or a style."""
    return (files("pytest_trace2evolve.report") / "templates" / name).read_text(encoding="utf-8")


def content_policy(script: str, style: str, others: str = "form-action 'none'") -> str:
    """Return a Content-Security-Policy that permits only this script and style, and the `others`."""
    script_hash, style_hash = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)
    )
    return (
        f"default-src 'none'; base-uri 'none'; {others}; script-src 'sha256-{script_hash}'; "
        f"style-src 'sha256-{style_hash}'"
    )


@cache
def _template(name: str) -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(resource(name))


def render(name: str, **content: Any) -> str:
    """Render a template, which escapes all texts."""
    page: str = _template(name).render(**content)
    return page


def failure_counts(suite: "PageSuite") -> list[tuple[str, str, str, int]]:
    """Count the simulations of both sides with each kind of failure.

    Returns:
        The kind, the counts of both sides, and the rise, for each kind that occurs; the largest rise first.
    """
    assert suite.baseline is not None
    counts: list[Counter[str]] = []
    for side in (suite.baseline, suite.candidate):
        counter: Counter[str] = Counter()
        for record in side.simulations:
            if record.status is Status.MEASURED and record.termination_reason not in REGULAR_ENDS:
                counter[f"ended by {record.termination_reason}"] += 1
            counter["lost or not measured"] += record.status is not Status.MEASURED
            is_failed = record.reward is not None and not is_success(record.reward)
            counter.update(
                f"failed, {name.value} below 1"
                for name, value in record.components.items()
                if is_failed and not is_success(value)
            )
            counter.update(
                f"breaks {name.value.replace('_', ' ')}"
                for name, count in (record.invariants or {}).items()
                if count
            )
            counter.update(
                f"check {name} broken" for name, outcome in record.checks.items() if outcome == "broken"
            )
        counts.append(counter)
    old, new = counts
    totals = [len(side.simulations) for side in (suite.baseline, suite.candidate)]
    kinds = sorted(
        (+(old | new)).keys(), key=lambda kind: (old[kind] * totals[1] - new[kind] * totals[0], kind)
    )
    return [
        (_line(kind), f"{old[kind]} of {totals[0]}", f"{new[kind]} of {totals[1]}", new[kind] - old[kind])
        for kind in kinds
    ]


def _difference_line(line: str) -> tuple[str, str]:
    kind = {"+": "added", "-": "removed", "@": "place"}.get(line[:1], "")
    return kind, sanitize(line[:MAX_LINE_LENGTH])


def _history(history: "SplitHistory") -> tuple[str, list[str]]:
    """Return the name of a split, and its latest evaluations with the level that is left."""
    lines = [
        f"{entry.at:%Y-%m-%d} {entry_line(entry, history.lock)}"
        for entry in history.entries
        if isinstance(entry, Evaluation)
    ][-MAX_EVALUATIONS:]
    if history.next_test is not None:
        lines.append(next_test_text(history.next_test, is_damaged=False))
    return f"{history.suite} · {history.split}", [_line(line) for line in lines]


def _verdict_view(suite: SuiteSummary, verdict: Verdict) -> dict[str, Any]:
    """Return what the page shows of the verdict on a split."""
    facts = [f"{verdict.label.value} evidence", f"policy {verdict.policy}", f"goal {verdict.goal.value}"]
    facts += [f"{verdict.test_text}, level {verdict.alpha:.4f}"] if verdict.look and verdict.alpha else []
    facts += [FIXED_TASKS_TEXT] if verdict.estimand == "suite" else []
    shown = [check for check in verdict.checks if check.status is not CheckStatus.NOT_APPLICABLE]
    plotted = [check for check in shown if is_in_points(check) and check.estimate is not None]
    groups = [
        ("higher is better", [check for check in plotted if _name(check) in _GAINS]),
        ("higher is worse", [check for check in plotted if _name(check) not in _GAINS]),
    ]
    axis = Axis.of(plotted)
    return {
        "title": " · ".join(filter(None, (suite.name, verdict.split or "all tasks"))),
        "decision": verdict.decision.value if verdict.decision else (verdict.guard or "none"),
        "role": "guards against harm" if is_guard(verdict) else "decides" if verdict.split else "decide",
        "facts": facts,
        "reason": verdict.reason,
        "groups": [
            (title, [_check_view(check, axis) for check in checks]) for title, checks in groups if checks
        ],
        "axis": axis_row(axis),
        "others": [_check_view(check, axis) for check in shown if check not in plotted],
        "left_out": verdict.left_out,
        "sides": (verdict.baseline, verdict.candidate),
        "usage": [
            (*row, _line(found.note)) for row, found in zip(usage_rows(verdict), verdict.usage, strict=True)
        ],
        "pass_hat": pass_hat_rows(verdict),
    }


def _name(check: CheckResult) -> str:
    return CHECK_NAMES.get(check.id, check.id)


def _check_view(check: CheckResult, axis: Axis) -> dict[str, Any]:
    return {
        "name": sanitize_line(_name(check), MAX_NAME_LENGTH).replace("_", " "),
        "status": check.status.value,
        "word": check.status.value.replace("_", " "),
        "sign": CHECK_SIGNS[check.status],
        "plot": check_row(check, axis),
        "figure": check_figure(check),
        "is_ratio": check.unit == RATIO_UNIT,
        "p": p_text(check),
        "detects": detectable_text(check),
        "detail": _line(check.detail),
    }


def task_rows(summary: RunSummary, suites: Sequence["PageSuite"]) -> list[Row]:
    """Return the compared tasks, those that explain the verdict first."""
    rows: list[Row] = []
    by_name = {suite.name: suite for suite in suites}
    for suite_summary in summary.suites:
        suite = by_name.get(suite_summary.name)
        if suite is None or not suite_summary.verdicts:
            continue
        baseline, candidate = (
            {task: _side(trials) for task, trials in trials_by_task(side.simulations if side else ()).items()}
            for side in (suite.baseline, suite.candidate)
        )
        old_faults, new_faults = (
            sum((side.faults for side in sides.values()), Counter[str]()) for sides in (baseline, candidate)
        )
        rising = [fault for fault, _ in (new_faults - old_faults).most_common()]
        names = baseline.keys() | candidate.keys()
        verdicts = {verdict.split or "": verdict for verdict in suite_summary.verdicts}
        for split in dict.fromkeys(("",) if "" in verdicts else (*verdicts, *suite.splits)):
            for task in suite.splits.get(split, names) & names:
                old, new = (side.get(task, _NO_TRIALS) for side in (baseline, candidate))
                faults = tuple(fault for fault in rising if new.faults[fault] > old.faults[fault])
                state = _state(verdicts.get(split), task, old, new, has_new_fault=bool(faults))
                tags = tuple(sanitize_line(tag, MAX_NAME_LENGTH) for tag in suite.tags.get(task, ()))
                is_sealed = task in suite.sealed
                rows.append(Row(suite.name, split, task, state, old, new, faults, tags, is_sealed))
    harmed = {
        _name(check)
        for suite_summary in summary.suites
        for verdict in suite_summary.verdicts
        for check in verdict.checks
        if check.status in (CheckStatus.FAIL, CheckStatus.UNDECIDED)
    }

    def order(row: Row) -> tuple[Any, ...]:
        rank = _RANKS[row.state]
        # A verdict that faults decide is explained by the tasks that have them.
        explains = any(_FAULTY_ENDS.get(fault, "rules") in harmed for fault in row.faults)
        rank = -1 if explains and row.state != "confirmed" else rank
        return rank, row.change, row.suite, natural_sort_key(row.task)

    return sorted(rows, key=order)


_NO_TRIALS = Side(0, 0, 0, None, None, None, Counter())


def _side(trials: Trials) -> Side:
    records = trials.records
    costs = [record.cost for record in records if record.cost is not None]
    tokens = [sum(usage.tokens for usage in record.usage.values()) for record in records if record.usage]
    return Side(
        passed=trials.pass_count,
        measured=len(trials.measured_records),
        lost=len(records) - len(trials.measured_records),
        reward=trials.reward,
        cost=sum(costs) / len(costs) if costs else None,
        tokens=sum(tokens) // len(tokens) if tokens else None,
        faults=Counter(
            fault
            for record in trials.measured_records
            for fault in (
                *(rule.value for rule, count in (record.invariants or {}).items() if count),
                *({record.termination_reason} & _FAULTY_ENDS.keys()),
            )
        ),
    )


def _state(verdict: Verdict | None, task: str, old: Side, new: Side, *, has_new_fault: bool) -> str:
    """Return a task's state by the verdict on its split; without a verdict, by the counts of its trials."""
    if verdict is not None:
        lists = (
            ("confirmed", verdict.regressions),
            ("suspected", verdict.suspected),
            ("broken", verdict.broken),
            ("fixed", verdict.fixed),
        )
        if state := next((state for state, tasks in lists if task in tasks), ""):
            return state
        if any(line.startswith(f"{task}: ") for line in verdict.left_out):
            return "left-out"
    if not new.measured or not old.measured:
        return "lost"
    if verdict is None and old.passes != new.passes:
        return "fixed" if new.passes else "broken"
    if has_new_fault:
        return "fault"
    change = (new.reward or 0.0) - (old.reward or 0.0)
    return "lower" if change < 0 else "higher" if change > 0 else "same"
