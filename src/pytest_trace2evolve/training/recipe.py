"""The hyperparameters of a training run: one frozen record, and a table of presets.

A small model on a CPU and a large model on GPUs differ only in these values.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from pytest_trace2evolve.environments.generators.whole_tasks import FAMILY_NAMES
from pytest_trace2evolve.errors import ConfigError, name_suggestion
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.utils.reading import first_problem, read_toml

MAX_COUNT = 1_000_000
"""The largest number of steps, rollouts or scenarios."""

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Natural = Annotated[int, Field(ge=0, le=MAX_COUNT)]


class DrawingBackend(StrEnum):
    """The backend that draws the answers of rollouts."""

    ENGINE = "engine"
    TRANSFORMERS = "transformers"
    VLLM_COLOCATE = "vllm-colocate"
    VLLM_SERVER = "vllm-server"


class VllmSettings(Record):
    """Settings of vLLM, none of which changes what is learned.

    Attributes:
        server: Address of the server for `vllm-server`, like `http://127.0.0.1:8000`; empty for trl's
            default.
        parallel: Number of GPUs that share a copy of the model (`vllm-colocate`).
        memory: Share of a GPU's memory that vLLM takes (`vllm-colocate`).
        length: Maximum tokens of a prompt with its rollout; 0 means the model's own limit.
    """

    server: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    parallel: Count = 1
    memory: Annotated[float, Field(gt=0, le=1)] = 0.3
    length: Natural = 0


class Recipe(Record):
    """All settings of a training run.

    Attributes:
        groups: Scenarios per step.
        rollouts: Rollouts per scenario (K), which form a group.
        steps: Optimizer steps.
        rate: The learning rate of AdamW, which decreases linearly towards a tenth of this value after the
            last step.
        warm: Steps over which the learning rate rises at the beginning.
        rank, alpha: Rank and scale of the adapter, whose output is multiplied by alpha / rank.
        interpolation: The share of the trained update that is written, as in WiSE-FT (arXiv 2109.01903).
        targets: The linear layers that the adapter changes: `all-linear`, or their names.
        temperature: The temperature at which rollouts are drawn; the loss divides logits by the same value.
        clip_low, clip_high: The loss clips the ratio of probabilities to 1 − clip_low and 1 + clip_high.
        beta: Weight of the KL divergence from the base in the loss; 0 disables it. The estimator is k3 times
            the ratio of probabilities; its gradient is an unbiased estimate of the divergence's
            gradient (arXiv 2512.02556).
        loss: The averaging of the loss: `dapo` over all tokens of a step, `grpo` within each rollout first,
            `bnpo` over the tokens of a backward pass, `dr_grpo` with the constant divisor `rollout_tokens`.
        scale: The divisor of a group's advantages: `group` for its standard deviation, `none` for no scaling.
        clip_norm: Norm above which a gradient is scaled down.
        answer_tokens: Maximum tokens of one answer.
        rollout_tokens: Maximum tokens of a rollout after its prompt, including those of tools and customer.
        first_scenario, scenarios: The range of seeds from which training scenarios are drawn.
        families: Weights of the families of whole tasks; a family without a weight is left out. Empty gives
            all the same weight.
        redraws: Maximum number of times that a step replaces groups with equal rewards (DAPO's dynamic
            sampling).
        backward: Rollouts per backward pass; 0 puts all rollouts of a step into one pass.
        drawing: The backend that draws answers.
        shared: Whether common beginnings of rollouts are computed once per step: the same gradients at a
            lower cost, if prompts are long. Only for models whose layers all use full attention.
        dtype: The type of the base's weights.
        autocast: Whether passes with gradients multiply in bfloat16, on GPUs and processors that support it;
            weights and moments keep their type. A small model on a processor gains nothing from it.
        checkpointing: Whether activations are recomputed in the backward pass, to save memory.
        threads: Threads of torch on a CPU; 0 means torch's default.
        kl_every: Steps between two measurements of the KL divergence from the base; 0 disables them.
        keep_every: Steps between two checkpoints.
        patience: Steps with almost no groups whose rewards differ, after which a training run ends.
        vllm: Settings of vLLM, which are not recorded with a training run.
    """

    groups: Count = 14
    rollouts: Annotated[int, Field(ge=2, le=MAX_COUNT)] = 6
    steps: Count = 26
    rate: Annotated[float, Field(gt=0, le=1)] = 8e-4
    warm: Natural = 0
    rank: Count = 16
    alpha: Count = 32
    interpolation: Annotated[float, Field(gt=0, le=1)] = 0.7
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    temperature: Annotated[float, Field(gt=0, le=2)] = 0.9
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0, le=1e6)] = 0.28
    beta: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    loss: Literal["dapo", "grpo", "bnpo", "dr_grpo"] = "dapo"
    scale: Literal["group", "none"] = "group"
    clip_norm: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    answer_tokens: Count = 160
    rollout_tokens: Count = 1600
    first_scenario: Annotated[int, Field(ge=0, le=10**9)] = 100_000
    scenarios: Count = 100_000
    families: dict[str, Annotated[float, Field(gt=0, le=1e6)]] = Field(default_factory=dict)
    redraws: Annotated[int, Field(ge=0, le=8)] = 0
    backward: Natural = 0
    drawing: DrawingBackend = DrawingBackend.ENGINE
    shared: bool = True
    dtype: Literal["float32", "bfloat16"] = "float32"
    autocast: bool = False
    checkpointing: bool = False
    threads: Natural = 2
    kl_every: Natural = 0
    keep_every: Count = 5
    patience: Count = 8
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 1
    vllm: VllmSettings = Field(default_factory=VllmSettings, exclude=True)

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.answer_tokens > self.rollout_tokens:
            raise ValueError(
                f"answer_tokens {self.answer_tokens} is more than rollout_tokens {self.rollout_tokens}: "
                "no rollout has room for an answer; raise rollout_tokens"
            )
        if self.warm >= self.steps:
            raise ValueError(
                f"warm {self.warm} is not less than steps {self.steps}, so the full rate is never reached; "
                "lower warm"
            )
        if self.shared and self.checkpointing:
            raise ValueError(
                "shared and checkpointing cannot be combined: recomputed activations leave no keys and "
                "values to share; set one of them to false"
            )
        if unknown := sorted(self.families.keys() - set(FAMILY_NAMES)):
            raise ValueError(f"families: {name_suggestion(unknown[0], FAMILY_NAMES)}")
        if self.backward and (self.groups * self.rollouts) % self.backward:
            raise ValueError(
                f"backward {self.backward} does not divide the {self.groups * self.rollouts} rollouts of a "
                f"step ({self.groups} groups of {self.rollouts})"
            )
        return self


_GPU: Mapping[str, Any] = {
    "groups": 16,
    "rollouts": 16,
    "steps": 40,
    "rate": 1e-5,
    "alpha": 16,
    "interpolation": 1.0,
    "temperature": 1.0,
    "answer_tokens": 1024,
    "rollout_tokens": 8192,
    "redraws": 1,
    "backward": 16,
    "drawing": DrawingBackend.VLLM_COLOCATE,
    "shared": False,
    "dtype": "bfloat16",
    "autocast": True,
    "checkpointing": True,
    "threads": 0,
    "kl_every": 10,
}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "pocket": {},
    "gpu": _GPU,
    "paper": {**_GPU, "groups": 64, "loss": "grpo", "clip_high": 0.2, "redraws": 0},
}
"""The changes of each preset to the recipe's defaults, which fit whole tasks of the embedded model. `paper`
has the values of TRACE's write-up (arXiv 2604.05336). This project has measured neither `gpu` nor `paper`."""


