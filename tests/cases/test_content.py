"""What the pocket model is trained on beside train.toml: in the same form, and none of what decides."""

import random
import re

from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.cases.content import (
    PERSON_COUNT,
    PLACE_COUNT,
    PRODUCT_COUNT,
    Vocabulary,
    find_foreign_mark,
    lesson_words,
    read_content,
    vocabulary,
)
from pytest_trace2evolve.records.task import Content

TRAIN, HELDOUT = vocabulary(Content.TRAIN), vocabulary(Content.HELDOUT)
SLOT = re.compile(r"\{(\w+)\}")
RUN = 4
"""Words in a row that a phrasing may not share with a held-out one."""


POCKET = Vocabulary.model_validate({**read_content("world"), **read_content("phrases")})
PHRASES = [text for texts in POCKET.phrases.values() for text in texts]


def runs(text):
    """All runs of `RUN` words in a text; a slot is a word, and a run holds one at most."""
    words = re.findall(r"\{\w+\}|[\w'-]+", text.lower())
    found = {tuple(words[at : at + RUN]) for at in range(len(words) - RUN + 1)}
    return {run for run in found if sum(word.startswith("{") for word in run) < 2}


def runs_of(words):
    return {run for texts in words.phrases.values() for text in texts for run in runs(text)}


# Runs that training content had before are everybody's: "I would like to".
THEIRS = runs_of(HELDOUT) - runs_of(TRAIN)


def test_the_phrases_are_those_of_train_with_the_same_slots():
    assert list(POCKET.phrases) == list(TRAIN.phrases)
    for name, texts in POCKET.phrases.items():
        wanted = {*SLOT.findall(TRAIN.phrases[name][0])}
        assert [text for text in texts if {*SLOT.findall(text)} != wanted] == [], name
        assert len(texts) >= 10, name


def test_no_phrase_is_a_held_out_one():
    assert [text for text in PHRASES if find_foreign_mark(text, Content.HELDOUT)] == []
    assert [text for text in PHRASES if runs(text) & THEIRS] == []


def test_a_held_out_phrase_with_small_changes_is_found():
    changed = "Please let {order} be paid with my {method}."
    assert find_foreign_mark(changed, Content.HELDOUT) == ""
    assert runs(changed) & THEIRS == {("let", "{order}", "be", "paid")}


@given(seed=st.integers())
def test_a_lessons_words_are_enough_and_none_is_held_out(seed: int) -> None:
    words = lesson_words(random.Random(seed))
    assert len({*words.first_names}) == len({*words.last_names}) == len(words.domains) == PERSON_COUNT
    assert len(words.streets) == len(words.cities) == PLACE_COUNT
    assert len({kind.name for kind in words.products}) == PRODUCT_COUNT
    assert all(
        len(kind.options) >= 2 and min(map(len, kind.options.values())) >= 2 for kind in words.products
    )
    for text in words.names:
        assert find_foreign_mark(text, Content.HELDOUT) == "", text
        assert text.isascii()
