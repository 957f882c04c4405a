"""Rules that can never match: each is named, with its cause and remedy."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from pytest_trace2evolve.records.protocols import rules_of
from pytest_trace2evolve.records.rules import Promise, Reading, Rules, Writing
from pytest_trace2evolve.scoring.world_checks import rule_problems
from pytest_trace2evolve.worlds.registry import Worlds
from tests.fake_world import FakeWorld
from tests.inn_world import RULES, InnWorld


def changed(**fields: Any) -> Rules:
    return RULES.model_copy(update=fields)


@pytest.mark.parametrize("world", [("inspect_evals", "retail"), ("trace2evolve", "support")])
def test_rules_that_can_match_have_no_problems(worlds: Worlds, world: tuple[str, str]) -> None:
    opened = worlds.open(*world)
    rules = rules_of(opened)
    assert rules is not None
    assert not list(rule_problems(rules, opened.tools("assistant")))
    assert not list(rule_problems(RULES, InnWorld(rules=RULES).tools("assistant")))


BOOKINGS = Reading(table="bookings", argument="booking_id")
CANCEL = RULES.writes["cancel_booking"]
NO_TOOL = "{}: the agent has no tool {!r}, so the rule never applies; did you mean {!r}?"
NO_ARGUMENT = "{}: the tool has no argument {!r}, so the rule never applies; {}"
NO_PATTERN = (
    "ids['bookings']: 'B(' is not a regular expression (missing ), unterminated subpattern at position 1)"
)


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (
            changed(identify={"find_gest": "guest.id"}),
            NO_TOOL.format("identify", "find_gest", "find_guest"),
        ),
        (
            changed(reads={**RULES.reads, "get_bookin": BOOKINGS}),
            NO_TOOL.format("reads", "get_bookin", "get_booking"),
        ),
        (
            changed(writes={**RULES.writes, "cancel_bookin": CANCEL}),
            NO_TOOL.format("writes", "cancel_bookin", "cancel_booking"),
        ),
        (
            changed(promises=(RULES.promises[0].model_copy(update={"tools": frozenset({"cancel_it"})}),)),
            NO_TOOL.format("promises[0].tools", "cancel_it", "cancel_booking"),
        ),
        (
            changed(reads={"get_booking": Reading(table="bookings", argument="booking")}),
            NO_ARGUMENT.format("reads['get_booking']", "booking", "did you mean 'booking_id'?"),
        ),
        (
            changed(writes={"cancel_booking": CANCEL.model_copy(update={"argument": "id"})}),
            NO_ARGUMENT.format("writes['cancel_booking']", "id", "known are booking_id"),
        ),
        (changed(ids={"bookings": "B("}), f"{NO_PATTERN}; correct it"),
        (
            changed(ids={"bookings": r"\d*"}),
            r"ids['bookings']: '\\d*' matches the empty text, so it finds no ids; require some character",
        ),
    ],
)
def test_a_rule_that_can_never_match_is_named(rules: Rules, text: str) -> None:
    assert text in list(rule_problems(rules, InnWorld(rules=rules).tools("assistant")))


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (
            lambda: Writing(table="b", argument="id", named=("Cancel",)),
            "'Cancel' is compared with lower-case",
        ),
        (lambda: Promise(tools=frozenset({"x"}), phrases=(" ",)), "' ' is compared with lower-case text"),
        (
            lambda: Rules.model_validate({**RULES.model_dump(), "identify": {"find_guest": "guest..id"}}),
            "String should match pattern",
        ),
        (
            lambda: Writing(table="b", creates=True, named=("b",), id_path=".id"),
            "String should match pattern",
        ),
    ],
)
def test_a_word_or_path_that_can_never_match_cannot_be_declared(
    declare: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        declare()


def test_a_promise_of_a_tool_that_only_the_user_has_is_named() -> None:
    promise = Promise(tools=frozenset({"restart_phone"}), verbs=("restarted",))
    empty = {"identify": {}, "customers": "", "owner": "", "status": "", "ids": {}, "reads": {}, "writes": {}}
    rules = Rules.model_validate({**empty, "promises": (promise,)})
    [problem] = rule_problems(rules, FakeWorld().tools("assistant"))
    assert problem.startswith("promises[0].tools: the agent has no tool 'restart_phone'")
