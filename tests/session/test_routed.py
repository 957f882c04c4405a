"""Routing at an endpoint, in whole sessions: who is asked which adapter, and what cannot be routed."""

import json
from collections import Counter

import pytest

from pytest_trace2evolve.records.adapter import AdapterState
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply
from tests.adapter_folders import write_adapter
from tests.plugin.conftest import DeskProject, letters, project
from tests.session.test_live import SOLVED

__all__ = ["letters", "project"]


def routing(request: ChatRequest) -> bool:
    return request.body.get("max_tokens") == 1


def labelled(request: ChatRequest) -> str:
    """The letter of the line of adapter `two`."""
    [line] = [line for line in request.system.splitlines() if "What two is." in line]
    return line[0]


def script(request: ChatRequest) -> Reply:
    if routing(request):
        right = labelled(request)
        return Reply(right, first_tokens={right: -0.1, "Z": -3.0})
    return SOLVED(request)


@pytest.fixture
def adapted(project: DeskProject, monkeypatch: pytest.MonkeyPatch) -> DeskProject:
    """A project with two promoted adapters, and one that is not."""
    monkeypatch.setenv("OPENAI_API_KEY", "good")
    for name in ("one", "two"):
        write_adapter(project.root / "adapters", name, state=AdapterState.PROMOTED)
    write_adapter(project.root / "adapters", "three")
    return project


def session(project: DeskProject, server: ChatServer, *arguments: str) -> pytest.RunResult:
    return project.pytester.runpytest_inprocess(
        "--t2e-model=base", f"--t2e-base-url={server.base_url}", "--candidate=v0+routed", *arguments
    )


def test_the_adapter_of_the_chosen_capability_answers(adapted: DeskProject) -> None:
    with ChatServer(script) as server:
        session(adapted, server).assert_outcomes(passed=7)
    found = [json.loads(path.read_text())["messages"] for path in adapted.runs[-1].glob("simulations/*.json")]
    chosen = Counter(one["routing"]["chosen"] for trace in found for one in trace if one.get("routing"))
    assert chosen == {"two": 7}
    asked = Counter(request["model"] for request in server.requests if request["max_tokens"] > 1)
    assert set(asked) == {"base", "base+two"}, "the customer is the base, the agent the adapter"
    assert sum(request["max_tokens"] == 1 for request in server.requests) == 7 * 3, "once for each label"


def test_an_endpoint_without_log_probabilities_scores_nothing(adapted: DeskProject) -> None:
    with ChatServer(SOLVED) as server:
        result = session(adapted, server)
    assert result.ret != 0
    assert (
        "does not send log-probabilities, but routing needs those of the first token" in result.stdout.str()
    )
    assert "passed" not in result.parseoutcomes()
