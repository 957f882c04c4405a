"""What a training reports: the table of held-out rewards, its progress, and the picture of its curve."""

import re
from typing import Any

from pytest_trace2evolve.records.adapter import HeldOutRewards
from pytest_trace2evolve.report.improvement import heldout_text, training_progress


def held(rewards: Any, capability: str = "a") -> HeldOutRewards:
    return HeldOutRewards(
        capability=capability,
        difficulty=1,
        digest="d",
        model="m",
        temperature=0.7,
        rewards=tuple(map(tuple, rewards)),
    )


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


def test_a_bar_tells_how_a_training_stands() -> None:
    assert training_progress(CURVE) == "reward 0.50, groups that differ 50%, KL 0.070"
    assert (
        training_progress([{"reward": 0.25, "informative": 1.0, "kl": None}])
        == "reward 0.25, groups that differ 100%"
    )
