"""Held-out rewards: their change and its interval, the table, the picture, and what is kept of the base."""

import asyncio
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.environments.rollouts import Group, Rollout
from pytest_trace2evolve.errors import InfrastructureError
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.adapter import HeldOut
from pytest_trace2evolve.records.completion import NOTHING_USED
from pytest_trace2evolve.records.environment import GRADES
from pytest_trace2evolve.report import improvement
from pytest_trace2evolve.report.improvement import heldout_text, training_progress
from pytest_trace2evolve.report.tables import console
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest, read_model
from pytest_trace2evolve.training import heldout
from pytest_trace2evolve.training.heldout import reward_change, top_change
from pytest_trace2evolve.utils.plots import training_curve
from pytest_trace2evolve.utils.resources import embedded_model
from pytest_trace2evolve.worlds.support.world import SupportWorld

CAPABILITY = "conditional_detail_retrieval"
GROUPS = st.lists(st.lists(st.sampled_from(GRADES), min_size=2, max_size=2), min_size=3, max_size=12)


def held(rewards: Any, capability: str = "a") -> HeldOut:
    return HeldOut(
        capability=capability,
        difficulty=1,
        digest="d",
        model="m",
        temperature=0.7,
        rewards=tuple(map(tuple, rewards)),
    )


@given(GROUPS, st.randoms(use_true_random=False))
def test_the_interval_is_students_of_the_paired_differences(before: Any, draws: Any) -> None:
    after = [[draws.choice(GRADES) for _ in group] for group in before]
    found = reward_change(held(before), held(after))
    gains = np.mean(after, axis=1) - np.mean(before, axis=1)
    assert found.difference == pytest.approx(gains.mean())
    wanted = stats.ttest_1samp(gains, 0).confidence_interval(0.95) if gains.std() > 1e-8 else None
    if wanted is None:
        assert found.low is not None
        assert found.high is not None
        none = stats.binomtest(0, len(gains)).proportion_ci(0.95, method="wilson").high
        assert found.low == pytest.approx(max(-1, gains.mean() - none)), "equal gains show no certainty"
        assert found.high == pytest.approx(min(1, gains.mean() + none))
    else:
        assert found.low == pytest.approx(max(-1, wanted.low))
        assert found.high == pytest.approx(min(1, wanted.high))


def test_top_rewards_count_alone_in_the_top_share() -> None:
    before, after = held([[0.8, 1.0], [0.0, 0.8]]), held([[1.0, 1.0], [0.8, 0.8]])
    change = top_change(before, after)
    assert (change.before, change.after) == (0.25, 0.5)
    assert reward_change(held([[0.0]]), held([[1.0]])).low is None, "of one scenario nothing is said"
    with pytest.raises(ValueError, match="no scenario was played on both sides"):
        reward_change(held([[]]), held([[]]))


def test_the_table_has_the_trained_environment_first() -> None:
    before = {name: held([[0.0, 0.2], [0.2, 0.2], [0.5, 0.0]], name) for name in ("other", "trained")}
    after = {**before, "trained": held([[1.0, 1.0], [0.8, 1.0], [1.0, 1.0]], "trained")}
    lines = heldout_text(["trained"], before, after).splitlines()
    assert lines[1].startswith("trained")
    assert "0.18 → 0.97" in lines[1]
    assert re.search(r"\+78\.3 \(\+\d+\.\d to \+\d+\.\d\)", lines[1])
    assert "+0.0 (−56.1 to +56.1)" in lines[2], "three scenarios that did not vary say little"
    assert lines[3] == (
        "3 scenarios × 2 rollouts each, before and after; temperature 0.7; intervals by scenario."
    )
    after["other"] = after["other"].model_copy(update={"lost": 2})
    assert "before and after, 2 of them lost; temp" in heldout_text(["trained"], before, after)


CURVE = [
    {
        "step": step,
        "reward": 0.1 * step,
        "informative": 0.5,
        "rollouts": 8,
        "kl": 0.01 * step if step % 2 else None,
    }
    for step in range(1, 8)
]


def test_a_narrow_terminal_gets_whole_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "conditional_detail_retrieval"
    before, after = {name: held([[0.0], [0.2]], name)}, {name: held([[1.0], [0.5]], name)}
    for width in (80, 160):
        monkeypatch.setattr(improvement, "terminal", partial(console, width=width, colour=False))
        heading, row = heldout_text([name], before, after).splitlines()[:2]
        assert re.search(
            r"^conditional_detail_retrieval +0\.10 → 0\.75 +\+65\.0 \(−\d+\.\d to \+100\.0\)", row
        )
        assert ("top share" in heading) == (width == 160)


def test_equal_curves_give_equal_pictures() -> None:
    picture = training_curve(CURVE, title="refunds")
    assert picture == training_curve([dict(one) for one in CURVE], title="refunds")
    assert picture != training_curve(CURVE[:-1], title="refunds")
    assert b"<svg" in picture
    assert b"refunds" in picture


def test_a_bar_tells_how_a_training_stands() -> None:
    assert training_progress(CURVE) == "reward 0.50, groups that differ 50%, KL 0.070"
    assert (
        training_progress([{"reward": 0.25, "informative": 1.0, "kl": None}])
        == "reward 0.25, groups that differ 100%"
    )


