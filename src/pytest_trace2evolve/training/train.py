"""From capabilities to an adapter's folder: the training, its measurement, and the files that are kept.

The trainer itself is imported only when a training begins: it loads torch and trl.
"""

import argparse
import copy
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_trace2evolve.agents.chat import system_prompt
from pytest_trace2evolve.diagnose.diagnosis import diagnose_run
from pytest_trace2evolve.environments.calibration import find_calibration
from pytest_trace2evolve.environments.environment import EASIEST, ScenarioEnvironment
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.environments.trl_environment import rollout_class
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.project.adapters import unfinished
from pytest_trace2evolve.project.candidates import ROUTED, Candidates
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import ADAPTER_WEIGHTS, MANIFEST, NONE, AdapterManifest, HeldOut
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest, read_model
from pytest_trace2evolve.training.heldout import (
    ROLLOUTS,
    SCENARIOS,
    Measurement,
    OnProgress,
    agent_digest,
    measure,
    reward_change,
)
from pytest_trace2evolve.training.recipe import Recipe, check_count, read_recipe
from pytest_trace2evolve.training.router_skills import skill_of
from pytest_trace2evolve.utils.files import alone_in
from pytest_trace2evolve.utils.optional import check_installed
from pytest_trace2evolve.utils.plots import training_curve
from pytest_trace2evolve.utils.resources import embedded_model, template

if TYPE_CHECKING:
    from pytest_trace2evolve.training.grpo import Plan, Trained
    from pytest_trace2evolve.training.rollouts import StepStats

SMALL_BASE = 1 << 28
"""Bytes of a base's weights up to which most of a second server's memory is its libraries'."""

CURVE, PLOT = "curve.json", "curve.svg"
"""The figures of each step, next to the weights, and their picture."""

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


@dataclass(frozen=True)
class Order:
    """What is to be trained.

    Attributes:
        capabilities: One or more; several give one adapter.
        name: The adapter's, for its manifest.
        base: The base model.
        out: The adapter's folder, which must not exist yet.
        difficulties: Of every environment that is measured, including those that are trained in.
        candidate, instruction: The candidate whose instruction the agent gets after the policy; empty: none.
        heldout: Held-out scenarios of each trained environment; 0 measures nothing.
        ray: Address of a Ray cluster on this machine that plays them; None: this process does.
        others: Held-out scenarios of each other environment, for what is forgotten.
        rollouts: Rollouts of each of them.
        cache: Where measurements of the base are stored.
        evidence: Ids of the runs whose failures asked for it.
        informed_by: What these runs showed, as `suite::split`.
    """

    capabilities: Sequence[str]
    name: str
    base: ModelFolder
    out: Path
    recipe: Recipe
    difficulties: Mapping[str, int]
    candidate: str = ""
    instruction: str = ""
    heldout: int = SCENARIOS
    ray: str | None = None
    others: int = SCENARIOS // 2
    rollouts: int = ROLLOUTS
    cache: Path | None = None
    evidence: tuple[str, ...] = ()
    informed_by: tuple[str, ...] = ()

    def measurement(self, adapter: Path | None = None) -> Measurement:
        """What is measured on held-out content, before and after."""
        scenarios = {
            name: self.heldout if name in self.capabilities else self.others for name in self.difficulties
        }
        weights = sum(file.stat().st_size for file in self.base.path.glob("*.safetensors"))
        return Measurement(
            base=self.base,
            adapter=adapter,
            difficulties=self.difficulties,
            scenarios={name: count for name, count in scenarios.items() if count},
            rollouts=self.rollouts,
            instruction=self.instruction,
            cache=self.cache,
            # The training has cores for itself, and its base is small.
            two_servers=self.recipe.threads > 1 and weights <= SMALL_BASE,
        )


@dataclass(frozen=True)
class TrainedAdapter:
    """A training and its measurements, which are empty if nothing was measured."""

    trained: "Trained"
    before: Mapping[str, HeldOut] = field(default_factory=dict)
    after: Mapping[str, HeldOut] = field(default_factory=dict)


