"""Agents of pydantic-ai, LangGraph and the OpenAI Agents SDK: real libraries, and a scripted endpoint.

All agents run at the same time, once, before the first test.
"""

import asyncio
import importlib.util
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.evidence.journal import Journal
from pytest_trace2evolve.models.prices import Price
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.records.completion import Answer, usage_of
from pytest_trace2evolve.records.trace import Simulation
from pytest_trace2evolve.testing import ChatServer
from tests.own_agents import EXPECTED_CALLS, WORLD, Runner, calls_of, script, texts_of

BOTS = {
    "pydantic_ai": """
from pydantic_ai import Agent, ModelSettings
from pydantic_ai.models.openai import OpenAIChatModel

def make(tools, candidate):
    return Agent(OpenAIChatModel(candidate.model), instructions=candidate.prompt, tools=tools,
                 model_settings=ModelSettings(**candidate.parameters))

def stream(tools, candidate):
    agent = make(tools, candidate)
    messages = []
    async def run(message):
        async with agent.run_stream(message, message_history=messages) as result:
            text = "".join([part async for part in result.stream_text(delta=True)])
        messages[:] = result.all_messages()
        return text
    return run

def blocking(tools, candidate):
    agent = make(tools, candidate)
    messages = []
    def run(message):
        result = agent.run_sync(message, message_history=messages)
        messages[:] = result.all_messages()
        return result.output
    return run
""",
    "langgraph": """
import warnings
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent

warnings.simplefilter("ignore")

def make(tools, candidate, **options):
    model = ChatOpenAI(model=candidate.model, **candidate.parameters)
    return create_react_agent(model, tools, prompt=candidate.prompt, **options)

def saver(tools, candidate):
    return make(tools, candidate, checkpointer=InMemorySaver())

def stream(tools, candidate):
    graph = saver(tools, candidate)
    async def run(message):
        config = {"configurable": {"thread_id": "1"}}
        text = ""
        async for chunk, data in graph.astream({"messages": [HumanMessage(message)]}, config,
                                               stream_mode="messages"):
            if data["langgraph_node"] == "agent":
                text += chunk.text if isinstance(chunk.text, str) else chunk.text()
        return text
    return run
""",
    "openai_agents": """
from agents import Agent, ModelSettings, Runner, function_tool, set_default_openai_api

set_default_openai_api("chat_completions")

def make(tools, candidate):
    return Agent("bot", instructions=candidate.prompt, model=candidate.model,
                 tools=[function_tool(tool, strict_mode=False) for tool in tools],
                 model_settings=ModelSettings(**candidate.parameters))

def stream(tools, candidate):
    agent = make(tools, candidate)
    items = []
    async def run(message):
        result = Runner.run_streamed(agent, [*items, {"role": "user", "content": message}])
        async for _ in result.stream_events():
            pass
        items[:] = result.to_input_list()
        return result.final_output
    return run
""",
}

CHOOSE = """
def choose(tools, candidate):
    return globals()[candidate.id](tools, candidate)
"""

MODULES = {"pydantic_ai": "pydantic_ai", "langgraph": "langchain_openai", "openai_agents": "agents"}
"""The module without which a framework's tests are skipped."""

AGENTS = [
    f"{framework}:{name}"
    for framework, text in BOTS.items()
    for name in ("make", "stream", "blocking", "saver")
    if f"def {name}(" in text
]


@dataclass
class Result:
    """The simulations of an agent, and what its endpoint saw.

    Attributes:
        tokens: The tokens of prompts and completions that the endpoint counted in the first simulation.
        requests: The requests of the first simulation.
        played: A simulation with the recorded answers of the first.
        n_played: The number of requests of the played simulation.
        resumed: A simulation that begins with half of the journal of the first.
        n_resumed: The number of requests of the resumed simulation.
    """

    simulation: Simulation
    tokens: tuple[int, int]
    requests: list[dict[str, Any]]
    played: Simulation
    n_played: int
    resumed: Simulation
    n_resumed: int


@dataclass
class Store:
    """A store of answers in memory."""

    answers: dict[str, Answer] = field(default_factory=dict)

    async def get(self, key: str) -> Answer | None:
        return self.answers.get(key)

    async def put(self, key: str, answer: Answer) -> Answer:
        return self.answers.setdefault(key, answer)


def is_installed(framework: str) -> bool:
    return importlib.util.find_spec(MODULES[framework]) is not None


