"""Simulations that are lost before they are measured: bounded in a promotion, and never a lasting verdict."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.evidence.ledger import Ledger
from pytest_trace2evolve.records.ledger import Evaluation
from pytest_trace2evolve.records.verdict import Decision
from tests.attack.sessions import Done, Sessions
from tests.patience import until
from tests.session.test_own_agents import OFF, Project, has_ended

NUMBERS = range(10, 20)
BOT = """
import json, os, re, time
from pathlib import Path

def make(tools, candidate):
    tools = {tool.__name__: tool for tool in tools}
    place = Path(os.environ["T2E_TEST_PIDS"])  # outside of the agent's code
    number = None

    def run(message):
        nonlocal number
        found = re.search(r"B\\d+", message)
        if found is None:
            return "Booking " + number + " is cancelled."
        number = found[0]
        fates = json.loads((place / "fates").read_text())
        fate = fates.get(number, fates["all"])
        if fate == "lose":
            raise ConnectionError("gone")
        if fate == "hang":
            (place / "hanging").touch()
            time.sleep(600)
        if fate == "pass":
            tools["cancel_booking"](booking_id=number)
        return "Booking " + number + " is cancelled."
    return run
"""
POLICY = "alpha = 0.2\n[checks.reward]\nmargin = 0.18\n"
"""A policy whose first test needs four of ten tasks."""


class Fates:
    """A project of ten tasks whose agent, without a model, passes, fails or loses the tasks that it is told.

    With `trials`, the fate is that of every trial of a task.
    """

    def __init__(self, root: Path, sessions: Sessions, trials: int = 1) -> None:
        self.project = project = Project(root, sessions)
        tasks = [
            {
                "id": f"cancel-{number}",
                "user": {"goal": f"Please cancel booking B{number}.", "knows": {"booking_id": f"B{number}"}},
                "expect": {"data": {"bookings": {f"B{number}": {"status": "cancelled"}}}},
            }
            for number in NUMBERS
        ]
        project.write("app/bot.py", BOT)
        project.write("tasks.yaml", json.dumps(tasks))
        project.write(
            "suites/hotel.toml",
            f'trials = {trials}\nestimand = "tasks"\n[splits]\nheldout = {{ tasks = "tasks.yaml" }}\n',
        )
        project.write("policies/few.toml", POLICY)
        project.candidate("v1", "parent: v0", text="Be quick.")
        assert sessions.run(project.root, "trace2evolve", "lock").status == 0

    def run(self, *arguments: str, fates: dict[str, str], every: str, **options: Any) -> Done:
        """Run a session in which each task has its fate."""
        self.project.write("pids/fates", json.dumps({"all": every, **fates}))
        return self.project.run(None, *arguments, **options)

    def baseline(self, every: str = "fail", **fates: str) -> None:
        self.run("v0", OFF, "--t2e-save-baseline=v0", fates=fates, every=every)

    def judge(self, goal: str = "improve", **options: Any) -> Done:
        return self.run("v1", f"--t2e-goal={goal}", "--t2e-gate=few", "-ot2e_max_reruns=0", **options)

    @property
    def evaluations(self) -> list[Evaluation]:
        history = Ledger(self.project.root / "ledger").read()
        assert history.problems == ()
        return [one for one in history.entries_by_time if isinstance(one, Evaluation)]


@pytest.fixture
def fates(tmp_path: Path, sessions: Sessions) -> Fates:
    return Fates(tmp_path / "project", sessions)


@pytest.mark.parametrize("goal", ["improve", "hold", "no-regression"])
@pytest.mark.parametrize("lost", [1, 4, 10])
def test_lost_simulations_that_a_rerun_measures_leave_no_lasting_verdict(
    fates: Fates, goal: str, lost: int
) -> None:
    """A tenth is lost, or more, or everything: one rule."""
    failing = {f"B{number}": "fail" for number in list(NUMBERS)[:4]}
    fates.baseline("pass", **(failing if goal == "improve" else {}))
    gone = {f"B{number}": "lose" for number in list(NUMBERS)[:lost]}
    first = fates.judge(goal, fates=gone, every="pass")
    if lost < len(NUMBERS) and (lost, goal) != (1, "no-regression"):
        assert first.status == 10, first.text
    again = fates.judge(goal, fates={}, every="pass")
    assert "; now: " not in again.text or "recorded: PROMOTE" in again.text, again.text
    if lost == 4:
        assert "4 measured only after they had been lost count at their worst" in again.text
        assert again.status == 10
    else:
        assert again.status == 0, again.text
        assert "PROMOTE" in again.text
    (*_, last) = fates.evaluations
    assert (last.look, last.analysis) == ((1, 1) if goal == "improve" else (None, None))


def test_a_complete_verdict_still_stands(fates: Fates) -> None:
    """A verdict on all simulations is repeated, and simulations that are lost later change nothing."""
    fates.baseline("pass")
    flawed = {f"B{number}": "fail" for number in list(NUMBERS)[:3]}
    assert fates.judge("hold", fates=flawed, every="pass").status == 10
    again = fates.judge("hold", fates={}, every="pass")
    assert "recorded: INCONCLUSIVE" in again.text, again.text
    assert again.status == 10


@pytest.mark.parametrize(("goal", "how"), [("improve", "lose"), ("no-regression", "kill")])
def test_a_failure_that_is_lost_is_not_tossed_again_for_a_promotion(
    fates: Fates, goal: str, how: str
) -> None:
    """Those that are about to fail are lost or killed, one after the other, and then pass."""
    fates.baseline()
    doomed = list(NUMBERS)[3:6]
    if how == "lose":
        fates.judge(goal, fates={f"B{number}": "lose" for number in doomed} | FAILED, every="pass")
    else:
        for number in doomed:
            hanging = fates.project.pids / "hanging"
            hanging.unlink(missing_ok=True)

            def kill(pid: int, hanging: Path = hanging) -> None:
                until(lambda: hanging.exists() or has_ended(pid))
                os.killpg(pid, signal.SIGKILL)

            done = fates.judge(goal, fates={f"B{number}": "hang"} | FAILED, every="pass", meanwhile=kill)
            assert done.status == -9
    done = fates.judge("improve", fates=FAILED, every="pass")
    assert ".000 → .600" in done.text
    assert "3 measured only after they had been lost count at their worst" in done.text, done.text
    assert done.status == 10
    assert fates.evaluations[-1].decision is Decision.INCONCLUSIVE


FAILED = {f"B{number}": "fail" for number in list(NUMBERS)[6:]}
