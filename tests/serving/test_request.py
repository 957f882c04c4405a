"""Requests: what is supported, and what is rejected by name."""

import json
from typing import Any

import pytest

from pytest_trace2evolve.serving.request import ApiError, ChatRequest

HELLO = [{"role": "user", "content": "Hello."}]
TOOL = {"type": "function", "function": {"name": "look", "x-order": 1}, "extra": True}


def read(**fields: Any) -> ChatRequest:
    body = {"model": "base", "messages": HELLO, "tools": [TOOL], **fields}
    return ChatRequest.parse(json.dumps(body).encode())


def rejected(raw: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        ChatRequest.parse(raw)
    assert "\n" not in str(caught.value)
    return caught.value


MISSING, UNKNOWN = "missing_required_parameter", "unknown_parameter"
UNSUPPORTED, INVALID = "unsupported_value", "invalid_value"


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"n": 2}, UNSUPPORTED, "n is not supported: remove it, or set it to 1"),
        ({"n": True}, UNSUPPORTED, "n is not supported"),
        ({"stream": True}, UNSUPPORTED, "stream is not supported: remove it, or set it to false"),
        ({"response_format": {"type": "json_object"}}, UNSUPPORTED, "response_format is not supported"),
        ({"frequency_penalty": 0.5}, UNSUPPORTED, "frequency_penalty is not supported"),
        ({"logit_bias": {"5": 100}}, UNSUPPORTED, "logit_bias is not supported"),
        ({"repetition_penalty": 1.3}, UNSUPPORTED, "repetition_penalty is not supported"),
        ({"foo": 1}, UNKNOWN, "foo is not supported: remove it"),
        ({"prompt": [1, 2]}, UNKNOWN, "prompt is not supported: remove it"),
        ({"model": None}, MISSING, "model: Field required"),
        ({"messages": None}, MISSING, "messages: Field required"),
        ({"model": 5}, INVALID, "model: Input should be a valid string, not 5"),
        ({"messages": []}, INVALID, "messages: List should have at least 1 item"),
        ({"messages": "hi"}, INVALID, "messages: must be a list, not 'hi'"),
        ({"messages": [{"role": "bot", "content": "x"}]}, INVALID, "messages.0.role: Input should be 'sy"),
        ({"messages": [{"role": "user"}]}, INVALID, "messages.0: Value error, content must be a string"),
        ({"messages": [{"role": "user", "content": 5}]}, INVALID, "messages.0.content: Input should be"),
        ({"messages": [1, 2]}, INVALID, "messages.0: Input should be a valid dictionary"),
        ({"messages": [{"role": "user", "content": [1]}]}, INVALID, "part 0 must be of type 'text'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            INVALID,
            "part 0 must be of type 'text' with a string; other parts are not supported",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, INVALID, "tool_calls.0.function"),
        (
            {"messages": [{**HELLO[0], "tool_calls": []}]},
            INVALID,
            "tool_calls are allowed only in messages of the",
        ),
        (
            {"messages": [{"role": "assistant", "function_call": {}}]},
            UNSUPPORTED,
            "messages[0].function_call is not supported: use tool_calls",
        ),
        ({"temperature": "hot"}, INVALID, "temperature: Input should be a valid number, not 'hot'"),
        ({"temperature": True}, INVALID, "temperature: Input should be a valid number, not True"),
        ({"temperature": -1}, INVALID, "temperature: Input should be greater than or"),
        ({"temperature": 10**400}, INVALID, "temperature: Input should be a valid number"),
        ({"top_p": 1.5}, INVALID, "top_p: Input should be less than or equal to 1, not 1.5"),
        ({"max_tokens": 0}, INVALID, "max_tokens: Input should be greater than or equal to 1, not 0"),
        ({"max_tokens": 2.5}, INVALID, "max_tokens: Input should be a valid integer"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, None, "max_tokens and max_completion_tokens differ"),
        ({"seed": "x"}, INVALID, "seed: Input should be a valid integer, not 'x'"),
        ({"seed": 1 << 64}, INVALID, "seed: Input should be less than"),
        ({"stop": [""]}, INVALID, "stop.0: String should have at least 1 character"),
        ({"stop": 5}, INVALID, "stop: must be a list, not 5"),
        ({"stop": ["a"] * 17}, INVALID, "stop: "),
        ({"top_logprobs": 3}, None, "top_logprobs needs logprobs: true"),
        ({"logprobs": True, "top_logprobs": 21}, INVALID, "top_logprobs: Input should be less than or"),
        ({"logprobs": "yes"}, INVALID, "logprobs: Input should be a valid boolean, not 'yes'"),
        ({"tools": {}}, INVALID, "tools: must be a list"),
        ({"tools": [{"type": "function"}]}, INVALID, "tools.0: Value error, function: Field required"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, INVALID, "function.name: String"),
        ({"tool_choice": "maybe"}, INVALID, "must be 'auto', 'none', 'required' or"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "fly"}}},
            None,
            "tool_choice names 'fly', which is not one of the tools",
        ),
        ({"tools": None, "tool_choice": "required"}, None, "tool_choice needs tools"),
        ({"chat_template_kwargs": {"tools": []}}, None, "chat_template_kwargs must not contain 'tools'"),
        ({"chat_template_kwargs": {"return_dict": True}}, None, "must not contain 'return_dict'"),
        ({"chat_template_kwargs": 5}, INVALID, "chat_template_kwargs: Input should be a valid dictionary"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_a_wrong_field_is_named(fields: dict[str, Any], code: str | None, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(**fields)
    error = caught.value
    assert message in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 800
    assert (error.status, error.code) == (400, code)
    assert error.param in {*fields, "max_tokens"}
    assert error.body()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("strict", [True, False, None])
def test_strict_tools_which_pydantic_ai_sends_by_itself_are_accepted(strict: bool | None) -> None:
    tool = {"type": "function", "function": {"name": "f", "strict": strict}}
    assert read(tools=[tool]).offered_tools == [tool]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"temperature": NaN}', b'{"a": "\\ud800"}', b"1" * 10_000],
    ids=repr,
)
def test_a_body_that_is_not_a_json_object_is_rejected(body: bytes) -> None:
    assert (rejected(body).status, rejected(body).code) == (400, None)


def test_nested_and_numerous_values_are_rejected_before_they_cost_much() -> None:
    assert rejected(b"[" * 100_000).status == 400
    error = rejected(b'{"metadata":[' + b"[]," * 1_000_000 + b"0]}")
    assert (error.status, str(error)) == (413, "the body has more than 500,000 lists and objects")


def test_messages_become_what_templates_take() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"id": 5}'}}
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    messages = [
        {"role": "developer", "content": "Help."},
        {"role": "user", "content": parts, "name": "Eva", "unknown": 1},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "1", "content": "x"},
    ]
    assert read(messages=messages).template_messages == [
        {"role": "system", "content": "Help."},
        {"role": "user", "content": "ab", "name": "Eva"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [
                {"type": "function", "function": {"name": "look", "arguments": {"id": 5}}, "id": "1"}
            ],
        },
        {"role": "tool", "content": "x", "tool_call_id": "1"},
    ]
