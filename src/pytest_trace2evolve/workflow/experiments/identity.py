"""What makes two experiments one: the code that makes pieces, the tasks, and how adapters are trained."""

from collections.abc import Iterable
from pathlib import Path

from pytest_trace2evolve._canonical import digest
from pytest_trace2evolve.errors import ConfigError, TrainingError
from pytest_trace2evolve.reading import read_record
from pytest_trace2evolve.records.adapter import MANIFEST, AdapterManifest
from pytest_trace2evolve.records.script import Content
from pytest_trace2evolve.workflow.environments.registry import Environments
from pytest_trace2evolve.workflow.environments.sources import PACKAGES, sources_digest, versions
from pytest_trace2evolve.workflow.experiments.plan import Plan, Training
from pytest_trace2evolve.workflow.experiments.target import target_offers

READING = ("__init__", "figures", "identity", "intervals", "kept", "results")
"""Files of this folder that make no piece: they read what the others made."""

_MAKING = ("adapters", "agents", "arms", "course", "evaluate", "plan", "prompts", "target", "tasks", "wishes")
PARTS = (
    "agents",
    "capabilities/dictionary.py",
    "commands/serve.py",
    "models",
    "rollout",
    "routing",
    "serving",
    "training/grpo",
    "workflow/routing",
    "workflow/served.py",
    "workflow/together.py",
    "workflow/training",
    *(f"workflow/experiments/{name}.py" for name in _MAKING),
)
"""What pieces are made by, beside what scenarios are: folders and files of the package."""


def code_digest() -> str:
    """Digest of the code that makes an experiment's pieces, and of the versions of the packages below it."""
    return digest([sources_digest(PARTS), versions()])


def refuse_changed(plan: Plan) -> None:
    """See, where a piece is begun, that the code is still the plan's: each is made by a process of its own,
    which reads what is on the disk by then.

    Raises:
        TrainingError: it has changed since the experiment began.
    """
    if plan.sources and code_digest() != plan.sources:
        raise TrainingError(
            "experiment: the package has changed since it began, or one below it "
            f"({', '.join(PACKAGES)}), and pieces of two versions tell nothing; restore that version to go "
            "on, or begin anew with another --out"
        )


def tasks_digest(ids: Iterable[str]) -> str:
    """Digest of tasks by their ids, which hold a digest of each task's content; their order counts."""
    return digest(list(ids))


def require_same(plan: Plan, training: Training, seed: int, folder: Path) -> AdapterManifest:
    """The manifest of an adapter that is there, if it is the one that the plan would train.

    Args:
        plan: The experiment.
        training: The adapter.
        seed: Of its training.
        folder: Where it lies.

    Raises:
        TrainingError: it was trained otherwise, or with another number of rollouts.
        ConfigError: its manifest is damaged.
    """
    file = folder / MANIFEST
    found = read_record(file, AdapterManifest, ConfigError, "remove the folder, and it is trained again")
    if found.rollouts != plan.rollouts_of(training):
        raise TrainingError(
            f"{folder}: {found.rollouts} rollouts were played, and the plan says "
            f"{plan.rollouts_of(training)}; remove the folder to begin anew"
        )
    wanted = plan.recipe_of(training, seed).model_dump(mode="json")
    recipe = [name for name in wanted if found.recipe.get(name) != wanted[name]]
    if recipe:
        what = f"{recipe[0]} {found.recipe.get(recipe[0])!r}, and the plan says {wanted[recipe[0]]!r}"
    elif found.environments != digests_of(plan, training):
        what = "another version of its environments"
    elif plan.base and found.base_digest != plan.base:
        what = "another base model"
    else:
        return found
    raise TrainingError(f"{folder}: was trained with {what}; remove the folder to begin anew")


def digests_of(plan: Plan, training: Training) -> dict[str, str]:
    """Digests of the environments that an adapter is trained in, by their names."""
    environments = Environments(target_offers(plan.cells))
    return {
        name: environments.generator(name, plan.difficulty, Content.TRAIN).digest
        for name in training.environments
    }
