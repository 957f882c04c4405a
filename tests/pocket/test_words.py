"""The words of lessons: ever new, and none that is held out."""

import random

from hypothesis import given
from hypothesis import strategies as st

from pytest_trace2evolve.cases.content import GOODS, PEOPLE, PLACES, foreign, lesson_words, vocabulary
from pytest_trace2evolve.records.task import Content


@given(seed=st.integers())
def test_a_lessons_words_are_enough_and_none_is_held_out(seed: int) -> None:
    words = lesson_words(random.Random(seed))
    assert len({*words.first_names}) == len({*words.last_names}) == len(words.domains) == PEOPLE
    assert len(words.streets) == len(words.cities) == PLACES
    assert len({kind.name for kind in words.products}) == GOODS
    assert all(
        len(kind.options) >= 2 and min(map(len, kind.options.values())) >= 2 for kind in words.products
    )
    told = [*words.first_names, *words.last_names, *words.streets, *words.domains]
    told += [city for city, _, _ in words.cities] + [kind.name for kind in words.products]
    for text in told:
        assert foreign(text, Content.HELDOUT) == "", text
        assert text.isascii()


def test_the_same_seed_gives_the_same_words() -> None:
    assert lesson_words(random.Random(5)) == lesson_words(random.Random(5))
    assert lesson_words(random.Random(5)) != lesson_words(random.Random(6))


def test_there_is_no_end_of_names() -> None:
    """Nobody can learn them by heart."""
    lessons = [lesson_words(random.Random(seed)) for seed in range(300)]
    for field, least in (("first_names", 600), ("last_names", 600), ("domains", 600), ("streets", 900)):
        assert len({name for words in lessons for name in getattr(words, field)}) > least, field
    assert len({kind.name for words in lessons for kind in words.products}) > 1200
    known = {kind.name for kind in vocabulary(Content.TRAIN).products}
    assert known & {kind.name for words in lessons for kind in words.products}
