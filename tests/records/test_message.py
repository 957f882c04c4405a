"""The boundary between what a model or an agent writes and what evidence can hold."""

import json
import math
import tracemalloc
from typing import Any

import pydantic_core
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.models.api import read_body, read_completion
from pytest_trace2evolve.records.completion import (
    Completion,
    RequestedCall,
    from_completion,
    parse_dollars,
    parse_token_count,
    to_wire,
)
from pytest_trace2evolve.records.message import (
    MALFORMED_ARGUMENTS,
    MAX_DEPTH,
    Message,
    ToolCall,
    storable_message,
    storage_problem,
)
from pytest_trace2evolve.utils.canonical import storable_text

TEXTS = st.text(st.characters(codec=None, categories=None), max_size=30)
"""Texts with halves of surrogate pairs, NUL and everything else that a Python text can hold."""

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers().map(lambda number: number * 10**400)
    | st.floats()
    | TEXTS
    | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(TEXTS | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def stored(message: Message) -> Message:
    """A message after it was written and read as every store does it."""
    record = message.model_dump(mode="json", exclude_unset=True)
    text = json.dumps([[[[record]]]], ensure_ascii=False, allow_nan=False)
    assert pydantic_core.to_json(record).decode()
    return Message.model_validate(pydantic_core.from_json(text.encode(), allow_inf_nan=False)[0][0][0][0])


def asked(arguments: str, name: str = "look", content: str | None = None) -> Message:
    call = RequestedCall(id="c", name=name, arguments=arguments)
    return from_completion(Completion(content=content, tool_calls=(call,)), "assistant")


@given(TEXTS)
def test_a_text_is_kept_and_halves_of_pairs_are_escaped(text: str) -> None:
    kept = storable_text(text)
    kept.encode()
    assert kept == "".join(f"\\u{ord(item):04x}" if 0xD800 <= ord(item) <= 0xDFFF else item for item in text)


@given(VALUES)
def test_what_is_storable_survives_every_store(value: Any) -> None:
    if not storage_problem(value):
        assert pydantic_core.from_json(json.dumps(value, allow_nan=False).encode()) == value
        assert pydantic_core.from_json(pydantic_core.to_json(value)) == value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (math.nan, "nan is not a JSON number"),
        (-math.inf, "-inf is not a JSON number"),
        (10**400, "a number has more than 308 digits"),
        ("\ud800", "a text contains half a surrogate pair"),
        ({"\udc00": 1}, "a text contains half a surrogate pair"),
        ({1: 1}, "an object has a key that is not text"),
        ((1,), "tuple is not a JSON type"),
        (deep(MAX_DEPTH + 1), f"it is nested deeper than {MAX_DEPTH} levels"),
        ([0] * 1_000_001, "it contains more than 1,000,000 values"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_stored_is_named(value: Any, why: str) -> None:
    assert storage_problem(value) == why


BROKEN = {
    "brackets": "[" * 100_000,
    "objects": '{"a":' * 100_000,
    "levels": json.dumps(deep(900)),
    "digits": '{"a": ' + "9" * 5_000 + "}",
    "large": '{"a": ' + "9" * 400 + "}",
    "nan": '{"a": NaN}',
    "infinite": '{"a": 1e999}',
    "surrogate": '{"a": "\\ud83d"}',
    "raw surrogate": '{"a": "\ud83d"}',
    "key": '{"\\ud83d": 1}',
    "list": "[1]",
    "null": "null",
    "text": '"x"',
    "cut": '{"a": ',
    "blank": "  ",
    "NUL": "\0",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_arguments_that_are_no_object_are_malformed_and_keep_their_text(text: str) -> None:
    (call,) = asked(text).tool_calls or ()
    assert call.arguments == {MALFORMED_ARGUMENTS: storable_text(text)}
    assert stored(asked(text)) == asked(text)
    assert json.loads(to_wire(asked(text))["tool_calls"][0]["function"]["arguments"]) == call.arguments


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", {}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('{"a": "\\u0000"}', {"a": "\0"}),
        (json.dumps(deep(MAX_DEPTH - 1)), deep(MAX_DEPTH - 1)),
        ('{"a": ' + "9" * 300 + "}", {"a": int("9" * 300)}),
        (json.dumps({"a": "x" * 2_000_000}), {"a": "x" * 2_000_000}),
    ],
    ids=["empty", "twice", "NUL", "levels", "digits", "megabytes"],
)
def test_unusual_arguments_are_the_models_own(text: str, arguments: dict[str, Any]) -> None:
    (call,) = asked(text).tool_calls or ()
    assert call.arguments == arguments
    assert stored(asked(text)) == asked(text)


MESSAGES: dict[str, Any] = {
    "no content": {},
    "number": {"content": 5},
    "object": {"content": {"text": "x"}},
    "truth": {"content": True},
    "surrogates": {"content": "a\ud800b"},
    "calls as object": {"tool_calls": {"function": {"name": "look", "arguments": "{}"}}},
    "calls as number": {"tool_calls": 7},
    "calls as text": {"tool_calls": "look"},
    "call is null": {"tool_calls": [None]},
    "call is text": {"tool_calls": ["look"]},
    "no function": {"tool_calls": [{"id": "c"}]},
    "no name": {"tool_calls": [{"id": "c", "function": {"arguments": "{}"}}]},
    "name is null": {"tool_calls": [{"function": {"name": None}}]},
    "name is object": {"tool_calls": [{"function": {"name": {"a": 1}, "arguments": "{}"}}]},
    "empty name": {"tool_calls": [{"id": "", "function": {"name": "", "arguments": "{}"}}]},
    "strange name": {"tool_calls": [{"function": {"name": "\ud800 \0\n../x" * 99, "arguments": "{}"}}]},
    "strange id": {"tool_calls": [{"id": ["x"], "function": {"name": "look", "arguments": "{}"}}]},
    "surrogate id": {"tool_calls": [{"id": "\udfff", "function": {"name": "look", "arguments": "{}"}}]},
    "arguments as object": {"tool_calls": [{"function": {"name": "look", "arguments": {"a": [1]}}}]},
    "arguments as number": {"tool_calls": [{"function": {"name": "look", "arguments": 5}}]},
    "nested arguments": {"tool_calls": [{"function": {"name": "look", "arguments": deep(200)}}]},
    "finish": {"content": "x"},
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_an_answer_of_any_shape_is_a_completion(message: Any) -> None:
    for finish in ("stop", "\ud800", None, 7, "no_such_reason", ["stop"]):
        choice = {"message": message, "finish_reason": finish}
        body = json.dumps({"choices": [choice], "usage": 10**30}).encode()
        completion = read_completion(read_body(body), 0.1)
        assert Completion.model_validate_json(completion.model_dump_json()) == completion
        said = from_completion(completion, "assistant")
        assert stored(said) == said


@pytest.mark.parametrize("fault", [{"error": {"message": "overloaded"}}, {"finish_reason": "error"}])
def test_a_choice_of_a_provider_that_failed_is_no_completion(fault: dict[str, Any]) -> None:
    choice = {"message": {"content": "x"}, "finish_reason": "stop", "error": None}
    assert read_completion({"choices": [choice]}, 0.0).content == "x"
    with pytest.raises(ValueError, match="the answer contains an error"):
        read_completion({"choices": [{**choice, **fault}]}, 0.0)


def test_bodies_that_standard_readers_refuse_are_read() -> None:
    nested = b'{"choices": [{"message": {"content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}]}"
    assert read_completion(read_body(nested), 0.0) == Completion()
    digits = b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": ' + b"9" * 9999 + b"}}"
    assert read_completion(read_body(digits), 0.0).content == "x"
    no_text = b'{"choices": [{"message": {"content": "caf\xe9"}}]}'
    assert read_completion(read_body(no_text), 0.0).content == "caf\ufffd"


