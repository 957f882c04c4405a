"""Lessons: dialogues of the teacher with scripted customers under prompts with random rules, as tokens."""

import asyncio
import json
import random
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pytest_trace2evolve.agents.chat import system_prompt
from pytest_trace2evolve.cases.case import FAMILIES, sketch_case, to_case
from pytest_trace2evolve.cases.content import SeededChoices, lesson_words
from pytest_trace2evolve.cases.scene import assemble
from pytest_trace2evolve.cases.teacher import Habits, Teacher, rulebook
from pytest_trace2evolve.engine.conversation import Limits, converse
from pytest_trace2evolve.records.completion import to_wire
from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.users.scripted import ScriptedUser
from research.pocket.recipe import Stage

LIMITS = Limits(max_steps=60)

GROUP = 8
"""Lessons of one step, each under its own rules: so each step shows what rules change."""

HARD_FAMILIES = (
    "missing_order_id", "structured_data_reasoning", "multi_step_task_completion", "tool_calling_precision",
    "account_address_inference", "conditional_detail_retrieval", "cross_order_ambiguity",
)  # fmt: skip
"""Kinds of case that take longest to learn; lessons have them twice as often."""

CONTRADICTIONS = (("account_always", "account_when_needed"), ("confirm", "at_once"))
"""Pairs of rules that contradict each other."""

DECIDING = 8
"""Tokens at the beginning of a message that decide what it does."""

Wire = Mapping[str, Any]


@dataclass(frozen=True)
class Lesson:
    """One dialogue.

    Attributes:
        family: The kind of its case.
        rules: The rules of its prompt.
        instruction: What its prompt says besides the policy.
        messages: All messages in the form of the chat-completions API, the system prompt first.
        decided: The habits that decided a message, by the message's number among the agent's.
    """

    family: str
    rules: tuple[str, ...]
    instruction: str
    messages: tuple[Wire, ...]
    decided: Mapping[int, Sequence[str]]


def lesson_group(seed: str, number: int, world: World, stage: Stage) -> list[Lesson]:
    """One group of a seed's lessons, with prompts as the stage asks for."""
    return [_lesson(f"{seed}/{number}/{place}", stage, world) for place in range(GROUP)]


def draw_habits(rules: Iterable[str], rng: random.Random) -> Habits:
    """Draw each habit with its probability under the given rules; a later rule overrides an earlier one."""
    book = rulebook()
    probabilities = dict(book.habits)
    for name in rules:
        probabilities.update(book.rules[name].sets)
    return {habit: rng.random() < probability for habit, probability in probabilities.items()}


def _lesson(seed: str, stage: Stage, world: World) -> Lesson:
    draws = random.Random(seed)
    rules = draw_rules(draws, stage)
    instruction = draw_instruction(rules, draws, stage.wordings or None)
    family = draws.choice([*FAMILIES, *HARD_FAMILIES])
    sketch = sketch_case(family, SeededChoices(seed), Content.TRAIN, lesson_words(draws))
    case = to_case(assemble(family, sketch))
    teacher = Teacher(sketch, draw_habits(rules, draws), draws, family)
    customer = ScriptedUser(case.script, seed=draws.randrange(99))
    simulation = asyncio.run(converse(case.task, world, teacher, customer, limits=LIMITS))
    prompt = {"role": "system", "content": system_prompt(world.policy(), instruction)}
    return Lesson(
        family, rules, instruction, (prompt, *map(to_wire, simulation.trace)), teacher.deciding_habits
    )


def draw_rules(draws: random.Random, stage: Stage, *, without: Sequence[str] = ()) -> tuple[str, ...]:
    """No rule, all rules or some, in random order, without contradictions."""
    names = [name for name in rulebook().rules if name not in without]
    form = draws.random() - stage.without_rules
    if form < 0:
        return ()
    count = len(names) if form < stage.with_all_rules else draws.randrange(len(names) - 2)
    chosen = draws.sample(names, count)
    for pair in CONTRADICTIONS:
        if set(pair) <= set(chosen):
            chosen.remove(draws.choice(pair))
    return tuple(chosen)


def draw_instruction(rules: Sequence[str], draws: random.Random, wordings: int | None = None) -> str:
    """An instruction that states the rules, as a list, numbered or not, or as running text."""
    book = rulebook()
    texts = [draws.choice(book.rules[name].wordings[:wordings]) for name in rules]
    if not texts:
        return ""
    if "survey" in rules and draws.random() < 0.3:
        texts += [text for text in book.rules["survey"].wordings[:2] if text not in texts]
    intro = draws.choice(book.frames.intros)
    form = draws.choice(("list", "list", "numbers", "text"))
    if form == "text":
        return textwrap.fill(" ".join([intro, *texts] if intro else texts), draws.choice((80, 105, 400)))
    marks = [f"{place}. " if form == "numbers" else "- " for place in range(1, len(texts) + 1)]
    width = draws.choice((80, 105, 400))
    lines = [
        textwrap.fill(f"{mark}{text}", width, subsequent_indent="  ")
        for mark, text in zip(marks, texts, strict=True)
    ]
    return "\n".join([*([intro, ""] if intro else []), *lines])


# As tokens


@dataclass(frozen=True)
class Encoded:
    """One dialogue: its tokens, and the weight of each; 0 for tokens that are not the agent's."""

    ids: Sequence[int]
    weights: Sequence[float]


def wire_tools(world: World) -> list[dict[str, Any]]:
    """The agent's tools in the form of the chat-completions API."""
    return [{"type": "function", "function": tool.model_dump()} for tool in world.tools("assistant")]


def template_messages(messages: Sequence[Wire]) -> list[dict[str, Any]]:
    """Messages as chat templates take them: with the arguments of calls as objects."""
    found = []
    for message in messages:
        calls = [
            {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
            for call in message.get("tool_calls", ())
        ]
        found.append({**message, "tool_calls": calls} if calls else dict(message))
    return found


def encode(messages: Sequence[Wire], tokenizer: Any, tools: Sequence[dict[str, Any]]) -> Encoded:
    """A dialogue as tokens, each of the agent's own with weight 1."""
    found = tokenizer.apply_chat_template(
        template_messages(messages), tools=tools or None, return_dict=True, return_assistant_tokens_mask=True
    )
    return Encoded(found["input_ids"], [float(own) for own in found["assistant_masks"]])


def encode_for(
    stage: Stage, lesson: Lesson, tokenizer: Any, tools: Sequence[dict[str, Any]], *, whole: bool
) -> Encoded:
    """A lesson as a stage learns it: with its weights, and with the whole prompt or only its instruction."""
    messages = list(lesson.messages)
    if not whole:
        messages[:1] = [{"role": "system", "content": lesson.instruction}] if lesson.instruction else []
    dialogue = encode(messages, tokenizer, tools if whole else ())
    weights = list(dialogue.weights)
    edges = [
        place
        for place, (before, after) in enumerate(pairwise([0.0, *weights, 0.0]))
        if bool(before) != bool(after)
    ]
    spans = list(zip(edges[::2], edges[1::2], strict=True))  # of the agent's messages
    set_habits = {habit for rule in lesson.rules for habit in rulebook().rules[rule].sets}
    for number, habits in lesson.decided.items():
        start, end = spans[number]
        for place in range(start, min(start + DECIDING, end)):
            weights[place] = stage.stated if set_habits.issuperset(habits) else stage.drawn
    length = spans[-1][1]
    return Encoded(dialogue.ids[:length], weights[:length])
