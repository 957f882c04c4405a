"""The recording proxy: what it forwards, counts, stores, replays and rejects, without an agent's process."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from pytest_trace2evolve.engine.conversation import declare_nothing
from pytest_trace2evolve.engine.proxied_answers import usage_of_answer
from pytest_trace2evolve.engine.proxy import Exchange, RecordingProxy
from pytest_trace2evolve.errors import BudgetError, EndpointError, StorageError
from pytest_trace2evolve.evidence.journal import Journal
from pytest_trace2evolve.models.prices import Price
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.records.completion import Answer
from pytest_trace2evolve.testing import ChatRequest, ChatServer, Fault, FaultPlan, Reply
from tests.own_agents import CountingMeter, http_server


def echo(request: ChatRequest) -> Reply:
    return Reply(f"You said {request.messages[-1]['content']}.")


class Store:
    """A store of answers in memory."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}

    async def get(self, key: str) -> Answer | None:
        return self.answers.get(key)

    async def put(self, key: str, answer: Answer) -> Answer:
        return self.answers.setdefault(key, answer)


class Proxy:
    """A proxy in front of an endpoint, and a client of one simulation."""

    def __init__(self, base_url: str, meter: CountingMeter | None = None, **options: Any) -> None:
        self.meter = meter or CountingMeter()
        timeout = options.pop("timeout", 30.0)
        settings = ModelSettings(
            model="", base_url=base_url, timeout=timeout, weights=options.pop("weights", None)
        )
        self.proxy = RecordingProxy(settings, options.pop("prices", {}), self.meter, **options)

    async def ask(self, exchange: Exchange, *texts: str, **options: Any) -> list[Any]:
        """Send requests at the same time; returns texts, or the errors that were raised."""
        async with self.client(exchange) as client:
            calls = (
                client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": text}], **options
                )
                for text in texts
            )
            answers = await asyncio.gather(*calls, return_exceptions=True)
        return [
            answer if isinstance(answer, Exception) else answer.choices[0].message.content
            for answer in answers
        ]

    def client(self, exchange: Exchange) -> openai.AsyncOpenAI:
        self.token = self.proxy.new_token()
        self.proxy.attach(self.token, exchange)
        return openai.AsyncOpenAI(
            base_url=self.proxy.base_url(self.token), api_key="none", max_retries=0, timeout=60
        )


def exchange(journal: Any = None, **options: Any) -> Exchange:
    return Exchange(0, journal, declare_nothing, **options)


def run(proxy: Proxy, steps: Callable[[], Awaitable[Any]]) -> Any:
    async def opened() -> Any:
        await proxy.proxy.open()
        try:
            return await steps()
        finally:
            await proxy.proxy.close()

    return asyncio.run(opened())


def test_answers_are_counted_and_priced() -> None:
    with ChatServer(echo) as server:
        proxy = Proxy(server.base_url, prices={"m": Price(input=1.0, output=2.0)})
        simulation = exchange()
        assert run(proxy, lambda: proxy.ask(simulation, "a", "b")) == ["You said a.", "You said b."]
        count = server.count
    usage, seconds, is_cached = simulation.take_usage()
    assert (usage.calls, usage.prompt_tokens) == (2, count.prompt_tokens)
    assert usage.cost == pytest.approx((count.prompt_tokens + 2 * count.completion_tokens) / 1e6)
    assert usage == proxy.meter.usage
    assert seconds is not None
    assert seconds > 0
    assert not is_cached
    assert simulation.take_usage()[0].calls == 0


def test_a_stream_is_counted_although_the_agent_asks_for_no_usage() -> None:
    with ChatServer(echo) as server:
        proxy = Proxy(server.base_url)
        simulation = exchange()

        async def stream() -> list[Any]:
            async with proxy.client(simulation) as client:
                events = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "a b"}], stream=True
                )
                return [event async for event in events]

        events = run(proxy, stream)
        count = server.count
    assert "".join(event.choices[0].delta.content or "" for event in events) == "You said a b."
    assert simulation.usage.prompt_tokens == count.prompt_tokens > 0


USAGES = {
    "chat": ("application/json", {"usage": {"prompt_tokens": 5, "completion_tokens": 2}}, (5, 2, 0)),
    "responses": (
        "application/json",
        {"usage": {"input_tokens": 7, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}}},
        (7, 3, 4),
    ),
    "no usage": ("application/json", {"choices": []}, (0, 0, 0)),
    "odd usage": ("application/json", {"usage": {"prompt_tokens": -1, "completion_tokens": "x"}}, (0, 0, 0)),
    "a list": ("application/json", [1], (0, 0, 0)),
}


@pytest.mark.parametrize(("kind", "record", "expected"), USAGES.values(), ids=USAGES)
def test_usage_of_an_answer(kind: str, record: Any, expected: tuple[int, int, int]) -> None:
    usage = usage_of_answer(kind, json.dumps(record).encode())
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == expected
    assert usage.calls == 1


# ---- the journal


