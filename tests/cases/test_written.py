# ruff: noqa: E501 - tables of one case a line
"""Written tasks: one line for every mistake, values as they are written, and the reward that they stand for."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.agents.reference import NopAgent
from pytest_trace2evolve.cases.written import WrittenTask, read_written_tasks
from pytest_trace2evolve.errors import CaseError
from pytest_trace2evolve.records.task import RewardBasis, Task, slot_script_of
from pytest_trace2evolve.session.admission import check_written_tasks
from pytest_trace2evolve.utils.yaml_text import parse_yaml
from tests.plain_worlds import hotel

START = "- id: t\n  user: {goal: Cancel B17.}\n"
EXPECT = "  expect: {data: {}}\n"


def written(tmp_path: Path, text: str, name: str = "tasks.yaml") -> list[WrittenTask]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_written_tasks(path)


@pytest.mark.parametrize(
    ("text", "message_text"),
    [
        ("", r"tasks\.yaml: expected a list of tasks, got nothing"),
        ("[]", r"tasks\.yaml: holds no task; write one"),
        ("id: t\n", r"tasks\.yaml: expected a list of tasks, got a dict"),
        ("- id: t\n  user: {goal: [\n", r"tasks\.yaml, line 3: is not YAML: "),
        (START + "  user: {goal: x}\n" + EXPECT, r"tasks\.yaml, line 3: 'user' occurs twice in one mapping"),
        (START + EXPECT + START + EXPECT, r"tasks\.yaml, task t: task 't' occurs twice; rename one"),
        ("- id: t\n  user: {gaol: x}\n" + EXPECT, r"task t: user: unknown key 'gaol'; did you mean 'goal'\?"),
        (START + "  expct: {}\n", r"task t: unknown key 'expct'; did you mean 'expect'\?"),
        (START + "  expect: {calls: [{nme: x}]}\n", r"calls\.0: unknown key 'nme'; did you mean 'name'\?"),
        (START + "  expect: {datum: {}}\n", r"expect: unknown key 'datum'; did you mean 'data'\?"),
        (START, r"task t: expect: Field required"),
        (START + "  expect: {}\n", r"task t: expects nothing, so every agent passes"),
        ("- user: {goal: x}\n" + EXPECT, r"task 1: id: Field required"),
        ("- id: a b\n  user: {goal: x}\n" + EXPECT, r"task a b: id: String should match pattern"),
        ("- id: t\n  user: {goal: ''}\n" + EXPECT, r"user\.goal: String should have at least 1 character"),
        (
            "- id: t\n  user: {goal: x, knows: {a: [1]}}\n" + EXPECT,
            r"user\.knows\.a: Input should be a valid s",
        ),
        (
            "- id: t\n  user: {goal: x, knows: {a: }}\n" + EXPECT,
            r"user\.knows\.a: Input should be a valid string",
        ),
        (
            "- id: t\n  user: {goal: x, knows: {'_': y}}\n" + EXPECT,
            r"user\.knows\._\.\[key\]: String should match",
        ),
        (START + "  expect: {says: [',']}\n", r"expect\.says\.0: String should match pattern"),
        (START + "  expect: {says: no}\n", r"expect\.says: must be a list, not 'no'; correct it"),
        (START + "  expect: {says: []}\n", r"expect\.says: has no value; add one, or remove the key"),
        (
            START + "  expect: {data: , says: [x]}\n",
            r"expect\.data: has no value; write \{\} if nothing may change",
        ),
        (
            START + "  expect: {calls: , says: [x]}\n",
            r"expect\.calls: has no value; write \[\] if data may not",
        ),
        (START + "  expect: {not_calls: , says: [x]}\n", r"expect\.not_calls: has no value; add one, or"),
        (
            "- id: t\n  user: {goal: Where can I park?}\n",
            r"line 2: is not YAML: .*; correct the line, and quote texts",
        ),
        ("- id: t\n  draft: {source: x}\n", r"task t: is a draft that nobody accepted; review it with"),
        ("- 5\n", r"task 1: the task: Input should be a valid dictionary"),
    ],
)
def test_a_mistake_is_one_line_with_file_and_task(tmp_path: Path, text: str, message_text: str) -> None:
    with pytest.raises(CaseError, match=message_text) as error:
        written(tmp_path, text)
    assert "\n" not in str(error.value)
    assert "tasks.yaml" in str(error.value)


def test_values_are_what_the_person_wrote(tmp_path: Path) -> None:
    text = (
        "- id: t\n  user:\n    goal: no\n    knows: {insured: no, member: true, time: 12:30, zip: 02139, "
        "phone: +4930901820, price: 12.50, day: 2025-06-03, count: 3}\n"
        "  expect: {data: {x: {12: {price: 12.50, due: 2025-06-03, open: on, paid: true}}}}\n"
    )
    (task,) = written(tmp_path, text)
    assert task.user.knows == {
        "insured": "no",
        "member": "yes",
        "time": "12:30",
        "zip": "02139",
        "phone": "+4930901820",
        "price": "12.50",
        "day": "2025-06-03",
        "count": "3",
    }
    (assertion,) = task.to_task().evaluation_criteria.env_assertions  # type: ignore[union-attr]
    expected = {"x": {"12": {"price": 12.5, "due": "2025-06-03", "open": "on", "paid": True}}}
    assert assertion.arguments == {"data": expected}
    assert task.to_task().digest == Task.model_validate(json.loads(task.to_task().model_dump_json())).digest


@given(
    st.dictionaries(st.text("abc", min_size=1), st.text("0123456789+-.:eExyn _oO", min_size=1), max_size=4)
)
def test_a_text_of_digits_and_signs_is_never_changed_in_what_the_user_knows(knows: dict[str, str]) -> None:
    import yaml

    knows = {name: value.strip() for name, value in knows.items() if value.strip()}
    text = yaml.safe_dump({"knows": knows}, allow_unicode=True)
    read = parse_yaml(text, "f", CaseError)
    task = WrittenTask.model_validate({"id": "t", "user": {"goal": "g", **read}, "expect": {"data": {}}})
    assert task.user.knows == knows


DB, ENV, SAID, ACTION, NL = RewardBasis
CALL = {"name": "cancel_booking", "arguments": {"booking_id": "B17"}}


@pytest.mark.parametrize(
    ("expect", "basis"),
    [
        ({"data": {}}, (ENV,)),
        ({"data": {"bookings": {}}, "says": ["x"]}, (ENV, SAID)),
        ({"calls": []}, (DB,)),
        ({"calls": [CALL]}, (DB, ACTION)),
        ({"calls": ["cancel_booking"]}, (ACTION,)),
        ({"calls": [CALL], "data": {}}, (ENV, ACTION)),
        ({"not_calls": ["refund"]}, (ACTION,)),
        ({"says": ["x"]}, (SAID,)),
        ({"judged": ["x"]}, (SAID, NL)),
        ({"calls": [CALL], "says": ["x"], "not_calls": ["refund"], "judged": ["y"]}, (DB, ACTION, SAID, NL)),
    ],
)
def test_expectations_stand_for_a_reward_basis(
    expect: dict[str, Any], basis: tuple[RewardBasis, ...]
) -> None:
    task = WrittenTask.model_validate({"id": "t", "user": {"goal": "g"}, "expect": expect}).to_task()
    assert task.evaluation_criteria is not None
    assert task.evaluation_criteria.basis == basis


def test_tags_and_script_stay_in_the_task() -> None:
    task = WrittenTask.model_validate(
        {
            "id": "t",
            "tags": ["cancel", "vip"],
            "user": {"goal": "g", "opening": "o", "knows": {"a": 1}, "style": "curt", "agrees_to": ["x"]},
            "expect": {"data": {}},
        }
    ).to_task()
    restored = Task.model_validate(json.loads(task.model_dump_json(exclude_unset=True)))
    assert restored.tags == ("cancel", "vip")
    script = slot_script_of(restored)
    assert script is not None
    assert (script.opening, script.knows, script.agrees_only) == ("o", {"a": "1"}, ("x",))
    assert restored.user_scenario["persona"] == "curt"


TOOL_CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "get_booking", "arguments": '{"booking_id": "B17"}'},
}
ASKS = {"role": "user", "content": [{"type": "text", "text": "Look up B17."}]}
CALLS = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "{}"}
SAYS = {"role": "assistant", "content": "Found it. Shall I cancel it?"}


def with_history(*history: Any) -> WrittenTask:
    return WrittenTask.model_validate(
        {"id": "t", "user": {"goal": "Cancel B17."}, "expect": {"calls": [CALL]}, "history": list(history)}
    )


def test_a_history_in_openais_format_becomes_messages() -> None:
    messages = with_history(ASKS, CALLS, RESULT, SAYS).to_task().history
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[0].content == "Look up B17."
    assert messages[1].tool_calls is not None
    assert messages[1].tool_calls[0].arguments == {"booking_id": "B17"}


@pytest.mark.parametrize(
    ("history", "message_text"),
    [
        ([{"role": "system", "content": "x"}], "message 1: has role 'system'; remove it"),
        ([{"role": "robot", "content": "x"}], "message 1: role 'robot' is not user, assistant or tool"),
        ([ASKS, CALLS], "ends with call 'c1', which has no result; add it"),
        ([ASKS, CALLS, SAYS], "message 3: call 'c1' before it has no result; add it"),
        ([ASKS, RESULT], "message 2: answers no call before it; correct tool_call_id"),
        ([ASKS, CALLS, RESULT], "ends with a tool's result; end it with a message of the user or the agent"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "message 1: has a part that is not text"),
        ([{"role": "user"}], "message 1: has neither content nor tool_calls"),
        ([ASKS, {"role": "assistant", "tool_calls": [{"id": "x"}]}], "has a call without function.name"),
        (
            [ASKS, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "message 2: the arguments of 'f' are not a JSON object",
        ),
    ],
)
def test_a_wrong_history_is_one_line(tmp_path: Path, history: list[Any], message_text: str) -> None:
    record = {"id": "t", "user": {"goal": "g"}, "expect": {"data": {}}, "history": history}
    with pytest.raises(CaseError, match=message_text) as error:
        written(tmp_path, json.dumps(record) + "\n", "tasks.jsonl")
    assert "\n" not in str(error.value)


def problems(expect: dict[str, Any], user: dict[str, Any] | None = None, **fields: Any) -> list[str]:
    record = {"id": "t", "user": user or {"goal": "Cancel my booking B17."}, "expect": expect, **fields}
    ((_, found),) = check_written_tasks([WrittenTask.model_validate(record)], hotel())
    return list(found)


CANCELLED = {"bookings": {"B17": {"status": "cancelled"}}}


@pytest.mark.parametrize(
    "expect",
    [
        {"calls": [CALL]},
        {"data": CANCELLED},
        {"data": CANCELLED, "calls": [CALL], "says": ["cancelled"], "not_calls": ["refund"]},
        {"data": {}},
        {"calls": [], "says": ["not possible"]},
        {"not_calls": ["cancel_booking"]},
        {"judged": ["The agent is kind."]},
        {"calls": ["cancel_booking"]},
        {"data": CANCELLED, "calls": [{"name": "cancel_booking", "arguments": {}}]},
        {"calls": [{"name": "cancel_booking", "arguments": {"booking_id": {"$pattern": "B1."}}}]},
        {"data": {"bookings": {"B17": {"status": {"$in": ["cancelled", "void"]}}}}, "calls": [CALL]},
    ],
)
def test_good_tasks_are_admitted(expect: dict[str, Any]) -> None:
    assert problems(expect) == []


@pytest.mark.parametrize(
    ("fields", "message_text"),
    [
        ({"expect": {"calls": ["cancel_bookin"]}}, "calls: the agent has no tool 'cancel_bookin'; did you mean 'cancel"),
        ({"expect": {"not_calls": ["refnd"]}}, "not_calls: the agent has no tool 'refnd'; did you mean 'refund'?"),
        (
            {"expect": {"calls": [{"name": "cancel_booking", "arguments": {"booking": "B17"}}]}},
            "calls: cancel_booking: unknown argument 'booking'; did you mean 'booking_id'?",
        ),
        (
            {"expect": {"calls": [{"name": "refund", "arguments": {"amount": 5}}]}},
            "calls: refund: argument 'booking_id' is missing, so the data after this call are not known; add",
        ),
        (
            {"expect": {"calls": [{"name": "cancel_booking", "arguments": {"booking_id": 17}}]}},
            "calls: cancel_booking: booking_id: Input should be a valid string, not 17",
        ),
        (
            {"expect": {"calls": [{"name": "cancel_booking", "arguments": {"booking_id": "B99"}}]}},
            "calls: cancel_booking fails: Error: KeyError: 'B99'",
        ),
        (
            {"expect": {"calls": [CALL], "data": {"bookings": {"B17": {"status": {"$in": ["open"]}}}}}},
            "an agent that does all of it fails: below 1: ENV_ASSERTION",
        ),
        (
            {"expect": {"calls": [CALL], "not_calls": [{**CALL, "arguments": {"booking_id": {"$any": True}}}]}},
            "an agent that does all of it fails: below 1: ACTION",
        ),
        ({"expect": {"calls": [CALL], "not_calls": ["cancel_booking"]}}, "an agent that does all of it fails: below 1: ACTION"),
        (
            {"expect": {"calls": [CALL], "data": {"bookings": {"B18": {"status": "cancelled"}}}}},
            "an agent that does all of it fails: below 1: ENV_ASSERTION",
        ),
        ({"expect": {"data": {"bookings": {"B17": {"room": "x"}}}}}, "the expected data do not fit the database of"),
        ({"expect": {"data": {"bookings": {"B17": {"room": 12}}}}}, "data: the database is as expected from the start"),
        ({"expect": {"data": {}}, "data": {"bookings": {"B1": {}}}}, "the task's data do not fit the database of"),
        ({"expect": {"says": ["help"]}}, "an agent that does nothing passes; expect something that only"),
    ],
)  # fmt: skip
def test_tasks_that_cannot_be_right_are_not_admitted(fields: dict[str, Any], message_text: str) -> None:
    found = problems(**fields)
    assert any(text.startswith(message_text) for text in found), found
    assert all("\n" not in text for text in found)


def test_a_task_with_a_history_is_solved_from_there() -> None:
    for history in ((ASKS, CALLS, RESULT, SAYS), (ASKS,)):
        ((_, found),) = check_written_tasks([with_history(*history)], hotel())
        assert found == ()


def test_a_world_that_raises_is_a_problem_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: NopAgent, history: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(NopAgent, "__init__", fail)
    ((_, found),) = check_written_tasks([with_history()], hotel())
    assert found[-1].startswith("it cannot be run: ")
