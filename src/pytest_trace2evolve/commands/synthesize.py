"""`trace2evolve environment synthesize`: has a model write the environment of a capability."""

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.commands.common import at_least, nearest_project
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.option_types import MOST_SEED, integer

if TYPE_CHECKING:
    from pytest_trace2evolve.records.calibration import Calibration
    from pytest_trace2evolve.workflow.environments.registry import Environments
    from pytest_trace2evolve.workflow.environments.synthesize import Commission, Synthesis

REFUSED = 1
"""Exit status where no module was admitted."""


def add_synthesis(parts: Any, measuring: Callable[[argparse.ArgumentParser], None]) -> None:
    """Declare the action; `measuring` declares which base model is measured."""
    synthesize = parts.add_parser("synthesize", help="have a model write the environment of a capability")
    synthesize.add_argument("capability", metavar="CAPABILITY", help="its name, in snake_case")
    synthesize.add_argument("--judge", required=True, metavar="MODEL", help="the model that writes")
    synthesize.add_argument("--judge-base-url", metavar="URL", help="its endpoint (default: OPENAI_BASE_URL)")
    synthesize.add_argument(
        "--judge-key-var", metavar="NAME", default="OPENAI_API_KEY", help="variable of its key"
    )
    synthesize.add_argument("--description", metavar="TEXT", help="what it is, where no report says so")
    synthesize.add_argument(
        "--from-run",
        action="append",
        default=[],
        metavar="RUN|RESULTS",
        help="show failures of this run that lack it; repeatable",
    )
    synthesize.add_argument("--rounds", type=integer, default=5, metavar="N", help="tries (default: 5)")
    synthesize.add_argument(
        "--difficulty", type=integer, metavar="D", help="calibrate at one difficulty alone"
    )
    synthesize.add_argument("--json", action="store_true", help="as JSON")
    measuring(synthesize)
    synthesize.set_defaults(command=_synthesize, content="train")


def _synthesize(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.environments.generated import DIFFICULTIES
    from pytest_trace2evolve.models.settings import ModelSettings
    from pytest_trace2evolve.serving.process import LocalServer
    from pytest_trace2evolve.workflow.environments.asking import read_ask
    from pytest_trace2evolve.workflow.environments.commission import commission_of

    at_least("--rounds", options.rounds, 1, 1000)
    at_least("--rollouts", options.rollouts, 2)
    at_least("--concurrency", options.concurrency, 1, 4096)
    at_least("--first", options.first, 0, MOST_SEED)
    if options.seeds is not None:
        at_least("--seeds", options.seeds, 2)
    if options.difficulty is not None and options.difficulty not in DIFFICULTIES:
        raise ConfigError(f"--difficulty {options.difficulty}: must be from 1 to {DIFFICULTIES[-1]}")
    project = nearest_project(options)
    if project is None:
        raise ConfigError("no suites/ in this folder or above it: a module is kept in a project; give --root")
    commission = commission_of(
        options.capability, options.description, options.from_run, project=project, here=Path.cwd()
    )
    ask = read_ask(options, project, Path.cwd())
    settings = ModelSettings(
        model=options.judge,
        base_url=options.judge_base_url,
        url_option="--judge-base-url",
        key_var=options.judge_key_var,
        temperature=1.0,
        seed=0,
    )
    settings.key()
    settings.require_url()
    folder = ask.settings.folder
    with contextlib.ExitStack() as stack:
        server = LocalServer(folder) if folder is not None else None
        if server is not None:
            stack.callback(server.close)
        found = asyncio.run(_written(options, commission, settings, ask, server, project.root))
    _tell(options, found)
    return 0 if found.module is not None else REFUSED


async def _written(
    options: argparse.Namespace, commission: "Commission", judge: Any, ask: Any, server: Any, root: Path
) -> "Synthesis":
    from pytest_trace2evolve.models.chat import ChatModel
    from pytest_trace2evolve.workflow.environments.calibrate import calibrate
    from pytest_trace2evolve.workflow.environments.synthesize import synthesize

    settings = ask.settings if server is None else ask.settings.served(server.base_url, server.token)
    async with contextlib.AsyncExitStack() as stack:
        writer, base = ChatModel(judge), ChatModel(settings)
        stack.push_async_callback(writer.close)
        stack.push_async_callback(base.close)

        async def calibrated(environments: "Environments", name: str) -> "Calibration":
            return await calibrate(environments, name, base, ask)

        return await synthesize(
            commission,
            writer,
            name=options.judge,
            root=root,
            calibrate=calibrated,
            rounds=options.rounds,
            told=lambda line: print(line, file=sys.stderr, flush=True),
        )


def _tell(options: argparse.Namespace, found: "Synthesis") -> None:
    if options.json:
        record = {
            "module": str(found.module) if found.module else None,
            "kept": str(found.kept),
            "rounds": [{"round": one.number, "problems": list(one.problems)} for one in found.rounds],
            "calibration": found.calibration.model_dump(mode="json") if found.calibration else None,
        }
        print(json.dumps(record, indent=1))
        return
    if found.module is None:
        print(
            f"no module was admitted in {len(found.rounds)} rounds; they lie in {found.kept} with what was "
            "found wrong: read the last, and ask again with a better --description, or write one by hand"
        )
        return
    assert found.calibration is not None
    figures = found.calibration.tried[-1].figures
    print(
        f"{found.module}: admitted in round {len(found.rounds)}, calibrated at difficulty "
        f"{found.calibration.difficulty} (mean reward {figures.mean:.2f}); review it before you train on it"
    )
