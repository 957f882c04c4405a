"""A run's summary: made at its end, written to files, and read back by the job that comments."""

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.records.verdict import SUMMARY_SCHEMA, RunSummary, SuiteSummary
from pytest_trace2evolve.report.github import LEAST_LIMIT, SUMMARY_LIMIT, run_markdown
from pytest_trace2evolve.report.run import RunReport, shown_folder
from pytest_trace2evolve.session.verdicts import compared
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import read_record

LARGEST_FILE = 8 << 20
"""Bytes of a summary's file; a larger one was not written by `write_summary`, or says nothing to people."""


def summary_of(report: RunReport, command: Sequence[str]) -> RunSummary:
    """What a run has to tell.

    Args:
        report: The run's report.
        command: How it was started, without secrets.
    """
    plan = report.plan
    suites = []
    for one in report.outcomes:
        planned = plan.suites[one.name]
        baseline = planned.baseline
        suites.append(
            SuiteSummary(
                name=one.name,
                baseline=baseline.name if baseline is not None else None,
                reason=one.reason,
                verdicts=one.verdicts,
                left_out=one.left_out,
                compared=compared(plan, planned),
            )
        )
    return RunSummary(
        candidate=plan.candidate.id,
        decision=report.decision,
        trouble=report.trouble,
        suites=tuple(suites),
        notes=report.notes,
        used=report.used,
        command=tuple(command),
        run_id=plan.run_id,
        evidence=shown_folder(plan),
    )


def write_summary(path: Path, summary: RunSummary) -> None:
    """Write a summary: as JSON where the name ends in `.json`, else as Markdown.

    Raises:
        OSError: it could not be written; what was there is as it was.
    """
    if path.suffix == ".json":
        # In ASCII: whoever prints the file prints nothing that steers a terminal.
        write_atomic(path, json.dumps(summary.model_dump(mode="json"), indent=1) + "\n")
    else:
        write_atomic(path, run_markdown(summary))


def append_step_summary(path: Path, summary: RunSummary) -> None:
    """Append a summary to the file that GitHub shows below a job, as far as that file may grow.

    Raises:
        OSError: it could not be written, or other output of the step has filled it.
    """
    held = 0
    with contextlib.suppress(FileNotFoundError):
        held = path.stat().st_size
    room = SUMMARY_LIMIT - held - 1
    if room < LEAST_LIMIT:
        raise OSError(f"the step's summary holds {held} bytes already, and GitHub takes {SUMMARY_LIMIT}")
    text = run_markdown(summary, limit=room)
    # Nobody may be reading a FIFO: opening it then fails at once instead of waiting for a reader.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags, 0o666), "a", encoding="utf-8") as file:
        file.write("\n" + text)


def read_summary(path: Path) -> RunSummary:
    """Read a summary's JSON. It may come from a stranger's run: nothing in it is trusted beyond its form.

    Raises:
        ResultsError: the file is missing, too large, damaged or of another format version.
    """
    mend = "write one with pytest --t2e-summary FILE.json"
    summary = read_record(path, RunSummary, ResultsError, mend, limit=LARGEST_FILE)
    if summary.schema_version != SUMMARY_SCHEMA:
        raise ResultsError(
            f"{path}: summary format {summary.schema_version} is not {SUMMARY_SCHEMA}, the one this version "
            "reads; use the same version of trace2evolve in both jobs"
        )
    return summary


_ONLY_WHERE_TO = ("--t2e-summary", "--t2e-run-folder", "--junitxml", "--junit-xml")
"""Options that say where something is written: they belong to the machine, and not to the run."""


def reproducing(arguments: Iterable[str], from_environment: str = "") -> tuple[str, ...]:
    """The command that makes a run again.

    Args:
        arguments: What pytest was given on the command line.
        from_environment: The value of PYTEST_ADDOPTS; empty where it is not set.
    """
    kept: list[str] = []
    value_follows = False
    for argument in arguments:
        if value_follows:
            value_follows = False
        elif argument in _ONLY_WHERE_TO:
            value_follows = True
        elif not argument.startswith(tuple(f"{name}=" for name in _ONLY_WHERE_TO)):
            kept.append(argument)
    setting = ("env", f"PYTEST_ADDOPTS={from_environment}") if from_environment else ()
    return (*setting, "pytest", *kept)
