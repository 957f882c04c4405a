"""Every grade of every built-in environment's table is reached by what the table says, and by no accident.

Each way takes a scenario and gives what an agent says; None where the scenario has no place for it.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import pytest

from pytest_trace2evolve.environments.environment import ScenarioEnvironment
from pytest_trace2evolve.environments.generators.structured import request_kind
from pytest_trace2evolve.environments.generators.support import (
    call_message,
    is_write,
    remaining_actions,
    say,
    with_arguments,
)
from pytest_trace2evolve.environments.registry import Environments
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.task import Action, Task
from pytest_trace2evolve.worlds.support.world import SupportWorld

ENVIRONMENTS = Environments()
WORLD = SupportWorld()

REASONS = ("no longer needed", "ordered by mistake")
"""Those that the tool takes."""

Way = Callable[[Task], Sequence[Message] | None]


def opened(task: Task) -> Iterator[Message]:
    """What the expert does before its next change, the reading and the question for a yes."""
    for number, one in enumerate(remaining_actions(task)):
        if is_write(one.name):
            return
        yield call_message(one, number)


def change(task: Task) -> Action | None:
    return next((one for one in remaining_actions(task) if is_write(one.name)), None)


def changed(**arguments: Any) -> Way:
    """The right change with other arguments; a callable makes one of the task and the change."""

    def way(task: Task) -> Sequence[Message] | None:
        wanted = change(task)
        if wanted is None or any(name not in wanted.arguments for name in arguments):
            return None
        made = {name: value(task, wanted) if callable(value) else value for name, value in arguments.items()}
        if None in made.values():
            return None
        return [*opened(task), call_message(with_arguments(wanted, **made), 90)]

    return way


def reading(task: Task) -> Sequence[Message] | None:
    """Reads, and goes no further."""
    return list(opened(task)) or None


def order_of(task: Task, wanted: Action) -> dict[str, Any]:
    found: dict[str, Any] = task.tables["orders"][wanted.arguments["order_id"]]
    return found


def other_method(task: Task, wanted: Action) -> str | None:
    """A method of the customer's that a refund may not go to."""
    order = order_of(task, wanted)
    methods = task.tables["users"][order["user_id"]]["payment_methods"]
    paid = order["payment_history"][0]["payment_method_id"]
    return next((one for one in methods if one not in (paid, wanted.arguments["payment_method_id"])), None)


def all_items(task: Task, wanted: Action) -> list[str]:
    return [one["item_id"] for one in order_of(task, wanted)["items"]]


def first_of(count: int) -> Callable[[Task, Action], list[str] | None]:
    """One item, where so many are meant."""

    def of(task: Task, wanted: Action) -> list[str] | None:
        meant = wanted.arguments["item_ids"]
        return [str(meant[0])] if len(meant) == count else None

    return of


def variants_of(task: Task, wanted: Action) -> tuple[str, str, dict[str, Any]]:
    """The old variant, the right one, and all of the product."""
    [old], [right] = wanted.arguments["item_ids"], wanted.arguments["new_item_ids"]
    product = next(one["product_id"] for one in order_of(task, wanted)["items"] if one["item_id"] == old)
    return old, right, task.tables["products"][product]["variants"]


def variant(kind: str, fits: Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], bool]) -> Way:
    """Another variant, by what it, the old one and the right one are."""

    def of(task: Task, wanted: Action) -> list[str] | None:
        if request_kind(task) != kind:
            return None
        old, right, variants = variants_of(task, wanted)
        others = [one for one in variants if one not in (old, right)]
        fitting = (one for one in others if fits(variants[one], variants[old], variants[right]))
        found = next(fitting, None)
        return None if found is None else [found]

    return changed(new_item_ids=of)


def shares_new(one: dict[str, Any], old: dict[str, Any], right: dict[str, Any]) -> bool:
    return any(
        value == right["options"][name] != old["options"][name] for name, value in one["options"].items()
    )


