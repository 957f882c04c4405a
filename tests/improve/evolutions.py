"""A project whose candidate fails in ways that the environments train, and a training that takes no time."""

import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from pytest_trace2evolve.cli.common import environments_of
from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.improve.arguments import parse_evolve_options, run_values
from pytest_trace2evolve.improve.loop import OnProgress, evolve
from pytest_trace2evolve.improve.plan import EvolutionPlan
from pytest_trace2evolve.improve.planner import plan_evolution
from pytest_trace2evolve.improve.trainings import OnLine, Training
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import WEIGHTS_NAME
from pytest_trace2evolve.records.improvement import Evolution
from pytest_trace2evolve.serving.folder import folder_digest
from pytest_trace2evolve.session.planner import resources_of
from pytest_trace2evolve.session.settings import Context
from pytest_trace2evolve.training.recipe import read_recipe
from pytest_trace2evolve.utils.resources import embedded_model
from tests.adapter_folders import write_adapter
from tests.ci_files import REPOSITORY

CAPABILITY = "tool_calling_precision"

SUITE = """\
provider = "trace2evolve"
domain = "support"
trials = 1
max_steps = 60

[splits]
discovery = { cases = "cases/discovery.jsonl" }
heldout = { cases = "cases/heldout.jsonl" }
"""

LACKING = (20, 32, 46, 65, 90, 107, 143, 149)
"""Places of cases that the embedded model fails, some because it lacks the capability."""

DISCOVERY = (*LACKING, 4, 23, 64, 106, 25, 94, 115)
"""Just enough to learn from: it passes some that need the capability, and fails others for other reasons."""

RUNS = {"t2e_goal": "hold", "t2e_gate": "strict", "t2e_temperature": 0.0, "t2e_trials": 1}
"""Options of runs in which an adapter without effect is promoted."""


def write_project(root: Path, *, discovery: Sequence[int] = DISCOVERY, heldout: int = 2) -> Project:
    """A project with cases of discovery at these places of suite `support`, and cases that decide."""
    shutil.copytree(REPOSITORY / "candidates", root / "candidates")
    (root / "suites").mkdir()
    (root / "suites" / "small.toml").write_text(SUITE)
    (root / "cases").mkdir()
    for split, places in (("discovery", sorted(discovery)), ("heldout", range(heldout))):
        lines = (REPOSITORY / "suites" / "support" / f"{split}.jsonl").read_text().splitlines()
        (root / "cases" / f"{split}.jsonl").write_text("".join(f"{lines[place]}\n" for place in places))
    assert main(["--root", str(root), "lock"]) == 0
    return Project(root=root, suites_folder=root / "suites")


def write_weights(folder: Path) -> Path:
    """A LoRA adapter of the embedded model that changes nothing."""
    tensors = {}
    with safe_open(embedded_model() / "model.safetensors", framework="numpy") as base:
        for key in base.keys():  # noqa: SIM118  # not a mapping
            if key.endswith("q_proj.weight"):
                outputs, inputs = base.get_slice(key).get_shape()
                layer = f"base_model.model.{key.removesuffix('.weight')}"
                tensors[f"{layer}.lora_A.weight"] = np.zeros((1, inputs), np.float32)
                tensors[f"{layer}.lora_B.weight"] = np.zeros((outputs, 1), np.float32)
    folder.mkdir()
    save_file(tensors, folder / WEIGHTS_NAME)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 1, "lora_alpha": 1}
    config |= {"target_modules": ["q_proj"], "lora_dropout": 0.0, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


class FakeTrainer:
    """Leaves adapters without effect, at once.

    Attributes:
        trained: The adapters so far.
        interrupts: The adapter at which the process is interrupted.
    """

    def __init__(self, root: Path, weights: Path) -> None:
        self.root, self.weights = root, weights
        self.trained: list[str] = []
        self.interrupts = ""

    def __call__(self, trainings: Sequence[Training], lock: int, at_once: int, on_line: OnLine) -> None:
        for training in trainings:
            if training.name == self.interrupts:
                raise KeyboardInterrupt
            given = dict(pairwise(training.arguments))
            capability, difficulty = given["--capability"], int(given["--difficulty"])
            on_line(training.name, "trained")
            self.trained.append(training.name)
            write_adapter(
                self.root / "adapters",
                training.name,
                weights=self.weights,
                base=folder_digest(embedded_model()),
                environments={capability: Environments().generator(capability, difficulty).digest},
                recipe=read_recipe("pocket", Path(given["--config"])).model_dump(mode="json"),
                difficulty={capability: difficulty},
                candidate=given["--candidate"],
                informed_by=(),
            )


def planned(project: Project, options: str = "--candidate v6 --max-adapters 1", **runs: Any) -> EvolutionPlan:
    """The plan of an evolution, as the command makes it."""
    fresh = Project(root=project.root, suites_folder=project.suites_folder)  # reads everything anew
    values = run_values(None)
    vars(values).update({**RUNS, **runs})
    with closing(environments_of(fresh)) as environments:
        context = Context(root=fresh.root, base_folder=fresh.root)
        return plan_evolution(
            parse_evolve_options(options), values, resources_of(fresh), environments, context
        )


def evolved(
    plan: EvolutionPlan, project: Project, train: FakeTrainer, on_progress: OnProgress = lambda *line: None
) -> Evolution:
    """Run an evolution."""
    fresh = Project(root=project.root, suites_folder=project.suites_folder)
    with closing(environments_of(fresh)) as environments:
        return evolve(plan, resources_of(fresh), environments, on_progress, train)