async def run(framework: str, folder: Path) -> dict[str, Result]:
    """Run all agents of a framework in one process, which imports the framework once."""
    store = Store()
    with ChatServer(script) as server:
        runner = Runner(
            f"{framework}_bot:choose",
            folder,
            server.base_url,
            prices={"gpt-test": Price(input=1.0, output=2.0)},
            parameters={"temperature": 0.25},
            options={"record": store},
        )
        try:
            return {
                agent: await run_agent(agent, runner, server, store, folder / f"{agent}.journal")
                for agent in AGENTS
                if agent.startswith(framework)
            }
        finally:
            await runner.close()


async def run_agent(agent: str, runner: Runner, server: ChatServer, store: Store, path: Path) -> Result:
    proxy = runner.factory._backend._proxy  # type: ignore[attr-defined]
    runner.candidate = Candidate(id=agent.partition(":")[2], instruction="Be brief.")
    store.answers.clear()
    proxy._record, proxy._played = store, None
    before, n_before = replace(server.count), len(server.requests)
    with Journal(path, must_exist=False, remedy="") as journal:
        simulation = await runner.simulate(journal=journal)
    count, requests = replace(server.count), server.requests[n_before:]
    proxy._record = None
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) // 2]), encoding="utf-8")
    with Journal(path, must_exist=True, remedy="") as journal:
        resumed = await runner.simulate(journal=journal)
    n_resumed = len(server.requests) - n_before - len(requests)
    proxy._played = store.answers
    played = await runner.simulate()
    tokens = (count.prompt_tokens - before.prompt_tokens, count.completion_tokens - before.completion_tokens)
    n_played = len(server.requests) - n_before - len(requests) - n_resumed
    return Result(simulation, tokens, requests, played, n_played, resumed, n_resumed)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    folder = tmp_path_factory.mktemp("frameworks")
    for name, text in BOTS.items():
        (folder / f"{name}_bot.py").write_text(text + CHOOSE, encoding="utf-8")

    async def run_all() -> dict[str, Result]:
        frameworks = [name for name in BOTS if is_installed(name)]
        found = await asyncio.gather(*(run(name, folder) for name in frameworks))
        return {agent: result for results in found for agent, result in results.items()}

    return asyncio.run(run_all())


@pytest.fixture(params=AGENTS)
def result(request: pytest.FixtureRequest, results: dict[str, Result]) -> Result:
    if request.param not in results:
        pytest.skip(f"{request.param.partition(':')[0]} is not installed (dependency group 'agents')")
    return results[request.param]


def test_an_agent_solves_its_task_and_remembers_the_conversation(result: Result) -> None:
    done = result.simulation
    assert done.termination_reason == "user_stop", done.error_text
    assert calls_of(done) == EXPECTED_CALLS
    assert texts_of(done) == ["The notebook says: milk", "The notebook says: N2 is written."]


def test_tool_schemas_and_the_candidate_arrive(result: Result) -> None:
    for request in result.requests:
        assert request["model"] == "gpt-test"
        assert request["temperature"] == 0.25
        assert "Keep the notes tidy.\n\nBe brief." in json.dumps(request["messages"][0]).replace("\\n", "\n")
        sent = {tool["function"]["name"]: tool["function"] for tool in request["tools"]}
        for tool in WORLD.tools("assistant"):
            function = sent[tool.name]
            assert function["description"].startswith(tool.description)
            parameters, expected = function["parameters"], tool.parameters
            assert set(parameters["properties"]) == set(expected["properties"])
            assert set(expected.get("required", ())) == set(parameters.get("required", ()))
        kind = json.dumps(sent["write_note"]["parameters"]["properties"]["kind"])
        assert '"memo"' in kind
        assert '"task"' in kind
        text = json.dumps(sent["write_note"])
        assert "Words that find the note." in text
        assert '"integer"' in text


def test_usage_and_cost_equal_those_of_the_server(result: Result) -> None:
    used = usage_of(result.simulation.trace, "assistant")
    prompt, completion = result.tokens
    assert (used.prompt_tokens, used.completion_tokens) == (prompt, completion)
    assert used.cost == pytest.approx((prompt + 2 * completion) / 1e6)


def test_a_recorded_run_is_played_back(result: Result) -> None:
    assert calls_of(result.played) == EXPECTED_CALLS, result.played.error_text
    assert texts_of(result.played) == texts_of(result.simulation)
    assert result.n_played == 0
    assert usage_of(result.played.trace, "assistant") == usage_of(result.simulation.trace, "assistant")


def test_a_resumed_simulation_pays_for_the_rest(result: Result) -> None:
    assert texts_of(result.resumed) == texts_of(result.simulation)
    assert result.n_resumed == 2
    assert "redrawn" not in result.resumed.model_dump_json()
