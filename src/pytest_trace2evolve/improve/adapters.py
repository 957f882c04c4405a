"""Proposes an adapter: LoRA weights, trained by GRPO on whole training tasks of the families that fail."""

import json
import math
import os
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pytest_trace2evolve.environments.generators.whole_tasks import FAMILY_NAMES
from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.improve.proposers import Draft, Request
from pytest_trace2evolve.project.adapters import Adapter, Adapters
from pytest_trace2evolve.records.adapter import MANIFEST_NAME, WEIGHTS_NAME, WHOLE_TASKS, AdapterState
from pytest_trace2evolve.serving.folder import ADAPTER_CONFIG_FILE, ModelFolder, folder_digest
from pytest_trace2evolve.training.recipe import Recipe, recipe_toml
from pytest_trace2evolve.utils.canonical import digest
from pytest_trace2evolve.utils.files import folder_lock, write_atomic

REHEARSAL = 0.15
"""The weight of a family that the parent always or never passes; one passed half of the time has 0.65."""

_ERROR_LINES = 3
"""The last lines of a failed training that its message repeats."""


@dataclass(frozen=True)
class AdapterProposer:
    """Trains adapters for a candidate on its base model, once, and proposes their mean.

    They differ in the seed of their training. A single one gains as much, but breaks more tasks that the
    parent passes (docs/decisions.md, 13).

    Attributes:
        root: The project.
        base: The base model.
        recipe: The recipe; its families are those of the parent.
        count: The number of adapters.
    """

    root: Path
    base: ModelFolder
    recipe: Recipe
    count: int

    @cached_property
    def identity(self) -> str:
        recipe = self.recipe.model_dump(mode="json")
        # Earlier versions proposed each adapter by itself, under "adapters".
        return digest(["mean of adapters", recipe, folder_digest(self.base.path), self.count])

    def propose(self, request: Request) -> Draft | None:
        if request.parent.adapter:
            return None  # adapters are trained on the base model, not on each other
        recipes = self._recipes(request)
        self._train_missing(request, recipes)
        adapters = Adapters(self.root / "adapters")
        adapter = mean_adapter([adapters[name] for name in recipes])
        weights = next(iter(recipes.values())).families
        families = ", ".join(sorted(weights, key=lambda family: -weights[family])[:3])
        seeds = ", ".join(str(recipe.seed) for recipe in recipes.values())
        draft = Draft(
            f"Trained on whole tasks, most on {families} (seed{'s' if len(recipes) > 1 else ''} {seeds}).",
            request.parent.instruction,
            request.parent.parameters,
            adapter,
        )
        return draft if request.is_new(draft) else None

    def _recipes(self, request: Request) -> dict[str, Recipe]:
        """The recipe of each adapter by its name, which depends on everything that changes the adapter."""
        families = family_weights(request.rates())
        recipes: dict[str, Recipe] = {}
        for seed in range(self.recipe.seed, self.recipe.seed + self.count):
            recipe = self.recipe.model_copy(update={"seed": seed, "families": families})
            parts = [recipe.model_dump(mode="json"), folder_digest(self.base.path), request.parent.digest]
            recipes[f"{WHOLE_TASKS}_{digest(parts)[:8]}"] = recipe
        return recipes

    def _train_missing(self, request: Request, recipes: Mapping[str, Recipe]) -> None:
        """Train the adapters that do not exist, one for each core at a time.

        Raises:
            TrainingError: a training failed; its checkpoints stay.
        """
        adapters = Adapters(self.root / "adapters")
        missing = {name: recipe for name, recipe in recipes.items() if name not in set(adapters)}
        processes: list[subprocess.Popen[str]] = []

        def train(name: str) -> str:
            return _train(name, self._command(name, missing[name], request), self.root, processes)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            try:
                failures = list(filter(None, pool.map(train, missing)))
            except BaseException:
                for process in processes:
                    process.terminate()  # its checkpoints stay
                raise
        if failures:
            raise TrainingError(failures[0])
        # An adapter counts as informed by the splits from which its families were chosen.
        seen = {"evidence": request.runs, "informed_by": request.informed_by}
        for name in recipes:
            if (known := adapters[name].manifest).informed_by:
                continue
            manifest = known.model_copy(update=seen)
            write_atomic(adapters.folder / name / MANIFEST_NAME, manifest.model_dump_json(indent=1) + "\n")

    def _command(self, name: str, recipe: Recipe, request: Request) -> list[str]:
        config = self.root / ".trace2evolve" / "improving" / f"{name}.toml"
        write_atomic(config, recipe_toml(recipe))
        return [
            *(sys.executable, "-m", "pytest_trace2evolve", "--root", str(self.root), "train"),
            *("--capability", WHOLE_TASKS, "--adapter-name", name, "--config", str(config)),
            *("--base", str(self.base.path), "--candidate", request.parent.id, "--heldout", "0"),
        ]


