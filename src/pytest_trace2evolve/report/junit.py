"""What a run adds to pytest's own JUnit file: properties of each task, and of the whole run.

Of a task's traces nothing is told here but how its simulations ended: the file goes to places where looking
at a held-out trace is not recorded.
"""

from collections import Counter

from pytest_trace2evolve.records.completion import NOTHING_USED, Usage
from pytest_trace2evolve.records.verdict import CheckStatus
from pytest_trace2evolve.report.run import RunReport
from pytest_trace2evolve.scoring.metrics import Trials
from pytest_trace2evolve.session.trials import TaskRun
from pytest_trace2evolve.session.verdicts import compared

Properties = list[tuple[str, str]]
"""Names and values, in the order of the file."""

PREFIX = "trace2evolve"


def task_properties(suite: str, split: str, task_id: str) -> Properties:
    """Which task an item is."""
    return [
        (f"{PREFIX}.{name}", value) for name, value in (("suite", suite), ("split", split), ("task", task_id))
    ]


def run_properties(run: TaskRun, *, live: bool) -> Properties:
    """What came of a task's trials; what they used, where they were made in this run or an earlier one.

    Args:
        run: The trials.
        live: Whether models were asked: a recorded run's usage is not this run's.
    """
    trials = Trials(run.records)
    measured = trials.measured
    passed = sum(Trials((record,)).passes is True for record in measured)
    found = [
        ("trials", str(len(run.records))),
        ("measured", str(len(measured))),
        ("passed", str(passed)),
    ]
    if trials.reward is not None:
        found.append(("reward", f"{trials.reward:.6g}"))
    ends = Counter(record.termination_reason for record in run.records)
    found.append(("ended_by", ", ".join(f"{end} {count}" for end, count in sorted(ends.items()))))
    if live:
        used = sum((usage for one in run.records for usage in one.usage.values()), NOTHING_USED)
        found += _usage(used)
    return [(f"{PREFIX}.{name}", value) for name, value in found]


def _usage(used: Usage) -> list[tuple[str, str]]:
    found = [("calls", str(used.calls)), ("tokens", str(used.tokens))]
    return [*found, ("cost", f"{used.cost:.6g}")] if used.cost is not None else found


def verdict_properties(report: RunReport) -> Properties:
    """The run's verdict, and each split's."""
    plan = report.plan
    found = [
        ("verdict", report.decision.value if report.decision is not None and not report.trouble else "none"),
        ("candidate", plan.candidate.id),
        ("run", plan.run_id),
    ]
    if report.trouble:
        found.append(("trouble", report.trouble))
    for one in report.outcomes:
        if one.reason:
            found.append((f"{one.name}.reason", one.reason))
        baseline = plan.suites[one.name].baseline
        if baseline is not None:
            found.append((f"{one.name}.baseline", baseline.name))
        sides = compared(plan, plan.suites[one.name])
        if sides is not None:
            found.append((f"{one.name}.baseline_agent", sides.baseline.text))
            found.append((f"{one.name}.candidate_agent", sides.candidate.text))
        for verdict in one.verdicts:
            place = f"{one.name}.{verdict.split}"
            failed = [check.id for check in verdict.checks if check.status is CheckStatus.FAIL]
            found += [
                (f"{place}.verdict", verdict.decision.value if verdict.decision is not None else "none"),
                (f"{place}.policy", verdict.policy),
                (f"{place}.goal", verdict.goal.value),
                (f"{place}.label", verdict.label.value),
                (f"{place}.failed_checks", ", ".join(failed)),
            ]
    return [(f"{PREFIX}.{name}", value) for name, value in found]
