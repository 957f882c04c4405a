"""Held-out rewards: their change and its interval, and what is measured again."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.records.adapter import HeldOutRewards
from pytest_trace2evolve.records.environment import GRADES
from pytest_trace2evolve.serving.folder import read_model
from pytest_trace2evolve.testing.server import ChatServer, Reply
from pytest_trace2evolve.training import heldout
from pytest_trace2evolve.training.heldout import Measurement, measure, reward_change
from pytest_trace2evolve.utils.resources import embedded_model
from pytest_trace2evolve.worlds.support.world import SupportWorld

CAPABILITY = "conditional_detail_retrieval"
GROUPS = st.lists(st.lists(st.sampled_from(GRADES), min_size=2, max_size=2), min_size=3, max_size=12)


def held(rewards: Any, capability: str = "a") -> HeldOutRewards:
    return HeldOutRewards(
        capability=capability,
        difficulty=1,
        digest="d",
        model="m",
        temperature=0.7,
        rewards=tuple(map(tuple, rewards)),
    )


@settings(max_examples=50)
@given(GROUPS, st.randoms(use_true_random=False))
def test_the_interval_is_students_for_paired_differences(before: Any, draws: Any) -> None:
    after = [[draws.choice(GRADES) for _ in group] for group in before]
    found = reward_change(held(before), held(after))
    gains = np.mean(after, axis=1) - np.mean(before, axis=1)
    assert found.change == pytest.approx(gains.mean())
    assert found.low is not None
    assert found.high is not None
    if gains.std() > 1e-8:
        interval = stats.ttest_1samp(gains, 0).confidence_interval(0.95)
        low, high = interval.low, interval.high
    else:  # equal gains are not certain
        none = stats.binomtest(0, len(gains)).proportion_ci(0.95, method="wilson").high
        low, high = gains.mean() - none, gains.mean() + none
    assert (found.low, found.high) == (pytest.approx(max(-1, low)), pytest.approx(min(1, high)))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[list[str], list[str]]]]:
    """Replaces local servers by one that never helps; the adapters and options of each that is started."""
    found: list[tuple[list[str], list[str]]] = []
    with ChatServer(lambda request: Reply("I cannot help you with that.")) as chat_server:

        class FakeServer:
            base_url, token = chat_server.base_url, "t"

            def __init__(self, folder: Path, adapters: Mapping[str, Path], options: Sequence[str]) -> None:
                found.append((list(adapters or {}), list(options)))

            def close(self) -> None:
                """Nothing runs."""

        monkeypatch.setattr(heldout, "LocalServer", FakeServer)
        monkeypatch.setattr(heldout, "MAX_CONCURRENT_ROLLOUTS", 1)
        FakeServer.requests = chat_server.requests  # type: ignore[attr-defined]
        yield found


def asked(since: int = 0) -> Counter[str]:
    """How often each model was asked."""
    requests: list[Mapping[str, Any]] = heldout.LocalServer.requests  # type: ignore[attr-defined]
    return Counter(request["model"] for request in requests[since:])


@pytest.fixture
def plan(tmp_path: Path) -> Measurement:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    return Measurement(
        read_model(embedded_model()),
        adapter,
        {CAPABILITY: 1},
        scenarios={CAPABILITY: 2},
        rollouts=2,
        cache=tmp_path / "kept",
    )


def test_the_base_is_measured_once(
    started: list[Any], plan: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress: list[int] = []
    first = measure(Environments(), plan, on_progress=progress.append)
    assert progress == sorted(progress)
    assert progress[-1] == 8
    assert {side[CAPABILITY].rollout_count for side in first} == {4}
    each = asked()["pocket"]
    assert asked() == {"pocket": each, "pocket+trained": each}

    def measured_again() -> set[str]:
        before = asked().total()
        measure(Environments(), plan)
        return set(asked(before))

    assert measured_again() == {"pocket+trained"}
    [file] = plan.cache.iterdir()  # type: ignore[union-attr]
    file.write_text("{")
    assert measured_again() == {"pocket", "pocket+trained"}, "a damaged measurement is made again"
    measure(Environments(), replace(plan, instruction="Be kind."))
    for change in (
        (heldout, "model_package_versions", lambda: {"torch": "of tomorrow"}),
        (heldout, "PLAYING_VERSION", heldout.PLAYING_VERSION + 1),
        (SupportWorld, "policy", lambda world: "Be strict."),
    ):
        monkeypatch.setattr(*change)
        assert "pocket" in measured_again(), change
    assert len(list(plan.cache.iterdir())) == 5  # type: ignore[union-attr]


@pytest.mark.parametrize("two_servers", [False, True])
def test_both_sides_are_measured_at_once_if_each_has_a_server(
    started: list[Any], plan: Measurement, monkeypatch: pytest.MonkeyPatch, two_servers: bool
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    before, after = measure(Environments(), replace(plan, uses_two_servers=two_servers))
    assert before[CAPABILITY].rewards == after[CAPABILITY].rewards
    assert before[CAPABILITY].model != after[CAPABILITY].model
    models = [request["model"] for request in heldout.LocalServer.requests]  # type: ignore[attr-defined]
    in_turn = models == sorted(models)
    if two_servers:
        assert started == [(["pocket+trained"], ["-o", "t2e_threads=3"]), ([], ["-o", "t2e_threads=3"])]
        assert not in_turn
    else:
        assert started == [(["pocket+trained"], [])]
        assert in_turn
