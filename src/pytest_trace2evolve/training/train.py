"""Trains an adapter for capabilities, measures it, and writes the adapter's folder.

The trainer is imported only when training begins, because it loads torch and trl.
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
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.project.adapters import unfinished_folder
from pytest_trace2evolve.project.candidates import ROUTED, Candidates
from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.records.adapter import (
    MANIFEST_NAME,
    NO_CAPABILITY,
    WEIGHTS_NAME,
    AdapterManifest,
    HeldOutRewards,
)
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest, read_model
from pytest_trace2evolve.training.heldout import (
    DEFAULT_ROLLOUTS,
    DEFAULT_SCENARIOS,
    Measurement,
    OnProgress,
    agent_digest,
    measure,
    reward_change,
)
from pytest_trace2evolve.training.recipe import Recipe, check_count, read_recipe
from pytest_trace2evolve.utils.files import folder_lock
from pytest_trace2evolve.utils.optional import check_installed
from pytest_trace2evolve.utils.resources import embedded_model, template_folder

if TYPE_CHECKING:
    from pytest_trace2evolve.training.grpo import TrainingPlan, TrainingResult
    from pytest_trace2evolve.training.rollouts import StepStats

MAX_SMALL_BASE_BYTES = 1 << 28
"""Maximum bytes of a base's weights at which a second server is started, because it needs little memory."""

CURVE_FILE = "curve.json"
"""The file next to the weights with the figures of each step."""

_ADAPTER_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


@dataclass(frozen=True)
class TrainingSpec:
    """The specification of one training run.

    Attributes:
        capabilities: The capabilities to train; several capabilities share one adapter.
        name: The adapter's name, for its manifest.
        base: The base model.
        out: The adapter's folder, which must not exist yet.
        difficulties: The difficulty of every measured environment, including trained ones, by capability.
        candidate, instruction: The candidate and its instruction, which the agent gets after the policy;
            empty for none.
        heldout: Held-out scenarios of each trained environment; 0 measures nothing.
        heldout_others: Held-out scenarios of each other environment, which show forgetting.
        rollouts: Rollouts of each held-out scenario.
        cache: The folder for stored measurements of the base.
        evidence: Ids of the evaluation runs whose failures led to the training run.
        informed_by: The splits that were read in the `evidence` runs, as `suite::split`.
    """

    capabilities: Sequence[str]
    name: str
    base: ModelFolder
    out: Path
    recipe: Recipe
    difficulties: Mapping[str, int]
    candidate: str = ""
    instruction: str = ""
    heldout: int = DEFAULT_SCENARIOS
    heldout_others: int = DEFAULT_SCENARIOS // 2
    rollouts: int = DEFAULT_ROLLOUTS
    cache: Path | None = None
    evidence: tuple[str, ...] = ()
    informed_by: tuple[str, ...] = ()

    def measurement(self, adapter: Path | None = None) -> Measurement:
        """Return the measurement on held-out content, of the base and of `adapter`."""
        scenarios = {
            name: self.heldout if name in self.capabilities else self.heldout_others
            for name in self.difficulties
        }
        weight_bytes = sum(file.stat().st_size for file in self.base.path.glob("*.safetensors"))
        return Measurement(
            base=self.base,
            adapter=adapter,
            difficulties=self.difficulties,
            scenarios={name: count for name, count in scenarios.items() if count},
            rollouts=self.rollouts,
            instruction=self.instruction,
            cache=self.cache,
            # Use two servers if training may use several cores and the base is small.
            uses_two_servers=self.recipe.threads > 1 and weight_bytes <= MAX_SMALL_BASE_BYTES,
        )


@dataclass(frozen=True)
class TrainedAdapter:
    """The result of a training run, and measurements, which are empty if nothing was measured."""

    training: "TrainingResult"
    before: Mapping[str, HeldOutRewards] = field(default_factory=dict)
    after: Mapping[str, HeldOutRewards] = field(default_factory=dict)


