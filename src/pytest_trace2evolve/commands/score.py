"""`trace2evolve score`: recorded runs scored again."""

import argparse
import json
from pathlib import Path
from typing import Any

from pytest_trace2evolve.commands.common import judge_of, judge_options, nearest_project, worlds_of


def add(commands: Any) -> None:
    """Declare the command."""
    score = commands.add_parser("score", help="score recorded runs again by tau2's rules")
    score.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results files or folders")
    score.add_argument("--json", action="store_true", help="print JSON")
    score.add_argument("--provider", help="the world's provider (default: inspect_evals)")
    judge_options(score)
    score.set_defaults(command=_score)


def _score(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.report.score import score_json, score_tables
    from pytest_trace2evolve.workflow.recorded.rescore import rescore_files

    worlds = worlds_of(nearest_project(options))
    scored = rescore_files(options.files, worlds, options.provider, judge_of(options))
    print(json.dumps(score_json(scored), indent=2) if options.json else score_tables(scored))
    return 0
