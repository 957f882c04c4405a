"""Commands for capability environments: list, check, tune and synthesize."""

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
    from pytest_trace2evolve.environments.calibration import CalibrationSpec
    from pytest_trace2evolve.environments.registry import Environments
    from pytest_trace2evolve.environments.synthesis import Synthesis, SynthesisTask
    from pytest_trace2evolve.models.settings import ModelSettings
    from pytest_trace2evolve.records.environment import Calibration

EXIT_REJECTED = 1
"""Exit status if an environment is rejected, no difficulty fits, or no module was admitted."""


def list_environments(options: argparse.Namespace) -> int:
    """List environments with their calibrations."""
    from pytest_trace2evolve.environments.calibration import environment_statuses
    from pytest_trace2evolve.report.improvement import environments_text

    statuses = environment_statuses(environments_of(nearest_project(options)), _calibrations_folder(options))
    if options.json:
        print(json.dumps([environment.record for environment in statuses], indent=1))
    else:
        print(environments_text(statuses))
    return 0


def check(options: argparse.Namespace) -> int:
    """Run every admission check on environments."""
    from pytest_trace2evolve.environments.admission import admit
    from pytest_trace2evolve.environments.held_out import collect_held_out_identifiers
    from pytest_trace2evolve.report.improvement import admission_text

    project = nearest_project(options)
    held_out = collect_held_out_identifiers(project)
    reports = []
    with contextlib.closing(environments_of(project)) as environments:
        for name in _select_environments(options, environments):
            with progress_bar(name, options.seeds) as update:
                report = admit(
                    environments,
                    name,
                    seeds=options.seeds,
                    difficulty=options.difficulty,
                    held_out_identifiers=held_out,
                    on_progress=update,
                )
            reports.append(report)
            if not options.json:
                print(admission_text(report), flush=True)
    if options.json:
        report_fields = [report.model_dump(mode="json") | {"passed": report.passed} for report in reports]
        print(json.dumps(report_fields, indent=1))
    return 0 if all(report.passed for report in reports) else EXIT_REJECTED


def tune(options: argparse.Namespace) -> int:
    """Find the difficulty of environments at which a model can learn."""
    from pytest_trace2evolve.environments.calibration import estimate_line, read_spec
    from pytest_trace2evolve.records.environment import CalibrationOutcome
    from pytest_trace2evolve.report.improvement import calibrations_text

    project = nearest_project(options)
    with contextlib.ExitStack() as stack:
        environments = stack.enter_context(contextlib.closing(environments_of(project)))
        names = _select_environments(options, environments)
        spec = read_spec(options, project, Path.cwd())
        print(estimate_line(spec, len(names)), file=sys.stderr)
        settings = stack.enter_context(_serve_model(spec))
        folder = _calibrations_folder(options)
        calibrations = asyncio.run(_calibrate_environments(environments, names, spec, settings, folder))
    if options.json:
        print(json.dumps([calibration.model_dump(mode="json") for calibration in calibrations], indent=1))
    else:
        print(calibrations_text(calibrations))
    return (
        0
        if all(calibration.outcome is CalibrationOutcome.FITS for calibration in calibrations)
        else EXIT_REJECTED
    )


async def _calibrate_environments(
    environments: "Environments",
    names: Sequence[str],
    spec: "CalibrationSpec",
    settings: "ModelSettings",
    folder: Path,
) -> "list[Calibration]":
    """Calibrate environments one by one, and store each calibration before the next starts."""
    from pytest_trace2evolve.environments.calibration import calibrate, store_calibration
    from pytest_trace2evolve.models.chat import ChatModel

    model = ChatModel(settings)
    calibrations = []
    try:
        for name in names:
            with progress_bar(name, spec.seeds * spec.rollouts) as update:

                def on_progress(difficulty: int, done: int, update: Callable[..., None] = update) -> None:
                    update(done, f"difficulty {difficulty}")

                calibration = await calibrate(environments, name, model, spec, on_progress=on_progress)
            store_calibration(folder, calibration)
            calibrations.append(calibration)
    finally:
        await model.close()
    return calibrations


