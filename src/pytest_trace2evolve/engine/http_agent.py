"""Agents behind an HTTP endpoint.

The protocol is one POST request for each message to the agent, with a JSON object:

- first: `session`, `candidate`, `tools`, `model_api`, `message`, and `history` if the task starts in the
  middle of a conversation;
- then: `session` and either `message` or `results`, a list of `{"id", "content", "error"}`;
- at the end: `session` and `end`, whose answer does not matter.

The answer is a JSON object with either `reply`, a text to the user, or `calls`, a list of
`{"id", "name", "arguments"}`. A GET request may return `{"version": …}`, which identifies the agent's code.
"""

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from pytest_trace2evolve.engine.live import AgentFunction
from pytest_trace2evolve.engine.own_agent import OwnAgent
from pytest_trace2evolve.engine.proxy import PLACEHOLDER_KEY, Exchange, RecordingProxy
from pytest_trace2evolve.errors import AgentCodeError, ConfigError, InfrastructureError, shorten
from pytest_trace2evolve.records.completion import parse_arguments
from pytest_trace2evolve.records.message import MAX_TOOL_CALLS, Message
from pytest_trace2evolve.utils.canonical import storable_text
from pytest_trace2evolve.utils.http import (
    CONNECT_SECONDS,
    AnswerLimitError,
    HttpAnswer,
    HttpClient,
    HttpError,
    run_with_timeout,
)
from pytest_trace2evolve.utils.http_server import JSON_TYPE

MAX_ANSWER_BYTES = 8 << 20
"""The maximum number of bytes in an agent's answer."""

MAX_TEXT = 1_000_000
"""The maximum number of characters in a reply."""

MAX_VERSION = 200
"""The maximum number of characters in an agent's version."""

END_SECONDS = 5.0

_LOST_STATUSES = frozenset({408, 425, 429})
"""Client-error statuses that lose the simulation, as every status above 500 does.

Status 500 does not lose it, because servers answer 500 if the agent's own code raised an exception.
"""


def read_version(url: str) -> str:
    """Return the version of its code that an agent's endpoint reports; empty if it reports none.

    Raises:
        ConfigError: the endpoint cannot be reached.
    """

    async def ask() -> HttpAnswer:
        async with HttpClient(MAX_ANSWER_BYTES) as client:
            return await client.request("GET", url, headers={"accept": JSON_TYPE})

    try:
        response = run_with_timeout(2 * CONNECT_SECONDS, ask)
    except (HttpError, TimeoutError) as error:
        raise ConfigError(
            f"agent {public_url(url)} cannot be reached: {type(error).__name__}: {error}".rstrip(": ")
            + "; start it, or correct the URL"
        ) from None
    if response.status != 200:
        return ""
    with contextlib.suppress(ValueError, RecursionError):
        answer = json.loads(response.content)
        version = answer.get("version") if isinstance(answer, dict) else None
        if isinstance(version, str | int | float):
            return storable_text(str(version))[:MAX_VERSION]
    return ""


