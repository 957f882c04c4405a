"""Prompt evolution: sentences of the rulebook alone, drawn from a seed; a budget is spent exactly."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_trace2evolve.cases.teacher import rulebook
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.task import Content
from research.trace import prompts
from research.trace.plan import CAPABILITIES, Policy
from research.trace.prompts import MAX_LINES, Proposer, evolve, lacking
from research.trace.tasks import Target, cells_of, targets_of

CELLS = cells_of(CAPABILITIES)
SENTENCES = {wording for rule in rulebook().rules.values() for wording in rule.wordings}


def tasks(name: str, count: int) -> list[Target]:
    return [target for cell in CELLS for target in targets_of(cell, name, count, Content.TRAIN)]


MINIBATCHES, DECIDING = tasks("a", 4), tasks("b", 2)


def test_instructions_are_made_of_the_rulebook_and_follow_from_the_seed() -> None:
    instructions: list[list[str]] = []
    for _ in range(2):
        proposer, text, proposed = Proposer(3), "", []
        for _ in range(200):
            text = proposer({"instruction": text}, {"instruction": []}, ["instruction"])["instruction"]
            proposed.append(text)
            assert set(text.splitlines()) <= SENTENCES
            assert len(text.splitlines()) <= MAX_LINES
        instructions.append(proposed)
    assert instructions[0] == instructions[1]
    assert len(set(instructions[0])) > 50


def test_sentences_that_failures_lack_are_drawn_more_often() -> None:
    wordings = set(rulebook().rules["survey"].wordings)
    records = [{"lacks": ["survey"]}] * 40
    drawn = [Proposer(seed).rework("", records) for seed in range(60)]
    assert sum(text in wordings for text in drawn) > 30


def test_lacking_names_rules_that_a_trace_does_not_follow() -> None:
    target = MINIBATCHES[0]
    order = target.case.script.turns[0].requests[0].about[1]
    call = ToolCall(id="1", name="cancel_pending_order", arguments={"order_id": order, "reason": "other"})
    trace = [Message(role="user", content="Hi."), Message(role="assistant", tool_calls=[call])]
    assert {"inspect", "confirm"} <= set(lacking(target, trace))


def test_lacking_takes_arguments_of_any_kind() -> None:
    calls = [
        ToolCall(id="1", name="get_order_details", arguments={"order_id": ["#W1"]}),
        ToolCall(id="2", name="cancel_pending_order", arguments={"order_id": {"id": 1}, "reason": "other"}),
    ]
    trace = [Message(role="user", content="Hi."), Message(role="assistant", tool_calls=calls)]
    assert {"inspect", "survey"} <= set(lacking(MINIBATCHES[0], trace))


class FakeEvaluator:
    """Lets an instruction pass that holds a sentence of some rules; records every rollout."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.played: list[tuple[str, int, int]] = []
        self.batches: list[list[Target]] = []

    async def targets(
        self, policy: Policy, targets: Sequence[Target], first: int = 0
    ) -> tuple[list[float], list[Sequence[Message]]]:
        self.numbers += range(first, first + len(targets))
        self.batches.append(list(targets))
        self.played.append((policy.instruction, len(targets), len(self.numbers)))
        rules = (rulebook().rules[name] for name in ("confirm", "once", "compare"))
        useful = {wording for rule in rules for wording in rule.wordings}
        passes = bool(useful & set(policy.instruction.splitlines()))
        trace = [Message(role="user", content="Hi.")]
        return [float(passes or place % 4 == 0) for place in range(len(targets))], [trace] * len(targets)


@pytest.fixture
def evaluator() -> Any:
    pytest.importorskip("gepa")
    return FakeEvaluator()


@pytest.mark.parametrize("budget", [64, 301])
def test_the_budget_is_spent_exactly(evaluator: Any, budget: int) -> None:
    found = evolve(evaluator, MINIBATCHES, DECIDING, budget, 1, points=(0.25, 0.5))
    assert found.rollouts == budget == len(evaluator.numbers)
    assert len(set(evaluator.numbers)) == budget, "each is drawn anew"
    assert set(found.instructions) == {"0.25", "0.5", "1"}
    assert all(set(text.splitlines()) <= SENTENCES for text in found.instructions.values())
    if budget > 300:
        assert found.score > 0.9
        assert found.candidates > 1
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()  # the search has closed its own


def test_the_rest_is_spent_on_the_same_tasks_of_all_kinds(evaluator: Any) -> None:
    evolve(evaluator, MINIBATCHES, DECIDING, 301, 1, points=())
    last, other = evaluator.batches[-2:]
    assert other not in (DECIDING, [])
    assert [target.case.id for target in last][: len(other)] == [target.case.id for target in other]
    assert len(last) - len(other) in (0, 1)
    counts = Counter(target.cell.name for target in last)
    assert all(max(counts.values()) - counts[cell.name] <= 1 for cell in CELLS)
    assert evaluator.played[-1][0] != evaluator.played[-2][0], "of the two best"


@pytest.mark.parametrize(("owner", "name"), [(prompts, "lacking"), (Proposer, "rework")])
def test_an_error_of_the_proposer_ends_the_search(
    evaluator: Any, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """GEPA would log it, spend the budget on other rounds, and find nothing."""

    def fail(*args: Any) -> Any:
        raise ValueError("no such rule")

    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(ValueError, match=r"^no such rule$"):
        evolve(evaluator, MINIBATCHES, DECIDING, 301, 1, points=())
    assert len(evaluator.numbers) < 60


def test_an_instruction_is_known_after_the_rollouts_that_decide_on_it(evaluator: Any) -> None:
    shares = [place / 50 for place in range(1, 50)]
    found = evolve(evaluator, MINIBATCHES, DECIDING, 301, 1, points=shares)
    decided = {text: spent for text, count, spent in reversed(evaluator.played) if count == len(DECIDING)}
    known = {share: found.instructions[f"{share:g}"] for share in shares}
    assert any(known.values())
    assert all(not text or decided[text] <= share * 301 for share, text in known.items())
