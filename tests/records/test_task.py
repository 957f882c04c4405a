"""The digest of a task: what scoring or the conversation reads changes it, and nothing else does."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.records.task import (
    Action,
    Assertion,
    EvaluationCriteria,
    FunctionCall,
    InitializationData,
    InitialState,
    RewardBasis,
    Task,
    normalise_task,
)

LAW = settings(max_examples=60)
Json = dict[str, Any]
Place = tuple[str | int, ...]

FULL: Json = {
    "id": "7",
    "ticket": "The customer wants a refund.",
    "description": {"purpose": "p", "notes": "n"},
    "annotations": ["a"],
    "user_scenario": {
        "persona": "curt",
        "instructions": {"domain": "retail", "known_info": "You are Ann.", "tries": 3, "polite": False},
    },
    "initial_state": {
        "initialization_data": {
            "agent_data": {"orders": {"W1": {"status": "open", "items": [1, 2.5]}}},
            "user_data": {"phone": {"on": True}},
        },
        "initialization_actions": [
            {"env_type": "user", "func_name": "turn_off", "arguments": {"app": "sms", "hard": True}}
        ],
        "message_history": [
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "tool_calls": [{"id": "c1", "name": "find", "arguments": {"who": "Ann"}}]},
            {"role": "tool", "id": "c1", "content": "found", "requestor": "assistant", "error": False},
        ],
    },
    "evaluation_criteria": {
        "actions": [
            {"action_id": "7_0", "name": "refund", "arguments": {"order": "W1", "sum": 3, "lines": ["a"]},
             "requestor": "assistant", "compare_args": ["order"], "info": "i"},
        ],
        "env_assertions": [
            {"env_type": "user", "func_name": "is_on", "arguments": {"app": "sms"}, "assert_value": True,
             "message": "m"},
        ],
        "communicate_info": ["100"],
        "nl_assertions": ["The agent is kind."],
        "forbidden_calls": [{"name": "refund", "arguments": {"order": "W1"}}],
        "reward_basis": ["DB", "ACTION"],
    },
}  # fmt: skip
UNREAD = {"id", "ticket", "description", "annotations", "action_id", "info", "message"}
CRITERIA = ("evaluation_criteria",)
ACTION: Place = (*CRITERIA, "actions", 0)
ASSERTION: Place = (*CRITERIA, "env_assertions", 0)
STATE = ("initial_state",)


def digest(task: Json) -> str:
    return Task.model_validate(task).digest


def at(task: Json, path: Place) -> Any:
    for step in path:
        task = task[step]
    return task


def edited(path: Place, value: Any, task: Json = FULL) -> Json:
    """The task with the value at a path replaced."""
    task = copy.deepcopy(task)
    at(task, path[:-1])[path[-1]] = value
    return task


def without(path: Place, task: Json = FULL) -> Json:
    task = copy.deepcopy(task)
    del at(task, path[:-1])[path[-1]]
    return task


def leaves(value: Any, path: Place = ()) -> list[Place]:
    """Paths of all values that scoring or the conversation reads."""
    if isinstance(value, dict):
        return [leaf for key in value if key not in UNREAD for leaf in leaves(value[key], (*path, key))]
    if isinstance(value, list) and path[-1] != "reward_basis":
        return [leaf for place, item in enumerate(value) for leaf in leaves(item, (*path, place))]
    return [path]


def dotted(value: Any) -> str | None:
    """A path as the id of a parametrised test."""
    return ".".join(map(str, value)) if isinstance(value, tuple) else None


def another(path: Place) -> st.SearchStrategy[Any]:
    """Another value of the kind that stands at a path."""
    old = at(FULL, path)
    choices: dict[str | int, st.SearchStrategy[Any]] = {
        "requestor": st.just("user"),
        "env_type": st.just("assistant"),
        "role": st.sampled_from(["system", "assistant"] if old == "user" else ["user", "system"]),
        "reward_basis": st.sets(st.sampled_from([*RewardBasis]), min_size=1).map(sorted),
    }
    if path[-1] in choices:
        return choices[path[-1]].filter(lambda new: new != sorted(old))
    if isinstance(old, bool):
        return st.just(not old)
    kind = st.text(max_size=5) if isinstance(old, str) else st.integers(-9, 9)
    return kind.filter(lambda new: new != old)


@pytest.mark.parametrize(
    ("record", "example"),
    [
        (Task, FULL),
        (InitialState, at(FULL, STATE)),
        (InitializationData, at(FULL, (*STATE, "initialization_data"))),
        (FunctionCall, at(FULL, (*STATE, "initialization_actions", 0))),
        (EvaluationCriteria, at(FULL, CRITERIA)),
        (Action, at(FULL, ACTION)),
        (Assertion, at(FULL, ASSERTION)),
    ],
)
def test_the_example_has_every_field_of_a_record_so_that_a_new_one_must_be_thought_of(record, example):
    assert record.model_fields.keys() <= example.keys()


@LAW
@given(st.data())
def test_any_change_of_what_is_read_changes_the_digest(data):
    path = data.draw(st.sampled_from(leaves(FULL)))
    assert digest(edited(path, data.draw(another(path)))) != digest(FULL)


WORDS = st.recursive(st.none() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=2), max_leaves=4)


@LAW
@given(st.text(max_size=4), st.none() | st.text(max_size=4), WORDS, st.text(max_size=4))
def test_ids_ticket_description_annotations_and_notes_do_not_matter(name, ticket, remark, short):
    task = copy.deepcopy(FULL)
    task |= {"id": name, "ticket": ticket, "description": remark, "annotations": remark, "notes": remark}
    at(task, ACTION).update({"action_id": short, "info": remark})
    at(task, ASSERTION)["message"] = short
    assert digest(task) == digest(FULL)


EMPTY = [
    (("user_scenario",), [None, "", {}, {"persona": None, "instructions": {"known_info": ""}}]),
    (("user_scenario", "persona"), [None, ""]),
    (STATE, [None, {}, {"initialization_data": None, "initialization_actions": [], "message_history": []}]),
    ((*STATE, "initialization_data"), [None, {}, {"agent_data": None, "user_data": {}}]),
    ((*STATE, "initialization_data", "user_data"), [None, {}]),
    ((*STATE, "initialization_actions"), [None, []]),
    ((*STATE, "message_history"), [None, []]),
    ((*STATE, "message_history", 1, "content"), [None, ""]),
    ((*STATE, "message_history", 0, "tool_calls"), [None, []]),
    ((*STATE, "message_history", 2, "error"), [None, False]),
    (CRITERIA, [None, {}]),
    ((*CRITERIA, "actions"), [None, []]),
    ((*CRITERIA, "env_assertions"), [None, []]),
    ((*CRITERIA, "communicate_info"), [None, []]),
    ((*CRITERIA, "nl_assertions"), [None, []]),
    ((*CRITERIA, "reward_basis"), [None, []]),
]


@pytest.mark.parametrize(("path", "forms"), EMPTY, ids=dotted)
def test_absent_null_and_empty_are_one(path, forms):
    absent = digest(without(path, edited(path, None)))
    for form in forms:
        assert digest(edited(path, form)) == absent


def test_the_default_basis_is_db_and_communicate_in_any_order():
    basis = (*CRITERIA, "reward_basis")
    named = digest(edited(basis, ["DB", "COMMUNICATE"]))
    assert named == digest(edited(basis, ["COMMUNICATE", "DB"]))
    assert named == digest(edited(basis, None)) == digest(without(basis))
    assert named != digest(edited(basis, ["DB"]))


def test_a_task_survives_its_own_dump():
    task = Task.model_validate(FULL)
    again = Task.model_validate_json(task.model_dump_json())
    assert normalise_task(again) == normalise_task(task)
    assert again.digest == task.digest
