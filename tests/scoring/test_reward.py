"""The reward of one simulation, rule by rule, on traces of the oracle and the do-nothing agent."""

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_trace2evolve.agents.reference import NopAgent
from pytest_trace2evolve.records.message import Message, Requestor, ToolCall
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.score import Status
from pytest_trace2evolve.records.task import RewardBasis, Task
from pytest_trace2evolve.records.trace import REGULAR_ENDS, Simulation, TerminationReason
from pytest_trace2evolve.scoring.reward import calls_with_results, matches, score
from pytest_trace2evolve.worlds.registry import Worlds
from tests.conftest import Simulate

DB, ENV, SAID, ACTION, NL = RewardBasis


@pytest.fixture(scope="module")
def retail(worlds: Worlds) -> World:
    return worlds.open("inspect_evals", "retail")


@pytest.fixture(scope="module")
def telecom(worlds: Worlds) -> World:
    return worlds.open("inspect_evals", "telecom")


@pytest.fixture(scope="module")
def cancel(retail: World) -> Task:
    """Two orders are to be cancelled and 1939.05 is to be said; DB and COMMUNICATE."""
    return retail.tasks()["76"]


@pytest.fixture(scope="module")
def roaming(telecom: World) -> Task:
    """The agent enables roaming, the user toggles it; ENV_ASSERTION."""
    start = "[mobile_data_issue]user_abroad_roaming_disabled_off["
    return next(telecom.tasks()[name] for name in telecom.splits()["small"] if name.startswith(start))


@pytest.fixture(scope="module")
def solved(cancel: Task, retail: World, simulate: Simulate) -> Simulation:
    return simulate(cancel, retail)


def having(task: Task, **criteria: Any) -> Task:
    """The task with other evaluation criteria."""
    assert task.evaluation_criteria is not None
    return Task.model_validate(
        task.model_dump() | {"evaluation_criteria": task.evaluation_criteria.model_dump() | criteria}
    )


def telling(simulation: Simulation, messages: Sequence[Message], **fields: Any) -> Simulation:
    return simulation.model_copy(update={"messages": list(messages), **fields})


def exchange(name: str, requestor: Requestor = "assistant", **arguments: Any) -> list[Message]:
    """A tool call and its result."""
    call = ToolCall(id="extra", name=name, arguments=arguments, requestor=requestor)
    answer = Message(role="tool", id="extra", content="", requestor=requestor)
    return [Message(role=requestor, tool_calls=[call]), answer]


def after_opening(simulation: Simulation, *messages: Message) -> Simulation:
    return telling(simulation, [*simulation.trace[:2], *messages, *simulation.trace[2:]])


@pytest.mark.parametrize("reason", sorted({*TerminationReason, "made_up"} - REGULAR_ENDS))
def test_a_premature_end_gives_0_without_checks(
    reason: str, cancel: Task, retail: World, solved: Simulation
) -> None:
    result = score(solved.model_copy(update={"termination_reason": reason}), cancel, retail)
    if reason == "infrastructure_error":
        assert (result.status, result.reward) == (Status.INFRASTRUCTURE_ERROR, None)
    else:
        assert (result.status, result.reward) == (Status.MEASURED, 0.0)
        assert result.note == f"ended early: {reason}"
    assert result.components == {}


@pytest.mark.parametrize("messages", [None, []])
def test_a_task_without_criteria_gives_1(
    cancel: Task, retail: World, solved: Simulation, messages: list[Message] | None
) -> None:
    free = Task.model_validate({"id": "free"})
    result = score(solved.model_copy(update={"messages": messages}), free, retail)
    assert (result.status, result.reward) == (Status.MEASURED, 1.0)


def test_the_reward_is_the_product_of_the_basis_and_the_rest_are_diagnostics(
    cancel: Task, retail: World, solved: Simulation, simulate: Simulate
) -> None:
    assert score(solved, cancel, retail).components == {DB: 1, ENV: 1, SAID: 1, ACTION: 1}
    idle = simulate(cancel, retail, NopAgent())
    result = score(idle, cancel, retail)
    assert (result.reward, result.components) == (0, {DB: 0, ENV: 1, SAID: 0, ACTION: 0})
    assert score(idle, having(cancel, reward_basis=["ENV_ASSERTION"]), retail).reward == 1
    assert score(idle, having(cancel, reward_basis=["ENV_ASSERTION", "ACTION"]), retail).reward == 0


@pytest.mark.parametrize(
    ("extra", "reward"),
    [
        (exchange("get_order_details", order_id="#W8367380"), 1),
        (exchange("no_such_tool", order_id="#W8367380"), 1),
        (exchange("cancel_pending_order", order_id="#W0", reason="no longer needed"), 1),
        (exchange("cancel_pending_order", order_id="#W5199551", reason="no longer needed"), 0),
    ],
    ids=["a read", "an unknown tool", "a failing write", "a write too many"],
)
def test_only_what_a_call_changes_counts_for_the_database(
    extra: list[Message], reward: int, cancel: Task, retail: World, solved: Simulation
) -> None:
    assert score(after_opening(solved, *extra), cancel, retail).reward == reward


def test_a_failing_gold_action_leaves_the_gold_world_as_it_is(
    cancel: Task, retail: World, solved: Simulation
) -> None:
    gold = [action.model_dump() for action in cancel.actions]
    bad = [{"name": "no_such_tool", "arguments": {}}, {"name": "cancel_pending_order", "arguments": {}}]
    task = having(cancel, actions=[*bad, *gold])
    assert score(solved, task, retail).reward == 1
    assert [check.tool_type for check in score(solved, task, retail).actions[:2]] == ["unknown", "write"]


