"""Expected and forbidden calls of a project's own world."""

import datetime
import itertools
from collections.abc import Sequence
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator

from pytest_trace2evolve import World
from pytest_trace2evolve.cases.written import WrittenTask
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.score import Check, Score
from pytest_trace2evolve.records.task import InitialState, RewardBasis, Task
from pytest_trace2evolve.scoring.failures import explain_failure
from pytest_trace2evolve.scoring.reward import check_actions, score
from tests.fake_world import FakeWorld
from tests.plain_worlds import simulation_of, trace_of

Call = tuple[str, dict[str, Any]]


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Guest(BaseModel):
    name: str
    age: int = 0


def _reject(value: object) -> object:
    raise KeyError(value)


class DeskTools:
    """A desk whose reminders leave no trace in the database."""

    def __init__(self, db: dict[str, Any]) -> None:
        self.db = db

    def cancel(self, booking_id: str) -> str:
        """Cancel a booking that exists."""
        if booking_id not in self.db["bookings"]:
            raise ValueError("no such booking")
        self.db["bookings"][booking_id] = "cancelled"
        return "cancelled"

    def remind(self, guest: str, copies: int = 1) -> str:
        """Send a reminder."""
        if guest == "nobody":
            raise ValueError("no such guest")
        return "sent"

    def refund(self, amount: float, notify: bool = True) -> str:
        """Refund."""
        return "refunded"

    def convert(
        self,
        day: datetime.date | None = None,
        size: Size = Size.SMALL,
        price: Decimal = Decimal(0),
        guest: Guest | None = None,
        tags: list[int] = [],  # noqa: B006 - a default as projects write it
        rejected: Annotated[str, BeforeValidator(_reject)] = "",
        anything: Any = None,
    ) -> str:
        """Take arguments of many types."""
        return "taken"


WORLD = World.from_tools(DeskTools, data={"bookings": {"B17": "confirmed"}}, reads=["remind", "convert"])


def task(*calls: Any, **expect: Any) -> Task:
    expectations = {"calls": list(calls), **expect} if calls else expect
    raw_task = {"id": "t", "user": {"goal": "Cancel B17."}, "expect": expectations}
    return WrittenTask.model_validate(raw_task).to_task()


def called(name: str, **arguments: Any) -> dict[str, Any]:
    """An expected or a forbidden call."""
    return {"name": name, "arguments": arguments}


def did(name: str, **arguments: Any) -> Call:
    """A call of the agent."""
    return name, arguments


def scored(of: Task, *calls: Call) -> Score:
    return score(simulation_of(of, trace_of(WORLD, *calls)), of, WORLD)


def refund(amount: Any) -> dict[str, Any]:
    return called("refund", amount=amount)


ANN, BOB = did("remind", guest="Ann"), did("remind", guest="Bob")
FOR_ANN = called("remind", guest="Ann")
NAMED = called("convert", guest={"name": "Ann"})


@pytest.mark.parametrize(
    ("expected", "calls", "reward"),
    [
        (["cancel"], [did("cancel", booking_id="WRONG")], 0),
        (["cancel"], [did("cancel")], 0),
        (["cancel"], [did("cancel", booking_id="X"), did("cancel", booking_id="B17")], 1),
        ([called("remind", guest="nobody")], [did("remind", guest="nobody")], 0),
        ([FOR_ANN, FOR_ANN], [ANN], 0),
        ([FOR_ANN, FOR_ANN], [ANN, ANN, ANN], 1),
        (["remind", FOR_ANN], [ANN, BOB], 1),
        (["remind", FOR_ANN], [BOB, ANN], 1),
        (["remind", FOR_ANN], [BOB, BOB], 0),
        ([refund(0.3)], [did("refund", amount=0.1 + 0.2)], 1),
        ([refund(0.3)], [did("refund", amount="0.3")], 1),
        ([refund("0.3")], [did("refund", amount=0.3)], 1),
        ([refund(0.3)], [did("refund", amount=0.3001)], 0),
        ([refund(0.3)], [did("refund", amount="much")], 0),
        ([refund(1)], [did("refund", amount=True)], 1),
        ([called("refund", amount=1, notify=True)], [did("refund", amount=1)], 1),
        ([called("refund", amount=1, notify=False)], [did("refund", amount=1)], 0),
        ([called("refund", amount=1, notify=True)], [did("refund", amount=1, notify="yes")], 1),
        ([called("convert", day="2025-06-03")], [did("convert", day="2025-06-03T00:00:00")], 1),
        ([called("convert", day="2025-06-03")], [did("convert", day="2025-06-04")], 0),
        ([called("convert", day=None)], [did("convert")], 1),
        ([called("convert", size="s")], [did("convert")], 1),
        ([called("convert", size="s")], [did("convert", size="l")], 0),
        ([called("convert", price=12.5)], [did("convert", price="12.50")], 1),
        ([NAMED], [did("convert", guest={"name": "Ann", "age": "0"})], 1),
        ([NAMED], [did("convert", guest={"name": "Ann", "age": 1})], 0),
        ([called("convert", tags=[1, 2])], [did("convert", tags=["1", 2.0])], 1),
        ([called("convert", tags=[1, 2])], [did("convert", tags=[2, 1])], 0),
        ([called("convert", anything=1)], [did("convert", anything=1.0)], 1),
        ([called("convert", anything=1)], [did("convert", anything=True)], 0),
        ([called("convert", anything="1")], [did("convert", anything=1)], 0),
        ([called("convert", rejected="x")], [did("convert", rejected="x")], 0),
        ([called("no_such_tool")], [did("no_such_tool")], 0),
    ],
)
def test_the_action_component_of_an_own_world(expected: list[Any], calls: list[Call], reward: int) -> None:
    assert scored(task(*expected), *calls).components[RewardBasis.ACTION] == reward


