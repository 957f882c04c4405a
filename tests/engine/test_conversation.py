"""The conversation: who speaks when, what ends it, and what it leaves on paper."""

import asyncio
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.agents.reference import NopAgent
from pytest_trace2evolve.engine.conversation import Limits
from pytest_trace2evolve.errors import InfrastructureError
from pytest_trace2evolve.evidence.results import read_results
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import Agent, User, World
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.worlds.registry import Worlds
from tests.conftest import Simulate

SIZES = {"retail": 114, "airline": 50, "telecom": 114, "banking_knowledge": 97}


class Scripted:
    """An agent or a user that says its lines in order and repeats the last; an error line is raised."""

    name = "scripted"

    def __init__(self, *lines: Any) -> None:
        self._lines = list(lines)

    async def respond(self, history: Sequence[Message]) -> Message:
        line = self._lines.pop(0) if len(self._lines) > 1 else self._lines[0]
        if isinstance(line, BaseException):
            raise line
        answer: Message = line
        return answer


def says(text: str) -> Message:
    return Message(role="assistant", content=text)


def user_says(text: str) -> Message:
    return Message(role="user", content=text)


def calls(*names: str, **arguments: str) -> Message:
    each = [ToolCall(id=f"c{place}", name=name, arguments=arguments) for place, name in enumerate(names)]
    return Message(role="assistant", tool_calls=each)


CHATTER = Scripted(user_says("And then?"))


@pytest.fixture
def idle(desk: World) -> Task:
    return desk.tasks()["idle"]


def roles(simulation: Simulation) -> list[str]:
    return [message.role for message in simulation.trace]


@pytest.mark.parametrize(("domain", "size"), SIZES.items())
def test_the_oracle_earns_1_on_every_base_task(
    worlds: Worlds, simulate: Simulate, domain: str, size: int
) -> None:
    world = worlds.open("inspect_evals", domain)
    rewards = {}
    for task_id in world.splits()["base"]:
        task = world.tasks()[task_id]
        rewards[task_id] = score(simulate(task, world), task, world).reward
    assert len(rewards) == size
    assert {task_id: reward for task_id, reward in rewards.items() if reward != 1.0} == {}


@pytest.mark.parametrize("domain", ["retail", "airline"])
def test_doing_nothing_earns_1_exactly_where_nothing_is_asked_for(
    worlds: Worlds, simulate: Simulate, domain: str
) -> None:
    world = worlds.open("inspect_evals", domain)
    for task_id in world.splits()["base"]:
        task = world.tasks()[task_id]
        result = score(simulate(task, world, NopAgent()), task, world)
        gold, untouched = world.open(), world.open()
        for action in task.actions:
            gold.perform(action)
        assert task.evaluation_criteria is not None
        asked = not gold.same_state(untouched) or bool(task.evaluation_criteria.communicate_info)
        assert result.reward == float(not asked), task_id


@pytest.mark.parametrize("mark", ["###STOP###", "Bye ###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###"])
def test_a_mark_in_the_users_message_ends_the_simulation(
    desk: World, idle: Task, simulate: Simulate, mark: str
) -> None:
    done = simulate(idle, desk, NopAgent(), Scripted(user_says("Hi"), user_says(mark)))
    assert (done.termination_reason, roles(done)) == ("user_stop", ["assistant", "user", "assistant", "user"])


def test_the_agent_ends_the_simulation_by_the_stop_mark_alone(
    desk: World, idle: Task, simulate: Simulate
) -> None:
    done = simulate(idle, desk, Scripted(says(" ###STOP### ")), CHATTER)
    assert (done.termination_reason, roles(done)) == ("agent_stop", ["assistant", "user", "assistant"])
    limited = Limits(max_steps=6)
    quoting = simulate(idle, desk, Scripted(says("Say ###STOP### to end")), CHATTER, limited)
    assert quoting.termination_reason == "max_steps"


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_step_budget_ends_a_simulation(desk: World, idle: Task, simulate: Simulate, steps: int) -> None:
    done = simulate(idle, desk, NopAgent(), CHATTER, Limits(max_steps=steps))
    assert done.termination_reason == "max_steps"
    assert len(done.trace) == steps + 1


