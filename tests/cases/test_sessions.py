"""Whole sessions over the frozen cases: a `chat` agent on the loopback server, and the scripted customer."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cases.case import read_cases
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply, case_script
from tests.plugin.conftest import REPOSITORY, DeskProject, project

__all__ = ["project"]

FROZEN = read_cases(REPOSITORY / "synthetic" / "pressure.jsonl")
SUITE = """\
provider = "trace2evolve"
domain = "support"
max_steps = 60

[splits]
synthetic = { cases = "synthetic/pressure.jsonl" }
"""


@pytest.fixture
def cases(project: DeskProject, monkeypatch: pytest.MonkeyPatch) -> DeskProject:
    """A project with the frozen cases, without a line of its own about them."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any")
    project.write("synthetic/pressure.jsonl", (REPOSITORY / "synthetic/pressure.jsonl").read_text("utf-8"))
    project.write("suites/support.toml", SUITE)
    project.lock()
    return project


def session(project: DeskProject, server: ChatServer, *arguments: str) -> list[dict[str, Any]]:
    """The simulations of a session over the frozen cases."""
    options = ("--t2e-suite=support", "-m", "synthetic", "--t2e-model=scripted", "--t2e-gate=off")
    project.pytester.runpytest_inprocess("suites", *options, f"--t2e-base-url={server.base_url}", *arguments)
    return simulations(project.runs[-1])


def simulations(run: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text("utf-8")) for path in sorted(run.glob("simulations/*.json"))]


def said(records: Iterable[dict[str, Any]]) -> dict[str, list[Any]]:
    """What was said and called, by case: without times and ids."""
    return {
        record["task_id"]: [
            (
                message["role"],
                message.get("content"),
                [(call["name"], call["arguments"]) for call in message.get("tool_calls") or ()],
            )
            for message in record["messages"]
        ]
        for record in records
    }


def solved(records: list[dict[str, Any]]) -> None:
    """Every frozen case is let go by its customer, and passes."""
    assert sorted(record["task_id"] for record in records) == sorted(case.id for case in FROZEN)
    assert {record["termination_reason"] for record in records} == {"user_stop"}
    assert {record["reward_info"]["reward"] for record in records} == {1.0}


def test_a_talkative_model_solves_every_frozen_case_the_same_way_each_time(cases: DeskProject) -> None:
    with ChatServer(case_script(case.task for case in FROZEN)) as server:
        first = session(cases, server, "--t2e-seed=7")
        again = session(cases, server, "--t2e-seed=7", "--t2e-fresh", "-k=missing_order_id")
    solved(first)
    assert len(again) == 6
    assert said(again).items() <= said(first).items()


def test_a_model_that_talks_nonsense_is_left_by_every_customer(cases: DeskProject) -> None:
    words = (
        "The moon is a quiet place.",
        "Hm.",
        "42, perhaps?",
        "Let me think about that.",
        "Which one was it?",
    )

    def script(request: ChatRequest) -> Reply:
        return Reply(words[len(request.messages) % len(words)])

    with ChatServer(script) as server:
        records = session(cases, server)
    right = {case.id: float(case.script.refuses_all) for case in FROZEN}
    assert len(records) == len(FROZEN)
    assert {record["termination_reason"] for record in records} == {"user_stop"}
    assert {record["task_id"]: record["reward_info"]["reward"] for record in records} == right
