"""Lessons, and how a stage learns from one: what its prompt contains, and which tokens weigh more."""

from dataclasses import replace
from typing import Any

import pytest

from pytest_trace2evolve.cases.content import find_foreign_mark
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.pocket.lessons import encode_for, lesson_group, wire_tools
from research.pocket.recipe import Stage

WORLD = SupportWorld()
TOOLS = wire_tools(WORLD)
STAGE = Stage(1, (1.0, 1.0), wordings=0)
LESSONS = [lesson for number in range(4) for lesson in lesson_group("course", number, WORLD, STAGE)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from research.pocket.train import make_tokenizer

    return make_tokenizer("course", WORLD, groups=4, vocabulary=600)


def test_lessons_follow_from_their_seed_and_hold_no_heldout_content() -> None:
    first, again, other = (lesson_group(seed, 3, WORLD, STAGE) for seed in ("a", "a", "b"))
    assert [lesson.messages for lesson in first] != [lesson.messages for lesson in other]
    assert [lesson.messages for lesson in first] == [lesson.messages for lesson in again]
    stage = replace(STAGE, without_rules=0.0)
    rules = {lesson.rules for lesson in lesson_group("a", 3, WORLD, stage)}
    assert len(rules) > len(first) / 2, "each lesson has rules of its own"
    for lesson in first:
        assert lesson.instruction in lesson.messages[0]["content"]
        for message in lesson.messages[1:]:
            assert find_foreign_mark(str(message.get("content") or ""), Content.HELDOUT) == ""


def test_a_prompt_is_whole_or_its_rules_alone(tokenizer: Any) -> None:
    lesson = next(lesson for lesson in LESSONS if lesson.instruction)
    whole, short = (
        tokenizer.decode(encode_for(STAGE, lesson, tokenizer, TOOLS, whole=whole).ids)
        for whole in (True, False)
    )
    for text, has_policy in ((whole, True), (short, False)):
        assert lesson.instruction in text
        assert ("<policy>" in text) == ("get_order_details(order_id)" in text) == has_policy
