"""Checks the environments of an evolution for held-out content, and calibrates their difficulty."""

import asyncio
from collections.abc import Callable, Sequence

from pytest_trace2evolve.environments.admission import draw_first_seed, require_admitted
from pytest_trace2evolve.environments.calibration import (
    FIRST_ROLLOUT_SEED,
    CalibrationSpec,
    calibrate,
    find_calibration,
    store_calibration,
)
from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.environments.registry import BUILT_IN_NAMES, Environments
from pytest_trace2evolve.improve.plan import CALIBRATION_SIZE, EvolutionPlan
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.environment import Calibration, CalibrationOutcome
from pytest_trace2evolve.records.improvement import TrainingEnvironment
from pytest_trace2evolve.serving.folder import folder_digest
from pytest_trace2evolve.serving.process import serve_locally
from pytest_trace2evolve.utils.resources import embedded_model


def prepare_environments(
    plan: EvolutionPlan,
    environments: Environments,
    names: Sequence[str],
    project: Project,
    *,
    on_progress: Callable[[str], None],
    on_calibrated: Callable[[int], None],
) -> list[TrainingEnvironment]:
    """Check environments for held-out content, and calibrate environments that lack a calibration.

    `on_calibrated` gets the number of rollouts of a calibration after the project has stored the calibration.

    Raises:
        ConfigError: an environment is not admitted, so no adapter may be trained in it.
        InfrastructureError: too many rollouts were lost.
    """
    require_admitted(
        environments, names, project, draw_first_seed(plan.recipe.first_scenario, plan.recipe.scenarios)
    )
    base_digest = folder_digest(plan.base.path)
    folder = project.root / ".trace2evolve" / "environments"
    training_environments: dict[str, TrainingEnvironment] = {}
    for name in names:
        if calibration := find_calibration(environments, name, base_digest, folder):
            training_environments[name] = _training_environment(calibration)
        elif name in BUILT_IN_NAMES and base_digest == folder_digest(embedded_model()):
            # The calibrations of the embedded model are built in; they used more rollouts than this function
            # does (docs/capabilities.md).
            training_environments[name] = TrainingEnvironment(name=name, difficulty=EASIEST)
    seeds, rollouts = CALIBRATION_SIZE
    rollout_count = seeds * rollouts

    async def calibrate_all(settings: ModelSettings, uncalibrated: Sequence[str]) -> None:
        instruction = project.candidates[plan.candidate].instruction
        spec = CalibrationSpec(settings, instruction=instruction, seeds=seeds, rollouts=rollouts)
        model = ChatModel(settings)
        try:
            for name in uncalibrated:

                def report(difficulty: int, finished_count: int, name: str = name) -> None:
                    on_progress(f"{name} {finished_count}/{rollout_count}")

                calibration = await calibrate(environments, name, model, spec, on_progress=report)
                store_calibration(folder, calibration)
                training_environments[name] = _training_environment(calibration)
                on_calibrated(rollout_count * len(calibration.tried))
        finally:
            await model.close()

    if uncalibrated := [name for name in names if name not in training_environments]:
        with serve_locally(plan.base, seed=FIRST_ROLLOUT_SEED) as settings:
            asyncio.run(calibrate_all(settings, uncalibrated))
    return [training_environments[name] for name in names]


def _training_environment(calibration: Calibration) -> TrainingEnvironment:
    return TrainingEnvironment(
        name=calibration.capability,
        difficulty=calibration.difficulty,
        mean=calibration.tried[-1].figures.mean,
        fits=calibration.outcome is CalibrationOutcome.FITS,
    )
