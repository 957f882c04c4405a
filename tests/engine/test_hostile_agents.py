"""An agent's own code that returns or does anything: its simulation ends as its own, and is stored."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_trace2evolve.engine.agent_code import run_agent_code
from pytest_trace2evolve.engine.conversation import Assignment, Limits
from pytest_trace2evolve.engine.conversation import simulate as engine_simulate
from pytest_trace2evolve.errors import (
    AgentCodeError,
    ConfigError,
    InfrastructureError,
    TraceError,
    WorldError,
)
from pytest_trace2evolve.evidence.draws import SimulationStore
from pytest_trace2evolve.evidence.run_folder import RunStore, simulation_record
from pytest_trace2evolve.project.candidates import AgentFactory, Candidate
from pytest_trace2evolve.records.message import MAX_TOOL_CALLS, Message, ToolCall
from pytest_trace2evolve.records.protocols import World, WorldSession
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.reward import score
from tests.conftest import Simulate

DONE = Message(role="user", content="###STOP###")


class Agent:
    """Answers by a function of its turn, from 0."""

    name = "hostile"

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self._answer = answer
        self._turn = -1

    async def respond(self, history: Sequence[Message]) -> Message:
        self._turn += 1
        answer = self._answer(self._turn)
        answer = await answer if isinstance(answer, Coroutine) else answer
        message: Message = answer
        return message


class User:
    """Asks once, and ends when the agent has answered in words."""

    name = "user"

    async def respond(self, history: Sequence[Message]) -> Message:
        return DONE if len(history) > 2 else Message(role="user", content="Hello.")


@pytest.fixture
def idle(desk: World) -> Task:
    return desk.tasks()["idle"]


def keep(simulation: Simulation, task: Task, world: World, folder: Path) -> float | None:
    """Store a simulation in every way, read it back, and score it."""
    store = SimulationStore(folder)
    store.put("key", simulation)
    assert store.get("key") == simulation
    result = score(simulation, task, world)
    RunStore(folder).write_simulation(simulation_record(simulation, result))
    return result.reward


def say(**fields: Any) -> Message:
    return Message(role="assistant", content="Hello.").model_copy(update=fields)


def call(name: str = "get_ticket", **fields: Any) -> Message:
    made = ToolCall(id="c", name=name, arguments={}).model_copy(update=fields)
    return Message(role="assistant", tool_calls=[made])


def first(message: Message) -> Callable[[int], Message]:
    """The message, and then words."""
    return lambda turn: message if turn == 0 else say()


DEEP: dict[str, Any] = {}
for _ in range(900):
    DEEP = {"a": DEEP}
ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)

SCORED = {
    "surrogates": say(content="a\ud800b"),
    "NUL": say(content="a\0b"),
    "a megabyte": say(content="x" * 1_000_000),
    "further fields": say(reasoning="\ud800", usage={"prompt_tokens": 10**40}, cost=1e308),
    "levels": call(arguments={"ticket_id": DEEP}),
    "a list in itself": call(arguments={"ticket_id": ENDLESS}),
    "NaN": call(arguments={"ticket_id": math.nan}),
    "digits": call(arguments={"ticket_id": 10**5000}),
    "a surrogate as argument": call(arguments={"ticket_id": "\ud800"}),
    "an object as argument": call(arguments={"ticket_id": object()}),
    "no arguments object": call(arguments=["ticket_id"]),
    "a strange name": call("\ud800\0 ../"),
    "no name": call(""),
    "a strange id": call(id="\ud800"),
    "no id": call(id=""),
}


@pytest.mark.parametrize("message", SCORED.values(), ids=SCORED)
def test_what_an_agent_writes_is_scored_and_stored(
    desk: World, idle: Task, simulate: Simulate, tmp_path: Path, message: Message
) -> None:
    done = simulate(idle, desk, Agent(first(message)), User())
    assert done.termination_reason == "user_stop"
    assert keep(done, idle, desk, tmp_path) == 1.0
    if message.tool_calls:
        results = [one for one in done.trace if one.role == "tool"]
        assert [one.error for one in results] == [True]


MANY = [ToolCall(id=str(number), name="get_ticket", arguments={}) for number in range(20_000)]

FAILED = {
    "20,000 calls": (
        say(tool_calls=MANY),
        "respond returned a message with too many tool calls: 20000, at most 128",
    ),
    "a user's message": (say(role="user"), "respond returned a message of role 'user', expected 'assistant'"),
    "a tool's message": (say(role="tool"), "respond returned a message of role 'tool', expected 'assistant'"),
    "a user's call": (call(requestor="user"), "respond returned a call of 'get_ticket' by 'user', expected"),
    "a number": (say(content=5), "respond returned a message that cannot be stored: "),
    "bytes": (say(content=b"x"), "respond returned a message that cannot be stored: "),
    "an object beside it": (say(raw=object()), "respond returned a message that cannot be stored: "),
    "levels beside it": (say(raw=DEEP), "respond returned a message that cannot be stored: "),
    "calls as text": (say(tool_calls="x"), "respond returned a message whose 'tool_calls' is not a list"),
    "calls as objects": (say(tool_calls=[{"name": "x"}]), "respond returned a message whose 'tool_calls'"),
}


@pytest.mark.parametrize(("message", "problem"), FAILED.values(), ids=FAILED)
def test_a_message_that_is_no_answer_is_the_agents_failure(
    desk: World, idle: Task, simulate: Simulate, tmp_path: Path, message: Message, problem: str
) -> None:
    done = simulate(idle, desk, Agent(first(message)), User())
    assert done.termination_reason == "agent_error"
    assert done.error_text.startswith(problem)
    assert keep(done, idle, desk, tmp_path) == 0.0


def test_as_many_calls_as_a_message_may_have_are_all_run(
    desk: World, idle: Task, simulate: Simulate, tmp_path: Path
) -> None:
    done = simulate(
        idle, desk, Agent(first(say(tool_calls=MANY[:MAX_TOOL_CALLS]))), User(), Limits(max_errors=10**6)
    )
    assert sum(one.role == "tool" for one in done.trace) == MAX_TOOL_CALLS
    assert keep(done, idle, desk, tmp_path) == 1.0


def test_too_many_calls_of_the_user_lose_the_simulation(desk: World, idle: Task, simulate: Simulate) -> None:
    class Calling(User):
        async def respond(self, history: Sequence[Message]) -> Message:
            return Message(
                role="user", tool_calls=[one.model_copy(update={"requestor": "user"}) for one in MANY]
            )

    done = simulate(idle, desk, Agent(first(say())), Calling())
    assert done.termination_reason == "infrastructure_error"
    assert "too many tool calls: 20000, at most 128" in done.error_text


async def cancel_own_task() -> Message:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return say()


async def cancel_own_task_and_wait() -> Message:
    await cancel_own_task()
    await asyncio.sleep(0)
    return say()


class Mute:
    """An agent whose method bears another name."""

    name = "mute"


class Guarded:
    """An agent whose attributes raise."""

    def __getattribute__(self, name: str) -> Any:
        raise KeyError(name)


@pytest.mark.parametrize("make", [Mute, Guarded])
def test_an_agent_that_cannot_be_asked_fails_its_simulation(
    desk: World, idle: Task, simulate: Simulate, make: Callable[[], Any]
) -> None:
    done = simulate(idle, desk, make(), User())
    assert done.termination_reason == "agent_error"


@pytest.mark.parametrize("cancel", [cancel_own_task, cancel_own_task_and_wait])
def test_an_agent_that_cancels_its_own_task_fails_its_simulation(
    desk: World, idle: Task, simulate: Simulate, tmp_path: Path, cancel: Callable[[], Any]
) -> None:
    done = simulate(idle, desk, Agent(lambda turn: cancel()), User())
    assert done.termination_reason == "agent_error"
    assert done.error_text == "CancelledError: the agent's code cancelled its own task"
    assert keep(done, idle, desk, tmp_path) == 0.0


@pytest.mark.parametrize("error", [WorldError("x"), ConfigError("x"), TraceError("x")])
def test_an_error_of_this_package_that_an_agent_raises_is_its_own(
    desk: World, idle: Task, simulate: Simulate, error: Exception
) -> None:
    def fails(turn: int) -> Message:
        raise error

    done = simulate(idle, desk, Agent(fails), User())
    assert done.termination_reason == "agent_error"
    assert done.error_text == f"{type(error).__name__}: x"
    assert done.agent_error is not None
    assert "test_hostile_agents.py" in done.agent_error.frames


class ClosedWorld:
    def policy(self) -> str:
        raise WorldError("the data files are gone")


def test_a_failure_of_the_world_stays_the_worlds() -> None:
    world = ClosedWorld()

    async def respond() -> Any:
        return world.policy()

    with pytest.raises(WorldError):
        asyncio.run(run_agent_code(respond, "respond", respond, world))

    async def failing() -> Any:
        raise WorldError("I say so")

    failing.__module__ = "elsewhere"
    with pytest.raises(AgentCodeError, match="WorldError: I say so"):
        asyncio.run(run_agent_code(failing, "respond", failing, object()))


def test_an_edit_of_what_an_agent_was_given_or_gave_changes_no_trace(
    desk: World, simulate: Simulate, tmp_path: Path
) -> None:
    task = desk.tasks()["look"].model_copy(deep=True)
    arguments = {"ticket_id": "T1", "more": ["a"]}

    class Meddler:
        name = "meddler"

        async def respond(self, history: Sequence[Message]) -> Message:
            if len(history) < 3:
                return call(arguments=arguments)
            arguments["more"].append("b")  # type: ignore[attr-defined]
            for made in (made for message in history for made in message.tool_calls or ()):
                made.arguments.update(ticket_id="T2")
                del made.arguments["more"]
            return say()

    def make(task: Task, *_: object) -> tuple[Any, Any]:
        assert task.evaluation_criteria is not None
        task.evaluation_criteria.actions.clear()  # type: ignore[union-attr]
        return Meddler(), User()

    assignment = Assignment(task, desk, make, None, 0, Limits())  # type: ignore[arg-type]
    done = asyncio.run(engine_simulate(assignment))
    (made,) = [made for message in done.trace for made in message.tool_calls or ()]
    assert made.arguments == {"ticket_id": "T1", "more": ["a"]}
    assert keep(done, task, desk, tmp_path) == 0.0


class OddError(BaseException):
    pass


def made(world: object, agent: object, task: Task) -> Coroutine[Any, Any, Simulation]:
    """One simulation of the engine."""

    def factory(*_: object) -> Any:
        return agent, User()

    nobody = cast(Candidate, None)
    return engine_simulate(
        Assignment(task, cast(World, world), cast(AgentFactory, factory), nobody, 0, Limits())
    )


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), OddError()]
)
def test_a_world_ends_nothing_but_its_simulation(error: BaseException, idle: Task) -> None:
    class Breaking:
        def open(self, *, solo: bool) -> None:
            raise error

    with pytest.raises(InfrastructureError, match="which ends more than one simulation"):
        asyncio.run(made(Breaking(), Agent(lambda turn: say()), idle))


def test_a_world_that_cancels_its_own_task_loses_its_simulation(desk: World, idle: Task) -> None:
    class Cancelling:
        def open(self, *, solo: bool) -> WorldSession:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            return desk.open(solo=solo)

    with pytest.raises(InfrastructureError, match="CancelledError"):
        asyncio.run(made(Cancelling(), Agent(lambda turn: say()), idle))


def test_a_simulation_is_cancelled_from_outside(desk: World, idle: Task) -> None:
    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await made(desk, Agent(lambda turn: asyncio.Event().wait()), idle)

    asyncio.run(cancelled())
