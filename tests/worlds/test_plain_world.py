"""A world made from a plain class: schemas, calls, isolation, comparison, errors and identity."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from pytest_trace2evolve import World
from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.task import Action, Assertion, InitialState
from pytest_trace2evolve.scoring.world_checks import tool_problems
from pytest_trace2evolve.worlds.plain_data import is_same, to_json
from tests.plain_worlds import BOOKINGS, HotelDB, HotelTools, hotel


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Guest(BaseModel):
    name: str
    age: int = 18


class Base:
    def inherited(self, text: str) -> str:
        """From the base."""
        return text

    def overridden(self, text: str) -> str:
        """Describes both."""
        return text


class EveryTool(Base):
    db: dict[str, Any]

    def simple(self, name: str, count: int = 2, ratio: float = 0.5, is_on: bool = False) -> dict[str, Any]:
        """Do it.

        In two
        lines.

        Args:
            name: The name,
                continued.
            count (int): How many.

        Returns:
            Nothing of interest.
        """
        return {"name": name, "count": count, "ratio": ratio, "is_on": is_on}

    def typed(
        self,
        kind: Literal["a", "b"],
        color: Color,
        day: date,
        guest: Guest,
        tags: list[str],
        note: Optional[str] = None,  # noqa: UP045 - as users write it
        size: Annotated[int, Field(ge=1, description="Its size.")] = 1,
        place: Annotated[str, "Where."] = "here",
    ) -> list[Any]:
        """Take values of many types.

        :param kind: A or B.
        """
        return [kind, color, day, guest, tags, note, size, place, type(day).__name__]

    async def slow(self, text: str) -> str:
        return f"slow {text}"

    @staticmethod
    def add(left: int, right: int) -> int:
        return left + right

    @classmethod
    def named(cls, copy: str, schema: str = "s") -> str:
        return f"{cls.__name__} {copy} {schema}"

    def overridden(self, text: str) -> str:
        return text.upper()

    def fails(self) -> None:
        raise ValueError("no room left")

    def missing(self) -> Any:
        return {}["B99"]

    def _private(self) -> None: ...


EVERY = World.from_tools(EveryTool)


def call(name: str, world: World = EVERY, /, **arguments: Any) -> tuple[str, bool]:
    result = world.open().call(name, arguments, "assistant")
    return result.content, result.error


def parameters(name: str) -> Mapping[str, Any]:
    return next(tool.parameters for tool in EVERY.tools("assistant") if tool.name == name)


def test_public_methods_are_tools_inherited_ones_first() -> None:
    assert [tool.name for tool in EVERY.tools("assistant")] == [
        *("inherited", "overridden", "simple", "typed", "slow", "add", "named", "fails", "missing")
    ]
    assert EVERY.tools("user") == []
    descriptions = {tool.name: tool.description for tool in EVERY.tools("assistant")}
    assert descriptions["simple"] == "Do it.\n\nIn two lines."
    assert descriptions["inherited"] == "From the base."
    assert descriptions["overridden"] == "Describes both."
    assert descriptions["slow"] == ""


def test_schemas_come_from_hints_and_docstrings() -> None:
    assert parameters("simple") == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "The name, continued."},
            "count": {"type": "integer", "default": 2, "description": "How many."},
            "ratio": {"type": "number", "default": 0.5},
            "is_on": {"type": "boolean", "default": False},
        },
        "required": ["name"],
    }
    typed = parameters("typed")
    assert typed["required"] == ["kind", "color", "day", "guest", "tags"]
    properties = typed["properties"]
    assert properties["kind"] == {"type": "string", "enum": ["a", "b"], "description": "A or B."}
    assert properties["day"] == {"type": "string", "format": "date"}
    assert properties["tags"] == {"type": "array", "items": {"type": "string"}}
    assert properties["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert properties["size"] == {"type": "integer", "minimum": 1, "default": 1, "description": "Its size."}
    assert properties["place"] == {"type": "string", "default": "here", "description": "Where."}
    assert typed["$defs"]["Color"]["enum"] == ["red", "blue"]
    assert parameters("fails") == {"type": "object", "properties": {}}
    json.dumps([tool.model_dump() for tool in EVERY.tools("assistant")])


def test_arguments_are_converted_and_results_are_json() -> None:
    arguments = {"kind": "b", "color": "blue", "day": "2025-06-03", "guest": {"name": "Ann"}, "tags": ["x"]}
    content, error = call("typed", **arguments)
    assert not error
    expected = ["b", "blue", "2025-06-03", {"name": "Ann", "age": 18}, ["x"], None, 1, "here", "date"]
    assert json.loads(content) == expected
    assert call("slow", text="x") == ("slow x", False)
    assert call("add", left="2", right=3) == ("5", False)
    assert call("named", copy="c") == ("EveryTool c s", False)
    assert call("inherited", text="ä\ud800")[1] is False


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("simple", {}, "Error: name: Field required"),
        ("simple", {"nam": "x"}, "Error: unknown argument 'nam'; did you mean 'name'?"),
        ("simple", {"name": "x", "cont": 1}, "Error: unknown argument 'cont'; did you mean 'count'?"),
        ("simple", {"name": 5}, "Error: name: Input should be a valid string, not 5"),
        ("simple", {"name": "x", "count": "many"}, "Error: count: Input should be a valid integer"),
        ("typed", {"kind": "c", "color": "red", "day": "x", "guest": {}, "tags": []}, "Error: kind: "),
        ("fails", {}, "Error: no room left"),
        ("missing", {}, "Error: KeyError: 'B99'"),
        ("no_tool", {}, "Error: Tool 'no_tool' not found."),
        ("_private", {}, "Error: Tool '_private' not found."),
    ],
)
def test_wrong_calls_are_errors_of_one_line(name: str, arguments: dict[str, Any], message: str) -> None:
    content, error = call(name, **arguments)
    assert error
    assert content.startswith(message)
    assert "\n" not in content


class NoHint:
    def find(self, name) -> str:  # type: ignore[no-untyped-def]
        return str(name)


class Star:
    def find(self, *names: str) -> None: ...


class Yields:
    def find(self) -> Any:
        yield 1


class Loose:
    def __init__(self, db: HotelDB) -> None:
        self.bookings = db.bookings

    def find(self) -> None: ...


class Two:
    def __init__(self, db: HotelDB, other: int) -> None:
        self.db = db

    def find(self) -> None: ...


class Unknown:
    def find(self, thing: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: World.from_tools(type("Empty", (), {})), "Empty has no public method; each public method"),
        (lambda: World.from_tools(NoHint), "NoHint.find: parameter 'name' has no type hint; add one"),
        (lambda: World.from_tools(Star), "Star.find: parameter 'names' has no name in a call of a tool"),
        (lambda: World.from_tools(Yields), "Yields.find is a generator; return a list"),
        (lambda: World.from_tools(Unknown), "Unknown.find: its type hints cannot be read"),
        (
            lambda: World.from_tools(Loose, data={"bookings": {}}),
            "Loose keeps its database in no attribute; assign the constructor's argument to self.db",
        ),
        (
            lambda: World.from_tools(Two, data={"bookings": {}}),
            "Two cannot be created: TypeError: .*; its constructor must take only the database",
        ),
        (lambda: World.from_tools(HotelTools), "the data do not fit the database of HotelTools: bookings: "),
        (
            lambda: World.from_tools(HotelTools, data={"bookings": {"B1": {"guest": "Ann", "room": "x"}}}),
            "the data do not fit the database of HotelTools: bookings.B1.room: Input should be",
        ),
        (lambda: World.from_tools(HotelTools, data="no.json"), "no.json: cannot be read: No such file"),
        (lambda: World.from_tools(HotelTools, data="no.csv"), "no.csv: is neither JSON nor YAML by its name"),
        (lambda: hotel(policy="no.md"), "no.md: cannot be read: .*; correct the path of the policy"),
        (lambda: hotel(reads=["gets"]), "reads: 'gets' is not a tool; list names of HotelTools"),
        (lambda: hotel(reads="get_booking"), "reads: 'get_booking' is a text, not a list"),
        (
            lambda: World.from_tools(HotelTools(HotelDB(bookings={}))),
            "from_tools got a HotelTools, not a class",
        ),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_class_or_file_is_one_line(make: Any, message: str) -> None:
    with pytest.raises(WorldError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_the_database_comes_from_a_file_next_to_the_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from tests.plain_worlds import *\nclass OwnTools(HotelTools):\n    pass\n"
    (tmp_path / "own_tools_module.py").write_text(source)
    (tmp_path / "data.json").write_text(json.dumps({"bookings": BOOKINGS}))
    (tmp_path / "data.yaml").write_text("bookings:\n  B1: {guest: no, room: 3}\n")
    (tmp_path / "policy.md").write_text("Be kind.\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_tools_module  # type: ignore[import-not-found]

    world = World.from_tools(own_tools_module.OwnTools, data="data.json", policy="policy.md")
    assert (world.domain, world.policy()) == ("own", "Be kind.\n")
    yaml_world = World.from_tools(own_tools_module.OwnTools, data=Path("data.yaml"), policy="Be kind.")
    assert json.loads(call("get_booking", yaml_world, booking_id="B1")[0])["guest"] == "no"


class KeywordTools:
    def __init__(self, *, db: HotelDB) -> None:
        self._hidden = db

    def rooms(self) -> int:
        return len(self._hidden.bookings)


@dataclass
class DataclassTools:
    db: HotelDB

    def rooms(self) -> int:
        return len(self.db.bookings)


class AnnotatedTools:
    db: HotelDB

    def rooms(self) -> int:
        return len(self.db.bookings)


class TypedDictTools:
    def __init__(self, db: dict[str, dict[str, Guest]]) -> None:
        self.db = db
        self.by_name = {guest.name: guest for guest in db["bookings"].values()}

    def rooms(self) -> int:
        return len(self.by_name)


@pytest.mark.parametrize(
    ("tools", "data"),
    [
        (KeywordTools, {"bookings": BOOKINGS}),
        (DataclassTools, {"bookings": BOOKINGS}),
        (AnnotatedTools, {"bookings": BOOKINGS}),
        (AnnotatedTools, HotelDB.model_validate({"bookings": BOOKINGS})),
        (TypedDictTools, {"bookings": {"B1": {"name": "Ann"}, "B2": {"name": "Bob"}}}),
    ],
)
def test_the_class_gets_its_database_in_many_ways(tools: type, data: Any) -> None:
    assert call("rooms", World.from_tools(tools, data=data)) == ("2", False)


def state(data: dict[str, Any]) -> InitialState:
    return InitialState.model_validate({"initialization_data": {"agent_data": data}})


def expects(data: dict[str, Any]) -> Assertion:
    return Assertion(env_type="assistant", func_name="database_equals", arguments={"data": data})


CALLS = st.lists(
    st.tuples(st.sampled_from(["cancel_booking", "refund"]), st.sampled_from(["B17", "B18", "B99"])),
    max_size=5,
)


@given(first=CALLS, second=CALLS)
def test_no_session_sees_another_and_the_initial_database_never_changes(first: Any, second: Any) -> None:
    data = {"bookings": json.loads(json.dumps(BOOKINGS))}
    world = World.from_tools(HotelTools, data=data)
    before, fingerprint = world.open().data(), world.data_digest()
    left, right = world.open(), world.open()
    for calls, session in ((first, left), (second, right)):
        for name, booking in calls:
            session.call(name, {"booking_id": booking}, "assistant")
    alone = world.open()
    for name, booking in first:
        alone.perform(Action(name=name, arguments={"booking_id": booking}))
    assert left.same_state(alone)
    assert left.same_state(right) == is_same(left.data(), right.data())
    assert world.open().data() == before
    assert world.data_digest() == fingerprint
    assert data == {"bookings": BOOKINGS}
    assert world.open().check(expects({}))


def test_expected_data_are_merged_and_compared_by_value() -> None:
    session = hotel().open()
    session.call("cancel_booking", {"booking_id": "B17"}, "assistant")
    assert session.check(expects({"bookings": {"B17": {"status": "cancelled"}}}))
    assert not session.check(expects({}))
    assert not session.check(expects({"bookings": {"B17": {"status": "cancelled"}, "B18": None}}))
    session.db.bookings.pop("B18")
    assert session.check(expects({"bookings": {"B17": {"status": "cancelled"}, "B18": None}}))
    with pytest.raises(
        WorldError, match=r"the expected data do not fit .*bookings\.B9\.guest: Field required"
    ):
        session.check(expects({"bookings": {"B9": {"room": 1}}}))
    with pytest.raises(WorldError, match="this world has no assertion 'other'"):
        session.check(Assertion(env_type="assistant", func_name="other", arguments={}))


class Money(BaseModel):
    amount: Decimal
    due: date | None = None
    color: Color = Color.RED
    tags: set[str] = set()
    ratio: float = 0.0
    booking_id: str = Field(default="B1", alias="bookingId")


class Bank(BaseModel):
    accounts: dict[int, Money]


class BankTools:
    def __init__(self, db: Bank) -> None:
        self.db = db

    def spend(self, account: int) -> Money:
        found = self.db.accounts[account]
        found.amount -= Decimal("0.10")
        found.ratio = 0.1 + 0.2
        found.color, found.due, found.tags = Color.BLUE, date(2025, 6, 3), {"x", "a"}
        return found


def test_values_of_all_types_are_compared_as_a_person_writes_them() -> None:
    data = {"accounts": {"7": {"amount": "12.60", "bookingId": "B7"}}}
    world = World.from_tools(BankTools, data=data)
    session = world.open()
    result = json.loads(session.call("spend", {"account": 7}, "assistant").content)
    assert result == {
        "amount": 12.5,
        "due": "2025-06-03",
        "color": "blue",
        "tags": ["a", "x"],
        "ratio": 0.1 + 0.2,
        "bookingId": "B7",
    }
    changed = {"amount": 12.5, "due": "2025-06-03", "color": "blue", "tags": ["x", "a"], "ratio": 0.3}
    assert session.check(expects({"accounts": {7: changed}}))
    assert session.check(expects({"accounts": {"7": {**changed, "amount": "12.50"}}}))
    assert not session.check(expects({"accounts": {"7": {**changed, "amount": 12.4}}}))
    other = world.open()
    other.initialise(state({"accounts": {"8": {"amount": 1}}}))
    assert sorted(other.db.accounts) == [7, 8]


@given(st.integers(), st.integers(1, 9))
def test_whole_numbers_have_no_tolerance(number: int, step: int) -> None:
    """An id with one different digit is a different record, however long it is."""
    assert is_same({"id": [number]}, {"id": [number]})
    assert not is_same({"id": [number]}, {"id": [number + step]})
    assert not is_same(10**400 + number, 0.5)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON)
def test_comparison_is_reflexive_symmetric_and_tells_values_apart(left: Any, right: Any) -> None:
    assert is_same(left, json.loads(json.dumps(left)))
    assert is_same(left, right) == is_same(right, left)
    assert is_same(left, right) == (json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True))
    assert to_json(left) == left


class RandomTools(HotelTools):
    def book(self, guest: str) -> str:
        """Book a room."""
        name = str(uuid.uuid4())
        self.db.bookings[name] = self.db.bookings["B17"].model_copy(update={"guest": guest})
        return "Booked."

    def stamp(self) -> str:
        return uuid.uuid4().hex


def gold(*calls: tuple[str, dict[str, Any]]) -> Any:
    from tests.scoring.test_calls import task

    return task(*({"name": name, "arguments": arguments} for name, arguments in calls))


def test_tools_that_cannot_be_replayed_are_found() -> None:
    world = World.from_tools(RandomTools, data={"bookings": BOOKINGS}, reads=["cancel_booking"])
    (booked,) = tool_problems(world, [gold(("book", {"guest": "Al"}))])
    assert booked.startswith("tool 'book' gives another database each time (task 't'); derive ids")
    (stamped,) = tool_problems(world, [gold(("stamp", {}))])
    assert stamped.startswith("tool 'stamp' gives another result each time")
    (read,) = tool_problems(world, [gold(("cancel_booking", {"booking_id": "B17"}))])
    assert "'cancel_booking' is declared as a read, but changed the database in task 't'" in read
    assert [*tool_problems(hotel(), [gold(("refund", {"booking_id": "B17"}))])] == []
