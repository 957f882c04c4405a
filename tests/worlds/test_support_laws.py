"""The support world against the retail toolkit of inspect_evals: equal answers, equal end states.

Databases are drawn small, with everything that a tool could stumble over, or are τ²'s own; calls are drawn
from the ids of the database, and now and then with what no tool expects.
"""

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.errors import WorldError
from pytest_trace2evolve.records.task import FunctionCall, InitializationData, InitialState
from pytest_trace2evolve.worlds.inspect_evals import InspectWorld, data_folder, read_data
from pytest_trace2evolve.worlds.support.tools import TOOL_TYPES, tool_schemas
from pytest_trace2evolve.worlds.support.world import SupportSession, SupportWorld
from tests.worlds.support_reference import Known, Reference, state

Draw = Callable[..., Any]
Database = dict[str, dict[str, Any]]
Call = tuple[str, dict[str, Any]]

LAW = settings(deadline=None, max_examples=40)

PARAMETERS = {tool.name: tuple(tool.parameters["required"]) for tool in tool_schemas()}
WRITES = sorted(name for name, kind in TOOL_TYPES.items() if kind == "write")
NO_TOOLS = ("fly", "", "orders", "restart", "_order", "__init__", "get_order_details ")

ITEMS = ("1", "2", "12", "i3", "i4")
KEYS = {
    "products": ("p1", "p2", "1"),
    "users": ("ann_1", "bob_2", "1"),
    "orders": ("#W1", "#W2", "#W3"),
    "methods": ("gift_card_1", "gift_card_2", "credit_card_1", "paypal_1"),
}
NAMES = ("Ann", "ann", "Öz", "İs", "Straße", "")
EMAILS = ("ann@example.com", "Ann@Example.com", "öz@example.com", "")
ZIPS = ("10001", "10002")
PRICES = (0.1, 0.2, 0.7, 10.0, 19.99, 25, 0.0, -3.5, 1e22, 1e300)
STATUSES = ("pending", "delivered", "pending (item modified)", "processed", "cancelled", "return requested")
SIZES = (2, 3, 1, 2, 3, 1, 2, 3, 0)
JUNK: tuple[Any, ...] = (
    None, True, 0, 5, -1.5, 1e400, "", " ", "no such thing", "Ärger ✓", "{", '{"a": 1}', "[]",
    [], [[]], [None], ["1"], ["1", "1"], ["no such thing"], {}, {"1": 2}, {"a": []},
)  # fmt: skip
EXTRA = ("verbose", "order", "self", "zipcode", "reason", "item_id")
EXPRESSIONS = ("2 + 2", "19.99*3", "1/0", "9**9**9", "(1", "1 % 2", "0.1+0.2", "", "1//3", "...", "2*-1")


@functools.cache
def below(size: int) -> st.SearchStrategy[int]:
    """A position; made once, since making a strategy costs more than drawing from it."""
    return st.integers(0, size - 1)


def one_of(draw: Draw, *values: Any) -> Any:
    return values[draw(below(len(values)))]


def some(draw: Draw, values: tuple[Any, ...], most: int = 3) -> list[Any]:
    return [one_of(draw, *values) for _ in range(draw(below(most + 1)))]


def key_or_other(draw: Draw, key: str, table: str) -> str:
    """The key of a record as its own id, or, rarely, the id of another."""
    return str(one_of(draw, *[key] * 7, *KEYS[table]))


def drawn_variant(draw: Draw, item_id: str) -> dict[str, Any]:
    return {
        "item_id": item_id,
        "options": {"color": one_of(draw, "red", "blue"), "größe": "S"},
        "available": one_of(draw, *[True] * 5, False),
        "price": one_of(draw, *PRICES),
    }


def drawn_address(draw: Draw) -> dict[str, str]:
    parts = dict.fromkeys(("address1", "address2", "city", "country", "state"), "x")
    return parts | {"zip": one_of(draw, *ZIPS)}


def drawn_method(draw: Draw, key: str) -> dict[str, Any]:
    if key.startswith("gift"):
        return {"source": "gift_card", "id": key, "balance": one_of(draw, *PRICES)}
    if key.startswith("paypal"):
        return {"source": "paypal", "id": key}
    return {"source": "credit_card", "id": key, "brand": "visa", "last_four": "1234"}


