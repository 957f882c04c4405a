"""`trace2evolve lock`: writes what suites mean, or checks it."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from pytest_trace2evolve.commands.common import project_of
from pytest_trace2evolve.errors import LockError


def add(commands: Any) -> None:
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
