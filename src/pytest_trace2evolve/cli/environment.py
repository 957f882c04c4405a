"""Capability environments: list, check, calibrate and synthesize."""

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_trace2evolve.cli.common import environments_of, nearest_project, progress_bar
from pytest_trace2evolve.errors import ConfigError

if TYPE_CHECKING:
    from pytest_trace2evolve.engine.ray_executor import RayExecutor
    from pytest_trace2evolve.environments.calibration import CalibrationSpec
    from pytest_trace2evolve.environments.on_cluster import Players
    from pytest_trace2evolve.environments.registry import Environments
    from pytest_trace2evolve.environments.synthesis import Synthesis, SynthesisTask
    from pytest_trace2evolve.models.settings import ModelSettings
    from pytest_trace2evolve.project.project import Project
    from pytest_trace2evolve.records.environment import Calibration

ROLLOUTS_AT_ONCE = 64
"""Number of concurrent calls on a cluster, if no option sets it."""

REFUSED = 1
"""Exit status if an environment is rejected, no difficulty fits, or no module was admitted."""


def list_environments(options: argparse.Namespace) -> int:
    """List environments with their calibrations."""
    from pytest_trace2evolve.environments.calibration import environment_statuses
    from pytest_trace2evolve.report.improvement import environments_text

    found = environment_statuses(environments_of(nearest_project(options)), _calibrations_folder(options))
    if options.json:
        print(json.dumps([environment.record for environment in found], indent=1))
    else:
        print(environments_text(found))
    return 0


def check(options: argparse.Namespace) -> int:
    """Run every admission check on environments."""
    from pytest_trace2evolve.environments.admission import admit
    from pytest_trace2evolve.environments.held_out import held_out_of
    from pytest_trace2evolve.records.task import Content
    from pytest_trace2evolve.report.improvement import admission_text

    project = nearest_project(options)
    held_out = held_out_of(project)
    reports = []
    with (
        contextlib.closing(environments_of(project)) as environments,
        _executor(options, project) as executor,
    ):
        for name in _chosen(options, environments):
            with progress_bar(name, options.seeds) as show:
                report = admit(
                    environments,
                    name,
                    seeds=options.seeds,
                    difficulty=options.difficulty,
                    content=Content(options.content),
                    held_out=held_out,
                    on_progress=show,
                    executor=executor,
                )
            reports.append(report)
            if not options.json:
                print(admission_text(report), flush=True)
    if options.json:
        records = [report.model_dump(mode="json") | {"passed": report.passed} for report in reports]
        print(json.dumps(records, indent=1))
    return 0 if all(report.passed for report in reports) else REFUSED


def tune(options: argparse.Namespace) -> int:
    """Find the difficulty of environments at which a model can learn."""
    from pytest_trace2evolve.environments.calibration import estimate, read_spec
    from pytest_trace2evolve.records.environment import Outcome
    from pytest_trace2evolve.report.improvement import calibrations_text

    project = nearest_project(options)
    with contextlib.ExitStack() as stack:
        environments = stack.enter_context(contextlib.closing(environments_of(project)))
        names = _chosen(options, environments)
        spec = read_spec(options, project, Path.cwd())
        print(estimate(spec, len(names)), file=sys.stderr)
        settings = stack.enter_context(_served(spec))
        folder, players = _calibrations_folder(options), None
        executor = stack.enter_context(_executor(options, project, settings))
        if executor is not None:
            from pytest_trace2evolve.environments.on_cluster import Players

            players = Players(executor, settings)
        work = _calibrate_each(environments, names, spec, settings, folder, players)
        found = asyncio.run(work) if executor is None else executor.run(work)
    if options.json:
        print(json.dumps([calibration.model_dump(mode="json") for calibration in found], indent=1))
    else:
        print(calibrations_text(found))
    return 0 if all(calibration.outcome is Outcome.FITS for calibration in found) else REFUSED


@contextlib.contextmanager
def _executor(
    options: argparse.Namespace, project: "Project | None", *models: "ModelSettings"
) -> "Iterator[RayExecutor | None]":
    """Open the Ray cluster of `--ray`; yield None without that option."""
    if options.ray is None:
        yield None
        return
    from pytest_trace2evolve.engine.ray_executor import RayExecutor

    at_once = getattr(options, "concurrency", ROLLOUTS_AT_ONCE)
    with RayExecutor.opened(options.ray, project, at_once, models) as executor:
        yield executor


