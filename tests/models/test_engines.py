"""Errors and answers of 16 engines, for agent `chat`, an own agent behind the proxy, and a judge.

The bodies have the shapes of the engines' sources, their documentation and their issues.
"""

import asyncio
import itertools
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.engine.conversation import Assignment, Limits, simulate
from pytest_trace2evolve.engine.factories import ChatFactory
from pytest_trace2evolve.engine.live import LiveSettings
from pytest_trace2evolve.errors import EndpointError, JudgeError, Trace2EvolveError
from pytest_trace2evolve.judges.chat import ChatJudge
from pytest_trace2evolve.models.api_errors import retry_after
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.models.settings import ModelSettings, Retries
from pytest_trace2evolve.project.candidates import Candidate
from pytest_trace2evolve.records.trace import Simulation
from tests.own_agents import TASK, WORLD, CountingMeter, Runner, User, calls_of, http_server

FULL, LOST, AGENT, GOOD = "context_window_exceeded", "infrastructure_error", "agent_error", "user_stop"

Answer = tuple[int, Any]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "good")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def error(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": None, "param": None, "code": None, **fields}}


def flat(message: Any, code: Any = 400, **fields: Any) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": "BadRequestError", "code": code, **fields}


def answer(message: dict[str, Any], finish_reason: str | None = "stop", usage: Any = None) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    usage = usage or {"prompt_tokens": 9, "completion_tokens": 3}
    record = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    return {**record, "usage": usage}


NO_OUTPUT = {"prompt_tokens": 4096, "completion_tokens": 0}

ENDS: dict[str, tuple[int, Any, str]] = {
    "vLLM": (
        400,
        error("This model's context length is only 4096 tokens", type="BadRequestError", code=400),
        FULL,
    ),
    "vLLM, decoder": (
        400,
        error("The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
        FULL,
    ),
    "SGLang": (
        400,
        flat("The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
        FULL,
    ),
    "TGI": (
        422,
        {
            "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096.",
            "error_type": "validation",
        },
        FULL,
    ),
    "TGI, inputs": (422, {"error": "`inputs` must have less than 4095 tokens. Given: 5000"}, FULL),
    "TGI, generation": (424, {"error": "Request failed during generation", "error_type": "generation"}, LOST),
    "TGI, overloaded": (429, {"error": "Model is overloaded", "error_type": "overloaded"}, LOST),
    "Ollama": (
        400,
        error("prompt is longer than the context length", type="invalid_request_error"),
        FULL,
    ),
    "Ollama, busy": (503, error("server busy, please try again", type="api_error"), LOST),
    "Ollama, cancelled": (499, error("request was cancelled"), LOST),
    "llama.cpp": (
        400,
        error("the request exceeds the available context size", type="exceed_context_size_error", code=400),
        FULL,
    ),
    "llama.cpp, shared cache": (
        500,
        error("Context size has been exceeded.", type="server_error", code=500),
        FULL,
    ),
    "llama.cpp, no output": (200, answer({"content": ""}, "length", NO_OUTPUT), FULL),
    "LM Studio": (400, {"error": "The number of tokens is greater than the context length."}, FULL),
    "LM Studio, n_keep": (
        200,
        {"error": "Cannot truncate prompt with n_keep (5000) >= n_ctx (4096)"},
        FULL,
    ),
    "TensorRT-LLM": (
        400,
        flat("`default_max_tokens` (-904) must be greater than 0, `default_max_tokens` (-904) = …"),
        FULL,
    ),
    "TensorRT-LLM, tokens": (
        400,
        flat("The sum of prompt length (5000) should not exceed max_num_tokens (4096)"),
        FULL,
    ),
    "TensorRT-LLM, crash": (200, None, LOST),
    "MLX-LM": (404, {"error": "Generation failed: out of memory"}, LOST),
    "MLX-LM, cut": (200, answer({"content": "The note says mi"}, "length"), GOOD),
    "LiteLLM": (400, error("litellm.ContextWindowExceededError: litellm.BadRequestError", code="400"), FULL),
    "LiteLLM, wrapped": (503, error("litellm.ServiceUnavailableError: ContextWindowExceededError: …"), FULL),
    "OpenRouter": (400, error("This endpoint's maximum context length is 4096 tokens.", code=400), FULL),
    "OpenRouter, 200": (
        200,
        error("Provider returned error", code=400, metadata={"raw": "prompt is too long: 5000 tokens"}),
        FULL,
    ),
    "OpenRouter, down": (502, error("Provider is down", code=502), LOST),
    "OpenRouter, down later": (
        200,
        {"choices": [{"index": 0, "error": {"message": "upstream", "code": 502}}]},
        LOST,
    ),
    "Gemini": (
        400,
        [error("The input token count (5000) exceeds the maximum number of tokens allowed (4096).")],
        FULL,
    ),
    "Anthropic": (400, error("prompt is too long: 5000 tokens > 4096 maximum"), FULL),
    "Anthropic, max_tokens": (400, error("input length and `max_tokens` exceed context limit: 5000"), FULL),
    "Anthropic, bytes": (413, error("Request exceeds the maximum size", type="request_too_large"), FULL),
    "Anthropic, overloaded": (529, error("Overloaded", type="overloaded_error"), LOST),
    "Bedrock": (400, error("Input is too long for requested model."), FULL),
    "Bedrock, tokens": (400, {"message": "Too many input tokens"}, FULL),
    "Bedrock, maximum": (400, {"detail": "5000 prompt tokens exceed model maximum"}, FULL),
    "Mistral": (
        400,
        flat("Prompt contains 5000 tokens, too large for model with 4096 maximum context length", "3051"),
        FULL,
    ),
    "Mistral, nested": (400, flat({"detail": [{"msg": "prompt too long", "loc": ["body"]}]}, "3051"), FULL),
    "Mistral, model_length": (200, answer({"content": "The note"}, "model_length"), FULL),
    "Mistral, error": (200, answer({"content": ""}, "error"), LOST),
    "Groq": (
        400,
        error("Please reduce the length of the messages or completion.", code="context_length_exceeded"),
        FULL,
    ),
    "Groq, plan": (
        413,
        error(
            "Request too large for model on tokens per minute (TPM): Limit 6000",
            type="tokens",
            code="rate_limit_exceeded",
        ),
        LOST,
    ),
    "Groq, capacity": (498, error("flex tier capacity exceeded", code="capacity_exceeded"), LOST),
    "Groq, call": (
        400,
        error("Failed to call a function.", code="tool_use_failed", failed_generation="<function=read"),
        AGENT,
    ),
    "DeepSeek": (400, error("This model's maximum context length is 65536 tokens."), FULL),
    "DeepSeek, overloaded": (503, error("Service is too busy"), LOST),
    "Azure": (400, error("This model's maximum context length is 4096 tokens."), FULL),
    "Azure, filtered": (200, answer({"content": None}, "content_filter"), AGENT),
    "xAI": (400, {"code": "Client error", "error": "This model's maximum prompt length is 4096"}, FULL),
    "Together": (422, error("The input is longer than the model's context length"), FULL),
    "z.ai": (200, answer({"content": "The"}, "model_context_window_exceeded"), FULL),
}
"""Status, body and end of a simulation, by engine."""


class Fake:
    """Calls a tool, and then answers as an engine: that of the row which the user or the judge names."""

    def __init__(self, rows: dict[str, Any]) -> None:
        self.rows = rows
        self.requests: list[dict[str, Any]] = []

    def __call__(self, method: str, record: Any) -> tuple[int, bytes]:
        self.requests.append(record)
        found = re.search("row <([^>]*)>", json.dumps(record["messages"], ensure_ascii=False))
        assert found is not None
        is_first = record.get("tools") and not any(one["role"] == "tool" for one in record["messages"])
        call = {"id": "a", "type": "function", "function": {"name": "read_note", "arguments": NOTE}}
        first = 200, answer({"content": None, "tool_calls": [call]}, "tool_calls")
        status, body = first if is_first else self.rows[found[1]][:2]
        return status, json.dumps(body).encode()


NOTE = '{"note_id": "N1"}'

BOT = """
import json
import openai

def make(tools, candidate):
    by_name = {tool.__name__: tool for tool in tools}
    client = openai.OpenAI(max_retries=1)
    schemas = [tool.schema for tool in tools]

    def run(message):
        messages = [{"role": "user", "content": message}]
        while True:
            answer = client.chat.completions.create(model="m", messages=messages, tools=schemas)
            reply = answer.choices[0].message
            messages.append(reply.model_dump(exclude_none=True))
            if not reply.tool_calls:
                return reply.content
            for call in reply.tool_calls:
                result = by_name[call.function.name](**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    return run
"""


async def simulate_chat(url: str, rows: Iterable[str]) -> dict[str, Simulation]:
    """One simulation of agent `chat` for each row; all of them share the model."""
    closers: list[Any] = []
    model = ModelSettings(
        "m", base_url=url.removesuffix("/chat"), retries=Retries(attempts=2, first_pause=0.001), timeout=120
    )
    factory = ChatFactory(LiveSettings(agent=model, user=model), closers.append, CountingMeter())

    async def one(name: str) -> Simulation:
        def make(*arguments: Any) -> Any:
            return factory(*arguments)[0], User([f"row <{name}>"])

        return await simulate(Assignment(TASK, WORLD, make, Candidate(id="v0"), 0, Limits(max_steps=20)))

    try:
        return {name: await one(name) for name in rows}
    finally:
        for closer in closers:
            await closer()


class Agent:
    """An agent over HTTP, which asks its model through the proxy and answers 500 if the model fails."""

    def __init__(self) -> None:
        self.histories: dict[str, list[dict[str, Any]]] = {}
        self.urls: dict[str, str] = {}

    def __call__(self, method: str, record: Any) -> tuple[int, bytes]:
        if record is None or record.get("end"):
            return 200, b"{}"
        session = record["session"]
        history = self.histories.setdefault(session, [])
        if "model_api" in record:
            self.urls[session] = record["model_api"]["base_url"] + "/chat/completions"
        for result in record.get("results", ()):
            history.append({"role": "tool", "tool_call_id": result["id"], "content": result["content"]})
        if "message" in record:
            history.append({"role": "user", "content": record["message"]})
        body = {"model": "m", "messages": history, "tools": [{"type": "function"}]}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.urls[session], json.dumps(body).encode())
            ) as response:
                message = json.load(response)["choices"][0]["message"]
        except urllib.error.HTTPError as failure:
            return 500, failure.read()
        history.append(message)
        calls = [{"id": one["id"], **one["function"]} for one in message.get("tool_calls") or ()]
        return 200, json.dumps({"calls": calls} if calls else {"reply": message["content"]}).encode()


async def simulate_own(path: str, url: str, folder: Path, rows: Iterable[str]) -> dict[str, Simulation]:
    """One simulation of an own agent for each row, behind one proxy."""
    (folder / "bot.py").write_text(BOT)
    runner = Runner(path, folder, url.removesuffix("/chat"))
    done = {}
    try:
        for number, name in enumerate(rows):
            runner.messages = [f"row <{name}>"]
            done[name] = await runner.simulate(number)
    finally:
        await runner.close()
    return done


def ends(done: dict[str, Simulation]) -> dict[str, str]:
    return {name: one.termination_reason for name, one in done.items()}


EXPECTED = {name: end for name, (_, _, end) in ENDS.items()}


def test_chat_ends_as_the_engine_means_it() -> None:
    with http_server(Fake(ENDS)) as url:
        done = asyncio.run(simulate_chat(url, ENDS))
    assert ends(done) == EXPECTED
    assert all("\n" not in one.error_text for one in done.values())
    assert "nor a tool call (finish reason 'tool_use_failed')" in done["Groq, call"].error_text
    assert "nor a tool call (finish reason 'content_filter')" in done["Azure, filtered"].error_text
    assert "longer than the maximum model length" in done["vLLM, decoder"].error_text
    assert "Generation failed: out of memory" in done["MLX-LM"].error_text


def test_an_own_agent_over_http_ends_as_the_engine_means_it(tmp_path: Path) -> None:
    with http_server(Fake(ENDS)) as url, http_server(Agent()) as agent:
        done = asyncio.run(simulate_own(agent, url, tmp_path, ENDS))
    assert ends(done) == EXPECTED, {name: one.error_text for name, one in done.items()}
    assert "does not fit its model: 400: " in done["vLLM"].error_text


def test_an_own_function_ends_as_the_engine_means_it(tmp_path: Path) -> None:
    rows = ("vLLM", "Mistral, model_length", "Ollama, busy", "Groq, call", "MLX-LM, cut")
    with http_server(Fake(ENDS)) as url:
        done = asyncio.run(simulate_own("bot:make", url, tmp_path, rows))
    assert ends(done) == {name: EXPECTED[name] for name in rows}, {
        name: one.error_text for name, one in done.items()
    }


SAID = {
    FULL: "the conversation does not fit judge 'm': ",
    LOST: "judge 'm' did not answer: ",
    AGENT: "judge 'm' gave an answer that does not match its schema: ",
    GOOD: "judge 'm' gave an answer that does not match its schema: ",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_judge_says_in_one_line_what_the_engine_means(name: str) -> None:
    status, _, end = ENDS[name]
    with http_server(Fake(ENDS)) as url:
        judge = ChatJudge("m", base_url=url.removesuffix("/chat"), api_key="key")
        with pytest.raises(JudgeError) as caught:
            judge.judge([f"row <{name}>"], [])
    # The judge asks for the first time, so an unknown model is the likelier cause.
    assert str(caught.value).startswith(SAID[end] if status != 404 else "judge 'm' did not answer: ")
    assert "\n" not in str(caught.value)


FIRST = {
    "an unknown model": (404, error("The model does not exist"), EndpointError, "check the model's name"),
    "no tools": (400, error("does not support tools"), EndpointError, "unknown error of the endpoint: 400 "),
    "no endpoint": (404, error("No endpoints found that support tool use"), EndpointError, "404 No endp"),
    "a filter": (400, error("filtered", code="content_filter"), Trace2EvolveError, "400 filtered"),
    "a malformed body": (400, {"detail": [{"msg": "Input should be x", "loc": []}]}, EndpointError, "should"),
    "no money": (402, error("Insufficient credits"), EndpointError, "402 Insufficient credits; check OPENAI"),
    "a page": (403, "<html>context size limit</html>", EndpointError, "403 <html>"),
}


@pytest.mark.parametrize("name", FIRST)
def test_an_error_before_the_first_answer_ends_the_run_unless_it_is_about_content(name: str) -> None:
    status, body, kind, words = FIRST[name]
    with (
        http_server(
            lambda *_: (status, body.encode() if isinstance(body, str) else json.dumps(body).encode())
        ) as url,
        pytest.raises(kind) as caught,
    ):
        ask(url)
    assert words in str(caught.value)
    assert isinstance(caught.value, EndpointError) == (kind is EndpointError)


def ask(url: str, attempts: int = 2) -> None:
    async def complete() -> None:
        retries = Retries(attempts=attempts, first_pause=0.001)
        model = ChatModel(ModelSettings("m", base_url=url.removesuffix("/chat"), retries=retries))
        try:
            await model.complete([{"role": "user", "content": "?"}], WORLD.tools("assistant"))
        finally:
            await model.close()

    asyncio.run(complete())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["error", "message", "detail", "code", "type", "choices", "metadata", "raw", "msg"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)

current: list[tuple[int, bytes]] = [(500, b"")]


@pytest.fixture(scope="module")
def endpoint() -> Any:
    with http_server(lambda *_: current[-1]) as url:
        yield url


@given(
    st.sampled_from([200, 400, 401, 403, 404, 413, 422, 429, 498, 500, 501, 529]),
    JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40) | st.text().map(str.encode),
)
@example(400, "\N{NEXT LINE}".encode())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_error_is_one_line(endpoint: str, status: int, body: bytes) -> None:
    current.append((status, body))
    with pytest.raises(Trace2EvolveError) as caught:
        ask(endpoint, attempts=1)
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    assert len(line) < 700


def test_a_date_says_how_long_to_wait() -> None:
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) < -1e6  # type: ignore[operator]
    assert retry_after({"retry-after": "Wed, 21 Oct 2999 07:28:00 GMT"}) > 1e9  # type: ignore[operator]
    assert retry_after({"retry-after": "2"}) == 2.0
    assert retry_after({"retry-after": "soon"}) is None