def synthesize(options: argparse.Namespace) -> int:
    """Let a model write the environment of a capability."""
    from pytest_trace2evolve.environments.calibration import read_spec
    from pytest_trace2evolve.environments.environment import DIFFICULTIES
    from pytest_trace2evolve.environments.synthesis import synthesis_task
    from pytest_trace2evolve.models.settings import ModelSettings

    if options.difficulty is not None and options.difficulty not in DIFFICULTIES:
        raise ConfigError(f"--difficulty {options.difficulty}: must be from 1 to {DIFFICULTIES[-1]}")
    project = nearest_project(options)
    if project is None:
        raise ConfigError(
            "this folder and its parents contain no suites/, but a module is stored in a project; give "
            "--root DIR"
        )
    task = synthesis_task(
        *(options.capability, options.description, options.from_run, options.suite),
        project=project,
        base_folder=Path.cwd(),
    )
    spec = read_spec(options, project, Path.cwd())
    writer = ModelSettings(
        model=options.writer,
        base_url=options.writer_base_url,
        url_option="t2e_writer_base_url",
        temperature=1.0,
        seed=0,
    )
    writer.key()
    writer.require_url()
    with _serve_model(spec) as settings:
        synthesis = asyncio.run(_synthesize(options, task, writer, spec, settings, project.root))
    _print_synthesis(synthesis, as_json=options.json)
    return 0 if synthesis.module is not None else EXIT_REJECTED


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
        writer_model, measured_model = ChatModel(writer), ChatModel(settings)
        stack.push_async_callback(writer_model.close)
        stack.push_async_callback(measured_model.close)
        return await synthesize(
            task,
            writer_model,
            judge_name=options.writer,
            root=root,
            calibrate=lambda environments, name: calibrate(environments, name, measured_model, spec),
            rounds=options.rounds,
            on_progress=lambda line: print(line, file=sys.stderr, flush=True),
        )


def _print_synthesis(synthesis: "Synthesis", *, as_json: bool) -> None:
    if as_json:
        synthesis_fields = {
            "module": str(synthesis.module) if synthesis.module else None,
            "kept": str(synthesis.folder),
            "rounds": [
                {"round": attempt.number, "problems": list(attempt.problems)} for attempt in synthesis.rounds
            ],
            "calibration": synthesis.calibration.model_dump(mode="json") if synthesis.calibration else None,
        }
        print(json.dumps(synthesis_fields, indent=1))
        return
    if synthesis.module is None:
        print(
            f"no module was admitted in {len(synthesis.rounds)} rounds; the attempts are in "
            f"{synthesis.folder} with "
            "their problems: read the last one, then retry with a better --description or write one by hand"
        )
        return
    assert synthesis.calibration is not None
    figures = synthesis.calibration.tried[-1].figures
    print(
        f"{synthesis.module}: admitted in round {len(synthesis.rounds)}, calibrated at difficulty "
        f"{synthesis.calibration.difficulty} (mean reward {figures.mean:.2f}); review it before you "
        "train on it"
    )


@contextlib.contextmanager
def _serve_model(spec: "CalibrationSpec") -> Iterator["ModelSettings"]:
    """Yield the settings of the measured model. A model folder is served while the context is open."""
    from pytest_trace2evolve.serving.process import LocalServer

    if spec.settings.folder is None:
        yield spec.settings
        return
    with contextlib.closing(LocalServer(spec.settings.folder)) as server:
        yield spec.settings.with_server(server.base_url, server.token)


def _select_environments(options: argparse.Namespace, environments: "Environments") -> list[str]:
    """Return the named environments, or all. Each must exist and offer the given difficulty."""
    for name in options.names:
        environments.offer(name)
    names = list(dict.fromkeys(options.names)) or environments.names
    if options.difficulty is not None:
        for name in names:
            environments.generator(name, options.difficulty)
    return names


def _calibrations_folder(options: argparse.Namespace) -> Path:
    """Return the folder of calibrations, in the project or in the current folder."""
    project = nearest_project(options)
    root = Path.cwd() if project is None else project.root
    if not root.is_dir():
        raise ConfigError(f"{root} is not a folder")
    return root / ".trace2evolve" / "environments"