async def _calibrate_each(
    environments: "Environments",
    names: Sequence[str],
    spec: "CalibrationSpec",
    settings: "ModelSettings",
    folder: Path,
    players: "Players | None",
) -> "list[Calibration]":
    """Calibrate environments one after the other, and store each calibration before the next one starts."""
    from pytest_trace2evolve.environments.calibration import calibrate, store_calibration
    from pytest_trace2evolve.models.chat import ChatModel

    model = ChatModel(settings)
    found = []
    try:
        for name in names:
            with progress_bar(name, spec.seeds * spec.rollouts) as show:

                def on_progress(difficulty: int, done: int, show: Callable[..., None] = show) -> None:
                    show(done, f"difficulty {difficulty}")

                calibration = await calibrate(
                    environments, name, model, spec, on_progress=on_progress, players=players
                )
            store_calibration(folder, calibration)
            found.append(calibration)
    finally:
        await model.close()
    return found


def synthesize(options: argparse.Namespace) -> int:
    """Have a model write the environment of a capability."""
    from pytest_trace2evolve.environments.calibration import read_spec
    from pytest_trace2evolve.environments.environment import DIFFICULTIES
    from pytest_trace2evolve.environments.synthesis import synthesis_task
    from pytest_trace2evolve.models.settings import ModelSettings

    if options.difficulty is not None and options.difficulty not in DIFFICULTIES:
        raise ConfigError(f"--difficulty {options.difficulty}: must be from 1 to {DIFFICULTIES[-1]}")
    project = nearest_project(options)
    if project is None:
        raise ConfigError("no suites/ in this folder or above it: a module is kept in a project; give --root")
    task = synthesis_task(
        options.capability, options.description, options.from_run, project=project, here=Path.cwd()
    )
    spec = read_spec(options, project, Path.cwd())
    writer = ModelSettings(
        model=options.writer,
        base_url=options.writer_base_url,
        url_option="--writer-base-url",
        api_key_env=options.writer_api_key_env,
        temperature=1.0,
        seed=0,
    )
    writer.key()
    writer.require_url()
    with _served(spec) as settings:
        found = asyncio.run(_synthesize(options, task, writer, spec, settings, project.root))
    _print_synthesis(found, as_json=options.json)
    return 0 if found.module is not None else REFUSED


async def _synthesize(
    options: argparse.Namespace,
    task: "SynthesisTask",
    writer: "ModelSettings",
    spec: "CalibrationSpec",
    settings: "ModelSettings",
    root: Path,
) -> "Synthesis":
    from pytest_trace2evolve.environments.calibration import calibrate
    from pytest_trace2evolve.environments.synthesis import synthesize
    from pytest_trace2evolve.models.chat import ChatModel

    async with contextlib.AsyncExitStack() as stack:
        author, base = ChatModel(writer), ChatModel(settings)
        stack.push_async_callback(author.close)
        stack.push_async_callback(base.close)
        return await synthesize(
            task,
            author,
            name=options.writer,
            root=root,
            calibrate=lambda environments, name: calibrate(environments, name, base, spec),
            rounds=options.rounds,
            on_progress=lambda line: print(line, file=sys.stderr, flush=True),
        )


def _print_synthesis(found: "Synthesis", *, as_json: bool) -> None:
    if as_json:
        record = {
            "module": str(found.module) if found.module else None,
            "kept": str(found.folder),
            "rounds": [
                {"round": attempt.number, "problems": list(attempt.problems)} for attempt in found.rounds
            ],
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


@contextlib.contextmanager
def _served(spec: "CalibrationSpec") -> Iterator["ModelSettings"]:
    """The settings of the measured model. A model folder is served while the context is open."""
    from pytest_trace2evolve.serving.process import LocalServer

    if spec.settings.folder is None:
        yield spec.settings
        return
    with contextlib.closing(LocalServer(spec.settings.folder)) as server:
        yield spec.settings.served(server.base_url, server.token)


def _chosen(options: argparse.Namespace, environments: "Environments") -> list[str]:
    """The named environments, or all. Each must exist and offer the given difficulty."""
    for name in options.names:
        environments.offer(name)
    names = list(dict.fromkeys(options.names)) or environments.names
    if options.difficulty is not None:
        for name in names:
            environments.generator(name, options.difficulty)
    return names


def _calibrations_folder(options: argparse.Namespace) -> Path:
    """The folder of calibrations, in the project or below the current folder."""
    project = nearest_project(options)
    root = Path.cwd() if project is None else project.root
    if not root.is_dir():
        raise ConfigError(f"{root} is no folder")
    return root / ".trace2evolve" / "environments"
