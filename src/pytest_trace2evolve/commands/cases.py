"""`trace2evolve cases`: generates synthetic cases, checks them, and shows them."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from pytest_trace2evolve.commands.common import at_least
from pytest_trace2evolve.errors import CaseError, ConfigError, nearest
from pytest_trace2evolve.option_types import integer

SOME_FAILED = 1


def add(commands: Any) -> None:
    """Declare the command and what it can do."""
    cases = commands.add_parser("cases", help="generate, check or show synthetic cases")
    parts = cases.add_subparsers(required=True, metavar="ACTION")
    generate = parts.add_parser("generate", help="write cases from a seed, the families taking turns")
    generate.add_argument("--seed", required=True, metavar="S", help="the same seed gives the same cases")
    generate.add_argument("--count", type=integer, required=True, metavar="N", help="how many cases")
    generate.add_argument("--out", type=Path, required=True, metavar="FILE", help="a new file; - prints them")
    generate.add_argument(
        "--family", action="append", metavar="NAME", help="a family, or 'pressure' for those six; repeatable"
    )
    generate.add_argument(
        "--content", choices=("train", "heldout"), default="train", help="whose words (default: train)"
    )
    generate.set_defaults(command=_generate)
    check = parts.add_parser("check", help="hold every case against all checks of admission")
    check.add_argument("files", nargs="+", type=Path, metavar="FILE")
    check.set_defaults(command=_check)
    show = parts.add_parser("show", help="list a file's cases, or show one")
    show.add_argument("file", type=Path, metavar="FILE")
    show.add_argument("id", nargs="?", metavar="ID", help="a case's id, or how it begins")
    show.set_defaults(command=_show)


def _generate(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.cases.case import PRESSURE, case_line, generate
    from pytest_trace2evolve.evidence.atomic import write_parts
    from pytest_trace2evolve.records.script import Content

    count = at_least("--count", options.count, 1)
    among = [one for name in options.family or () for one in _families(name, list(PRESSURE))]
    lines = map(case_line, generate(options.seed, count, Content(options.content), among))
    out: Path = options.out
    if str(out) == "-":
        sys.stdout.writelines(lines)
        return 0
    try:
        _must_be_new(out)
        write_parts(out, lines, exclusive=True)
    except OSError as error:
        _must_be_new(out)
        raise ConfigError(f"--out {out} cannot be written: {error.strerror or error}") from None
    print(f"{out}: {count} cases; next: trace2evolve cases check {out}")
    return 0


def _must_be_new(out: Path) -> None:
    """Refuse a path that is taken, or that a file stands in the way of.

    Raises:
        ConfigError: names which.
    """
    if os.path.lexists(out):
        if out.is_dir():
            raise ConfigError(f"--out {out} is a folder: name a file in it")
        raise ConfigError(f"--out {out} exists: delete it, or choose another name")
    above = next((one for one in out.parents if os.path.lexists(one)), out.parent)
    if not above.is_dir():
        raise ConfigError(f"--out {out}: {above} is no folder; choose another name")


def _families(name: str, pressure: list[str]) -> list[str]:
    from pytest_trace2evolve.cases.case import FAMILIES

    if name == "pressure":
        return pressure
    if name not in FAMILIES:
        raise ConfigError(f"--family {name!r} is unknown; {nearest(name, [*FAMILIES, 'pressure'])}")
    return [name]


def _check(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.cases.case import iter_cases
    from pytest_trace2evolve.report.cases import admitted_line, problem_line
    from pytest_trace2evolve.workflow.cases.admission import admit
    from pytest_trace2evolve.worlds.registry import Worlds

    world = Worlds().open("trace2evolve", "support")
    status = 0
    for path in options.files:
        passed = total = 0
        for found in admit(iter_cases(path), world):
            total += 1
            passed += not found.problems
            for problem in found.problems:
                print(problem_line(str(path), found.case, problem), flush=True)
        print(admitted_line(str(path), passed, total), flush=True)
        status = status if passed == total else SOME_FAILED
    return status


def _show(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.cases.case import read_cases
    from pytest_trace2evolve.report.cases import case_text, cases_text

    cases = read_cases(options.file)
    if options.id is None:
        print(cases_text(str(options.file), cases))
        return 0
    exact = [case for case in cases if case.id == options.id]
    found = exact or [case for case in cases if case.id.startswith(options.id)]
    if len(found) > 1:
        ids = ", ".join(case.id for case in found[:3])
        raise CaseError(f"{options.file}: {len(found)} cases begin with {options.id!r}: {ids}; say which")
    if not found:
        mend = nearest(options.id, [case.id for case in cases])
        raise CaseError(f"{options.file}: no case {options.id!r}; {mend}")
    print(case_text(found[0]))
    return 0
