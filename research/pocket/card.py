"""The pocket model's card: how it was made, and what was measured of it, through the server of every run."""

import asyncio
import json
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.candidates import Candidates
from pytest_trace2evolve.serving.folder import folder_digest, read_model
from pytest_trace2evolve.training.heldout import serve_locally
from pytest_trace2evolve.utils.files import write_together
from pytest_trace2evolve.utils.plots import draw_picture
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.common import REPOSITORY, OnProgress, read_object
from research.pocket.measure import CASES, Measurements, Share, difference, measure

CARD, TEXT, CURVE = "card.json", "README.md", "curve.svg"
"""The card as a record, as a text, and the picture that the text shows."""

TRAINING = "training.json"
"""The file of `research.pocket train` that says how the weights were made."""

TRAINING_FIELDS = frozenset(
    ("recipe", "parameters", "vocabulary", "dialogues", "step", "tokens", "seconds", "losses")
)

CANDIDATES = ("v5", "v6", "v7", "v8")
"""The candidates of this repository that the card compares."""

SEED = 1
"""Seed of the first trial; each further simulation of an arm adds one."""

WINDOW = 50
"""Steps over which the drawn curve is averaged."""


class Card(Measurements):
    """A model card.

    Attributes:
        training: The content of `training.json`, without its losses.
        weights: Digest of the weights, tokenizer and settings that were measured.
        temperature: At which answers were drawn.
        cases: Held-out cases of a capability, and of an arm of a rule.
    """

    schema_version: Literal[1] = 1
    training: dict[str, Any]
    weights: str
    weight_bytes: int
    temperature: float
    cases: int


def write_card(
    folder: Path, *, cases: int = CASES, on_progress: OnProgress = lambda done, total: None
) -> str:
    """Measure the model in a folder and write its card there; returns the card's text.

    Raises:
        ConfigError: the folder was not made by `python -m research.pocket train`.
        InfrastructureError: a simulation was lost.
        ModelFolderError: the model cannot be served.
        MissingExtraError: matplotlib is not installed.
        OSError: the card cannot be written.
    """
    model = read_model(folder)
    training = _read_training(folder / TRAINING)
    losses = training.pop("losses")
    picture = loss_curve(losses, [stage["steps"] for stage in training["recipe"]["stages"]])
    with serve_locally(model, seed=SEED) as settings:
        measurements = asyncio.run(_measure(settings, cases, on_progress))
    card = Card(
        training=training,
        weights=folder_digest(folder),
        weight_bytes=(folder / "model.safetensors").stat().st_size,
        temperature=model.temperature,
        cases=cases,
        **dict(measurements),
    )
    text = card_text(card)
    record = json.dumps(card.model_dump(mode="json"), indent=1) + "\n"
    write_together({folder / CARD: record, folder / TEXT: text, folder / CURVE: picture.decode()})
    return text


def _read_training(path: Path) -> dict[str, Any]:
    remedy = "was it made by 'python -m research.pocket train'?"
    record = read_object(path, remedy)
    if missing := TRAINING_FIELDS - record.keys():
        raise ConfigError(f"{path}: holds no {min(missing)!r}: {remedy}")
    return record


async def _measure(settings: ModelSettings, cases: int, on_progress: OnProgress) -> Measurements:
    candidates = Candidates(REPOSITORY / "candidates")
    instructions = {name: candidates[name].instruction for name in CANDIDATES}
    model = ChatModel(settings)
    try:
        return await measure(model, SupportWorld(), instructions, cases=cases, on_progress=on_progress)
    finally:
        await model.close()


