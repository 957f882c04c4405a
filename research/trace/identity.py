"""What makes two experiments the same: the versions of the code, the tasks, and how adapters are trained."""

from collections.abc import Iterable
from pathlib import Path

from pytest_trace2evolve.environments.environment import EASIEST
from pytest_trace2evolve.environments.registry import BUILT_IN_NAMES, Environments
from pytest_trace2evolve.errors import ConfigError, TrainingError
from pytest_trace2evolve.records.adapter import MANIFEST_NAME, AdapterManifest
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.training.heldout import PLAYING_VERSION
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.optional import MODEL_PACKAGES, model_package_versions
from pytest_trace2evolve.utils.reading import read_record
from research.trace.plan import Plan, Training
from research.trace.target import VERSION as TARGET_VERSION
from research.trace.target import target_offers

VERSION = 1
"""Version of the code that makes an experiment's pieces: arms, trainings, routing and evaluation. Raise it
when the same plan and seed give another adapter, another instruction, another answer or another reward.
Environments, target tasks and how rollouts are played have versions of their own."""


def code_digest() -> str:
    """Digest of the versions of all that makes an experiment's pieces, including the packages below."""
    environments = Environments()
    scenarios = {name: environments.generator(name, EASIEST).digest for name in BUILT_IN_NAMES}
    return digest([VERSION, TARGET_VERSION, PLAYING_VERSION, scenarios, model_package_versions()])


def check_unchanged(plan: Plan) -> None:
    """Check, before a piece is made, that the versions are still the plan's.

    Each piece is made in a process of its own, which imports what is installed by then.

    Raises:
        TrainingError: one has changed since the experiment began.
    """
    if plan.code and code_digest() != plan.code:
        raise TrainingError(
            "experiment: the version of its code, of an environment or of a package below it "
            f"({', '.join(MODEL_PACKAGES)}) has changed since it began, and pieces of two versions cannot be "
            "compared; restore that version to resume, or start again with another --out"
        )


def tasks_digest(ids: Iterable[str]) -> str:
    """Digest of tasks by their ids, which hold a digest of each task's content; their order counts."""
    return digest(list(ids))


def read_manifest(plan: Plan, training: Training, seed: int, folder: Path) -> AdapterManifest:
    """The manifest of a finished adapter, if it is the one that the plan would train.

    Raises:
        TrainingError: it was trained differently, or with another number of rollouts.
        ConfigError: its manifest is damaged.
    """
    manifest = read_record(
        folder / MANIFEST_NAME, AdapterManifest, ConfigError, "remove the folder, and it is trained again"
    )
    if manifest.rollouts != plan.rollouts_of(training):
        raise TrainingError(
            f"{folder}: {manifest.rollouts} rollouts were played, and the plan says "
            f"{plan.rollouts_of(training)}; remove the folder to start again"
        )
    recipe = plan.recipe_of(training, seed).model_dump(mode="json")
    different = [name for name in recipe if manifest.recipe.get(name) != recipe[name]]
    if different:
        name = different[0]
        difference = f"{name} {manifest.recipe.get(name)!r}, and the plan says {recipe[name]!r}"
    elif manifest.environments != environment_digests(plan, training):
        difference = "another version of its environments"
    elif plan.base and manifest.base_digest != plan.base:
        difference = "another base model"
    else:
        return manifest
    raise TrainingError(f"{folder}: was trained with {difference}; remove the folder to start again")


def environment_digests(plan: Plan, training: Training) -> dict[str, str]:
    """Digests of the environments that an adapter is trained in, by name."""
    environments = Environments(target_offers(plan.cells))
    return {
        name: environments.generator(name, plan.difficulty, Content.TRAIN).digest
        for name in training.environments
    }
