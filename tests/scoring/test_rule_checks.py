"""Rules that can never match: each is named, with its cause and remedy."""

from typing import Any

import pytest

from pytest_trace2evolve.records.protocols import rules_of
from pytest_trace2evolve.records.rules import Promise, Reading, Rules, Writing
from pytest_trace2evolve.scoring.rule_checks import MAX_TASKS, Problem, gold_calls, rule_problems
from pytest_trace2evolve.worlds.registry import Worlds
from tests.fake_world import FakeWorld
from tests.inn_world import RULES, TASKS, InnSession, InnWorld

BOOKINGS = Reading(table="bookings", argument="booking_id")
CANCEL = RULES.writes["cancel_booking"]


def problems(rules: Rules) -> list[Problem]:
    world = InnWorld(rules=rules)
    return list(rule_problems(rules, world.tools("assistant"), gold_calls(world, TASKS.values())))


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
    tasks = list(opened.tasks().values())[:40]
    assert not list(rule_problems(rules, opened.tools("assistant"), gold_calls(opened, tasks)))


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
            changed(
                writes={
                    **RULES.writes,
                    "cancel_bookings": Writing(table="bookings", argument="booking_ids", named=("cancel",)),
                }
            ),
            (
                "writes['cancel_bookings']: argument 'booking_ids' is of type array, which cannot "
                "hold an id, so the rule never applies; name an argument of type string or integer"
            ),
        ),
        (
            with_write("cancel_booking", table="booking"),
            (
                "writes['cancel_booking']: no tool reads or creates a record of table 'booking', so "
                "every call breaks read_before_write; did you mean 'bookings'?"
            ),
        ),
        (
            changed(ids={"booking": r"B\d{3,}"}),
            "ids['booking']: no tool reads or writes a record of this table; did you mean 'bookings'?",
        ),
        (
            changed(customers="guest", identify={"find_guest": ""}),
            "customers: no tool reads or writes a record of table 'guest'; did you mean 'guests'?",
        ),
        (
            changed(owner="guest"),
            (
                "owner: no record that the tasks read has an id in field 'guest'; the fields are "
                "guest_id, id, nights, room, status; correct it"
            ),
        ),
        (
            changed(status="state"),
            (
                "status: no record that the tasks read has a field 'state'; the fields are email, "
                "guest_id, id, name, nights, room, …; correct it"
            ),
        ),
        (
            changed(status=""),
            (
                "writes['cancel_booking'].statuses: the rules name no field of the status (status is ''); "
                "name it"
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
        (
            changed(ids={"bookings": r"#\d+"}),
            (
                "ids['bookings']: '#\\\\d+' matches none of the ids that the tasks name, such as "
                "'B100'; correct it"
            ),
        ),
        (
            with_write("cancel_booking", named=("",)),
            "writes['cancel_booking'].named: '' is an empty word; remove it or write the word",
        ),
        (
            with_write("cancel_booking", named=("Cancel",)),
            (
                "writes['cancel_booking'].named: 'Cancel' has capital letters, but is compared with "
                "lower-case text, so it never matches; write 'cancel'"
            ),
        ),
        (
            with_promise(verbs=("Cancelled",)),
            (
                "promises[0].verbs: 'Cancelled' has capital letters, but is compared with lower-case "
                "text, so it never matches; write 'cancelled'"
            ),
        ),
        (
            with_promise(verbs=(), nouns=()),
            "promises[0]: it has no verbs, nouns or phrases, so it matches no text; add some",
        ),
        (
            with_promise(tools=frozenset()),
            "promises[0]: tools is empty; name the tools that make the claim true",
        ),
        (
            changed(identify={"find_guest": "guest..id"}),
            (
                "identify['find_guest']: 'guest..id' has an empty part, so it finds no id; separate keys "
                "with one dot"
            ),
        ),
        (
            changed(identify={"find_guest": "id"}),
            (
                "identify['find_guest']: none of 4 results of 'find_guest' (the first has the keys "
                "guest) has an id at 'id', so the rule never applies; correct the path"
            ),
        ),
        (
            changed(identify={"find_guest": ""}, customers=""),
            (
                "identify['find_guest']: none of 4 results of 'find_guest' (the first has the keys "
                "guest) is an id as plain text, so the rule never applies; give the path of the id"
            ),
        ),
        (
            with_write("book_room", id_path="id"),
            (
                "writes['book_room'].id_path: none of 1 results of 'book_room' (the first has the "
                "keys booking) has an id at 'id', so the rule never applies; correct the path"
            ),
        ),
    ],
)
def test_a_rule_that_can_never_match_is_named(rules: Rules, text: str) -> None:
    found = problems(rules)
    assert text in [one.text for one in found]
    assert all(one.is_certain for one in found if one.text == text)


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (
            with_write("cancel_booking", statuses=frozenset({"opn"})),
            (
                "writes['cancel_booking'].statuses: no record that the tasks read has the status "
                "'opn'; they have cancelled, open; correct a misspelt status"
            ),
        ),
        (
            with_promise(statuses=frozenset({"canceled"})),
            (
                "promises[0].statuses: no record that the tasks read has the status 'canceled'; they "
                "have cancelled, open; correct a misspelt status"
            ),
        ),
    ],
)
def test_a_status_that_no_task_shows_is_only_likely_wrong(rules: Rules, text: str) -> None:
    assert problems(rules) == [Problem(text, is_certain=False)]


def test_a_tool_that_answers_with_text_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InnSession, "cancel_booking", lambda self, booking_id: "cancelled")
    assert [one.text for one in problems(RULES) if one.is_certain] == [
        (
            "writes['cancel_booking']: none of 1 results of 'cancel_booking' is a JSON object, so "
            "the rule never applies; let the tool return the record"
        )
    ]


def test_without_calls_only_the_declaration_is_checked() -> None:
    tools = InnWorld().tools("assistant")
    rules = changed(owner="nobody", identify={"find_guest": "nowhere"})
    assert list(rule_problems(rules, tools)) == []
    assert [one.text for one in rule_problems(changed(ids={"bookings": "("}), tools)] == [
        (
            "ids['bookings']: '(' is not a regular expression (missing ), unterminated subpattern at "
            "position 0); correct it"
        )
    ]


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
    assert problem.text.startswith("promises[0].tools: the agent has no tool 'restart_phone'")


def test_gold_calls_are_the_successful_calls_of_the_first_tasks() -> None:
    tasks = list(TASKS.values())
    calls = gold_calls(InnWorld(), tasks)
    assert [one.tool_call.name for one in calls][:3] == ["find_guest", "list_rooms", "book_room"]
    assert len(gold_calls(InnWorld(), [tasks[0]] * (MAX_TASKS + 5))) == 3 * MAX_TASKS
    unknown = tasks[1].model_copy(update={"id": "x"})
    actions = [one.model_copy(update={"arguments": {}}) for one in unknown.actions]
    broken = unknown.evaluation_criteria.model_copy(update={"actions": actions})  # type: ignore[union-attr]
    assert gold_calls(InnWorld(), [unknown.model_copy(update={"evaluation_criteria": broken})]) == []
