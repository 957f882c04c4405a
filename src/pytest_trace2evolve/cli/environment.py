"""`trace2evolve environment`: lists, checks, calibrates and synthesizes capability environments.

`trace2evolve environment synthesize`: has a model write the environment of a capability.
"""

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.cli.common import at_least, environments_of, nearest_project, progress_bar
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.utils.option_types import MOST_SEED, finite, integer

if TYPE_CHECKING:
    from pytest_trace2evolve.environments.calibration import CalibrationSpec
    from pytest_trace2evolve.environments.registry import Environments
    from pytest_trace2evolve.environments.synthesis import Synthesis, SynthesisTask
    from pytest_trace2evolve.records.environment import Calibration


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
    from pytest_trace2evolve.environments.calibration import read_spec
    from pytest_trace2evolve.environments.environment import DIFFICULTIES
    from pytest_trace2evolve.environments.synthesis import synthesis_task
    from pytest_trace2evolve.models.settings import ModelSettings
    from pytest_trace2evolve.serving.process import LocalServer

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
    commission = synthesis_task(
        options.capability, options.description, options.from_run, project=project, here=Path.cwd()
    )
    ask = read_spec(options, project, Path.cwd())
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
    options: argparse.Namespace, commission: "SynthesisTask", judge: Any, ask: Any, server: Any, root: Path
) -> "Synthesis":
    from pytest_trace2evolve.environments.calibration import calibrate
    from pytest_trace2evolve.environments.synthesis import synthesize
    from pytest_trace2evolve.models.chat import ChatModel

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
            on_progress=lambda line: print(line, file=sys.stderr, flush=True),
        )


def _tell(options: argparse.Namespace, found: "Synthesis") -> None:
    if options.json:
        record = {
            "module": str(found.module) if found.module else None,
            "kept": str(found.folder),
            "rounds": [{"round": one.number, "problems": list(one.problems)} for one in found.rounds],
            "calibration": found.calibration.model_dump(mode="json") if found.calibration else None,
        }
        print(json.dumps(record, indent=1))
        return
    if found.module is None:
        print(
            f"no module was admitted in {len(found.rounds)} rounds; they lie in {found.folder} with what was "
            "found wrong: read the last, and ask again with a better --description, or write one by hand"
        )
        return
    assert found.calibration is not None
    figures = found.calibration.tried[-1].figures
    print(
        f"{found.module}: admitted in round {len(found.rounds)}, calibrated at difficulty "
        f"{found.calibration.difficulty} (mean reward {figures.mean:.2f}); review it before you train on it"
    )


"""Exit status where an environment is refused, or no difficulty fits."""


def add_environment(commands: Any) -> None:
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
    from pytest_trace2evolve.environments.calibration import environment_statuses
    from pytest_trace2evolve.report.environments import environments_text

    found = environment_statuses(environments_of(nearest_project(options)), _folder(options))
    if options.json:
        print(json.dumps([one.record for one in found], indent=1))
    else:
        print(environments_text(found))
    return 0


def _check(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.environments.admission import admit
    from pytest_trace2evolve.environments.held_out import held_out_of
    from pytest_trace2evolve.records.task import Content
    from pytest_trace2evolve.report.environments import admission_text

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
                    on_progress=show,
                )
            reports.append(report)
            if not options.json:
                print(admission_text(report), flush=True)
    if options.json:
        print(json.dumps([one.model_dump(mode="json") | {"passed": one.passed} for one in reports], indent=1))
    return 0 if all(one.passed for one in reports) else REFUSED


def _calibrate(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.environments.calibration import estimate, read_spec
    from pytest_trace2evolve.records.environment import Outcome
    from pytest_trace2evolve.report.environments import calibrations_text
    from pytest_trace2evolve.serving.process import LocalServer

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
        ask = read_spec(options, project, Path.cwd())
        print(estimate(ask, len(names)), file=sys.stderr)
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
    environments: "Environments", names: Sequence[str], ask: "CalibrationSpec", server: Any, kept: Path
) -> "list[Calibration]":
    """Calibrate one environment after the other; each is kept before the next can fail."""
    from pytest_trace2evolve.environments.calibration import calibrate, store_calibration
    from pytest_trace2evolve.models.chat import ChatModel

    settings = ask.settings if server is None else ask.settings.served(server.base_url, server.token)
    model = ChatModel(settings)
    found = []
    try:
        for name in names:
            with progress_bar(name, ask.seeds * ask.rollouts) as show:

                def told(difficulty: int, done: int, show: Any = show) -> None:
                    show(done, f"difficulty {difficulty}")

                found.append(await calibrate(environments, name, model, ask, on_progress=told))
                store_calibration(kept, found[-1])
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
