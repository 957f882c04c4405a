"""Plans the own checks of a run: which are carried out, how they are identified, and which may decide."""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.identity import code_of
from pytest_trace2evolve.judges.chat import PROMPT_VERSION, render_question
from pytest_trace2evolve.records.agreement import MIN_KAPPA, AgreementFile, JudgeIdentity
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.evidence import CheckOrigin
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.protocols import Judge, World
from pytest_trace2evolve.records.score import Score, Status
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.records.trace_check import CheckOutcome, TraceCheck
from pytest_trace2evolve.scoring.trace_checks import CheckResult, grade_with, run_checks
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import read_record

if TYPE_CHECKING:
    from pytest_trace2evolve.project.project import Project

JUDGES_FOLDER = "judges"
"""The folder of a project that holds the measured agreements of judged checks, one file for each check."""

_NOT_MEASURED = "not gated: agreement not measured"
_MEASURE_AGAIN = "restore it from git, or remove it and measure the agreement again"
_AGREEMENT_COMMAND = "trace2evolve judge agreement LABELS --judge {}"


class _StoredAnswer(Record):
    """A stored answer of a judge."""

    met: bool
    reason: str


@dataclass(frozen=True)
class JudgeAnswers:
    """The answers of judges to whole questions, one file each, so that a rerun gets the same answers."""

    folder: Path
    _locks: dict[str, threading.Lock] = field(default_factory=dict)

    def get(self, key: str, ask: Callable[[], CheckResult]) -> CheckResult:
        """Return the stored answer for a key, or ask the judge and store the answer.

        Errors are not stored. A damaged answer counts as missing.
        """
        path = self.folder / f"{key}.json"
        with self._locks.setdefault(key, threading.Lock()):  # equal questions are asked once
            with contextlib.suppress(ResultsError):
                answer = read_record(path, _StoredAnswer, ResultsError)
                return CheckResult(CheckOutcome.KEPT if answer.met else CheckOutcome.BROKEN, answer.reason)
            result = ask()
            if result.outcome is not CheckOutcome.ERROR:
                answer = _StoredAnswer(met=result.outcome is CheckOutcome.KEPT, reason=result.reason)
                write_atomic(path, answer.model_dump_json() + "\n")
            return result


@dataclass(frozen=True)
class TraceChecks:
    """The project's own checks that a run carries out.

    Attributes:
        checks: The checks by id. Judged checks are left out without a judge.
        origins: The identity of each check, as evidence records it.
        ungated: The checks that decide nothing, with the reasons.
        judge: The judge of the judged checks.
        answers: The judge's answers so far; None if they are not stored.
        notes: Notes for the user, a line each.
    """

    checks: Mapping[str, TraceCheck] = field(default_factory=dict)
    origins: Mapping[str, CheckOrigin] = field(default_factory=dict)
    ungated: Mapping[str, str] = field(default_factory=dict)
    judge: Judge | None = None
    answers: JudgeAnswers | None = None
    notes: tuple[str, ...] = ()

    @property
    def recorded_origins(self) -> dict[str, CheckOrigin] | None:
        """The origins as the provenance of evidence records them; None without checks."""
        return dict(self.origins) or None

    def run(self, simulation: Simulation, score: Score, task: Task, world: World) -> dict[str, CheckResult]:
        """Carry out the checks on a simulation; empty if the simulation has no reward."""
        if score.status is not Status.MEASURED:
            return {}
        return run_checks(self.checks.values(), simulation, task, world, self.grade)

    def grade(self, check: TraceCheck, trace: Sequence[Message]) -> CheckResult:
        """Ask the judge, or return the answer that it gave to the same question before."""
        assert self.judge is not None
        judge = self.judge
        if self.answers is None:
            return grade_with(judge, check, trace)
        identity = judge_identity(judge, check).model_dump(mode="json")
        key = digest([identity, render_question([check.rubric], trace)])
        return self.answers.get(key, lambda: grade_with(judge, check, trace))


NO_TRACE_CHECKS = TraceChecks()


