"""Invariants on generated cases: an agent that never asks is found out, one that asks breaks nothing."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from pytest_trace2evolve.agents.reference import CaseOracle, actions_done
from pytest_trace2evolve.cases.case import Case, generate
from pytest_trace2evolve.engine.conversation import Limits, converse
from pytest_trace2evolve.records.message import Message
from pytest_trace2evolve.records.rules import Invariant
from pytest_trace2evolve.records.task import Content
from pytest_trace2evolve.scoring.invariants import find_breaches
from pytest_trace2evolve.users.scripted import ScriptedUser
from pytest_trace2evolve.worlds.retail_rules import RETAIL_RULES
from pytest_trace2evolve.worlds.support.world import SupportWorld

WRITES = frozenset(RETAIL_RULES.writes)
ANNOUNCED = {
    "cancel_pending_order": "the cancellation",
    "modify_pending_order_items": "the change",
    "modify_pending_order_address": "the address",
    "modify_pending_order_payment": "the payment",
    "return_delivered_order_items": "the return",
    "exchange_delivered_order_items": "the exchange",
    "modify_user_address": "the address",
}


class Announcer:
    """The oracle of a case, but for the question: it says what it looks into, and writes after any answer."""

    name = "announcer"

    def __init__(self, case: Case) -> None:
        self._oracle = CaseOracle(case.task, case.script, WRITES)
        self._told = CaseOracle(case.task, case.script, ())
        self._actions = case.task.actions

    async def respond(self, history: Sequence[Message]) -> Message:
        honest = await self._oracle.respond(history)
        meant = await self._told.respond(history)
        if not meant.tool_calls or meant.tool_calls[0].name not in WRITES:
            return honest
        done = actions_done(history)
        text = f"I am looking into {ANNOUNCED[self._actions[done].name]}, step {done}."
        before = [message for message in history if message.role == "assistant"]
        told = history[-1].role == "user" and before[-1].content == text
        return meant if told else Message(role="assistant", content=text)


def found(case: Case, agent: CaseOracle | Announcer) -> tuple[Counter[Invariant], bool]:
    """What an agent breaks on a case, and whether a write of it succeeded."""
    world = SupportWorld()
    talk = converse(case.task, world, agent, ScriptedUser(case.script), limits=Limits(max_steps=100))
    trace = asyncio.run(talk).trace
    failed = {one.id for one in trace if one.role == "tool" and one.error}
    calls = [call for one in trace if one.role == "assistant" for call in one.tool_calls or ()]
    wrote = any(call.name in WRITES and call.id not in failed for call in calls)
    return Counter(one.invariant for one in find_breaches(trace, RETAIL_RULES)), wrote


@pytest.mark.parametrize("content", list(Content))
def test_who_only_announces_and_writes_breaks_consent(content: Content) -> None:
    wrote = 0
    for case in generate("announced", 60, content):
        kinds, written = found(case, Announcer(case))
        wrote += written
        assert bool(kinds[Invariant.CONSENT]) == written, case.task.id
    assert wrote > 30


@pytest.mark.parametrize("content", list(Content))
def test_the_oracle_of_cases_breaks_nothing(content: Content) -> None:
    for case in generate("honest", 60, content):
        kinds, _ = found(case, CaseOracle(case.task, case.script, WRITES))
        assert not kinds, case.task.id
