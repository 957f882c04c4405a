"""Freezing cases: what broke an agent once is asked of every later one."""

from collections.abc import Sequence
from pathlib import Path

from pytest_trace2evolve.cases.case import Case, case_line, read_cases
from pytest_trace2evolve.errors import CaseError, SuiteError
from pytest_trace2evolve.evidence.atomic import alone_in, write_atomic
from pytest_trace2evolve.lock import LOCK_NAME
from pytest_trace2evolve.reading import RESULTS, read_text
from pytest_trace2evolve.records.script import Content
from pytest_trace2evolve.workflow.cases.admission import admit
from pytest_trace2evolve.workflow.project import Project
from pytest_trace2evolve.worlds.registry import Worlds

FROZEN = "synthetic/pressure.jsonl"
"""Where cases are frozen, from the project's root."""


def unfrozen(cases: Sequence[Case], path: Path) -> list[Case]:
    """The cases that a file of frozen ones does not hold; all of them where it cannot be read."""
    try:
        held = {case.digest for case in read_cases(path)}
    except CaseError:
        return list(cases)
    return [case for case in cases if case.digest not in held]


def freeze(cases: Sequence[Case], project: Project, worlds: Worlds) -> list[str]:
    """Add cases to a project's frozen ones, where they pass admission and are not there yet.

    Returns:
        A line on what was done with each.
    """
    path = project.root / FROZEN
    notes: list[str] = []
    fresh: list[Case] = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone_in(path.parent):
            before = read_text(path, CaseError, limit=RESULTS) if path.exists() else ""
            held = {case.digest: case.id for case in read_cases(path)} if before.strip() else {}
            for found in admit(cases, worlds.open("trace2evolve", "support")):
                case = found.case
                problem = _objection(case, held) or next(iter(found.problems), "")
                if problem:
                    notes.append(f"case {case.id} was not frozen: {problem}")
                    continue
                held[case.digest] = case.id
                fresh.append(case)
            if fresh:
                gap = "" if before.endswith("\n") or not before else "\n"
                write_atomic(path, before + gap + "".join(map(case_line, fresh)))
    except (CaseError, OSError, ValueError) as error:
        return [*notes, f"no case was frozen: {error}"]
    if fresh:
        notes.append(f"frozen in {FROZEN}: {', '.join(case.id for case in fresh)}{_advice(project)}")
    return notes


def _objection(case: Case, held: dict[str, str]) -> str:
    """Why a case may not join those that are held, by their digests; empty where it may."""
    if case.digest in held:
        return "it is there already"
    if case.id in held.values():
        return "another case there has its id; give it a new one"
    if case.script.content is Content.TRAIN:
        return "it is made of training content, on which an agent may have been trained"
    return ""


def _advice(project: Project) -> str:
    """What is to be done where a suite holds the file."""
    for name in project.suite_names:
        try:
            suite = project.suite(name)
        except SuiteError:
            continue
        if any(spec.cases == FROZEN for spec in suite.case_splits.values()):
            return f"; run 'trace2evolve lock' and commit the file and {LOCK_NAME}"
    return "; commit the file"
