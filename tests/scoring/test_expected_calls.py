"""Expected calls of a project's own world: each needs a different call that did not raise."""

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
from pytest_trace2evolve.records.score import Score
from pytest_trace2evolve.records.task import RewardBasis, Task
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
        """Cancel a booking."""
        self.db["bookings"][booking_id] = "cancelled"
        return "cancelled"

    def cancel_open(self, booking_id: str) -> str:
        """Cancel a booking that exists."""
        if booking_id not in self.db["bookings"]:
            raise ValueError("no such booking")
        return self.cancel(booking_id)

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
    return {"name": name, "arguments": arguments}


def scored(of: Task, *calls: Call) -> Score:
    return score(simulation_of(of, trace_of(WORLD, *calls)), of, WORLD)


ANN = called("remind", guest="Ann")


@pytest.mark.parametrize(
    ("expected", "calls", "reward"),
    [
        (["cancel_open"], [("cancel_open", {"booking_id": "WRONG"})], 0),
        (["cancel_open"], [("cancel_open", {})], 0),
        (["cancel_open"], [("cancel_open", {"booking_id": "X"}), ("cancel_open", {"booking_id": "B17"})], 1),
        ([called("remind", guest="nobody")], [("remind", {"guest": "nobody"})], 0),
        ([ANN, ANN], [("remind", {"guest": "Ann"})], 0),
        ([ANN, ANN], [("remind", {"guest": "Ann"})] * 2, 1),
        ([ANN, ANN], [("remind", {"guest": "Ann"})] * 3, 1),
        (["remind", ANN], [("remind", {"guest": "Ann"}), ("remind", {"guest": "Bob"})], 1),
        (["remind", ANN], [("remind", {"guest": "Bob"}), ("remind", {"guest": "Ann"})], 1),
        (["remind", ANN], [("remind", {"guest": "Bob"})] * 2, 0),
        ([called("refund", amount=0.3)], [("refund", {"amount": 0.1 + 0.2})], 1),
        ([called("refund", amount=0.3)], [("refund", {"amount": "0.3"})], 1),
        ([called("refund", amount="0.3")], [("refund", {"amount": 0.3})], 1),
        ([called("refund", amount=0.3)], [("refund", {"amount": 0.3001})], 0),
        ([called("refund", amount=0.3)], [("refund", {"amount": "much"})], 0),
        ([called("refund", amount=1)], [("refund", {"amount": True})], 1),
        ([called("refund", amount=1, notify=True)], [("refund", {"amount": 1})], 1),
        ([called("refund", amount=1, notify=False)], [("refund", {"amount": 1})], 0),
        ([called("refund", amount=1, notify=True)], [("refund", {"amount": 1, "notify": "yes"})], 1),
        ([called("convert", day="2025-06-03")], [("convert", {"day": "2025-06-03T00:00:00"})], 1),
        ([called("convert", day="2025-06-03")], [("convert", {"day": "2025-06-04"})], 0),
        ([called("convert", day=None)], [("convert", {})], 1),
        ([called("convert", size="s")], [("convert", {})], 1),
        ([called("convert", size="s")], [("convert", {"size": "l"})], 0),
        ([called("convert", price=12.5)], [("convert", {"price": "12.50"})], 1),
        (
            [called("convert", guest={"name": "Ann"})],
            [("convert", {"guest": {"name": "Ann", "age": "0"}})],
            1,
        ),
        ([called("convert", guest={"name": "Ann"})], [("convert", {"guest": {"name": "Ann", "age": 1}})], 0),
        ([called("convert", tags=[1, 2])], [("convert", {"tags": ["1", 2.0]})], 1),
        ([called("convert", tags=[1, 2])], [("convert", {"tags": [2, 1]})], 0),
        ([called("convert", anything=1)], [("convert", {"anything": 1.0})], 1),
        ([called("convert", anything=1)], [("convert", {"anything": True})], 0),
        ([called("convert", anything="1")], [("convert", {"anything": 1})], 0),
        ([called("convert", rejected="x")], [("convert", {"rejected": "x"})], 0),
        ([called("no_such_tool")], [("no_such_tool", {})], 0),
    ],
)
def test_the_action_component_of_an_own_world(expected: list[Any], calls: list[Call], reward: int) -> None:
    assert scored(task(*expected), *calls).components[RewardBasis.ACTION] == reward


