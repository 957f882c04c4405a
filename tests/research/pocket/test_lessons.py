"""Lessons, and how a stage learns from one: what its prompt holds, what weighs more, and where it is cut."""

import random
from typing import Any

import pytest

from pytest_trace2evolve.cases.content import find_foreign_mark
from pytest_trace2evolve.cases.teacher import rulebook
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.pocket.lessons import DECIDING, Lesson, draw_habits, encode_for, lesson_group, wire_tools
from research.pocket.recipe import Prompt, Stage

WORLD = SupportWorld()
TOOLS = wire_tools(WORLD)
LESSONS = [lesson for number in range(4) for lesson in lesson_group("course", number, WORLD)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from research.pocket.train import make_tokenizer

    return make_tokenizer("course", WORLD, groups=4, vocabulary=600)


def stage(prompt: Prompt, **settings: Any) -> Stage:
    return Stage(1, prompt, (1.0, 1.0), **settings)


def test_lessons_follow_from_their_seed_and_hold_no_heldout_content() -> None:
    first, again, other = (lesson_group(seed, 3, WORLD) for seed in ("a", "a", "b"))
    assert [lesson.messages for lesson in first] != [lesson.messages for lesson in other]
    assert [lesson.messages for lesson in first] == [lesson.messages for lesson in again]
    assert len({lesson.rules for lesson in first}) > len(first) / 2, "each lesson has rules of its own"
    for lesson in first:
        assert lesson.instruction in lesson.messages[0]["content"]
        for message in lesson.messages[1:]:
            assert find_foreign_mark(str(message.get("content") or ""), Content.HELDOUT) == ""


def test_a_stage_shows_its_part_of_the_prompt(tokenizer: Any) -> None:
    lesson = next(lesson for lesson in LESSONS if lesson.instruction)
    texts = {
        prompt: tokenizer.decode(encode_for(stage(prompt), lesson, tokenizer, TOOLS).ids) for prompt in Prompt
    }
    assert [lesson.instruction in texts[prompt] for prompt in Prompt] == [False, True, True]
    assert ["<policy>" in texts[prompt] for prompt in Prompt] == [False, False, True]
    assert ["get_order_details(order_id)" in texts[prompt] for prompt in Prompt] == [False, False, True]
    assert texts[Prompt.RULES].endswith(texts[Prompt.NONE])


def test_tokens_that_a_habit_decides_weigh_more(tokenizer: Any) -> None:
    for lesson in LESSONS:
        plain = encode_for(stage(Prompt.RULES), lesson, tokenizer, TOOLS).weights
        heavy = encode_for(stage(Prompt.RULES, decided=6.0), lesson, tokenizer, TOOLS).weights
        assert set(plain) == {0.0, 1.0}
        assert [weight > 0 for weight in plain] == [weight > 0 for weight in heavy]
        starts = [place for place, weight in enumerate(plain) if weight and not plain[place - 1]]
        assert len(starts) == sum(message["role"] == "assistant" for message in lesson.messages)
        assert 0 not in lesson.decided, "no habit decides the greeting"
        for number, start in enumerate(starts):
            assert max(heavy[start : start + DECIDING]) == (6.0 if number in lesson.decided else 1.0)
        assert set(lesson.decided) <= set(range(len(starts)))
        assert {habit for habits in lesson.decided.values() for habit in habits} <= set(rulebook().habits)


@pytest.mark.parametrize("reach", [60, 250, 600])
def test_a_dialogue_is_cut_after_a_message_of_the_agent(tokenizer: Any, reach: int) -> None:
    from research.pocket.tokenizer import END, START

    def check(lesson: Lesson) -> None:
        whole = encode_for(stage(Prompt.RULES), lesson, tokenizer, TOOLS)
        cut = encode_for(stage(Prompt.RULES, reach=reach), lesson, tokenizer, TOOLS)
        assert whole.ids[: len(cut.ids)] == cut.ids
        assert whole.weights[: len(cut.weights)] == cut.weights
        text = tokenizer.decode(cut.ids)
        assert text.endswith(f"{END}\n")
        assert text.rsplit(START, 1)[1].startswith("assistant\n")
        answer = next(place for place, weight in enumerate(cut.weights) if weight)
        assert len(cut.ids) - answer <= reach

    for lesson in LESSONS:
        check(lesson)


def test_prompts_use_as_many_wordings_as_the_stage_says() -> None:
    book = rulebook()
    for number in range(6):
        for lesson in lesson_group("wordings", number, WORLD, wordings=1):
            instruction = " ".join(lesson.instruction.split())
            for rule in lesson.rules:
                assert book.rules[rule].wordings[0] in instruction
    used = {
        wording
        for number in range(30)
        for lesson in lesson_group("wordings", number, WORLD)
        for wording in book.rules["confirm"].wordings
        if wording in " ".join(lesson.instruction.split())
    }
    assert used == set(book.rules["confirm"].wordings)


def test_rules_change_how_often_their_habits_are_kept() -> None:
    for name, rule in rulebook().rules.items():
        for habit, share in rule.sets.items():
            drawn = [draw_habits([name], random.Random(seed))[habit] for seed in range(400)]
            assert sum(drawn) / 400 == pytest.approx(share, abs=0.06)
