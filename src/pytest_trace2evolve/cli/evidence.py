"""`trace2evolve ledger`: the history of the splits, whether it is whole, and the repair of a damaged one.

`trace2evolve baselines`: what is saved, how old it is, and whether it still holds.

`trace2evolve promote`: a promoted candidate becomes the baseline, as one change to commit.

`trace2evolve show`: opens a trace, and records that it was looked at.

`trace2evolve lint`: checks candidates, suites, the lock, baselines and the rules of worlds, offline.

`trace2evolve lock`: writes what suites mean, or checks it.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.cli.common import project_of
from pytest_trace2evolve.errors import ConfigError, LockError
from pytest_trace2evolve.utils.option_types import integer

if TYPE_CHECKING:
    from pytest_trace2evolve.session.access_log import Looks


def add_baselines(commands: Any) -> None:
    """Declare the command."""
    baselines = commands.add_parser("baselines", help="list saved baselines: age, candidate, lock, lineage")
    baselines.add_argument("--json", action="store_true", help="print JSON")
    baselines.set_defaults(command=_baselines)


def _baselines(options: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    from pytest_trace2evolve.report.baselines import baselines_table
    from pytest_trace2evolve.session.baselines import saved_baselines

    project = project_of(options)
    found = saved_baselines(project, datetime.now(UTC))
    if options.json:
        print(json.dumps({"baselines": [one.to_json() for one in found]}, indent=2))
    elif found:
        print(baselines_table(found))
    else:
        print(f"no baselines in {project.baselines_folder}; save one with pytest --t2e-save-baseline NAME")
    damaged = [one.error for one in found if one.error]
    for error in damaged:
        print(f"trace2evolve: {error}", file=sys.stderr)
    return 1 if damaged else 0


def add_promote(commands: Any) -> None:
    """Declare the command."""
    promote = commands.add_parser("promote", help="make a promoted run the baseline of its suites")
    promote.add_argument("run", metavar="RUN", help="a run's folder, or the beginning of its id")
    promote.add_argument("--name", help="name of the baseline (default: the candidate's id)")
    promote.add_argument(
        "--suite",
        action="append",
        metavar="NAME",
        help="only this suite (repeatable; default: all judged ones)",
    )
    promote.add_argument("--dry-run", action="store_true", help="check and print; write nothing")
    promote.set_defaults(command=_promote)


def _promote(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.report.baselines import promotion_text
    from pytest_trace2evolve.session.promote import promote

    project, here = project_of(options), Path.cwd()
    done = promote(
        project,
        options.run,
        name=options.name,
        suites=options.suite or (),
        here=here,
        dry_run=options.dry_run,
    )
    print(promotion_text(done, project, here, dry_run=options.dry_run))
    return 0


def add_ledger(commands: Any) -> None:
    """Declare the command."""
    ledger = commands.add_parser(
        "ledger", help="who looked at which split, what was judged on it, and repair"
    )
    ledger.add_argument(
        "action",
        nargs="?",
        choices=("repair",),
        help="accept the damage that the ledger has now, so that promotions are possible again",
    )
    ledger.add_argument("--yes", action="store_true", help="repair without asking")
    ledger.add_argument("--suite", metavar="NAME", help="only this suite")
    ledger.add_argument("--split", metavar="SPLIT", help="only this split")
    ledger.add_argument("--json", action="store_true", help="print JSON")
    ledger.set_defaults(command=_ledger)


def _repair(looks: "Looks", *, yes: bool) -> int:
    from pytest_trace2evolve.session.traces import user_name
    from pytest_trace2evolve.utils.sanitize import sanitize_line

    if not looks.problems:
        print("the ledger is not damaged; nothing was written")
        return 0
    for problem in looks.problems:
        print(sanitize_line(problem))
    count = "1 entry is" if looks.lost == 1 else f"{looks.lost} entries are"
    print(f"{count} missing or unreadable, and each counts as one test of every split from now on.")
    print("Restore the files from git instead, if you can. A repair is recorded with your name.")
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("nobody can be asked here; read the list above, and give --yes to accept it")
        if input("Accept this damage? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing was written")
            return 1
    try:
        entry = looks.repair(user_name())
    except OSError as error:
        raise ConfigError(f"the repair could not be recorded: {error.strerror or error}") from None
    print(f"recorded as ledger entry {entry.name}, by {entry.who}; commit it")
    return 0


def _ledger(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.report.ledger import ledger_json, ledger_text
    from pytest_trace2evolve.session.access_log import Looks
    from pytest_trace2evolve.session.history import stories
    from pytest_trace2evolve.utils.sanitize import sanitize_line

    project = project_of(options)
    if options.action is None and options.yes:
        raise ConfigError("--yes goes with 'trace2evolve ledger repair'")
    looks = Looks(project)
    if options.action == "repair":
        return _repair(looks, yes=options.yes)
    told = stories(project, looks, options.suite, options.split)
    print(json.dumps(ledger_json(looks, told), indent=2) if options.json else ledger_text(looks, told))
    for problem in looks.problems:
        print(f"trace2evolve: {sanitize_line(problem)}", file=sys.stderr)
    return 1 if looks.problems else 0


def add_show(commands: Any) -> None:
    """Declare the command."""
    show = commands.add_parser("show", help="open a trace; a look at a sealed split is recorded")
    show.add_argument(
        "run", metavar="RUN", help="a run's id or how it begins, a run folder or a results file"
    )
    show.add_argument("task", metavar="TASK", help="the task's id")
    show.add_argument("--trial", type=integer, metavar="N", help="which trial (default: the first)")
    show.add_argument("--suite", default="", metavar="NAME", help="which suite of a run over several")
    show.add_argument("--full", action="store_true", help="cut nothing")
    show.set_defaults(command=_show)


def _show(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.project.project import find_root
    from pytest_trace2evolve.report.trace import trace_text
    from pytest_trace2evolve.session.baselines import is_path
    from pytest_trace2evolve.session.traces import open_trace

    here = Path.cwd()
    if options.root is None:
        # A run belongs to the project that it lies in, wherever its reader stands.
        place = (here / options.run).resolve() if is_path(here / options.run) else here
        options.root = find_root(place) or find_root(here)
    opened = open_trace(
        options.run,
        options.task,
        project=project_of(options) if options.root is not None else None,
        here=here,
        trial=options.trial,
        suite=options.suite,
    )
    text = trace_text(opened, full=options.full)
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
    return 0


def add_lint(commands: Any) -> None:
    """Declare the command."""
    lint = commands.add_parser(
        "lint", help="check candidates, suites, their lock, baselines and rules offline"
    )
    lint.add_argument(
        "--against",
        metavar="COMMIT",
        default="HEAD",
        help="hold frozen candidates against it (default: HEAD)",
    )
    lint.set_defaults(command=_lint)


def _lint(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.session.findings import Linted
    from pytest_trace2evolve.session.lint import lint

    project = project_of(options)
    findings = lint(Linted(project, options.against, project.open_worlds()))
    for finding in findings:
        kind = "warning: " if finding.warning else ""
        print(f"{_shown(finding.path, project.root)}: {kind}{finding.text}")
    return 1 if any(not finding.warning for finding in findings) else 0


def _shown(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def add_lock(commands: Any) -> None:
    """Declare the command."""
    lock = commands.add_parser("lock", help="write suites.lock from the suites and their worlds as they are")
    lock.add_argument("suites", nargs="*", metavar="SUITE", help="renew these only")
    lock.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 where a suite differs from its lock"
    )
    lock.set_defaults(command=_lock)


def _lock(options: argparse.Namespace) -> int:
    project = project_of(options)
    worlds = project.open_worlds()
    if options.check:
        return _check_locks(project, worlds, options.suites)
    lock = project.renew_lock(worlds, options.suites)
    for name, suite_lock in lock.suites.items():
        splits = ", ".join(f"{split} {len(tasks)}" for split, tasks in suite_lock.splits.items())
        print(f"{name}: {splits}; {suite_lock.provider} {suite_lock.provider_version}; {suite_lock.digest}")
    print(f"written: {project.lock_path}")
    return 0


def _check_locks(project: Any, worlds: Any, names: Sequence[str]) -> int:
    differing = 0
    for name in names or project.suite_names:
        suite = project.suite(name)
        try:
            project.verify_world(suite, project.locked(suite, worlds), worlds)
        except LockError as error:
            print(f"trace2evolve: {error}", file=sys.stderr)
            differing += 1
    if not differing:
        print(f"{project.lock_path}: every suite is as locked")
    return 1 if differing else 0
