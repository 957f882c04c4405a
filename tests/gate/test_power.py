"""`trace2evolve power`: chances by simulation, and their report."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.gate.power import (
    AGENTS,
    Design,
    Effect,
    fit_agent,
    gain_at_power,
    simulate_stages,
)

NO_AGENT = (
    "expected reliable, medium, noisy or RATE,SPREAD, with the rate between 0 and 1, and the spread between "
    "0 and sqrt(rate × (1 − rate))"
)
SMALL = ["power", "--tasks", "20", "--trials", "2", "-ot2e_resamples=100"]


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_an_agent_has_the_rate_and_spread_it_was_asked_for(rate: float, part: float) -> None:
    spread = part * np.sqrt(rate * (1 - rate))
    agent = fit_agent(rate, spread)
    size = agent.a + agent.b
    assert agent.mean == pytest.approx(rate)
    assert agent.a * agent.b / (size**2 * (size + 1)) == pytest.approx(spread**2)


def test_the_smallest_gain_lies_between_those_around_it() -> None:
    assert gain_at_power({0.0: 0.05, 0.05: 0.5, 0.10: 0.95}, 100) == pytest.approx(0.0756, abs=1e-4)
    assert gain_at_power({0.0: 0.05, 0.05: 0.5}, 100) is None


def test_stages_add_trials_to_the_same_tasks_and_keep_what_fresh_trials_said() -> None:
    random = np.random.default_rng(0)
    drawn = simulate_stages(random, AGENTS["noisy"], Effect(-0.1), Design(20, 8), 50, (2, 4, 8))
    assert [int(case.baseline.trials[0, 0]) for case in drawn.stages] == [2, 4, 8]
    for before, after in zip(drawn.stages[:-1], drawn.stages[1:], strict=True):
        assert (after.candidate.successes >= before.candidate.successes).all()
        assert (after.candidate.successes - before.candidate.successes <= after.candidate.trials // 2).all()
        assert before.fresh_p is not None
        assert after.fresh_p is not None
        tried = ~np.isnan(before.fresh_p)
        assert np.array_equal(before.fresh_p[tried], after.fresh_p[tried])


def test_json_holds_what_was_asked_and_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--agent-profile", "noisy", "--margin", "0.2", "--live", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tasks"], found["trials"], found["margin"], found["live"]) == (20, 2, 0.2, True)
    assert [(one["goal"], one["effect"]) for one in found["chances"]] == [
        *(("improve", effect) for effect in (0.0, 0.02, 0.05, 0.1, 0.15)),
        *(("hold", effect) for effect in (0.0, -0.1, -0.2)),
        *(("improve", effect) for effect in (-0.05, -0.1, -0.2)),
        *(("no-regression", effect) for effect in (0.0, -0.05, -0.1, -0.2)),
    ]
    assert set(found["enough"]) == {"effect", "trials", "tasks"}


def test_the_table_names_what_would_be_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--agent-profile", "0.9,0.1"]) == 0
    out = capsys.readouterr().out
    assert (
        "20 tasks × 2 trials a side, recorded runs; policy calibrated, verdicts about tasks like these ("
        in out
    )
    assert "designs that reach 80% for +5 points: about " in out
    assert "not possible" in out, "0.9 + 0.15"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tasks", "1"], "--tasks 1: must be 2 or more"),
        (["--trials", "0"], "--trials 0: must be 1 or more"),
        (["--agent-profile", "loud"], f"--agent-profile loud: {NO_AGENT}"),
        (["--agent-profile", "0.5,0.5"], f"--agent-profile 0.5,0.5: {NO_AGENT}"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_a_line(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *options]) == 2
    assert capsys.readouterr().err == f"trace2evolve: {message}\n"
