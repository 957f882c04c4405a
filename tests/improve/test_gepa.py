"""GEPA as the proposer of a search. GEPA is in its own extra: `make test-libraries` runs this module."""

import importlib.util
from pathlib import Path

import pytest

from pytest_trace2evolve.improve.gepa import MINIBATCH_SIZE
from pytest_trace2evolve.testing import ChatServer
from tests.improve.searches import BAD, GOOD, RuleAgent, improve, rows, state, write_project

has_gepa = importlib.util.find_spec("gepa") is not None
needs_gepa = pytest.mark.skipif(not has_gepa, reason="needs gepa: make test-libraries")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-0123456789")


@needs_gepa
def test_gepa_proposes_and_the_search_counts(tmp_path: Path) -> None:
    project = write_project(tmp_path)
    bad_answers = ["", "```\n" + 30_000 * "x" + "\n```"]
    agent = RuleAgent(project.root, [f"```\n{rule}\n```" for rule in (BAD, GOOD)] + bad_answers)
    count = str(2 + len(bad_answers))
    arguments = ["--proposer", "gepa", "--reflect-model", "reflector", "--max-proposals", count]
    with ChatServer(agent) as server:
        assert improve(project, server, *arguments, f"-ot2e_reflect_base_url={server.base_url}") == 0
        found = sorted(rows(project), key=lambda row: row["candidate"])
        used = state(project)
        assert (used.usage.calls, used.usage.prompt_tokens) == (
            server.count.served,
            server.count.prompt_tokens,
        )
        # Rerun, it repeats the stored answers.
        served = server.count.served
        assert improve(project, server, *arguments, f"-ot2e_reflect_base_url={server.base_url}") == 0
        assert server.count.served == served
    assert [row["status"] for row in found] == ["discard", "keep", "discard", "discard"]
    assert all(row["verdict"].startswith("rejected: ") for row in found[2:])
    kept = project.candidates[found[1]["candidate"]]
    assert (kept.instruction, kept.informed_by) == (GOOD, ("small::discovery",))
    assert kept.hypothesis == f"GEPA: a reflection on {MINIBATCH_SIZE} conversations of v0"
    # GEPA asked for nothing that the search had not measured.
    assert (
        used.simulations_of("v0-1") + used.simulations_of("v0-2")
        == sum(len(used.rewards[name]) for name in ("v0-1", "v0-2")) + 20
    )
    assert len(agent.asked) == int(count)
    shown = "\n".join(str(message["content"]) for request in agent.asked for message in request.messages)
    assert "evaluation_criteria" not in shown
    assert "reward 0.00 of 1" in shown


@pytest.mark.skipif(has_gepa, reason="gepa is installed")
def test_without_gepa_the_extra_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = write_project(tmp_path)
    with ChatServer(RuleAgent(project.root)) as server:
        assert improve(project, server, "--proposer", "gepa", "--reflect-model", "m") == 2
    assert "pip install 'pytest-trace2evolve[gepa]'" in capsys.readouterr().err
