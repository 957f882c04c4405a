"""Calls that a written task forbids: they make ACTION 0, and change nothing for tasks that forbid none."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.cases.written import WrittenTask
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.score import Check, Score
from pytest_trace2evolve.records.task import RewardBasis, Task
from pytest_trace2evolve.scoring.reward import score
from tests.plain_worlds import hotel, simulation_of, trace_of

WORLD = hotel()


def task(*not_calls: Any, **expect: Any) -> Task:
    expectations = {"not_calls": list(not_calls), **expect}
    given = {name: value for name, value in expectations.items() if value != []}
    return WrittenTask.model_validate({"id": "t", "user": {"goal": "Cancel B17."}, "expect": given}).to_task()


def scored(of: Task, *calls: tuple[str, dict[str, Any]]) -> Score:
    return score(simulation_of(of, trace_of(WORLD, *calls)), of, WORLD)


@pytest.mark.parametrize(
    ("forbidden", "call", "reward"),
    [
        ("refund", ("refund", {"booking_id": "B17"}), 0),
        ("refund", ("cancel_booking", {"booking_id": "B17"}), 1),
        ({"name": "refund", "arguments": {"booking_id": "B17"}}, ("refund", {"booking_id": "B17"}), 0),
        ({"name": "refund", "arguments": {"booking_id": "B17"}}, ("refund", {"booking_id": "B18"}), 1),
        (
            {"name": "refund", "arguments": {"booking_id": "B17"}},
            ("refund", {"booking_id": "B17", "amount": 5}),
            0,
        ),
        (
            {"name": "refund", "arguments": {"booking_id": "B17", "amount": 5}},
            ("refund", {"booking_id": "B17"}),
            1,
        ),
        ("refund", ("refund", {"booking_id": "no such booking"}), 0),
        ("no_such_tool", ("no_such_tool", {}), 0),
    ],
    ids=["name", "other tool", "arguments", "other arguments", "more", "fewer", "failing", "unknown tool"],
)
def test_a_forbidden_call_makes_the_action_component_0(
    forbidden: Any, call: tuple[str, dict[str, Any]], reward: int
) -> None:
    result = scored(task(forbidden), call)
    assert (result.reward, result.components[RewardBasis.ACTION]) == (reward, reward)
    (check,) = result.forbidden_calls
    assert check.met is bool(reward)
    assert check.wanted["name"] == (forbidden if isinstance(forbidden, str) else forbidden["name"])


def test_calls_of_the_history_and_of_the_user_are_not_the_agents() -> None:
    call = ToolCall(id="h", name="refund", arguments={"booking_id": "B18"})
    of = task("refund")
    of = of.model_copy(
        update={
            "initial_state": Task.model_validate(
                {
                    "id": "x",
                    "initial_state": {
                        "message_history": [
                            {"role": "user", "content": "Refund B18."},
                            {"role": "assistant", "tool_calls": [call.model_dump()]},
                            {"role": "tool", "id": "h", "content": "Refunded.", "requestor": "assistant"},
                            {"role": "assistant", "content": "Done."},
                        ]
                    },
                }
            ).initial_state
        }
    )
    later = [Message(role="user", content="Bye. ###STOP###")]
    assert score(simulation_of(of, [*of.history, *later]), of, WORLD).reward == 1
    own = [
        Message(role="user", content="Again."),
        Message(role="assistant", tool_calls=[call.model_copy(update={"id": "n"})]),
        Message(role="tool", id="n", content="Refunded.", requestor="assistant"),
    ]
    assert score(simulation_of(of, [*of.history, *own, *later]), of, WORLD).reward == 0
    users = [
        Message(role="user", tool_calls=[call.model_copy(update={"id": "u", "requestor": "user"})]),
        Message(role="tool", id="u", content="Refunded.", requestor="user"),
    ]
    assert score(simulation_of(of, [*of.history, *users, *later]), of, WORLD).reward == 1


@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(["get_booking", "cancel_booking", "refund"]),
            st.sampled_from([{"booking_id": "B17"}, {"booking_id": "B18"}, {}]),
        ),
        max_size=4,
    ),
    says=st.lists(st.sampled_from(["done", "never said"]), max_size=1),
)
def test_scores_of_tasks_that_forbid_nothing_are_unchanged(
    calls: list[tuple[str, dict[str, Any]]], says: list[str]
) -> None:
    plain = task(calls=[{"name": "cancel_booking", "arguments": {"booking_id": "B17"}}], says=says)
    result = scored(plain, *calls)
    assert result.forbidden_calls == ()
    assert "forbidden_calls" not in json.dumps(plain.model_dump(mode="json", exclude_unset=True))
    # A ban of a call that is not made changes neither the reward nor any other field.
    unrelated = task(
        "other_tool", calls=[{"name": "cancel_booking", "arguments": {"booking_id": "B17"}}], says=says
    )
    banned = scored(unrelated, *calls)
    assert banned.model_copy(update={"forbidden_calls": ()}) == result
    assert banned.forbidden_calls == (Check(wanted={"name": "other_tool"}, met=True),)
    assert plain.digest != unrelated.digest