def keeps_first(one: dict[str, Any], old: dict[str, Any], right: dict[str, Any]) -> bool:
    kept = next(iter(old["options"]))
    return bool(one["options"][kept] == old["options"][kept])


def other_reason(task: Task, wanted: Action) -> str:
    return next(one for one in REASONS if one != wanted.arguments["reason"])


def order_like(same_state: bool) -> Way:
    """The wish tried on another order: in the same state, or with the same products in the other state."""

    def of(task: Task, wanted: Action) -> str | None:
        if request_kind(task) != "orders":
            return None
        meant = order_of(task, wanted)
        products = [one["product_id"] for one in meant["items"]]
        others = [one for one in task.tables["orders"].values() if one["order_id"] != meant["order_id"]]
        return next(
            str(one["order_id"])
            for one in others
            if (one["status"] == meant["status"]) is same_state
            and one["user_id"] == meant["user_id"]
            and ([item["product_id"] for item in one["items"]] == products) is not same_state
            and one["items"][0]["product_id"] == products[0]
        )

    return changed(order_id=of)


def address_with(right: Callable[[int], int]) -> Way:
    """The order's own address, but for some of the parts that count, as many as `right` says of all."""

    def way(task: Task) -> Sequence[Message] | None:
        wanted = change(task)
        assert wanted is not None
        own = order_of(task, wanted)["address"]
        expected = task.user_scenario["script"]["turns"][0]["says"]
        parts = [part for part, value in own.items() if wanted.arguments[part] != value]
        counted = [part for part in parts if part != "address1" or wanted.arguments[part] not in expected]
        if len(counted) < 4:
            return None
        return changed(**{part: own[part] for part in counted[right(len(counted)) :]})(task)

    return way


def after_first(way: Callable[[list[Action]], Sequence[Action] | None]) -> Way:
    """The first of several changes as asked, and then what a way makes of what is left."""

    def made(task: Task) -> Sequence[Message] | None:
        left = remaining_actions(task)
        changes = [place for place, one in enumerate(left) if is_write(one.name)]
        if len(changes) < 2:
            return None
        rest = way(left[changes[0] + 1 :])
        if rest is None:
            return None
        return [call_message(one, place) for place, one in enumerate([*left[: changes[0] + 1], *rest])]

    return made


def reads_on(left: list[Action]) -> Sequence[Action] | None:
    return None if is_write(left[0].name) else left[:1]


def another_record(left: list[Action]) -> Sequence[Action] | None:
    wanted = left[-1]
    if "order_id" not in wanted.arguments or len(left) != 2:
        return None
    return [left[0], with_arguments(wanted, order_id="#W0000000")]


def all_but_the_last(left: list[Action]) -> Sequence[Action] | None:
    return left[:-1] if sum(is_write(one.name) for one in left) == 2 else None


def unread(task: Task) -> Sequence[Message] | None:
    """The right change at once."""
    wanted = change(task)
    return None if wanted is None or not list(opened(task)) else [call_message(wanted, 90)]


def told_figure(task: Task, *more: str) -> Sequence[Message] | None:
    criteria = task.evaluation_criteria
    answers = (criteria.communicate_info if criteria else None) or []
    return [*opened(task), say(" and ".join([*answers, *more]))] if answers else None


