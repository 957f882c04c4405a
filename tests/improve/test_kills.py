"""Searches that are killed without warning, and resumed: nothing is lost, and no answer is paid for twice.

`T2E_KILLS=30 pytest tests/improve/test_kills.py` kills thirty times instead of a few.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_trace2evolve.project.project import Project
from pytest_trace2evolve.testing import ChatServer
from tests.improve.searches import BAD, GOOD, IDLE, RuleAgent, rows, state, write_project
from tests.patience import until

KILLS = int(os.environ.get("T2E_KILLS", "3"))

pytestmark = pytest.mark.timeout(300 + 60 * KILLS)


def command(project: Project, server: ChatServer) -> list[str]:
    model = [
        "--reflect-model",
        "reflector",
        f"-ot2e_reflect_base_url={server.base_url}",
        "--max-proposals",
        "4",
    ]
    run = ["--t2e-model=scripted", f"--t2e-base-url={server.base_url}", "--t2e-cache", "--t2e-concurrency=1"]
    search = ["improve", "--suite", "small", "--proposer", "reflect", *model, "--", *run]
    return [sys.executable, "-m", "pytest_trace2evolve", "--root", str(project.root), *search]


def agent(project: Project) -> RuleAgent:
    proposals = [{"hypothesis": rule, "instruction": rule} for rule in (BAD, GOOD, IDLE)]
    return RuleAgent(project.root, [*map(json.dumps, proposals), "no proposal"])


def test_killed_at_random_points_a_search_loses_nothing_and_pays_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-0123456789")
    whole, killed = (write_project(tmp_path / name) for name in ("whole", "killed"))
    with ChatServer(agent(whole)) as server:
        assert subprocess.run(command(whole, server), cwd=whole.root).returncode == 0
    served = server.count.served
    points = sorted(random.Random(KILLS).sample(range(1, served - 1), KILLS))
    with ChatServer(agent(killed)) as server:
        for point in points:
            answers, asked = point - server.count.served, len(server.requests)
            server.release(answers)
            child = subprocess.Popen(command(killed, server), cwd=killed.root, start_new_session=True)
            # The next request shows that the last answer has arrived.
            until(
                lambda last=asked + answers, child=child: (
                    len(server.requests) > last or child.poll() is not None
                )
            )
            assert child.poll() is None
            child.kill()
            child.wait()
            assert server.count.served == point
        server.release()
        assert subprocess.run(command(killed, server), cwd=killed.root).returncode == 0
    assert server.count.served == served
    assert rows(killed) == rows(whole)
    found, expected = state(killed), state(whole)
    assert found.simulations_of() == expected.simulations_of()
