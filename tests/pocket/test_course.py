"""How a stage learns from a lesson: what its prompt holds, what weighs more, and where it is cut."""

from typing import Any

import pytest

from pytest_trace2evolve.cases.teacher import rulebook
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.pocket.lessons import Lesson, lesson_group
from research.pocket.make import DECIDING, learnt, made_tokenizer, wire_tools
from research.pocket.recipe import Prompt, Stage
from research.pocket.tokenizer import END, START

WORLD = SupportWorld()
TOOLS = wire_tools(WORLD)
LESSONS = [lesson for number in range(4) for lesson in lesson_group("course", number, WORLD)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from research.pocket import make as course

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(course, "TOKENIZER_GROUPS", 4)
        patch.setattr(course, "VOCABULARY", 600)
        return made_tokenizer("course", WORLD)


@pytest.fixture(params=LESSONS, ids=lambda lesson: lesson.family)
def lesson(request: pytest.FixtureRequest) -> Lesson:
    found: Lesson = request.param
    return found


def stage(prompt: Prompt, **settings: Any) -> Stage:
    return Stage(1, prompt, (1.0, 1.0), **settings)


def test_a_stage_shows_as_much_of_the_prompt_as_it_says(tokenizer: Any) -> None:
    lesson = next(one for one in LESSONS if one.instruction)
    texts = {
        prompt: tokenizer.decode(learnt(lesson, stage(prompt), tokenizer, TOOLS).ids) for prompt in Prompt
    }
    assert [lesson.instruction in texts[prompt] for prompt in Prompt] == [False, True, True]
    assert ["<policy>" in texts[prompt] for prompt in Prompt] == [False, False, True]
    assert ["get_order_details(order_id)" in texts[prompt] for prompt in Prompt] == [False, False, True]
    assert texts[Prompt.RULES].endswith(texts[Prompt.NONE])


def test_what_a_habit_decides_weighs_more(tokenizer: Any, lesson: Lesson) -> None:
    plain = learnt(lesson, stage(Prompt.RULES), tokenizer, TOOLS)
    heavy = learnt(lesson, stage(Prompt.RULES, decided=6.0), tokenizer, TOOLS)
    assert set(plain.own) == {0.0, 1.0}
    assert [bool(one) for one in plain.own] == [bool(one) for one in heavy.own]
    starts = [place for place, own in enumerate(plain.own) if own and not plain.own[place - 1]]
    own = [message for message in lesson.messages if message["role"] == "assistant"]
    assert len(starts) == len(own)
    assert 0 not in lesson.decided, "the greeting is nobody's decision"
    for number, start in enumerate(starts):
        most = max(heavy.own[start : start + DECIDING])
        assert most == (6.0 if number in lesson.decided else 1.0)
    assert set(lesson.decided) <= set(range(len(own)))
    assert {habit for habits in lesson.decided.values() for habit in habits} <= set(rulebook().habits)


@pytest.mark.parametrize("reach", [60, 250, 600])
def test_a_dialogue_is_cut_behind_a_message_of_the_agent(tokenizer: Any, lesson: Lesson, reach: int) -> None:
    whole = learnt(lesson, stage(Prompt.RULES), tokenizer, TOOLS)
    cut = learnt(lesson, stage(Prompt.RULES, reach=reach), tokenizer, TOOLS)
    assert whole.ids[: len(cut.ids)] == cut.ids
    assert whole.own[: len(cut.own)] == cut.own
    text = tokenizer.decode(cut.ids)
    assert text.endswith(f"{END}\n")
    assert text.rsplit(START, 1)[1].startswith("assistant\n")
    talk = next(place for place, own in enumerate(cut.own) if own)
    assert len(cut.ids) - talk <= reach


def test_prompts_are_made_of_as_many_wordings_as_are_asked_for() -> None:
    book = rulebook()
    for number in range(6):
        for lesson in lesson_group("wordings", number, WORLD, wordings=1):
            said = " ".join(lesson.instruction.split())
            for rule in lesson.rules:
                assert book.rules[rule].wordings[0] in said
    met = {
        wording
        for number in range(30)
        for lesson in lesson_group("wordings", number, WORLD)
        for wording in book.rules["confirm"].wordings
        if wording in " ".join(lesson.instruction.split())
    }
    assert met == set(book.rules["confirm"].wordings)
