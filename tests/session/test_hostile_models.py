"""Models that write anything at all: every simulation is scored and stored, none is lost."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_trace2evolve.testing import ChatRequest, ChatServer, Reply, Script
from tests.patience import HANG_SECONDS
from tests.plugin.conftest import CONFTEST, DeskProject, project
from tests.session.test_live import SCENARIOS, SECRET, SOLVED, live, traces

__all__ = ["project"]

TASKS_RUN = ("close", "note", "restart", "look", "idle", "opened", "free")
"""The tasks of suite `desk`."""

NESTED = '{"ticket_id": ' * 900 + "1" + "}" * 900


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


def called(arguments: Any, name: Any = "get_ticket", own_id: Any = "c") -> Reply:
    """A message with one call, of any types."""
    call = {"id": own_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return Reply(message={"role": "assistant", "content": None, "tool_calls": [call]})


ANSWERED = {
    "brackets": called("[" * 100_000),
    "levels": called(NESTED),
    "surrogates": called('{"ticket_id": "\\ud83d"}'),
    "raw surrogates": called('{"ticket_id": "\ud83d"}'),
    "NUL": called('{"ticket_id": "\\u0000"}'),
    "digits": called('{"ticket_id": ' + "9" * 5_000 + "}"),
    "NaN": called('{"ticket_id": NaN}'),
    "infinite": called('{"ticket_id": -1e999}'),
    "no object": called("[1, 2]"),
    "a megabyte": called(json.dumps({"ticket_id": "x" * 1_000_000})),
    "arguments as JSON": called({"ticket_id": [1.5, None]}),
    "no name": called("{}", None),
    "an empty name": called("{}", ""),
    "a strange name": called("{}", "\ud83d ../\0"),
    "no id": called("{}", own_id=None),
    "a strange id": called("{}", own_id=["\ud83d"]),
    "calls as object": Reply(message={"tool_calls": {"function": {"name": "get_ticket", "arguments": "{"}}}),
    "calls as text": Reply(message={"tool_calls": "get_ticket"}),
    "text with surrogates": Reply("Hm \ud83d \0"),
    "text of a megabyte": Reply("x. " * 300_000),
}
"""First answers after which a conversation goes on."""

SILENT = {
    "null": Reply(message={"content": None}),
    "a number": Reply(message={"content": 5}),
    "levels": Reply(message={"content": json.loads("[" * 150 + "]" * 150)}),
    "white space": Reply(" \n"),
    "nothing": Reply(message={}),
}
"""First answers that say nothing."""


def misbehaving(side: str, replies: Mapping[str, Reply]) -> Script:
    """A script in which one side's first own answer in a task is the task's reply; all others solve it."""

    def script(request: ChatRequest) -> Reply:
        is_user = "<scenario>" in request.system
        own = [one for one in request.messages if one["role"] == "assistant"]
        if is_user == (side == "user") and len(own) == (0 if is_user else 1):
            text = request.system if is_user else str(request.messages)
            return next((reply for name, reply in replies.items() if _mark(name, is_user) in text), LOST)
        return SOLVED(request)

    return script


LOST = Reply("I do not know my task.")


def _mark(name: str, is_user: bool) -> str:
    return SCENARIOS[name] if is_user else f"(task <{name}>)"


def spread(replies: Mapping[str, Reply]) -> list[dict[str, str]]:
    """Names of replies by task, as many sessions of seven tasks as that takes."""
    names = list(replies)
    starts = range(0, len(names), len(TASKS_RUN))
    return [dict(zip(TASKS_RUN, names[start : start + len(TASKS_RUN)], strict=False)) for start in starts]


def made_by_task(project: DeskProject) -> dict[str, dict[str, Any]]:
    return {str(one["task_id"]): one for one in traces(project)}


@pytest.mark.parametrize("names", spread(ANSWERED), ids=lambda names: ", ".join(names.values()))
def test_an_agents_model_that_writes_anything_is_scored(project: DeskProject, names: dict[str, str]) -> None:
    script = misbehaving("agent", {task: ANSWERED[name] for task, name in names.items()})
    with ChatServer(script) as server:
        live(project, server, "--t2e-record=tape.jsonl", "--t2e-cache")
        assert server.count.attempts == server.count.served
    made = made_by_task(project)
    assert len(made) == 7
    for task, name in names.items():
        assert made[task]["termination_reason"] == "user_stop", name
        assert made[task]["reward_info"] is not None, name
        if ANSWERED[name].message is not None:
            assert any(message.get("error") for message in made[task]["messages"]), name
    project.pytester.runpytest_inprocess("--t2e-playback=tape.jsonl", "--t2e-fresh")
    assert {task: one["termination_reason"] for task, one in made_by_task(project).items()} == {
        task: one["termination_reason"] for task, one in made.items()
    }


@pytest.mark.parametrize(("side", "reason"), [("agent", "agent_error"), ("user", "user_error")])
def test_a_message_without_anything_is_its_writers_failure(
    project: DeskProject, side: str, reason: str
) -> None:
    (names,) = spread(SILENT)
    with ChatServer(misbehaving(side, {task: SILENT[name] for task, name in names.items()})) as server:
        live(project, server)
    for task, name in names.items():
        made = made_by_task(project)[task]
        assert (made["termination_reason"], made["reward_info"]["reward"]) == (reason, 0.0), name


def test_a_users_model_that_writes_anything_loses_nothing(project: DeskProject) -> None:
    names = spread(ANSWERED)[0]
    with ChatServer(misbehaving("user", {task: ANSWERED[name] for task, name in names.items()})) as server:
        live(project, server)
    for task, name in names.items():
        assert made_by_task(project)[task]["termination_reason"] != "infrastructure_error", name


def strict(script: Script) -> Script:
    """An endpoint that takes no names of tools but plain ones, as OpenAI's."""

    def reply(request: ChatRequest) -> Reply:
        calls = [call for message in request.messages for call in message.get("tool_calls") or ()]
        if all(call["function"]["name"].isidentifier() for call in calls):
            return script(request)
        return Reply(error=(400, "Invalid 'messages[2].tool_calls[0].function.name'."))

    return reply


