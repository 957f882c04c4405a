"""The cache of answers in whole sessions against a chat endpoint on loopback."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from pytest_trace2evolve.testing import ChatServer
from tests.plugin.conftest import DeskProject, project
from tests.session.tapes import ONE, models_messages, said
from tests.session.test_live import SOLVED, key, live

__all__ = ["key", "project"]


def test_cached_answers_are_not_asked_for_again(project: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        live(project, server, "--t2e-fresh", "--t2e-cache").assert_outcomes(passed=7)
        served = server.count.served
        first, made = said(project), models_messages(project)
        live(project, server, "--t2e-fresh", "--t2e-cache").assert_outcomes(passed=7)
        assert server.count.served == served
        assert said(project) == first
        assert not any("cached" in message for message in made)
        taken = models_messages(project)
        assert all(message["cached"] for message in taken)
        usage = [sorted(json.dumps(item["usage"]) for item in messages) for messages in (made, taken)]
        assert usage[0] == usage[1]


def test_the_cache_does_not_mix_endpoints_trials_or_seeds(project: DeskProject) -> None:
    with ChatServer(SOLVED) as item, ChatServer(SOLVED) as other:
        live(project, item, "--t2e-cache", ONE)
        served = item.count.served
        live(project, other, "--t2e-cache", ONE)
        assert other.count.served == served
        live(project, item, "--t2e-cache", "--t2e-trials=2", "--t2e-fresh", ONE)
        assert item.count.served == 2 * served
        live(project, item, "--t2e-cache", "--t2e-seed=0", ONE)
        assert item.count.served == 3 * served


@pytest.mark.parametrize(
    "damage",
    [
        b"no database at all, and long enough to be one" * 50,
    ],
)
def test_a_damaged_cache_is_named(project: DeskProject, damage: bytes | None) -> None:
    cache = project.root / ".trace2evolve" / "cache.sqlite"
    with ChatServer(SOLVED) as server:
        live(project, server, "--t2e-cache").assert_outcomes(passed=7)
        content = cache.read_bytes()
        cache.write_bytes(damage or content[:4096] + b"\xa5" * (len(content) - 4096))
        result = live(project, server, "--t2e-cache", "--t2e-fresh")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(
            [f"ERROR: {cache}: is damaged or unreadable (*); delete it; the next run starts a new cache"]
        )
        cache.unlink()
        live(project, server, "--t2e-cache", "--t2e-fresh").assert_outcomes(passed=7)


def test_a_killed_run_leaves_a_cache_that_the_next_one_uses(project: DeskProject) -> None:
    with ChatServer(SOLVED, latency=0.01) as server:
        command = [
            sys.executable, "-m", "pytest", "-q", "--t2e-model=m", f"--t2e-base-url={server.base_url}",
            "--t2e-cache", "--t2e-fresh", "--t2e-trials=8",
        ]  # fmt: skip
        asked = 0
        for _ in range(2):
            child = subprocess.Popen(
                command,
                cwd=project.root,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            asked = server.count.served
            while server.count.served < asked + 40 and child.poll() is None:
                time.sleep(0.005)
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        result = live(project, server, "--t2e-cache", "--t2e-fresh", "--t2e-trials=8")
        result.assert_outcomes(passed=7)
        made = len(models_messages(project))
        # Each kill costs at most the answers that were on their way: 16 slots.
        assert server.count.served <= made + 2 * 16