@pytest.mark.parametrize(("steps", "turns"), [(2, 1), (3, 1), (4, 2), (5, 2)])
def test_a_batch_of_calls_is_a_step_and_so_are_its_results_which_the_budget_waits_for(
    desk: World, idle: Task, simulate: Simulate, steps: int, turns: int
) -> None:
    thinking = Scripted(calls("think", "think", thought="?"))
    done = simulate(idle, desk, thinking, CHATTER, Limits(max_steps=steps))
    assert done.termination_reason == "max_steps"
    assert roles(done) == ["assistant", "user", *["assistant", "tool", "tool"] * turns]


@pytest.mark.parametrize("errors", [1, 3])
def test_too_many_tool_errors_end_a_simulation(
    desk: World, idle: Task, simulate: Simulate, errors: int
) -> None:
    done = simulate(idle, desk, Scripted(calls("no_such_tool")), CHATTER, Limits(max_errors=errors))
    assert done.termination_reason == "too_many_errors"
    assert [message.error for message in done.trace if message.role == "tool"] == [True] * errors


@pytest.mark.parametrize("side", ["agent", "user"])
def test_a_lost_simulation_is_an_infrastructure_error_with_its_trace_so_far(
    desk: World, idle: Task, simulate: Simulate, side: str
) -> None:
    broken = Scripted(InfrastructureError("the endpoint is down"))
    agent: Agent = broken if side == "agent" else NopAgent()
    user: User = broken if side == "user" else CHATTER
    done = simulate(idle, desk, agent, user)
    assert done.termination_reason == "infrastructure_error"
    assert len(done.trace) == (2 if side == "agent" else 1)
    assert done.model_dump()["info"] == {"error": "the endpoint is down"}


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("by zero"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
    ],
)
def test_an_exception_of_the_agents_code_is_the_agents_failure(
    desk: World, idle: Task, simulate: Simulate, error: BaseException
) -> None:
    done = simulate(idle, desk, Scripted(error), CHATTER)
    info = done.model_dump()["info"]
    assert done.termination_reason == "agent_error"
    assert info["error"].startswith(type(error).__name__)
    assert "in respond" in info["traceback"]
    assert score(done, idle, desk).reward == 0.0


@pytest.mark.parametrize("answer", [None, "Hello.", {"role": "assistant"}])
def test_an_answer_that_is_no_message_is_the_agents_failure(
    desk: World, idle: Task, simulate: Simulate, answer: object
) -> None:
    done = simulate(idle, desk, Scripted(answer), CHATTER)
    assert done.termination_reason == "agent_error"
    text = f"respond returned {type(answer).__name__}, not a Message"
    assert done.model_dump()["info"] == {"error": text, "cause": text}


class OverloadedError(Exception):
    status_code = 503


@pytest.mark.parametrize(
    "error",
    [ConnectionResetError("gone"), TimeoutError(), socket.gaierror("no such host"), OverloadedError()],
)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_network_error_of_the_agents_is_infrastructure(
    desk: World, idle: Task, simulate: Simulate, error: Exception, is_wrapped: bool
) -> None:
    if is_wrapped:
        wrapper = RuntimeError("the client failed")
        wrapper.__cause__ = error
        error = wrapper
    done = simulate(idle, desk, Scripted(error), CHATTER)
    assert done.termination_reason == "infrastructure_error"
    assert done.model_dump()["info"]["error"].startswith("the agent's respond could not reach a service: ")


def test_a_message_history_is_replayed_and_continued(desk: World, simulate: Simulate) -> None:
    call = calls("close_ticket", ticket_id="T1")
    result = Message(role="tool", id="c0", content="Ticket T1 closed", requestor="assistant")
    history = [each.model_dump(mode="json") for each in (user_says("Close T1"), call, result)]
    task = Task.model_validate({"id": "t", "initial_state": {"message_history": history}})
    again = Scripted(calls("close_ticket", ticket_id="T1"), says("###STOP###"))
    done = simulate(task, desk, again, CHATTER)
    assert roles(done) == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert done.trace[4].content == "Error: Ticket T1 is closed already"


def test_a_written_simulation_survives_being_read_back(
    desk: World, simulate: Simulate, tmp_path: Path
) -> None:
    task = desk.tasks()["restart"]
    done = simulate(task, desk)
    path = tmp_path / "results.json"
    records = [record.model_dump(mode="json") for record in (task, done)]
    path.write_text(json.dumps({"tasks": records[:1], "simulations": records[1:]}), encoding="utf-8")
    found = read_results(path)
    assert found.simulations == (done,)
    assert found.tasks == {"restart": task}
    assert score(found.simulations[0], task, desk) == score(done, task, desk)
