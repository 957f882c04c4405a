"""A chat model behind any OpenAI-compatible endpoint, for many simulations at once.

What a network does wrong (rate limits, 5xx, hang-ups, broken bodies, silence) is tried again with backoff;
what remains is an `InfrastructureError` of one simulation. What no retry can mend (a refused key, an unknown
model) is an `EndpointError` of the whole run.
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
from pytest_trace2evolve.models.api import (
    read_body,
    read_completion,
    read_first_tokens,
    request_body,
    retry_after,
)
from pytest_trace2evolve.models.settings import ModelSettings, without_credentials
from pytest_trace2evolve.records.completion import Completion
from pytest_trace2evolve.records.protocols import Meter, ToolSchema
from pytest_trace2evolve.utils.http import bounded_client
from pytest_trace2evolve.utils.secrets import Secrets

RETRY_STATUSES = frozenset({408, 409, 425, 429})
"""Client-error statuses that another try can mend; so can every status from 500."""

FATAL_STATUSES = frozenset({401, 402, 403, 404})
"""Statuses that every further request would get too."""

TOO_LARGE = 413
"""The status that says that a request has too many bytes."""

POOLED = 8
"""Connections in one pool. At each request a pool looks at all it has: many small ones are cheaper."""

T = TypeVar("T")

TOP_LOGPROBS = 20
"""Tokens whose log-probabilities are asked for: as many as the API allows."""

NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout)

UNREACHABLE_TRIES = 3
"""Tries to connect, where nothing ever answered, after which nobody is believed to be there."""

FATAL_CODES = frozenset({"insufficient_quota", "invalid_api_key", "model_not_found"})
"""Codes in an error's body that say the same, whatever its status."""


