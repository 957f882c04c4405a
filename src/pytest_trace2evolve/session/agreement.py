"""Measures how well a judge agrees with hand labels, and records it for the gate."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from pytest_trace2evolve.errors import LabelError, name_suggestion
from pytest_trace2evolve.judges.agreement import LabelledAnswer, measure_agreement
from pytest_trace2evolve.judges.chat import render_question
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.agreement import Agreement, AgreementFile
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Judge
from pytest_trace2evolve.records.trace_check import CheckOutcome, TraceCheck
from pytest_trace2evolve.session.trace_checks import (
    agreement_path,
    judge_identity,
    plan_trace_checks,
    read_agreements,
)
from pytest_trace2evolve.session.traces import open_trace
from pytest_trace2evolve.utils.canonical import canonical_json, digest, digest_text
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import first_problem, parse_json, read_lines

MAX_CONCURRENT = 8
"""The maximum number of questions that the judge is asked at once."""


class TraceLabel(Record):
    """One line of a file of labels: a check, a trace, and whether the trace keeps the check.

    The trace is a simulation of a run (`run`, `task`, and `trial` and `suite` if needed), or given by its
    messages (`trace`).
    """

    check: str
    label: Literal["yes", "no"]
    run: str | None = None
    task: str | None = None
    trial: int | None = None
    suite: str | None = None
    trace: tuple[Message, ...] | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _check_reference(self) -> Self:
        if (self.trace is None) == (self.run is None):
            raise ValueError("give either 'run' and 'task', or 'trace'")
        if (self.run is None) != (self.task is None):
            raise ValueError("'run' and 'task' need each other")
        return self


@dataclass(frozen=True)
class Disagreement:
    """A label that the judge contradicts, by the line of the file, with the judge's reason."""

    line: int
    label: bool
    answer: bool | None
    reason: str


@dataclass(frozen=True)
class CheckAgreement:
    """The agreement on one check, and the file that records it."""

    check: str
    agreement: Agreement
    disagreements: tuple[Disagreement, ...]
    path: Path


def measure_agreements(path: Path, project: Project, judge: Judge) -> list[CheckAgreement]:
    """Ask a judge about every labelled trace, and record the agreement on each check.

    An access to a trace of a sealed split is recorded in the ledger. Earlier answers of the judge to the same
    questions are reused.

    Raises:
        LabelError: a line is invalid, names no judged check, or labels a trace a second time.
        ConfigError, ResultsError: a run or task does not exist, or the file of an agreement is damaged.
    """
    labels = _read_labels(path)
    checks = project.extensions.trace_checks
    judged_checks = {name: check for name, check in checks.items() if check.is_judged}
    for line, label in labels.items():
        if label.check not in judged_checks:
            problem = "is not judged" if label.check in checks else "is unknown"
            suggestion = name_suggestion(label.check, judged_checks)
            raise LabelError(f"{path}:{line}: check {label.check!r} {problem}; {suggestion}")
    traces = {line: _trace_of(label, project, path.parent) for line, label in labels.items()}
    _check_unique(path, labels, traces)
    trace_checks = plan_trace_checks(judged_checks, project, judge)
    measured_at = datetime.now(UTC).isoformat(timespec="seconds")
    results = []
    for name in dict.fromkeys(label.check for label in labels.values()):
        check, answers, disagreements = judged_checks[name], [], []
        lines = [line for line, label in labels.items() if label.check == name]
        with ThreadPoolExecutor(MAX_CONCURRENT) as pool:
            check_results = list(
                pool.map(partial(trace_checks.grade, check), [traces[line] for line in lines])
            )
        for line, result in zip(lines, check_results, strict=True):
            is_kept = labels[line].label == "yes"
            answer = None if result.outcome is CheckOutcome.ERROR else result.outcome is CheckOutcome.KEPT
            answers.append(LabelledAnswer(is_kept, answer))
            if answer is not is_kept:
                disagreements.append(Disagreement(line, is_kept, answer, result.reason))
        labels_digest = digest(sorted([labels[line].label, _trace_digest(traces[line])] for line in lines))
        agreement = measure_agreement(
            answers, judge=judge_identity(judge, check), labels=labels_digest, measured_at=measured_at
        )
        agreement_file = agreement_path(project, name)
        _record_agreement(agreement_file, check, agreement)
        results.append(CheckAgreement(name, agreement, tuple(disagreements), agreement_file))
    return results


def _read_labels(path: Path) -> dict[int, TraceLabel]:
    """Read the labels by line."""
    labels = {}
    for number, text in enumerate(read_lines(path, LabelError), start=1):
        if not text.strip():
            continue
        try:
            fields: Any = parse_json(text, require_unique=True)
            labels[number] = TraceLabel.model_validate(fields)
        except ValidationError as error:
            raise LabelError(f"{path}:{number}: {first_problem(error, 'the line')}") from None
        except ValueError as error:
            raise LabelError(f"{path}:{number}: {error}") from None
    if not labels:
        raise LabelError(f"{path}: holds no label; add one JSON object for each labelled trace")
    return labels


def _trace_of(label: TraceLabel, project: Project, base_folder: Path) -> Sequence[Message]:
    if label.trace is not None:
        return label.trace
    assert label.run is not None
    assert label.task is not None
    opened_trace = open_trace(
        label.run,
        label.task,
        project=project,
        base_folder=base_folder,
        trial=label.trial,
        suite=label.suite or "",
    )
    return opened_trace.simulation.trace


def _trace_digest(trace: Sequence[Message]) -> str:
    """The digest of a trace as the judge sees it, without ids and times."""
    return digest_text(render_question((), trace))


def _check_unique(
    path: Path, labels: Mapping[int, TraceLabel], traces: Mapping[int, Sequence[Message]]
) -> None:
    """Check that no trace is labelled twice for a check, because copies would narrow the intervals."""
    first_lines: dict[tuple[str, str], int] = {}
    for line, label in labels.items():
        first_line = first_lines.setdefault((label.check, _trace_digest(traces[line])), line)
        if first_line != line:
            raise LabelError(
                f"{path}:{line}: check {label.check!r}: the trace is labelled in line {first_line} already; "
                "remove one of the lines"
            )


def _record_agreement(path: Path, check: TraceCheck, agreement: Agreement) -> None:
    """Add an agreement to a check's file. It replaces an earlier one for the same judge and rubric."""
    file = read_agreements(path)
    others = [item for item in (file.agreements if file else ()) if item.judge != agreement.judge]
    new = AgreementFile(check=check.id, agreements=(*others, agreement)).sealed()
    lines = ",\n".join(f"  {canonical_json(item.model_dump(mode='json'))}" for item in new.agreements)
    write_atomic(
        path,
        f'{{"schema_version": {new.schema_version}, "check": "{new.check}", "digest": "{new.digest}",\n'
        f'"agreements": [\n{lines}\n]}}\n',
    )
