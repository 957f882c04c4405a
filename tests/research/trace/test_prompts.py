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
from research.trace.agents import Policy
from research.trace.plan import CAPABILITIES
from research.trace.prompts import LINES_MOST, Proposer, evolve, lacking
from research.trace.tasks import Target, cells_of, targets_of

CELLS = cells_of(CAPABILITIES)
SENTENCES = {one for rule in rulebook().rules.values() for one in rule.wordings}


def tasks(name: str, count: int) -> list[Target]:
    return [one for cell in CELLS for one in targets_of(cell, name, count, Content.TRAIN)]


def test_every_instruction_is_made_of_the_rulebook_and_follows_from_the_seed() -> None:
    lines: list[list[str]] = []
    for _ in range(2):
        proposer, text, said = Proposer(3), "", []
        for _ in range(200):
            text = proposer({"instruction": text}, {"instruction": []}, ["instruction"])["instruction"]
            said.append(text)
            assert set(text.splitlines()) <= SENTENCES
            assert len(text.splitlines()) <= LINES_MOST
        lines.append(said)
    assert lines[0] == lines[1]
    assert len(set(lines[0])) > 50


def test_what_failures_lack_is_drawn_more_often() -> None:
    wanted = set(rulebook().rules["survey"].wordings)
    records = [{"lacks": ["survey"]}] * 40
    drawn = [Proposer(seed).reworked("", records) for seed in range(60)]
    assert sum(one in wanted for one in drawn) > 30


def test_a_failed_rollout_says_what_it_lacks() -> None:
    target = tasks("lack", 1)[0]
    order = target.case.script.turns[0].requests[0].about[1]
    call = ToolCall(id="1", name="cancel_pending_order", arguments={"order_id": order, "reason": "other"})
    trace = [Message(role="user", content="Hi."), Message(role="assistant", tool_calls=[call])]
    assert {"inspect", "confirm"} <= set(lacking(target, trace))


class Pretender:
    """Passes where the instruction holds a sentence of some rules; every rollout counts."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.played: list[tuple[str, int, int]] = []
        self.targets_of: list[list[Target]] = []

    async def targets(
        self, policy: Policy, targets: Sequence[Target], first: int = 0
    ) -> tuple[list[float], list[Sequence[Message]]]:
        self.numbers += range(first, first + len(targets))
        self.targets_of.append(list(targets))
        self.played.append((policy.instruction, len(targets), len(self.numbers)))
        useful = {one for rule in ("confirm", "once", "compare") for one in rulebook().rules[rule].wordings}
        knows = bool(useful & set(policy.instruction.splitlines()))
        trace = [Message(role="user", content="Hi.")]
        return [float(knows or place % 4 == 0) for place in range(len(targets))], [trace] * len(targets)


@pytest.mark.parametrize("budget", [64, 301])
def test_the_budget_is_spent_exactly(budget: int) -> None:
    pytest.importorskip("gepa")
    pretender: Any = Pretender()
    found = evolve(pretender, (tasks("a", 4), tasks("b", 2)), budget, 1, points=(0.25, 0.5))
    assert found.rollouts == budget == len(pretender.numbers)
    assert len(set(pretender.numbers)) == budget  # each is drawn anew
    assert set(found.instructions) == {"0.25", "0.5", "1"}
    assert all(set(text.splitlines()) <= SENTENCES for text in found.instructions.values())
    if budget > 300:
        assert found.score > 0.9
        assert found.candidates > 1
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()  # nothing of it is left


def test_what_is_left_is_spent_on_the_same_tasks_of_all_kinds() -> None:
    pytest.importorskip("gepa")
    pretender: Any = Pretender()
    deciding = tasks("b", 2)
    evolve(pretender, (tasks("a", 4), deciding), 301, 1, points=())
    last, other = pretender.targets_of[-2:]
    assert other not in (deciding, [])
    assert [one.case.id for one in last][: len(other)] == [one.case.id for one in other]
    assert len(last) - len(other) in (0, 1)
    counts = Counter(one.cell.name for one in last)
    assert [max(counts.values()) - counts[cell.name] <= 1 for cell in CELLS] == [True] * len(CELLS)
    assert pretender.played[-1][0] != pretender.played[-2][0], "of the two best"


@pytest.mark.parametrize("where", ["lacking", "rulebook"])
def test_an_error_of_the_proposer_ends_the_search(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """GEPA would log it, spend the budget on other rounds, and find nothing."""
    pytest.importorskip("gepa")
    pretender: Any = Pretender()
    given = tasks("a", 4), tasks("b", 2)

    def broken(*given: Any) -> Any:
        raise ValueError("no such rule")

    monkeypatch.setattr(
        Proposer if where == "rulebook" else prompts, "reworked" if where == "rulebook" else where, broken
    )
    with pytest.raises(ValueError, match=r"^no such rule$"):
        evolve(pretender, given, 301, 1, points=())
    assert len(pretender.numbers) < 60


def test_arguments_of_any_kind_are_read() -> None:
    target = tasks("lack", 1)[0]
    calls = [
        ToolCall(id="1", name="get_order_details", arguments={"order_id": ["#W1"]}),
        ToolCall(id="2", name="cancel_pending_order", arguments={"order_id": {"id": 1}, "reason": "other"}),
    ]
    trace = [Message(role="user", content="Hi."), Message(role="assistant", tool_calls=calls)]
    assert {"inspect", "survey"} <= set(lacking(target, trace))


def test_an_instruction_is_known_when_the_rollouts_that_decide_on_it_are_spent() -> None:
    pytest.importorskip("gepa")
    pretender: Any = Pretender()
    shares = [place / 50 for place in range(1, 50)]
    deciding = tasks("b", 2)
    found = evolve(pretender, (tasks("a", 4), deciding), 301, 1, points=shares)
    decided = {text: spent for text, count, spent in reversed(pretender.played) if count == len(deciding)}
    told = {share: found.instructions[f"{share:g}"] for share in shares}
    assert any(told.values())
    assert all(not text or decided[text] <= share * 301 for share, text in told.items())
