"""Conversations that are killed or lost in the middle go on where they were: no answer is drawn twice."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.engine import factories as chat
from pytest_trace2evolve.models import settings
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Fault, FaultPlan, Misbehaviour, Reply
from tests.forks import Forks
from tests.patience import HANG_SECONDS, until
from tests.plugin.conftest import DeskProject, project
from tests.session.test_live import SCENARIOS, SECRET, SOLVED, live, traces

__all__ = ["project"]


def group(leader: int) -> set[int]:
    """The living processes of a session's group."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):  # it ended meanwhile
            continue
        if int(pgrp) == leader and state != "Z":
            found.add(int(stat.parent.name))
    return found


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setattr(settings.Retries, "pause", lambda *_: 0.001)


class Numbered:
    """A model whose every answer is another one."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._mutex = threading.Lock()

    def __call__(self, request: ChatRequest) -> Reply:
        reply = SOLVED(request)
        with self._mutex:
            number = next(self._numbers)
        return Reply(f"{reply.content or ''} [answer {number}]", tool_calls=reply.tool_calls)


def journals(project: DeskProject) -> dict[str, list[str]]:
    """The texts of the answers in each journal, by file."""
    found = {}
    for path in sorted((project.root / ".trace2evolve/finished").rglob("*.journal")):
        try:
            text = path.read_text()
        except FileNotFoundError:  # its simulation finished meanwhile
            continue
        lines = [json.loads(line) for line in text.splitlines()]
        found[path.name] = [line["answer"]["completion"]["content"] for line in lines]
    return found


def answers(trace: dict[str, Any]) -> list[str]:
    """The texts of a simulation that a model wrote."""
    return [one["content"] for one in trace["messages"] if one.get("usage")]


def stored(project: DeskProject) -> list[dict[str, Any]]:
    """The finished simulations."""
    paths = (project.root / ".trace2evolve/finished").rglob("*.json")
    return [json.loads(path.read_text()) for path in paths]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills processes")
@pytest.mark.parametrize("by", ["SIGKILL", "SIGINT"])
def test_a_killed_run_goes_on_with_the_answers_that_had_arrived(
    project: DeskProject, session_forks: Forks, by: str
) -> None:
    with ChatServer(Numbered()) as server:
        command = [sys.executable, "-m", "pytest", "-q", "-pno:xdist", "--t2e-model=m", "--t2e-seed=0"]
        command += [f"--t2e-base-url={server.base_url}", "--t2e-trials=2", "--t2e-concurrency=7"]
        drawn: dict[str, list[str]] = {}
        for number in (9, 17):
            server.release(number)
            served = server.count.served + number
            child = session_forks.popen(
                command, cwd=project.root, stdout=subprocess.DEVNULL, start_new_session=True
            )
            until(lambda served=served: server.count.served == served)
            # All that was answered has arrived, and is written down.
            until(lambda served=served: sum(map(len, written(project))) == served)
            os.killpg(child.pid, getattr(signal, by))
            child.wait(HANG_SECONDS)
            # The endpoint knows that nobody waits any more.
            until(lambda child=child: not group(child.pid) and not server.count.concurrent)
            now = journals(project)
            for name, before in drawn.items():
                assert now.get(name, before)[: len(before)] == before
            drawn |= now
        assert len(drawn) > 3
        server.release()
        last = project.pytester.run(*command)
    last.assert_outcomes(passed=7)
    assert journals(project) == {}
    made = [answers(one) for one in stored(project)]
    for texts in drawn.values():
        assert [one for one in made if one[: len(texts)] == texts], texts
    # No answer was drawn twice, and each is in one trace.
    assert Counter(text for one in made for text in one).most_common(1)[0][1] == 1
    assert server.count.served == sum(map(len, made))


def written(project: DeskProject) -> list[list[str]]:
    """The answers that are written down, in journals and in finished simulations."""
    return [*journals(project).values(), *map(answers, stored(project))]


class Broken(FaultPlan):
    """The endpoint fails from the second answer to the customer of task `note` on, while `on`."""

    def __init__(self, server: ChatServer) -> None:
        super().__init__({})
        self.server = server
        self.on = True

    def draw(self) -> Misbehaviour | None:
        messages = self.server.requests[-1]["messages"]
        later = len(messages) > 2 and SCENARIOS["note"] in str(messages[0]["content"])
        return Misbehaviour(Fault.SERVER_ERROR) if self.on and later else None


@pytest.fixture
def lost(project: DeskProject) -> Any:
    """A session that lost a trial in the middle, and its endpoint."""
    with ChatServer(Numbered()) as server:
        server.faults = broken = Broken(server)
        live(project, server, "-k", "note", "--t2e-concurrency=1")
        broken.on = False
        yield server


def test_a_lost_conversation_goes_on_where_it_was(project: DeskProject, lost: ChatServer) -> None:
    ((name, drawn),) = journals(project).items()
    served = lost.count.served
    assert len(drawn) == served >= 2
    live(project, lost, "-k", "note").assert_outcomes(passed=1)
    (trace,) = traces(project)
    said = answers(trace)
    assert said[: len(drawn)] == drawn
    assert [bool(one.get("cached")) for one in trace["messages"] if one.get("usage")] == [
        *[True] * len(drawn),
        *[False] * (len(said) - len(drawn)),
    ]
    used = json.loads((project.runs[-1] / "run.json").read_text())["usage"]
    assert used["calls"] == lost.count.served - served == len(said) - len(drawn)
    assert not (project.root / ".trace2evolve/finished" / name[:2] / name).exists()


def test_with_a_cache_it_is_the_same(project: DeskProject) -> None:
    with ChatServer(Numbered()) as server:
        server.faults = broken = Broken(server)
        live(project, server, "-k", "note", "--t2e-concurrency=1", "--t2e-cache")
        broken.on = False
        ((_, drawn),) = journals(project).items()
        live(project, server, "-k", "note", "--t2e-cache").assert_outcomes(passed=1)
    (trace,) = traces(project)
    assert answers(trace)[: len(drawn)] == drawn
    assert server.count.served == len(answers(trace))


def test_a_recording_draws_anew_and_is_whole(project: DeskProject, lost: ChatServer) -> None:
    live(project, lost, "-k", "note", "--t2e-record=note.jsonl").assert_outcomes(passed=1)
    recorded = answers(traces(project)[0])
    ((_, drawn),) = journals(project).items()
    assert not set(drawn) & set(recorded)
    asked = lost.count.attempts
    project.pytester.runpytest_inprocess("-k", "note", "--t2e-playback=note.jsonl").assert_outcomes(passed=1)
    assert answers(traces(project)[0]) == recorded
    assert lost.count.attempts == asked


@pytest.mark.parametrize("how", ["was deleted", "is damaged at line 1"])
def test_a_deleted_or_damaged_journal_is_a_usage_error(
    project: DeskProject, lost: ChatServer, how: str
) -> None:
    (path,) = (project.root / ".trace2evolve/finished").rglob("*.journal")
    text = path.read_text()
    path.unlink() if how == "was deleted" else path.write_text(text[1:])
    asked = lost.count.attempts
    result = live(project, lost, "-k", "note")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {path}: {how}*; restore it, use --t2e-fresh, or begin a new*"])
    assert lost.count.attempts == asked
    path.write_text(text)
    live(project, lost, "-k", "note").assert_outcomes(passed=1)


def test_a_world_that_is_not_deterministic_is_drawn_again_and_not_measured(
    project: DeskProject, lost: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = chat.agent_prompt
    with monkeypatch.context() as there:
        there.setattr(chat, "agent_prompt", lambda *texts: f"{real(*texts)}\nIt is another day.")
        live(project, lost, "-k", "note")
    note = "it was restarted after a kill or a loss, but its requests differed from before"
    (trace,) = traces(project)
    assert trace["info"]["redrawn"].startswith(note)
    assert trace["reward_info"] is None
    result = live(project, lost, "-k", "note")  # what is stored stays as it is
    assert result.parseoutcomes().get("passed", 0) == 0
    result.stdout.fnmatch_lines([f"*{note}*"])


def test_a_ledger_names_a_draw_before_its_first_answer_is_used(project: DeskProject) -> None:
    """Also if nothing is ever stored: the run was lost or killed in its first conversations."""
    with ChatServer(SOLVED) as server:
        seen: list[list[Path]] = []

        class Looks(FaultPlan):
            def draw(self) -> Misbehaviour | None:
                if len(server.requests[-1]["messages"]) > 2:
                    seen.append(list((project.root / "ledger").glob("*.json")))
                    return Misbehaviour(Fault.SERVER_ERROR)
                return None

        server.faults = Looks({})
        live(project, server, "-k", "note", "--t2e-fresh", "--t2e-concurrency=1")
    assert seen
    assert all(seen)
