"""From capabilities to an adapter's folder: the training, what it brought, and the files that are kept."""

import copy
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pytest_trace2evolve.agents.chat import system_prompt
from pytest_trace2evolve.environments.environment import ScenarioEnvironment
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.environments.trl_environment import rollout_class
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.project.adapters import unfinished
from pytest_trace2evolve.records.adapter import ADAPTER_WEIGHTS, MANIFEST, AdapterManifest, HeldOut, Measured
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.report.training import curve_picture
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest
from pytest_trace2evolve.training.heldout import (
    ROLLOUTS,
    SCENARIOS,
    Sides,
    Told,
    Wanted,
    agent_digest,
    measure,
    reward_change,
)
from pytest_trace2evolve.training.recipe import Drawing, Recipe
from pytest_trace2evolve.training.run import Plan, Trained, train
from pytest_trace2evolve.training.skills import skill_of
from pytest_trace2evolve.utils.files import alone_in
from pytest_trace2evolve.utils.optional import require

SMALL = 1 << 28
"""Bytes of a base's weights up to which most of a second server's memory is its libraries'."""

CURVE, PICTURE = "curve.json", "curve.svg"
"""What each step was like, beside the weights, and its picture."""


@dataclass(frozen=True)
class Order:
    """What is to be trained.

    Attributes:
        capabilities: One or more; several give one adapter.
        name: The adapter's, by which its manifest calls it.
        base: The base model.
        out: The adapter's folder; must not exist yet.
        difficulties: Of every environment that is measured, the trained ones among them.
        candidate: Whose instruction the agent gets behind the policy, and `instruction` that; empty: none.
        heldout: Held-out scenarios of each trained environment; 0 measures nothing.
        others: Held-out scenarios of each other environment, for what was forgotten.
        rollouts: Of each of them.
        kept: Where measurements of the base are kept.
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
    others: int = SCENARIOS // 2
    rollouts: int = ROLLOUTS
    kept: Path | None = None
    evidence: tuple[str, ...] = ()
    informed_by: tuple[str, ...] = ()

    @property
    def measured(self) -> Wanted:
        """What is measured on held-out content, before and after."""
        rest = {name: self.others for name in self.difficulties if name not in self.capabilities}
        known = {name: level for name, level in self.difficulties.items() if self.others or name not in rest}
        return Wanted(known, self.heldout, self.rollouts, rest)


@dataclass(frozen=True)
class Made:
    """What came of an order; `before` and `after` are empty where nothing was measured."""

    order: Order
    trained: Trained
    before: Mapping[str, HeldOut]
    after: Mapping[str, HeldOut]


def make(
    environments: Environments,
    order: Order,
    *,
    stepped: Callable[[Any], None] = lambda step: None,
    told: Told = lambda done: None,
) -> Made | None:
    """Train, measure, and write the adapter's folder; goes on from what an interrupted call left.

    Args:
        environments: Those that are known.
        order: What is to be trained.
        stepped: Hears what each step was like.
        told: Hears how far the measurement is.

    Returns:
        What came of it; None in processes that only help one that writes.

    Raises:
        ConfigError: the folder is there already, or another process is making it.
        TrainingError: nothing is learnt, or what was kept is of another training.
        ModelFolderError: the base cannot be loaded or served.
        MissingExtraError: a package is not installed.
        OSError: something cannot be written.
    """
    refuse(order)
    place = unfinished(order.out)
    with _alone(place):
        trained = train(plan_of(environments, order, place), told=stepped)
        if not trained.writes:
            return None
        fresh = order.out.with_name(f".{order.out.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        write_weights(trained.model, order.base.name, fresh)
        before: dict[str, HeldOut] = {}
        after: dict[str, HeldOut] = {}
        if order.heldout:
            sides = Sides(order.base, fresh, order.instruction, order.kept, apart=_apart(order))
            before, after = measure(environments, sides, order.measured, told=told)
        made = Made(order, trained, before, after)
        _write_story(environments, made, fresh)
        from pytest_trace2evolve.training.checkpoints import settle

        settle(fresh, order.out)
        shutil.rmtree(place, ignore_errors=True)
    return made


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """See that nobody else makes the same adapter; of several processes that train together one holds it."""
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    place.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(alone_in(place, wait=False))
        except BlockingIOError:
            raise ConfigError(
                f"{place}: another process is training this adapter; wait for it to end"
            ) from None
        try:
            yield
        finally:
            with suppress(OSError):
                place.rmdir()  # where nothing was kept


def refuse(order: Order) -> None:
    """See, before anything costs time, that an order can be carried out.

    Raises:
        ConfigError: the folder is there already.
        MissingExtraError: a package is not installed.
    """
    if order.out.exists():
        raise ConfigError(f"{order.out}: is there already; give another --out, or move it away")
    for module, extra in (("trl", "train"), ("peft", "train"), ("matplotlib", "plot")):
        require(module, extra=extra)


def plan_of(environments: Environments, order: Order, unfinished: Path) -> Plan:
    """What the trainer is told of an order.

    Raises:
        GeneratorError: an environment is unknown, or has no such difficulty.
        ModelFolderError: the base's tokenizer cannot be loaded.
    """
    from pytest_trace2evolve.serving.loading import ends_of, load_tokenizer
    from pytest_trace2evolve.training.chat_encoding import ServerTalk, sampler_of

    tokenizer = load_tokenizer(order.base)
    ends = ends_of(order.base, tokenizer)
    agents, classes, digests, prompts = {}, {}, {}, {}
    for name in order.capabilities:
        generator = environments.generator(name, order.difficulties[name], Content.TRAIN)
        world = environments.world(name)
        tools = world.tools("assistant")
        agents[name] = system_prompt(world.policy(), order.instruction), tools
        classes[name] = rollout_class(tools, partial(ScenarioEnvironment, generator, world), "Rollout")
        digests[name] = generator.digest
        prompts[name] = agent_digest(*agents[name])
    return Plan(
        recipe=order.recipe,
        base=order.base.path,
        identity={
            "base": folder_digest(order.base.path),
            "environments": digests,
            "agents": prompts,
        },
        environments=classes,
        talk=ServerTalk(tokenizer, ends, agents),
        unfinished=unfinished,
        sampler=sampler_of(ends) if order.recipe.drawing is Drawing.ENGINE else None,
    )


def write_weights(model: Any, base: str, folder: Path) -> None:
    """The adapter in peft's two files; its base is named, and no path of this machine."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    config = copy.deepcopy(model.peft_config["default"])
    config.base_model_name_or_path = base
    config.inference_mode = True
    if not isinstance(config.target_modules, str):
        config.target_modules = sorted(config.target_modules or ())  # a set has another order each time
    config.save_pretrained(folder)
    weights = {
        name: one.detach().cpu().contiguous() for name, one in get_peft_model_state_dict(model).items()
    }
    save_file(weights, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    (folder / ADAPTER_WEIGHTS).chmod(0o644)


def _apart(order: Order) -> bool:
    """Whether both sides are measured at once: the training has cores for itself, and its base is small."""
    weights = sum(file.stat().st_size for file in order.base.path.glob("*.safetensors"))
    return order.recipe.threads > 1 and weights <= SMALL


def _measured(before: HeldOut, after: HeldOut) -> Measured:
    change = reward_change(before, after)
    return Measured(
        before=change.before, after=change.after, rollouts=after.count, low=change.low, high=change.high
    )


def _write_story(environments: Environments, made: Made, folder: Path) -> None:
    order, trained = made.order, made.trained
    manifest = AdapterManifest(
        capability=order.name if len(order.capabilities) > 1 else order.capabilities[0],
        base=order.base.name,
        base_digest=folder_digest(order.base.path),
        environments={
            name: environments.generator(name, order.difficulties[name]).digest for name in order.capabilities
        },
        difficulty={name: order.difficulties[name] for name in order.capabilities},
        evidence=order.evidence,
        informed_by=order.informed_by,
        candidate=order.candidate,
        skill=skill_of(environments, order.name, order.capabilities),
        seed=order.recipe.seed,
        recipe=order.recipe.model_dump(mode="json"),
        steps=len(trained.curve),
        rollouts=trained.rollouts,
        seconds=trained.seconds,
        heldout={name: _measured(made.before[name], one) for name, one in made.after.items()},
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    (folder / CURVE).write_text(json.dumps(trained.curve, indent=1) + "\n", encoding="utf-8")
    (folder / PICTURE).write_bytes(curve_picture(trained.curve, title=order.name))
    # What makes it an adapter comes last.
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
