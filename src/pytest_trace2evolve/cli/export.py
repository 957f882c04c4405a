"""`trace2evolve export`: a run in the formats of other tools."""

import argparse
from pathlib import Path

from pytest_trace2evolve.cli.common import nearest_project
from pytest_trace2evolve.report.export import FORMATS
from pytest_trace2evolve.session.page_data import exported_suites
from pytest_trace2evolve.utils.files import write_atomic


def export(options: argparse.Namespace) -> int:
    """Write the files of a format."""
    project = nearest_project(options)
    suites = exported_suites(options.run, project, Path.cwd(), opens_sealed=options.sealed)
    folder = options.output or Path(f"{suites[0].run}-{options.format}")
    for name, text in FORMATS[options.format](suites).items():
        write_atomic(folder / name, text)
        print(f"written: {folder / name}")
    for suite in suites:
        if suite.sealed:
            print(
                f"{suite.name}: {len(suite.sealed)} tasks are sealed, so only their figures were exported; "
                "--sealed exports their traces, and records each access"
            )
    return 0
