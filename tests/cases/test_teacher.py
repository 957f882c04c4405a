"""The pocket model's teacher: right where it keeps all habits, and careless in just those that it lacks."""

import asyncio
import random
from collections.abc import Mapping

import pytest

from pytest_trace2evolve.cases.case import FAMILIES, Case, case_of, sketch_case
from pytest_trace2evolve.cases.content import SeededDraws, lesson_words
from pytest_trace2evolve.cases.scene import assemble
from pytest_trace2evolve.cases.teacher import Teacher, draw_habits, every_habit, rulebook
from pytest_trace2evolve.engine.conversation import converse
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.pocket.behaviour import BEHAVIOURS
from research.pocket.lessons import LIMITS, lesson_group

WORLD = SupportWorld()


def taught(
    family: str, seed: int, habits: Mapping[str, bool], content: Content = Content.HELDOUT
) -> tuple[Case, Simulation]:
    words = lesson_words(random.Random(f"{family}/{seed}")) if content is Content.TRAIN else None
    sketch = sketch_case(family, SeededDraws(f"teacher/{family}/{seed}"), content, words)
    case = case_of(assemble(family, sketch))
    teacher = Teacher(sketch, habits, random.Random(seed), family)
    talk = converse(case.task, WORLD, teacher, ScriptedUser(case.script, seed=seed), limits=LIMITS)
    return case, asyncio.run(talk)


@pytest.mark.parametrize("content", Content)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_teacher_without_a_flaw_passes_every_case(family: str, content: Content) -> None:
    for seed in range(12):
        case, simulation = taught(family, seed, every_habit(), content)
        assert simulation.termination_reason == TerminationReason.USER_STOP, case
        assert score(simulation, case.task, WORLD).reward == 1.0, case


@pytest.mark.parametrize("rule", sorted(rulebook().rules.keys() - {"account_when_needed"}))
def test_what_a_rule_names_shows_in_the_traces(rule: str) -> None:
    """Always where the habit is kept, and far less often where it is not."""
    shown: dict[bool, list[bool]] = {True: [], False: []}
    for kept, answers in shown.items():
        for family in BEHAVIOURS[rule].families:
            for seed in range(24):
                case, simulation = taught(family, seed, {**every_habit(), rule: kept})
                if (answer := BEHAVIOURS[rule].kept(case, simulation.trace)) is not None:
                    answers.append(answer)
    assert min(len(one) for one in shown.values()) >= 10
    assert all(shown[True])
    assert sum(shown[False]) / len(shown[False]) < 0.7


def test_a_teacher_fetches_the_account_when_it_is_needed_alone() -> None:
    habits = {**every_habit(), "account_always": False}
    kept = BEHAVIOURS["account_when_needed"].kept
    assert all(kept(*_traced("account_address_inference", seed, habits)) for seed in range(12))
    assert not any(kept(*_traced("precondition_verification", seed, habits)) for seed in range(12))
    without = {**habits, "account_needed": False}
    asked = [kept(*_traced("account_address_inference", seed, without)) for seed in range(24)]
    assert not any(asked)


def _traced(family: str, seed: int, habits: Mapping[str, bool]) -> tuple[Case, list]:  # type: ignore[type-arg]
    case, simulation = taught(family, seed, habits)
    return case, list(simulation.trace)


def test_rules_change_how_often_their_habits_are_kept() -> None:
    for name, rule in rulebook().rules.items():
        for habit, share in rule.sets.items():
            drawn = [draw_habits([name], random.Random(seed))[habit] for seed in range(400)]
            assert sum(drawn) / 400 == pytest.approx(share, abs=0.06)


def test_every_rule_has_its_behaviour_and_every_habit_a_rule() -> None:
    book = rulebook()
    assert set(BEHAVIOURS) == set(book.rules)
    assert {habit for rule in book.rules.values() for habit in rule.sets} == set(book.habits)
    for rule in book.rules.values():
        assert not set(rule.unseen) & set(rule.wordings)


def test_lessons_follow_from_their_seed_and_hold_nothing_held_out() -> None:
    from pytest_trace2evolve.cases.content import find_foreign_mark

    first, again, other = (lesson_group(seed, 3, WORLD) for seed in ("a", "a", "b"))
    assert [one.messages for one in first] != [one.messages for one in other]
    assert [one.messages for one in first] == [one.messages for one in again]
    assert len({one.rules for one in first}) > len(first) / 2, "each lesson has rules of its own"
    for one in first:
        for message in one.messages[1:]:
            assert find_foreign_mark(str(message.get("content") or ""), Content.HELDOUT) == ""


def test_a_lesson_without_what_all_prompts_share_holds_its_rules_alone() -> None:
    lessons = [one for number in range(6) for one in lesson_group("rules", number, WORLD)]
    assert {bool(one.instruction) for one in lessons} == {True, False}
    for one in lessons:
        assert one.instruction in one.messages[0]["content"]
        brief, talk = one.told_only(True).messages, one.told_only(False).messages
        assert talk == one.messages[1:]
        wanted = [{"role": "system", "content": one.instruction}] if one.instruction else []
        assert [*brief] == [*wanted, *talk]


def test_the_wordings_of_the_candidates_that_ship_are_taught() -> None:
    """The card's figures of v5 and v6 are of rules that the model has met; it says so."""
    from pytest_trace2evolve.project.candidates import Candidates
    from pytest_trace2evolve.utils.resources import template

    shipped = Candidates(template() / "candidates")
    text = " ".join(" ".join(shipped[name].instruction for name in ("v5", "v6")).split())
    met = [one for rule in rulebook().rules.values() for one in rule.wordings if one in text]
    assert len(met) == 6