def card_text(card: Card) -> str:
    """The card as Markdown."""
    training = card.training
    recipe = training["recipe"]
    size = recipe["size"]
    shown: list[list[str]] = []
    passed: list[list[str]] = []
    for effect in card.rules:
        for rows, arms in ((shown, effect.shown), (passed, effect.passed)):
            cells = [effect.rule, _counted(arms.without)]
            for share in (arms.seen, arms.unseen):
                cells += [_counted(share), _change(share, arms.without)]
            rows.append(cells)
    columns = ("rule", "without", "with", "change", "unseen wording", "change")
    command = (
        f"python -m research.pocket train --out DIR --seed {recipe['seed']} --steps {training['step']} "
        f"--threads {recipe['threads']}"
    )
    origin = ""
    if recipe["start"]:
        command += " --start START"
        origin = (
            f" START has digest `{recipe['start']}`:\n  weights of an earlier recipe, not in the "
            "repository.\n  Without `--start`, the command trains new weights, whose figures differ."
        )
    families = [
        [name, *_passed(name, alone)[1:], *_passed(name, stated)[1:], _change(stated, alone)]
        for (name, alone), stated in zip(card.capabilities.items(), card.with_rules.values(), strict=True)
    ]
    headings = ("kind of case", "policy alone", "interval", "all rules", "interval", "change")
    habits = [[rule, *map(_counted, shares.values())] for rule, shares in card.habits.items()]
    return f"""\
# The pocket model

A language model that is small enough to ship. It answers for the agent if no other model is named. Its
results are real, sampled and noisy, and say nothing about other models. Held-out content has other names,
products, ids and combinations than training, and sentences that never occur there as a whole; the two share
fragments of sentences.

- **Network**: Qwen3's architecture, {size["layers"]} layers, width {size["width"]}, {size["heads"]} heads;
  {training["parameters"]:,} parameters, {training["vocabulary"]:,} tokens in its vocabulary.
- **Weights**: `model.safetensors`, {card.weight_bytes / 1e6:.1f} MB; digest of all that
  changes what it says: `{card.weights}`, as runs record it.
- **Data**: {training["dialogues"]:,} dialogues of a scripted teacher with scripted customers in the support
  world, {training["tokens"]:,} tokens. The teacher follows the rules of its prompt, and is careless if none
  applies (`cases/content/rules.toml`). It writes the part of a record that it needs before it calls a tool.
- **Training**: {training["step"]:,} steps in {training["seconds"] / 60:.0f} minutes. In a clone of the
  repository: `{command}`.{origin}

![Loss by step]({CURVE})

Dotted lines separate the stages of training, which weigh tokens differently.

The figures below were measured with these weights at temperature {card.temperature:g} on held-out content,
{card.cases} cases a row and {2 * card.cases} a candidate, with 95 % intervals (Wilson; for differences
Newcombe).

## Kinds of cases

Passed under the policy alone, and with all rules stated in random order and wordings of training (except
`at_once`, which contradicts `confirm`):

{_table(headings, families)}

## Rules

How often the behavior of a rule shows: without the rule, with it in a wording of training, and in a wording
that was never trained on, of the simulations that have an occasion for it.

{_table(columns, shown)}

How often cases of these kinds are passed:

{_table(columns, passed)}

## Candidates

On cases of all kinds. The wordings of these candidates are among those of training.

{_table(("candidate", "passed", "interval"), map(_passed, card.candidates, card.candidates.values()))}

## What candidates change

How often the behavior of a rule shows under each candidate, of the simulations that have an occasion for it:

{_table(("rule", *card.candidates), habits)}
"""


def _table(headings: Sequence[str], rows: Any) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _passed(name: str, share: Share) -> list[str]:
    low, high = share.interval
    return [name, _percent(share), f"{100 * low:.0f} … {100 * high:.0f} %"]


def _counted(share: Share) -> str:
    return f"{_percent(share)} of {share.total}" if share.total else "–"


def _percent(share: Share) -> str:
    return "–" if share.estimate is None else f"{100 * share.estimate:.0f} %"


def _change(new: Share, old: Share) -> str:
    if new.estimate is None or old.estimate is None:
        return "–"
    found, low, high = (100 * value for value in difference(new, old))
    return f"{found:+.0f} ({low:+.0f} … {high:+.0f})"


def loss_curve(losses: Sequence[float], stages: Sequence[int]) -> bytes:
    """Loss per token by step as SVG; `stages` are their numbers of steps.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    means = [sum(losses[max(0, end - WINDOW) : end]) / min(WINDOW, end) for end in range(1, len(losses) + 1)]

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        axis.plot(range(1, len(losses) + 1), losses, color="#c9d6e6", linewidth=0.6, label="a step")
        axis.plot(range(1, len(means) + 1), means, color="#2f5d92", linewidth=1.4, label=f"mean of {WINDOW}")
        for place in accumulate(stages[:-1]):
            axis.axvline(place, color="#999999", linestyle=":", linewidth=1)
        axis.set_xlabel("step")
        axis.set_ylabel("loss, nats a token")
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.legend(frameon=False)

    return draw_picture(draw, width=7.2, height=2.8)
