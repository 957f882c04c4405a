"""Simulations that are lost in every attempt: they are named, and block a promotion."""

import json

import pytest

from pytest_trace2evolve.models import settings
from pytest_trace2evolve.testing import ChatServer, Fault, FaultPlan, Misbehaviour
from tests.plugin.conftest import DeskProject, project
from tests.session.test_live import SCENARIOS, SECRET, SOLVED, live

__all__ = ["project"]


@pytest.mark.parametrize("trials", [1, 2])
def test_a_task_that_is_lost_in_every_attempt_is_named(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch, trials: int
) -> None:
    """With one trial two runs have to lose it; with two trials one run is enough."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setattr(settings.Retries, "pause", lambda *_: 0.001)
    project.candidate("v3", "Be quick.", parent="v0")
    broken = False

    class Broken(FaultPlan):
        """The endpoint fails whenever the customer of one task asks it."""

        def draw(self) -> Misbehaviour | None:
            asked = str(server.requests[-1]["messages"][0]["content"])
            return Misbehaviour(Fault.SERVER_ERROR) if broken and SCENARIOS["note"] in asked else None

    with ChatServer(SOLVED, faults=Broken({})) as server:
        number = f"--t2e-trials={trials}"
        live(project, server, "--t2e-save-baseline=v0", "--t2e-gate=off", number)
        broken = True
        given = ("--candidate=v3", "--t2e-goal=no-regression", "--t2e-gate=calibrated", number)
        first = live(project, server, *given)
        second = live(project, server, *given)
    message = "*lost in every attempt: simulations of note (candidate)*"
    assert ("lost in every attempt" in first.stdout.str()) == (trials == 2)
    second.stdout.fnmatch_lines([message])
    assert second.ret == 10
    verdict = json.loads((project.runs[-1] / "verdict.json").read_text())["suites"]["desk"]["verdicts"][0]
    assert "simulations of note (candidate)" in verdict["reason"]
    assert "lost_again" in [check["id"] for check in verdict["checks"]]
