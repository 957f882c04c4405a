"""From a seed to the pocket model's folder: lessons, tokenizer, training, and the files that are kept."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from pytest_trace2evolve.records.protocols import World
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.pocket.lessons import GROUP, Lesson, lesson_group
from research.pocket.loop import Encoded
from research.pocket.recipe import Prompt, Recipe, Stage
from research.pocket.tokenizer import CALL, END, START, build_tokenizer
from research.pocket.train import Progress, forget, train

VOCABULARY = 3072
"""Tokens: about a thousand are groups of digits."""

TOKENIZER_GROUPS = 300
"""Groups of lessons that the tokenizer is made from."""

ANSWER_MOST = 160
"""Tokens of an answer, at most: well above the longest that lessons hold."""

TEMPERATURE = 0.7
"""At which its answers are drawn where nobody asks for another."""

TRAINING = "training.json"
"""The file beside the weights that says what they come from."""

RECORDED = frozenset(
    {"recipe", "parameters", "vocabulary", "dialogues", "step", "tokens", "seconds", "losses"}
)
"""What it holds."""

DECIDING = 8
"""Tokens of a message, from its first on, by which it is decided what it does."""

_MARKS = re.compile("|".join(map(re.escape, (START, END, *CALL))))


def make(
    recipe: Recipe, folder: Path, *, told: Callable[[Progress], None] = lambda progress: None
) -> Progress:
    """Train a pocket model and write its folder, or go on with what an interrupted run left there.

    Raises:
        MissingExtraError: torch or transformers is not installed.
        ConfigError: what is in the folder is of another recipe or damaged.
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    world = SupportWorld()
    tokenizer = made_tokenizer(f"{recipe.seed}", world)
    tools = wire_tools(world)

    def groups(step: int, stage: Stage) -> Sequence[Encoded]:
        lessons = lesson_group(f"{recipe.seed}", step, world, wordings=stage.wordings)
        return [learnt(one, stage, tokenizer, tools) for one in lessons]

    network: Any
    network, progress = train(recipe, groups, tokenizer, folder, told=told)
    network.generation_config.update(
        do_sample=True, temperature=TEMPERATURE, top_k=0, top_p=1.0, max_new_tokens=ANSWER_MOST
    )
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = {
        "recipe": asdict(recipe),
        "parameters": network.num_parameters(),
        "vocabulary": len(tokenizer),
        "dialogues": progress.step * GROUP,
        **asdict(progress),
    }
    (folder / TRAINING).write_text(json.dumps(record) + "\n", encoding="utf-8")
    forget(folder)
    return progress


def made_tokenizer(seed: str, world: World) -> Any:
    """The tokenizer of a seed's first lessons, whole dialogues as they are rendered."""
    tools = wire_tools(world)
    template: Any = build_tokenizer([], 300)
    groups = (lesson_group(f"{seed}/tokenizer", place, world) for place in range(TOKENIZER_GROUPS))
    lessons = (parsed(one) for group in groups for one in group)
    rendered = (str(template.apply_chat_template(one, tools=tools, tokenize=False)) for one in lessons)
    return build_tokenizer(_parts(rendered), VOCABULARY)


def _parts(texts: Iterable[str]) -> Iterator[str]:
    """What stands between the marks of dialogues: no token goes across one."""
    return (part for text in texts for part in _MARKS.split(text))


def learnt(lesson: Lesson, stage: Stage, tokenizer: Any, tools: Sequence[dict[str, Any]]) -> Encoded:
    """A lesson as a stage learns from it: with its prompt, its weights, and up to where it is cut."""
    whole = stage.prompt is Prompt.WHOLE
    told = lesson if whole else lesson.told_only(stage.prompt is Prompt.RULES)
    one = encoded(told, tokenizer, tools if whole else ())
    weights = [float(own) for own in one.own]
    spans = _messages(weights)
    for number in lesson.decided:
        start, end = spans[number]
        for place in range(start, min(start + DECIDING, end)):
            weights[place] = stage.decided
    last = max(end for start, end in spans if not stage.reach or end <= spans[0][0] + stage.reach)
    return Encoded(one.ids[:last], weights[:last])


def _messages(weights: Sequence[float]) -> list[tuple[int, int]]:
    """Where each of the agent's messages begins and ends."""
    edges = [
        place for place, (one, other) in enumerate(pairwise([0.0, *weights, 0.0])) if bool(one) != bool(other)
    ]
    return list(zip(edges[::2], edges[1::2], strict=True))


def encoded(lesson: Lesson, tokenizer: Any, tools: Sequence[dict[str, Any]]) -> Encoded:
    """A lesson as tokens."""
    found = tokenizer.apply_chat_template(
        parsed(lesson), tools=tools or None, return_dict=True, return_assistant_tokens_mask=True
    )
    return Encoded(found["input_ids"], found["assistant_masks"])


def wire_tools(world: World) -> Any:
    """The agent's tools in the form of the chat-completions API."""
    return [{"type": "function", "function": tool.model_dump()} for tool in world.tools("assistant")]


def parsed(lesson: Lesson) -> list[dict[str, Any]]:
    """A lesson's messages as chat templates take them: with the arguments of calls as objects."""
    messages = []
    for message in lesson.messages:
        calls = [
            {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
            for call in message.get("tool_calls", ())
        ]
        messages.append({**message, "tool_calls": calls} if calls else dict(message))
    return messages
