"""banking_knowledge scores as tau2 1.0.1 does, although inspect_evals carries its tools from before."""

import functools
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.worlds import banking as corrections
from pytest_trace2evolve.worlds.inspect_evals import InspectWorld, data_folder
from pytest_trace2evolve.worlds.registry import Worlds
from pytest_trace2evolve.worlds.toolkit import ToolkitSession
from tests.worlds.upstream.variations import digest_of, sign_of, to_simulation, variations

EXPECTED = Path(__file__).parent / "upstream" / "banking.json"
"""The results of tau2's own evaluator; `upstream/freeze.py` writes the file."""

ACCOUNT = "chk_ar72c5d8e3_2"
CREDIT = "apply_checking_account_credit_5829"


@pytest.fixture
def banking(worlds: Worlds) -> World:
    return worlds.open("inspect_evals", "banking_knowledge")


def read_expected() -> dict[str, Any]:
    expected: dict[str, Any] = json.loads(EXPECTED.read_text(encoding="utf-8"))
    version = importlib.metadata.version("inspect_evals")
    if version != expected["versions"]["inspect_evals"]:
        pytest.skip(f"the expected values belong to inspect_evals {expected['versions']}, not to {version}")
    return expected


def test_varied_gold_traces_score_as_tau2s_own_evaluator_scores_them(banking: World) -> None:
    expected = read_expected()
    path = data_folder() / "banking_knowledge" / "tasks.json"
    records, seeds = json.loads(path.read_text(encoding="utf-8")), [0]
    assert digest_of(records, seeds) == expected["variations"]
    signs: dict[str, str] = {}
    for name, task_id, calls in variations(records, seeds):
        simulation = Simulation.model_validate(to_simulation(name, task_id, calls))
        result = score(simulation, banking.tasks()[task_id], banking)
        matched = "".join(str(int(check.matched)) for check in result.actions)
        database = None if result.db_match is None else int(result.db_match)
        key = f"{task_id}/{name.split('/')[2]}"
        signs[key] = signs.get(key, "") + sign_of(result.reward, database, matched)
    assert sum(map(len, signs.values())) == 97 * len(expected["edits"])
    differences = {
        f"{key}: {edit}": (own, upstream)
        for key, text in expected["results"].items()
        for edit, own, upstream in zip(expected["edits"], signs[key], text, strict=True)
        if own != upstream
    }
    assert differences == {}


def call_hidden(session: ToolkitSession, tool: str, arguments: str) -> str:
    session.call("unlock_discoverable_agent_tool", {"agent_tool_name": tool}, "assistant")
    call = {"agent_tool_name": tool, "arguments": arguments}
    return session.call("call_discoverable_agent_tool", call, "assistant").content


def credit(session: ToolkitSession, amount: str) -> str:
    text = f'{{"account_id": "{ACCOUNT}", "amount": {amount}, "credit_type": "fee_refund"}}'
    return call_hidden(session, CREDIT, text)


@functools.cache
def shared_world() -> InspectWorld:
    return InspectWorld("banking_knowledge")


@given(amount=st.integers(1, 10**6), digits=st.integers(1, 4))
def test_the_spelling_of_a_number_changes_nothing(amount: int, digits: int) -> None:
    world = shared_world()
    spellings = [str(amount), f"{amount}.{'0' * digits}", f"{amount}e0", f'"{amount}"']
    sessions = [world.open() for _ in spellings]
    for session, spelling in zip(sessions, spellings, strict=True):
        assert "rror" not in credit(session, spelling)
        assert session.same_state(sessions[0])
    assert not sessions[0].same_state(world.open())


def test_the_corrections_are_part_of_the_worlds_code(monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprints = {domain: InspectWorld(domain).fingerprint for domain in ("banking_knowledge", "retail")}
    monkeypatch.setattr(corrections, "REVISION", "another")
    assert InspectWorld("banking_knowledge").fingerprint != fingerprints["banking_knowledge"]
    assert InspectWorld("retail").fingerprint == fingerprints["retail"]
