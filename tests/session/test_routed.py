"""Routing at an endpoint, in a whole session: the embedded model's router chooses the adapter."""

import json
from collections import Counter
from pathlib import Path

import pytest

from pytest_trace2evolve.agents.probe import PROBE_FILE
from pytest_trace2evolve.records.adapter import AdapterState
from pytest_trace2evolve.testing import ChatServer
from pytest_trace2evolve.utils.resources import embedded_model
from tests.adapter_folders import write_adapter, write_router
from tests.plugin.conftest import DeskProject, letters, project
from tests.session.test_live import SOLVED

__all__ = ["letters", "project"]


@pytest.fixture
def adapted(project: DeskProject, monkeypatch: pytest.MonkeyPatch) -> DeskProject:
    """A project with two promoted adapters, and one that is not."""
    monkeypatch.setenv("OPENAI_API_KEY", "good")
    for name in ("one", "two"):
        write_adapter(project.root / "adapters", name, state=AdapterState.PROMOTED)
    write_adapter(project.root / "adapters", "three")
    return project


def session(project: DeskProject, server: ChatServer) -> pytest.RunResult:
    return project.pytester.runpytest_inprocess(
        "--t2e-model=base", f"--t2e-base-url={server.base_url}", "--candidate=v0+routed"
    )


@pytest.mark.usefixtures("forked_servers")
def test_the_adapter_of_the_chosen_capability_answers(adapted: DeskProject) -> None:
    write_router(adapted.root / "adapters" / PROBE_FILE, embedded_model(), "two")
    with ChatServer(SOLVED) as server:
        session(adapted, server).assert_outcomes(passed=7)
    found = [json.loads(path.read_text())["messages"] for path in adapted.runs[-1].glob("simulations/*.json")]
    chosen = Counter(one["routing"]["chosen"] for trace in found for one in trace if one.get("routing"))
    assert set(chosen) == {"two"}
    assert chosen["two"] >= 7, "at each turn of the customer"
    assert {request["model"] for request in server.requests} == {"base", "base+two"}


def refused(result: pytest.RunResult, message: str) -> None:
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()


def test_a_missing_or_stale_router_is_refused(adapted: DeskProject, tmp_path: Path) -> None:
    path = adapted.root / "adapters" / PROBE_FILE
    with ChatServer(SOLVED) as server:
        refused(session(adapted, server), f"{path}: no such file; train it with: trace2evolve train --router")
        write_router(path, embedded_model(), "two", base_digest="0" * 32)
        refused(session(adapted, server), f"{path}: was trained on a different base than {embedded_model()}")
        write_router(path, embedded_model(), "three", labels=("three", "none"))
        refused(
            session(adapted, server), "of this run for a capability of the router; promoted: one (of 'base')"
        )
    assert not server.requests