def drawn_item(draw: Draw, products: dict[str, Any]) -> dict[str, Any]:
    """A position of an order, mostly one that the store has."""
    product_id = one_of(draw, *[*products] * 8, *KEYS["products"])
    variants = products[product_id]["variants"] if product_id in products else {}
    return {
        "name": "Thing",
        "product_id": product_id,
        "item_id": one_of(draw, *[*variants] * 8, *ITEMS),
        "price": one_of(draw, *PRICES),
        "options": {},
    }


def drawn_payment(draw: Draw, methods: Iterable[str]) -> dict[str, Any]:
    """A payment, mostly by a method that there is."""
    return {
        "transaction_type": one_of(draw, *["payment"] * 8, "refund"),
        "amount": one_of(draw, *PRICES),
        "payment_method_id": one_of(draw, *[*methods] * 8, *KEYS["methods"]),
    }


@st.composite
def databases(draw: Draw) -> Database:
    """A small store, with shared emails and names, missing payment methods, and ids that are not the keys."""
    store: Database = {"products": {}, "users": {}, "orders": {}}
    for key in KEYS["products"][: one_of(draw, *SIZES)]:
        store["products"][key] = {
            "name": one_of(draw, "Mug", "Lamp"),
            "product_id": key_or_other(draw, key, "products"),
            "variants": {item_id: drawn_variant(draw, item_id) for item_id in some(draw, ITEMS, 4)},
        }
    for key in KEYS["users"][: one_of(draw, *SIZES)]:
        store["users"][key] = {
            "user_id": key_or_other(draw, key, "users"),
            "name": {"first_name": one_of(draw, *NAMES), "last_name": one_of(draw, *NAMES)},
            "address": drawn_address(draw),
            "email": one_of(draw, *EMAILS),
            "payment_methods": {name: drawn_method(draw, name) for name in some(draw, KEYS["methods"], 5)},
            "orders": [],
        }
    for key in KEYS["orders"][: one_of(draw, *SIZES)]:
        user_id = one_of(draw, *[*store["users"]] * 8, *KEYS["users"])
        methods = store["users"].get(user_id, {"payment_methods": ()})["payment_methods"]
        store["orders"][key] = {
            "order_id": key_or_other(draw, key, "orders"),
            "user_id": user_id,
            "address": drawn_address(draw),
            "items": [drawn_item(draw, store["products"]) for _ in range(one_of(draw, *SIZES))],
            "status": one_of(draw, *STATUSES[:2] * 8, *STATUSES),
            "fulfillments": [{"tracking_id": ["t"], "item_ids": ["1"]}],
            "payment_history": [drawn_payment(draw, methods) for _ in range(one_of(draw, *[1] * 8, 2, 0))],
        }
    return store


@st.composite
def calls(draw: Draw, store: Database, names: tuple[str, ...] = tuple(PARAMETERS)) -> Call:
    """A call that fits the database, or nearly does, or does not at all."""
    name = one_of(draw, *names)
    if name not in PARAMETERS:
        return name, one_of(draw, {}, {"order_id": "#W1"})
    stage = "delivered" if "delivered" in name else "pending"
    fitting = [order for order in store["orders"].values() if order["status"] == stage]
    order = one_of(draw, *fitting * 8, *store["orders"].values(), None)
    arguments = {name: drawn_argument(draw, store, order, name) for name in PARAMETERS[name]}
    if "order_id" in arguments and order is not None:
        arguments["order_id"] = next(key for key, record in store["orders"].items() if record is order)
    if "new_item_ids" in arguments and order is not None and one_of(draw, *[True] * 5, False):
        wanted, arguments["new_item_ids"] = drawn_exchange(draw, store, order)
        arguments["item_ids"] = wanted
    match one_of(draw, *[""] * 20, "junk", "missing", "extra"):
        case "junk" if arguments:
            arguments[one_of(draw, *arguments)] = copy.deepcopy(one_of(draw, *JUNK))
        case "missing" if arguments:
            del arguments[one_of(draw, *arguments)]
        case "extra":
            arguments[one_of(draw, *EXTRA)] = one_of(draw, *JUNK)
    return name, arguments