def test_a_failed_expectation_names_the_nearest_call_that_is_not_used() -> None:
    raised, twice = task("cancel_open"), task(ANN, ANN)
    for of, call, lines in (
        (
            raised,
            ("cancel_open", {"booking_id": "X"}),
            [("missing call: cancel_open()", 'nearest call (it raised): cancel_open(booking_id="X")')],
        ),
        (twice, ("remind", {"guest": "Ann"}), [('missing call: remind(guest="Ann")', "")]),
    ):
        failure = explain_failure(simulation_of(of, trace_of(WORLD, call)), of, WORLD)
        assert [(check.text, check.detail) for check in failure.failed_checks] == lines


@pytest.mark.parametrize(
    ("forbidden", "call", "is_made"),
    [
        (called("refund", amount=0.3), ("refund", {"amount": "0.3"}), True),
        (called("refund", amount=0.3), ("refund", {"amount": 0.1 + 0.2}), True),
        (called("refund", notify=True), ("refund", {"amount": 1}), True),
        (called("refund", notify=False), ("refund", {"amount": 1}), False),
        (called("refund", notify=True), ("refund", {"amount": 1, "unknown": 1}), False),
        (called("remind", guest="nobody"), ("remind", {"guest": "nobody"}), True),
        ("refund", ("refund", {"amount": "much"}), True),
    ],
)
def test_forbidden_calls_are_compared_in_the_same_way_and_count_even_if_they_raise(
    forbidden: Any, call: Call, is_made: bool
) -> None:
    assert scored(task(not_calls=[forbidden]), call).components[RewardBasis.ACTION] == (not is_made)


CALLS = st.tuples(
    st.just("remind"),
    st.fixed_dictionaries(
        {"guest": st.sampled_from(["Ann", "Bob", "nobody"])}, optional={"copies": st.integers(1, 2)}
    ),
)
EXPECTED = st.just("remind") | CALLS.map(lambda call: called(call[0], **call[1]))


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


def matched(expected: Sequence[Any], calls: Sequence[Call]) -> list[bool]:
    return [check.matched for check in check_actions(task(*expected), trace_of(WORLD, *calls), WORLD)]


@given(st.lists(EXPECTED, min_size=1, max_size=3), st.lists(CALLS, max_size=4), st.randoms())
def test_as_many_expectations_as_possible_get_a_call_of_their_own(
    expected: list[Any], calls: list[Call], random: Any
) -> None:
    count = sum(matched(expected, calls))
    assert count == largest_assignment(expected, calls)
    shuffled_calls, shuffled_expected = list(calls), list(expected)
    random.shuffle(shuffled_calls)
    random.shuffle(shuffled_expected)
    assert sum(matched(shuffled_expected, shuffled_calls)) == count


@given(st.floats(-1e6, 1e6), st.floats(-1, 1))
def test_numbers_are_equal_up_to_the_tolerance_of_databases(amount: float, error: float) -> None:
    of = task(called("refund", amount=amount))
    size = max(1.0, abs(amount))
    for actual in (amount + 0.9e-9 * error, repr(amount)):
        assert scored(of, ("refund", {"amount": actual})).reward == 1
    assert scored(of, ("refund", {"amount": amount + size * (2e-9 + abs(error))})).reward == 0


def test_the_rule_of_other_worlds_is_unchanged() -> None:
    world = FakeWorld()
    actions = [{"name": "get_ticket", "arguments": {"ticket_id": "T9"}}] * 2
    of = Task.model_validate({"id": "x", "evaluation_criteria": {"actions": actions}})
    call = ToolCall(id="1", name="get_ticket", arguments={"ticket_id": "T9"})
    trace = [
        Message(role="assistant", tool_calls=[call]),
        Message(role="tool", id="1", content="Error: no ticket", error=True),
    ]
    assert [check.matched for check in check_actions(of, trace, world)] == [True, True]
    exact = call.model_copy(update={"arguments": {"ticket_id": 9 + 1e-12}})
    of = Task.model_validate(
        {"id": "x", "evaluation_criteria": {"actions": [actions[0] | {"arguments": {"ticket_id": 9}}]}}
    )
    assert not check_actions(of, [Message(role="assistant", tool_calls=[exact])], world)[0].matched


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
    for calls, rewards in (
        ([("refund", {"amount": 0.1 + 0.2}), ("refund", {"amount": 5})], [True, True]),
        ([("refund", {"amount": 0.3})], [True, False]),
        ([("refund", {"amount": 0.3}), ("refund", {"amount": -1})], [True, False]),
        ([("refund", {"amount": 0.3, "notify": False}), ("refund", {"amount": 0.3})], [True, True]),
    ):
        trace = trace_of(world, *calls)
        assert [check.matched for check in check_actions(task(*expected), trace, world)] == rewards
