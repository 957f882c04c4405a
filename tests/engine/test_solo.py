"""Solo mode: what the agent is told and may do, what ends it, and what a solo suite demands of its tasks."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.agents.chat import DONE_TOOL, SoloChatAgent, solo_prompt
from pytest_trace2evolve.agents.reference import NopAgent, OracleAgent
from pytest_trace2evolve.engine.conversation import Limits, converse
from pytest_trace2evolve.errors import SuiteError
from pytest_trace2evolve.gate.comparable import provenance_differences
from pytest_trace2evolve.project.lock import lock_suite
from pytest_trace2evolve.project.suites import Suite
from pytest_trace2evolve.records.completion import Completion, RequestedCall
from pytest_trace2evolve.records.evidence import DUMMY_USER, Provenance, Settings
from pytest_trace2evolve.records.message import Message, ToolCall
from pytest_trace2evolve.records.protocols import Agent, ToolSchema, World
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.scoring.reward import is_solo, score
from pytest_trace2evolve.users.reference import DummyUser
from pytest_trace2evolve.worlds.registry import Worlds
from tests.fake_world import FakeWorld

PATH = Path("suites/alone.toml")


class Lines:
    """An agent that says its lines in order and repeats the last; keeps what it was shown."""

    name = "lines"

    def __init__(self, *lines: Message) -> None:
        self._lines = list(lines)
        self.seen: list[list[str]] = []

    async def respond(self, history: Sequence[Message]) -> Message:
        self.seen.append([message.role for message in history])
        return self._lines.pop(0) if len(self._lines) > 1 else self._lines[0]


class Answers:
    """A model that gives one completion, and keeps what it was asked."""

    def __init__(self, *names: str, content: str | None = None) -> None:
        calls = tuple(RequestedCall(id=name, name=name, arguments="{}") for name in names)
        self._completion = Completion(content=content, tool_calls=calls)
        self.asked: dict[str, Any] = {}

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSchema],
        *,
        trial: int = 0,
        tool_choice: str = "auto",
    ) -> Completion:
        self.asked = {"messages": list(messages), "tools": [one.name for one in tools], "choice": tool_choice}
        return self._completion


def alone(task: Task, world: World, agent: Agent, **limits: Any) -> Simulation:
    """One solo simulation."""
    return asyncio.run(converse(task, world, agent, DummyUser(), limits=Limits(**limits), solo=True))


def says(text: str) -> Message:
    return Message(role="assistant", content=text)


def calls(name: str, **arguments: str) -> Message:
    return Message(role="assistant", tool_calls=[ToolCall(id="c", name=name, arguments=arguments)])


def suite(*tasks: str, **fields: Any) -> Suite:
    splits = {"heldout": tasks or ("close",)}
    given = {"name": "alone", "provider": "fake", "domain": "desk", "solo": True, "splits": splits}
    return Suite.model_validate(given | fields)


def test_the_oracle_alone_earns_1_on_every_telecom_task(worlds: Worlds) -> None:
    telecom = worlds.open("inspect_evals", "telecom")
    tasks = [telecom.tasks()[name] for name in telecom.splits()["base"]]
    runs = [alone(task, telecom, OracleAgent(task, solo=True)) for task in tasks]
    assert len(runs) == 114
    assert {run.termination_reason for run in runs} == {"agent_stop"}
    assert all(is_solo(run.trace) for run in runs)
    assert [score(run, task, telecom).reward for run, task in zip(runs, tasks, strict=True)] == [1.0] * 114


def test_doing_nothing_alone_earns_0_on_every_telecom_task(worlds: Worlds) -> None:
    telecom = worlds.open("inspect_evals", "telecom")
    for name in telecom.splits()["base"]:
        task = telecom.tasks()[name]
        run = alone(task, telecom, NopAgent(solo=True))
        assert (run.termination_reason, score(run, task, telecom).reward) == ("agent_stop", 0.0), name


@pytest.mark.parametrize("before", [0, 1])
def test_a_text_that_does_not_stop_is_the_agents_error(desk: World, before: int) -> None:
    lines = [calls("restart_phone")] * before + [says("All done.")]
    run = alone(desk.tasks()["restart"], desk, Lines(*lines))
    assert (run.termination_reason, run.trace[-1].content) == ("agent_error", "All done.")
    assert score(run, desk.tasks()["restart"], desk).reward == 0.0


def test_the_prompt_is_policy_candidate_environment_ticket() -> None:
    prompt = solo_prompt("Be kind.", "Fix it.", "Be quick.", "Be brief.")
    tail = prompt[prompt.index("<policy>\n") :]
    added = "".join(
        f"<additional_instructions>\n{text}\n</additional_instructions>\n"
        for text in ("Be quick.", "Be brief.")
    )
    assert tail == f"<policy>\nBe kind.\n</policy>\n{added}<ticket>\nFix it.\n</ticket>"
    plain = solo_prompt("Be kind.", "Fix it.")
    assert "additional" not in plain
    assert plain.startswith("<instructions>\nYou are a customer service agent")
    assert "a single tool call to the `done` tool. Do not include any other" in plain


def test_the_model_must_call_a_tool_and_done_becomes_the_stop_mark(desk: World) -> None:
    model = Answers("close_ticket", "done")
    message = asyncio.run(SoloChatAgent(model, "prompt", desk.tools("assistant")).respond([]))
    assert (message.content, message.tool_calls) == ("###STOP###", None)
    assert model.asked["choice"] == "required"
    assert model.asked["tools"] == [*(one.name for one in desk.tools("assistant")), DONE_TOOL.name]
    assert model.asked["messages"] == [{"role": "system", "content": "prompt"}]


def test_the_lock_of_a_solo_suite_holds_its_policy_and_tickets() -> None:
    class Rewritten(FakeWorld):
        def tasks(self) -> Mapping[str, Task]:
            return {
                name: task.model_copy(update={"ticket": "Other."}) for name, task in super().tasks().items()
            }

    def locked(which: Suite, world: World) -> Any:
        return lock_suite(which, world, PATH, 1)

    talking, solo = suite(solo=False), suite()
    assert locked(talking, FakeWorld()) == locked(talking, Rewritten())
    before, after = locked(solo, FakeWorld()), locked(solo, Rewritten())
    assert before.policy == after.policy != locked(talking, FakeWorld()).policy
    assert before.splits != after.splits


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ({}, "has no ticket for the agent to work on"),
        ({"ticket": ""}, "has no ticket for the agent to work on"),
        ({"ticket": "x"}, "has no gold actions"),
        (
            {"ticket": "x", "initial_state": {"message_history": [{"role": "user", "content": "Hi"}]}},
            "starts in the middle of a conversation with the user",
        ),
        (
            {"ticket": "x", "initial_state": {"message_history": [{"role": "assistant", "content": "Hi"}]}},
            "starts in the middle of a conversation with the user",
        ),
    ],
)
def test_a_task_that_no_solo_agent_could_take_is_refused(task: dict[str, Any], expected: str) -> None:
    class One(FakeWorld):
        def tasks(self) -> Mapping[str, Task]:
            return {"close": Task.model_validate({"id": "close", **task})}

    with pytest.raises(SuiteError) as caught:
        suite().resolve(One(), PATH)
    assert str(caught.value) == (
        f"{PATH}: 'solo' is set, but task 'close' of split 'heldout' {expected}; "
        "remove it from the split or remove 'solo'"
    )
    assert suite(solo=False).resolve(One(), PATH) == {"heldout": ["close"]}


def origin(implementation: str, model: str | None = None, **further: Any) -> Provenance:
    user = Settings(implementation=implementation, model=model, guidelines=model)
    return Provenance(domain="desk", provider="fake", user=user, **further)


def test_solo_and_conversational_runs_are_not_compared_and_a_dummys_model_does_not_matter() -> None:
    recorded, live = origin(DUMMY_USER, "gpt-4.1", max_steps=100), origin(DUMMY_USER, max_steps=100)
    assert list(provenance_differences(recorded, live)) == []
    assert list(provenance_differences(recorded, origin(DUMMY_USER, "another", max_steps=100))) == []
    assert list(provenance_differences(recorded, origin(DUMMY_USER, max_steps=200))) == [
        "max steps 100 and 200"
    ]
    expected = list(provenance_differences(origin("user_simulator", "gpt-4.1"), live))
    assert expected == ["user implementation 'user_simulator' and 'dummy_user'"]
