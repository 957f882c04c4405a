"""The oracle of synthetic cases, and customer scripts as files hold them."""

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.agents.reference import CaseOracle, proposal_text
from pytest_trace2evolve.cases.case import Case, read_cases
from pytest_trace2evolve.errors import CaseError
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.task import SCRIPT_KEY, Action, Task, script_of
from pytest_trace2evolve.users.message_parser import parse_message

FROZEN = read_cases(Path(__file__).resolve().parents[2] / "synthetic" / "pressure.jsonl")
CANCELS = next(case for case in FROZEN if case.script.family == "missing_order_id")
WRITES = frozenset(item.name for item in CANCELS.task.actions if not item.name.startswith(("find", "get")))

SCRIPTED = CANCELS.script.model_dump(mode="json")
REPLIES, TURN = SCRIPTED["replies"], SCRIPTED["turns"][0]


def says(text: str) -> Message:
    return Message(role="user", content=text)


def answers(case: Case, trace: list[Message], writes: frozenset[str] = WRITES) -> Message:
    return asyncio.run(CaseOracle(case.task, case.script, writes).respond(trace))


def called(action: Action, place: int) -> list[Message]:
    call = ToolCall(id=f"call_{place}", name=action.name, arguments=action.arguments)
    return [
        Message(role="assistant", tool_calls=[call]),
        Message(role="tool", id=call.id, content="{}", requestor="assistant"),
    ]


def opened(case: Case, done: int) -> list[Message]:
    """A trace in which the customer has opened, and so many gold actions are performed."""
    trace = [Message(role="assistant", content="Hi!"), says(case.script.turns[0].says)]
    for place, action in enumerate(case.task.actions[:done]):
        trace += called(action, place)
    return trace


def test_it_performs_the_gold_actions_in_order() -> None:
    for done, action in enumerate(CANCELS.task.actions):
        message = answers(CANCELS, opened(CANCELS, done), writes=frozenset())
        assert message.tool_calls is not None
        assert [(item.name, item.arguments) for item in message.tool_calls] == [
            (action.name, action.arguments)
        ]


def test_before_a_write_it_asks_for_a_yes_once() -> None:
    [place] = [at for at, item in enumerate(CANCELS.task.actions) if item.name in WRITES]
    action = CANCELS.task.actions[place]
    trace = opened(CANCELS, place)
    asked = answers(CANCELS, trace)
    assert asked.content == proposal_text(action)
    assert parse_message(asked.content or "").asks_for_confirmation
    written = answers(CANCELS, [*trace, asked, says("Yes.")])
    assert [item.name for item in written.tool_calls or ()] == [action.name]


def damaged(**changes: Any) -> Task:
    """A case's task with a damaged script; None removes a field."""
    record = copy.deepcopy(CANCELS.task.model_dump(mode="json"))
    script = record["user_scenario"][SCRIPT_KEY]
    script.update({name: value for name, value in changes.items() if value is not None})
    for name in [name for name, value in changes.items() if value is None]:
        del script[name]
    return Task.model_validate(record)


@pytest.mark.parametrize(
    ("changes", "message_text"),
    [
        ({"turns": []}, "turns: Tuple should have at least 1 item"),
        ({"replies": None}, "replies: Field required"),
        ({"content": "secret"}, "content: Input should be 'train' or 'heldout'"),
        ({"patience": 1}, "patience: Input should be greater than or equal to 2"),
        ({"patience": 25}, "patience: Input should be less than or equal to 24, not 25"),
        ({"schema_version": 2}, "schema_version: Input should be 1, not 2"),
        ({"identity": {"shoe size": "44"}}, "identity.shoe size"),
        (
            {"identity": {"email": ""}},
            "identity.email: expected at least one word; write what the customer says",
        ),
        ({"replies": {**REPLIES, "wait": ["Yes.", " "]}}, "replies.wait.1: expected at least one word"),
        ({"turns": [{**TURN, "says": "\n"}]}, "turns.0.says: expected at least one word"),
        ({"turns": [{**TURN, "insists": [""]}]}, "turns.0.insists.0: expected at least one word"),
        (
            {"turns": [{**TURN, "requests": [{"about": [], "details": {"order": ""}}]}]},
            "turns.0.requests.0.details.order: expected at least one word",
        ),
    ],
)
def test_a_damaged_script_is_told_with_its_place(changes: dict[str, Any], message_text: str) -> None:
    with pytest.raises(CaseError) as error:
        script_of(damaged(**changes))
    text = str(error.value)
    assert text.startswith(f"task {CANCELS.id!r}: its customer script is damaged: {message_text}")
    assert "\n" not in text


def other(**changes: Any) -> Task:
    """A case's task with other fields."""
    return Task.model_validate({**CANCELS.task.model_dump(mode="json"), **changes})


GOLD = len(CANCELS.task.actions)


@pytest.mark.parametrize(
    ("task", "message_text"),
    [
        (
            damaged(turns=[{**TURN, "actions": GOLD + 2}]),
            f"the turns of its script have {GOLD + 2} gold actions, but the task has {GOLD}: correct",
        ),
        (other(evaluation_criteria=None), "has no evaluation_criteria; list the gold actions"),
        (
            other(evaluation_criteria={}),
            "has no evaluation_criteria.actions; list the gold actions, or [] if",
        ),
    ],
)
def test_a_script_that_does_not_fit_its_task_is_told(task: Task, message_text: str) -> None:
    with pytest.raises(CaseError) as error:
        script_of(task)
    assert str(error.value).startswith(f"task {CANCELS.id!r}: {message_text}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "message_text"),
    [
        ("", "a case has an empty id; name it in letters, digits, '-' and '_'"),
        ("x" * 201, f"task '{'x' * 20}…': its id has 201 characters, at most 200 are allowed; name it in"),
        ("a b", "task 'a b': its id contains white space or unprintable characters"),
        ("a\nb", r"task 'a\nb': its id contains white space"),
        ("\x1b[31m", r"task '\x1b[31m': its id contains white space"),
        ("a\u2028b", r"task 'a\u2028b': its id contains white space"),
        ("a::b", "task 'a::b': its id contains '::', which separates names in pytest's node ids; name it in"),
    ],
)
def test_an_id_that_cannot_name_a_test_is_told(name: str, message_text: str) -> None:
    with pytest.raises(CaseError) as error:
        script_of(other(id=name))
    assert str(error.value).startswith(message_text)
    assert "\n" not in str(error.value)
