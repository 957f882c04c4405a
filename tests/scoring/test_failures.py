"""The explanation of a failed trial, from traces of the fake desk."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.failure import Difference, FailedCheck, Failure
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import WorldSession
from pytest_trace2evolve.records.task import Assertion, Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.failures import MAX_CHECKS, MAX_DIFFERENCES, MAX_MESSAGES, explain_failure
from tests.fake_world import TASKS, FakeSession, FakeWorld

Said = str | tuple[str, Mapping[str, Any]]


def trace(*said: Said) -> list[Message]:
    """A trace in which the agent says texts and makes calls, and the user ends."""
    messages = [Message(role="user", content="Hello")]
    for index, one in enumerate(said):
        if isinstance(one, str):
            messages.append(Message(role="assistant", content=one))
            continue
        call = ToolCall(id=str(index), name=one[0], arguments=dict(one[1]))
        messages += [
            Message(role="assistant", tool_calls=[call]),
            Message(role="tool", id=str(index), content="done", requestor="assistant"),
        ]
    return [*messages, Message(role="user", content="###STOP###")]


def simulation(messages: Sequence[Message], **fields: Any) -> Simulation:
    record = {"id": "s", "task_id": "t", "termination_reason": "user_stop", "trial": 2, **fields}
    return Simulation.model_validate({**record, "messages": [one.model_dump() for one in messages]})


def explain(task: Task | str, *said: Said, world: FakeWorld | None = None) -> Failure:
    found = TASKS[task] if isinstance(task, str) else task
    return explain_failure(simulation(trace(*said)), found, world or FakeWorld())


def having(task_id: str, **criteria: Any) -> Task:
    record = TASKS[task_id].model_dump()
    return Task.model_validate({**record, "evaluation_criteria": record["evaluation_criteria"] | criteria})


def test_the_database_difference_the_missing_call_and_the_missing_text() -> None:
    failure = explain("close", "Nothing was done.")
    assert failure.trial == 2
    assert failure.differences == (Difference(("tickets", "T1", "status"), "closed", "open"),)
    assert failure.failed_checks == (
        FailedCheck('missing call: close_ticket(ticket_id="T1")'),
        FailedCheck("not said by the agent: 'T1 is closed'"),
    )
    assert (failure.reason, failure.problem, failure.difference_count) == ("", "", 1)


CALLS_IN_TEXT = [
    '<tool_call>{"name": "close_ticket", "arguments": {}}</tool_call>',
    "[TOOL_CALLS] [close_ticket]",
    "<|python_tag|>close_ticket()",
    "<function=close_ticket>{}</function>",
    "<｜tool▁calls▁begin｜>close_ticket",
    "<|tool_calls_section_begin|>functions.close_ticket:0",
    '{"name": "close_ticket", "parameters": {"ticket_id": "T1"}}',
]


@pytest.mark.parametrize("text", CALLS_IN_TEXT)
def test_text_that_looks_like_a_call_is_named(text: str) -> None:
    first, *others = explain("close", f"Sure. {text}", text).failed_checks
    assert first.text == f"text that looks like a call, which nothing executes: {text!r}"
    assert first.detail == "check the endpoint's parser of tool calls"
    assert not any("looks like" in check.text for check in others)
    ended = explain_failure(
        simulation(trace(text), termination_reason="max_steps"), TASKS["close"], FakeWorld()
    )
    assert [check.text for check in ended.failed_checks] == [first.text]


def test_the_nearest_call_is_the_most_similar_one_of_the_same_tool() -> None:
    failure = explain(
        "note",
        ("write_note", {"ticket_id": "T2", "text": "call"}),
        ("write_note", {"ticket_id": "T1", "text": "call bak"}),
        ("close_ticket", {"ticket_id": "T1"}),
    )
    assert [check.detail for check in failure.failed_checks] == [
        'nearest call: write_note(ticket_id="T1", text="call bak")'
    ]
    assert [difference.path for difference in failure.differences] == [
        ("tickets", "T1", "status"),
        ("tickets", "T1", "note"),
        ("tickets", "T2", "note"),
    ]


def test_a_failed_assertion_is_shown_with_its_message() -> None:
    failure = explain("restart")
    assert failure.failed_checks == (FailedCheck("assertion failed: assert_restarts(expected=1)"),)
    assertion = {**TASKS["restart"].model_dump()["evaluation_criteria"]["env_assertions"][0]}
    denied = having(
        "restart",
        env_assertions=[
            {**assertion, "message": "restarted once"},
            {**assertion, "arguments": {"expected": 0}, "assert_value": False},
        ],
    )
    assert explain(denied).failed_checks == (
        FailedCheck("assertion failed: assert_restarts(expected=1)", "restarted once"),
        FailedCheck("assertion failed: not assert_restarts(expected=0)"),
    )


@pytest.mark.parametrize(
    ("forbidden", "shown"),
    [
        ({"name": "close_ticket"}, ["T1", "T2"]),
        ({"name": "close_ticket", "arguments": {"ticket_id": "T2"}}, ["T2"]),
        ({"name": "close_ticket", "arguments": {"ticket_id": "T3"}}, []),
        ({"name": "think"}, []),
    ],
)
def test_forbidden_calls_that_were_made_are_shown(forbidden: dict[str, Any], shown: list[str]) -> None:
    task = having("idle", forbidden_calls=[forbidden])
    calls = [("close_ticket", {"ticket_id": name}) for name in ("T1", "T2")]
    assert [check.text for check in explain(task, *calls).failed_checks] == [
        f'forbidden call: close_ticket(ticket_id="{name}")' for name in shown
    ]


def test_an_early_end_is_the_reason_and_only_messages_are_shown() -> None:
    messages = trace("One moment.")
    stuck = simulation(messages, termination_reason="max_steps")
    failure = explain_failure(stuck, TASKS["close"], FakeWorld())
    assert failure == Failure(2, "ended early: max_steps", last_messages=tuple(messages))
    broken = simulation([], termination_reason="agent_error", info={"error": "no\nmessage"})
    assert explain_failure(broken, TASKS["close"], FakeWorld()).reason == "ended early: agent_error"
    assert broken.agent_error is not None


def test_only_the_last_messages_and_the_first_differences_are_kept() -> None:
    tickets = {f"T{number}": {"status": "open", "note": ""} for number in range(10, 40)}
    actions = [{"name": "close_ticket", "arguments": {"ticket_id": name}} for name in tickets]
    task = Task.model_validate(
        {
            "id": "many",
            "initial_state": {"initialization_data": {"agent_data": {"tickets": tickets}}},
            "evaluation_criteria": {"actions": actions},
        }
    )
    failure = explain(task, *(f"text {number}" for number in range(20)))
    assert (len(failure.differences), failure.difference_count) == (MAX_DIFFERENCES, 30)
    assert len(failure.failed_checks) == MAX_CHECKS
    assert [message.content for message in failure.last_messages] == [
        *(f"text {number}" for number in range(15, 20)),
        "###STOP###",
    ]
    assert len(failure.last_messages) == MAX_MESSAGES


class Expecting(FakeSession):
    def compared_databases(self, assertion: Assertion) -> tuple[Any, Any] | None:
        changes = assertion.arguments.get("data")
        if changes is None:
            return None
        return {**self._state, "tickets": {**self._state["tickets"], **changes}}, self._state

    def _database_equals(self, data: dict[str, Any]) -> bool:
        return all(self._state["tickets"].get(name) == ticket for name, ticket in data.items())


class Broken(FakeSession):
    def same_state(self, other: WorldSession) -> bool:
        raise WorldError("the records\nare gone")


def opening(session: type[FakeSession]) -> FakeWorld:
    class World(FakeWorld):
        def open(self, *, solo: bool = False) -> FakeSession:
            return session(solo=solo)

    return World()


def test_an_assertion_over_the_whole_database_shows_the_differences() -> None:
    assertion = {
        "env_type": "assistant",
        "func_name": "database_equals",
        "arguments": {"data": {"T1": {"status": "closed", "note": "done"}}},
    }
    task = having("close", env_assertions=[assertion], reward_basis=["ENV_ASSERTION"])
    failure = explain(task, world=opening(Expecting))
    assert failure.differences == (
        Difference(("tickets", "T1", "status"), "closed", "open"),
        Difference(("tickets", "T1", "note"), "done", ""),
    )
    assert failure.failed_checks == ()
    both = having("close", env_assertions=[assertion], reward_basis=["DB", "ENV_ASSERTION"])
    paths = [difference.path[-1] for difference in explain(both, world=opening(Expecting)).differences]
    assert paths == ["status", "note"], "no place is shown twice"


def test_an_exception_of_the_world_is_named_and_the_rest_is_shown() -> None:
    failure = explain("close", world=opening(Broken))
    assert failure.problem == "the databases cannot be compared again: WorldError: the records are gone"
    assert len(failure.failed_checks) == 2
    assert failure.last_messages