def drawn_exchange(draw: Draw, store: Database, order: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Items of an order, and for each another item of its product where there is one."""
    old, new = [], []
    for item in order["items"][: one_of(draw, *SIZES)]:
        variants = list(store["products"].get(item["product_id"], {"variants": ()})["variants"])
        old.append(item["item_id"])
        new.append(one_of(draw, *[key for key in variants if key != item["item_id"]] * 8, *ITEMS[:2]))
    return old, new


def drawn_argument(draw: Draw, store: Database, order: dict[str, Any] | None, name: str) -> Any:
    """A value for a parameter, from the ids that the database holds, near where the order lies."""
    user = store["users"].get(order["user_id"]) if order else None
    user = user or one_of(draw, *list(store["users"].values()), None)
    match name:
        case "order_id" | "user_id" | "product_id":
            return one_of(draw, *list(store[f"{name.removesuffix('_id')}s"]), "no such thing")
        case "item_id":
            found = [key for product in store["products"].values() for key in product["variants"]]
            return one_of(draw, *found, *ITEMS)
        case "item_ids":
            there = [item["item_id"] for item in order["items"]] if order else []
            return one_of(
                draw, there, there[:1], there[:1], there[:2], there * 2, [*ITEMS[:2]], "".join(there)
            )
        case "new_item_ids":
            return some(draw, ITEMS)
        case "payment_method_id":
            methods = list(user["payment_methods"]) if user else []
            paid = [payment["payment_method_id"] for payment in order["payment_history"]] if order else []
            return one_of(draw, *methods * 4, *paid, *KEYS["methods"][:2])
        case "reason":
            return one_of(draw, *["no longer needed", "ordered by mistake"] * 3, "I changed my mind")
        case "email":
            return one_of(draw, *([user["email"], user["email"].upper()] if user else []), *EMAILS)
        case "first_name" | "last_name":
            return one_of(draw, *([user["name"][name]] * 3 if user else []), *NAMES)
        case "zip":
            return one_of(draw, *([user["address"]["zip"]] * 2 if user else []), *ZIPS)
        case "expression":
            return one_of(draw, *EXPRESSIONS)
    return one_of(draw, "Elm Street 1", "x", "")


@st.composite
def stories(draw: Draw, store: Database | None = None) -> tuple[Database, list[Call]]:
    """A database and what is done to it."""
    store = draw(databases()) if store is None else store
    names = (*PARAMETERS, *WRITES, *WRITES, one_of(draw, *NO_TOOLS))
    return store, draw(st.lists(calls(store, names), min_size=1, max_size=8))


@st.composite
def updates(draw: Draw) -> dict[str, Any]:
    """Initialization data: parts of records, whole ones, and what does not fit."""
    fresh = draw(databases())
    update: dict[str, Any] = {}
    for table in some(draw, tuple(fresh), 2):
        update[table] = {
            key: one_of(draw, record, {field: record[field] for field in list(record)[-2:]})
            for key, record in fresh[table].items()
        }
    match one_of(draw, *[""] * 5, "table", "record", "field"):
        case "table":
            update["ships"] = {}
        case "record":
            update["users"] = {"ann_1": one_of(draw, None, 5, [], {})}
        case "field":
            update["orders"] = {
                "#W1": {"status": one_of(draw, "lost", None, 5), "items": one_of(draw, 5, {})}
            }
    return update


def play(session: SupportSession, played: list[Call]) -> None:
    for name, arguments in played:
        session.call(name, copy.deepcopy(arguments), "assistant")


def hold_to_reference(
    mine: SupportWorld, theirs: InspectWorld, played: list[Call], known: Known | None = None
) -> None:
    """Play calls in both worlds; every answer and the end must be equal."""
    session, original = mine.open(), Reference(theirs)
    for name, arguments in played:
        result = session.call(name, copy.deepcopy(arguments), "assistant")
        assert result == original.call(name, copy.deepcopy(arguments)), name
    assert state(session, known) == original.state(known)


@settings(LAW, max_examples=100)
@given(stories())
def test_on_any_store_the_world_answers_and_ends_as_the_reference(story: tuple[Database, list[Call]]) -> None:
    store, played = story
    hold_to_reference(SupportWorld(store=store), InspectWorld("retail", store), played)


@functools.cache
def retail() -> tuple[Database, SupportWorld, InspectWorld, Known]:
    """A corner of the benchmark's store to draw calls from, and both worlds over all of it."""
    store = read_data(data_folder() / "retail" / "db.json")
    orders = dict(list(store["orders"].items())[:150])
    users = {key: store["users"][key] for key in {order["user_id"]: None for order in orders.values()}}
    corner = {"products": store["products"], "users": users, "orders": orders}
    known: Known = {}
    worlds = SupportWorld(store=store), InspectWorld("retail")
    state(worlds[0].open(), known)
    Reference(worlds[1]).state(known)
    return corner, *worlds, known


@settings(LAW, max_examples=25)
@given(st.data())
def test_on_the_benchmarks_store_the_world_answers_and_ends_as_the_reference(data: st.DataObject) -> None:
    corner, mine, theirs, known = retail()
    _, played = data.draw(stories(corner))
    hold_to_reference(mine, theirs, played, known.copy())


ARITHMETIC = st.recursive(
    st.sampled_from(
        ["1", "2", "10", "0", "0.5", "9" * 40, ".1", "7.", "1" + "0" * 300, "9" * 4000, "()", "99999.999"]
    ),
    lambda inner: st.one_of(
        st.builds("{}{}{}".format, inner, st.sampled_from(["+", "-", " * ", "/", "//", "**"]), inner),
        st.builds("({})".format, inner),
        st.builds("-{}".format, inner),
    ),
    max_leaves=8,
)


@settings(LAW, max_examples=100)
@given(st.one_of(ARITHMETIC, st.text("0123456789+-*/(). ", max_size=12), st.text(max_size=3)))
def test_arithmetic_is_the_references(expression: str) -> None:
    _, mine, theirs, _ = retail()
    arguments = {"expression": expression}
    result = theirs.open().call("calculate", arguments, "assistant")
    assert mine.open().call("calculate", arguments, "assistant") == result


def initialised(session: Any, start: InitialState) -> str | None:
    try:
        session.initialise(start)
    except WorldError as error:
        return str(error).replace("ToolError", "ValueError")
    return None


@LAW
@given(stories(), updates(), st.data())
def test_an_initial_state_is_the_references(
    story: tuple[Database, list[Call]], update: dict[str, Any], data: st.DataObject
) -> None:
    store, played = story
    actions = [
        FunctionCall(env_type="assistant", func_name=name, arguments=arguments)
        for name, arguments in data.draw(st.lists(calls(store, tuple(WRITES)), max_size=1))
    ]
    start = InitialState(
        initialization_data=InitializationData(agent_data=update), initialization_actions=actions
    )
    session, original = SupportWorld(store=store).open(), Reference(InspectWorld("retail", store))
    if data.draw(st.booleans()):
        # Merged into what was written before, too.
        play(session, played)
        for name, arguments in played:
            original.call(name, arguments)
    failure = initialised(session, start)
    assert failure == initialised(original, start)
    if failure is None:
        for name, arguments in played:
            result = session.call(name, copy.deepcopy(arguments), "assistant")
            assert result == original.call(name, copy.deepcopy(arguments)), name
        assert state(session) == original.state()


@LAW
@given(stories(), updates(), st.data())
def test_sessions_are_the_same_exactly_where_their_whole_databases_are(
    story: tuple[Database, list[Call]], update: dict[str, Any], data: st.DataObject
) -> None:
    store, played = story
    worlds = [SupportWorld(store=store)] * 2
    if data.draw(st.booleans()):
        worlds[1] = SupportWorld(store=copy.deepcopy(store))
    sessions = [world.open() for world in worlds]
    start = InitialState(initialization_data=InitializationData(agent_data=update))
    for session in sessions:
        if data.draw(st.booleans()) and initialised(session, start) is not None:
            return
        play(session, data.draw(st.sampled_from([played, played[::-1], played[:-1], played * 2, []])))
    one, other = sessions
    expected = state(one) == state(other)
    assert one.same_state(other) == other.same_state(one) == expected
    assert one.same_state(one)


@LAW
@given(stories(), updates())
def test_no_session_reaches_the_store_or_another_session(
    story: tuple[Database, list[Call]], update: dict[str, Any]
) -> None:
    store, played = story
    given_store, given_calls, given_update = copy.deepcopy((store, played, update))
    world = SupportWorld(store=store)
    before, bystander = world.data_digest(), world.open()
    untouched = state(bystander)
    acting, initial = world.open(), world.open()
    for name, arguments in played:
        acting.call(name, arguments, "assistant")
    start = InitialState(initialization_data=InitializationData(agent_data=update))
    if initialised(initial, start) is None:
        play(initial, played)
        another = world.open()
        another.initialise(start)
        fresh = SupportWorld(store=store).open()
        fresh.initialise(start.model_copy(deep=True))
        assert state(another) == state(fresh)
    assert state(bystander) == state(world.open()) == untouched
    assert (store, played, update) == (given_store, given_calls, given_update)
    assert SupportWorld(store=store).data_digest() == before
    late, new = world.open(), SupportWorld(store=store).open()
    for name, arguments in played:  # the texts that the store remembers are still those of its records
        assert late.call(name, arguments, "assistant") == new.call(name, arguments, "assistant")
