"""Matchers in the expected data and arguments of a written task."""

import datetime
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from pytest_trace2evolve import World
from pytest_trace2evolve.cases.written import WrittenTask
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.scoring.failures import explain_failure
from pytest_trace2evolve.scoring.matchers import satisfies
from pytest_trace2evolve.scoring.reward import score
from tests.plain_worlds import simulation_of, trace_of


class Refund(BaseModel):
    reference: str
    amount: float
    paid: datetime.date
    tags: list[str] = []
    note: str | None = None


class Books(BaseModel):
    refunds: dict[str, Refund]


class TypedTools:
    """Books whose type is known."""

    def __init__(self, db: Books) -> None:
        self.db = db

    def refund(self, order: str, amount: float, reference: str = "R-1", tags: list[str] = []) -> str:  # noqa: B006
        """Refund an order."""
        paid = datetime.date(2026, 11, 28)
        self.db.refunds[order] = Refund(reference=reference, amount=amount, paid=paid, tags=tags)
        return "refunded"


class PlainTools:
    """The same books as plain data."""

    db: dict[str, Any]

    def refund(self, order: str, amount: float, reference: str = "R-1", tags: list[str] = []) -> str:  # noqa: B006
        """Refund an order."""
        record = {"reference": reference, "amount": amount, "paid": "2026-11-28", "tags": tags, "note": None}
        self.db["refunds"][order] = record
        return "refunded"


WORLDS = [World.from_tools(tools, data={"refunds": {}}) for tools in (TypedTools, PlainTools)]
GIVEN = {"order": "W1", "amount": 25.0, "tags": ["late", "vip"]}


def task(expect: dict[str, Any]) -> Task:
    record = {"id": "t", "user": {"goal": "Refund order W1."}, "expect": expect}
    return WrittenTask.model_validate(record).to_task()


def reward(world: World, expect: dict[str, Any], *calls: dict[str, Any]) -> float | None:
    of = task(expect)
    trace = trace_of(world, *(("refund", arguments) for arguments in calls))
    return score(simulation_of(of, trace), of, world).reward


@pytest.mark.parametrize("world", WORLDS, ids=["typed", "plain"])
@pytest.mark.parametrize(
    ("field", "matcher", "value"),
    [
        ("reference", {"$any": True}, 1),
        ("note", {"$any": True}, 0),
        ("reference", {"$pattern": r"R-\d+"}, 1),
        ("reference", {"$pattern": "R"}, 0),
        ("amount", {"$pattern": ".*"}, 0),
        ("amount", {"$near": 24.5, "within": 0.5}, 1),
        ("amount", {"$near": 24.4, "within": 0.5}, 0),
        ("reference", {"$near": 1, "within": 1}, 0),
        ("reference", {"$in": ["R-0", "R-1"]}, 1),
        ("reference", {"$in": ["R-0", {"$pattern": "R-1"}]}, 1),
        ("reference", {"$in": ["R-0"]}, 0),
        ("note", {"$in": [None, "late"]}, 1),
        ("tags", {"$set": ["vip", "late"]}, 1),
        ("tags", {"$set": [{"$any": True}, "vip"]}, 1),
        ("tags", {"$set": ["vip"]}, 0),
        ("tags", {"$set": ["vip", "vip"]}, 0),
        ("tags", ["late", {"$pattern": "v.p"}], 1),
        ("tags", ["vip", {"$any": True}], 0),
        ("tags", [{"$any": True}], 0),
    ],
)
def test_a_matcher_stands_for_a_value_of_the_data(
    world: World, field: str, matcher: dict[str, Any], value: int
) -> None:
    known = {"reference": "R-1", "amount": 25, "paid": "2026-11-28", "tags": ["late", "vip"]}
    expect = {"data": {"refunds": {"W1": {**known, field: matcher}}}}
    assert reward(world, expect, GIVEN) == value
    assert reward(world, expect) == 0  # nothing was refunded
    assert reward(world, expect, GIVEN, {**GIVEN, "order": "W2"}) == 0  # the rest must be as before


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"order": "W1", "amount": {"$near": 25, "within": 1}}, 1),
        ({"order": "W1", "amount": {"$near": 30, "within": 1}}, 0),
        ({"order": {"$pattern": "W[0-9]"}, "amount": 25}, 1),
        ({"order": {"$any": True}, "reference": "R-1"}, 1),
        ({"order": {"$any": True}, "reference": "R-2"}, 0),
        ({"order": {"$any": True}, "tags": {"$set": ["vip", "late"]}}, 1),
    ],
)
def test_a_matcher_stands_for_a_value_of_an_argument(arguments: dict[str, Any], value: int) -> None:
    for world in WORLDS:
        assert reward(world, {"calls": [{"name": "refund", "arguments": arguments}]}, GIVEN) == value
        forbidden = {"not_calls": [{"name": "refund", "arguments": arguments}]}
        assert reward(world, forbidden, GIVEN) == 1 - value