WAYS: dict[str, list[tuple[str, int, Way, float]]] = {
    "precondition_verification": [
        ("the change unread", 1, unread, 0.0),
        ("read, and nothing done", 1, reading, 0.2),
        ("the tool refused it", 1, changed(payment_method_id="credit_card_0"), 0.5),
        ("another reason", 1, changed(reason=other_reason), 0.8),
    ],
    "structured_data_reasoning": [
        ("nothing of what was said", 1, variant("options", lambda *one: not shares_new(*one)), 0.0),
        (
            "a part in stock",
            1,
            variant("options", lambda *one: one[0]["available"] and shares_new(*one)),
            0.2,
        ),
        (
            "a part out of stock",
            3,
            variant("options", lambda *one: not one[0]["available"] and shares_new(*one)),
            0.2,
        ),
        ("the cheapest, out of stock", 3, variant("cheapest", keeps_first), 0.2),
        ("cheap, and another option", 3, variant("cheapest", lambda *one: not keeps_first(*one)), 0.0),
        ("another product in that order", 1, order_like(same_state=True), 0.0),
        ("the other state", 1, order_like(same_state=False), 0.2),
        ("another reason", 1, changed(reason=other_reason), 0.8),
    ],
    "tool_calling_precision": [
        ("too many items", 1, changed(item_ids=all_items), 0.2),
        (
            "an item twice",
            1,
            changed(item_ids=lambda task, wanted: [wanted.arguments["item_ids"][0]] * 2),
            0.2,
        ),
        (
            "another method",
            1,
            changed(
                item_ids=lambda task, wanted: wanted.arguments["item_ids"], payment_method_id=other_method
            ),
            0.8,
        ),
        ("half of the items", 1, changed(item_ids=first_of(2)), 0.5),
        ("one of three items", 1, changed(item_ids=first_of(3)), 0.2),
        ("another order", 1, changed(order_id="#W0000000"), 0.0),
        (
            "right items for wrong ones",
            4,
            changed(new_item_ids=lambda task, wanted: wanted.arguments["new_item_ids"][::-1]),
            0.5,
        ),
    ],
    "account_address_inference": [
        ("the account or the order read, and nothing done", 3, reading, 0.2),
        ("no part right", 1, address_with(lambda parts: 0), 0.0),
        ("one part right", 1, address_with(lambda parts: 1), 0.2),
        ("half of the parts right", 1, address_with(lambda parts: -(-parts // 2)), 0.5),
        ("all parts right but one", 1, address_with(lambda parts: parts - 1), 0.8),
        ("another order", 1, changed(order_id="#W0000000"), 0.0),
    ],
    "multi_step_task_completion": [
        ("the first alone", 2, after_first(lambda left: []), 0.0),
        ("the next record read, and nothing done", 3, after_first(reads_on), 0.2),
        ("refused by the tool", 1, changed(payment_method_id="credit_card_0"), 0.2),
        ("a wrong argument", 1, changed(address1="1 Nowhere Street"), 0.5),
        ("another record", 3, after_first(another_record), 0.0),
        ("one of two", 4, after_first(all_but_the_last), 0.8),
    ],
    "conditional_detail_retrieval": [
        ("the figure", 1, told_figure, 1.0),
        ("the figure and another", 1, lambda task: told_figure(task, "12345.67"), 0.0),
        ("read, and nothing said", 1, reading, 0.2),
        ("unread", 1, unread, 0.0),
        ("all items", 2, changed(item_ids=all_items), 0.5),
        ("refused by the tool", 1, changed(payment_method_id="credit_card_0"), 0.5),
        ("another refund", 1, changed(payment_method_id=other_method), 0.8),
    ],
}
LEAST = 2
"""Scenarios in which a way must find its place, of the first `SEEDS`."""

SEEDS = 400


@pytest.mark.parametrize(
    ("name", "level", "way", "grade"),
    [
        pytest.param(name, level, way, grade, id=f"{name}-{what}")
        for name, ways in WAYS.items()
        for what, level, way, grade in ways
    ],
)
def test_each_grade_is_what_the_table_says(name: str, level: int, way: Way, grade: float) -> None:
    generator = ENVIRONMENTS.generator(name, level)
    found = ((seed, way(generator.scenario(seed))) for seed in range(SEEDS))
    fitting = list(islice(((seed, said) for seed, said in found if said is not None), LEAST))
    assert len(fitting) == LEAST
    for seed, said in fitting:
        environment = ScenarioEnvironment(generator, WORLD)
        environment.reset(seed)
        for message in said:
            environment.step(message)
        assert environment.reward() == grade, seed
