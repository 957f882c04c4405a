"""The behavior of each rule shows in traces of a teacher that follows the rule, and seldom in others."""

import asyncio
import random
from collections.abc import Mapping

import pytest

from pytest_trace2evolve.cases.case import sketch_case, to_case
from pytest_trace2evolve.cases.content import SeededChoices
from pytest_trace2evolve.cases.scene import assemble
from pytest_trace2evolve.cases.teacher import Teacher, all_habits, rulebook
from pytest_trace2evolve.engine.conversation import converse
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.pocket.behavior import BEHAVIORS
from research.pocket.lessons import LIMITS

WORLD = SupportWorld()


def followed(rule: str, family: str, seed: int, habits: Mapping[str, bool]) -> bool | None:
    """Whether the behavior of a rule shows in a dialogue of a teacher with these habits."""
    sketch = sketch_case(family, SeededChoices(f"teacher/{family}/{seed}"), Content.HELDOUT, None)
    case = to_case(assemble(family, sketch))
    teacher = Teacher(sketch, habits, random.Random(seed), family)
    user = ScriptedUser(case.script, seed=seed)
    simulation = asyncio.run(converse(case.task, WORLD, teacher, user, limits=LIMITS))
    return BEHAVIORS[rule].followed(case, simulation.trace)


@pytest.mark.parametrize("rule", sorted(rulebook().rules.keys() - {"account_when_needed"}))
def test_behavior_shows_under_its_rule_and_seldom_without(rule: str) -> None:
    shares = {}
    for follows in (True, False):
        habit, keeps = ("confirm", not follows) if rule == "at_once" else (rule, follows)
        habits = {**all_habits(), habit: keeps}
        pairs = [(family, seed) for family in BEHAVIORS[rule].families for seed in range(24)]
        found = [followed(rule, family, seed, habits) for family, seed in pairs]
        answers = [answer for answer in found if answer is not None]
        assert len(answers) >= 10
        shares[follows] = sum(answers) / len(answers)
    assert shares[True] == 1
    assert shares[False] < 0.7


def test_every_rule_has_a_behavior_and_every_habit_a_rule() -> None:
    book = rulebook()
    assert set(BEHAVIORS) == set(book.rules)
    assert {habit for rule in book.rules.values() for habit in rule.sets} == set(book.habits)
    for rule in book.rules.values():
        assert not set(rule.unseen) & set(rule.wordings)
