"""A chat model behind any OpenAI-compatible endpoint, shared by many simulations.

Network failures (rate limits, 5xx, hang-ups, broken bodies, timeouts) are retried with backoff. A request
that fails every time raises an `InfrastructureError`, which ends one simulation. A permanent failure (a
rejected key, an unknown model) raises an `EndpointError`, which ends the whole run.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pytest_trace2evolve.errors import (
    ContextWindowError,
    EndpointError,
    InfrastructureError,
    RequestRefusedError,
)
from pytest_trace2evolve.models.api import (
    NoAnswerError,
    read_body,
    read_completion,
    read_first_tokens,
    request_body,
)
from pytest_trace2evolve.models.api_errors import ApiError, Outcome, is_overflow, read_error, retry_after
from pytest_trace2evolve.models.settings import (
    DEFAULT_ENDPOINT,
    LIMIT_FIELDS,
    ModelSettings,
    without_credentials,
)
from pytest_trace2evolve.records.completion import (
    TOOL_USE_FAILED,
    Completion,
    Usage,
    without_provider_fields,
)
from pytest_trace2evolve.records.protocols import Meter, ToolSchema
from pytest_trace2evolve.utils.http import ConnectError, HttpClient, HttpError
from pytest_trace2evolve.utils.http_server import JSON_TYPE
from pytest_trace2evolve.utils.secrets import Secrets

TOP_LOGPROBS = 20
"""Tokens whose log-probabilities are requested; the API's maximum."""

MAX_CHARACTERS_PER_TOKEN = 5
"""Characters of a request per prompt token above which an endpoint may have ignored the tools."""

MAX_CONNECT_ATTEMPTS = 3
"""Failed connections after which an endpoint that never answered counts as unreachable."""

T = TypeVar("T")

Change = Callable[[Mapping[str, Any]], dict[str, Any]]


def _without_limit(request: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name not in LIMIT_FIELDS}


def _rename_limit(request: Mapping[str, Any]) -> dict[str, Any]:
    return {"max_completion_tokens" if name == "max_tokens" else name: request[name] for name in request}


