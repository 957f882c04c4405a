"""What a live session shows while it runs, wired from its account and its items."""

import re
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import pytest

from pytest_trace2evolve.plugin import controller
from pytest_trace2evolve.records.budget import RunTotals, SimulationState
from pytest_trace2evolve.records.completion import Usage
from pytest_trace2evolve.records.evidence import SimulationEvidence
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.report.progress import Progress, ProgressDisplay, ProgressTracker
from pytest_trace2evolve.testing import ChatServer
from tests.plugin.conftest import DeskProject, project
from tests.session.test_live import SECRET, SOLVED, live

__all__ = ["project"]


class Followed(ProgressDisplay):
    """A display that a server follows: it holds after a few answers until the display prints another line."""

    server: ChatServer | None = None

    def show(self, progress: Progress) -> bool:
        output_of = super().show(progress)
        if output_of and Followed.server is not None:
            Followed.server.release(6)
        return output_of


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    """A server whose answers wait for the lines of the sessions that ask it."""
    with ChatServer(SOLVED) as server:
        server.hold()
        monkeypatch.setattr(Followed, "server", server)
        yield server


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain lines that need not be waited for."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setattr(controller, "ProgressDisplay", partial(Followed, interval=0.1))


def output_of(result: pytest.RunResult) -> list[str]:
    """The plain lines of progress."""
    return [line for line in result.outlines if re.match(r"trace2evolve: \d+ of \d+ done", line)]


def test_a_session_tells_how_far_it_is(project: DeskProject, followed: ChatServer) -> None:
    live(project, followed, "--t2e-save-baseline=v0", "--t2e-gate=off")
    result = live(project, followed, "--candidate=v1", "--t2e-concurrency=2", "--t2e-trials=2")
    lines = output_of(result)
    assert len(lines) > 5
    assert all(re.match(r"trace2evolve: \d+ of 14 done", line) for line in lines)
    assert any("2 running" in line and "waiting" in line for line in lines)
    assert any("reward 1.000 (baseline 1.000)" in line for line in lines)
    assert any(line.endswith(" left") for line in lines)
    counts = [int(line.split()[1]) for line in lines]
    assert counts == sorted(counts)
    followed.release()
    again = live(project, followed, "--candidate=v1", "--t2e-trials=2")
    again.assert_outcomes(passed=7)


def test_only_what_was_selected_is_counted(project: DeskProject, followed: ChatServer) -> None:
    result = live(project, followed, "-m", "heldout")
    result.stdout.fnmatch_lines(["trace2evolve: 7 simulations to make (before -m)"])
    assert output_of(result)
    assert all(" of 4 done" in line for line in output_of(result))


@pytest.mark.parametrize(
    "arguments",
    [
        ["-q"],
    ],
)
def test_quiet_sessions_tell_nothing(project: DeskProject, arguments: list[str]) -> None:
    with ChatServer(SOLVED, latency=0.1) as server:
        assert output_of(live(project, server, *arguments)) == []


def test_the_reward_is_compared_over_the_same_tasks_or_not_at_all() -> None:
    states = {
        SimulationState.MADE: 1,
        SimulationState.LOST: 1,
        SimulationState.KEPT: 1,
        SimulationState.RUNNING: 1,
    }
    usage = Usage(prompt_tokens=70, completion_tokens=5, cost=0.5)
    watch = ProgressTracker(SimpleNamespace(totals=lambda: RunTotals(states, usage, 1.0)), {})  # type: ignore[arg-type]
    watch.total = 9

    def record(trial: int, reward: float | None) -> SimulationEvidence:
        status = Status.INFRASTRUCTURE_ERROR if reward is None else Status.MEASURED
        return SimulationEvidence(
            id=f"s{trial}",
            task_id="a",
            trial=trial,
            status=status,
            reward=reward,
            termination_reason="user_stop",
            task_digest="d",
        )

    assert watch.read().reward is None
    watch.add_task("desk", "a", (record(0, 1.0), record(1, 0.0), record(2, None)))
    watch.add_task("desk", "b", (record(0, None),))
    progress = watch.read()
    assert (progress.reward, progress.baseline_reward) == (0.5, None)
    assert (progress.done, progress.resumed, progress.lost, progress.running, progress.waiting) == (
        2,
        1,
        1,
        1,
        5,
    )
    assert (progress.tokens, progress.cost) == (75, 0.5)