@pytest.mark.parametrize(("side", "reason"), [("agent", "agent_error"), ("user", "user_error")])
def test_a_name_that_the_endpoint_takes_back_from_nobody_is_its_writers(
    project: DeskProject, side: str, reason: str
) -> None:
    odd = called("{}", "no such tool")
    with ChatServer(strict(misbehaving(side, {"close": odd, "note": odd}))) as server:
        live(project, server, "suites/desk.toml::heldout::close", "suites/desk.toml::heldout::note")
    made = traces(project)
    assert {one["termination_reason"] for one in made} == {reason}
    assert all("a call of a tool named 'no such tool'" in one["info"]["error"] for one in made)  # type: ignore[index]


def small(script: Script) -> Script:
    """An endpoint behind a gateway that takes small requests only."""

    def reply(request: ChatRequest) -> Reply:
        size = sum(len(str(message.get("content"))) for message in request.messages)
        return Reply(error=(413, "Request Entity Too Large")) if size > 100_000 else script(request)

    return reply


def test_a_conversation_that_grows_too_large_no_longer_fits(project: DeskProject) -> None:
    with ChatServer(small(misbehaving("agent", {"close": ANSWERED["text of a megabyte"]}))) as server:
        live(project, server)
    assert made_by_task(project)["close"]["termination_reason"] == "context_window_exceeded"


OWN = """
import asyncio


class Hostile:
    name = "hostile"

    async def respond(self, history):
        {statement}
        return None


def pytest_t2e_agents(config):
    return {{"hostile": lambda task, world, candidate, trial: (Hostile(), GoldUser(task))}}
"""


def test_an_agent_that_leaves_a_task_behind_ends_nothing_but_its_simulations(project: DeskProject) -> None:
    statement = "asyncio.get_running_loop().call_soon(sys.exit, 3); await asyncio.sleep(0.01)"
    project.write("conftest.py", CONFTEST + "\nimport sys\n" + OWN.format(statement=statement))
    command = [sys.executable, "-m", "pytest", "--t2e-agent=hostile", "--t2e-trials=3", "--t2e-concurrency=2"]
    result = project.pytester.run(*command, timeout=HANG_SECONDS)
    assert result.ret == 1
    made = traces(project)
    assert len(made) == 21
    assert {one["termination_reason"] for one in made} == {"agent_error"}


RAISING = """
class BrokenWorld(FakeWorld):
    fingerprint = FakeWorld.fingerprint

    def open(self, *, solo=False):
        raise {raised}


def pytest_t2e_worlds(config):
    return {{"fake": BrokenWorld}}
"""


def test_a_world_that_raises_anything_leaves_nobody_waiting(project: DeskProject) -> None:
    raised = "type('OddError', (BaseException,), {})('\\ud800')"
    project.write("conftest.py", CONFTEST + RAISING.format(raised=raised))
    with ChatServer(SOLVED) as server:
        command = [sys.executable, "-m", "pytest", "--t2e-model=m", f"--t2e-base-url={server.base_url}"]
        result = project.pytester.run(*command, "--t2e-concurrency=2", timeout=HANG_SECONDS)
    result.assert_outcomes(errors=7)
