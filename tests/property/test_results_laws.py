"""Laws of results files: nothing in them is lost, and nothing in them makes reading crash."""

import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.results import ResultsFile, combine, read_results
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)

TASK: dict[str, Any] = {
    "id": "a",
    "user_scenario": {"instructions": {"domain": "retail", "reason_for_call": "why"}},
    "initial_state": {
        "initialization_data": {"agent_data": {"users": {}}},
        "initialization_actions": [{"env_type": "user", "func_name": "f", "arguments": {}}],
        "message_history": [{"role": "user", "content": "Hi"}],
    },
    "evaluation_criteria": {
        "actions": [{"name": "open", "arguments": {"key": 1}, "compare_args": ["key"]}],
        "env_assertions": [{"env_type": "user", "func_name": "g", "arguments": {}, "assert_value": True}],
        "communicate_info": ["10"],
        "nl_assertions": None,
        "reward_basis": ["DB"],
    },
}
SIMULATION: dict[str, Any] = {
    "id": "s",
    "task_id": "a",
    "termination_reason": "user_stop",
    "trial": 0,
    "seed": 1,
    "agent_cost": 0.5,
    "reward_info": {
        "reward": 1.0,
        "action_checks": [{"action": {"name": "open", "arguments": {"key": 1}}, "action_match": True}],
    },
    "messages": [
        {"role": "assistant", "content": "Hi", "tool_calls": None, "timestamp": "t", "turn_idx": 0},
        {"role": "assistant", "tool_calls": [{"id": "c", "name": "open", "arguments": {"key": 1}}]},
        {"role": "tool", "id": "c", "content": "done", "requestor": "assistant", "error": False},
    ],
}
FILE: dict[str, Any] = {
    "timestamp": "now",
    "info": {"environment_info": {"domain_name": "retail"}},
    "tasks": [TASK],
    "simulations": [SIMULATION],
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def objects(value: Any) -> list[dict[str, Any]]:
    """Every object in a JSON value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value] if isinstance(value, dict) else []
    return [*own, *(found for item in inner for found in objects(item))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of a JSON value with another value at one place."""
    if not path:
        return new
    result = copy.deepcopy(value)
    target = result
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = new
    return result


def dumped(record: Task | Simulation) -> Any:
    return record.model_dump(mode="json", exclude_unset=True)


@given(st.data())
def test_fields_unknown_to_us_survive_reading_wherever_they_stand(data: st.DataObject) -> None:
    task, simulation = copy.deepcopy(TASK), copy.deepcopy(SIMULATION)
    for record in (task, simulation):
        target = data.draw(st.sampled_from(objects(record)))
        target |= {f"x-{key}": value for key, value in data.draw(st.dictionaries(st.text(), JSON)).items()}
    assert dumped(Task.model_validate(task)) == task
    assert dumped(Simulation.model_validate(simulation)) == simulation


def read_or_refusal(path: Path) -> ResultsFile | str:
    try:
        return read_results(path)
    except ResultsError as error:
        return str(error)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(value=JSON)
def test_a_file_with_anything_anywhere_is_read_or_refused(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "r.json"
    for place in places(FILE):
        path.write_text(json.dumps(replaced(FILE, place, value)), encoding="utf-8")
        found = read_or_refusal(path)
        if isinstance(found, str):
            assert found.startswith(f"{path}: ")
        else:
            assert isinstance(found.info, dict), place
            assert found.domain is None or isinstance(found.domain, str), place
            assert len(combine([found])[0]) == len(found.simulations)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.binary(max_size=40) | st.binary(max_size=20).map(lambda tail: b"\x1f\x8b\x08" + tail))
def test_any_bytes_at_all_are_refused_with_the_name_of_the_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(data)
    refusal = read_or_refusal(path)
    assert isinstance(refusal, str)
    assert refusal.startswith(f"{path}: ")


NUMBERED = st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 3)), max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(contents=st.lists(NUMBERED, max_size=3))
def test_combined_files_hold_each_trial_once_and_every_simulation(
    tmp_path: Path, contents: list[list[tuple[str, int | None]]]
) -> None:
    found = []
    for number, keys in enumerate(contents):
        runs = [
            {"id": f"{number}-{place}", "task_id": task, "trial": trial, "termination_reason": "user_stop"}
            for place, (task, trial) in enumerate(keys)
        ]
        path = tmp_path / f"f{number}.json"
        path.write_text(
            json.dumps({"tasks": [{"id": "a"}, {"id": "b"}], "simulations": runs}), encoding="utf-8"
        )
        found.append(read_results(path))
    simulations, notes = combine(found)
    before = [simulation for file in found for simulation in file.simulations]
    assert [one.id for one in simulations] == [one.id for one in before]
    assert len({(one.task_id, one.trial) for one in simulations}) == len(before)
    assert all(one.trial is not None for one in simulations)
    if all(one.trial is not None for one in before):
        assert bool(notes) == (simulations != tuple(before))
