"""A chat model behind any OpenAI-compatible endpoint, shared by many simulations.

Network failures (rate limits, 5xx, hang-ups, broken bodies, timeouts) are retried with backoff. A request
that fails every time raises an `InfrastructureError`, which ends one simulation. A permanent failure (a
rejected key, an unknown model) raises an `EndpointError`, which ends the whole run.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import httpx2
import openai

from pytest_trace2evolve.errors import (
    ContextWindowError,
    EndpointError,
    InfrastructureError,
    RequestRefusedError,
)
from pytest_trace2evolve.models.api import read_body, read_completion, read_first_tokens, request_body
from pytest_trace2evolve.models.settings import ModelSettings, without_credentials
from pytest_trace2evolve.records.completion import Completion
from pytest_trace2evolve.records.protocols import Meter, ToolSchema
from pytest_trace2evolve.utils.http import bounded_client, tls_context
from pytest_trace2evolve.utils.secrets import Secrets

RETRY_STATUSES = frozenset({408, 409, 425, 429})
"""Client-error statuses that are retried, in addition to every status from 500."""

FATAL_STATUSES = frozenset({401, 402, 403, 404})
"""Statuses that every further request would get."""

FATAL_CODES = frozenset({"insufficient_quota", "invalid_api_key", "model_not_found"})
"""Codes in an error's body that are fatal with any status."""

TOO_LARGE_STATUS = 413
"""The status of a request with too many bytes."""

POOL_SIZE = 8
"""Connections per pool. A pool scans all its connections at each request, so small pools are cheaper."""

TOP_LOGPROBS = 20
"""Tokens whose log-probabilities are requested; the API's maximum."""

CONNECT_ERRORS = (httpx2.ConnectError, httpx2.ConnectTimeout)

MAX_CONNECT_ATTEMPTS = 3
"""Failed connections after which an endpoint that never answered counts as unreachable."""

T = TypeVar("T")


