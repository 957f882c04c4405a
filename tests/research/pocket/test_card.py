"""The pocket model's card: its figures and text, and that the shipped card is about the shipped weights."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.pocket.card import Card, Share, card_text, difference

TRAINING: dict[str, Any] = {
    "recipe": {
        "seed": 5,
        "stages": [{"steps": 2}, {"steps": 3}],
        "threads": 2,
        "size": {"width": 8, "layers": 2, "heads": 4},
    },
    "parameters": 1234567,
    "vocabulary": 300,
    "dialogues": 160,
    "step": 20,
    "tokens": 98765,
    "seconds": 90.0,
}


def shares() -> st.SearchStrategy[Share]:
    return st.integers(1, 200).flatmap(
        lambda total: st.builds(lambda hits: Share(hits=hits, total=total), st.integers(0, total))
    )


@given(share=shares())
def test_share_lies_in_its_interval(share: Share) -> None:
    assert share.estimate is not None
    low, high = share.interval
    assert -1e-9 <= low <= share.estimate + 1e-9
    assert share.estimate - 1e-9 <= high <= 1 + 1e-9


@given(new=shares(), old=shares())
def test_difference_lies_in_its_interval(new: Share, old: Share) -> None:
    found, low, high = difference(new, old)
    assert -1 <= low <= found + 1e-9
    assert found - 1e-9 <= high <= 1
    assert difference(old, new) == pytest.approx((-found, -high, -low))


def test_card_states_what_was_measured() -> None:
    card = Card(
        training=TRAINING,
        weights="abc123",
        weight_bytes=4_130_000,
        temperature=0.8,
        cases=60,
        capabilities={"policy_edge": Share(hits=30, total=60)},
        with_rules={"policy_edge": Share(hits=48, total=60)},
        rules={
            "inspect": {
                "without": Share(hits=8, total=80),
                "seen": Share(hits=56, total=80),
                "unseen": Share(hits=8, total=80),
            }
        },
    )
    text = card_text(card)
    assert "2 layers, width 8, 4 heads" in text
    assert "1,234,567 parameters, 300 tokens" in text
    assert "4.1 MB" in text
    assert "`abc123`" in text
    assert "160 dialogues" in text
    assert "20 steps in 2 minutes." in text
    assert "| policy_edge | 50 % | 38 … 62 % | 80 % | 68 … 88 % | +30 (+13 … +45) |" in text
    assert "| inspect | 10 % of 80 | 70 % of 80 | +60 (+46 … +70) | 10 % of 80 | +0 (-10 … +10) |" in text
    assert "at temperature 0.8 on" in text
    continued = {**TRAINING, "recipe": {**TRAINING["recipe"], "start": "aa11"}}
    text = card_text(card.model_copy(update={"training": continued}))
    assert "minutes from weights of an earlier recipe, `aa11`." in text


@pytest.fixture
def shipped() -> Path:
    """The folder of the model that ships."""
    from pytest_trace2evolve.utils.resources import embedded_model, has_embedded_model

    if not has_embedded_model():
        pytest.skip("no embedded model ships yet")
    return embedded_model()


def test_shipped_card_is_about_the_shipped_weights(shipped: Path) -> None:
    from pytest_trace2evolve.serving.folder import folder_digest

    card = Card.model_validate(json.loads((shipped / "card.json").read_text(encoding="utf-8")))
    assert card.weights == folder_digest(shipped)
    assert card.weight_bytes == (shipped / "model.safetensors").stat().st_size <= 10_000_000
    assert (shipped / "README.md").read_text(encoding="utf-8") == card_text(card)
    training = json.loads((shipped / "training.json").read_text(encoding="utf-8"))
    assert card.training == {name: value for name, value in training.items() if name != "losses"}
    assert not [path for path in shipped.rglob("*") if path.suffix in (".bin", ".pt", ".pkl", ".pickle")]


def test_shipped_model_is_more_careful_with_all_rules_than_without(shipped: Path) -> None:
    """The docs say so; this is what its card measured."""
    card = Card.model_validate(json.loads((shipped / "card.json").read_text(encoding="utf-8")))
    gaps = [difference(card.with_rules[name], share) for name, share in card.capabilities.items()]
    assert sum(low > 0 for _, low, _ in gaps) >= 5
    stated, alone = (
        Share(hits=sum(share.hits for share in shares), total=sum(share.total for share in shares))
        for shares in (card.with_rules.values(), card.capabilities.values())
    )
    assert difference(stated, alone)[1] > 0.05
    assert sum(0.2 <= share.estimate <= 0.65 for share in card.capabilities.values()) >= 9