# ---- calls, ids and history

CALLS = [("read_note", {"note_id": "N1"}), ("write_note", {"note_id": "N2", "text": "a"})]


def called(turn_number: int, call_id: Any, **fields: Any) -> dict[str, Any]:
    name, arguments = CALLS[turn_number]
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function, **fields}


def turn(*calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"content": None, "tool_calls": list(calls), **fields}


@dataclass(frozen=True)
class Talk:
    """Two turns with a call each. `check` returns the engine's complaint about a request's history."""

    turns: tuple[dict[str, Any], dict[str, Any]]
    finish_reason: str = "tool_calls"
    check: Callable[[list[dict[str, Any]]], str] = lambda messages: ""


def require(name: str, get: Callable[[dict[str, Any]], Any]) -> Callable[[list[dict[str, Any]]], str]:
    def check(messages: list[dict[str, Any]]) -> str:
        turns = [message for message in messages if message.get("tool_calls")]
        values = [get(message) for message in turns]
        return "" if values == [f"{name} {n}" for n in range(len(turns))] else f"{name} is missing: {values}"

    return check


def require_nine(messages: list[dict[str, Any]]) -> str:
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    return "" if all(re.fullmatch("[A-Za-z0-9]{9}", one) for one in ids) else f"Tool call id was {ids}"


