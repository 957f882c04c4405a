"""The pocket model's card: how it was made, and which held-out cases it passes through the server."""

import asyncio
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

from pydantic import Field

from pytest_trace2evolve.agents.chat import ChatAgent, system_prompt
from pytest_trace2evolve.cases.case import FAMILIES, Case, generate
from pytest_trace2evolve.cases.teacher import rulebook
from pytest_trace2evolve.engine.conversation import converse
from pytest_trace2evolve.errors import InfrastructureError
from pytest_trace2evolve.gate.intervals import CONFIDENCE_LEVEL, Cluster, difference_interval, wilson
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.scoring.metrics import SUCCESS
from pytest_trace2evolve.scoring.reward import score
from pytest_trace2evolve.serving.folder import folder_digest, read_model
from pytest_trace2evolve.training.heldout import serve_locally
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.utils.files import write_together
from pytest_trace2evolve.worlds.support.world import SupportWorld
from research.common import OnProgress, read_object
from research.pocket.lessons import LIMITS, draw_instruction, draw_rules
from research.pocket.recipe import Stage

CARD, TEXT, TRAINING = "card.json", "README.md", "training.json"
"""The card as a record and as a text, and the file in which `research.pocket train` records the training."""

ALL_RULES = Stage(0, (0.0, 0.0), without_rules=0.0, with_all_rules=1.0)
"""The kind of prompts that state all rules."""

AT_ONCE = 48
"""Simulations at once."""

_ORDER_KNOWN = ("precondition_verification", "policy_edge", "subtle_legal_pressure")

CONCERNED: Mapping[str, tuple[str, ...]] = {
    "inspect": ("precondition_verification", "indirect_address_change"),
    "confirm": ("missing_order_id", "multi_intent_message"),
    "complete": ("multi_intent_message", "multi_step_task_completion"),
    "survey": ("cross_order_ambiguity",),
    "account_always": (*_ORDER_KNOWN, "conditional_detail_retrieval"),
    "account_when_needed": ("account_address_inference",),
    "once": ("missing_order_id", "precondition_verification"),
    "reason": ("vague_refund_request", "missing_order_id", "subtle_legal_pressure", "policy_edge"),
    "refund": ("missing_order_id", "vague_refund_request"),
    "compare": ("structured_data_reasoning",),
    "number": ("missing_order_id", "policy_edge"),
    "exact": ("tool_calling_precision", "multi_intent_message"),
    "decline": ("policy_edge",),
    "at_once": _ORDER_KNOWN,
    "figure": ("conditional_detail_retrieval",),
}
"""Kinds of cases with an occasion for the behavior that a rule asks for, by rule."""


class Share(Record):
    """How many of some cases were passed."""

    hits: int = Field(ge=0)
    total: int = Field(ge=1)

    @property
    def estimate(self) -> float:
        """The share."""
        return self.hits / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval at 95 %."""
        return wilson(self.estimate, self.total, NormalDist().inv_cdf((1 + CONFIDENCE_LEVEL) / 2))


def difference(new: Share, old: Share) -> tuple[float, float, float]:
    """Difference of two shares with Newcombe's interval at 95 %."""
    sides = ([Cluster(float(case < share.hits), 1) for case in range(share.total)] for share in (new, old))
    interval = difference_interval(*sides)
    assert interval is not None
    return new.estimate - old.estimate, *interval


class Card(Record):
    """A model card.

    Attributes:
        training: The content of `training.json`, without its losses.
        weights: Digest of the weights, tokenizer and settings that were measured.
        temperature: At which answers were drawn.
        cases: Held-out cases of a row.
        capabilities: Cases passed under the policy alone, by kind of case.
        with_rules: Cases passed with all rules stated, by kind of case.
        rules: Cases passed of the kinds that a rule concerns: `without` it, with it in a wording of training
            (`seen`), and in one that was never trained on (`unseen`).
    """

    schema_version: Literal[1] = 1
    training: dict[str, Any]
    weights: str
    weight_bytes: int
    temperature: float
    cases: int
    capabilities: dict[str, Share]
    with_rules: dict[str, Share]
    rules: dict[str, dict[str, Share]]


def write_card(folder: Path, cases: int, on_progress: OnProgress = lambda done, total: None) -> str:
    """Measure the model in a folder and write its card there; returns the card's text.

    Raises:
        ConfigError: the folder was not made by `python -m research.pocket train`.
        InfrastructureError: a simulation was lost, so nothing is reported.
        ModelFolderError: the model cannot be served.
        OSError: the card cannot be written.
    """
    model = read_model(folder)
    training = read_object(folder / TRAINING, "was it made by 'python -m research.pocket train'?")
    training.pop("losses", None)
    with serve_locally(model, seed=1) as settings:
        shares = asyncio.run(measure(ChatModel(settings), cases, on_progress))
    card = Card(
        training=training,
        weights=folder_digest(folder),
        weight_bytes=(folder / "model.safetensors").stat().st_size,
        temperature=model.temperature,
        cases=cases,
        **shares,
    )
    text = card_text(card)
    write_together(
        {folder / CARD: json.dumps(card.model_dump(mode="json"), indent=1) + "\n", folder / TEXT: text}
    )
    return text


# ---- measuring

Arm = tuple[str, str]
"""A kind and a name: `capability` or `with_rules` and a family, or `seen` or `unseen` and a rule."""