@contextmanager
def nobody(base: ModelFolder, adapters: Mapping[str, Path], **_: Any) -> Iterator[ModelSettings]:
    """Stands where a server would."""
    yield ModelSettings(model=base.name, weights=folder_digest(base.path))


def test_the_base_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def played(one: Any, told: Any) -> HeldOut:
        asked.append(f"{one.settings.model} {one.capability} {one.wanted.rollouts}")
        told(4)
        return held([[0.2, 0.5], [1.0, 0.0]], one.capability)

    monkeypatch.setattr(heldout, "served", nobody)
    monkeypatch.setattr(heldout, "_played", played)
    base = read_model(embedded_model())
    kept, adapter = tmp_path / "kept", tmp_path / "adapter"
    sides = heldout.Sides(base, adapter, kept=kept)
    wanted = heldout.Wanted({CAPABILITY: 1}, scenarios=2, rollouts=2)
    told: list[int] = []
    first = heldout.measure(Environments(), sides, wanted, told=told.append)
    assert asked == [f"pocket {CAPABILITY} 2", f"pocket+trained {CAPABILITY} 2"]
    assert told == [4, 4, 8, 8]
    assert heldout.measure(Environments(), sides, wanted) == first
    assert asked[2:] == [f"pocket+trained {CAPABILITY} 2"], "the adapter alone is measured again"
    [file] = kept.iterdir()
    file.write_text("{")
    heldout.measure(Environments(), sides, wanted)
    assert asked[3:] == [f"pocket {CAPABILITY} 2", f"pocket+trained {CAPABILITY} 2"], (
        "what is damaged is measured again"
    )
    heldout.measure(Environments(), replace(sides, instruction="Be kind."), wanted)
    assert len(asked) == 7, "with another instruction it is another agent"
    monkeypatch.setattr(heldout, "model_package_versions", lambda: {"torch": "of tomorrow"})
    heldout.measure(Environments(), sides, wanted)
    assert len(asked) == 9, "with another version of what plays it is another measurement"
    monkeypatch.setattr(heldout, "PLAYING_VERSION", heldout.PLAYING_VERSION + 1)
    heldout.measure(Environments(), sides, wanted)
    assert len(asked) == 11, "and if rollouts are played in another way"
    monkeypatch.setattr(SupportWorld, "policy", lambda world: "Be strict.")
    heldout.measure(Environments(), sides, wanted)
    assert len(asked) == 13, "and with another policy"


@pytest.mark.parametrize("apart", [False, True])
def test_both_sides_are_played_at_once_where_each_has_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    served: list[tuple[list[str], int | None]] = []
    order: list[str] = []

    @contextmanager
    def server(
        base: ModelFolder, adapters: Mapping[str, Path], *, threads: int | None = None, **_: Any
    ) -> Iterator[ModelSettings]:
        served.append((list(adapters), threads))
        yield ModelSettings(model=base.name, base_url=f"http://127.0.0.1:{len(served)}/v1", weights="w")

    async def played(one: Any, told: Any) -> HeldOut:
        order.append(f"{one.settings.model} at {one.settings.base_url[17:18]}")
        told(2)
        await asyncio.sleep(0)
        told(4)
        order.append(one.settings.model)
        return held([[0.2, 0.5], [1.0, 0.0]], one.capability)

    monkeypatch.setattr(heldout, "served", server)
    monkeypatch.setattr(heldout, "_played", played)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    base = read_model(embedded_model())
    wanted = heldout.Wanted({CAPABILITY: 1}, scenarios=2, rollouts=2)
    told: list[int] = []
    sides = heldout.Sides(base, tmp_path, apart=apart)
    before, after = heldout.measure(Environments(), sides, wanted, told=told.append)
    assert before == after == {CAPABILITY: held([[0.2, 0.5], [1.0, 0.0]], CAPABILITY)}
    assert (told[-1], told) == (8, sorted(told)), "what is done only grows"
    if apart:
        assert served == [(["pocket+trained"], 3), ([], 3)], "half the cores each"
        assert order == ["pocket at 2", "pocket+trained at 1", "pocket", "pocket+trained"]
    else:
        assert served == [(["pocket+trained"], None)]
        assert order == ["pocket at 1", "pocket", "pocket+trained at 1", "pocket+trained"]

    async def fails(one: Any, told: Any) -> HeldOut:
        if one.settings.model != "pocket":
            await asyncio.sleep(3600)
        raise InfrastructureError("it went away")

    monkeypatch.setattr(heldout, "_played", fails)
    with pytest.raises(InfrastructureError, match=r"^it went away$"):
        heldout.measure(Environments(), sides, wanted)


def test_too_many_lost_rollouts_end_a_measurement() -> None:
    rollouts = [Rollout(0, None if place < 2 else 0.2, (), NOTHING_USED, 0, "gone") for place in range(20)]
    with pytest.raises(InfrastructureError) as error:
        heldout.lost_of("refunds", [Group(0, rollouts)])
    assert str(error.value) == (
        "held-out 'refunds': 2 of 20 rollouts were lost, more than 5%, and nothing is said of the others; "
        "first: gone"
    )
    assert heldout.lost_of("refunds", [Group(0, [*rollouts[1:], rollouts[-1]])]) == 1
