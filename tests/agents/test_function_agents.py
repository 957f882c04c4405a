"""Agents in one function, in real child processes: what they get, what they may do, and how they end."""

import os
from pathlib import Path

import pytest

from pytest_trace2evolve.records.completion import usage_of
from tests.own_agents import (
    EXPECTED_CALLS,
    Runner,
    calls_of,
    chat_server,
    texts_of,
)

BOT = """
import asyncio, contextvars, json, os, threading, types

made = 0

def plain(tools, candidate):
    tools = {tool.__name__: tool for tool in tools}
    def run(message):
        if "N1" in message:
            return "It says " + tools["read_note"]("N1")
        return tools["write_note"](note_id="N2", text=candidate.prompt, kind=None)
    return run

class Coroutine:
    def __init__(self, tools):
        self.tools = {tool.__name__: tool for tool in tools}
        self.messages = []
        self.lock = asyncio.Lock()
    async def run(self, message):
        async with self.lock:
            self.messages.append(message)
            return f"{len(self.messages)} {await asyncio.to_thread(self.tools['read_note'], 'N1')}"
    async def close(self):
        await asyncio.sleep(0)

async def coroutine(tools, candidate):
    global made
    made += 1
    agent = Coroutine(tools)
    agent.messages = ["x"] * (100 * made + candidate.trial)
    return agent

def gathered(tools, candidate):
    read = tools[0]
    async def run(message):
        many = await asyncio.gather(*(asyncio.to_thread(read, f"N{n % 2 + 1}") for n in range(12)))
        return "|".join(many)
    return run

def threaded(tools, candidate):
    def run(message):
        found = {}
        def work(n):
            found[n] = tools[1](note_id=f"T{n}", text=str(n))
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        return " ".join(found[n] for n in range(8))
    return run

def shown(tools, candidate):
    def run(message):
        import inspect
        return json.dumps({
            "tools": {t.__name__: [t.__doc__, str(inspect.signature(t)), t.parameters] for t in tools},
            "candidate": [candidate.id, candidate.prompt, candidate.instruction, candidate.model,
                          dict(candidate.parameters), candidate.trial],
            "key": os.environ["OPENAI_API_KEY"], "secret": os.environ.get("T2E_SECRET_KEY"),
            "cwd": os.getcwd(), "stdin": len(os.read(0, 10)),
        })
    return run

def early(tools, candidate):
    first = tools[0]("N1")
    return lambda message: first

def wrong(tools, candidate):
    def run(message):
        return " / ".join([tools[0](), tools[0](note_id=3), tools[0](note_id="N1", more=1),
                           tools[1]("N3", "x", copies="many")])
    return run

def continued(tools, candidate, history=()):
    return lambda message: f"{len(history)} {history[-1]['content']} {message}" if history else message

class Pregel:
    # A graph of LangGraph with a checkpointer, which keeps a conversation for each thread.
    checkpointer = True
    threads = {}
    async def ainvoke(self, state, config):
        messages = self.threads.setdefault(config["configurable"]["thread_id"], [])
        messages += state["messages"]
        return {"messages": [types.SimpleNamespace(content=str(len(messages)))]}

Pregel.__module__ = "langgraph.pregel"
shared_graph = Pregel()

def graph(tools, candidate):
    return shared_graph

variable = contextvars.ContextVar("variable", default=0)

def counting(tools, candidate):
    variable.set(variable.get() + 1)
    def run(message):
        variable.set(variable.get() + 1)
        return str(variable.get())
    return run

async def counting_later(tools, candidate):
    run = counting(tools, candidate)
    async def run_later(message):
        return run(message)
    return run_later

def model(tools, candidate):
    from openai import OpenAI
    client = OpenAI()
    messages = [{"role": "system", "content": candidate.prompt}]
    schemas = [{"type": "function", "function": {"name": t.__name__, "description": t.__doc__,
                "parameters": t.parameters}} for t in tools]
    by_name = {tool.__name__: tool for tool in tools}
    def run(message):
        messages.append({"role": "user", "content": message})
        while True:
            answer = client.chat.completions.create(
                model=candidate.model, messages=messages, tools=schemas, **candidate.parameters)
            reply = answer.choices[0].message
            messages.append(reply.model_dump(exclude_none=True))
            if not reply.tool_calls:
                return reply.content
            for call in reply.tool_calls:
                result = by_name[call.function.name](**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return run
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bots")
    (folder / "bot.py").write_text(BOT, encoding="utf-8")
    return folder


def test_a_callable_works_with_tools_and_the_prompt(folder: Path) -> None:
    first, second = Runner("bot:plain", folder).run(2)
    assert calls_of(first) == [
        ("read_note", {"note_id": "N1"}),
        ("write_note", {"note_id": "N2", "text": "Keep the notes tidy.\n\nBe brief."}),
    ]
    assert texts_of(first) == ["It says milk", "N2 is written."]
    assert first.termination_reason == second.termination_reason == "user_stop"


def test_an_asynchronous_agent_keeps_one_loop_and_one_process(folder: Path) -> None:
    simulations = Runner("bot:coroutine", folder).run(2)
    assert [texts_of(done) for done in simulations] == [["101 milk", "102 milk"], ["202 milk", "203 milk"]]


@pytest.mark.parametrize(
    ("name", "texts"), [("graph", ["1", "2"]), ("counting", ["2", "3"]), ("counting_later", ["2", "3"])]
)
def test_a_simulation_begins_without_the_state_of_an_earlier_one(
    folder: Path, name: str, texts: list[str]
) -> None:
    """Threads of a shared graph of LangGraph, and context variables."""
    simulations = Runner(f"bot:{name}", folder).run(2)
    assert [texts_of(done) for done in simulations] == [texts, texts]


def test_an_agent_sees_schemas_and_the_candidate_but_no_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    monkeypatch.setenv("OPENAI_API_KEY", "sk-real-key-of-mine")
    runner = Runner("bot:shown", folder, messages=["Go."], parameters={"temperature": 0.5})
    (done,) = runner.run()
    seen = json.loads(texts_of(done)[0])
    doc, signature, parameters = seen["tools"]["write_note"]
    assert doc.startswith("Write a note, or replace it.\n\nArgs:\n    note_id: The id of the note.\n")
    assert signature.startswith("(note_id: str, text: str, kind: ")
    assert parameters["required"] == ["note_id", "text"]
    assert seen["candidate"] == [
        "v0", "Keep the notes tidy.\n\nBe brief.", "Be brief.", "gpt-test", {"temperature": 0.5}, 0
    ]  # fmt: skip
    assert seen["key"] == "key-of-the-proxy"
    assert Path(seen["cwd"]) == folder
    assert seen["stdin"] == 0


def test_usage_and_cost_equal_those_of_the_server(folder: Path) -> None:
    from pytest_trace2evolve.models.prices import Price

    with chat_server() as server:
        runner = Runner(
            "bot:model",
            folder,
            server.base_url,
            prices={"gpt-test": Price(input=1.0, output=2.0)},
            parameters={"temperature": 0.25, "extra_body": {"top_k": 3}},
        )
        (done,) = runner.run()
        assert calls_of(done) == EXPECTED_CALLS
        assert {request["temperature"] for request in server.requests} == {0.25}
        assert {request["top_k"] for request in server.requests} == {3}
        count = server.count
    used = usage_of(done.trace, "assistant")
    cost = (count.prompt_tokens + 2 * count.completion_tokens) / 1e6
    assert (runner.meter.usage.calls, used.prompt_tokens, used.completion_tokens) == (
        count.served,
        count.prompt_tokens,
        count.completion_tokens,
    )
    assert runner.meter.usage.tokens == used.tokens
    assert used.cost == pytest.approx(cost)
    assert done.agent_cost == pytest.approx(cost)
    assert runner.meter.n_admitted == count.served == 4


def test_no_process_is_left(folder: Path) -> None:
    runner = Runner("bot:plain", folder)
    pids: list[int] = []

    class Watched(dict[str, str]):
        pass

    real = runner.factory._backend._start  # type: ignore[attr-defined]

    async def start() -> object:
        child = await real()
        pids.append(child._transport.get_pid())
        return child

    runner.factory._backend._start = start  # type: ignore[attr-defined]
    runner.run()
    assert len(pids) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
