"""Measuring a model for its card: what counts, and that a lost simulation leaves no card."""

import asyncio
import sys
from pathlib import Path

import pytest

from pytest_trace2evolve.cases.case import FAMILIES
from pytest_trace2evolve.cases.teacher import rulebook
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.pocket.__main__ import main
from research.pocket.behavior import BEHAVIORS
from research.pocket.measure import POLICY_ALONE, Measurements, measure
from tests.refusing_model import RefusingModel

CANDIDATES = {"v5": "Always fetch the customer's account."}


def measured(model: RefusingModel, progress: list[tuple[int, int]]) -> Measurements:
    def on_progress(done: int, total: int) -> None:
        progress.append((done, total))

    return asyncio.run(measure(model, SupportWorld(), CANDIDATES, cases=2, on_progress=on_progress))


def test_every_capability_rule_and_candidate_is_measured() -> None:
    progress: list[tuple[int, int]] = []
    found = measured(RefusingModel(), progress)
    assert {name: share.total for name, share in found.capabilities.items()} == dict.fromkeys(FAMILIES, 2)
    assert {name: share.total for name, share in found.with_rules.items()} == dict.fromkeys(FAMILIES, 2)
    alone = 2 * len(FAMILIES)
    assert {name: share.total for name, share in found.candidates.items()} == {POLICY_ALONE: alone, "v5": 4}
    assert [effect.rule for effect in found.rules] == list(found.habits) == list(rulebook().rules)
    assert all(list(shares) == [POLICY_ALONE, "v5"] for shares in found.habits.values())
    # An agent that never calls a tool fetches no account, and changes nothing that it did not read.
    [fetched] = [effect for effect in found.rules if effect.rule == "account_always"]
    shown = fetched.shown
    assert (shown.without.hits, shown.seen.hits, shown.unseen.hits) == (0, 0, 0)
    assert fetched.passed.without.total == 2 * len(BEHAVIORS["account_always"].families)
    assert found.habits["inspect"][POLICY_ALONE].total == 0
    total = 2 * 2 * len(FAMILIES) + 2 * 2 * len(rulebook().rules) + 4
    assert progress[-1] == (total, total)


def test_options_are_checked_before_an_hour_of_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ["train", "--out", str(tmp_path / "m")]
    for arguments, message in (
        (["--cases", "-1"], "--cases -1: must be 0 or more"),
        (["--steps", "0"], "--steps 0: must be 1 or more"),
    ):
        assert main([*train, *arguments]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(train) == 2
    assert (
        "'matplotlib' is not installed; run: pip install 'pytest-trace2evolve[plot]'"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "m").exists()