def orders_of(
    environments: Environments, options: argparse.Namespace, project: Project | None, here: Path
) -> list[Order]:
    """The orders of `train`'s options: one adapter, or one for each capability that a run lacks.

    Raises:
        ConfigError: neither capabilities nor a run were named, or a name or a value is wrong; no environment
            has the tools of the run's world, nothing failed, or nothing is missing that has an environment.
        GeneratorError: a capability has no environment, or not of this difficulty.
        ModelFolderError: the base is not a model's folder.
        CandidateError: there is no such candidate.
        ResultsError: the run is damaged.
    """
    if (options.capability is None) == (options.from_run is None):
        raise ConfigError("name what is trained: either --capability NAME…, or --from-run RUN")
    if options.from_run is None:
        return [_order(environments, options, project, here, list(dict.fromkeys(options.capability)))]
    if project is None:
        raise ConfigError(
            f"--from-run {options.from_run}: no project here says which tasks decide; give --root"
        )
    for option, value in (("--adapter-name", options.adapter_name), ("--out", options.out)):
        if value is not None:
            raise ConfigError(f"{option} does not go with --from-run, which names its adapters by capability")
    missing = diagnose_run(project, options.from_run, here, environments)
    orders = [
        _order(environments, options, project, here, [capability.name]) for capability in missing.trainable
    ]
    return [replace(order, evidence=missing.runs, informed_by=missing.splits) for order in orders]


def _order(
    environments: Environments,
    options: argparse.Namespace,
    project: Project | None,
    here: Path,
    capabilities: list[str],
) -> Order:
    for name in capabilities:
        environments.offer(name)
    name = _adapter_name(options.adapter_name, capabilities)
    recipe = read_recipe(options.preset, options.config, seed=options.seed, steps=options.steps)
    check_count("--heldout", options.heldout, 0)
    check_count("--heldout-others", options.heldout_others, 0)
    check_count("--heldout-rollouts", options.heldout_rollouts, 1)
    base = read_model(options.base or embedded_model())
    root = here if project is None else project.root
    weights = folder_digest(base.path)
    difficulties = {}
    for capability in dict.fromkeys((*capabilities, *environments.names)):
        calibration = find_calibration(environments, capability, weights, root / ".trace2evolve/environments")
        difficulties[capability] = EASIEST if calibration is None else calibration.difficulty
    if options.difficulty is not None:
        difficulties |= dict.fromkeys(capabilities, options.difficulty)
    for capability in capabilities:
        environments.generator(capability, difficulties[capability])
    instruction = ""
    if options.candidate is not None:
        candidates = Candidates(template() / "candidates") if project is None else project.candidates
        instruction = candidates[options.candidate].instruction
    return Order(
        capabilities=capabilities,
        name=name,
        base=base,
        out=(here / options.out) if options.out is not None else root / "adapters" / name,
        recipe=recipe,
        difficulties=difficulties,
        candidate=options.candidate or "",
        instruction=instruction,
        heldout=options.heldout,
        ray=options.ray,
        others=options.heldout // 2 if options.heldout_others is None else options.heldout_others,
        rollouts=options.heldout_rollouts,
        cache=root / ".trace2evolve/heldout",
    )


def _adapter_name(given: str | None, capabilities: list[str]) -> str:
    if given is None and len(capabilities) > 1:
        raise ConfigError(
            f"--capability {' '.join(capabilities)}: several make one adapter, which needs an --adapter-name"
        )
    name = given or capabilities[0]
    if not _NAME.fullmatch(name):
        raise ConfigError(f"--adapter-name {name}: must be in snake_case, as refunds_and_returns")
    if name in (ROUTED, NONE):
        raise ConfigError(f"--adapter-name {name}: is what a router's choice is called; choose another")
    return name


def check_order(order: Order) -> None:
    """Check, before anything takes time, that an order can be carried out.

    Raises:
        ConfigError: the adapter's folder exists already.
        MissingExtraError: a package is not installed.
    """
    if order.out.exists():
        raise ConfigError(f"{order.out}: is there already; give another --out, or move it away")
    check_packages()


def check_packages() -> None:
    """Check for the packages that a training imports, without importing torch.

    Raises:
        MissingExtraError: one is not installed.
    """
    for package, extra in (("trl", "train"), ("peft", "train"), ("matplotlib", "plot")):
        check_installed(package, extra=extra)


