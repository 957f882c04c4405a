"""What scoring makes of judges, of malformed traces and of solo mode."""

from collections.abc import Sequence

import pytest

from pytest_trace2evolve.agents.reference import NopAgent
from pytest_trace2evolve.errors import JudgeError
from pytest_trace2evolve.records.message import Message, Requestor, ToolCall
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.score import Check, JudgeUse, Status
from pytest_trace2evolve.records.task import RewardBasis, Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.worlds.registry import Worlds
from tests.conftest import Simulate

NL = RewardBasis.NL_ASSERTION
USE = JudgeUse(model="fake", prompt_version="0", prompt_tokens=7)


class FakeJudge:
    """Grades as told; remembers what it was asked."""

    def __init__(self, *met: bool) -> None:
        self.met = met
        self.asked: list[tuple[str, ...]] = []

    def judge(self, assertions: Sequence[str], trace: Sequence[Message]) -> tuple[list[Check], JudgeUse]:
        self.asked.append(tuple(assertions))
        return [Check(wanted=text, met=met) for text, met in zip(assertions, self.met, strict=True)], USE


class BrokenJudge:
    """Never answers."""

    def judge(self, assertions: Sequence[str], trace: Sequence[Message]) -> tuple[list[Check], JudgeUse]:
        raise JudgeError("judge 'broken' did not answer: down")


@pytest.fixture(scope="module")
def polite(desk: World) -> Task:
    return desk.tasks()["polite"]


@pytest.fixture
def heard(desk: World, polite: Task, simulate: Simulate) -> Simulation:
    return simulate(polite, desk)


def call(name: str, call_id: str = "c", by: Requestor = "assistant", **arguments: object) -> Message:
    return Message(role=by, tool_calls=[ToolCall(id=call_id, name=name, arguments=arguments, requestor=by)])


def answer(call_id: str = "c", by: Requestor = "assistant") -> Message:
    return Message(role="tool", id=call_id, content="", requestor=by)


def told(simulation: Simulation, *messages: Message) -> Simulation:
    return simulation.model_copy(update={"messages": list(messages)})


HELLO = Message(role="assistant", content="Hi!")
STOP = Message(role="user", content="###STOP###")


def test_without_a_judge_the_reward_is_not_measured(heard: Simulation, polite: Task, desk: World) -> None:
    result = score(heard, polite, desk)
    assert (result.status, result.reward) == (Status.NOT_MEASURED, None)
    assert NL not in result.components
    assert result.components[RewardBasis.DB] == 1
    assert result.note == (
        "the task's reward needs a judge of natural-language assertions, and none was given"
    )


def test_without_a_judge_not_even_a_missed_component_gives_0(
    heard: Simulation, polite: Task, desk: World
) -> None:
    spoiled = told(heard, HELLO, call("close_ticket", ticket_id="T1"), answer(), STOP)
    result = score(spoiled, polite, desk)
    assert (result.status, result.reward) == (Status.NOT_MEASURED, None)
    assert result.components[RewardBasis.DB] == 0


@pytest.mark.parametrize("met", [True, False])
def test_a_judges_answer_is_a_component_of_the_reward(
    heard: Simulation, polite: Task, desk: World, met: bool
) -> None:
    judge = FakeJudge(met)
    result = score(heard, polite, desk, judge)
    assert (result.status, result.reward) == (Status.MEASURED, float(met))
    assert judge.asked == [("The agent greets the user",)]
    assert [check.met for check in result.nl_assertions] == [met]
    assert result.judge == USE


def test_a_judge_that_fails_leaves_the_reward_not_measured(
    heard: Simulation, polite: Task, desk: World
) -> None:
    result = score(heard, polite, desk, BrokenJudge())
    assert (result.status, result.reward) == (Status.NOT_MEASURED, None)
    assert result.note == "judge 'broken' did not answer: down"


def test_a_judge_is_not_asked_where_the_basis_does_not_name_it(
    heard: Simulation, polite: Task, desk: World
) -> None:
    assert polite.evaluation_criteria is not None
    criteria = polite.evaluation_criteria.model_copy(update={"reward_basis": [RewardBasis.DB]})
    judge = FakeJudge(False)
    result = score(heard, polite.model_copy(update={"evaluation_criteria": criteria}), desk, judge)
    assert result.reward == 1
    assert judge.asked == []


