"""The adapters of an experiment: each trained in a process of its own, kept at points, and merged."""

import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.records.adapter import ADAPTER_WEIGHTS, MANIFEST, AdapterManifest
from pytest_trace2evolve.serving.folder import ADAPTER_CONFIG, read_model
from pytest_trace2evolve.training.train import Order, make, plan_of, write_weights
from pytest_trace2evolve.utils.files import write_atomic
from pytest_trace2evolve.utils.reading import read_text
from research.trace.identity import refuse_changed, require_same
from research.trace.plan import POINTS, Plan, Training
from research.trace.target import target_offers


@dataclass(frozen=True)
class Job:
    """One adapter of one seed.

    Attributes:
        base: The base model's folder.
        folder: Where adapters of this seed lie.
    """

    plan: Plan
    training: Training
    seed: int
    base: Path
    folder: Path

    @property
    def out(self) -> Path:
        """The adapter's folder."""
        return self.folder / self.training.name

    def at(self, point: float) -> Path:
        """The folder of the adapter as it was after a share of its steps."""
        return self.folder / f"{self.training.name}-{round(point * self.training.steps):06d}"

    @property
    def done(self) -> bool:
        """Whether all of it is there."""
        return (self.out / MANIFEST).is_file() and all(
            (self.at(point) / ADAPTER_CONFIG).is_file() for point in POINTS
        )

    def manifest(self) -> AdapterManifest:
        """What is said of the adapter that is there.

        Raises:
            TrainingError: it was trained otherwise than the plan says.
            ConfigError: it is damaged.
        """
        return require_same(self.plan, self.training, self.seed, self.out)


def train_one(job: Job) -> None:
    """Train one adapter, or go on with it; in a process of its own, which ends with its parent.

    Raises:
        TrainingError: it came apart, or what is there was trained otherwise than the plan says.
        OSError: something cannot be written.
    """
    end_with_parent()
    refuse_changed(job.plan)
    environments = Environments(target_offers(job.plan.cells))
    names = job.training.environments
    order = Order(
        capabilities=names,
        name=job.training.name,
        base=read_model(job.base),
        out=job.out,
        recipe=job.plan.recipe_of(job.training, job.seed),
        difficulties=dict.fromkeys(names, job.plan.difficulty),
        heldout=0,
    )
    keeper = _Keeper(environments, order, job)
    if not job.out.exists():
        make(environments, order, stepped=keeper.stepped)
    job.manifest()
    settings = read_text(job.out / ADAPTER_CONFIG, TrainingError)
    for point in POINTS:
        if not (job.at(point) / ADAPTER_WEIGHTS).is_file():
            raise TrainingError(
                f"{job.at(point)}: the adapter as it was at {point:.0%} of its steps is gone; remove "
                f"{job.out}, and it is trained again"
            )
        # With its settings a kept adapter is whole: they come last.
        write_atomic(job.at(point) / ADAPTER_CONFIG, settings)


class _Keeper:
    """Copies what a training keeps at its points, before the next keeping replaces it."""

    def __init__(self, environments: Environments, order: Order, job: Job) -> None:
        self._job = job
        self._unfinished = order.out.with_name(f".{order.out.name}.unfinished")
        plan = plan_of(environments, order, self._unfinished)
        self._identity = {"recipe": plan.recipe.model_dump(mode="json"), **plan.identity}

    def stepped(self, step: Any) -> None:
        """Hears that a step was made: what the step before it kept still lies there."""
        for point in POINTS:
            if step.step == round(point * self._job.training.steps) + 1:
                self._copy(point)

    def _copy(self, point: float) -> None:
        from safetensors.torch import save_file

        from pytest_trace2evolve.training.checkpoints import last_kept, settle

        kept = last_kept(self._unfinished, self._identity)
        if kept is None or kept.step != round(point * self._job.training.steps):
            raise TrainingError(f"{self._unfinished}: what was kept at {point:.0%} of the steps is gone")
        folder = self._job.at(point)
        fresh = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        save_file(dict(kept.weights), fresh / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        # A training that was killed behind the point comes by it again, with the same weights.
        shutil.rmtree(folder, ignore_errors=True)
        settle(fresh, folder)


def end_with_parent() -> None:
    """End this process when its parent does: a killed experiment leaves nobody behind who writes."""
    parent = parent_process()
    if parent is None:
        return

    def watch(sentinel: int) -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()


def merge_weights(base: Path, adapters: Mapping[str, Path], weight: float, out: Path) -> None:
    """Add adapters up in weight space, each times `weight`, and write one.

    By concatenation (`cat`): what it adds to a layer is then the very sum of what they add. The sum of the
    factors (`linear`) would bring products of one adapter's factor with another's, which nobody trained.

    Args:
        base: The base model's folder.
        adapters: Folders by name.
        weight: Of each.
        out: The folder to write; what is there already stays.
    """
    if (out / ADAPTER_CONFIG).is_file():
        return
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from pytest_trace2evolve.training.checkpoints import settle
    from pytest_trace2evolve.training.run import quiet

    fresh = out.with_name(f".{out.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    with quiet():
        network: Any = AutoModelForCausalLM.from_pretrained(base, local_files_only=True, use_safetensors=True)
        names = list(adapters)
        model: Any = PeftModel.from_pretrained(network, adapters[names[0]], adapter_name=names[0])
        for name in names[1:]:
            model.load_adapter(adapters[name], name)
        # The name by which adapters are written.
        model.base_model.add_weighted_adapter(names, [weight] * len(names), "default", combination_type="cat")
        write_weights(model, base.name, fresh)
    settle(fresh, out)