def test_both_worlds_start_from_the_message_history(cancel: Task, retail: World, solved: Simulation) -> None:
    history = exchange("cancel_pending_order", order_id="#W5199551", reason="no longer needed")
    started = cancel.model_copy(
        update={"initial_state": Task.model_validate({"id": "t", "initial_state": {}}).initial_state}
    )
    assert started.initial_state is not None
    started = started.model_copy(
        update={"initial_state": started.initial_state.model_copy(update={"message_history": history})}
    )
    assert score(solved, started, retail).components[DB] == 0
    assert score(telling(solved, [*history, *solved.trace]), started, retail).components[DB] == 1


def test_env_assertions_run_on_the_predicted_world(roaming: Task, telecom: World, simulate: Simulate) -> None:
    done, idle = simulate(roaming, telecom), simulate(roaming, telecom, NopAgent())
    assert [check.met for check in score(done, roaming, telecom).env_assertions] == [True, True]
    assert score(done, roaming, telecom).reward == 1
    assert score(idle, roaming, telecom).reward == 0
    criteria = roaming.evaluation_criteria
    assert criteria is not None
    negated = [wanted.model_dump() | {"assert_value": False} for wanted in criteria.env_assertions or []]
    assert score(idle, having(roaming, env_assertions=negated), telecom).reward == 1


def test_an_assertion_that_the_world_does_not_have_is_not_measured(
    roaming: Task, telecom: World, simulate: Simulate
) -> None:
    alien = [{"env_type": "user", "func_name": "assert_love", "arguments": {}}]
    result = score(simulate(roaming, telecom), having(roaming, env_assertions=alien), telecom)
    assert result.status is Status.NOT_MEASURED
    assert "the user toolkit has no function 'assert_love'" in result.note


@pytest.mark.parametrize(
    ("said", "info", "met"),
    [
        ("It is $1,939.05 in all.", "1939.05", True),
        ("It is $1939.05 in all.", "1,939.05", False),
        ("Paid by MASTERCARD", "MasterCard", True),
        ("It is 1939", "1939.05", False),
        (" \n ", "\n", False),
        (None, "none", False),
    ],
)
def test_the_agent_has_said_it_in_any_case_and_with_any_commas(
    said: str | None, info: str, met: bool, cancel: Task, retail: World, solved: Simulation
) -> None:
    trace = [Message(role="assistant", content=said), Message(role="user", content="1939.05 1,939.05")]
    result = score(telling(solved, trace), having(cancel, communicate_info=[info]), retail)
    assert [check.met for check in result.communicate] == [met]
    assert result.components[SAID] == float(met)


@pytest.mark.parametrize(
    ("compare_args", "given", "matched"),
    [
        (None, {"a": 1, "b": 2}, True),
        (None, {"a": 1}, True),
        (None, {"a": 9}, False),
        (None, {"a": 1, "b": 2, "c": 3}, False),
        (None, {}, True),
        ([], {"a": 9}, True),
        (["a"], {"a": 1, "b": 9}, True),
        (["a"], {"b": 2}, False),
        (["zzz"], {"a": 9}, True),
        (["a", "b"], {"a": 1.0, "b": 2}, True),
    ],
)
def test_a_call_matches_an_action_over_the_compared_arguments(
    compare_args: list[str] | None, given: dict[str, Any], matched: bool, cancel: Task
) -> None:
    record = {"name": "tool", "arguments": {"a": 1, "b": 2}, "compare_args": compare_args}
    action = having(cancel, actions=[record]).actions[0]
    assert matches(action, ToolCall(name="tool", arguments=given)) is matched
    assert not matches(action, ToolCall(name="other", arguments=given))


# Judges, malformed traces and solo mode.


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


def output_of(simulation: Simulation, *messages: Message) -> Simulation:
    return simulation.model_copy(update={"messages": list(messages)})


HELLO = Message(role="assistant", content="Hi!")
STOP = Message(role="user", content="###STOP###")


@pytest.mark.parametrize(
    ("messages", "note"),
    [
        ([], "the simulation ended regularly, but has no messages"),
        ([HELLO, answer("x"), STOP], "message 1 is a tool result without a tool call"),
        ([HELLO, call("think"), STOP], "message 2 follows call 'c', which has no result"),
        ([HELLO, call("think")], "the trace ends before call 'c' has a result"),
        ([call("think", "a"), answer("b")], "message 1 answers call 'b', expected 'a'"),
        ([call("think"), answer(), answer()], "message 2 is a tool result without a tool call"),
    ],
)
def test_a_malformed_trace_is_not_measured_and_says_why(
    heard: Simulation, desk: World, messages: list[Message], note: str
) -> None:
    result = score(output_of(heard, *messages), desk.tasks()["close"], desk)
    assert (result.status, result.reward, result.components) == (Status.NOT_MEASURED, None, {})
    assert result.note == note


def test_a_result_belongs_to_the_first_open_call_with_its_id_of_the_last_message() -> None:
    twice = [ToolCall(id="a", name=name, arguments={}) for name in ("one", "two", "three")]
    asked = Message(role="assistant", tool_calls=twice)
    trace = [asked, answer("a"), answer("b"), answer("a"), HELLO, answer("a"), call("four", "a"), answer("a")]
    found = [(index, each.name, result) for index, each, result in calls_with_results(trace)]
    assert found == [(0, "one", 1), (0, "two", 3), (0, "three", None), (6, "four", 7)]


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
    accompanied = output_of(solo, *trace, Message(role="user", content="Are you there?"))
    assert score(accompanied, task, telecom).reward == 0