def test_an_answer_of_tiny_values_is_not_parsed() -> None:
    bomb = b'{"choices": [{"message": {"content": "x", "z": [' + b'{"":0},' * 500_000 + b"0]}}]}"
    tracemalloc.start()
    assert read_completion(read_body(bomb), 0.0) == Completion()
    assert tracemalloc.get_traced_memory()[1] < len(bomb)
    tracemalloc.stop()
    numbers = b'{"choices": [{"message": {"content": "x"}}], "x": [' + b"0," * 1_000_001 + b"0]}"
    assert read_completion(read_body(numbers), 0.0) == Completion()


def test_counts_and_costs_that_cannot_be_are_none() -> None:
    assert [parse_token_count(value) for value in (7, 10**30, -1, True, 1.5, "7")] == [7, 0, 0, 0, 0, 0]
    assert [parse_dollars(value) for value in (0.5, 1e308, math.nan, 10**400, True)] == [
        0.5,
        None,
        None,
        None,
        None,
    ]


@given(VALUES, TEXTS, TEXTS)
def test_an_agents_message_is_stored_as_it_stays(value: Any, text: str, name: str) -> None:
    call = ToolCall.model_construct(
        id=text,
        name=name,
        arguments={"a": value},
        requestor="assistant",
        _fields_set={"id", "name", "arguments"},
    )
    message = Message(role="assistant", content=text, tool_calls=[call])
    kept = storable_message(message, "assistant")
    assert stored(kept) == kept
    assert storable_message(kept, "assistant") == kept
    assert kept.content == storable_text(text)


class Unshowable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


def test_arguments_without_json_are_malformed() -> None:
    for value in (object(), Unshowable(), math.nan, deep(900)):
        message = Message(role="assistant", tool_calls=[ToolCall(name="look", arguments={"a": value})])
        (call,) = storable_message(message, "assistant").tool_calls or ()
        assert list(call.arguments) == [MALFORMED_ARGUMENTS]
        assert stored(storable_message(message, "assistant"))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"role": "user"}, "a message of role 'user', expected 'assistant'"),
        ({"content": 5}, "a message that cannot be stored: "),
        ({"content": {"a": 1}}, "a message that cannot be stored: "),
        ({"tool_calls": "look"}, "a message whose 'tool_calls' is not a list of ToolCall"),
        ({"tool_calls": [{"name": "look"}]}, "a message whose 'tool_calls' is not a list of ToolCall"),
        (
            {"tool_calls": [ToolCall(name="look", arguments={}, requestor="user")]},
            "a call of 'look' by 'user', expected 'assistant'",
        ),
        ({"raw": object()}, "a message that cannot be stored: "),
        ({"raw": deep(900)}, "a message that cannot be stored: "),
    ],
    ids=[
        "role",
        "number",
        "mapping",
        "text of calls",
        "mapping of a call",
        "user's call",
        "object",
        "levels",
    ],
)
def test_a_message_that_no_store_takes_is_named(fields: dict[str, Any], problem: str) -> None:
    message = Message(role="assistant", content="x").model_copy(update=fields)
    with pytest.raises(ValueError, match=r"a message|a call") as caught:
        storable_message(message, "assistant")
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)