def test_requests_at_the_same_time_resume_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "journal"

    def opened() -> Journal:
        return Journal(path, must_exist=False, remedy="")

    with ChatServer(echo) as server:
        proxy = Proxy(server.base_url)
        with opened() as journal:
            run(proxy, lambda: proxy.ask(exchange(journal), "a", "b", "a"))
        assert server.count.served == 3
        proxy = Proxy(server.base_url)
        with opened() as journal:
            simulation = exchange(journal)
            texts = run(proxy, lambda: proxy.ask(simulation, "b", "c", "a", "a"))
            assert texts == ["You said b.", "You said c.", "You said a.", "You said a."]
            assert not journal.is_redrawn
        assert server.count.served == 4
        assert proxy.meter.usage.calls == 1
        assert simulation.usage.calls == 4
        with opened() as journal:
            run(Proxy(server.base_url), lambda: asyncio.sleep(0))
            assert journal.is_redrawn  # as long as answers are left that nothing asked for
            assert journal.seconds > 0


def test_an_answer_that_cannot_be_stored_ends_the_run() -> None:
    class Full:
        def take(self, request: str) -> None:
            return None

        def add(self, entry: Any) -> None:
            raise StorageError("disk full")

    with ChatServer(echo) as server:
        proxy, simulation = Proxy(server.base_url), exchange(Full())
        (error,) = run(proxy, lambda: proxy.ask(simulation, "a"))
    assert isinstance(error, openai.PermissionDeniedError)
    assert isinstance(simulation.failure, StorageError)


# ---- stores


def test_the_retry_of_one_of_two_equal_requests_takes_no_answer_of_the_other() -> None:
    """Both requests are under way when the first one fails."""
    store, arrivals, both = Store(), iter(range(9)), threading.Barrier(2, timeout=30)

    def answer(method: str, record: Any) -> tuple[int, bytes]:
        number = next(arrivals)
        if number < 2:
            both.wait()
        if number == 0:
            return 500, b"{}"
        message = {"role": "assistant", "content": str(number)}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        record = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        return 200, json.dumps(record).encode()

    with http_server(answer) as url:
        proxy, simulation = Proxy(url.replace("/chat", ""), record=store), exchange()

        async def ask_twice() -> list[Any]:
            return [*await proxy.ask(simulation, "a", "a"), *await proxy.ask(simulation, "a")]

        texts = [text for text in run(proxy, ask_twice) if isinstance(text, str)]
    assert sorted(texts) == ["1", "2"]
    assert len(store.answers) == 2
    playback, simulation = Proxy("http://127.0.0.1:9", played=store.answers), exchange()
    assert sorted(run(playback, lambda: playback.ask(simulation, "a", "a"))) == ["1", "2"]


def test_playback_asks_no_endpoint() -> None:
    store = Store()
    with ChatServer(echo) as server:
        proxy = Proxy(server.base_url, record=store)
        run(proxy, lambda: proxy.ask(exchange(), "a"))
    proxy, simulation = Proxy("http://127.0.0.1:9/v1", played=store.answers), exchange()
    text, error = run(proxy, lambda: proxy.ask(simulation, "a", "b"))
    assert text == "You said a."
    assert isinstance(error, openai.PermissionDeniedError)
    assert "record it again with --t2e-record" in simulation.outage
    assert simulation.failure is None


# ---- errors


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_failure_of_the_endpoint_is_passed_on_and_noted(status: int) -> None:
    replies = iter([Reply(error=(status, "busy"), headers={"retry-after-ms": "5"}), Reply("fine")])
    with ChatServer(lambda request: next(replies)) as server:
        proxy, simulation = Proxy(server.base_url), exchange()

        async def twice() -> list[Any]:
            (error,) = await proxy.ask(simulation, "a")
            noted = simulation.outage
            return [error, noted, *await proxy.ask(simulation, "a")]

        error, noted, text = run(proxy, twice)
    assert error.status_code == status
    assert error.response.headers["retry-after-ms"] == "5"
    assert noted == f"{status}: busy"
    assert (text, simulation.outage) == ("fine", "")
    assert proxy.meter.usage.calls == 1


@pytest.mark.parametrize("fault", [Fault.BROKEN_BODY, Fault.NOT_JSON, Fault.HANG_UP, Fault.HANG_UP_HALFWAY])
def test_half_an_answer_is_a_failure_of_the_endpoint(fault: Fault) -> None:
    with ChatServer(echo, faults=FaultPlan({fault: 1.0})) as server:
        proxy, simulation = Proxy(server.base_url), exchange()
        (error,) = run(proxy, lambda: proxy.ask(simulation, "a"))
    assert error.status_code == 503
    assert simulation.outage
    assert simulation.failure is None
    assert proxy.meter.usage.calls == 0


FATAL = {
    401: "rejects model 'm', which the agent called: 401 no; check OPENAI_API_KEY",
    402: "402 no; check OPENAI_API_KEY",
    403: "403 no; check OPENAI_API_KEY",
    404: "404 no; check the model's name and --t2e-base-url",
}


@pytest.mark.parametrize("status", FATAL)
def test_a_rejection_of_every_request_ends_the_run(status: int) -> None:
    with ChatServer(lambda request: Reply(error=(status, "no"))) as server:
        proxy, simulation = Proxy(server.base_url), exchange()
        run(proxy, lambda: proxy.ask(simulation, "a"))
    assert isinstance(simulation.failure, EndpointError)
    assert FATAL[status] in str(simulation.failure)


