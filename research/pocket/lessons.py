"""Lessons: dialogues between the teacher and scripted customers, under prompts that hold drawn rules."""

import asyncio
import random
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_trace2evolve.agents.chat import system_prompt
from pytest_trace2evolve.cases.case import FAMILIES, case_of, sketch_case
from pytest_trace2evolve.cases.content import SeededDraws, lesson_words
from pytest_trace2evolve.cases.scene import assemble
from pytest_trace2evolve.cases.teacher import Teacher, draw_habits, rulebook
from pytest_trace2evolve.engine.conversation import Limits, converse
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.records.wire import to_wire
from pytest_trace2evolve.users.scripted import ScriptedUser

LIMITS = Limits(max_steps=60)
GROUP = 8
"""Lessons that are learnt from at once, each under rules of its own: so each step shows what rules change."""

Wire = Mapping[str, Any]


@dataclass(frozen=True)
class Lesson:
    """One dialogue.

    Attributes:
        family: The kind of its case.
        rules: The rules of its prompt.
        instruction: What its prompt says beside the policy.
        messages: All of it, in the form of the chat-completions API, the system prompt first.
        decided: By the place of a message among the agent's, the habits that decided it.
    """

    family: str
    rules: tuple[str, ...]
    instruction: str
    messages: tuple[Wire, ...]
    decided: Mapping[int, Sequence[str]]

    def told_only(self, rules: bool) -> "Lesson":
        """The same without what all prompts share; without `rules`, without a prompt."""
        told = [{"role": "system", "content": self.instruction}] if rules and self.instruction else []
        return replace(self, messages=(*told, *self.messages[1:]))


def lesson_group(seed: str, number: int, world: World, *, wordings: int = 0) -> list[Lesson]:
    """One group of a seed's lessons, with some wordings of each rule, or with all."""
    return [_lesson(f"{seed}/{number}/{place}", wordings or None, world) for place in range(GROUP)]


def draw_rules(random: random.Random) -> tuple[str, ...]:
    """None of the rules up to the greater part of them."""
    names = list(rulebook().rules)
    chosen = random.sample(names, random.randrange(len(names) - 2))
    if {"account_always", "account_when_needed"} <= set(chosen):
        chosen.remove(random.choice(("account_always", "account_when_needed")))
    return tuple(chosen)


def instruction(rules: Sequence[str], random: random.Random, wordings: int | None = None) -> str:
    """A candidate's instruction that states the rules, each in one of its first wordings of training."""
    book = rulebook()
    texts = [random.choice(book.rules[name].wordings[:wordings]) for name in rules]
    if not texts:
        return ""
    if "survey" in rules and random.random() < 0.3:
        texts += [text for text in book.rules["survey"].wordings[:2] if text not in texts]
    return written(texts, random, random.choice(book.frames.intros))


def written(texts: Sequence[str], random: random.Random, intro: str = "") -> str:
    """Sentences as a list, numbered or not, or as running text, in lines of some width."""
    form = random.choice(("list", "list", "numbers", "text"))
    if form == "text":
        return textwrap.fill(" ".join([intro, *texts] if intro else texts), random.choice((80, 105, 400)))
    marks = [f"{place}. " if form == "numbers" else "- " for place in range(1, len(texts) + 1)]
    width = random.choice((80, 105, 400))
    lines = [
        textwrap.fill(f"{mark}{text}", width, subsequent_indent="  ")
        for mark, text in zip(marks, texts, strict=True)
    ]
    return "\n".join([*([intro, ""] if intro else []), *lines])


def _lesson(seed: str, wordings: int | None, world: World) -> Lesson:
    drawn = random.Random(seed)
    rules = draw_rules(drawn)
    said = instruction(rules, drawn, wordings)
    family = drawn.choice(list(FAMILIES))
    sketch = sketch_case(family, SeededDraws(seed), Content.TRAIN, lesson_words(drawn))
    case = case_of(assemble(family, sketch))
    teacher = Teacher(sketch, draw_habits(rules, drawn), drawn, family)
    customer = ScriptedUser(case.script, seed=drawn.randrange(99))
    simulation = asyncio.run(converse(case.task, world, teacher, customer, limits=LIMITS))
    prompt = {"role": "system", "content": system_prompt(world.policy(), said)}
    return Lesson(family, rules, said, (prompt, *map(to_wire, simulation.trace)), teacher.decided)
