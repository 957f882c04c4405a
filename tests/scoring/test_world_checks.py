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

BOOKINGS = Reading(table="bookings", argument="booking_id")
CANCEL = RULES.writes["cancel_booking"]


def problems(rules: Rules) -> list[str]:
    return list(rule_problems(rules, InnWorld(rules=rules).tools("assistant")))


def changed(**fields: Any) -> Rules:
    return RULES.model_copy(update=fields)


def with_write(tool: str, **fields: Any) -> Rules:
    """The rules with another declaration of a write."""
    declared = RULES.writes[tool].model_copy(update=fields)
    return changed(writes={**RULES.writes, tool: declared})


def with_promise(**fields: Any) -> Rules:
    """The rules with a changed first promise."""
    first, *others = RULES.promises
    return changed(promises=(first.model_copy(update=fields), *others))


@pytest.mark.parametrize("world", [("inspect_evals", "retail"), ("trace2evolve", "support")])
def test_the_built_in_rules_can_match(worlds: Worlds, world: tuple[str, str]) -> None:
    opened = worlds.open(*world)
    rules = rules_of(opened)
    assert rules is not None
    assert not list(rule_problems(rules, opened.tools("assistant")))


def test_rules_that_can_match_have_no_problems() -> None:
    assert problems(RULES) == []


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (
            changed(identify={"find_gest": "guest.id"}),
            (
                "identify: the agent has no tool 'find_gest', so the rule never applies; did you mean "
                "'find_guest'?"
            ),
        ),
        (
            changed(reads={**RULES.reads, "get_bookin": BOOKINGS}),
            (
                "reads: the agent has no tool 'get_bookin', so the rule never applies; did you mean "
                "'get_booking'?"
            ),
        ),
        (
            changed(writes={**RULES.writes, "cancel_bookin": CANCEL}),
            (
                "writes: the agent has no tool 'cancel_bookin', so the rule never applies; did you "
                "mean 'cancel_booking'?"
            ),
        ),
        (
            with_promise(tools=frozenset({"cancel_it"})),
            (
                "promises[0].tools: the agent has no tool 'cancel_it', so the rule never applies; did "
                "you mean 'cancel_booking'?"
            ),
        ),
        (
            changed(reads={"get_booking": Reading(table="bookings", argument="booking")}),
            (
                "reads['get_booking']: the tool has no argument 'booking', so the rule never applies; "
                "did you mean 'booking_id'?"
            ),
        ),
        (
            with_write("cancel_booking", argument="id"),
            (
                "writes['cancel_booking']: the tool has no argument 'id', so the rule never applies; "
                "known are booking_id"
            ),
        ),
        (
            changed(ids={"bookings": "B("}),
            (
                "ids['bookings']: 'B(' is not a regular expression (missing ), unterminated subpattern "
                "at position 1); correct it"
            ),
        ),
        (
            changed(ids={"bookings": r"\d*"}),
            (
                r"ids['bookings']: '\\d*' matches the empty text, so it finds no ids; "
                "require some character"
            ),
        ),
    ],
)
def test_a_rule_that_can_never_match_is_named(rules: Rules, text: str) -> None:
    assert text in problems(rules)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (
            lambda: Writing(table="b", argument="id", named=("Cancel",)),
            "'Cancel' is compared with lower-case",
        ),
        (lambda: Promise(tools=frozenset({"x"}), phrases=(" ",)), "' ' is compared with lower-case text"),
        (lambda: changed_fields(identify={"find_guest": "guest..id"}), "String should match pattern"),
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


def changed_fields(**fields: Any) -> Rules:
    return Rules.model_validate({**RULES.model_dump(), **fields})


def test_a_promise_of_a_tool_that_only_the_user_has_is_named() -> None:
    rules = Rules(
        identify={},
        customers="",
        owner="",
        status="",
        ids={},
        reads={},
        writes={},
        promises=(Promise(tools=frozenset({"restart_phone"}), verbs=("restarted",)),),
    )
    [problem] = rule_problems(rules, FakeWorld().tools("assistant"))
    assert problem.startswith("promises[0].tools: the agent has no tool 'restart_phone'")
