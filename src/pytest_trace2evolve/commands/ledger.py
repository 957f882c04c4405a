"""`trace2evolve ledger`: the history of the splits, whether it is whole, and the repair of a damaged one."""

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.commands.common import project_of
from pytest_trace2evolve.errors import ConfigError

if TYPE_CHECKING:
    from pytest_trace2evolve.workflow.judging.ledger import Looks


def add(commands: Any) -> None:
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
    from pytest_trace2evolve._sanitize import sanitize_line
    from pytest_trace2evolve.workflow.recorded.looks import user_name

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
    from pytest_trace2evolve._sanitize import sanitize_line
    from pytest_trace2evolve.report.ledger import ledger_json, ledger_text
    from pytest_trace2evolve.workflow.judging.ledger import Looks
    from pytest_trace2evolve.workflow.judging.story import stories

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