def recipe_toml(recipe: Recipe) -> str:
    """Render a recipe as TOML for `read_recipe`."""
    values = recipe.model_dump(mode="json")
    families = values.pop("families")
    tables = {"": values, "\n[families]\n": families, "\n[vllm]\n": recipe.vllm.model_dump(mode="json")}
    return "".join(
        heading + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        for heading, values in tables.items()
        if values
    )


def read_recipe(preset: str, config: Path | None = None, **overrides: object) -> Recipe:
    """Return the recipe of a preset, changed by a TOML file and then by the `overrides` that are not None.

    Raises:
        ConfigError: the preset is unknown, the file cannot be read, or a value is invalid.
    """
    if preset not in PRESETS:
        raise ConfigError(f"--preset {preset}: must be one of {', '.join(PRESETS)}")
    table = {} if config is None else read_toml(config, ConfigError)
    given_overrides = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Recipe.model_validate({**PRESETS[preset], **table, **given_overrides})
    except ValidationError as error:
        raise ConfigError(f"{config or f'preset {preset}'}: {first_problem(error, 'recipe')}") from None


def check_count(option: str, value: int | None, minimum: int, maximum: int = MAX_COUNT) -> None:
    """Check the number of an option, if one is given.

    Raises:
        ConfigError: the number is out of range.
    """
    if value is not None and value < minimum:
        raise ConfigError(f"{option} {value}: must be {minimum} or more")
    if value is not None and value > maximum:
        raise ConfigError(f"{option} {value}: must be {maximum} or less")
