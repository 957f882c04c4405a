"""The provider `tau2` against upstream's own evaluator, where upstream's package can be imported."""

import copy
import importlib.metadata
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.evidence.results import decode_results, read_results
from pytest_trace2evolve.records.message import Requestor
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.task import RewardBasis, Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.worlds.registry import Worlds
from pytest_trace2evolve.worlds.upstream import UpstreamWorld
from tests.conftest import Simulate

# Upstream dumps values of other types than its models declare, and its dependencies warn when imported.
pytestmark = pytest.mark.filterwarnings("ignore")

FILES = ["retail-gpt-4.1", "airline-gpt-4.1", "telecom-gpt-4.1", "telecom-solo-gpt-4.1"]
DOMAINS = ["airline", "banking_knowledge", "mock", "retail", "telecom", "telecom-workflow"]
SIDES: tuple[Requestor, Requestor] = ("assistant", "user")
SAMPLE = 2

Checks = dict[str, Any]


@pytest.fixture
def tau2() -> Any:
    return pytest.importorskip(
        "tau2",
        reason="tau2-bench (github.com/sierra-research/tau2-bench, Python 3.12 or later) is not installed",
    )


def theirs(tau2: Any, domain: str, task: dict[str, Any], simulation: dict[str, Any]) -> Checks | str:
    """What upstream's evaluator gives, or that it gives nothing."""
    times = {"start_time": "", "end_time": "", "duration": 0.0, "reward_info": None}
    try:
        info = tau2.evaluate_simulation(
            simulation=tau2.SimulationRun.model_validate(simulation | times),
            task=tau2.Task.model_validate(task),
            evaluation_type=tau2.EvaluationType.ALL,
            solo_mode=not any(message["role"] == "user" for message in simulation["messages"]),
            domain=domain,
            strict_replay=False,
        )
    except ValueError:
        return "not measured"
    return {
        "reward": info.reward,
        "db": info.db_check.db_match,
        "env": [check.met for check in info.env_assertions or ()],
        "actions": [(check.action_match, check.tool_type.value) for check in info.action_checks or ()],
        "communicate": [check.met for check in info.communicate_checks or ()],
    }


def ours(domain: str, task: dict[str, Any], simulation: dict[str, Any], worlds: Worlds) -> Checks | str:
    world = worlds.open("tau2", domain)
    result = score(Simulation.model_validate(simulation), Task.model_validate(task), world)
    if result.status is not Status.MEASURED:
        return "not measured"
    return {
        "reward": result.reward,
        "db": result.db_match,
        "env": [check.met for check in result.env_assertions],
        "actions": [(check.matched, check.tool_type) for check in result.actions],
        "communicate": [check.met for check in result.communicate],
    }


def broken(simulation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The trace with its last tool call lost, made twice, misspelt, given another argument, unanswered."""

    def edited(edit: Callable[[list[Any], int], None]) -> dict[str, Any]:
        copied = copy.deepcopy(simulation) | {"termination_reason": "user_stop"}
        messages = copied["messages"]
        edit(messages, max(i for i, message in enumerate(messages) if message.get("tool_calls")))
        return copied

    def repeat(messages: list[Any], at: int) -> None:
        end = at + 1 + len(messages[at]["tool_calls"])
        messages[end:end] = messages[at:end]

    def lose(messages: list[Any], at: int) -> None:
        del messages[at : at + 1 + len(messages[at]["tool_calls"])]

    yield edited(lose)
    yield edited(repeat)
    yield edited(lambda messages, at: messages[at]["tool_calls"][0].update(name="no_such_tool"))
    yield edited(lambda messages, at: messages[at]["tool_calls"][0]["arguments"].update(extra=1))
    yield edited(lambda messages, at: messages.pop(at + 1))


@pytest.mark.parametrize("name", FILES)
def test_scores_every_recorded_simulation_as_recorded(
    tau2: Any, worlds: Worlds, recorded: Path, name: str
) -> None:
    file = read_results(recorded / f"{name}.json.gz")
    world = worlds.open("tau2", str(file.domain))
    before = world.data_digest()
    rewards = [score(one, file.tasks[one.task_id], world).reward for one in file.simulations]
    assert rewards == [one.recorded_reward for one in file.simulations]
    assert world.data_digest() == before


@pytest.mark.parametrize("name", FILES)
def test_agrees_with_the_evaluator_on_traces_and_broken_traces(
    tau2: Any, worlds: Worlds, recorded: Path, name: str
) -> None:
    record, domain = decode_results(recorded / f"{name}.json.gz"), name.partition("-")[0]
    tasks = {task["id"]: task for task in record["tasks"]}
    called = [one for one in record["simulations"] if any(m.get("tool_calls") for m in one["messages"])]
    for recorded_one in called[:SAMPLE]:
        task = tasks[recorded_one["task_id"]]
        for simulation in (recorded_one, *broken(recorded_one)):
            assert ours(domain, task, simulation, worlds) == theirs(tau2, domain, task, simulation)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_domain_opens_with_its_tasks_and_tools_and_the_oracle_solves_one(
    tau2: Any, worlds: Worlds, simulate: Simulate, domain: str
) -> None:
    world = worlds.open("tau2", domain)
    offered = {tool.name for side in SIDES for tool in world.tools(side)}
    assert offered == set(world.tool_types())
    assert world.policy()
    assert set(world.splits()["base"]) <= set(world.tasks())
    task = world.tasks()[world.splits()["base"][0]]
    result = score(simulate(task, world), task, world)
    assert set(result.basis) - set(result.components) <= {RewardBasis.NL_ASSERTION}
    assert all(result.components[part] for part in result.basis if part in result.components)


def test_an_unknown_domain_and_an_absent_solo_mode_are_named(tau2: Any, worlds: Worlds) -> None:
    with pytest.raises(WorldError, match="no domain 'nowhere'; it has airline, banking_knowledge, mock"):
        UpstreamWorld("nowhere")
    with pytest.raises(WorldError, match="'retail' has no solo mode"):
        worlds.open("tau2", "retail").policy(solo=True)


def test_an_absent_package_is_named_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tau2", None)
    monkeypatch.setitem(sys.modules, "tau2.registry", None)
    with pytest.raises(WorldError, match=r"'tau2' cannot open 'retail': .* install tau2-bench from https://"):
        UpstreamWorld("retail")


def test_a_package_of_another_distribution_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setitem(sys.modules, "tau2", types.ModuleType("tau2"))
    monkeypatch.setitem(sys.modules, "tau2.registry", types.SimpleNamespace(registry=None))
    monkeypatch.setattr("importlib.metadata.version", version)
    with pytest.raises(WorldError, match=r"No package metadata was found for tau2; .* install tau2-bench"):
        UpstreamWorld("retail")