def family_weights(rates: Mapping[str, float]) -> dict[str, float]:
    """Return how often each family is trained, by its pass rate.

    A group of rollouts teaches only if some pass and some fail, so the weight follows the standard deviation
    of a rollout's reward. The other families are rehearsed, so that they are not forgotten.
    """
    weights = dict.fromkeys(FAMILY_NAMES, REHEARSAL)
    for name in weights.keys() & rates.keys():
        weights[name] = round(REHEARSAL + math.sqrt(rates[name] * (1 - rates[name])), 3)
    return weights


def mean_adapter(parts: Sequence[Adapter]) -> Adapter:
    """Return the adapter whose update is the mean of those of LoRA adapters, and make it if it is missing.

    Its factors are theirs, stacked: their product is the sum of the products. A single part is its own mean.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    adapters = Adapters(first.path.parent)
    name = f"{WHOLE_TASKS}_{digest([part.digest for part in parts])[:8]}"
    with folder_lock(adapters.folder, ignore_unsupported=True):
        if name not in set(adapters):
            _write_mean(parts, adapters.folder / name)
    return adapters[name]


def _write_mean(parts: Sequence[Adapter], folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    from pytest_trace2evolve.training.checkpoints import commit_folder, make_temporary_folder

    count, temporary = len(parts), make_temporary_folder(folder)
    tensors = [load_file(part.path / WEIGHTS_NAME) for part in parts]
    stacked = {
        key: torch.cat([part[key] for part in tensors])
        if ".lora_A." in key
        else torch.cat([part[key] / count for part in tensors], dim=1)
        for key in tensors[0]
    }
    save_file(stacked, temporary / WEIGHTS_NAME, metadata={"format": "pt"})
    (temporary / WEIGHTS_NAME).chmod(0o644)
    config = json.loads((parts[0].path / ADAPTER_CONFIG_FILE).read_text(encoding="utf-8"))
    config |= {key: config[key] * count for key in ("r", "lora_alpha")}
    write_atomic(temporary / ADAPTER_CONFIG_FILE, json.dumps(config, indent=1) + "\n")
    manifests = [part.manifest for part in parts]
    manifest = manifests[0].model_copy(
        update={
            **{
                key: sum(getattr(each, key) for each in manifests) for key in ("steps", "rollouts", "seconds")
            },
            "created_at": max(each.created_at or "" for each in manifests) or None,
            "state": AdapterState.TRAINED,
            "verdict": None,
            "parts": tuple(part.name for part in parts),
        }
    )
    write_atomic(temporary / MANIFEST_NAME, manifest.model_dump_json(indent=1) + "\n")
    commit_folder(temporary, folder)


def _train(name: str, command: Sequence[str], folder: Path, processes: list["subprocess.Popen[str]"]) -> str:
    """Run a training, whose output goes to stderr; return why it failed, or an empty string."""
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        processes.append(process)
        assert process.stdout is not None
        last_lines: deque[str] = deque(maxlen=_ERROR_LINES)
        for line in filter(None, map(str.strip, process.stdout)):
            last_lines.append(line)
            print(line, file=sys.stderr, flush=True)
    if process.returncode == 0:
        return ""
    return f"training {name} ended with status {process.returncode}: {' / '.join(last_lines)}"