def make_specs(
    environments: Environments, options: argparse.Namespace, project: Project | None, base_folder: Path
) -> list[TrainingSpec]:
    """Return the specifications for the options of `train`: one, or one per capability that a run lacks.

    Raises:
        ConfigError: the options name neither or both of capabilities and a run, or a name or a value is
            invalid; no environment has the tools of the run's world, nothing failed, or no missing capability
            has an environment.
        GeneratorError: a capability has no environment, or none of this difficulty.
        ModelFolderError: the base is not a model's folder.
        CandidateError: there is no such candidate.
        ResultsError: the run is damaged.
    """
    if (options.capability is None) == (options.from_run is None):
        raise ConfigError("name what to train with either --capability NAME… or --from-run RUN")
    if options.from_run is None:
        return [
            _make_spec(environments, options, project, base_folder, list(dict.fromkeys(options.capability)))
        ]
    if project is None:
        raise ConfigError(
            f"--from-run {options.from_run}: needs a project, which says which tasks decide; name its "
            "folder with --root"
        )
    if options.adapter_name is not None:
        raise ConfigError(
            "--adapter-name cannot be combined with --from-run, which names adapters by capability"
        )
    diagnosis = diagnose_run(project, options.from_run, base_folder, environments)
    specs = [
        _make_spec(environments, options, project, base_folder, [capability.name])
        for capability in diagnosis.trainable_capabilities
    ]
    return [replace(spec, evidence=diagnosis.runs, informed_by=diagnosis.splits) for spec in specs]


def _make_spec(
    environments: Environments,
    options: argparse.Namespace,
    project: Project | None,
    base_folder: Path,
    capabilities: list[str],
) -> TrainingSpec:
    for name in capabilities:
        environments.offer(name)
    name = _adapter_name(options.adapter_name, capabilities)
    recipe = read_recipe(options.preset, options.config, steps=options.steps)
    check_count("--heldout", options.heldout, 0)
    base = read_model(options.base or embedded_model())
    root = base_folder if project is None else project.root
    base_digest = folder_digest(base.path)
    difficulties = {}
    for capability in dict.fromkeys((*capabilities, *environments.names)):
        calibration = find_calibration(
            environments, capability, base_digest, root / ".trace2evolve/environments"
        )
        difficulties[capability] = EASIEST if calibration is None else calibration.difficulty
    if options.difficulty is not None:
        difficulties |= dict.fromkeys(capabilities, options.difficulty)
    for capability in capabilities:
        environments.generator(capability, difficulties[capability])
    instruction = ""
    if options.candidate is not None:
        candidates = Candidates(template_folder() / "candidates") if project is None else project.candidates
        instruction = candidates[options.candidate].instruction
    return TrainingSpec(
        capabilities=capabilities,
        name=name,
        base=base,
        out=root / "adapters" / name,
        recipe=recipe,
        difficulties=difficulties,
        candidate=options.candidate or "",
        instruction=instruction,
        heldout=options.heldout,
        heldout_others=options.heldout // 2 if options.heldout_others is None else options.heldout_others,
        rollouts=options.heldout_rollouts,
        cache=root / ".trace2evolve/heldout",
    )


def _adapter_name(requested_name: str | None, capabilities: list[str]) -> str:
    if requested_name is None and len(capabilities) > 1:
        raise ConfigError(
            f"--capability {' '.join(capabilities)}: several capabilities share one adapter, which needs a "
            "name; add --adapter-name"
        )
    name = requested_name or capabilities[0]
    if not _ADAPTER_NAME.fullmatch(name):
        raise ConfigError(f"--adapter-name {name}: must be in snake_case, such as refunds_and_returns")
    if name in (ROUTED, NO_CAPABILITY):
        raise ConfigError(f"--adapter-name {name}: is reserved for the router; choose a different name")
    return name


def check_spec(spec: TrainingSpec) -> None:
    """Check that a specification can be carried out, before any slow step.

    Raises:
        ConfigError: the adapter's folder already exists.
        MissingExtraError: a package is not installed.
    """
    if spec.out.exists():
        raise ConfigError(f"{spec.out}: already exists; choose a different --out, or move it away")
    check_packages()


def check_packages() -> None:
    """Check that the packages for training are installed, without importing torch.

    Raises:
        MissingExtraError: a package is not installed.
    """
    for package in ("trl", "peft"):
        check_installed(package, extra="train")


def train_adapter(
    environments: Environments,
    spec: TrainingSpec,
    *,
    on_step: "Callable[[StepStats], None]" = lambda stats: None,
    on_progress: OnProgress = lambda done: None,
) -> TrainedAdapter | None:
    """Train and measure an adapter, and write its folder; resumes an interrupted call.

    Returns:
        The result; None in helper processes, which do not write.

    Raises:
        ConfigError: the folder already exists, or another process is training this adapter.
        TrainingError: nothing is learned, or the checkpoints belong to a different training run.
        ModelFolderError: the base cannot be loaded or served.
        MissingExtraError: a package is not installed.
        OSError: a file cannot be written.
    """
    check_spec(spec)
    from pytest_trace2evolve.training.checkpoints import commit_folder, make_temporary_folder
    from pytest_trace2evolve.training.grpo import train

    checkpoint_folder = unfinished_folder(spec.out)
    with _training_lock(checkpoint_folder):
        training_result = train(make_training_plan(environments, spec, checkpoint_folder), on_step=on_step)
        if not training_result.is_main_process:
            return None
        temporary_folder = make_temporary_folder(spec.out)
        write_weights(training_result.model, spec.base.name, temporary_folder, spec.recipe.interpolation)
        trained_adapter = TrainedAdapter(training_result)
        if spec.heldout:
            measurements = measure(environments, spec.measurement(temporary_folder), on_progress=on_progress)
            trained_adapter = TrainedAdapter(training_result, *measurements)
        _write_records(environments, spec, trained_adapter, temporary_folder)
        commit_folder(temporary_folder, spec.out)
        shutil.rmtree(checkpoint_folder, ignore_errors=True)
    return trained_adapter


