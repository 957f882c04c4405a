"""Measuring a model for its card: what counts, and that nothing is said where something was lost."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from pytest_trace2evolve.cases.case import FAMILIES
from pytest_trace2evolve.cases.teacher import rulebook
from pytest_trace2evolve.errors import InfrastructureError
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.pocket.__main__ import main
from research.pocket.measure import Measured, measure
from tests.refusing_model import RefusingModel

CANDIDATES = {"v0": "", "v5": "Always fetch the customer's account."}


def measured(model: RefusingModel, told: list[tuple[int, int]]) -> Measured:
    def hear(done: int, total: int) -> None:
        told.append((done, total))

    return asyncio.run(measure(model, SupportWorld(), CANDIDATES, cases=2, told=hear))


def test_every_capability_rule_and_candidate_is_measured() -> None:
    told: list[tuple[int, int]] = []
    found = measured(RefusingModel(), told)
    assert {name: share.total for name, share in found.capabilities.items()} == dict.fromkeys(FAMILIES, 2)
    assert {name: share.total for name, share in found.candidates.items()} == {"v0": 8, "v5": 8}
    assert [one.rule for one in found.rules] == list(found.habits) == list(rulebook().rules)
    assert all(list(shares) == ["v0", "v5"] for shares in found.habits.values())
    # Who never calls fetches no account, passes where nothing may be done, and changes nothing unread.
    [fetched] = [one for one in found.rules if one.rule == "account_always"]
    assert (fetched.without.hits, fetched.seen.hits, fetched.unseen.hits) == (0, 0, 0)
    assert found.habits["inspect"]["v0"].total == 0
    total = 2 * len(FAMILIES) + 3 * 2 * len(rulebook().rules) + 8 * 2
    assert told[-1] == (total, total)


def test_of_what_was_lost_nothing_is_said() -> None:
    with pytest.raises(
        InfrastructureError, match=r"case '.*' was lost, and with it the card: nobody answers"
    ):
        measured(RefusingModel(requests=100), [])


def test_options_are_held_against_sense_before_an_hour_of_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ["train", "--out", str(tmp_path / "m")]
    for arguments, told in (
        (["--cases", "-1"], "--cases -1: must be 0 or more"),
        (["--steps", "0"], "--steps 0: must be 1 or more"),
    ):
        assert main([*train, *arguments]) == 2
        assert told in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(train) == 2
    assert (
        "'matplotlib' is not installed; run: pip install 'pytest-trace2evolve[plot]'"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "m").exists()


def test_a_record_of_another_shape_is_named(models_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, told in (
        ("[]", "holds no 'dialogues'"),
        (json.dumps({"losses": []}), "holds no 'dialogues'"),
        ("{", "not valid JSON"),
    ):
        (models_folder / "training.json").write_text(text)
        assert main(["card", str(models_folder)]) == 2
        line = capsys.readouterr().err
        assert f"training.json: {told}" in line
        assert "was it made by 'python -m research.pocket train'?" in line


@pytest.fixture
def models_folder(tmp_path: Path) -> Path:
    """What looks like a model's folder from outside."""
    from safetensors.numpy import save_file

    save_file({}, tmp_path / "model.safetensors")
    for name, text in (
        ("config.json", '{"model_type": "qwen3"}'),
        ("tokenizer.json", "{}"),
        ("chat_template.jinja", "x"),
    ):
        (tmp_path / name).write_text(text)
    return tmp_path
