"""`trace2evolve environment`: lists, checks, calibrates and synthesizes capability environments."""

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.commands.common import at_least, environments_of, nearest_project, progress_bar
from pytest_trace2evolve.commands.synthesize import add_synthesis
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.option_types import MOST_SEED, finite, integer

if TYPE_CHECKING:
    from pytest_trace2evolve.records.calibration import Calibration
    from pytest_trace2evolve.workflow.environments.calibrate import Ask
    from pytest_trace2evolve.workflow.environments.registry import Environments

REFUSED = 1
"""Exit status where an environment is refused, or no difficulty fits."""


def add(commands: Any) -> None:
    """Declare the command and what it can do."""
    environment = commands.add_parser(
        "environment", help="list, check, calibrate or synthesize capability environments"
    )
    parts = environment.add_subparsers(required=True, metavar="ACTION")
    listing = parts.add_parser("list", help="what there is, what each pays, and whether it is calibrated")
    listing.add_argument("--json", action="store_true", help="as JSON")
    listing.set_defaults(command=_list)
    check = parts.add_parser("check", help="hold environments against every check of admission")
    _common(check)
    check.add_argument("--seeds", type=integer, default=1000, metavar="N", help="scenarios (default: 1000)")
    check.set_defaults(command=_check)
    calibrate = parts.add_parser("calibrate", help="find the difficulty at which a model can learn")
    _common(calibrate)
    _measuring(calibrate)
    calibrate.set_defaults(command=_calibrate)
    add_synthesis(parts, _measuring)


def _measuring(calibrate: argparse.ArgumentParser) -> None:
    """Declare which model is measured, and how."""
    calibrate.add_argument(
        "--model", metavar="MODEL", help="a folder, or a name (default: the embedded model)"
    )
    calibrate.add_argument("--base-url", metavar="URL", help="its endpoint (default: OPENAI_BASE_URL)")
    calibrate.add_argument("--key-var", metavar="NAME", default="OPENAI_API_KEY", help="variable of its key")
    calibrate.add_argument(
        "--seeds", type=integer, metavar="N", help="scenarios (default: 100; in a folder 30)"
    )
    calibrate.add_argument(
        "--first", type=integer, default=0, metavar="SEED", help="of the first scenario (default: 0)"
    )
    calibrate.add_argument("--rollouts", type=integer, default=16, metavar="K", help="of each (default: 16)")
    calibrate.add_argument(
        "--candidate", metavar="ID", help="whose instruction the agent gets (default: none)"
    )
    calibrate.add_argument(
        "--temperature", type=finite, metavar="T", help="(default: the model's own, else 1)"
    )
    calibrate.add_argument(
        "--concurrency", type=integer, default=64, metavar="N", help="at once (default: 64)"
    )


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="environments (default: all)")
    parser.add_argument("--difficulty", type=integer, metavar="D", help="one difficulty alone, from 1 to 5")
    parser.add_argument(
        "--content", choices=("train", "heldout"), default="train", help="whose words (default: train)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def _list(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.report.environments import environments_text
    from pytest_trace2evolve.workflow.environments.listing import listed

    found = listed(environments_of(nearest_project(options)), _folder(options))
    if options.json:
        print(json.dumps([one.record for one in found], indent=1))
    else:
        print(environments_text(found))
    return 0


def _check(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.records.script import Content
    from pytest_trace2evolve.report.environments import admission_text
    from pytest_trace2evolve.workflow.environments.admit import admit, held_out_of

    seeds = at_least("--seeds", options.seeds, 1)
    project = nearest_project(options)
    held_out = held_out_of(project)
    reports = []
    with contextlib.closing(environments_of(project)) as environments:
        names = _names(options.names, environments)
        _require_difficulty(options.difficulty, names, environments)
        for name in names:
            with progress_bar(name, seeds) as show:
                report = admit(
                    environments,
                    name,
                    seeds=seeds,
                    difficulty=options.difficulty,
                    content=Content(options.content),
                    held_out=held_out,
                    told=show,
                )
            reports.append(report)
            if not options.json:
                print(admission_text(report), flush=True)
    if options.json:
        print(json.dumps([one.model_dump(mode="json") | {"passed": one.passed} for one in reports], indent=1))
    return 0 if all(one.passed for one in reports) else REFUSED


def _calibrate(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.records.calibration import Outcome
    from pytest_trace2evolve.report.environments import calibrations_text
    from pytest_trace2evolve.serving.process import LocalServer
    from pytest_trace2evolve.workflow.environments.asking import budget, read_ask

    at_least("--rollouts", options.rollouts, 2)
    at_least("--concurrency", options.concurrency, 1, 4096)
    at_least("--first", options.first, 0, MOST_SEED)
    if options.seeds is not None:
        at_least("--seeds", options.seeds, 2)
    project = nearest_project(options)
    with contextlib.ExitStack() as stack:
        environments = stack.enter_context(contextlib.closing(environments_of(project)))
        names = _names(options.names, environments)
        _require_difficulty(options.difficulty, names, environments)
        ask = read_ask(options, project, Path.cwd())
        print(budget(ask, len(names)), file=sys.stderr)
        server = LocalServer(ask.settings.folder) if ask.settings.folder is not None else None
        if server is not None:
            stack.callback(server.close)
        found = asyncio.run(_measured(environments, names, ask, server, _folder(options)))
    if options.json:
        print(json.dumps([one.model_dump(mode="json") for one in found], indent=1))
    else:
        print(calibrations_text(found))
    return 0 if all(one.outcome is Outcome.FITS for one in found) else REFUSED


async def _measured(
    environments: "Environments", names: Sequence[str], ask: "Ask", server: Any, kept: Path
) -> "list[Calibration]":
    """Calibrate one environment after the other; each is kept before the next can fail."""
    from pytest_trace2evolve.models.chat import ChatModel
    from pytest_trace2evolve.workflow.environments.calibrate import calibrate
    from pytest_trace2evolve.workflow.environments.kept import keep

    settings = ask.settings if server is None else ask.settings.served(server.base_url, server.token)
    model = ChatModel(settings)
    found = []
    try:
        for name in names:
            with progress_bar(name, ask.seeds * ask.rollouts) as show:

                def told(difficulty: int, done: int, show: Any = show) -> None:
                    show(done, f"difficulty {difficulty}")

                found.append(await calibrate(environments, name, model, ask, told=told))
                keep(kept, found[-1])
    finally:
        await model.close()
    return found


def _names(given: Sequence[str], environments: "Environments") -> list[str]:
    for name in given:
        environments.offer(name)
    return list(dict.fromkeys(given)) or environments.names


def _require_difficulty(difficulty: int | None, names: Sequence[str], environments: "Environments") -> None:
    """Refuse a difficulty that one does not have before anything is measured."""
    for name in names if difficulty is not None else ():
        environments.generator(name, difficulty or 0)


def _folder(options: argparse.Namespace) -> Path:
    """Where calibrations are kept: in the project, or in the folder at hand."""
    project = nearest_project(options)
    root = Path.cwd() if project is None else project.root
    if not root.is_dir():
        raise ConfigError(f"{root} is no folder")
    return root / ".trace2evolve" / "environments"