def train_adapter(
    environments: Environments,
    order: Order,
    *,
    on_step: "Callable[[StepStats], None]" = lambda stats: None,
    on_progress: OnProgress = lambda done: None,
) -> TrainedAdapter | None:
    """Train, measure, and write the adapter's folder; resumes an interrupted call.

    Returns:
        The result; None in processes that only help the one that writes.

    Raises:
        ConfigError: the folder exists already, or another process is making it.
        TrainingError: nothing is learned, or the checkpoints are of another training.
        ModelFolderError: the base cannot be loaded or served.
        MissingExtraError: a package is not installed.
        OSError: something cannot be written.
    """
    check_order(order)
    from pytest_trace2evolve.training.checkpoints import commit_folder, new_folder
    from pytest_trace2evolve.training.grpo import train

    checkpoints = unfinished(order.out)
    with _locked(checkpoints):
        trained = train(plan_of(environments, order, checkpoints), on_step=on_step)
        if not trained.writes:
            return None
        fresh = new_folder(order.out)
        write_weights(trained.model, order.base.name, fresh)
        result = TrainedAdapter(trained)
        if order.heldout:
            measured = measure(
                environments, order.measurement(fresh), on_progress=on_progress, cluster=order.ray
            )
            result = TrainedAdapter(trained, *measured)
        _write_records(environments, order, result, fresh)
        commit_folder(fresh, order.out)
        shutil.rmtree(checkpoints, ignore_errors=True)
    return result


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a training's folder; of several processes that train together only the first one does."""
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(alone_in(folder, wait=False))
        except BlockingIOError:
            raise ConfigError(
                f"{folder}: another process is training this adapter; wait for it to end"
            ) from None
        try:
            yield
        finally:
            with suppress(OSError):
                folder.rmdir()  # if it is empty


def plan_of(environments: Environments, order: Order, checkpoints: Path) -> "Plan":
    """The trainer's plan for an order.

    Raises:
        GeneratorError: an environment is unknown, or has no such difficulty.
        ModelFolderError: the base's tokenizer cannot be loaded.
    """
    from pytest_trace2evolve.serving.loading import end_tokens, load_tokenizer
    from pytest_trace2evolve.training.chat_encoding import ChatEncoder
    from pytest_trace2evolve.training.grpo import Plan

    tokenizer = load_tokenizer(order.base)
    ends = end_tokens(order.base, tokenizer)
    agents, classes, digests = {}, {}, {}
    for name in order.capabilities:
        generator = environments.generator(name, order.difficulties[name], Content.TRAIN)
        world = environments.world(name)
        tools = world.tools("assistant")
        agents[name] = system_prompt(world.policy(), order.instruction), tools
        classes[name] = rollout_class(tools, partial(ScenarioEnvironment, generator, world), "Rollout")
        digests[name] = generator.digest
    return Plan(
        recipe=order.recipe,
        base=order.base,
        identity={
            "base": folder_digest(order.base.path),
            "environments": digests,
            "agents": {name: agent_digest(*agent) for name, agent in agents.items()},
        },
        environments=classes,
        encoder=ChatEncoder(tokenizer, ends, agents),
        ends=ends,
        unfinished=checkpoints,
    )


def write_weights(model: Any, base: str, folder: Path) -> None:
    """Write the adapter in peft's two files; they name its base, and no path of this machine."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    config = copy.deepcopy(model.peft_config["default"])
    config.base_model_name_or_path = base
    config.inference_mode = True
    if not isinstance(config.target_modules, str):
        config.target_modules = sorted(config.target_modules or ())  # a set has another order each time
    config.save_pretrained(folder)
    weights = {
        name: tensor.detach().cpu().contiguous() for name, tensor in get_peft_model_state_dict(model).items()
    }
    save_file(weights, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    (folder / ADAPTER_WEIGHTS).chmod(0o644)


def _write_records(environments: Environments, order: Order, result: TrainedAdapter, folder: Path) -> None:
    trained = result.trained
    difficulties = {name: order.difficulties[name] for name in order.capabilities}
    manifest = AdapterManifest(
        capability=order.name if len(order.capabilities) > 1 else order.capabilities[0],
        base=order.base.name,
        base_digest=folder_digest(order.base.path),
        environments={
            name: environments.generator(name, difficulty).digest for name, difficulty in difficulties.items()
        },
        difficulty=difficulties,
        evidence=order.evidence,
        informed_by=order.informed_by,
        candidate=order.candidate,
        skill=skill_of(environments, order.name, order.capabilities),
        seed=order.recipe.seed,
        recipe=order.recipe.model_dump(mode="json"),
        steps=len(trained.curve),
        rollouts=trained.rollouts,
        seconds=trained.seconds,
        heldout={name: reward_change(result.before[name], after) for name, after in result.after.items()},
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    (folder / CURVE).write_text(json.dumps(trained.curve, indent=1) + "\n", encoding="utf-8")
    (folder / PLOT).write_bytes(training_curve(trained.curve, title=order.name))
    # What makes it an adapter comes last.
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
