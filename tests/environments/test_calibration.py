"""Calibration: what the figures are, and what is kept of a model that is asked over loopback."""

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.cli import main as cli
from pytest_trace2evolve.environments.calibration import (
    CalibrationSpec,
    calibrate,
    compute_figures,
    difficulty_step,
    estimate_pass_at_k,
    missed_targets,
    read_calibrations,
)
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.errors import InfrastructureError
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.environment import GRADES, Calibration
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply
from tests.refusing_model import RefusingModel


@settings(max_examples=40)
@given(total=st.integers(1, 12), data=st.data())
def test_pass_at_k_is_the_share_of_choices_that_hold_a_pass(total: int, data: st.DataObject) -> None:
    passed, k = data.draw(st.integers(0, total)), data.draw(st.integers(1, total))
    choices = list(itertools.combinations(range(total), k))
    share = sum(any(one < passed for one in choice) for choice in choices) / len(choices)
    assert estimate_pass_at_k(total, passed, k) == pytest.approx(share)


@settings(max_examples=40)
@given(groups=st.lists(st.lists(st.sampled_from(GRADES), min_size=2, max_size=6), min_size=1, max_size=6))
def test_figures_are_shares_and_do_not_hang_on_the_order(groups: list[list[float]]) -> None:
    found, turned = compute_figures(groups), compute_figures([group[::-1] for group in groups[::-1]])
    assert turned.std == pytest.approx(found.std)
    assert (turned.all_top, turned.all_zero) == (found.all_top, found.all_zero)
    assert turned.pass_at == pytest.approx(found.pass_at)
    assert found.all_top + found.all_zero <= 1
    assert found.informative <= 1 - found.all_top - found.all_zero + 1e-9
    assert 0 <= found.mean <= 1
    assert (found.std == 0) is (found.informative == 0)
    assert found.groups == len(groups)


@pytest.mark.parametrize(
    ("groups", "message", "way"),
    [
        ([[0.0, 1.0], [0.0, 0.5]], (), None),
        ([[0.0, 0.0], [0.0, 0.2]], ("mean reward 0.05, target 0.2 to 0.6", "50% of the groups all at 0"), -1),
        ([[1.0, 1.0], [1.0, 0.8]], ("mean reward 0.95", "50% of the groups all at the top"), 1),
        ([[0.5, 0.5], [0.5, 0.5]], ("spread within a group 0.000", "0% of the groups differ"), 1),
    ],
)
def test_what_lies_outside_is_told_and_which_way_to_go(
    groups: list[list[float]], message: tuple[str, ...], way: int | None
) -> None:
    found = compute_figures(groups)
    phrases = missed_targets(found)
    assert bool(phrases) is bool(message)
    for phrase in message:
        assert any(phrase in one for one in phrases)
    if way is not None:
        assert difficulty_step(found) == way


def calibrated(tmp_path: Path, *arguments: str) -> int:
    (tmp_path / "suites").mkdir(exist_ok=True)
    return cli.main(["--root", str(tmp_path), "environment", "tune", *arguments])


def served(script: Callable[[ChatRequest], Reply], tmp_path: Path, *arguments: str) -> tuple[int, ChatServer]:
    with ChatServer(script) as server:
        asked = ("precondition_verification", "--model", "any", "--base-url", server.base_url)
        status = calibrated(tmp_path, *asked, "--seeds", "4", "-ot2e_rollouts=4", *arguments)
    return status, server


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any")


def reader() -> Callable[[ChatRequest], Reply]:
    """Every second rollout reads the order, and all of them stop then."""
    numbers: dict[str, int] = {}

    def script(request: ChatRequest) -> Reply:
        last = request.messages[-1]
        text = json.dumps(request.messages)
        order = text[text.index("#W") :][:9]
        number = numbers.setdefault(str(request.body["seed"]), len(numbers))
        if last["role"] == "tool" and last["content"].startswith("{"):
            return Reply("###STOP###")
        if number % 2:
            return Reply(tool_calls=(("get_order_details", {"order_id": order}),))
        return Reply("###STOP###")

    return script


def test_the_difficulty_is_changed_and_the_result_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, server = served(reader(), tmp_path)
    message = capsys.readouterr().out
    assert status == 1
    assert "mean reward 0.10, target 0.2 to 0.6" in message
    assert {one["temperature"] for one in server.requests} == {1.0}
    assert len({one["seed"] for one in server.requests}) == 16, "every rollout has a seed of its own"
    served(reader(), tmp_path, "--difficulty", "3")
    [kept] = read_calibrations(tmp_path / ".trace2evolve" / "environments", "precondition_verification")
    assert (kept.difficulty, kept.candidate, kept.content) == (3, "", "train")
    assert cli.main(["--root", str(tmp_path), "environment", "list"]) == 0
    assert "any: nothing fits" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["--root", str(tmp_path), "environment", "list", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [len(one["calibrations"]) for one in records] == [1, 0, 0, 0, 0, 0]
    assert not records[0]["stale"]


def test_a_lost_rollout_is_no_zero() -> None:
    spec = CalibrationSpec(ModelSettings(model="any"), seeds=5, rollouts=8, concurrency=4)

    def found(lost: int) -> Calibration:
        return asyncio.run(
            calibrate(Environments(), "precondition_verification", RefusingModel(lost_trials=lost), spec)
        )

    measured = found(2).tried[0].figures
    assert (measured.lost, measured.rollouts, measured.groups) == (2, 38, 5)
    with pytest.raises(
        InfrastructureError,
        match=r"'precondition_verification': 3 of 40 rollouts were lost, more than 5%, so the others alone "
        "prove nothing; first: nobody answers",
    ):
        found(3)


def test_an_endpoint_that_refuses_ends_it_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ChatServer(lambda request: Reply("No."), models=["other"]) as server:
        asked = ("precondition_verification", "--model", "any", "--base-url", server.base_url)
        assert calibrated(tmp_path, *asked, "--seeds", "2", "-ot2e_rollouts=2") == 2
    assert "The model 'any' does not exist." in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / ".trace2evolve").exists()