async def measure(
    model: ChatModel, cases: int, on_progress: OnProgress = lambda done, total: None
) -> dict[str, Any]:
    """Return the shares of held-out cases that a model passes, as fields of a card.

    Args:
        model: The model, which is closed afterwards.
        cases: Held-out cases of a row.
        on_progress: Called after each simulation.

    Raises:
        InfrastructureError: a simulation was lost.
    """
    world = SupportWorld()
    arms = dict(_arms(cases))
    total = sum(map(len, arms.values()))
    done = 0
    slots = asyncio.Semaphore(AT_ONCE)

    async def passes(case: Case, instruction: str, seed: int) -> bool:
        nonlocal done
        async with slots:
            prompt = system_prompt(world.policy(), instruction)
            agent = ChatAgent(model, prompt, world.tools("assistant"), trial=seed)
            simulation = await converse(
                case.task, world, agent, ScriptedUser(case.script, seed=seed), limits=LIMITS
            )
        reward = score(simulation, case.task, world).reward
        if reward is None:
            cause = simulation.error_text or "no reason is known"
            raise InfrastructureError(f"case {case.id!r} was lost, and with it the card: {cause}")
        done += 1
        on_progress(done, total)
        return reward >= SUCCESS

    async def pass_all(arm: Sequence[tuple[Case, str]]) -> list[bool]:
        return await asyncio.gather(*(passes(*pair, seed) for seed, pair in enumerate(arm)))

    try:
        passed = dict(zip(arms, await asyncio.gather(*map(pass_all, arms.values())), strict=True))
    finally:
        await model.close()

    def share(kind: str, names: Iterable[str]) -> Share:
        outcomes = [outcome for name in names for outcome in passed[kind, name]]
        return Share(hits=sum(outcomes), total=len(outcomes))

    return {
        "capabilities": {name: share("capability", [name]) for name in FAMILIES},
        "with_rules": {name: share("with_rules", [name]) for name in FAMILIES},
        "rules": {
            rule: {
                "without": share("capability", CONCERNED[rule]),
                "seen": share("seen", [rule]),
                "unseen": share("unseen", [rule]),
            }
            for rule in rulebook().rules
        },
    }


def _arms(cases: int) -> Iterator[tuple[Arm, list[tuple[Case, str]]]]:
    """The cases of each arm with their instructions."""
    draws = random.Random("card")

    def drawn(name: str, families: Sequence[str], instruction: Callable[[], str]) -> list[tuple[Case, str]]:
        return [(case, instruction()) for case in generate(f"card/{name}", cases, Content.HELDOUT, families)]

    def all_rules() -> str:
        return draw_instruction(draw_rules(draws, ALL_RULES, without=("at_once",)), draws)

    for family in FAMILIES:
        yield ("capability", family), drawn(family, (family,), str)
        yield ("with_rules", family), drawn(family, (family,), all_rules)
    for name, rule in rulebook().rules.items():
        for arm, wordings in (("seen", rule.wordings), ("unseen", rule.unseen)):
            yield (arm, name), drawn(name, CONCERNED[name], partial(draws.choice, wordings))


# ---- the text


def card_text(card: Card) -> str:
    """The card as Markdown."""
    training = card.training
    recipe = training["recipe"]
    size = recipe["size"]
    start = f" from weights of an earlier recipe, `{recipe['start']}`" if recipe.get("start") else ""
    families = [
        [name, *_passed(alone), *_passed(stated), _change(stated, alone)]
        for (name, alone), stated in zip(card.capabilities.items(), card.with_rules.values(), strict=True)
    ]
    headings = ("kind of case", "policy alone", "interval", "all rules", "interval", "change")
    rules: list[list[str]] = []
    for rule, arms in card.rules.items():
        rules.append([rule, _counted(arms["without"])])
        for name in ("seen", "unseen"):
            rules[-1] += [_counted(arms[name]), _change(arms[name], arms["without"])]
    columns = ("rule", "without", "with", "change", "unseen wording", "change")
    return f"""\
# The pocket model

A language model that is small enough to ship. It answers for the agent if no other model is named. Its
results are real, sampled and noisy, and say nothing about other models. Held-out content has other names,
products, ids and combinations than training, and sentences that never occur there as a whole; the two share
fragments of sentences.

- **Network**: Qwen3's architecture, {size["layers"]} layers, width {size["width"]}, {size["heads"]} heads;
  {training["parameters"]:,} parameters, {training["vocabulary"]:,} tokens in its vocabulary.
- **Weights**: `model.safetensors`, {card.weight_bytes / 1e6:.1f} MB; digest of all that
  changes what it says: `{card.weights}`, as runs record it.
- **Data**: {training["dialogues"]:,} dialogues of a scripted teacher with scripted customers in the support
  world, {training["tokens"]:,} tokens. The teacher follows the rules of its prompt, and is careless if none
  applies (`cases/content/rules.toml`). It writes the part of a record that it needs before it calls a tool.
- **Training**: {training["step"]:,} steps in {training["seconds"] / 60:.0f} minutes{start}. In a clone of the
  repository, `python -m research.pocket train --out DIR --seed 1` trains new weights, whose figures differ.

The figures below were measured with these weights at temperature {card.temperature:g} on held-out content,
{card.cases} cases a row, with 95 % intervals (Wilson; for differences Newcombe).

## Kinds of cases

Passed under the policy alone, and with all rules stated in random order and wordings of training (except
`at_once`, which contradicts `confirm`):

{_table(headings, families)}

## Rules

How often cases of the kinds that a rule concerns are passed: without the rule, with it in a wording of
training, and in a wording that was never trained on.

{_table(columns, rules)}
"""


def _table(headings: Sequence[str], rows: Any) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _passed(share: Share) -> list[str]:
    low, high = share.interval
    return [f"{100 * share.estimate:.0f} %", f"{100 * low:.0f} … {100 * high:.0f} %"]


def _counted(share: Share) -> str:
    return f"{100 * share.estimate:.0f} % of {share.total}"


def _change(new: Share, old: Share) -> str:
    found, low, high = (100 * value for value in difference(new, old))
    return f"{found:+.0f} ({low:+.0f} … {high:+.0f})"