@pytest.mark.parametrize(
    ("expected", "call", "line"),
    [
        (
            ["cancel"],
            did("cancel", booking_id="X"),
            ("missing call: cancel()", 'nearest call (it raised): cancel(booking_id="X")'),
        ),
        ([FOR_ANN, FOR_ANN], ANN, ('missing call: remind(guest="Ann")', "")),
    ],
)
def test_a_failed_expectation_names_the_nearest_call_that_is_not_used(
    expected: list[Any], call: Call, line: tuple[str, str]
) -> None:
    of = task(*expected)
    failure = explain_failure(simulation_of(of, trace_of(WORLD, call)), of, WORLD)
    assert [(check.text, check.detail) for check in failure.failed_checks] == [line]


@pytest.mark.parametrize(
    ("forbidden", "call", "is_made"),
    [
        ("refund", did("refund", amount=1), True),
        ("refund", did("remind", guest="Ann"), False),
        (refund(0.3), did("refund", amount="0.3"), True),
        (refund(0.3), did("refund", amount=0.1 + 0.2), True),
        (refund(0.3), did("refund", amount=5), False),
        (called("refund", notify=True), did("refund", amount=1), True),
        (called("refund", notify=False), did("refund", amount=1), False),
        (called("refund", notify=True), did("refund", amount=1, unknown=1), False),
        (called("remind", guest="Ann", copies=2), ANN, False),
        (called("remind", guest="nobody"), did("remind", guest="nobody"), True),  # it raised
        ("refund", did("refund", amount="much"), True),
        ("no_such_tool", did("no_such_tool"), True),
    ],
)
def test_a_forbidden_call_counts_even_if_it_raises(forbidden: Any, call: Call, is_made: bool) -> None:
    result = scored(task(not_calls=[forbidden]), call)
    assert result.reward == result.components[RewardBasis.ACTION] == (not is_made)
    (check,) = result.forbidden_calls
    assert check.met is not is_made
    assert check.wanted["name"] == (forbidden if isinstance(forbidden, str) else forbidden["name"])


@pytest.mark.parametrize(
    ("by", "in_history", "reward"), [("assistant", True, 1), ("assistant", False, 0), ("user", False, 1)]
)
def test_calls_of_the_history_and_of_the_user_are_not_the_agents(
    by: Any, in_history: bool, reward: int
) -> None:
    call = ToolCall(id="h", name="refund", arguments={"amount": 1}, requestor=by)
    made = [
        Message(role="user", content="Refund it."),
        Message(role=by, tool_calls=[call]),
        Message(role="tool", id="h", content="refunded", requestor=by),
    ]
    of = task(not_calls=["refund"])
    state = InitialState(message_history=made if in_history else [])
    of = of.model_copy(update={"initial_state": state})
    trace = [*made, Message(role="user", content="Bye. ###STOP###")]
    assert score(simulation_of(of, trace), of, WORLD).reward == reward


CALLS = st.tuples(
    st.just("remind"),
    st.fixed_dictionaries(
        {"guest": st.sampled_from(["Ann", "Bob", "nobody"])}, optional={"copies": st.integers(1, 2)}
    ),
)
EXPECTED = st.just("remind") | CALLS.map(lambda call: called(call[0], **call[1]))


