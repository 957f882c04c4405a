"""The environments of an evolution: none shares held-out content, and each at a difficulty to learn at."""

import asyncio
from collections.abc import Callable, Sequence

from pytest_trace2evolve.environments.admit import require_admitted
from pytest_trace2evolve.environments.calibrate import SEED, Ask, calibrate
from pytest_trace2evolve.environments.calibration_store import fitting, keep
from pytest_trace2evolve.environments.generators.scenario import EASIEST
from pytest_trace2evolve.environments.registry import BUILT_IN_NAMES, Environments
from pytest_trace2evolve.improve.order import CALIBRATION
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.environment import Calibration, Outcome
from pytest_trace2evolve.records.improvement import Ready
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest
from pytest_trace2evolve.serving.process import served
from pytest_trace2evolve.utils.resources import embedded_model


def ready(
    environments: Environments,
    names: Sequence[str],
    base: ModelFolder,
    instruction: str,
    project: Project,
    *,
    first: int = 0,
    told: Callable[[str, int, int], None] = lambda name, done, total: None,
    played: Callable[[int], None] = lambda rollouts: None,
) -> list[Ready]:
    """Hold environments against held-out content, and pick the difficulty at which a base can learn.

    Args:
        instruction: The candidate's, which the agent gets.
        first: The first scenario that is held against held-out content; see `random_first`.
        told: Hears of which environment how many rollouts of how many are done.
        played: Hears how many rollouts a calibration took, once it is kept.

    Raises:
        ConfigError: an environment is not admitted: nothing may be trained in it.
        InfrastructureError: too many rollouts were lost.
    """
    require_admitted(environments, names, project, first)
    weights = folder_digest(base.path)
    kept = project.root / ".trace2evolve" / "environments"
    found: dict[str, Ready] = {}
    for name in names:
        if calibration := fitting(environments, name, weights, kept):
            found[name] = _ready(calibration)
        elif name in BUILT_IN_NAMES and weights == folder_digest(embedded_model()):
            # Calibrated before, with more rollouts than there would be here (docs/environments.md).
            found[name] = Ready(name=name, difficulty=EASIEST)

    def calibrated(one: Calibration) -> None:
        keep(kept, one)
        found[one.capability] = _ready(one)
        played(one.seeds * one.group * len(one.tried))

    if wanted := [name for name in names if name not in found]:
        _calibrate(environments, wanted, base, instruction, told, calibrated)
    return [found[name] for name in names]


def _ready(one: Calibration) -> Ready:
    return Ready(
        name=one.capability,
        difficulty=one.difficulty,
        mean=one.tried[-1].figures.mean,
        fits=one.outcome is Outcome.FITS,
    )


def _calibrate(
    environments: Environments,
    names: Sequence[str],
    base: ModelFolder,
    instruction: str,
    told: Callable[[str, int, int], None],
    done: Callable[[Calibration], None],
) -> None:
    """Calibrate one environment after the other; `done` hears of each before the next begins."""
    seeds, rollouts = CALIBRATION

    async def measured(settings: ModelSettings) -> None:
        ask = Ask(settings, instruction=instruction, seeds=seeds, rollouts=rollouts)
        model = ChatModel(settings)
        try:
            for name in names:

                def heard(difficulty: int, done: int, name: str = name) -> None:
                    told(name, done, seeds * rollouts)

                done(await calibrate(environments, name, model, ask, told=heard))
        finally:
            await model.close()

    with served(base, seed=SEED) as settings:
        asyncio.run(measured(settings))
