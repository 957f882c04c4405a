"""`trace2evolve calibrate`: how often each policy errs on a suite's own trials."""

import argparse
import json
from pathlib import Path
from typing import Any

from pytest_trace2evolve.commands.common import (
    at_least,
    judge_of,
    judge_options,
    nearest_project,
    refuse_picture,
    share,
    worlds_of,
)
from pytest_trace2evolve.option_types import MOST_SEED, finite, integer


def add(commands: Any) -> None:
    """Declare the command."""
    calibrate = commands.add_parser("calibrate", help="how often each policy errs on a suite's own trials")
    calibrate.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="trials of one agent")
    calibrate.add_argument(
        "--policy",
        action="append",
        metavar="P",
        help="a policy (default: all there are)",
    )
    calibrate.add_argument(
        "--trials", type=integer, metavar="K", help="trials a side (default: as many as most tasks have)"
    )
    calibrate.add_argument("--margin", type=finite, metavar="M", help="margin of the reward under hold")
    calibrate.add_argument(
        "--effect",
        action="append",
        type=finite,
        metavar="E",
        help="a planted effect (default: .05, .10)",
    )
    calibrate.add_argument("--resamples", type=integer, default=2000, metavar="R", help="(default: 2000)")
    calibrate.add_argument("--seed", type=integer, default=0, help="(default: 0)")
    calibrate.add_argument("--live", action="store_true", help="simulate fresh trials of broken tasks too")
    calibrate.add_argument("--provider", help="the world's provider (default: inspect_evals)")
    calibrate.add_argument("--json", action="store_true", help="print JSON")
    calibrate.add_argument("--picture", type=Path, metavar="FILE", help="write a picture (.svg or .png)")
    judge_options(calibrate)
    calibrate.set_defaults(command=_calibrate)


def _calibrate(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.report.calibration import calibration_json, calibration_text
    from pytest_trace2evolve.workflow.recorded.calibrate import Wanted, calibrate_files

    wanted = Wanted(
        policies=tuple(options.policy or ()),
        trials=None if options.trials is None else at_least("--trials", options.trials, 1, 10000),
        margin=None if options.margin is None else share("--margin", options.margin),
        effects=tuple(share("--effect", effect) for effect in options.effect or (0.05, 0.10)),
        resamples=at_least("--resamples", options.resamples, 1, 100000),
        seed=at_least("--seed", options.seed, 0, MOST_SEED),
        live=options.live,
    )
    if options.picture is not None:
        refuse_picture(options.picture)
    project = nearest_project(options)
    findings = calibrate_files(
        options.results,
        worlds_of(project),
        wanted,
        project=project,
        provider=options.provider,
        judge=judge_of(options),
    )
    if options.picture is not None:
        from pytest_trace2evolve.report.picture import calibration_picture

        file_format = options.picture.suffix[1:].lower()
        options.picture.write_bytes(
            calibration_picture(findings.calibration, title=findings.name, file_format=file_format)
        )
    print(json.dumps(calibration_json(findings), indent=2) if options.json else calibration_text(findings))
    return 0