def refuse_unknown(messages: list[dict[str, Any]]) -> str:
    known = {"role", "content", "tool_calls", "tool_call_id"}
    extra = [name for message in messages for name in message if name not in known]
    return f"Extra inputs are not permitted: {extra}" if extra else ""


SIGNED: dict[str, Any] = {"google": {}}


def signed(n: int) -> dict[str, Any]:
    return called(n, f"g{n}", extra_content={"google": {"thought_signature": f"signature {n}"}})


TALKS = {
    "vLLM": Talk((turn(called(0, "chatcmpl-tool-1"), content=""), turn(called(1, "chatcmpl-tool-2")))),
    "vLLM, named choice": Talk((turn(called(0, "a")), turn(called(1, "b"))), "stop"),
    "vLLM, Kimi": Talk((turn(called(0, "functions.read_note:0")), turn(called(1, "functions.write_note:0")))),
    "SGLang": Talk(
        (turn(called(0, "call_" + 24 * "a"), reasoning_content="x"), turn(called(1, "call_" + 24 * "b")))
    ),
    "TGI": Talk(({"tool_calls": [called(0, "0")]}, {"tool_calls": [called(1, "0")]}), "stop"),
    "Ollama": Talk((turn(called(0, "call_1"), content=""), turn(called(1, "call_1"), reasoning="y"))),
    "llama.cpp": Talk((turn(called(0, 32 * "a")), turn(called(1, 32 * "b")))),
    "LM Studio": Talk((turn(called(0, "")), turn(called(1, None)))),
    "TensorRT-LLM": Talk((turn(called(0, "a")), turn(called(1, "a"))), "stop"),
    "MLX-LM": Talk((turn(called(0, "uuid-1")), turn(called(1, "uuid-2")))),
    "LiteLLM": Talk((turn(called(0, "a"), function_call=None), turn(called(1, "b"), refusal=None))),
    "OpenRouter": Talk(
        tuple(  # type: ignore[arg-type]
            turn(called(n, f"o{n}"), reasoning="r", reasoning_details=[{"type": "x", "data": f"details {n}"}])
            for n in range(2)
        ),
        check=require("details", lambda one: one.get("reasoning_details", [{}])[0].get("data")),
    ),
    "Gemini": Talk(
        (turn(signed(0)), turn(signed(1))),
        check=require(
            "signature",
            lambda one: (
                one["tool_calls"][0].get("extra_content", {}).get("google", {}).get("thought_signature")
            ),
        ),
    ),
    "Mistral": Talk(
        (turn(called(0, "abcdef012", index=0)), turn(called(1, "abcdef012", index=0))), check=require_nine
    ),
    "Mistral without ids": Talk((turn(called(0, "")), turn(called(1, ""))), check=require_nine),
    "Groq": Talk((turn(called(0, "call_x"), reasoning="z"), turn(called(1, "call_y")))),
    "DeepSeek": Talk(
        tuple(  # type: ignore[arg-type]
            turn(called(n, f"d{n}"), reasoning_content=f"thought {n}") for n in range(2)
        ),
        check=require("thought", lambda one: one.get("reasoning_content")),
    ),
    "an endpoint that refuses unknown fields": Talk(
        (turn(called(0, "a"), reasoning_content="x"), turn(called(1, "b"), reasoning_content="y")),
        check=refuse_unknown,
    ),
    "arguments as object": Talk(
        (
            turn({"id": "a", "function": {"name": "read_note", "arguments": {"note_id": "N1"}}}),
            turn({"function": {"name": "write_note", "arguments": {"note_id": "N2", "text": "a"}}}),
        )
    ),
}


