"""A world made from an MCP server: each session has a process, and each failure is one line."""

import asyncio
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from pytest_trace2evolve import World
from pytest_trace2evolve.agents.reference import OracleAgent
from pytest_trace2evolve.cases.written import WrittenTask
from pytest_trace2evolve.engine.conversation import Limits, converse
from pytest_trace2evolve.errors import InfrastructureError, WorldError
from pytest_trace2evolve.records.protocols import Agent
from pytest_trace2evolve.records.score import Status, ToolType
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.scoring.world_checks import tool_problems
from pytest_trace2evolve.users.reference import GoldUser
from pytest_trace2evolve.worlds.mcp_server import WorldLostError

SERVER = "mcp_hotel.py"
FOLDER = Path(__file__).parent.parent


def hotel(fault: str = "", **options: Any) -> World:
    options = {"reset": "restore", "state": "dump", "folder": FOLDER, "timeout": 20.0, **options}
    return World.from_mcp(["python", SERVER, *([fault] if fault else [])], name="hotel", **options)


def task(**expect: Any) -> Task:
    return WrittenTask.model_validate(
        {"id": "t", "user": {"goal": "Cancel B17."}, "expect": expect}
    ).to_task()


CANCEL = {"name": "cancel_booking", "arguments": {"booking_id": "B17"}}


def run(of: Task, world: World, agent: Agent) -> Simulation:
    return asyncio.run(converse(of, world, agent, GoldUser(of), limits=Limits()))


@pytest.fixture(scope="module")
def world() -> World:
    return hotel()


def test_the_tools_are_those_of_the_server_without_reset_and_state(world: World) -> None:
    descriptions = {tool.name: tool.description for tool in world.tools("assistant")}
    assert descriptions["get_booking"] == "Look up a booking."
    assert descriptions["session_folder"] == "The folder of this session."
    assert not {"dump", "restore"} & descriptions.keys()
    (schema,) = [tool.parameters for tool in world.tools("assistant") if tool.name == "get_booking"]
    assert schema["required"] == ["booking_id"]
    assert world.tool_types()["get_booking"] is ToolType.READ
    assert world.tool_types()["cancel_booking"] is ToolType.WRITE
    assert world.version() == f"hotel 1.2, mcp {importlib.metadata.version('mcp')}"
    assert world.tools("user") == []


def test_sessions_have_processes_and_folders_of_their_own(world: World) -> None:
    first, second = world.open(), world.open()
    assert (
        first.call("cancel_booking", {"booking_id": "B17"}, "assistant").content
        == "Booking B17 is cancelled."
    )
    assert not first.same_state(second)
    assert second.data()["bookings"]["B17"]["status"] == "confirmed"
    folders = [session.call("session_folder", {}, "assistant").content for session in (first, second)]
    assert len(set(folders)) == 2
    assert all(Path(folder).is_dir() for folder in folders)


def test_errors_of_a_tool_and_of_a_call_are_answers_to_the_agent(world: World) -> None:
    session = world.open()
    failed = session.call("cancel_booking", {"booking_id": "B99"}, "assistant")
    assert failed.error
    assert "cancel_booking" in failed.content
    assert session.call("cancel_booking", {}, "assistant").error
    unknown = session.call("no_such_tool", {}, "assistant")
    assert (unknown.error, unknown.content) == (True, "Error: Tool 'no_such_tool' not found.")
    assert session.call("dump", {}, "assistant").error  # the agent does not have it


