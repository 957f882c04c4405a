"""The pocket model's teacher: right where it keeps all habits, and careless in just those that it lacks."""

import asyncio
import random
from collections.abc import Mapping

import pytest

from pytest_trace2evolve.cases.case import FAMILIES, Case, sketch_case, to_case
from pytest_trace2evolve.cases.content import SeededChoices, lesson_words
from pytest_trace2evolve.cases.scene import assemble
from pytest_trace2evolve.cases.teacher import Teacher, all_habits
from pytest_trace2evolve.engine.conversation import Limits, converse
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.records.trace import Simulation, TerminationReason
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.worlds.support.world import SupportWorld

WORLD = SupportWorld()


def taught(
    family: str, seed: int, habits: Mapping[str, bool], content: Content = Content.HELDOUT
) -> tuple[Case, Simulation]:
    words = lesson_words(random.Random(f"{family}/{seed}")) if content is Content.TRAIN else None
    sketch = sketch_case(family, SeededChoices(f"teacher/{family}/{seed}"), content, words)
    case = to_case(assemble(family, sketch))
    teacher = Teacher(sketch, habits, random.Random(seed), family)
    talk = converse(
        case.task, WORLD, teacher, ScriptedUser(case.script, seed=seed), limits=Limits(max_steps=60)
    )
    return case, asyncio.run(talk)


@pytest.mark.parametrize("content", Content)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_teacher_without_a_flaw_passes_every_case(family: str, content: Content) -> None:
    for seed in range(12):
        case, simulation = taught(family, seed, all_habits(), content)
        assert simulation.termination_reason == TerminationReason.USER_STOP, case
        assert score(simulation, case.task, WORLD).reward == 1.0, case
