"""Runs that are killed without warning, many times, and go on: nothing finished is repeated or lost.

`T2E_KILLS=100 pytest tests/session/test_kills.py` kills a hundred times instead of a few.
"""

import json
import os
import random
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.testing import ChatServer
from tests.patience import until
from tests.plugin.conftest import DeskProject, project
from tests.session.test_live import SCENARIOS, SECRET, SOLVED

__all__ = ["project"]

KILLS = int(os.environ.get("T2E_KILLS", "2"))
TASK = re.compile(r"\(task <(.*?)>\)")

pytestmark = pytest.mark.timeout(300 + 60 * KILLS)


def simulation_of(request: dict[str, Any]) -> tuple[str, int]:
    """The task and trial that a request belongs to; the trial is its seed."""
    system = request["messages"][0]["content"]
    named = next(
        (name for name, text in SCENARIOS.items() if text and f"<scenario>\n{text}\n" in system), None
    )
    if named is None:
        named = next(
            found[1] for one in request["messages"][1:] if (found := TASK.search(str(one["content"])))
        )
    return named, request["seed"]


@dataclass
class Store:
    """What is finished, and how it lay on the disk when it was first seen."""

    folder: Path
    seen: dict[Path, bytes] = field(default_factory=dict)

    def look(self) -> set[tuple[str, int]]:
        """Take in what is finished by now; what was there before must be as it was."""
        there = {path: path.read_bytes() for path in self.folder.rglob("*.json")}
        assert self.seen.items() <= there.items()
        self.seen = there
        records = [json.loads(text) for text in there.values()]
        finished = {(record["task_id"], record["trial"]) for record in records}
        assert len(finished) == len(records)
        return finished


def test_killed_at_any_point_a_run_goes_on_where_it_stopped(
    project: DeskProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    rng = random.Random(KILLS)
    trials = 5 * KILLS
    store = Store(project.root / ".trace2evolve" / "finished")
    repeated = []
    with ChatServer(SOLVED) as server:
        command = [sys.executable, "-m", "pytest", "-q", "--t2e-model=m", "--t2e-seed=0"]
        command += [f"--t2e-base-url={server.base_url}", f"--t2e-trials={trials}", "--t2e-concurrency=2"]
        for _ in range(KILLS):
            finished, asked = store.look(), len(server.requests)
            # Enough answers for some simulations, and too few for all.
            answers = rng.randint(30, 60)
            last = server.count.served + answers
            server.release(answers)
            child = subprocess.Popen(command, cwd=project.root, stdout=subprocess.DEVNULL)
            until(lambda last=last: server.count.served == last)
            child.kill()
            child.wait()
            repeated += [one for one in map(simulation_of, server.requests[asked:]) if one in finished]
        finished, asked = store.look(), len(server.requests)
        assert 0 < len(finished) < 7 * trials
        command[-1] = "--t2e-concurrency=32"
        server.release()
        last = subprocess.run(command, cwd=project.root, capture_output=True, text=True)
        repeated += [one for one in map(simulation_of, server.requests[asked:]) if one in finished]
    assert repeated == []
    assert len(store.look()) == 7 * trials
    assert "7 passed" in last.stdout, last.stdout
