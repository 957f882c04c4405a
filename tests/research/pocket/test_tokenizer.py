"""The pocket model's tokenizer and chat template."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.pocket.lessons import encode, lesson_group, template_messages, wire_tools
from research.pocket.recipe import Stage

WORLD = SupportWorld()
TOOLS = wire_tools(WORLD)
STAGE = Stage(1, (1.0, 1.0), wordings=0)
LESSONS = [lesson for number in range(3) for lesson in lesson_group("tokenizer", number, WORLD, STAGE)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from research.pocket.tokenizer import build_tokenizer

    renderer = build_tokenizer([], 300)
    texts = (
        str(renderer.apply_chat_template(template_messages(lesson.messages), tools=TOOLS, tokenize=False))
        for lesson in LESSONS
    )
    return build_tokenizer(texts, 900)


def contains(tokenizer: Any, text: str, part: str) -> bool:
    """Whether a text's tokens contain those of a part of it."""
    ids, own = (tokenizer(each, add_special_tokens=False)["input_ids"] for each in (text, part))
    return any(ids[place : place + len(own)] == own for place in range(len(ids)))


@given(text=st.text())
def test_every_text_survives_a_round_trip(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not any(mark in text for mark in ("<|", "tool_call>")):
        assert tokenizer.decode(ids) == text


@given(order=st.integers(0, 9_999_999), item=st.integers(0, 9_999_999_999))
def test_an_id_is_written_alike_wherever_it_stands(tokenizer: Any, order: int, item: int) -> None:
    name, number = f"#W{order:07}", f"{item:010}"

    record = json.dumps({"order_id": name, "items": [number]})
    assert contains(tokenizer, f"Please cancel order {name}.", name)
    assert contains(tokenizer, record, name)
    assert contains(tokenizer, record, number)
    assert contains(tokenizer, f"I will take {number} then", number)


@given(local=st.from_regex(r"[a-z]{2,9}\.[a-z]{2,9}[0-9]{0,4}", fullmatch=True))
def test_a_mail_address_is_written_alike_wherever_it_stands(tokenizer: Any, local: str) -> None:
    mail = f"{local}@mailhouse.example"
    for text in (f"Look for {mail}, please.", f"{mail}", json.dumps({"email": mail}), f"It is {mail}."):
        assert contains(tokenizer, text, mail), text


def test_only_tokens_of_the_agent_have_weight(tokenizer: Any) -> None:
    for lesson in LESSONS:
        dialogue = encode(lesson.messages, tokenizer, TOOLS)
        pairs = zip(dialogue.ids, dialogue.weights, strict=True)
        own = tokenizer.decode([token for token, weight in pairs if weight])
        answers = [message for message in lesson.messages if message["role"] == "assistant"]
        assert own.count("<|im_end|>") == len(answers)
        for message in answers:
            assert (message["content"] or "") in own
            assert all(call["function"]["name"] in own for call in message.get("tool_calls", ()))
        assert not any(
            message["content"] in own
            for message in lesson.messages
            if message["role"] == "tool" and len(message["content"]) > 60
        )


def test_a_longer_dialogue_begins_with_the_tokens_of_a_shorter_one(tokenizer: Any) -> None:
    """GRPO and a server's stored prefixes rely on it."""
    for lesson in LESSONS[:6]:
        messages = template_messages(lesson.messages)
        whole = tokenizer.apply_chat_template(messages, tools=TOOLS, return_dict=False)
        for end in range(2, len(messages)):
            part = tokenizer.apply_chat_template(messages[:end], tools=TOOLS, return_dict=False)
            assert whole[: len(part)] == part
            if messages[end]["role"] == "assistant":
                prompt = tokenizer.apply_chat_template(
                    messages[:end], tools=TOOLS, add_generation_prompt=True, return_dict=False
                )
                assert whole[: len(prompt)] == prompt
