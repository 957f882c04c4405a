"""Trains an adapter for capabilities, measures it, and writes the adapter's folder.

The trainer is imported only when a training begins, because it loads torch and trl.
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
"""Bytes of a base's weights up to which libraries use most of a second server's memory."""

CURVE, PLOT = "curve.json", "curve.svg"
"""Files next to the weights: the figures of each step, and their plot."""

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


@dataclass(frozen=True)
class Order:
    """The specification of one training.

    Attributes:
        capabilities: The capabilities to train; several capabilities share one adapter.
        name: The adapter's name, for its manifest.
        base: The base model.
        out: The adapter's folder, which must not exist yet.
        difficulties: The difficulty of every measured environment, including trained ones, by capability.
        candidate, instruction: The candidate and its instruction, which the agent gets after the policy;
            empty for none.
        heldout: Held-out scenarios of each trained environment; 0 measures nothing.
        ray: Address of a Ray cluster on this machine that plays held-out scenarios; None plays them in this
            process.
        others: Held-out scenarios of each other environment, which show forgetting.
        rollouts: Rollouts of each held-out scenario.
        cache: The folder for stored measurements of the base.
        evidence: Ids of the runs whose failures led to this training.
        informed_by: The splits that were read in these runs, as `suite::split`.
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
        """Return the measurement on held-out content, of the base and of `adapter`."""
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
            # Use two servers if the training may use several cores and its base is small.
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
    """Return the orders for `train`'s options: one adapter, or one per capability that is missing in a run.

    Raises:
        ConfigError: the options name neither or both of capabilities and a run, or a name or a value is
            wrong; no environment has the tools of the run's world, nothing failed, or no missing capability
            has an environment.
        GeneratorError: a capability has no environment, or none of this difficulty.
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
    """Check that an order can be carried out, before any slow step.

    Raises:
        ConfigError: the adapter's folder already exists.
        MissingExtraError: a package is not installed.
    """
    if order.out.exists():
        raise ConfigError(f"{order.out}: is there already; give another --out, or move it away")
    check_packages()


def check_packages() -> None:
    """Check that the packages of a training are installed, without importing torch.

    Raises:
        MissingExtraError: a package is not installed.
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
    """Train and measure an adapter, and write its folder; resumes an interrupted call.

    Returns:
        The result; None in helper processes, which do not write.

    Raises:
        ConfigError: the folder already exists, or another process is training this adapter.
        TrainingError: nothing is learned, or the checkpoints belong to a different training.
        ModelFolderError: the base cannot be loaded or served.
        MissingExtraError: a package is not installed.
        OSError: a file cannot be written.
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
    """Lock a training's folder; if several processes train together, only the first one locks it."""
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
    """Write the adapter as peft's two files, which name its base but no path of this machine."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    config = copy.deepcopy(model.peft_config["default"])
    config.base_model_name_or_path = base
    config.inference_mode = True
    if not isinstance(config.target_modules, str):
        config.target_modules = sorted(config.target_modules or ())  # the order of a set varies
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
    # The manifest marks the folder as an adapter, so it is written last.
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
