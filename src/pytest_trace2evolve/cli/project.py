"""`trace2evolve cases`: generates synthetic cases, checks them, and shows them.

`trace2evolve init`: suites, candidates, cases, prices and a workflow in a repository of the user's own.
"""

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from pytest_trace2evolve.cli.common import at_least
from pytest_trace2evolve.errors import CaseError, ConfigError, nearest
from pytest_trace2evolve.utils.option_types import integer


def add_init(commands: Any) -> None:
    """Declare the command."""
    init = commands.add_parser("init", help="lay suites, candidates and a workflow out in a project")
    init.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="where (default: --root, or here)")
    init.add_argument(
        "--suites",
        default="support",
        metavar="NAME,…",
        help="which suites, or 'all' (default: support)",
    )
    init.add_argument(
        "--workflow",
        action=argparse.BooleanOptionalAction,
        help="add .github/workflows/agents.yml (default: at the top of a repository)",
    )
    init.add_argument("--dry-run", action="store_true", help="only say what would be done")
    init.add_argument("--json", action="store_true", help="print JSON")
    init.set_defaults(command=_init)


def _init(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.project.scaffold import lay_out, write
    from pytest_trace2evolve.report.scaffold import layout_text

    layout = lay_out(_folder(options), _names(options.suites), workflow=options.workflow)
    if not options.dry_run:
        write(layout)
    command = _next(layout.root, layout.suites)
    if options.json:
        print(json.dumps({**layout.to_json(), "dry_run": options.dry_run, "next": command}, indent=2))
    else:
        print(layout_text(layout, command, dry_run=options.dry_run))
    return 0


def _folder(options: argparse.Namespace) -> Path:
    if options.folder and options.root:
        raise ConfigError(f"DIR {options.folder} and --root {options.root} both name a folder; give one")
    return Path.cwd() / (options.folder or options.root or "")


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ConfigError(
            f"--suites {text!r} leaves a name empty; give suites like support,tau2-retail, or all"
        )
    return names


def _next(root: Path, suites: tuple[str, ...]) -> str:
    """The command that measures a candidate: by the embedded model, or where there is none by the oracle."""
    from pytest_trace2evolve.utils.resources import embedded_model

    words = ["pytest", "--candidate", "v6"]
    try:
        embedded_model()
    except ConfigError:
        words += ["--t2e-agent", "oracle"]
    words += ["--t2e-suite", suites[0]] if len(suites) > 1 else []
    there = "" if root == Path.cwd() else f"cd {shlex.quote(os.path.relpath(root))} && "
    return there + shlex.join([*words, "-n", "2"])


SOME_FAILED = 1


def add_cases(commands: Any) -> None:
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
    from pytest_trace2evolve.records.task import Content
    from pytest_trace2evolve.utils.files import write_parts

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
    from pytest_trace2evolve.session.case_admission import admit
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
