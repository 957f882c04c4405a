"""The pocket model's tokenizer and chat template."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.pocket.lessons import Lesson, lesson_group
from research.pocket.make import encoded, parsed, wire_tools
from research.pocket.tokenizer import build_tokenizer

WORLD = SupportWorld()
TOOLS = wire_tools(WORLD)
LESSONS = [lesson for number in range(3) for lesson in lesson_group("tokenizer", number, WORLD)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    rough: Any = build_tokenizer([], 300)
    texts = (str(rough.apply_chat_template(parsed(one), tools=TOOLS, tokenize=False)) for one in LESSONS)
    return build_tokenizer(texts, 900)


@given(text=st.text())
def test_every_text_comes_back(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not any(mark in text for mark in ("<|", "tool_call>")):
        assert tokenizer.decode(ids) == text


@given(order=st.integers(0, 9_999_999), item=st.integers(0, 9_999_999_999))
def test_an_id_is_written_alike_wherever_it_stands(tokenizer: Any, order: int, item: int) -> None:
    name, number = f"#W{order:07}", f"{item:010}"

    def held(text: str, part: str) -> bool:
        ids, own = (tokenizer(one, add_special_tokens=False)["input_ids"] for one in (text, part))
        return any(ids[place : place + len(own)] == own for place in range(len(ids)))

    assert held(f"Please cancel order {name}.", name)
    assert held(json.dumps({"order_id": name, "items": [number]}), name)
    assert held(json.dumps({"order_id": name, "items": [number]}), number)
    assert held(f"I will take {number} then", number)


@given(local=st.from_regex(r"[a-z]{2,9}\.[a-z]{2,9}[0-9]{0,4}", fullmatch=True))
def test_a_mail_address_is_written_alike_wherever_it_stands(tokenizer: Any, local: str) -> None:
    mail = f"{local}@mailhouse.example"
    own = tokenizer(mail, add_special_tokens=False)["input_ids"]
    for text in (f"Look for {mail}, please.", f"{mail}", json.dumps({"email": mail}), f"It is {mail}."):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert any(ids[place : place + len(own)] == own for place in range(len(ids))), text


def test_what_the_agent_wrote_is_marked_and_nothing_else(tokenizer: Any) -> None:
    for lesson in LESSONS:
        one = encoded(lesson, tokenizer, TOOLS)
        own = tokenizer.decode([token for token, mine in zip(one.ids, one.own, strict=True) if mine])
        said = [message for message in lesson.messages if message["role"] == "assistant"]
        assert own.count("<|im_end|>") == len(said)
        for message in said:
            assert (message["content"] or "") in own
            assert all(call["function"]["name"] in own for call in message.get("tool_calls", ()))
        assert not any(
            message["content"] in own
            for message in lesson.messages
            if message["role"] == "tool"
            if len(message["content"]) > 60
        )


def test_a_longer_talk_begins_as_the_shorter_one_did(tokenizer: Any) -> None:
    """What GRPO and a server's kept prefixes rely on."""
    for lesson in LESSONS[:6]:
        messages = parsed(lesson)
        whole = tokenizer.apply_chat_template(messages, tools=TOOLS, return_dict=False)
        for end in range(2, len(messages)):
            part = tokenizer.apply_chat_template(messages[:end], tools=TOOLS, return_dict=False)
            assert whole[: len(part)] == part
            if messages[end]["role"] == "assistant":
                asked = tokenizer.apply_chat_template(
                    messages[:end], tools=TOOLS, add_generation_prompt=True, return_dict=False
                )
                assert whole[: len(asked)] == asked


def test_an_answer_is_read_back_as_it_was_meant(tokenizer: Any) -> None:
    for lesson in LESSONS:
        for place, message in enumerate(parsed(lesson)):
            if message["role"] != "assistant":
                continue
            before = tokenizer.apply_chat_template(
                parsed(lesson)[:place], tools=TOOLS, add_generation_prompt=True, return_dict=False
            )
            whole = tokenizer.apply_chat_template(parsed(lesson)[: place + 1], tools=TOOLS, return_dict=False)
            read = tokenizer.parse_response(whole[len(before) :], prefix=before)
            assert (read.get("content") or None) == (message["content"] or None)
            calls = [call["function"] for call in read.get("tool_calls", ())]
            assert calls == [call["function"] for call in message.get("tool_calls", ())]


def test_a_prompt_lists_tools_by_name_and_parameters(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tools=TOOLS, tokenize=False)
    assert "\nget_order_details(order_id)\n" in text
    assert "\nlist_all_product_types()\n" in text
    assert text.startswith("<|im_start|>system\n")


def test_lessons_are_short(tokenizer: Any) -> None:
    """Training costs by the token: a dialogue of a thousand characters takes far fewer tokens."""
    lesson: Lesson = max(LESSONS, key=lambda one: len(str(one.messages)))
    assert len(encoded(lesson, tokenizer, TOOLS).ids) < len(str(lesson.messages)) / 3


def test_what_stands_on_both_sides_of_a_call_is_read(tokenizer: Any) -> None:
    written = 'Before.<tool_call>{"name": "look", "arguments": {}}</tool_call>After.<|im_end|>'
    read = tokenizer.parse_response(written, prefix="<|im_start|>assistant\n")
    assert read["content"] == "Before.\nAfter."
    assert [call["function"]["name"] for call in read["tool_calls"]] == ["look"]