class ChatModel:
    """One model, which all simulations of an event loop can share.

    Args:
        meter: Counts every valid answer and decides when a request may be sent; None counts nothing.

    Raises:
        EndpointError: the variable that should hold the key is empty, or the base URL is not a URL.
    """

    def __init__(self, settings: ModelSettings, meter: Meter | None = None) -> None:
        self.settings = settings
        self._meter = meter
        # The kinds of requests answered so far: without tools (False), with tools (True).
        self._answered_with_tools: set[bool] = set()
        self._is_reached = False
        key = settings.key()
        base_url, auth = _split_credentials(settings)
        # An endpoint may echo secrets in answers, in errors and in headers that the client logs.
        self._secrets = Secrets.of_endpoint(settings.endpoint() or None, key, settings.extra_body)
        self._restore_logs = self._secrets.filter_logs()
        limits = httpx2.Limits(
            max_connections=settings.max_connections, max_keepalive_connections=settings.max_connections
        )
        self._clients = [
            openai.AsyncOpenAI(
                api_key=key,
                base_url=base_url,
                max_retries=0,  # the client's own retries would hide their cost
                http_client=bounded_client(
                    limits=limits,
                    timeout=httpx2.Timeout(settings.timeout, connect=10.0),
                    auth=auth,
                    verify=tls_context(),
                ),
            )
            for _ in range(-(-settings.max_connections // POOL_SIZE))
        ]
        self._next_client = itertools.cycle(self._clients)

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSchema],
        *,
        trial: int = 0,
        tool_choice: str = "auto",
    ) -> Completion:
        """Request one completion; `tool_choice` is the API's parameter, and is sent only with tools.

        Raises:
            EndpointError: no retry would help, because the endpoint rejects the key, the model or its tools,
                or because it cannot be reached.
            ContextWindowError: the conversation no longer fits the model, or the endpoint's byte limit.
            RequestRefusedError: the endpoint rejects only this request.
            InfrastructureError: every attempt failed.
            BudgetError: the run may send no further requests.
        """
        request = request_body(self.settings, messages, tools, trial, tool_choice)
        completion, _ = await self._send(request, bool(tools), lambda record: None)
        return completion

    async def first_tokens(self, messages: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
        """Log-probabilities of the likeliest first tokens of an answer, by their text.

        Raises:
            EndpointError: no retry would help, or the endpoint sends no log-probabilities.
            InfrastructureError: every attempt failed.
            BudgetError: the run may send no further requests.
        """
        request = request_body(
            replace(self.settings, temperature=0.0, reasoning_effort=None), messages, (), 0
        )
        request |= {"max_tokens": 1, "logprobs": True, "top_logprobs": TOP_LOGPROBS}
        _, logprobs = await self._send(request, False, read_first_tokens)
        if logprobs is None:
            raise EndpointError(
                f"model {self.settings.model!r} at {self._public_url} does not send log-probabilities, "
                "but routing needs those of the first token; use a different model for routing, or serve "
                "this model with log-probabilities"
            )
        return logprobs

    async def close(self) -> None:
        """Close the connections."""
        self._restore_logs()
        for client in self._clients:
            await client.close()

    async def _send(
        self, request: Mapping[str, Any], has_tools: bool, parse: Callable[[Any], T]
    ) -> tuple[Completion, T]:
        """Send a request until it is answered; returns the completion and the result of `parse`."""
        start_time = time.perf_counter()
        retries = self.settings.retries
        problem = ""
        for attempt in range(1, retries.attempts + 1):
            if self._meter is not None:
                await self._meter.admit()
            pause: float | None = None
            try:
                async with asyncio.timeout(self.settings.timeout):
                    # `chat.completions.create` would spend more time on the request's types than all other
                    # steps take together.
                    response = await next(self._next_client).post(
                        "/chat/completions", cast_to=httpx2.Response, body=request
                    )
                    self._is_reached = True
                    answer_json = self._secrets.remove_from_answer(read_body(response.content))
                completion, parsed_part = (
                    read_completion(answer_json, time.perf_counter() - start_time),
                    parse(answer_json),
                )
                completion = self._meter_usage(completion)
                self._answered_with_tools.add(has_tools)
                return completion, parsed_part
            except openai.APIStatusError as error:
                self._is_reached = True
                self._raise_if_final(error, has_tools)
                problem, pause = self._describe(error), _retry_after(error)
            except (openai.OpenAIError, httpx2.HTTPError, TimeoutError, ValueError, RecursionError) as error:
                cause = (isinstance(error, openai.APIConnectionError) and error.__cause__) or error
                problem = self._secrets.remove_from(f"{type(cause).__name__}: {cause}")
                if isinstance(error, TimeoutError):
                    option = self.settings.timeout_option
                    problem = f"no answer within {self.settings.timeout:g} seconds"
                    problem += f" ({option})" if option else ""
                is_unreachable = not self._is_reached and isinstance(cause, CONNECT_ERRORS)
                if is_unreachable and attempt >= MAX_CONNECT_ATTEMPTS:
                    raise EndpointError(
                        f"cannot reach {self._public_url} for model {self.settings.model!r}: {problem}; "
                        f"start the server, or check {self.settings.url_option or 'its URL'} "
                        "and OPENAI_BASE_URL"
                    ) from None
            if attempt < retries.attempts:
                await asyncio.sleep(retries.pause(attempt, pause))
        raise InfrastructureError(
            f"model {self.settings.model!r} at {self._public_url} did not answer in "
            f"{retries.attempts} attempts; last problem: {problem}"
        )

    def _meter_usage(self, completion: Completion) -> Completion:
        usage = completion.usage
        if usage.cost is None and self.settings.price is not None:
            priced_usage = usage.model_copy(update={"cost": self.settings.price.cost(usage)})
            completion = completion.model_copy(update={"usage": priced_usage})
        if self._meter is not None:
            self._meter.spend(completion.usage)
        return completion

    def _raise_if_final(self, error: openai.APIStatusError, has_tools: bool) -> None:
        """Raise for a status that no retry can fix."""
        status, description, model = error.status_code, self._describe(error), self.settings.model
        # Some endpoints answer 403 to single requests because of their content.
        is_fatal = error.code in FATAL_CODES or (
            status in FATAL_STATUSES and not (status == 403 and self._answered_with_tools)
        )
        if is_fatal:
            settings_to_check = (
                "the model's name and the base URL" if status == 404 else self.settings.api_key_env
            )
            raise EndpointError(
                f"{self._public_url} rejects model {model!r}: {description}; check {settings_to_check}"
            ) from None
        if status in RETRY_STATUSES or status >= 500:
            return
        lower_description = description.lower()
        # If the model has answered such a request before, the content of this request is the cause.
        is_content_at_fault = has_tools in self._answered_with_tools
        if (
            error.code == "context_length_exceeded"
            or (
                "context" in lower_description
                and ("length" in lower_description or "window" in lower_description)
            )
            or (status == TOO_LARGE_STATUS and is_content_at_fault)
        ):
            raise ContextWindowError(description) from None
        message = f"{self._public_url} rejects the request to model {model!r}: {description}"
        raise (RequestRefusedError if is_content_at_fault else EndpointError)(message) from None

    @property
    def _public_url(self) -> str | None:
        return without_credentials(str(self._clients[0].base_url))

    def _describe(self, error: openai.APIStatusError) -> str:
        body = error.body
        message = body.get("message") if isinstance(body, dict) else None
        return self._secrets.remove_from(f"{error.status_code} {message or error.message}")


def _split_credentials(settings: ModelSettings) -> tuple[httpx2.URL | None, httpx2.Auth | None]:
    """Split the base URL into a URL that may be logged, and its user and password."""
    url = settings.endpoint()
    if not url:
        return None, None
    try:
        parsed_url = httpx2.URL(url)
    except httpx2.InvalidURL:  # the error's message may quote the password
        raise settings.url_error() from None
    auth = httpx2.BasicAuth(parsed_url.username, parsed_url.password) if parsed_url.userinfo else None
    return parsed_url.copy_with(username="", password=""), auth


def _retry_after(error: openai.APIStatusError) -> float | None:
    """The seconds that the endpoint asks the client to wait; None if it does not ask."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return float(error.response.headers[name]) * unit
        except (KeyError, ValueError):
            continue
    return None
