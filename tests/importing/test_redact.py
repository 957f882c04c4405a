"""Redaction: what is found, what stays, and that replacements are consistent."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.importing.patterns import Patterns, patterns_of_project, read_patterns
from pytest_trace2evolve.importing.redact import Redactor
from tests.importing.planted import Item, planted


def redacted(value: Any, patterns: Patterns | None = None) -> Any:
    redactor = Redactor(patterns)
    return redactor.redact(value, redactor.learn(value))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("My name is Ann Lee.", "My name is Name1 Name2."),
        ("my name is ann lee and i am angry", "my name is name1 name2 and i am angry"),
        ("Hi Jörg, it is me", "Hi Name1, it is me"),
        ("Thanks,\nZdenka Novotná", "Thanks,\nName1 Name2"),
        ("Write to Ann.Lee@Mail.org!", "Write to user1@example.com!"),
        ("Write to ann.lee (at) mail dot org", "Write to user1@example.com"),
        ("Call (415) 555-2671 or +44 20 7946 0958", "Call (900) 000-0001 or +90 00 0000 0002"),
        (
            "I live at 12 Main Street, Apt 4, Springfield, IL 62701",
            "I live at 101 Example Street, Springfield, IL 90001",
        ),
        ("Die Adresse ist Hauptstraße 12", "Die Adresse ist 101 Example Street"),
        ("card 4111 1111 1111 1111", "card 9000 0000 0000 0001"),
        ("IBAN DE89 3702 0044 0532 0130 00", "IBAN DE90 0000 0000 0000 0000 01"),
        ("order #W1234567 and booking B17", "order #W9000001 and booking B91"),
        ("from 8.8.4.4 and 2a02:8071::1", "from 9.0.0.1 and 9a00:0000::1"),
        ("born on 3 May 1980", "born on 1900-01-01"),
        ("https://x.test/?m=ann.lee%40mail.org&q=1", "https://x.test/?m=user1@example.com&q=1"),
        ("my name is Ren\\u00e9e Dubois", "my name is Name1 Name2"),
        ("write to ann&#64;mail.org", "write to user1@example.com"),
    ],
)
def test_values_are_replaced(before: str, after: str) -> None:
    assert redacted(before) == after


@pytest.mark.parametrize(
    "text",
    [
        "Where is my order? It was $1,234.56 on 2026-05-15 at 15:30.",
        "I am angry. This is Urgent! Hi there, hello team. Hello, My order is late.",
        "I want a refund for 2 shirts on the way to Los Angeles, thank you.",
        "Is it 1920x1080 or version 1.2.3? It has 16 GB for 128.50 EUR.",
        "A reservation for 2 from 10 May to 12 May, please.",
        "127.0.0.1 and user4@example.com and Name7",
    ],
)
def test_other_words_and_numbers_stay(text: str) -> None:
    assert redacted(text) == text


def test_fields_are_recognized_by_their_names() -> None:
    customer = {
        "firstName": "Wren", "last_name": "Will", "e-mail": "w@x.org", "phone": 4155552671, "zip": "62701",
        "dob": "1980-05-03", "password": "hunter2", "cardLast4": "1111", "customerId": "cu_8812",
        "city": "Rome",
    }  # fmt: skip
    assert redacted({"customer": customer}) == {
        "customer": {
            "firstName": "Name1", "last_name": "Name2", "e-mail": "user1@example.com", "phone": 9000000001,
            "zip": "90001", "dob": "1900-01-01", "password": "secret1", "cardLast4": "9001",
            "customerId": "cu_9001", "city": "Rome",
        }
    }  # fmt: skip


def test_products_stay_and_so_do_their_names_and_ids_in_texts() -> None:
    value = {
        "items": [{"name": "Water Bottle", "item_id": "1656367028", "price": 3}],
        "orders": {"W1234567": {"user_id": "ann_lee_8821"}},
        "messages": [{"content": "The Water Bottle 1656367028 of W1234567 leaks"}],
    }
    clean = redacted(value)
    assert clean["items"] == value["items"]
    assert list(clean["orders"]) == ["W9000001"]
    assert clean["messages"] == [{"content": "The Water Bottle 1656367028 of W9000001 leaks"}]


def test_texts_and_structures_get_the_same_replacements() -> None:
    clean = redacted(
        {
            "said": "I'm Ann Lee, ANN LEE! Call 415-555-2671. Or ann lee, ann.lee@mail.org, #w1234567.",
            "arguments": {"phone": "+1 (415) 555-2671", "order_id": "W1234567", "mailbox": "ann.lee"},
            "result": json.dumps({"name": {"first_name": "Ann", "last_name": "Lee"}}),
            "repr": "{'guest': 'Ann Lee'}",
        }
    )
    assert clean == {
        "said": "I'm Name1 Name2, NAME1 NAME2! Call 900-000-0001. "
        "Or name1 name2, user1@example.com, #w9000001.",
        "arguments": {"phone": "+9 (000) 000-0001", "order_id": "W9000001", "mailbox": "user1"},
        "result": '{"name": {"first_name": "Name1", "last_name": "Name2"}}',
        "repr": "{'guest': 'Name1 Name2'}",
    }


def test_a_common_word_is_replaced_only_as_the_name_was_written() -> None:
    clean = redacted("My name is Will Young. I will wait, so young Will may write.")
    assert clean == "My name is Name1 Name2. I will wait, so young Name1 may write."


def test_replacements_differ_from_all_values_of_the_log() -> None:
    redactor = Redactor()
    values = [{"order_id": "W1234567"}, {"order_id": "W9000001"}]
    scopes = [redactor.learn(value) for value in values]
    clean = [redactor.redact(value, scope) for value, scope in zip(values, scopes, strict=True)]
    assert [one["order_id"] for one in clean] == ["W9000002", "W9000003"]


# ---- laws

ITEMS = planted()
ITEM = st.sampled_from(ITEMS)
LEADS = {
    "name": "my name is ", "email": "mail ", "phone": "call ", "address": "I live at ", "card": "card ",
    "iban": "IBAN ", "id": "order ", "ip": "from ",
}  # fmt: skip
TEXT = st.lists(st.one_of(ITEM, st.text(max_size=12)), max_size=6).map(
    lambda parts: ". ".join(
        f"{LEADS[part.kind]}{part.value}" if isinstance(part, Item) else part for part in parts
    )
)
VALUE = st.recursive(
    st.one_of(TEXT, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["name", "phone", "id", "note"]), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(VALUE)
def test_redaction_is_idempotent_within_an_import(value: Any) -> None:
    redactor = Redactor()
    scope = redactor.learn(value)
    clean = redactor.redact(value, scope)
    assert redactor.redact(clean, scope) == clean


@given(st.lists(ITEM, min_size=1, max_size=8))
def test_the_same_value_gets_the_same_replacement_everywhere(items: list[Item]) -> None:
    texts = [f"{LEADS[item.kind]}{item.value}." for item in items]
    redactor = Redactor()
    scopes = [redactor.learn(text) for text in texts]
    made: dict[str, str] = {}
    for item, text, scope in zip(items, texts, scopes, strict=True):
        new = redactor.redact(text, scope).removeprefix(LEADS[item.kind])
        assert item.value not in new
        assert made.setdefault(item.value, new) == new
    assert len(set(made.values())) == len(made)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_any_text_can_be_redacted(text: str) -> None:
    assert isinstance(redacted(text), str)


@pytest.mark.parametrize("piece", ["1 ", "(1", "a@", "Aa ", "%41", "order ", "x=1;", "my name is "])
@pytest.mark.timeout(60)
def test_long_repetitions_take_no_time(piece: str) -> None:
    redacted(piece * (100_000 // len(piece)))


# ---- the user's own patterns


def test_own_patterns_are_replaced_and_own_words_stay(tmp_path: Path) -> None:
    path = tmp_path / "redact.toml"
    keep = "keep = ['Ann', 'Bluetooth Speaker', 'RTX40900']"
    path.write_text(f"{keep}\n[patterns]\nbadge = 'EMP-[A-Z]+'\n", encoding="utf-8")
    patterns = read_patterns(path)
    assert redacted("I'm Ann Lee, RTX40900 and EMP-XY.", patterns) == "I'm Ann Name1, RTX40900 and X90001."
    said = {"name": "Bluetooth Speaker"}
    assert redacted(said, patterns) == said
    assert redacted(said) == {"name": "Name1 Name2"}


def test_the_project_names_its_patterns(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.trace2evolve]\nredact = 'redact.toml'\n", encoding="utf-8"
    )
    (tmp_path / "redact.toml").write_text("keep = ['Acme']\n", encoding="utf-8")
    folder = tmp_path / "below"
    folder.mkdir()
    assert patterns_of_project(folder).keep == ("Acme",)
    (tmp_path / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    assert patterns_of_project(folder) == Patterns()
    (tmp_path / "pyproject.toml").write_text("[tool.trace2evolve]\nredactt = 'x'\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="unknown key 'redactt'"):
        patterns_of_project(folder)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("keep = 'x'", "damaged at keep: must be a list, not 'x'; fix the file"),
        ("words = []", "unknown key 'words'; known are keep, patterns"),
        ("patterns = []", "damaged at patterns: Input should be a valid dictionary"),
        ("[patterns]\nx = 1", "damaged at patterns.x: Input should be a valid pattern"),
        ("[patterns]\nx = '('", "damaged at patterns.x: Input should be a valid regular expression"),
        ("[patterns]\nx = 'a*'", "damaged at patterns.x: Value error, matches the empty text"),
        ("keep = [", "not valid TOML"),
    ],
)
def test_wrong_patterns_are_reported(text: str, cause: str, tmp_path: Path) -> None:
    path = tmp_path / "redact.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(cause)):
        read_patterns(path)
