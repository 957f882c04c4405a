"""Write a run's results for other programs: summary files, JUnit properties and the command.

The JUnit file contains nothing of a task's traces except how the simulations ended, because reading that file
is not recorded as an access to a held-out trace.
"""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.records.completion import NO_USAGE
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.verdict import SUMMARY_SCHEMA, CheckStatus, Decision, RunSummary
from pytest_trace2evolve.report.conclusion import without_options
from pytest_trace2evolve.report.github import MAX_STEP_SUMMARY_BYTES, MIN_VERDICT_BYTES, run_markdown
from pytest_trace2evolve.scoring.metrics import Trials
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import read_record

SUMMARY_NAME = "summary.json"
"""The file of a gated run's folder that holds its summary."""

MAX_SUMMARY_FILE_BYTES = 8 << 20
"""Maximum size of a summary to read, in bytes. Useful summaries are much smaller."""

Properties = list[tuple[str, str]]
"""Names and values of JUnit properties, in the order of the file."""

_OUTPUT_OPTIONS = ("--t2e-summary", "--t2e-run-folder", "--junitxml", "--junit-xml")
"""Options that set an output path. They depend on the machine, so `reproduction_command` omits them."""


def write_summary(path: Path, summary: RunSummary) -> None:
    """Write a summary as JSON if the file name ends in `.json`, else as Markdown."""
    if path.suffix == ".json":
        # In ASCII, so that printing the file cannot control a terminal.
        write_atomic(path, json.dumps(summary.model_dump(mode="json"), indent=1) + "\n")
    else:
        write_atomic(path, run_markdown(summary))


def append_step_summary(path: Path, summary: RunSummary) -> None:
    """Append a summary to a job's summary file, shortened to the space that is left.

    Raises:
        OSError: the file cannot be written, or the step has already filled it.
    """
    used_bytes = 0
    with contextlib.suppress(FileNotFoundError):
        used_bytes = path.stat().st_size
    max_bytes = MAX_STEP_SUMMARY_BYTES - used_bytes - 1
    if max_bytes < MIN_VERDICT_BYTES:
        raise OSError(
            f"the step's summary holds {used_bytes} bytes already, and GitHub takes {MAX_STEP_SUMMARY_BYTES}"
        )
    text = run_markdown(summary, max_bytes=max_bytes)
    # If the path is a FIFO without a reader, opening fails at once instead of waiting for a reader.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags, 0o666), "a", encoding="utf-8") as file:
        file.write("\n" + text)


def read_summary(path: Path) -> RunSummary:
    """Read a summary from JSON. A summary may come from a stranger's run, so the content is untrusted."""
    remedy = "write one with pytest --t2e-summary FILE.json"
    summary = read_record(path, RunSummary, ResultsError, remedy, max_bytes=MAX_SUMMARY_FILE_BYTES)
    if summary.schema_version != SUMMARY_SCHEMA:
        raise ResultsError(
            f"{path}: summary format {summary.schema_version} is not {SUMMARY_SCHEMA}, the one this version "
            "reads; use the same version of trace2evolve in both jobs"
        )
    return summary


def reproduction_command(arguments: Iterable[str], addopts: str = "") -> tuple[str, ...]:
    """Return the command that repeats a run, from pytest's arguments and the value of PYTEST_ADDOPTS."""
    kept_arguments = without_options(arguments, _OUTPUT_OPTIONS)
    environment_prefix = ("env", f"PYTEST_ADDOPTS={addopts}") if addopts else ()
    return (*environment_prefix, "pytest", *kept_arguments)


def task_properties(suite: str, split: str, task_id: str) -> Properties:
    """Return the JUnit properties that identify a task."""
    return _add_prefix([("suite", suite), ("split", split), ("task", task_id)])


def trial_properties(records: Sequence[SimulationEvidence], *, live: bool) -> Properties:
    """Return the JUnit properties of a task's trials; with `live`, also their usage, even if resumed."""
    trials = Trials(tuple(records))
    n_passed = sum(Trials((record,)).passes is True for record in trials.measured_records)
    properties = [
        ("trials", str(len(records))),
        ("measured", str(len(trials.measured_records))),
        ("passed", str(n_passed)),
    ]
    if trials.reward is not None:
        properties.append(("reward", f"{trials.reward:.6g}"))
    terminations = Counter(record.termination_reason for record in records)
    properties.append(
        ("ended_by", ", ".join(f"{end} {count}" for end, count in sorted(terminations.items())))
    )
    if live:
        total_usage = sum((usage for record in records for usage in record.usage.values()), NO_USAGE)
        properties += [("calls", str(total_usage.calls)), ("tokens", str(total_usage.tokens))]
        properties += [] if total_usage.cost is None else [("cost", f"{total_usage.cost:.6g}")]
    return _add_prefix(properties)


def verdict_properties(summary: RunSummary) -> Properties:
    """The verdict of the run and the verdicts of its splits."""
    properties = [
        ("verdict", "none" if summary.trouble else _decision_value(summary.decision)),
        ("candidate", summary.candidate),
        ("run", summary.run_id),
    ]
    if summary.trouble:
        properties.append(("trouble", summary.trouble))
    for suite in summary.suites:
        if suite.reason:
            properties.append((f"{suite.name}.reason", suite.reason))
        if suite.baseline is not None:
            properties.append((f"{suite.name}.baseline", suite.baseline))
        if suite.compared is not None:
            properties.append((f"{suite.name}.baseline_agent", suite.compared.baseline.text))
            properties.append((f"{suite.name}.candidate_agent", suite.compared.candidate.text))
        for verdict in suite.verdicts:
            prefix = f"{suite.name}.{verdict.split}"
            failed_ids = [check.id for check in verdict.checks if check.status is CheckStatus.FAIL]
            properties += [
                (f"{prefix}.verdict", _decision_value(verdict.decision)),
                (f"{prefix}.policy", verdict.policy),
                (f"{prefix}.goal", verdict.goal.value),
                (f"{prefix}.label", verdict.label.value),
                (f"{prefix}.failed_checks", ", ".join(failed_ids)),
            ]
    return _add_prefix(properties)


def _decision_value(decision: Decision | None) -> str:
    return "none" if decision is None else decision.value


def _add_prefix(properties: Properties) -> Properties:
    return [(f"trace2evolve.{name}", value) for name, value in properties]