@contextmanager
def _training_lock(folder: Path) -> Iterator[None]:
    """Lock the folder of a training run; if several processes train together, only the first one locks it."""
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(folder_lock(folder, wait=False))
        except BlockingIOError:
            raise ConfigError(
                f"{folder}: another process is training this adapter; wait for it to end"
            ) from None
        try:
            yield
        finally:
            with suppress(OSError):
                folder.rmdir()  # if it is empty


def make_training_plan(environments: Environments, spec: TrainingSpec, checkpoints: Path) -> "TrainingPlan":
    """Return the trainer's plan for a specification.

    Raises:
        GeneratorError: an environment is unknown, or has no such difficulty.
        ModelFolderError: the base's tokenizer cannot be loaded.
    """
    from pytest_trace2evolve.serving.loading import load_tokenizer
    from pytest_trace2evolve.training.chat_encoding import ChatEncoder, read_end_tokens
    from pytest_trace2evolve.training.grpo import TrainingPlan

    tokenizer = load_tokenizer(spec.base)
    end_tokens = read_end_tokens(spec.base, tokenizer)
    agents, factories, digests = {}, {}, {}
    for name in spec.capabilities:
        generator = environments.generator(name, spec.difficulties[name], Content.TRAIN)
        world = environments.world(name)
        tools = world.tools("assistant")
        agents[name] = system_prompt(world.policy(), spec.instruction), tools
        factories[name] = partial(ScenarioEnvironment, generator, world)
        digests[name] = generator.digest
    return TrainingPlan(
        recipe=spec.recipe,
        base=spec.base,
        identity={
            "base": folder_digest(spec.base.path),
            "environments": digests,
            "agents": {name: agent_digest(*agent) for name, agent in agents.items()},
        },
        environments=factories,
        encoder=ChatEncoder(tokenizer, end_tokens, agents),
        end_tokens=end_tokens,
        checkpoint_folder=checkpoints,
    )


def write_weights(model: Any, base: str, folder: Path, interpolation: float = 1.0) -> None:
    """Write this share of the update as peft's two files, which name the base but no path of this machine."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    config = copy.deepcopy(model.peft_config["default"])
    config.base_model_name_or_path = base
    config.inference_mode = True
    if not isinstance(config.target_modules, str):
        config.target_modules = sorted(config.target_modules or ())  # the order of a set varies
    config.save_pretrained(folder)
    weights = {
        name: (tensor * (interpolation if ".lora_B." in name else 1.0)).detach().cpu().contiguous()
        for name, tensor in get_peft_model_state_dict(model).items()
    }
    save_file(weights, folder / WEIGHTS_NAME, metadata={"format": "pt"})
    (folder / WEIGHTS_NAME).chmod(0o644)


def _write_records(
    environments: Environments, spec: TrainingSpec, trained_adapter: TrainedAdapter, folder: Path
) -> None:
    training_result = trained_adapter.training
    difficulties = {name: spec.difficulties[name] for name in spec.capabilities}
    manifest = AdapterManifest(
        capability=spec.name if len(spec.capabilities) > 1 else spec.capabilities[0],
        base=spec.base.name,
        base_digest=folder_digest(spec.base.path),
        environments={
            name: environments.generator(name, difficulty).digest for name, difficulty in difficulties.items()
        },
        difficulty=difficulties,
        evidence=spec.evidence,
        informed_by=spec.informed_by,
        candidate=spec.candidate,
        seed=spec.recipe.seed,
        recipe=spec.recipe.model_dump(mode="json"),
        steps=len(training_result.curve),
        rollouts=training_result.rollouts,
        seconds=training_result.seconds,
        heldout={
            name: reward_change(trained_adapter.before[name], after)
            for name, after in trained_adapter.after.items()
        },
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    (folder / CURVE_FILE).write_text(json.dumps(training_result.curve, indent=1) + "\n", encoding="utf-8")
    # The manifest marks the folder as an adapter, so it is written last.
    (folder / MANIFEST_NAME).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
