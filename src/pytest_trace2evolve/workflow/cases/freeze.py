"""Freezing cases: what broke an agent once is asked of every later one."""

from collections.abc import Sequence
from pathlib import Path

from pytest_trace2evolve.cases.case import Case, case_line, read_cases
from pytest_trace2evolve.errors import CaseError
from pytest_trace2evolve.evidence.atomic import alone_in, write_atomic
from pytest_trace2evolve.lock import LOCK_NAME
from pytest_trace2evolve.workflow.cases.admission import admit
from pytest_trace2evolve.worlds.registry import Worlds


def unfrozen(cases: Sequence[Case], path: Path) -> list[Case]:
    """The cases that a file of frozen ones does not hold; all of them where it cannot be read."""
    try:
        held = {case.digest for case in read_cases(path)}
    except CaseError:
        return list(cases)
    return [case for case in cases if case.digest not in held]


def freeze(cases: Sequence[Case], path: Path, worlds: Worlds) -> list[str]:
    """Add cases to a file of frozen ones, where they pass admission and are not there yet.

    Returns:
        A line on what was done with each.
    """
    notes, fresh = [], []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone_in(path.parent):
            before = path.read_text(encoding="utf-8") if path.exists() else ""
            held = {case.digest for case in read_cases(path)} if before.strip() else set()
            for found in admit(cases, worlds.open("trace2evolve", "support")):
                if found.case.digest in held:
                    notes.append(f"case {found.case.id} is frozen already")
                elif found.problems:
                    notes.append(f"case {found.case.id} was not frozen: {found.problems[0]}")
                else:
                    fresh.append(found.case)
            if fresh:
                gap = "" if before.endswith("\n") or not before else "\n"
                write_atomic(path, before + gap + "".join(map(case_line, fresh)))
    except (CaseError, OSError) as error:
        return [f"no case was frozen: {error}"]
    if fresh:
        names = ", ".join(case.id for case in fresh)
        notes.append(
            f"frozen in {path.parent.name}/{path.name}: {names}; run 'trace2evolve lock' and commit the file "
            f"and {LOCK_NAME}"
        )
    return notes
