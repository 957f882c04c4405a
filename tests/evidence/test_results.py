"""Results files: every known form is read whole, and one that cannot be trusted is rejected by name."""

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.results import ResultsFile, combine_results, read_results
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation

Json = dict[str, Any]


def a_task(task_id: Any, *actions: str) -> Json:
    gold = [{"name": name, "arguments": {"key": task_id}} for name in actions]
    return {"id": task_id, "evaluation_criteria": {"actions": gold}}


def a_simulation(name: Any, task_id: Any = "a", **fields: Any) -> Json:
    return {"id": name, "task_id": task_id, "termination_reason": "user_stop"} | fields


def a_file(*simulations: Json, **fields: Any) -> Json:
    tasks = [a_task("a", "open"), a_task("b", "close", "open")]
    return {"timestamp": "now", "info": None, "tasks": tasks, "simulations": list(simulations)} | fields


def written(folder: Path, content: Any, name: str = "results-file.json") -> Path:
    path = folder / name
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def folder_form(folder: Path, *simulations: Json, index: list[str] | None = None) -> Path:
    """The newer form: `results.json` and one file a simulation."""
    record = a_file()
    del record["simulations"]
    if index is not None:
        record["simulation_index"] = [{"id": name} for name in index]
    written(folder, record, "results.json")
    (folder / "simulations").mkdir()
    for simulation in simulations:
        written(folder / "simulations", simulation, f"{simulation['id']}.json")
    return folder


def rejection(path: Path) -> str:
    """Why a file is rejected, without its path, with which every message begins."""
    with pytest.raises(ResultsError) as caught:
        read_results(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("name", ["r.json", "r.json.gz", "r.bin.gz"])
def test_plain_and_gzipped_files_are_read_alike(tmp_path: Path, name: str) -> None:
    found = read_results(written(tmp_path, a_file(a_simulation("s", "b"), max_concurrency=3), name))
    assert [(one.id, one.task_id, one.termination_reason) for one in found.simulations] == [
        ("s", "b", "user_stop")
    ]
    assert list(found.tasks) == ["a", "b"]
    assert found.header == {"timestamp": "now", "info": None, "max_concurrency": 3}


NOT_JSON = "not valid JSON with finite numbers: "
NO_LIST = "has no list {!r}; expected a results file of tau2"
LACKS = "1 of 2 simulations have no {} (first: id 's2'); they cannot be scored; use the file that tau2 wrote"
MALFORMED_TASK = {"id": "b", "evaluation_criteria": {"actions": [{"name": "x"}]}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((text, NOT_JSON) for text in ("", "{", "no JSON", '{"tasks": [}', "NaN", "\x00")),
        *(
            (json.dumps(a_file(timestamp="HERE")).replace('"HERE"', number), NOT_JSON)
            for number in ("NaN", "-Infinity", "1e999", "-1E+999", "1" + "0" * 400 + ".0")
        ),
        ([], "contains a JSON list, expected a results object"),
        (None, "contains a JSON NoneType, expected a results object"),
        *((a_file(**{key: {}}), NO_LIST.format(key)) for key in ("tasks", "simulations")),
        (a_file(tasks=None), NO_LIST.format("tasks")),
        (a_file(tasks=[a_task("1"), a_task(1)]), "contains task '1' twice"),
        (
            a_file(tasks=[a_task("a"), MALFORMED_TASK]),
            "task 1 is malformed at evaluation_criteria.actions.0.arguments: Field required",
        ),
        (
            a_file(a_simulation("r"), a_simulation("s", messages=[{"role": "robot"}])),
            "simulation 1 is malformed at messages.0.role: Input should be",
        ),
        (a_file(simulations=["s"]), "simulation 0 is malformed: "),
        # No evidence can hold these values.
        (a_file(a_simulation("s", trial=-1)), "simulation 0 is malformed at trial"),
        (
            a_file(a_simulation("s", reward_info={"reward": 10**400})),
            "simulation 0 is malformed at reward_info",
        ),
        (a_file(a_simulation("s", "z")), "simulation 's' ran task 'z', which is not in the file"),
        *(
            (a_file(a_simulation("s1"), a_simulation("s2") | {name: value}), LACKS.format(name))
            for name in ("task_id", "termination_reason")
            for value in (None, "")
        ),
    ],
)
def test_what_cannot_be_trusted_is_rejected(tmp_path: Path, content: Any, reason: str) -> None:
    assert rejection(written(tmp_path, content)).startswith(reason)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        (["s1", "s2", "s3"], "1 simulation files missing: s3"),
        (["s1"], "1 simulation files not in its index: s2"),
    ],
)
def test_a_folder_that_disagrees_with_its_index_is_rejected(
    tmp_path: Path, index: list[str], reason: str
) -> None:
    assert rejection(folder_form(tmp_path, a_simulation("s1"), a_simulation("s2"), index=index)) == reason