def test_a_server_without_a_state_tool_scores_calls_and_texts() -> None:
    world = hotel(state=None, reads=["get_booking"])
    of = task(calls=["cancel_booking"])
    solver = task(calls=[CANCEL])
    assert score(run(solver, world, OracleAgent(solver)), of, world).reward == 1
    result = score(run(solver, world, OracleAgent(solver)), solver, world)
    assert result.status is Status.NOT_MEASURED
    assert "has no tool that returns its database" in result.note
    assert [*tool_problems(world, [solver])] == []


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no start", "does not start: .*its output ends with 'cannot open the database'"),
        (
            "die",
            "its MCP server ended while it answered 'cancel_booking'.*its output ends with 'out of memory'",
        ),
        ("slow", "its MCP server did not answer 'cancel_booking' within 2 seconds"),
        ("hang", "its MCP server did not start within 2 seconds"),
        ("bad state", "its state tool 'dump' returned no JSON: no JSON"),
        ("bad reset", "its reset tool 'restore' failed: Error executing tool restore"),
    ],
)
def test_a_broken_server_is_one_line_and_loses_the_simulation(fault: str, message: str) -> None:
    timeouts = {"slow": {"timeout": 2.0}, "hang": {"start_timeout": 2.0}}
    world = hotel(fault, **timeouts.get(fault, {}))
    with pytest.raises(WorldLostError, match=message) as error:
        world.open().call("cancel_booking", {"booking_id": "B17"}, "assistant")
    assert "\n" not in str(error.value)
    assert isinstance(error.value, InfrastructureError)


def test_a_server_that_dies_in_a_simulation_is_lost_and_never_scored() -> None:
    world, of = hotel("die"), task(calls=[CANCEL])
    simulation = run(of, world, OracleAgent(of))
    assert simulation.termination_reason == "infrastructure_error"
    assert "its MCP server ended" in (simulation.error_text or "")
    healthy = run(of, hotel(), OracleAgent(of))
    result = score(healthy, of, world)  # the replay dies too
    assert (result.status, result.reward) == (Status.NOT_MEASURED, None)


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("no-such-program --x", {}, "does not start: .*no-such-program"),
        ([], {}, "its command is empty"),
        (["python", SERVER], {"state": "dmp"}, "has no tool 'dmp'; did you mean 'dump'\\?"),
        (["python", SERVER], {"reads": ["gets"]}, "has no tool 'gets'"),
        (
            ["python", SERVER],
            {"reset": ["no-such-program"]},
            "its reset command no-such-program cannot be run",
        ),
        (
            ["python", SERVER],
            {"reset": f"{sys.executable} -c 'raise SystemExit(4)'"},
            "ended with exit status 4",
        ),
    ],
)
def test_a_wrong_setting_is_one_line(command: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(WorldError, match=message) as error:
        World.from_mcp(command, folder=FOLDER, timeout=20.0, **options).tools("assistant")
    assert "\n" not in str(error.value)


def test_the_identity_follows_the_files_of_the_command(tmp_path: Path) -> None:
    (tmp_path / SERVER).write_text((FOLDER / SERVER).read_text())
    before = hotel(folder=tmp_path).fingerprint()
    assert before == hotel(folder=tmp_path).fingerprint()
    with (tmp_path / SERVER).open("a") as file:
        file.write("\n# changed\n")
    assert before != hotel(folder=tmp_path).fingerprint()


def test_a_closed_session_leaves_no_process(world: World) -> None:
    session = world.open()
    folder = session.call("session_folder", {}, "assistant").content
    session.close()
    session._running_server.stop().result(timeout=10)
    assert not Path(folder).exists()


def test_the_server_gets_no_keys_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    world = hotel(env={"HOTEL_MODE": "test"})
    names = world.open().call("environment", {}, "assistant").content.split("\n")
    assert {"PATH", "HOTEL_MODE", "TRACE2EVOLVE_SESSION"} <= {*names}
    assert "OPENAI_API_KEY" not in names
    marker = (
        "import os, pathlib; "
        "pathlib.Path(os.environ['TRACE2EVOLVE_SESSION'], 'marker').write_text(str(sorted(os.environ)))"
    )
    session = hotel(reset=["python", "-c", marker], env={"HOTEL_MODE": "test"}).open()
    session.call("restore", {}, "assistant")
    assert "OPENAI_API_KEY" not in session.data()["marker"], "the reset command gets the same environment"
    assert "HOTEL_MODE" in session.data()["marker"]
