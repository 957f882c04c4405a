"""Helpers of the tests that cache, record and play back: sessions, and what was said in them."""

import json
import os
from pathlib import Path
from typing import Any

# Half a second: imported here once, and not again in every session that `pytester` runs in this process.
import openai  # noqa: F401
import pytest

import pytest_trace2evolve.engine.factories  # noqa: F401
from pytest_trace2evolve.testing import ChatServer
from tests.plugin.conftest import DeskProject
from tests.session.test_live import SOLVED, live, traces

ONE = "suites/desk.toml::heldout::close"
_RECORDED: list[str] = []


def said(project: DeskProject) -> list[tuple[str, int, list[tuple[object, ...]], object]]:
    """What was said and scored in the last run, ids and times apart."""
    return sorted(
        (
            str(one["task_id"]),
            one["trial"],
            [
                (message["role"], message.get("content"), json.dumps(message.get("tool_calls")))
                for message in one["messages"]  # type: ignore[attr-defined]
            ],
            (one["reward_info"] or {}).get("reward"),  # type: ignore[attr-defined]
        )
        for one in traces(project)
    )


def models_messages(project: DeskProject) -> list[dict[str, Any]]:
    """All messages of the last run that a model made."""
    return [message for one in traces(project) for message in one["messages"] if message.get("usage")]  # type: ignore[attr-defined]


def record(project: DeskProject, server: ChatServer, *arguments: str) -> Path:
    """Record a run, in this process; returns the cassette."""
    live(project, server, "--t2e-record=tapes/desk.jsonl", *arguments)
    return project.root / "tapes" / "desk.jsonl"


@pytest.fixture
def tape(project: DeskProject) -> Path:
    """A cassette of the whole suite, recorded once in a process; no key is set."""
    if not _RECORDED:
        with ChatServer(SOLVED) as server:
            _RECORDED.append(record(project, server).read_text())
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        os.environ.pop(name, None)
    return project.write("tapes/desk.jsonl", _RECORDED[0])


def play(project: DeskProject, *arguments: str) -> pytest.RunResult:
    """Play the cassette back, in this process."""
    return project.pytester.runpytest_inprocess("--t2e-playback=tapes/desk.jsonl", *arguments)
