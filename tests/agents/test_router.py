"""Routing by letters: no place, no letter and no length is preferred; who prefers nothing chooses none."""

import math
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.agents.router import (
    LETTERS,
    LabelOrder,
    average_answers,
    label_orders,
    question_messages,
)
from pytest_trace2evolve.records.adapter import NO_CAPABILITY, Routing, Skill

NAMES = st.lists(st.from_regex(r"[a-z]{3,8}", fullmatch=True), min_size=1, max_size=7, unique=True).filter(
    lambda names: NO_CAPABILITY not in names
)
LOGPROBS = st.floats(-30, 0)


def asked(names: list[str], answers: Callable[[LabelOrder], Mapping[str, float]], seed: int = 0) -> Routing:
    return average_answers([(order, answers(order)) for order in label_orders(names, seed)])


@given(names=NAMES, seed=st.integers(0, 99))
def test_each_label_stands_once_at_each_place(names: list[str], seed: int) -> None:
    orders = label_orders(names, seed)
    assert len(orders) == len(names) + 1
    for place in range(len(orders)):
        assert {order[place] for order in orders} == {*names, NO_CAPABILITY}
    assert label_orders(names[::-1], seed) == orders, "the order in which capabilities are given says nothing"


@given(names=NAMES, seed=st.integers(0, 99), data=st.data())
def test_a_model_that_likes_places_or_letters_chooses_none(
    names: list[str], seed: int, data: st.DataObject
) -> None:
    liked = {letter: data.draw(LOGPROBS) for letter in LETTERS[: len(names) + 1]}
    found = asked(names, lambda order: liked, seed)
    assert found.chosen == NO_CAPABILITY
    assert found.shares == pytest.approx(dict.fromkeys([*names, NO_CAPABILITY], 1 / (len(names) + 1)))


@given(names=NAMES, seed=st.integers(0, 99), data=st.data())
def test_what_a_model_knows_wins_over_what_it_likes(names: list[str], seed: int, data: st.DataObject) -> None:
    """Likings of places are added to what is known of labels: only the second decides."""
    liked = [data.draw(st.floats(-3, 0)) for _ in range(len(names) + 1)]
    known = data.draw(st.sampled_from([*names, NO_CAPABILITY]))

    def answers(order: LabelOrder) -> dict[str, float]:
        return {
            LETTERS[place]: liked[place] + (4.0 if label == known else 0.0)
            for place, label in enumerate(order)
        }

    found = asked(names, answers, seed)
    assert found.chosen == known
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.silent == 0


def test_a_letter_is_the_same_letter_in_whatever_token() -> None:
    order = ("a_skill", NO_CAPABILITY)
    whole = average_answers([(order, {"A": math.log(0.3), "B": math.log(0.1)})])
    parts = average_answers(
        [(order, {" A": math.log(0.1), "a": math.log(0.1), "A)": math.log(0.1), "B": math.log(0.1)})]
    )
    assert whole.shares == pytest.approx({"a_skill": 0.75, NO_CAPABILITY: 0.25})
    assert parts.shares == pytest.approx(whole.shares)


def test_a_letter_that_is_not_told_is_as_unlikely_as_the_least_that_is() -> None:
    found = average_answers([(("a_skill", NO_CAPABILITY), {"A": math.log(0.6), "The": math.log(0.2)})])
    assert found.shares == pytest.approx({"a_skill": 0.75, NO_CAPABILITY: 0.25})
    assert found.chosen == "a_skill"


def test_who_says_no_letter_at_all_is_counted_and_chooses_none() -> None:
    found = average_answers([(("a_skill", NO_CAPABILITY), {"Hello": -0.1}), ((NO_CAPABILITY, "a_skill"), {})])
    assert (found.chosen, found.silent) == (NO_CAPABILITY, 2)
    assert found.shares == {"a_skill": 0.5, NO_CAPABILITY: 0.5}


def test_a_question_holds_each_label_once_and_the_opening() -> None:
    skills = [
        Skill(name="reading_first", description="The record is read first.", example="Cancel #1."),
        Skill(name="adding_up", description="Amounts are added up.", example="What do I pay in all?"),
    ]
    system, user = question_messages(
        skills, ("adding_up", NO_CAPABILITY, "reading_first"), "I want my money back."
    )
    assert (
        "A) Amounts are added up. For instance: What do I pay in all?\n"
        "B) None of the others is needed.\n"
        "C) The record is read first. For instance: Cancel #1."
    ) in system["content"]
    assert user["content"] == "Request: I want my money back.\n\nLetter:"


@pytest.mark.parametrize("names", [["one", "one"], [NO_CAPABILITY], [f"name_{place}" for place in range(26)]])
def test_what_cannot_be_lettered_is_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match=r"labels; expected at most 26, all different"):
        label_orders(names)


def test_orders_of_other_labels_are_refused() -> None:
    for message in ([], [(("a_skill", NO_CAPABILITY), {}), (("another", NO_CAPABILITY), {})]):
        with pytest.raises(ValueError, match="orders of the same labels"):
            average_answers(message)