class ChatModel:
    """One model; safe to share by all simulations of one event loop.

    Args:
        settings: Which model, and how it is asked.
        meter: Counts every good answer, and says when each request may be sent; None: nobody does.

    Raises:
        EndpointError: the variable that should hold the key is empty, or the base URL is no URL.
    """

    def __init__(self, settings: ModelSettings, meter: Meter | None = None) -> None:
        self.settings = settings
        self._meter = meter
        # Whether it has answered requests without tools (False) and with tools (True).
        self._answered: set[bool] = set()
        self._reached = False
        key = settings.key()
        url = settings.endpoint() or None
        where, auth = _address(settings)
        # An endpoint may echo them anywhere: in answers, in errors, in headers that the client logs.
        self._secrets = Secrets.of(url, key, settings.extra_body)
        self._end_guard = self._secrets.guard_logs()
        limits = httpx2.Limits(
            max_connections=settings.max_connections, max_keepalive_connections=settings.max_connections
        )
        trusted = httpx2.create_ssl_context()
        self._clients = [
            openai.AsyncOpenAI(
                api_key=key,
                base_url=where,
                max_retries=0,  # retries are ours: the client's own would hide what they cost
                http_client=bounded_client(
                    limits=limits,
                    timeout=httpx2.Timeout(settings.timeout, connect=10.0),
                    auth=auth,
                    verify=trusted,
                ),
            )
            for _ in range(-(-settings.max_connections // POOLED))
        ]
        self._turns = itertools.cycle(self._clients)

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[ToolSchema],
        *,
        trial: int = 0,
        tool_choice: str = "auto",
    ) -> Completion:
        """One completion; `tool_choice` is the API's own, and is sent where there are tools.

        Raises:
            EndpointError: no retry would help: the endpoint refuses the key, the model or its tools, or it
                cannot be reached.
            ContextWindowError: the conversation no longer fits the model, or the endpoint's limit of bytes.
            RequestRefusedError: the endpoint refuses this one request.
            InfrastructureError: every try failed.
            BudgetError: the run may send nothing more.
        """
        request = request_body(self.settings, messages, tools, trial, tool_choice)
        completion, _ = await self._asked(request, bool(tools), lambda record: None)
        return completion

    async def first_tokens(self, messages: Sequence[Mapping[str, Any]]) -> Mapping[str, float]:
        """The log-probabilities of the likeliest first tokens of an answer, by the tokens' text.

        Raises:
            EndpointError: no retry would help, or the endpoint tells no log-probabilities.
            InfrastructureError: every try failed.
            BudgetError: the run may send nothing more.
        """
        request = request_body(
            replace(self.settings, temperature=0.0, reasoning_effort=None), messages, (), 0
        )
        request |= {"max_tokens": 1, "logprobs": True, "top_logprobs": TOP_LOGPROBS}
        _, found = await self._asked(request, False, read_first_tokens)
        if found is None:
            raise EndpointError(
                f"model {self.settings.model!r} at {self._where()} tells no log-probabilities, and routing "
                "needs those of a first token; route by another model or serve this one with them"
            )
        return found

    async def _asked(
        self, request: Mapping[str, Any], with_tools: bool, read: Callable[[Any], T]
    ) -> tuple[Completion, T]:
        """Send a request until it is answered; the answer, and what `read` finds in it."""
        started = time.perf_counter()
        retries = self.settings.retries
        problem = ""
        for tried in range(1, retries.attempts + 1):
            await self._admission()
            try:
                async with asyncio.timeout(self.settings.timeout):
                    # Not `chat.completions.create`: walking the request's types costs more than all the rest.
                    response = await next(self._turns).post(
                        "/chat/completions", cast_to=httpx2.Response, body=request
                    )
                    self._reached = True
                    record = self._secrets.out_of_answer(read_body(response.content))
                completion, more = read_completion(record, time.perf_counter() - started), read(record)
                completion = self._counted(completion)
                self._answered.add(with_tools)
                return completion, more
            except openai.APIStatusError as error:
                self._reached = True
                self._refuse(error, with_tools)
                problem, asked = self._told(error), retry_after(error)
            except (openai.OpenAIError, httpx2.HTTPError, TimeoutError, ValueError, RecursionError) as error:
                cause = (isinstance(error, openai.APIConnectionError) and error.__cause__) or error
                problem, asked = self._secrets.out_of(f"{type(cause).__name__}: {cause}"), None
                if isinstance(error, TimeoutError):
                    option = self.settings.timeout_option
                    problem = f"no answer within {self.settings.timeout:g} seconds"
                    problem += f" ({option})" if option else ""
                if tried >= UNREACHABLE_TRIES and not self._reached and isinstance(cause, NOT_CONNECTED):
                    raise EndpointError(
                        f"{self._where()} cannot be reached for model {self.settings.model!r}: {problem}; "
                        f"start it, or check {self.settings.url_option or 'its URL'} and OPENAI_BASE_URL"
                    ) from None
            if tried < retries.attempts:
                await asyncio.sleep(retries.pause(tried, asked))
        raise InfrastructureError(
            f"model {self.settings.model!r} at {self._where()} gave no answer in {retries.attempts} tries, "
            f"last: {problem}"
        )

    async def close(self) -> None:
        """Close the connections."""
        self._end_guard()
        for client in self._clients:
            await client.close()

    async def _admission(self) -> None:
        if self._meter is not None and (pause := self._meter.admit()) > 0:
            await asyncio.sleep(pause)
            # Whatever happened meanwhile may forbid what was allowed before.
            self._meter.stand()

    def _counted(self, completion: Completion) -> Completion:
        usage = completion.usage
        if usage.cost is None and self.settings.price is not None:
            priced = usage.model_copy(update={"cost": self.settings.price.cost(usage)})
            completion = completion.model_copy(update={"usage": priced})
        if self._meter is not None:
            self._meter.spend(completion.usage)
        return completion

    def _refuse(self, error: openai.APIStatusError, with_tools: bool) -> None:
        """Raise for a status that no further try can mend."""
        status, told = error.status_code, self._told(error)
        where = self._where()
        # Some endpoints forbid single requests for their content.
        fatal = error.code in FATAL_CODES or (
            status in FATAL_STATUSES and not (status == 403 and self._answered)
        )
        if not fatal and (status in RETRY_STATUSES or status >= 500):
            return
        if fatal:
            mend = {404: "check the model's name and the base URL"}.get(
                status, f"check {self.settings.key_var}"
            )
            raise EndpointError(f"{where} refuses model {self.settings.model!r}: {told}; {mend}") from None
        words = told.lower()
        # A model that answered before takes requests of this kind: the trouble is this one's content.
        taken = with_tools in self._answered
        if (
            error.code == "context_length_exceeded"
            or ("context" in words and ("length" in words or "window" in words))
            or (status == TOO_LARGE and taken)
        ):
            raise ContextWindowError(told) from None
        refusal = f"{where} refuses the request to model {self.settings.model!r}: {told}"
        raise RequestRefusedError(refusal) if taken else EndpointError(refusal)

    def _where(self) -> str | None:
        return without_credentials(str(self._clients[0].base_url))

    def _told(self, error: openai.APIStatusError) -> str:
        body = error.body
        message = body.get("message") if isinstance(body, dict) else None
        return self._secrets.out_of(f"{error.status_code} {message or error.message}")


def _address(settings: ModelSettings) -> tuple[httpx2.URL | None, httpx2.Auth | None]:
    """The base URL as it may be logged, and its user and password, which logs must not show."""
    url = settings.endpoint()
    if not url:
        return None, None
    try:
        whole = httpx2.URL(url)
    except httpx2.InvalidURL:  # what it says may quote the password
        raise settings.bad_url() from None
    auth = httpx2.BasicAuth(whole.username, whole.password) if whole.userinfo else None
    return whole.copy_with(username="", password=""), auth