def _encode(request: Mapping[str, Any]) -> bytes:
    return json.dumps(request, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


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
        # Changes of requests, because the endpoint rejects fields that other endpoints need.
        self._changes: list[Change] = []
        self._default_limit = settings.default_limit
        self._may_ignore_tools = not settings.allows_ignored_tools
        self._is_reached = False
        key = settings.key()
        settings.require_url()
        self._base_url = (settings.endpoint() or DEFAULT_ENDPOINT).rstrip("/") + "/"
        # An endpoint may echo secrets in answers, in errors and in headers that the client logs.
        self._secrets = Secrets.of_endpoint(settings.endpoint() or None, key, settings.extra_body)
        self._restore_logs = self._secrets.filter_logs()
        variables = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
        self._headers = {
            "accept": JSON_TYPE,
            "content-type": JSON_TYPE,
            "authorization": f"Bearer {key}",
            **{name: os.environ[value] for name, value in variables.items() if os.environ.get(value)},
        }
        self._client = HttpClient(max_connections=settings.max_connections)
        self._public_url = without_credentials(self._base_url.rstrip("/"))

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
        if self._default_limit is not None:
            request["max_tokens"] = self._default_limit
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
            replace(self.settings, temperature=0.0, reasoning_effort=None, parameters={}), messages, (), 0
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
        await self._client.close()

    async def _send(
        self, request: Mapping[str, Any], has_tools: bool, parse: Callable[[Any], T]
    ) -> tuple[Completion, T]:
        """Send a request until it is answered; returns the completion and the result of `parse`."""
        for change in self._changes:
            request = change(request)
        start_time = time.perf_counter()
        retries = self.settings.retries
        problem, fault = "", None
        for attempt in range(1, retries.attempts + 1):
            if self._meter is not None:
                await self._meter.admit()
            pause: float | None = None
            fault = None
            try:
                async with asyncio.timeout(self.settings.timeout):
                    response = await self._client.request(
                        "POST",
                        f"{self._base_url}chat/completions",
                        content=_encode(request),
                        headers=self._headers,
                    )
                self._is_reached = True
                if response.status >= 300:
                    raise NoAnswerError(response.content)
                answer_json = self._secrets.remove_from_answer(read_body(response.content))
                completion = read_completion(answer_json, time.perf_counter() - start_time)
                parsed_part = parse(answer_json)
            except NoAnswerError as error:
                fault, pause = read_error(response.status, error.record), retry_after(response.headers)
            except (HttpError, TimeoutError, ValueError, RecursionError) as error:
                problem = self._describe(error, attempt)
            else:
                completion = self._accept(completion, has_tools)
                if has_tools and self._may_ignore_tools:
                    await self._check_tools(request, completion)
                return completion, parsed_part
            if fault is not None:
                if fault.outcome is Outcome.MALFORMED_CALL:
                    seconds = time.perf_counter() - start_time
                    completion = Completion(
                        finish_reason=TOOL_USE_FAILED, usage=Usage(calls=0), seconds=seconds
                    )
                    return self._accept(completion, has_tools), parse(None)
                if (other := self._change_to_try(request, fault)) is not None:
                    answer = await self._send(other(request), has_tools, parse)
                    if fault.outcome is Outcome.REFUSED and other not in self._changes:
                        self._changes.append(other)
                    return answer
                problem = self._secrets.remove_from(str(fault))
                self._raise_if_final(fault, problem, has_tools)
            if attempt < retries.attempts:
                await asyncio.sleep(retries.pause(attempt, pause))
        if fault is not None and fault.outcome is Outcome.OVERFLOW:
            raise ContextWindowError(problem)
        raise InfrastructureError(
            f"model {self.settings.model!r} at {self._public_url} did not answer in "
            f"{retries.attempts} attempts; last problem: {problem}"
        )

    async def _check_tools(self, request: Mapping[str, Any], completion: Completion) -> None:
        """Find out whether the endpoint ignores the tools, if the first answer with tools raises doubts.

        The same request without tools then has as many prompt tokens.

        Raises:
            EndpointError: the endpoint ignores the tools.
        """
        self._may_ignore_tools = False
        tokens, tools = completion.usage.prompt_tokens, request["tools"]
        size = len(json.dumps([request["messages"], tools]))
        if completion.tool_calls or not 0 < tokens < size / MAX_CHARACTERS_PER_TOKEN:
            return
        names = request.keys() - {"tools", "tool_choice", "parallel_tool_calls"}
        plain, _ = await self._send({name: request[name] for name in names}, False, lambda record: None)
        if plain.usage.prompt_tokens == tokens:
            raise EndpointError(
                f"{self._public_url} ignores the tools of model {self.settings.model!r}: with and without "
                f"{len(tools)} tools, a request has {tokens} prompt tokens; serve the model with a "
                "chat template that knows tools, or give t2e_allow_ignored_tools"
            )

    def _change_to_try(self, request: Mapping[str, Any], fault: ApiError) -> Change | None:
        """The change of a rejected request that the endpoint may accept; None if there is none.

        A limit that the run adds may be too high for the model, too much for the rest of its context, or for
        the tokens per minute of an account.
        """
        is_refused = fault.outcome is Outcome.REFUSED
        if is_refused and "max_tokens" in request and "max_completion_tokens" in fault.text:
            return _rename_limit
        if any(request[name] == self._default_limit for name in LIMIT_FIELDS & request.keys()) and (
            fault.outcome in (Outcome.OVERFLOW, Outcome.TOO_LARGE)
            or fault.status == 413
            or "max_tokens" in fault.text
            or (is_refused and not self._answered_with_tools)
        ):
            return _without_limit
        if is_refused and without_provider_fields(request) != request:
            return without_provider_fields
        return None

    def _accept(self, completion: Completion, has_tools: bool) -> Completion:
        """Count a good answer. Raises `ContextWindowError` if it says that the conversation does not fit."""
        self._answered_with_tools.add(has_tools)
        usage = completion.usage
        if usage.cost is None and self.settings.price is not None:
            priced_usage = usage.model_copy(update={"cost": self.settings.price.cost(usage)})
            completion = completion.model_copy(update={"usage": priced_usage})
        if self._meter is not None:
            self._meter.spend(completion.usage)
        if is_overflow(completion):
            raise ContextWindowError(
                f"model {self.settings.model!r} ended its answer with {completion.finish_reason!r}: "
                "the conversation fills its context window"
            )
        return completion

    def _raise_if_final(self, fault: ApiError, problem: str, has_tools: bool) -> None:
        """Raise for an error that no retry can fix."""
        outcome, status, model = fault.outcome, fault.status, self.settings.model
        # If the model has answered such a request before, the content of this request is the cause.
        is_content_at_fault = has_tools in self._answered_with_tools
        if outcome is Outcome.FATAL or (
            outcome in (Outcome.FORBIDDEN, Outcome.MISSING) and not self._answered_with_tools
        ):
            settings_to_check = (
                "the model's name and the base URL" if status == 404 else self.settings.api_key_env
            )
            raise EndpointError(
                f"{self._public_url} rejects model {model!r}: {problem}; check {settings_to_check}"
            ) from None
        if outcome in (Outcome.RETRY, Outcome.MISSING):
            return
        if outcome is Outcome.OVERFLOW or (outcome is Outcome.TOO_LARGE and is_content_at_fault):
            # A shared cache that other requests fill has the same words with status 500.
            if status < 500:
                raise ContextWindowError(problem) from None
            return
        message = f"{self._public_url} rejects the request to model {model!r}: {problem}"
        if fault.field in self.settings.to_record():
            message += f"; leave out parameter {fault.field!r}"
        is_single = is_content_at_fault or outcome in (Outcome.FILTERED, Outcome.FORBIDDEN)
        raise (RequestRefusedError if is_single else EndpointError)(message) from None

    def _describe(self, error: Exception, attempt: int) -> str:
        """The text of an error without an answer.

        Raises:
            EndpointError: the endpoint cannot be reached, and never was.
        """
        if isinstance(error, TimeoutError):
            option = self.settings.timeout_option
            return f"no answer within {self.settings.timeout:g} seconds" + (f" ({option})" if option else "")
        problem = self._secrets.remove_from(f"{type(error).__name__}: {error}")
        if not self._is_reached and isinstance(error, ConnectError) and attempt >= MAX_CONNECT_ATTEMPTS:
            raise EndpointError(
                f"cannot reach {self._public_url} for model {self.settings.model!r}: {problem}; "
                f"start the server, or check {self.settings.url_option or 'its URL'} "
                "and OPENAI_BASE_URL"
            ) from None
        return problem
