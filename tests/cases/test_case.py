"""Cases: their content, their store, and the files they are kept in."""

import json
import re
from collections import Counter

import pytest

from pytest_trace2evolve.cases.case import (
    FAMILIES,
    build_case,
    format_case_line,
    generate,
    read_cases,
)
from pytest_trace2evolve.cases.content import SeededChoices, find_foreign_mark, vocabulary
from pytest_trace2evolve.cases.store import build_store
from pytest_trace2evolve.errors import CaseError
from pytest_trace2evolve.records.task import Content

TRAIN, HELDOUT = Content.TRAIN, Content.HELDOUT


def text_of(case):
    return json.dumps(case.task.model_dump(mode="json"), ensure_ascii=False)


# Content


@pytest.mark.parametrize("field", ["first_names", "last_names", "streets", "domains"])
def test_no_name_is_in_both_contents(field):
    train, heldout = (getattr(vocabulary(entry), field) for entry in (TRAIN, HELDOUT))
    assert not {*map(str.lower, train)} & {*map(str.lower, heldout)}


@pytest.mark.parametrize(("content", "other"), [(TRAIN, HELDOUT), (HELDOUT, TRAIN)])
def test_no_word_of_one_content_occurs_in_cases_of_the_other(content, other):
    for case in generate("purity", 5 * len(FAMILIES), content):
        assert find_foreign_mark(text_of(case), other) == ""


def test_foreign_words_are_found_wherever_they_stand():
    assert find_foreign_mark("a Camping Stove, please", HELDOUT) == "camping stove"
    assert find_foreign_mark("two camping stoves", HELDOUT) == "camping stove"
    assert find_foreign_mark("FREYA", HELDOUT) == "freya"
    assert find_foreign_mark("freya_grimaldi_2211", HELDOUT) == "freya"
    assert find_foreign_mark("a.grimaldi17@mail", HELDOUT) == "grimaldi"
    assert find_foreign_mark("Yes, exactly\n so!", HELDOUT) == "yes, exactly so"
    assert find_foreign_mark("Kindly void it", HELDOUT) == "kindly void"
    assert find_foreign_mark("I received a camp stove", HELDOUT) == ""
    assert find_foreign_mark("Freyan", HELDOUT) == ""


EVERYBODYS = {
    TRAIN: {"The one {trait}, with the {product}.", "Good. {request}", "Hello.", "Hey!"},
    HELDOUT: {"Deliver {order} at {address}, please.", "Greetings."},
}
"""Phrases whose words between the slots are too few, or the other content's too, to tell whose they are."""


@pytest.mark.parametrize(("content", "other"), [(TRAIN, HELDOUT), (HELDOUT, TRAIN)])
def test_every_phrase_is_found_in_a_case_of_the_other_content(content, other):
    case = build_case("missing_order_id", SeededChoices("plant"), other)
    record = case.task.model_dump(mode="json")
    missed = set()
    for text in (text for texts in vocabulary(content).phrases.values() for text in texts):
        said = re.sub(r"\{\w+\}", "#W1234567", text)
        record["user_scenario"]["script"]["replies"]["wait"] = [said]
        found = find_foreign_mark(json.dumps(record, ensure_ascii=False), content)
        assert found in said.lower()
        missed |= set() if found else {text}
    assert missed == EVERYBODYS[content]


# Store


def test_a_store_of_any_size_fits_together():
    tables = build_store(SeededChoices("s"), TRAIN, customers=40, orders=90)
    assert {name: len(table) for name, table in tables.items()} == {
        "products": len(vocabulary(TRAIN).products),
        "users": 40,
        "orders": 90,
    }
    for order_id, order in tables["orders"].items():
        owner = tables["users"][order["user_id"]]
        assert order_id in owner["orders"]
        assert order["payment_history"][0]["payment_method_id"] in owner["payment_methods"]
        for item in order["items"]:
            assert item["item_id"] in tables["products"][item["product_id"]]["variants"]
        paid = order["payment_history"][0]["amount"]
        assert paid == round(sum(item["price"] for item in order["items"]), 2)
    listed = Counter(entry for user in tables["users"].values() for entry in user["orders"])
    assert set(listed) == set(tables["orders"])
    assert set(listed.values()) == {1}


# Families


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_family_varies_in_words_store_and_what_is_right(family):
    made = list(generate("variety", 40, TRAIN, [family]))
    assert len({case.script.turns[0].says for case in made}) >= 30
    assert len({len(case.task.initial_state.initialization_data.agent_data["orders"]) for case in made}) > 1
    shapes = {re.sub(r"[#\d]\S*", "", case.script.turns[0].says.split(". ")[-1]) for case in made}
    assert len(shapes) >= 3


# Files


def line(change=lambda record: None):
    case = build_case("missing_order_id", SeededChoices("l"), TRAIN)
    record = json.loads(format_case_line(case))
    change(record)
    return json.dumps(record) + "\n"


def without_script(record):
    del record["user_scenario"]["script"]


def empty_turns(record):
    record["user_scenario"]["script"]["turns"] = []


def nan_price(record):
    record["initial_state"]["initialization_data"]["agent_data"]["price"] = float("nan")


def half_a_sign(record):
    record["user_scenario"]["script"]["turns"][0]["says"] = "Hi \ud800"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no cases; run 'trace2evolve cases generate' to make some"),
        ("{", "line 1: not valid JSON"),
        ("[1]\n", "line 1: expected one JSON object per line, got list"),
        ("[\n{}\n]\n", "line 1: not valid JSON with finite numbers: EOF while parsing a list"),
        ("[" * 100_000, "line 1: not valid JSON with finite numbers: nested more than 200 levels deep"),
        ("1" * 5_000, "line 1: not valid JSON with finite numbers: a number of more than 4,300 digits"),
        (line(nan_price), "line 1: not valid JSON with finite numbers: expected value"),
        (
            line(half_a_sign),
            "line 1: not valid JSON with finite numbers: unexpected end of hex escape",
        ),
        ("\n{}\n", "line 2: id: Field required"),
        (line(without_script), "has no customer script (user_scenario.script), so it is not a case"),
        (line(empty_turns), "its customer script is damaged: turns: Tuple should have at least 1 item"),
        (line() + line(), "occurs twice; remove one"),
    ],
)
def test_a_damaged_file_is_told_by_line(tmp_path, text, message):
    path = tmp_path / "cases.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CaseError, match=re.escape(message)) as caught:
        read_cases(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_family_without_new_cases_ends_the_generation(monkeypatch):
    known = build_case("policy_edge", SeededChoices("only"), TRAIN)
    monkeypatch.setattr("pytest_trace2evolve.cases.case.build_case", lambda *_: known)
    made = generate("s", 5, TRAIN, ["policy_edge"])
    assert next(made) == known
    message = (
        "family 'policy_edge' gave no new case in 1000 tries, after 1 of 5 cases; ask for fewer cases, or"
    )
    with pytest.raises(CaseError, match=re.escape(message)):
        next(made)
