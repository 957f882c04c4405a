"""Output of a run for other programs: summary files, properties of pytest's JUnit file, and the command.

From a task's traces, the JUnit file contains only how the simulations ended, because its readers' access to a
held-out trace is not recorded.
"""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.records.completion import NOTHING_USED
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.verdict import SUMMARY_SCHEMA, CheckStatus, Decision, RunSummary
from pytest_trace2evolve.report.github import LEAST_LIMIT, SUMMARY_LIMIT, run_markdown
from pytest_trace2evolve.scoring.metrics import Trials
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import read_record

LARGEST_FILE = 8 << 20
"""Maximum bytes of a summary that is read; no summary that people can use is larger."""

Properties = list[tuple[str, str]]
"""Pairs of names and values, in the order of the JUnit file."""

_OUTPUT_OPTIONS = ("--t2e-summary", "--t2e-run-folder", "--junitxml", "--junit-xml")
"""Options that set an output path. They depend on the machine and are not part of the run."""


def write_summary(path: Path, summary: RunSummary) -> None:
    """Write a summary: as JSON if the name ends in `.json`, else as Markdown."""
    if path.suffix == ".json":
        # In ASCII, so that printing the file cannot control a terminal.
        write_atomic(path, json.dumps(summary.model_dump(mode="json"), indent=1) + "\n")
    else:
        write_atomic(path, run_markdown(summary))


def append_step_summary(path: Path, summary: RunSummary) -> None:
    """Append a summary to the file that GitHub shows below a job, shortened to the space that is left.

    Raises:
        OSError: the file could not be written, or other output of the step has filled it.
    """
    held = 0
    with contextlib.suppress(FileNotFoundError):
        held = path.stat().st_size
    room = SUMMARY_LIMIT - held - 1
    if room < LEAST_LIMIT:
        raise OSError(f"the step's summary holds {held} bytes already, and GitHub takes {SUMMARY_LIMIT}")
    text = run_markdown(summary, limit=room)
    # If the path is a FIFO without a reader, opening fails at once instead of waiting for a reader.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags, 0o666), "a", encoding="utf-8") as file:
        file.write("\n" + text)


def read_summary(path: Path) -> RunSummary:
    """Read a summary from JSON. It may come from a stranger's run, so only its form is trusted."""
    remedy = "write one with pytest --t2e-summary FILE.json"
    summary = read_record(path, RunSummary, ResultsError, remedy, limit=LARGEST_FILE)
    if summary.schema_version != SUMMARY_SCHEMA:
        raise ResultsError(
            f"{path}: summary format {summary.schema_version} is not {SUMMARY_SCHEMA}, the one this version "
            "reads; use the same version of trace2evolve in both jobs"
        )
    return summary


def reproducing(arguments: Iterable[str], from_environment: str = "") -> tuple[str, ...]:
    """The command that repeats a run, from pytest's arguments and the value of PYTEST_ADDOPTS."""
    kept: list[str] = []
    value_follows = False
    for argument in arguments:
        if value_follows:
            value_follows = False
        elif argument in _OUTPUT_OPTIONS:
            value_follows = True
        elif not argument.startswith(tuple(f"{name}=" for name in _OUTPUT_OPTIONS)):
            kept.append(argument)
    setting = ("env", f"PYTEST_ADDOPTS={from_environment}") if from_environment else ()
    return (*setting, "pytest", *kept)


def task_properties(suite: str, split: str, task_id: str) -> Properties:
    """The suite, split and task of an item."""
    return _prefixed([("suite", suite), ("split", split), ("task", task_id)])


def trial_properties(records: Sequence[SimulationEvidence], *, live: bool) -> Properties:
    """The results of a task's trials; with `live`, also their usage, resumed trials included."""
    trials = Trials(tuple(records))
    passed = sum(Trials((record,)).passes is True for record in trials.measured)
    found = [("trials", str(len(records))), ("measured", str(len(trials.measured))), ("passed", str(passed))]
    if trials.reward is not None:
        found.append(("reward", f"{trials.reward:.6g}"))
    ends = Counter(record.termination_reason for record in records)
    found.append(("ended_by", ", ".join(f"{end} {count}" for end, count in sorted(ends.items()))))
    if live:
        used = sum((usage for record in records for usage in record.usage.values()), NOTHING_USED)
        found += [("calls", str(used.calls)), ("tokens", str(used.tokens))]
        found += [] if used.cost is None else [("cost", f"{used.cost:.6g}")]
    return _prefixed(found)


def verdict_properties(summary: RunSummary) -> Properties:
    """The verdict of the run and the verdicts of its splits."""
    found = [
        ("verdict", "none" if summary.trouble else _value(summary.decision)),
        ("candidate", summary.candidate),
        ("run", summary.run_id),
    ]
    if summary.trouble:
        found.append(("trouble", summary.trouble))
    for suite in summary.suites:
        if suite.reason:
            found.append((f"{suite.name}.reason", suite.reason))
        if suite.baseline is not None:
            found.append((f"{suite.name}.baseline", suite.baseline))
        if suite.compared is not None:
            found.append((f"{suite.name}.baseline_agent", suite.compared.baseline.text))
            found.append((f"{suite.name}.candidate_agent", suite.compared.candidate.text))
        for verdict in suite.verdicts:
            place = f"{suite.name}.{verdict.split}"
            failed = [check.id for check in verdict.checks if check.status is CheckStatus.FAIL]
            found += [
                (f"{place}.verdict", _value(verdict.decision)),
                (f"{place}.policy", verdict.policy),
                (f"{place}.goal", verdict.goal.value),
                (f"{place}.label", verdict.label.value),
                (f"{place}.failed_checks", ", ".join(failed)),
            ]
    return _prefixed(found)


def _value(decision: Decision | None) -> str:
    return "none" if decision is None else decision.value


def _prefixed(properties: Properties) -> Properties:
    return [(f"trace2evolve.{name}", value) for name, value in properties]