def test_a_call_needs_only_its_named_arguments_if_the_data_are_expected() -> None:
    data = {
        "refunds": {"W1": {"reference": "R-1", "amount": 25, "paid": "2026-11-28", "tags": ["late", "vip"]}}
    }
    expect = {"calls": [{"name": "refund", "arguments": {"order": "W1"}}], "data": data}
    for world in WORLDS:
        assert reward(world, expect, GIVEN) == 1
        assert reward(world, expect, {**GIVEN, "amount": 24}) == 0


def test_a_failure_shows_the_matcher_and_the_value() -> None:
    of = task({"data": {"refunds": {"W1": {"amount": {"$near": 30, "within": 1}, "tags": {"$any": True}}}}})
    simulation = simulation_of(of, trace_of(WORLDS[1], ("refund", GIVEN)))
    failure = explain_failure(simulation, of, WORLDS[1])
    places = {difference.path: (difference.expected, difference.actual) for difference in failure.differences}
    assert places[("refunds", "W1", "amount")] == ({"$near": 30, "within": 1}, 25.0)
    assert ("refunds", "W1", "tags") not in places


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"$patern": "x"}, "unknown matcher '$patern'; did you mean '$pattern'?"),
        ({"$any": 1}, "$any: 1 has another form than {$any: true}; correct it"),
        ({"$any": True, "id": 3}, "$any: True has another form than {$any: true}"),
        ({"$pattern": "("}, "$pattern: '(' is no regular expression: missing )"),
        ({"$pattern": 5}, "$pattern: 5 has another form than {$pattern: "),
        ({"$near": 5}, "$near: 5 has another form than {$near: 25, within: 0.5}"),
        ({"$near": 5, "within": "x"}, "$near: 5 has another form than "),
        ({"$near": 5, "within": -1}, "$near: 5 has another form than "),
        ({"$near": math.nan, "within": 1}, "$near: nan has another form than "),
        ({"$in": "abc"}, "$in: 'abc' has another form than {$in: [a, b]}"),
        ({"$set": []}, "$set: [] has another form than {$set: [a, b]}"),
        ([{"$set": [{"$foo": 1}]}], "unknown matcher '$foo'; known are $any, $in, $near, $pattern, $set"),
    ],
)
def test_an_invalid_matcher_is_an_error_of_the_task(value: Any, message: str) -> None:
    for expect in (
        {"data": {"refunds": value}},
        {"calls": [{"name": "refund", "arguments": {"order": value}}]},
    ):
        with pytest.raises(ValidationError) as error:
            task(expect)
        assert message in str(error.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2),
    max_leaves=6,
)


@given(VALUES, VALUES)
def test_without_matchers_two_values_are_simply_equal(left: Any, right: Any) -> None:
    assert satisfies(left, left)
    assert satisfies(left, right) is (left == right)
    assert satisfies({"$in": [left, right]}, right)


@given(st.lists(st.integers(0, 3), max_size=5, min_size=1), st.randoms(use_true_random=False))
def test_a_set_ignores_the_order_and_nothing_else(items: list[int], random: Any) -> None:
    shuffled = random.sample(items, len(items))
    assert satisfies({"$set": items}, shuffled)
    assert not satisfies({"$set": items}, [*shuffled, 0])
    assert not satisfies({"$set": items}, [9, *shuffled[1:]])
    # An item that any value meets must not take the value that another item needs.
    assert satisfies({"$set": [{"$any": True}, *items]}, [*shuffled, 9])


def test_a_number_that_no_float_holds_is_near_nothing() -> None:
    assert not satisfies({"$near": 1, "within": 1}, 10**400)
    assert not satisfies({"$near": 1, "within": 1}, math.inf)
