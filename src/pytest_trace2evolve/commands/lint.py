"""`trace2evolve lint`: checks candidates, suites, the lock, baselines and the rules of worlds, offline."""

import argparse
from pathlib import Path
from typing import Any

from pytest_trace2evolve.commands.common import project_of


def add(commands: Any) -> None:
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
    from pytest_trace2evolve.workflow.findings import Linted
    from pytest_trace2evolve.workflow.lint import lint

    project = project_of(options)
    findings = lint(Linted(project, options.against, project.open_worlds()))
    for finding in findings:
        kind = "warning: " if finding.warning else ""
        print(f"{_shown(finding.path, project.root)}: {kind}{finding.text}")
    return 1 if any(not finding.warning for finding in findings) else 0


def _shown(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
