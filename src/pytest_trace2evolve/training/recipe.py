"""The hyperparameters of a training: one frozen record, and a table of presets.

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
from pytest_trace2evolve.utils.reading import problem_in, read_toml

MAX_COUNT = 1_000_000
"""The largest number of steps, rollouts or scenarios."""

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Natural = Annotated[int, Field(ge=0, le=MAX_COUNT)]


class Drawing(StrEnum):
    """What draws the answers of rollouts."""

    ENGINE = "engine"
    TRANSFORMERS = "transformers"
    VLLM_COLOCATE = "vllm-colocate"
    VLLM_SERVER = "vllm-server"


class Vllm(Record):
    """How vLLM is reached; nothing of it changes what is learned.

    Attributes:
        server: Address of the server of `vllm-server`, as in `http://127.0.0.1:8000`; empty: trl's default.
        parallel: GPUs that share a copy of the model (`vllm-colocate`).
        memory: Share of a GPU's memory that it takes (`vllm-colocate`).
        length: Tokens of a prompt and its rollout at most; 0: the model's own limit.
    """

    server: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    parallel: Count = 1
    memory: Annotated[float, Field(gt=0, le=1)] = 0.3
    length: Natural = 0


class Recipe(Record):
    """All settings of a training.

    Attributes:
        groups: Scenarios per step.
        rollouts: Rollouts of each, K: a group.
        steps: Optimizer steps.
        rate: The learning rate (AdamW); it falls linearly, towards a tenth of it after the last step.
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
        rollout_tokens: Tokens of a rollout after its prompt at most, including the tools' and the customer's.
        first_scenario, scenarios: The range of seeds from which training scenarios are drawn.
        redraws: How often groups with equal rewards are replaced at a step (DAPO's dynamic sampling).
        backward: Rollouts per backward pass; 0: all of a step.
        drawing: What draws answers.
        shared: Whether common beginnings of rollouts are computed once per step: the same gradients at less
            cost if prompts are long; for models whose layers all attend to everything.
        dtype: Of the base's weights.
        autocast: Whether passes with gradients multiply in bfloat16, on GPUs and processors that support it;
            weights and moments stay as they are. A small model gains nothing by it on a processor, and its
            gradients become coarse.
        checkpointing: Whether activations are recomputed in the backward pass, to save memory.
        threads: Of torch on a CPU; 0: torch's default.
        kl_every: Steps between two measurements of the KL divergence from the base; 0: never.
        keep_every: Steps between two checkpoints.
        patience: Steps without any group whose rewards differ after which a training ends.
        vllm: How vLLM is reached; not recorded with a training.
    """

    groups: Count = 8
    rollouts: Annotated[int, Field(ge=2, le=MAX_COUNT)] = 8
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
    def _check_consistency(self) -> Self:
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
                "shared and checkpointing do not go together: recomputed activations leave no keys and "
                "values to share; set one of them to false"
            )
        if self.backward and (self.groups * self.rollouts) % self.backward:
            raise ValueError(
                f"backward {self.backward} does not divide the {self.groups * self.rollouts} rollouts of a "
                f"step ({self.groups} groups of {self.rollouts})"
            )
        return self


PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Without it an adapter unlearns what its environment does not reward (docs/training.md).
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
"""What each preset changes of the recipe's defaults. `gpu`: what the paper used (arXiv 2604.05336), not
measured here."""


def recipe_toml(recipe: Recipe) -> str:
    """A recipe as the TOML that `read_recipe` reads."""
    tables = {"": recipe.model_dump(mode="json"), "\n[vllm]\n": recipe.vllm.model_dump(mode="json")}
    return "".join(
        heading + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        for heading, values in tables.items()
    )


def read_recipe(preset: str, config: Path | None = None, **overrides: object) -> Recipe:
    """The recipe of a preset, changed by a TOML file, and that by `overrides`, of which None changes nothing.

    Raises:
        ConfigError: the preset is unknown, the file cannot be read, or a value is wrong.
    """
    if preset not in PRESETS:
        raise ConfigError(f"--preset {preset}: must be one of {', '.join(PRESETS)}")
    table = {} if config is None else read_toml(config, ConfigError)
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Recipe.model_validate({**PRESETS[preset], **table, **given})
    except ValidationError as error:
        raise ConfigError(f"{config or f'preset {preset}'}: {problem_in(error, 'recipe')}") from None


def check_count(option: str, value: int | None, minimum: int, maximum: int = MAX_COUNT) -> None:
    """Check an option's number, if it is given.

    Raises:
        ConfigError: it is out of range.
    """
    if value is not None and value < minimum:
        raise ConfigError(f"{option} {value}: must be {minimum} or more")
    if value is not None and value > maximum:
        raise ConfigError(f"{option} {value}: must be {maximum} or less")
