"""The adapters of an evolution: their names, what each training is told, and whose an adapter is."""

from collections.abc import Mapping
from pathlib import Path

from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.improve.order import EvolveOrder
from pytest_trace2evolve.improve.processes import Work
from pytest_trace2evolve.project.adapters import Adapters, unfinished
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import MANIFEST, AdapterManifest
from pytest_trace2evolve.records.improvement import Evolution
from pytest_trace2evolve.serving.folder import folder_digest
from pytest_trace2evolve.session.adapters import unmeasured
from pytest_trace2evolve.training.recipe import Recipe, recipe_toml
from pytest_trace2evolve.utils.files import write_atomic


def threads_of(order: EvolveOrder) -> int:
    """Threads of each training, as they are chosen when the first begins: one where several run at once."""
    return 1 if order.parallel > 1 else order.recipe.threads


def recipe_of(order: EvolveOrder, state: Evolution) -> Recipe:
    """The recipe of each training; its threads are kept, since a keeping is of one recipe."""
    return (
        order.recipe if state.threads is None else order.recipe.model_copy(update={"threads": state.threads})
    )


def names_of(
    order: EvolveOrder, state: Evolution, adapters: Adapters, environments: Environments
) -> dict[str, str]:
    """The adapters' names by capability: those that were chosen, and a free one where none was, or where
    another adapter has come to stand under it.

    Raises:
        AdapterError: a manifest is damaged.
    """
    recipe, base = recipe_of(order, state), folder_digest(order.base.path)
    found: dict[str, str] = {}
    for one in state.missing or ():
        name = state.adapters.get(one.name)
        taken = name is not None and (adapters.folder / name).exists()
        difficulty = state.environments[one.name].difficulty
        digest = environments.generator(one.name, difficulty).digest
        if name is None or (taken and not _is_own(name, {one.name: digest}, recipe, base, state, adapters)):
            name = _free_name(adapters.folder, one.name)
        found[one.name] = name
    return found


def trained(names: Mapping[str, str], adapters: Adapters) -> set[str]:
    """Those of an evolution's adapters that are there."""
    return {name for name in names.values() if (adapters.folder / name / MANIFEST).exists()}


def _is_own(
    name: str,
    environment: Mapping[str, str],
    recipe: Recipe,
    base: str,
    state: Evolution,
    adapters: Adapters,
) -> bool:
    """Whether an adapter is one that an evolution would train in an environment, and can be promoted."""
    if not (adapters.folder / name / MANIFEST).exists():
        return False
    manifest = adapters[name].manifest
    return (
        manifest.environments == environment
        and not unmeasured(manifest)
        and manifest.base_digest == base
        and manifest.recipe == recipe.model_dump(mode="json")
        and manifest.difficulty == {name: state.environments[name].difficulty for name in environment}
        and manifest.candidate == state.candidate
        # Another evolution's would count as informed by other splits than ours.
        and (manifest.evidence, manifest.informed_by) in (((), ()), (state.runs, state.splits))
    )


def training_of(
    capability: str, name: str, order: EvolveOrder, state: Evolution, project: Project, folder: Path
) -> Work:
    """The process that trains an adapter.

    Args:
        folder: The evolution's, which gets the recipe and the log.

    Raises:
        OSError: the recipe cannot be written.
    """
    config = folder / "recipe.toml"
    write_atomic(config, recipe_toml(recipe_of(order, state)))
    arguments = [
        *("-m", "pytest_trace2evolve", "--root", str(project.root), "train"),
        *("--capability", capability, "--name", name, "--base", str(order.base.path)),
        *("--preset", order.preset, "--config", str(config), "--candidate", order.candidate),
        *("--difficulty", str(state.environments[capability].difficulty)),
        *("--heldout", str(order.heldout), "--heldout-rollouts", str(order.rollouts)),
    ]
    return Work(name, arguments, folder / f"train-{name}.log")


def note_evidence(name: str, state: Evolution, adapters: Adapters) -> AdapterManifest:
    """Write into an adapter's manifest whose failures it was trained for.

    Raises:
        AdapterError: the manifest is damaged.
        OSError: it cannot be written.
    """
    told = {"evidence": state.runs, "informed_by": state.splits}
    manifest = adapters[name].manifest.model_copy(update=told)
    write_atomic(adapters.folder / name / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    return manifest


def played_by(manifest: AdapterManifest) -> int:
    """Rollouts of a training, and of its measurements before and after, as if it had measured its base
    itself."""
    return manifest.rollouts + 2 * sum(one.rollouts for one in manifest.heldout.values())


def _free_name(folder: Path, name: str) -> str:
    """The name, or the first of `name_2`, `name_3`, … that no adapter has, unfinished ones among them: they
    stay beside new ones."""
    found, number = name, 1
    while (folder / found).exists() or unfinished(folder / found).exists():
        number += 1
        found = f"{name}_{number}"
    return found
