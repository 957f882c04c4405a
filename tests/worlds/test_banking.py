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
from pytest_trace2evolve.records.task import Action
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
READ = "get_all_user_accounts_by_user_id_3847"


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


@pytest.mark.parametrize("is_gold", [False, True])
def test_a_read_counts_only_if_a_gold_action_makes_it(banking: InspectWorld, is_gold: bool) -> None:
    reading, gold = banking.open(), banking.open()
    assert "Error" not in call_hidden(reading, READ, '{"user_id": "lj82d4f1a9"}')
    if is_gold:
        unlock = {"agent_tool_name": READ}
        for name, arguments in (
            ("unlock_discoverable_agent_tool", unlock),
            ("call_discoverable_agent_tool", {**unlock, "arguments": '{"user_id": "lj82d4f1a9"}'}),
        ):
            gold.perform(Action(name=name, arguments=arguments))
    assert reading.same_state(gold)
    assert gold.same_state(banking.open()) is not is_gold


@pytest.mark.parametrize("amount", ['"much"', "[]", "{}", '"$5"'])
def test_an_amount_that_is_no_number_is_an_error_and_a_logged_call(
    banking: InspectWorld, amount: str
) -> None:
    session = banking.open()
    assert credit(session, amount) == "Error: Invalid credit amount. Must be a number."
    assert not session.same_state(banking.open())  # as in tau2, which logs the call of a writing tool


def test_a_fraction_of_a_dollar_is_no_limit_and_an_unknown_argument_is_no_call(banking: InspectWorld) -> None:
    session = banking.open()
    tool = "submit_credit_limit_increase_request_7392"
    request = {"credit_card_account_id": "a", "user_id": "b", "requested_increase_amount": 0.5}
    assert "whole number" in call_hidden(session, tool, json.dumps(request))
    answer = call_hidden(banking.open(), tool, json.dumps({**request, "note": ""}))
    assert answer.startswith("Error: Invalid arguments: ")
    limit = '{"card_id": "a", "limit_type": "atm", "new_limit": 2.5}'
    answer = call_hidden(session, "request_temporary_debit_card_limit_increase_8374", limit)
    assert answer == "Error: new_limit must be an integer, got '2.5'."


def test_tau2_stores_no_report_of_an_interest_discrepancy(banking: InspectWorld) -> None:
    sessions = banking.open(), banking.open()
    for session, amount in zip(sessions, (1, 2), strict=True):
        report = {"account_id": ACCOUNT, "user_id": "ar72c5d8e3", "expected_apy": amount, "actual_apy": 0}
        text = json.dumps({**report, "amount_difference": amount})
        assert "Submitted" in call_hidden(session, "submit_interest_discrepancy_report_7294", text)
    assert sessions[0].same_state(sessions[1])
    assert sessions[0].databases()["agent"]["interest_discrepancy_reports"] is None


def test_the_corrections_are_part_of_the_worlds_code(monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprints = {domain: InspectWorld(domain).fingerprint for domain in ("banking_knowledge", "retail")}
    monkeypatch.setattr(corrections, "REVISION", "another")
    assert InspectWorld("banking_knowledge").fingerprint != fingerprints["banking_knowledge"]
    assert InspectWorld("retail").fingerprint == fingerprints["retail"]