def files(folder: Path, *contents: Json) -> list[ResultsFile]:
    return [
        read_results(written(folder, content, f"f{number}.json")) for number, content in enumerate(contents)
    ]


def test_trials_that_files_count_alike_are_renumbered_and_the_note_says_so(tmp_path: Path) -> None:
    one = a_file(a_simulation("s1", trial=0, seed=1), a_simulation("s2", "b", trial=0))
    two = a_file(a_simulation("s3", trial=0, seed=3))
    found = files(tmp_path, one, two)
    simulations, notes = combine_results(found)
    numbered = [(each.id, each.task_id, each.trial, each.seed) for each in simulations]
    assert numbered == [("s1", "a", 0, 1), ("s2", "b", 0, None), ("s3", "a", 1, 3)]
    assert notes == ("f0.json, f1.json: trials renumbered 0 to 1, since files or simulations share numbers",)
    assert found[1].simulations[0].trial == 0


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


@settings(max_examples=30)
@given(st.data())
def test_fields_unknown_to_us_survive_reading_wherever_they_stand(data: st.DataObject) -> None:
    task, simulation = copy.deepcopy(TASK), copy.deepcopy(SIMULATION)
    for record in (task, simulation):
        target = data.draw(st.sampled_from(objects(record)))
        target |= {f"x-{key}": value for key, value in data.draw(st.dictionaries(st.text(), JSON)).items()}
    assert dumped(Task.model_validate(task)) == task
    assert dumped(Simulation.model_validate(simulation)) == simulation


def read_or_rejection(path: Path) -> ResultsFile | str:
    try:
        return read_results(path)
    except ResultsError as error:
        return str(error)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=JSON)
def test_a_file_with_anything_anywhere_is_read_or_rejected(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "r.json"
    for place in places(FILE):
        path.write_text(json.dumps(replaced(FILE, place, value)), encoding="utf-8")
        found = read_or_rejection(path)
        if isinstance(found, str):
            assert found.startswith(f"{path}: ")
        else:
            assert isinstance(found.info, dict), place
            assert found.domain is None or isinstance(found.domain, str), place
            assert len(combine_results([found])[0]) == len(found.simulations)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=40) | st.binary(max_size=20).map(lambda tail: b"\x1f\x8b\x08" + tail))
def test_any_bytes_at_all_are_rejected_with_the_name_of_the_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(data)
    rejection = read_or_rejection(path)
    assert isinstance(rejection, str)
    assert rejection.startswith(f"{path}: ")


NUMBERED = st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 3)), max_size=6)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    simulations, notes = combine_results(found)
    before = [simulation for file in found for simulation in file.simulations]
    assert [one.id for one in simulations] == [one.id for one in before]
    assert len({(one.task_id, one.trial) for one in simulations}) == len(before)
    assert all(one.trial is not None for one in simulations)
    if all(one.trial is not None for one in before):
        assert bool(notes) == (simulations != tuple(before))
