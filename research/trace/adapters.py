"""Makes the adapters of an experiment: trained in processes of their own, copied at points, and merged."""

import os
import shutil
import threading
from collections.abc import Mapping
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import TrainingError
from pytest_trace2evolve.records.adapter import WEIGHTS_NAME
from pytest_trace2evolve.serving.folder import ADAPTER_CONFIG_FILE, read_model
from pytest_trace2evolve.training.train import TrainingSpec, make_training_plan, train_adapter, write_weights
from pytest_trace2evolve.utils.files import write_atomic
from research.trace.identity import check_unchanged
from research.trace.plan import POINTS
from research.trace.store import Job
from research.trace.target import target_offers


def train_one(job: Job) -> None:
    """Train one adapter, or resume it; in a process of its own, which ends with its parent.

    Raises:
        TrainingError: it diverged, or what exists was trained differently than the plan says.
        OSError: something cannot be written.
    """
    end_with_parent()
    check_unchanged(job.plan)
    environments = Environments(target_offers(job.plan.cells))
    names = job.training.environments
    spec = TrainingSpec(
        capabilities=names,
        name=job.training.name,
        base=read_model(job.base),
        out=job.out,
        recipe=job.plan.recipe_of(job.training, job.seed),
        difficulties=dict.fromkeys(names, job.plan.difficulty),
        heldout=0,
    )
    if not job.out.exists():
        checkpoints = spec.out.with_name(f".{spec.out.name}.unfinished")
        identity = make_training_plan(environments, spec, checkpoints).full_identity

        def on_step(stats: Any) -> None:
            # The checkpoint of the step before still exists.
            for point in POINTS:
                if stats.step == round(point * job.training.steps) + 1:
                    _copy_checkpoint(checkpoints, identity, job, point)

        train_adapter(environments, spec, on_step=on_step)
    job.manifest()
    settings = (job.out / ADAPTER_CONFIG_FILE).read_text(encoding="utf-8")
    for point in POINTS:
        if not (job.at(point) / WEIGHTS_NAME).is_file():
            raise TrainingError(
                f"{job.at(point)}: the adapter as it was at {point:.0%} of its steps is gone; remove "
                f"{job.out}, and it is trained again"
            )
        # A copied adapter is complete with its settings: they come last.
        write_atomic(job.at(point) / ADAPTER_CONFIG_FILE, settings)


def _copy_checkpoint(checkpoints: Path, identity: Mapping[str, Any], job: Job, point: float) -> None:
    from safetensors.torch import save_file

    from pytest_trace2evolve.training.checkpoints import commit_folder, load_checkpoint, make_temporary_folder

    checkpoint = load_checkpoint(checkpoints, identity)
    if checkpoint is None or checkpoint.step != round(point * job.training.steps):
        raise TrainingError(f"{checkpoints}: the checkpoint at {point:.0%} of the steps is gone")
    folder = job.at(point)
    fresh = make_temporary_folder(folder)
    save_file(dict(checkpoint.weights), fresh / WEIGHTS_NAME, metadata={"format": "pt"})
    # A training that was killed after the point reaches it again, with the same weights.
    shutil.rmtree(folder, ignore_errors=True)
    commit_folder(fresh, folder)


def end_with_parent() -> None:
    """End this process when its parent ends: a killed experiment leaves no process that writes."""
    parent = parent_process()
    if parent is None:
        return

    def watch(sentinel: int) -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()


def merge_weights(base: Path, adapters: Mapping[str, Path], weight: float, out: Path) -> None:
    """Add adapters up in weight space, each times `weight`, and write the sum; an existing one stays.

    By concatenation (`cat`): what the sum adds to a layer is exactly the sum of what the adapters add. The
    sum of the factors (`linear`) would include products of one adapter's factor with another's, which nobody
    trained."""
    if (out / ADAPTER_CONFIG_FILE).is_file():
        return
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from pytest_trace2evolve.serving.loading import silenced_libraries
    from pytest_trace2evolve.training.checkpoints import commit_folder, make_temporary_folder

    fresh = make_temporary_folder(out)
    with silenced_libraries():
        network: Any = AutoModelForCausalLM.from_pretrained(base, local_files_only=True, use_safetensors=True)
        first, *others = adapters
        model: Any = PeftModel.from_pretrained(network, adapters[first], adapter_name=first)
        for name in others:
            model.load_adapter(adapters[name], name)
        # `default` is the name by which `write_weights` writes an adapter.
        model.base_model.add_weighted_adapter(
            list(adapters), [weight] * len(adapters), "default", combination_type="cat"
        )
        write_weights(model, base.name, fresh)
    commit_folder(fresh, out)
