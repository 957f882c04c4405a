"""`trace2evolve init`: suites, candidates, cases, prices and a workflow in a repository of the user's own."""

import argparse
import json
import os
import shlex
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import ConfigError


def add(commands: Any) -> None:
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
    from pytest_trace2evolve.report.layout import layout_text
    from pytest_trace2evolve.workflow.layout import lay_out, write

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
    from pytest_trace2evolve.shipped import embedded_model

    words = ["pytest", "--candidate", "v6"]
    try:
        embedded_model()
    except ConfigError:
        words += ["--t2e-agent", "oracle"]
    words += ["--t2e-suite", suites[0]] if len(suites) > 1 else []
    there = "" if root == Path.cwd() else f"cd {shlex.quote(os.path.relpath(root))} && "
    return there + shlex.join([*words, "-n", "2"])