def public_url(url: str) -> str:
    """Return the URL of an agent without credentials, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def check_url(url: str) -> None:
    """Check the URL of an agent.

    Raises:
        ConfigError: the URL is invalid, or has no host, or has a query or a fragment.
    """
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ConfigError("the URL of the agent is invalid; give http://HOST:PORT/PATH") from None
    if not is_valid:
        raise ConfigError("the URL of the agent has no host; give http://HOST:PORT/PATH")
    if parts.query or parts.fragment:
        raise ConfigError(
            f"agent {public_url(url)}: the URL of an agent has no query, because evidence records none; "
            "tell agents apart by their paths"
        )


class HttpEndpoint:
    """The endpoint of an agent.

    Args:
        function: The URL and the timeout.
        proxy: The proxy that the agent may use for requests to its models.
    """

    def __init__(self, function: AgentFunction, proxy: RecordingProxy) -> None:
        self.function = function
        self.proxy = proxy

    async def check(self) -> None:
        """Do nothing, because the endpoint has already been asked for its version."""

    def make_agent(self, request: Mapping[str, Any], exchange: Exchange) -> OwnAgent:
        """Make the agent of one simulation."""
        return HttpAgent(self, request, exchange)

    async def close(self) -> None:
        """Do nothing, because each simulation closes its own connection."""


class HttpAgent(OwnAgent):
    """The agent of one simulation, whose answers come from an endpoint.

    Args:
        endpoint: The endpoint.
        request: The candidate and the tools.
        exchange: The requests that the agent sends to its model through the proxy.
    """

    def __init__(self, endpoint: HttpEndpoint, request: Mapping[str, Any], exchange: Exchange) -> None:
        super().__init__(endpoint.function.path, exchange)
        self._function = endpoint.function
        self._proxy = endpoint.proxy
        self._first_request = dict(request)
        self._session = uuid4().hex
        self._token = endpoint.proxy.new_token()
        self._client: HttpClient | None = None

    async def respond(self, history: Sequence[Message]) -> Message:
        """Return the agent's next calls or reply.

        Raises:
            AgentCodeError: the answer breaks the protocol.
            InfrastructureError: the endpoint did not answer, or the task starts at the agent's turn.
            Trace2EvolveError: a request of the agent to its model ended the simulation or the run.
        """
        request: dict[str, Any] = {"session": self._session}
        if self._client is None:
            earlier_messages = self._earlier(history)
            await self._proxy.open()
            self._proxy.attach(self._token, self._exchange)
            self._client = HttpClient(MAX_ANSWER_BYTES)
            model_api = {"base_url": self._proxy.base_url(self._token), "api_key": PLACEHOLDER_KEY}
            request |= {**self._first_request, "model_api": model_api}
            request |= {"history": earlier_messages} if earlier_messages else {}
        if history[-1].role == "tool":
            request["results"] = _results(history)
        else:
            request["message"] = history[-1].content or ""
        answer = await self._ask(self._client, request)
        calls = answer.get("calls")
        if ("reply" in answer) == bool(calls):
            raise AgentCodeError("the answer has not exactly one of 'reply' and 'calls'")
        if not calls:
            return await self._reply(_reply_text(answer["reply"]))
        return await self._calls(_parse_calls(calls))

    async def close(self) -> None:
        """Tell the endpoint that the simulation has ended."""
        self._proxy.detach(self._token)
        client, self._client = self._client, None
        if client is None:
            return
        with contextlib.suppress(Exception):  # the simulation is complete, so errors here do not matter
            async with asyncio.timeout(END_SECONDS):
                await self._send(client, {"session": self._session, "end": True})
        await client.close()

    async def _ask(self, client: HttpClient, request: Mapping[str, Any]) -> dict[str, Any]:
        exchange = self._exchange
        failure_task = asyncio.create_task(exchange.failed.wait())
        answer_task = asyncio.create_task(self._post(client, request))
        try:
            await asyncio.wait({failure_task, answer_task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            failure_task.cancel()
            if not answer_task.done():
                answer_task.cancel()
        if exchange.failure is not None:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await answer_task
            raise exchange.failure
        try:
            answer = await answer_task
        except (AgentCodeError, InfrastructureError):
            exchange.raise_if_unanswered(has_failed=True)
            raise
        exchange.raise_if_unanswered()  # even if the agent answered
        return answer

    async def _send(self, client: HttpClient, request: Mapping[str, Any]) -> HttpAnswer:
        content, headers = json.dumps(request).encode(), {"content-type": JSON_TYPE, "accept": JSON_TYPE}
        return await client.request("POST", self._function.url, content=content, headers=headers)

    async def _post(self, client: HttpClient, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._function.timeout):
                response = await self._send(client, request)
        except AnswerLimitError as error:
            raise AgentCodeError(f"{self.name}: {error}") from None
        except TimeoutError:
            raise InfrastructureError(
                f"{self.name} gave no answer within {self._function.timeout:g} seconds (t2e_call_timeout)"
            ) from None
        except HttpError as error:
            cause = f"{type(error).__name__}: {error}".rstrip(": ")
            raise InfrastructureError(f"{self.name} cannot be reached: {cause}") from None
        status = response.status
        excerpt = shorten(" ".join(response.content.decode("utf-8", "replace").split()), 200)
        if status in _LOST_STATUSES or status > 500:
            raise InfrastructureError(storable_text(f"{self.name} answered {status}: {excerpt}"))
        with contextlib.suppress(ValueError, RecursionError):
            answer = json.loads(response.content)
            if status < 300 and isinstance(answer, dict):
                return answer
        problem = f"answered {status}" if status >= 300 else "sent no JSON object"
        raise AgentCodeError(f"{self.name} {problem}", storable_text(f": {excerpt!r}"))


def _results(history: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the results of the agent's last calls."""
    results: list[dict[str, Any]] = []
    for message in reversed(history):
        if message.role != "tool":
            break
        results.append({"id": message.id, "content": message.content or "", "error": bool(message.error)})
    return results[::-1]


def _reply_text(reply: object) -> str:
    if not isinstance(reply, str):
        raise AgentCodeError(f"'reply' is a JSON {type(reply).__name__}, not a text")
    if len(reply) > MAX_TEXT:
        raise AgentCodeError(f"'reply' has {len(reply):,} characters, but the limit is {MAX_TEXT:,}")
    return reply


def _parse_calls(calls: object) -> list[tuple[str | None, str, dict[str, Any]]]:
    """Return the calls of an answer. Arguments may be an object, or a JSON text as models write it."""
    if not isinstance(calls, list) or len(calls) > MAX_TOOL_CALLS:
        raise AgentCodeError(f"'calls' is not a list of at most {MAX_TOOL_CALLS} calls")
    parsed_calls = []
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise AgentCodeError("a call has no 'name'")
        call_id, arguments = call.get("id"), call.get("arguments", {})
        if not isinstance(arguments, dict):
            arguments = parse_arguments(arguments if isinstance(arguments, str) else json.dumps(arguments))
        parsed_calls.append((None if call_id is None else str(call_id), call["name"], arguments))
    if len({call_id for call_id, _, _ in parsed_calls if call_id}) < sum(
        bool(call_id) for call_id, _, _ in parsed_calls
    ):
        raise AgentCodeError("two calls have the same id")
    return parsed_calls
