"""The hotel through documented commands: it locks, solves its tasks, and promotes its better candidate."""

from collections import Counter

import pytest

from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.scoring.invariants import find_breaches
from tests.hotel import HotelProject, HotelServer, imported

TASKS = 12
TRIALS = 4


def passes(hotel: HotelProject) -> Counter[str]:
    """How many simulations of each task the last run passed; tasks without any are absent."""
    return Counter(
        simulation.task_id
        for simulation in hotel.simulations()
        if simulation.reward_info is not None and simulation.reward_info["reward"] == 1.0
    )


def broken_kinds(hotel: HotelProject) -> set[Invariant]:
    """The invariants that the simulations of the last run break, by the project's own rules."""
    with imported("hotel.world", hotel.root) as world:
        rules = world.HotelWorld("hotel").rules()
    return {
        finding.invariant
        for simulation in hotel.simulations()
        for finding in find_breaches(simulation.trace, rules)
    }


def test_the_unit_tests_of_the_project_pass(hotel: HotelProject) -> None:
    hotel.run("tests").assert_outcomes(passed=2)


def test_the_bot_solves_every_task_and_keeps_the_rules(hotel: HotelProject) -> None:
    result = hotel.run("suites", "--candidate=v6")
    assert result.ret == 0
    result.assert_outcomes(passed=TASKS)
    assert set(passes(hotel).values()) == {TRIALS}
    assert len(passes(hotel)) == TASKS
    assert broken_kinds(hotel) == set()


@pytest.mark.parametrize("arguments", [("--candidate=v0",)])
def test_an_agent_that_does_nothing_solves_no_task(hotel: HotelProject, arguments: tuple[str, ...]) -> None:
    result = hotel.run("suites", *arguments)
    assert result.ret == 1
    result.assert_outcomes(failed=TASKS)
    assert len(hotel.simulations()) == TASKS * TRIALS
    assert not passes(hotel)


_PLANNING = "hotel/planning.py"


@pytest.mark.parametrize(
    ("invariant", "name", "old", "new"),
    [
        (
            Invariant.AUTHENTICATION,
            _PLANNING,
            'guest = yield self._call("find_guest", email=email[0] if email else "")',
            'guest = Message(role="tool", content="G1")',
        ),
        (
            Invariant.CONSENT,
            _PLANNING,
            "answer = yield self._say(question, **values)",
            'answer = Message(role="user", content="yes")',
        ),
        (
            Invariant.READ_BEFORE_WRITE,
            _PLANNING,
            'result = yield self._call("get_booking", booking_id=request.booking_id)',
            'result = yield self._call("cancel_booking", booking_id=request.booking_id)',
        ),
        (Invariant.ELIGIBILITY, _PLANNING, 'booking["status"] != "confirmed"', "False"),
        (
            Invariant.OTHER_CUSTOMERS,
            _PLANNING,
            'email=email[0] if email else ""',
            'email="dan@guests.example"',
        ),
        (Invariant.PROMISES, "hotel/prompt.md", "Shall I cancel", "I have cancelled it. Shall I cancel"),
    ],
    ids=[
        kind for kind in Invariant if kind not in (Invariant.COLLATERAL_CHANGE, Invariant.MINEFIELD)
    ],  # no rules of a world
)
def test_the_rules_find_a_bot_that_breaks_them(
    hotel: HotelProject, invariant: Invariant, name: str, old: str, new: str
) -> None:
    hotel.replace(name, old, new)
    hotel.run("suites", "--candidate=v6", "--t2e-trials=1")
    assert len(hotel.simulations()) == TASKS
    assert invariant in broken_kinds(hotel)


def test_chat_solves_the_tasks_and_a_second_run_asks_nothing(
    hotel: HotelProject, hotel_model: HotelServer
) -> None:
    hotel.run("suites", "--candidate=v6", *hotel_model.arguments).assert_outcomes(passed=TASKS)
    assert set(passes(hotel).values()) == {TRIALS}
    assert broken_kinds(hotel) == set()
    asked = hotel_model.requests
    assert asked > TASKS * TRIALS
    hotel.run("suites", "--candidate=v6", *hotel_model.arguments).assert_outcomes(passed=TASKS)
    assert hotel_model.requests == asked
    hotel.run("suites", "--candidate=v0", *hotel_model.arguments).assert_outcomes(failed=TASKS)
    assert hotel_model.requests > asked


def test_chat_plays_a_cassette_back_without_an_endpoint(
    hotel: HotelProject, hotel_model: HotelServer
) -> None:
    hotel.run("suites", "--candidate=v6", "--t2e-record=v6.jsonl", *hotel_model.arguments)
    asked = hotel_model.requests
    played = hotel.run("suites", "--candidate=v6", "--t2e-playback=v6.jsonl")
    played.assert_outcomes(passed=TASKS)
    assert hotel_model.requests == asked
