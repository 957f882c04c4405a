"""`case_script`: whose case it plays, and that it solves cases of every family."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_trace2evolve.cases.case import FAMILIES, Case, generate, to_case
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.task import Content, Task
from pytest_trace2evolve.testing import ChatRequest, Reply, case_script
from pytest_trace2evolve.testing.server import Script
from pytest_trace2evolve.worlds.registry import Worlds
from tests.manners import finding, talk

CASES = [*generate("script", 42, Content.HELDOUT), *generate("script", 42, Content.TRAIN)]


class Asked:
    """An agent that a chat script plays, without a server between."""

    name = "asked"

    def __init__(self, script: Script) -> None:
        self._script = script

    async def respond(self, history: Sequence[Message]) -> Message:
        messages = [message.model_dump(mode="json", exclude_none=True) for message in history]
        reply = self._script(request(messages))
        calls = [
            ToolCall(id=f"{len(history)}/{at}", name=name, arguments=_object(arguments))
            for at, (name, arguments) in enumerate(reply.tool_calls)
        ]
        return Message(role="assistant", content=reply.content, tool_calls=calls or None)


def _object(arguments: dict[str, Any] | str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(arguments) if isinstance(arguments, str) else arguments
    return found


def request(messages: list[dict[str, Any]]) -> ChatRequest:
    return ChatRequest("any", messages, [], {})


def test_it_solves_cases_of_every_family() -> None:
    world = Worlds().open("trace2evolve", "support")
    script = case_script(case.task for case in CASES)
    assert {case.script.family for case in CASES} == set(FAMILIES)
    assert not [text for case in CASES if (text := finding(case, world, talk(case, world, Asked(script))))]


def first(script: Script, *said: str) -> Reply:
    """The answer to a customer who said these things, each of which the agent answered."""
    messages: list[dict[str, Any]] = [{"role": "assistant", "content": "Hi!"}]
    for text in said:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "Hm."}]
    return script(request(messages[:-1]))


def same_opening(case: Case, other: Case) -> Case:
    """`other` with the opening of `case`."""
    record = other.task.model_dump(mode="json")
    record["user_scenario"]["script"]["turns"][0]["says"] = case.script.turns[0].says
    return to_case(Task.model_validate(record))


@pytest.mark.parametrize("place", [0, 1])
def test_customers_who_open_alike_are_told_apart_by_who_they_are(place: int) -> None:
    """Both without a question of its own, so that the first call comes after who they are."""
    item, other = [case for case in CASES if case.script.family == "missing_order_id"][:2]
    other = same_opening(item, other)
    meant = (item, other)[place]
    script = case_script([item.task, other.task])
    who = next(iter(meant.script.identity.values()))
    reply = first(script, item.script.turns[0].says, who, "No.")
    assert [name for name, _ in reply.tool_calls] == [meant.task.actions[0].name]
    assert reply.tool_calls[0][1] == meant.task.actions[0].arguments
