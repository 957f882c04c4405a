"""Real recorded runs: read without loss, scored exactly as the benchmark's own evaluator scored them."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.errors import ResultsError
from pytest_trace2evolve.evidence.results import read_results
from pytest_trace2evolve.records.score import Score, Status
from pytest_trace2evolve.records.trace import REGULAR_ENDS, Simulation
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.worlds.registry import Worlds
from tests.conftest import RECORDED

NAMES = sorted(path.name for path in RECORDED.glob("*.json.gz")) or ["no recorded runs"]


def recorded_checks(info: dict[str, Any]) -> dict[str, list[bool]]:
    """What the file says of each single check, in order."""
    return {
        "db": [info["db_check"]["db_match"]] if info["db_check"] else [],
        "actions": [check["action_match"] for check in info["action_checks"] or []],
        "communicate": [check["met"] for check in info["communicate_checks"] or []],
        "env": [check["met"] for check in info["env_assertions"] or []],
    }


def our_checks(result: Score) -> dict[str, list[bool]]:
    return {
        "db": [] if result.db_match is None else [result.db_match],
        "actions": [check.matched for check in result.actions],
        "communicate": [check.met for check in result.communicate],
        "env": [check.met for check in result.env_assertions],
    }


def differences(simulation: Simulation, result: Score) -> list[Any]:
    """Where our score departs from the recorded one."""
    info = simulation.reward_info or {}
    found: list[Any] = []
    if (result.status, result.reward) != (Status.MEASURED, info["reward"]):
        found.append((simulation.id, "reward", result.reward, info["reward"], result.note))
    recorded = recorded_checks(info)
    if simulation.termination_reason in REGULAR_ENDS and our_checks(result) != recorded:
        found.append((simulation.id, "checks", our_checks(result), recorded))
    breakdown = info["reward_breakdown"] or {}
    if any(result.components.get(name) != value for name, value in breakdown.items()):
        found.append((simulation.id, "components", result.components, breakdown))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_simulation_scores_as_recorded(recorded: Path, worlds: Worlds, name: str) -> None:
    file = read_results(recorded / name)
    assert file.domain is not None
    assert file.simulations
    world = worlds.open("inspect_evals", file.domain)
    found = [
        difference
        for simulation in file.simulations
        for difference in differences(simulation, score(simulation, file.tasks[simulation.task_id], world))
    ]
    assert found == []


@pytest.mark.parametrize("name", NAMES)
def test_reading_a_recorded_file_loses_nothing(recorded: Path, name: str) -> None:
    raw = json.loads(gzip.decompress((recorded / name).read_bytes()))
    file = read_results(recorded / name)
    tasks = [task.model_dump(mode="json", exclude_unset=True) for task in file.tasks.values()]
    simulations = [each.model_dump(mode="json", exclude_unset=True) for each in file.simulations]
    as_text = [task | {"id": str(task["id"])} for task in raw["tasks"]]
    assert tasks == as_text
    assert simulations == [each | {"task_id": str(each["task_id"])} for each in raw["simulations"]]
    assert file.header == {key: raw[key] for key in raw.keys() - {"tasks", "simulations"}}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("retail-no-task-id", r"114 of 114 simulations have no task_id \(first: id "),
        ("retail-task-ids-shuffled", r"says task '\w+', but its recorded checks are those of task '\w+'"),
    ],
)
def test_malformed_recordings_are_refused_with_the_reason(recorded: Path, name: str, reason: str) -> None:
    with pytest.raises(ResultsError, match=reason):
        read_results(recorded / "malformed" / f"{name}.json.gz")
