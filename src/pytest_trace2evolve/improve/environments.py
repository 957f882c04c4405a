"""The environments of an evolution, checked for held-out content and calibrated to a suitable difficulty."""

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
from pytest_trace2evolve.improve.plan import CALIBRATION, EvolutionPlan
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.environment import Calibration, Outcome
from pytest_trace2evolve.records.improvement import TrainingEnvironment
from pytest_trace2evolve.serving.folder import folder_digest
from pytest_trace2evolve.serving.process import served
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
    """Compare environments with held-out content, and calibrate environments that lack a calibration.

    `on_calibrated` gets the number of rollouts of a calibration after the project has stored the calibration.

    Raises:
        ConfigError: an environment is not admitted, so nothing may be trained in it.
        InfrastructureError: too many rollouts were lost.
    """
    require_admitted(
        environments, names, project, draw_first_seed(plan.recipe.first_scenario, plan.recipe.scenarios)
    )
    weights = folder_digest(plan.base.path)
    folder = project.root / ".trace2evolve" / "environments"
    found: dict[str, TrainingEnvironment] = {}
    for name in names:
        if calibration := find_calibration(environments, name, weights, folder):
            found[name] = _ready(calibration)
        elif name in BUILT_IN_NAMES and weights == folder_digest(embedded_model()):
            # The calibrations of the embedded model are built in; they used more rollouts than this function
            # does (docs/environments.md).
            found[name] = TrainingEnvironment(name=name, difficulty=EASIEST)
    seeds, rollouts = CALIBRATION
    total = seeds * rollouts

    async def calibrate_all(settings: ModelSettings, missing: Sequence[str]) -> None:
        instruction = project.candidates[plan.candidate].instruction
        spec = CalibrationSpec(settings, instruction=instruction, seeds=seeds, rollouts=rollouts)
        model = ChatModel(settings)
        try:
            for name in missing:

                def report(difficulty: int, done: int, name: str = name) -> None:
                    on_progress(f"{name} {done}/{total}")

                calibration = await calibrate(environments, name, model, spec, on_progress=report)
                store_calibration(folder, calibration)
                found[name] = _ready(calibration)
                on_calibrated(total * len(calibration.tried))
        finally:
            await model.close()

    if missing := [name for name in names if name not in found]:
        with served(plan.base, seed=FIRST_ROLLOUT_SEED) as settings:
            asyncio.run(calibrate_all(settings, missing))
    return [found[name] for name in names]


def _ready(calibration: Calibration) -> TrainingEnvironment:
    return TrainingEnvironment(
        name=calibration.capability,
        difficulty=calibration.difficulty,
        mean=calibration.tried[-1].figures.mean,
        fits=calibration.outcome is Outcome.FITS,
    )