def test_a_rejection_of_one_request_is_the_agents() -> None:
    replies = iter([Reply("fine"), Reply(error=(403, "content")), Reply(error=(400, "too long"))])
    with ChatServer(lambda request: next(replies)) as server:
        proxy, simulation = Proxy(server.base_url), exchange()

        async def three() -> list[Any]:
            return [(await proxy.ask(simulation, text))[0] for text in "abc"]

        _, forbidden, bad = run(proxy, three)
    assert (forbidden.status_code, bad.status_code) == (403, 400)
    assert simulation.failure is None
    assert not simulation.outage


def test_an_endpoint_that_never_answers_ends_the_run() -> None:
    with http_server(lambda *_: (200, b"")) as url:
        pass
    proxy, simulation = Proxy(url), exchange()

    async def three() -> None:
        for text in "abc":
            await proxy.ask(simulation, text)

    run(proxy, three)
    assert isinstance(simulation.failure, EndpointError)
    assert "cannot reach" in str(simulation.failure)


def test_a_spent_budget_ends_the_run() -> None:
    with ChatServer(echo) as server:
        meter = CountingMeter(error=BudgetError("the budget is spent"))
        proxy, simulation = Proxy(server.base_url, meter), exchange()
        run(proxy, lambda: proxy.ask(simulation, "a"))
        assert server.count.attempts == 0
    assert isinstance(simulation.failure, BudgetError)


def test_requests_without_a_simulation_are_rejected() -> None:
    with ChatServer(echo) as server:
        proxy, simulation = Proxy(server.base_url), exchange()

        async def ask() -> list[Any]:
            async with proxy.client(simulation) as client:
                proxy.proxy.detach(proxy.token)
                call = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
                return list(await asyncio.gather(call, return_exceptions=True))

        (error,) = run(proxy, ask)
        assert server.count.attempts == 0
    assert error.status_code == 403
    assert proxy.proxy.has_strayed(proxy.token)


def test_the_end_of_a_simulation_ends_its_requests() -> None:
    with ChatServer(echo) as server:
        server.hold()
        proxy, simulation = Proxy(server.base_url), exchange()

        async def ask() -> Any:
            task = asyncio.create_task(proxy.ask(simulation, "a"))
            while not server.requests:
                await asyncio.sleep(0.005)
            assert simulation.pending == 1
            proxy.proxy.detach(proxy.token)
            return (await task)[0]

        error = run(proxy, ask)
    assert error.status_code == 403
    assert simulation.pending == 0


def test_the_key_is_added_and_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-0123456789-real"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    seen: dict[str, str] = {}

    def leak(request: ChatRequest) -> Reply:
        seen.update(request.headers)
        return Reply(f"your key is {key}")

    with ChatServer(leak, keys=[key]) as server:
        proxy, simulation = Proxy(server.base_url), exchange()
        (text,) = run(proxy, lambda: proxy.ask(simulation, "a", extra_headers={"X-Title": "mine"}))
    assert text == "your key is [removed]"
    assert seen["x-title"] == "mine"


def test_a_request_that_is_too_large_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_trace2evolve.engine.proxy.MAX_REQUEST_BYTES", 1 << 20)
    with ChatServer(echo) as server:
        proxy, simulation = Proxy(server.base_url), exchange()
        (error,) = run(proxy, lambda: proxy.ask(simulation, "x" * (2 << 20)))
        assert server.count.attempts == 0
    assert isinstance(error, openai.APIStatusError | openai.APIConnectionError)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_a_number_that_json_does_not_have_is_the_agents_error(number: str) -> None:
    body = f'{{"model": "m", "temperature": {number}, "messages": []}}'
    with ChatServer(echo) as server:
        proxy, simulation = Proxy(server.base_url), exchange()

        async def ask() -> httpx2.Response:
            async with proxy.client(simulation), httpx2.AsyncClient() as client:
                url = f"{proxy.proxy.base_url(proxy.token)}/chat/completions"
                return await client.post(url, content=body, headers={"content-type": "application/json"})

        response = run(proxy, ask)
        assert server.count.attempts == 0
    assert response.status_code == 400
    assert "NaN or Infinity" in response.json()["error"]["message"]
    assert simulation.failure is None
    assert not simulation.outage


def test_other_paths_and_bodies_are_passed_on() -> None:
    def answer(method: str, record: Any) -> tuple[int, bytes]:
        return 200, b"\xff\xfe sound" if method == "POST" else b'{"data": []}'

    with http_server(answer) as url:
        proxy, simulation = Proxy(url.replace("/chat", "")), exchange(None)

        async def ask() -> bytes:
            async with proxy.client(simulation), httpx2.AsyncClient() as client:
                url = proxy.proxy.base_url(proxy.token)
                response = await client.get(f"{url}/files?limit=2")
                return response.content

        assert run(proxy, ask) == b'{"data": []}'
    assert simulation.usage.calls == 0