class Talking:
    """Plays the talk that the user names, and checks the ids and the history of every request."""

    def __init__(self) -> None:
        self.complaints: list[str] = []

    def __call__(self, method: str, record: Any) -> tuple[int, bytes]:
        messages = record["messages"]
        found = re.search("row <([^>]*)>", json.dumps(messages))
        assert found is not None
        talk = TALKS[found[1]]
        for previous, message in itertools.pairwise(messages):
            if message["role"] == "tool":
                assert [call["id"] for call in previous["tool_calls"]] == [message["tool_call_id"]]
        if complaint := talk.check(messages):
            self.complaints.append(complaint)
            return 400, json.dumps(error(complaint, type="invalid_request_error")).encode()
        n_turns = sum(bool(message.get("tool_calls")) for message in messages)
        if n_turns == len(talk.turns):
            return 200, json.dumps(answer({"content": "All is done."}, "stop")).encode()
        return 200, json.dumps(answer(talk.turns[n_turns], talk.finish_reason)).encode()


def test_chat_holds_two_tool_turns_with_every_engine() -> None:
    fake = Talking()
    with http_server(fake) as url:
        done = asyncio.run(simulate_chat(url, TALKS))
    assert ends(done) == dict.fromkeys(TALKS, GOOD), {name: one.error_text for name, one in done.items()}
    for name, one in done.items():
        assert calls_of(one) == CALLS, name
        ids = [call.id for message in one.trace for call in message.tool_calls or ()]
        assert len(set(ids)) == 2, name
        assert [message.id for message in one.trace if message.role == "tool"] == ids, name
    # One refusal for the whole run: the second turn already leaves the fields out.
    assert fake.complaints == ["Extra inputs are not permitted: ['reasoning_content']"]
    kept = [message.model_extra or {} for message in done["DeepSeek"].trace if message.tool_calls]
    assert [one["provider_fields"] for one in kept] == [
        {"reasoning_content": "thought 0"},
        {"reasoning_content": "thought 1"},
    ]
