"""Measuring a pocket model through the server that every model of a run is asked through; its card."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.project.candidates import Candidates
from pytest_trace2evolve.records.model_card import Card
from pytest_trace2evolve.serving.folder import folder_digest, read_model
from pytest_trace2evolve.serving.process import served
from pytest_trace2evolve.utils.files import write_together
from pytest_trace2evolve.utils.reading import read_json
from pytest_trace2evolve.utils.resources import template
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.pocket.card_page import CURVE, card_text, loss_curve
from research.pocket.make import RECORDED, TRAINING
from research.pocket.measure import CASES, Measured, measure

CARD = "card.json"
TEXT = "README.md"
"""The card as people read it; where a folder is shown, this file is."""

CANDIDATES = ("v0", "v5", "v6")
"""The candidates that ship: the card says what each makes the model do."""

SEED = 1
"""Of the first trial; each further simulation of an arm adds one."""


def write_card(
    folder: Path, *, cases: int = CASES, told: Callable[[int, int], None] = lambda done, total: None
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
    training = _training(folder)
    picture = loss_curve(training).decode()
    weights = folder_digest(folder)
    with served(model, seed=SEED) as asked:
        found = asyncio.run(_measured(asked, cases, told))
    card = Card(
        training={name: value for name, value in training.items() if name != "losses"},
        weights=weights,
        weight_bytes=(folder / "model.safetensors").stat().st_size,
        temperature=model.temperature,
        cases=cases,
        capabilities=dict(found.capabilities),
        rules=tuple(found.rules),
        candidates=dict(found.candidates),
        habits={rule: dict(shares) for rule, shares in found.habits.items()},
    )
    text = card_text(card)
    record = json.dumps(card.model_dump(mode="json"), indent=1) + "\n"
    write_together({folder / CARD: record, folder / TEXT: text, folder / CURVE: picture})
    return text


def _training(folder: Path) -> dict[str, Any]:
    path = folder / TRAINING
    mend = "was it made by 'python -m research.pocket train'?"
    found = read_json(path, ConfigError, mend)
    lacking = RECORDED - found.keys() if isinstance(found, dict) else RECORDED
    if lacking:
        raise ConfigError(f"{path}: holds no {min(lacking)!r}: {mend}")
    record: dict[str, Any] = found
    return record


async def _measured(asked: ModelSettings, cases: int, told: Callable[[int, int], None]) -> Measured:
    from pytest_trace2evolve.models.chat import ChatModel

    candidates = Candidates(template() / "candidates")
    instructions = {name: candidates[name].instruction for name in CANDIDATES}
    model = ChatModel(asked)
    try:
        return await measure(model, SupportWorld(), instructions, cases=cases, told=told)
    finally:
        await model.close()
