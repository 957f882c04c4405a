"""What an adapter's weights follow from: one frozen record, with a table of presets.

The code path is the same everywhere; a small model on a CPU and a large one on GPUs differ in these values.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.utils.reading import complaint, read_toml


class Drawing(StrEnum):
    """Who draws the answers of rollouts."""

    ENGINE = "engine"
    TRANSFORMERS = "transformers"
    VLLM_COLOCATE = "vllm-colocate"
    VLLM_SERVER = "vllm-server"


MOST = 1_000_000
"""The largest count of a recipe or an order: of steps, rollouts or scenarios."""

Count = Annotated[int, Field(ge=1, le=MOST)]
Natural = Annotated[int, Field(ge=0, le=MOST)]


class Vllm(Record):
    """How vLLM is reached where it draws; nothing of it changes what is learnt.

    Attributes:
        server: Address of the server of `vllm-server`, as in `http://127.0.0.1:8000`; empty: trl's default.
        parallel: GPUs that share a copy of the model, of `vllm-colocate`.
        memory: Share of a GPU's memory that it takes, of `vllm-colocate`.
        length: Tokens of a prompt and its rollout at most; 0: as many as the model can.
    """

    server: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    parallel: Count = 1
    memory: Annotated[float, Field(gt=0, le=1)] = 0.3
    length: Natural = 0


class Recipe(Record):
    """Everything that is chosen for a training.

    Attributes:
        groups: Scenarios a step.
        rollouts: Rollouts of each, K: a group.
        steps: Steps of the optimiser.
        rate: The learning rate (AdamW); it falls on a line, towards a tenth of it after the last step.
        warm: Steps over which it rises at the beginning.
        rank, alpha: Of the adapter; what it adds is scaled by alpha / rank.
        targets: The linear layers that it changes: `all-linear`, or their names.
        temperature: At which rollouts are drawn, and by which logits are divided in the loss.
        clip_low, clip_high: The ratio of probabilities counts from 1 − clip_low to 1 + clip_high.
        beta: Weight of the KL divergence from the base in the loss; 0: none. The estimator k3 times the ratio
            of probabilities, whose gradient is the divergence's without bias (arXiv 2512.02556).
        loss: How the loss is averaged: `dapo` over all tokens of a step, `grpo` within a rollout first,
            `bnpo` over the tokens of a backward pass, `dr_grpo` by `rollout_tokens`.
        scale: What a group's advantages are divided by: its standard deviation, or nothing.
        clip_norm: Norm of the gradient above which it is scaled down.
        answer_tokens: Tokens of one answer at most.
        rollout_tokens: Tokens of a rollout after its prompt at most, tools' and customer's included.
        first_scenario, scenarios: The range of seeds from which training scenarios are drawn.
        redraws: How often groups of equal rewards are drawn anew at a step (DAPO's dynamic sampling).
        backward: Rollouts a backward pass; 0: all of a step.
        drawing: Who draws answers.
        shared: Whether what rollouts begin with alike is read once a step: the same gradients at less cost
            where prompts are long; for models whose layers all attend to everything.
        dtype: Of the base's weights.
        autocast: Whether passes with gradients multiply in bfloat16: on GPUs, and on processors that do so
            themselves; weights and moments stay as they are. A small model gains nothing by it on a
            processor, and its gradients become coarse.
        checkpointing: Whether activations are worked out again in the backward pass, to save memory.
        threads: Of torch on a CPU; 0: its own choice.
        kl_every: Steps between two measurements of the KL divergence from the base; 0: never.
        keep_every: Steps between two keepings.
        patience: Steps without any group whose rewards differ after which a training ends.
        vllm: How vLLM is reached; no part of what is written down of a training.
    """

    groups: Count = 8
    rollouts: Annotated[int, Field(ge=2, le=MOST)] = 8
    steps: Count = 32
    rate: Annotated[float, Field(gt=0, le=1)] = 1e-3
    warm: Natural = 0
    rank: Count = 16
    alpha: Count = 32
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0, le=1e6)] = 0.28
    beta: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    loss: Literal["dapo", "grpo", "bnpo", "dr_grpo"] = "dapo"
    scale: Literal["group", "none"] = "group"
    clip_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    answer_tokens: Count = 160
    rollout_tokens: Count = 512
    first_scenario: Annotated[int, Field(ge=0, le=10**9)] = 100_000
    scenarios: Count = 100_000
    redraws: Annotated[int, Field(ge=0, le=8)] = 1
    backward: Natural = 0
    drawing: Drawing = Drawing.ENGINE
    shared: bool = True
    dtype: Literal["float32", "bfloat16"] = "float32"
    autocast: bool = False
    checkpointing: bool = False
    threads: Natural = 2
    kl_every: Natural = 10
    keep_every: Count = 10
    patience: Count = 8
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 1
    vllm: Vllm = Field(default_factory=Vllm, exclude=True)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.answer_tokens > self.rollout_tokens:
            raise ValueError(
                f"answer_tokens {self.answer_tokens} is more than rollout_tokens {self.rollout_tokens}: "
                "no rollout has room for an answer; raise rollout_tokens"
            )
        if self.warm >= self.steps:
            raise ValueError(
                f"warm {self.warm} is not less than steps {self.steps}: the rate is never reached; lower warm"
            )
        if self.shared and self.checkpointing:
            raise ValueError(
                "shared and checkpointing do not go together: what is worked out again keeps no keys and "
                "values to share; set one of them to false"
            )
        if self.backward and (self.groups * self.rollouts) % self.backward:
            raise ValueError(
                f"backward {self.backward} does not divide the {self.groups * self.rollouts} rollouts of a "
                f"step ({self.groups} groups of {self.rollouts})"
            )
        return self


PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Without it an adapter unlearns what its environment does not pay (docs/training.md).
    "pocket": {"beta": 0.05},
    "gpu": {
        "groups": 16,
        "rollouts": 16,
        "steps": 40,
        "rate": 1e-5,
        "alpha": 16,
        "answer_tokens": 1024,
        "rollout_tokens": 8192,
        "backward": 16,
        "drawing": Drawing.VLLM_COLOCATE,
        "shared": False,
        "dtype": "bfloat16",
        "autocast": True,
        "checkpointing": True,
        "threads": 0,
        "keep_every": 5,
    },
}
"""What each preset changes of the recipe's own values. `gpu`: what the paper used (arXiv 2604.05336), not
measured here."""


def recipe_toml(recipe: Recipe) -> str:
    """A recipe as the TOML that `read_recipe` reads."""
    tables = {"": recipe.model_dump(mode="json"), "\n[vllm]\n": recipe.vllm.model_dump(mode="json")}
    return "".join(
        heading + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        for heading, values in tables.items()
    )


def read_recipe(preset: str, config: Path | None = None, **given: object) -> Recipe:
    """The recipe of a preset, changed by a TOML file, and that by what is given; None leaves a value.

    Raises:
        ConfigError: the preset is unknown, the file cannot be read, or a value is wrong.
    """
    if preset not in PRESETS:
        raise ConfigError(f"--preset {preset}: must be one of {', '.join(PRESETS)}")
    told: dict[str, Any] = {}
    where = f"preset {preset}"
    if config is not None:
        where = str(config)
        told = read_toml(config, ConfigError)
    own = {name: value for name, value in given.items() if value is not None}
    try:
        return Recipe.model_validate({**PRESETS[preset], **told, **own})
    except ValidationError as error:
        raise ConfigError(f"{where}: {complaint(error, 'recipe')}") from None