@pytest.mark.parametrize("assertions", [None, []])
def test_a_basis_that_names_a_judge_with_nothing_to_grade_gives_1(
    heard: Simulation, polite: Task, desk: World, assertions: list[str] | None
) -> None:
    assert polite.evaluation_criteria is not None
    criteria = polite.evaluation_criteria.model_copy(update={"nl_assertions": assertions})
    result = score(heard, polite.model_copy(update={"evaluation_criteria": criteria}), desk)
    assert (result.status, result.reward) == (Status.MEASURED, 1.0)


@pytest.mark.parametrize(
    ("messages", "note"),
    [
        ([], "the simulation ended regularly and has no messages"),
        ([HELLO, answer("x"), STOP], "message 1 is a tool result that no tool call asked for"),
        ([HELLO, call("think"), STOP], "message 2 follows call 'c', which has no result"),
        ([HELLO, call("think")], "the trace ends before call 'c' has a result"),
        ([call("think", "a"), answer("b")], "message 1 answers call 'b', expected 'a'"),
        ([call("think"), answer(), answer()], "message 2 is a tool result that no tool call asked for"),
    ],
)
def test_a_malformed_trace_is_not_measured_and_says_why(
    heard: Simulation, desk: World, messages: list[Message], note: str
) -> None:
    result = score(told(heard, *messages), desk.tasks()["close"], desk)
    assert (result.status, result.reward, result.components) == (Status.NOT_MEASURED, None, {})
    assert result.note == note


def test_parallel_calls_are_answered_in_their_order(heard: Simulation, desk: World) -> None:
    close = call("close_ticket", "one", ticket_id="T1").tool_calls or []
    look = call("get_ticket", "two", ticket_id="T1").tool_calls or []
    both = Message(role="assistant", tool_calls=[*close, *look])
    said = Message(role="assistant", content="T1 is closed")
    task = desk.tasks()["close"]
    assert score(told(heard, HELLO, both, answer("one"), answer("two"), said, STOP), task, desk).reward == 1
    swapped = score(told(heard, HELLO, both, answer("two"), answer("one"), said, STOP), task, desk)
    assert swapped.note == "message 2 answers call 'two', expected 'one'"


def test_calls_of_unknown_tools_are_skipped(heard: Simulation, desk: World) -> None:
    flown = told(heard, HELLO, call("fly", to="moon"), answer(), STOP)
    result = score(flown, desk.tasks()["idle"], desk)
    assert (result.status, result.reward) == (Status.MEASURED, 1.0)


def test_the_users_calls_are_replayed_and_matched_too(heard: Simulation, desk: World) -> None:
    task = desk.tasks()["restart"]
    acted = told(heard, HELLO, call("restart_phone", by="user"), answer(by="user"), STOP)
    result = score(acted, task, desk)
    assert (result.reward, result.db_match, result.actions[0].matched) == (1, True, True)
    idle = score(told(heard, HELLO, STOP), task, desk)
    assert (idle.reward, idle.db_match, idle.actions[0].matched) == (0, False, False)


def alone(simulation: Simulation) -> list[Message]:
    """The trace as an agent without a user would leave it: it makes the user's calls itself."""
    kept: list[Message] = []
    for message in simulation.trace:
        if message.role == "tool":
            kept.append(message.model_copy(update={"requestor": "assistant"}))
        elif message.tool_calls:
            own = [each.model_copy(update={"requestor": "assistant"}) for each in message.tool_calls]
            kept.append(Message(role="assistant", tool_calls=own))
        elif message.role == "assistant":
            kept.append(message)
    return kept


def test_in_solo_mode_the_agent_may_call_the_users_tools(worlds: Worlds, simulate: Simulate) -> None:
    telecom = worlds.open("inspect_evals", "telecom")
    name = next(name for name in telecom.splits()["small"] if name.startswith("[service_issue]overdue_bill"))
    task = telecom.tasks()[name]
    assert {action.requestor for action in task.actions} == {"assistant", "user"}
    trace = alone(simulate(task, telecom))
    solo = simulate(task, telecom).model_copy(update={"messages": trace, "termination_reason": "agent_stop"})
    assert score(solo, task, telecom).reward == 1
    accompanied = told(solo, *trace, Message(role="user", content="Are you there?"))
    assert score(accompanied, task, telecom).reward == 0


def test_doing_nothing_in_solo_mode_does_not_solve_a_task(desk: World, simulate: Simulate) -> None:
    task = desk.tasks()["restart"]
    idle = simulate(task, desk, NopAgent())
    assert score(told(idle, HELLO), task, desk).reward == 0