def plan_trace_checks(
    checks: Mapping[str, TraceCheck], project: "Project | None" = None, judge: Judge | None = None
) -> TraceChecks:
    """Identify the checks of a project, and find which of the judged ones may decide.

    Raises:
        ResultsError: the file of an agreement is damaged or was edited.
    """
    active_checks = {
        name: check for name, check in checks.items() if judge is not None or not check.is_judged
    }
    shared = () if project is None or not active_checks else project.find_agent_files()
    origins = {name: _origin_of(check, shared) for name, check in active_checks.items()}
    ungated = {}
    if judge is not None:
        ungated = {
            name: reason
            for name, check in active_checks.items()
            if check.is_judged and (reason := ungated_reason(name, judge_identity(judge, check), project))
        }
    notes = [
        f"check {name!r}: its code cannot be identified ({origin.code.unknown}), so changes are not noticed"
        for name, origin in origins.items()
        if origin.code is not None and origin.code.unknown
    ]
    if left_out := [name for name in checks if name not in active_checks]:
        notes.append(f"not judged, since no judge is named (--t2e-judge): {', '.join(left_out)}")
    answers = None if project is None else JudgeAnswers(project.root / ".trace2evolve" / "judgements")
    return TraceChecks(active_checks, origins, ungated, judge, answers, tuple(notes))


def _origin_of(check: TraceCheck, shared: Collection[Path]) -> CheckOrigin:
    if check.function is None:
        return CheckOrigin(kind=check.kind, rubric=digest_text(check.rubric))
    return CheckOrigin(kind=check.kind, code=code_of(check.function, shared=shared))


def judge_identity(judge: Judge, check: TraceCheck) -> JudgeIdentity:
    """Return the facts about a judge and a judged check for which an agreement holds."""
    model = str(getattr(judge, "model", type(judge).__name__))
    return JudgeIdentity(model=model, prompt=PROMPT_VERSION, rubric=digest_text(check.rubric))


def agreement_path(project: "Project", check_id: str) -> Path:
    """Return the file with the agreements of a judged check."""
    return project.root / JUDGES_FOLDER / f"{check_id}.json"


def read_agreements(path: Path) -> AgreementFile | None:
    """Read the agreements of a judged check; None if none was measured.

    Raises:
        ResultsError: the file is damaged or was edited.
    """
    if not path.exists():
        return None
    file = read_record(path, AgreementFile, ResultsError, _MEASURE_AGAIN)
    if file.digest != file.content_digest:
        raise ResultsError(
            f"{path}: was edited: its content has digest {file.content_digest}, but the file says "
            f"{file.digest!r}; {_MEASURE_AGAIN}"
        )
    return file


def ungated_reason(check_id: str, identity: JudgeIdentity, project: "Project | None") -> str:
    """Return why a judged check may not decide; empty if its agreement is high enough."""
    remedy = _AGREEMENT_COMMAND.format(identity.model)
    file = None if project is None else read_agreements(agreement_path(project, check_id))
    agreements = () if file is None else file.agreements
    agreement = next((item for item in agreements if item.judge == identity), None)
    if agreement is None:
        judges_of_rubric = [item.judge for item in agreements if item.judge.rubric == identity.rubric]
        condition = (
            f" for judge {identity.model!r}" if judges_of_rubric else " for this rubric" if agreements else ""
        )
        return f"{_NOT_MEASURED}{condition}; run '{remedy}'"
    if agreement.is_sufficient:
        return ""
    kappa = "is undefined" if agreement.kappa is None else f"is at least {agreement.kappa.low:.2f}"
    return (
        f"not gated: agreement too low: Cohen's kappa {kappa} with {agreement.total} labels, "
        f"{MIN_KAPPA:.2f} is needed"
    )


CheckFailure = tuple[str, CheckResult, str, int]
"""A check's id, its result, the task and the trial."""


def describe_check_failures(
    results: Iterable[CheckFailure],
    is_sealed: Callable[[str], bool] = lambda task: True,
    root: Path | None = None,
) -> list[str]:
    """Describe the simulations without a result, one line for each check that failed on any.

    For tasks of sealed splits (by default, all tasks), a line quotes nothing from the trace. Files below
    `root` are named relative to it.
    """
    failures: dict[str, list[CheckFailure]] = {}
    for failure in results:
        if failure[1].outcome is CheckOutcome.ERROR:
            failures.setdefault(failure[0], []).append(failure)
    lines = []
    for name, check_failures in sorted(failures.items()):
        _, result, task, trial = min(check_failures, key=lambda failure: failure[2:])
        text = result.cause if is_sealed(task) else result.reason
        text = text if root is None else text.replace(f"{root}/", "")
        count = len(check_failures)
        lines.append(
            f"check {name!r} has no result for {count} simulation{'' if count == 1 else 's'}, first for task "
            f"{task!r}, trial {trial}: {text}"
        )
    return lines
