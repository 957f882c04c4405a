"""Collateral changes: records that the agent changed and the gold actions leave alone."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve import World
from pytest_trace2evolve.cases.written import WrittenTask
from pytest_trace2evolve.evidence.results import read_results
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import World as AnyWorld
from pytest_trace2evolve.records.rules import Finding, Invariant
from pytest_trace2evolve.records.score import Score
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.invariants import breaches_in
from pytest_trace2evolve.scoring.metrics import count_breaches
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.session.evidence_sources import domain_of
from pytest_trace2evolve.worlds.registry import Worlds

IDS = ("B1", "B2", "B3", "B4")
ROWS = {key: {"guest": f"guest of {key}", "status": "open"} for key in IDS}
SHAPES: dict[str, Any] = {
    "mapping": {"bookings": ROWS, "version": 1},
    "list": {"bookings": [{"guest_id": "G1", "booking_id": key, **row} for key, row in ROWS.items()]},
    "group": {"hotel": {"north": {"bookings": ROWS}, "south": {"bookings": {}}}},
}
PLACES = {"mapping": "bookings.", "list": "bookings.", "group": "hotel.north.bookings."}


class DeskTools:
    def __init__(self, db: dict[str, Any]) -> None:
        self.db = db

    def cancel(self, booking_id: str) -> str:
        """Cancel a booking."""
        return self._set(booking_id, "cancelled")

    def reopen(self, booking_id: str) -> str:
        """Open a booking again."""
        return self._set(booking_id, "open")

    def cancel_all(self) -> str:
        """Cancel every booking."""
        return "".join(self._set(key, "cancelled") for key in IDS)

    def _set(self, booking_id: str, status: str) -> str:
        tables = self.db["hotel"]["north"] if "hotel" in self.db else self.db
        rows = tables["bookings"]
        rows = rows if isinstance(rows, dict) else {row["booking_id"]: row for row in rows}
        rows[booking_id]["status"] = status
        return "ok"


def desk(shape: str = "mapping") -> World:
    return World.from_tools(DeskTools, data=SHAPES[shape])


def call(name: str, **arguments: Any) -> tuple[str, str, dict[str, Any]]:
    return "assistant", name, arguments


def trace_of(world: AnyWorld, task: Task, calls: Any, *, solo: bool = False) -> list[Message]:
    """One message with a call, and its result, for each call; the session answers."""
    session = world.open(solo=solo)
    session.initialise(task.initial_state)
    trace = [] if solo else [Message(role="user", content="Please help.")]
    for number, (requestor, name, arguments) in enumerate(calls):
        made = ToolCall(id=f"c{number}", name=name, arguments=arguments, requestor=requestor)
        result = session.call(name, arguments, requestor)
        trace += [Message(role=requestor, tool_calls=[made]), result.to_message(made)]
    return [*trace, Message(role="assistant", content="Done.")]


def scored(
    world: AnyWorld, task: Task, calls: Any, end: str = "user_stop", *, solo: bool = False
) -> tuple[Score, tuple[Finding, ...] | None]:
    simulation = Simulation(
        id="s",
        task_id=task.id,
        trial=0,
        termination_reason=end,
        messages=trace_of(world, task, calls, solo=solo),
    )
    result = score(simulation, task, world)
    return result, breaches_in(simulation, result, world)


def task(**expect: Any) -> Task:
    return WrittenTask.model_validate({"id": "t", "user": {"goal": "Help me."}, "expect": expect}).to_task()


def cancels(*ids: str) -> dict[str, Any]:
    return {"calls": [{"name": "cancel", "arguments": {"booking_id": key}} for key in ids]}


def changed(findings: tuple[Finding, ...] | None) -> set[str]:
    assert findings is not None
    assert {finding.invariant for finding in findings} <= {Invariant.COLLATERAL_CHANGE}
    return {finding.why.split()[2].strip(",") for finding in findings}


@given(
    shape=st.sampled_from(sorted(SHAPES)),
    gold=st.lists(st.sampled_from(IDS), unique=True),
    own=st.lists(st.sampled_from(IDS)),
)
def test_the_findings_are_the_agents_records_without_the_gold_ones(
    shape: str, gold: list[str], own: list[str]
) -> None:
    findings = scored(desk(shape), task(**cancels(*gold)), [call("cancel", booking_id=key) for key in own])[1]
    assert changed(findings) == {PLACES[shape] + key for key in set(own) - set(gold)}


def test_a_finding_names_the_record_and_the_message_of_its_call() -> None:
    calls = [call("cancel", booking_id="B1"), call("cancel", booking_id="B3")]
    result, findings = scored(desk(), task(**cancels("B1")), calls)
    (finding,) = findings or ()
    assert (finding.message, finding.why) == (3, "cancel changed bookings.B3, as no gold action does")
    assert result.reward == 0
    assert count_breaches(findings or (), result) == {Invariant.COLLATERAL_CHANGE: 1}


def test_a_gold_record_with_a_wrong_value_is_none() -> None:
    calls = [call("cancel", booking_id="B1"), call("reopen", booking_id="B1")]
    result, findings = scored(desk(), task(**cancels("B1")), calls)
    assert (result.reward, findings) == (0.0, ())


def test_expected_data_may_change() -> None:
    of = task(data={"bookings": {"B1": {"status": "cancelled"}}})
    assert changed(scored(desk(), of, [call("cancel", booking_id="B1")])[1]) == set()
    both = [call("cancel", booking_id=key) for key in ("B1", "B2")]
    assert changed(scored(desk(), of, both)[1]) == {"bookings.B2"}
    assert changed(scored(desk(), task(data={}), both)[1]) == {"bookings.B1", "bookings.B2"}


@pytest.mark.parametrize("expect", [{"says": ["Done"]}, {"calls": ["cancel"]}, {"not_calls": ["reopen"]}])
def test_a_task_that_does_not_say_what_may_change_is_not_checked(expect: dict[str, Any]) -> None:
    result, findings = scored(desk(), task(**expect), [call("cancel", booking_id="B2")])
    assert (result.reward, result.collateral, findings) == (1.0, None, None)


TELECOM_START = [
    {
        "env_type": "user",
        "func_name": "set_user_info",
        "arguments": {"name": "John Smith", "phone_number": "555-123-2002"},
    },
    {
        "env_type": "assistant",
        "func_name": "suspend_line_for_overdue_bill",
        "arguments": {
            "customer_id": "C1001",
            "line_id": "L1002",
            "new_bill_id": "B9",
            "contract_ended": False,
        },
    },
]
TELECOM_GOLD = [
    ("assistant", "send_payment_request", {"customer_id": "C1001", "bill_id": "B9"}),
    ("user", "make_payment", {}),
    ("assistant", "resume_line", {"customer_id": "C1001", "line_id": "L1002"}),
]
STRANGER = ("assistant", "suspend_line", {"customer_id": "C1002", "line_id": "L1004", "reason": "stranger"})


def telecom_task(gold: list[Any], start: Any = TELECOM_START) -> Task:
    return Task.model_validate(
        {
            "id": "t",
            "user_scenario": {"instructions": "Pay."},
            "initial_state": {"initialization_actions": start},
            "evaluation_criteria": {
                "actions": [
                    {"action_id": str(number), "requestor": who, "name": name, "arguments": arguments}
                    for number, (who, name, arguments) in enumerate(gold)
                ],
                "env_assertions": [
                    {
                        "env_type": "assistant",
                        "func_name": "assert_no_overdue_bill",
                        "arguments": {"overdue_bill_id": "B9"},
                    }
                ],
                "reward_basis": ["ENV_ASSERTION"],
            },
        }
    )


@pytest.fixture(scope="module")
def telecom() -> AnyWorld:
    pytest.importorskip("inspect_evals")
    return Worlds().open("inspect_evals", "telecom")


def test_a_strangers_line_that_telecom_does_not_score_is_found(telecom: AnyWorld) -> None:
    result, findings = scored(telecom, telecom_task(TELECOM_GOLD), [*TELECOM_GOLD, STRANGER])
    assert result.reward == 1, "the reward of telecom does not see the line"
    assert changed(findings) == {"lines.L1004"}
    assert [finding.message for finding in findings or ()] == [7]
    assert changed(scored(telecom, telecom_task(TELECOM_GOLD), TELECOM_GOLD)[1]) == set()


def test_what_the_user_changes_is_not_the_agents(telecom: AnyWorld) -> None:
    """The user's payment changes a bill in the agent's database, which no gold action changes here."""
    payment = [*TELECOM_GOLD[1:], STRANGER]
    requested = {"env_type": "assistant", "func_name": TELECOM_GOLD[0][1], "arguments": TELECOM_GOLD[0][2]}
    of = telecom_task(TELECOM_GOLD[2:], [*TELECOM_START, requested])
    assert changed(scored(telecom, of, payment)[1]) == {"lines.L1004"}
    findings = scored(telecom, telecom_task(TELECOM_GOLD[2:]), [TELECOM_GOLD[0], *payment])[1]
    assert changed(findings) == {"bills.B9", "lines.L1004"}, "the agent's request changes the bill itself"


COUNTS = {
    "airline-claude-sonnet-4.5": 1,
    "airline-gpt-4.1": 5,
    "airline-gpt-4.1-sft": 2,
    "airline-grok-3-repeats-a": 16,
    "airline-grok-3-repeats-b": 11,
    "airline-qwen2.5-7b": 18,
    "retail-gpt-4.1": 1,
    "retail-gpt-4.1-mini-base": 12,
    "retail-gpt-4.1-mini-policy-v1": 8,
    "retail-gpt-4.1-mini-policy-v2": 11,
    "telecom-gpt-4.1": 9,
    "telecom-gpt-4.1-sft": 3,
    "telecom-solo-gpt-4.1": 11,
    "telecom-solo-gpt-4.1-sft": 3,
}
"""Recorded runs, and how many of their simulations have a collateral change."""


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_recorded_runs(recorded: Path, name: str) -> None:
    file = read_results(recorded / f"{name}.json.gz")
    world = Worlds().open("inspect_evals", domain_of(file))
    scores = [score(simulation, file.tasks[simulation.task_id], world) for simulation in file.simulations]
    assert sum(bool(each.collateral) for each in scores) == COUNTS[name]
    assert not any(each.collateral for each in scores if each.db_match)