@given(st.lists(CALLS, max_size=3), st.sampled_from([["remind"], [FOR_ANN]]))
def test_a_ban_of_a_call_that_is_not_made_changes_nothing_else(
    calls: list[Call], expected: list[Any]
) -> None:
    plain = task(*expected, says=["Done"])
    banned = task(*expected, says=["Done"], not_calls=["other_tool"])
    result, with_ban = scored(plain, *calls), scored(banned, *calls)
    assert result.forbidden_calls == ()
    assert "forbidden_calls" not in str(plain.model_dump(mode="json", exclude_unset=True))
    assert with_ban.model_copy(update={"forbidden_calls": ()}) == result
    assert with_ban.forbidden_calls == (Check(wanted={"name": "other_tool"}, met=True),)
    assert plain.digest != banned.digest


def is_match(expected: Any, call: Call) -> bool:
    """The rule in its simplest form: the tool did not raise, and has the expected arguments."""
    arguments = {"copies": 1, **call[1]}
    wanted = {} if isinstance(expected, str) else expected["arguments"]
    return arguments["guest"] != "nobody" and all(arguments[key] == value for key, value in wanted.items())


def largest_assignment(expected: Sequence[Any], calls: Sequence[Call]) -> int:
    """The largest number of expectations with a call each, by trying all assignments."""
    padded = [*calls, *[None] * len(expected)]
    return max(
        sum(
            call is not None and is_match(wanted, call) for wanted, call in zip(expected, chosen, strict=True)
        )
        for chosen in itertools.permutations(padded, len(expected))
    )


def matched(expected: Sequence[Any], calls: Sequence[Call], world: Any = WORLD) -> list[bool]:
    return [check.matched for check in check_actions(task(*expected), trace_of(world, *calls), world)]


@given(st.lists(EXPECTED, min_size=1, max_size=3), st.lists(CALLS, max_size=4), st.randoms())
def test_as_many_expectations_as_possible_get_a_call_of_their_own(
    expected: list[Any], calls: list[Call], random: Any
) -> None:
    count = sum(matched(expected, calls))
    assert count == largest_assignment(expected, calls)
    shuffled = random.sample(expected, len(expected)), random.sample(calls, len(calls))
    assert sum(matched(*shuffled)) == count


@given(st.floats(-1e6, 1e6), st.floats(-1, 1))
def test_numbers_are_equal_up_to_the_tolerance_of_databases(amount: float, error: float) -> None:
    of = task(refund(amount))
    size = max(1.0, abs(amount))
    for actual in (amount + 0.9e-9 * error, repr(amount)):
        assert scored(of, did("refund", amount=actual)).reward == 1
    assert scored(of, did("refund", amount=amount + size * (2e-9 + abs(error)))).reward == 0


@pytest.mark.parametrize(
    ("wanted", "made", "matches"), [("T9", "T9", [True, True]), (9, 9 + 1e-12, [False, False])]
)
def test_the_rule_of_other_worlds_is_unchanged(wanted: Any, made: Any, matches: list[bool]) -> None:
    """One call may carry out several actions, even one that raised; numbers must be equal."""
    action = {"name": "get_ticket", "arguments": {"ticket_id": wanted}}
    of = Task.model_validate({"id": "x", "evaluation_criteria": {"actions": [action] * 2}})
    call = ToolCall(id="1", name="get_ticket", arguments={"ticket_id": made})
    answer = Message(role="tool", id="1", content="Error: no ticket", error=True)
    trace = [Message(role="assistant", tool_calls=[call]), answer]
    assert [check.matched for check in check_actions(of, trace, FakeWorld())] == matches


SERVER = '''
from mcp.server.mcpserver import MCPServer

server = MCPServer("desk", version="1")


@server.tool()
def refund(amount: float, notify: bool = True) -> str:
    """Refund."""
    if amount < 0:
        raise ValueError("negative")
    return "refunded"


server.run("stdio")
'''


def test_a_server_s_arguments_are_compared_as_they_are_written(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    (tmp_path / "server.py").write_text(SERVER, encoding="utf-8")
    world = World.from_mcp(["python", "server.py"], folder=tmp_path)
    expected = [called("refund", amount=0.3, notify=True), "refund"]
    third = did("refund", amount=0.3)
    for calls, matches in (
        ([did("refund", amount=0.1 + 0.2), did("refund", amount=5)], [True, True]),
        ([third], [True, False]),
        ([third, did("refund", amount=-1)], [True, False]),
        ([did("refund", amount=0.3, notify=False), third], [True, True]),
    ):
        assert matched(expected, calls, world) == matches
