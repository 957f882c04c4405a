"""A chat model behind any OpenAI-compatible endpoint, for many simulations at once.

What a network does wrong (rate limits, 5xx, hang-ups, broken bodies, silence) is tried again with backoff;
what remains is an `InfrastructureError` of one simulation. What no retry can mend (a refused key, an unknown
model) is an `EndpointError` of the whole run.
"""

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2
import openai

from pytest_trace2evolve.errors import ContextWindowError, EndpointError, InfrastructureError
from pytest_trace2evolve.models.settings import ModelSettings, without_credentials
from pytest_trace2evolve.records.completion import Completion, RequestedCall, Usage
from pytest_trace2evolve.records.protocols import ToolSchema

RETRY_STATUSES = frozenset({408, 409, 425, 429})
"""Client-error statuses that another try can mend; so can every status from 500."""

FATAL_STATUSES = frozenset({401, 403, 404})
"""Statuses that every further request would get too."""


class ChatModel:
    """One model; safe to share by all simulations of one event loop.

    Raises:
        EndpointError: the variable that should hold the key is empty.
    """

    def __init__(self, settings: ModelSettings) -> None:
        self.settings = settings
        key = os.environ.get(settings.key_var)
        if not key:
            raise EndpointError(
                f"model {settings.model!r} needs a key: set {settings.key_var} (any text for a local server)"
            )
        limits = httpx2.Limits(
            max_connections=settings.max_connections, max_keepalive_connections=settings.max_connections
        )
        self._client = openai.AsyncOpenAI(
            api_key=key,
            base_url=settings.base_url,
            max_retries=0,  # retries are ours: the client's own would hide what they cost
            http_client=httpx2.AsyncClient(
                limits=limits, timeout=httpx2.Timeout(settings.timeout, connect=10.0)
            ),
        )

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSchema], *, trial: int = 0
    ) -> Completion:
        """One completion.

        Raises:
            EndpointError: the endpoint refuses the key, the model or its tools; no retry would help.
            ContextWindowError: the conversation no longer fits the model.
            InfrastructureError: every try failed.
        """
        request = self._request(messages, tools, trial)
        started = time.perf_counter()
        retries = self.settings.retries
        problem = ""
        for tried in range(1, retries.attempts + 1):
            try:
                async with asyncio.timeout(self.settings.timeout):
                    # Not `chat.completions.create`: walking the request's types costs more than all the rest.
                    response = await self._client.post(
                        "/chat/completions", cast_to=httpx2.Response, body=request
                    )
                    record = response.json()
                return _read(record, time.perf_counter() - started)
            except openai.APIStatusError as error:
                self._refuse(error)
                problem, asked = _told(error), _retry_after(error)
            except (openai.OpenAIError, httpx2.HTTPError, TimeoutError, ValueError) as error:
                problem, asked = f"{type(error).__name__}: {error}", None
            if tried < retries.attempts:
                await asyncio.sleep(retries.pause(tried, asked))
        raise InfrastructureError(
            f"model {self.settings.model!r} gave no answer in {retries.attempts} tries, last: {problem}"
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _request(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSchema], trial: int
    ) -> dict[str, Any]:
        settings = self.settings
        request: dict[str, Any] = {"model": settings.model, "messages": list(messages)}
        if tools:
            request["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.parameters,
                    },
                }
                for tool in tools
            ]
            request["tool_choice"] = "auto"
        if settings.temperature is not None:
            request["temperature"] = settings.temperature
        if settings.seed is not None:
            request["seed"] = settings.seed + trial
        if settings.reasoning_effort is not None:
            request["reasoning_effort"] = settings.reasoning_effort
        return {**request, **settings.extra_body}

    def _refuse(self, error: openai.APIStatusError) -> None:
        """Raise for a status that no further try can mend."""
        status, told = error.status_code, _told(error)
        if status in RETRY_STATUSES or status >= 500:
            return
        where = without_credentials(str(self._client.base_url))
        if status in FATAL_STATUSES:
            mend = {404: "check the model's name and the base URL"}.get(
                status, f"check {self.settings.key_var}"
            )
            raise EndpointError(f"{where} refuses model {self.settings.model!r}: {told}; {mend}") from None
        if "context" in told.lower() and ("length" in told.lower() or "window" in told.lower()):
            raise ContextWindowError(told) from None
        raise EndpointError(f"{where} refuses the request to model {self.settings.model!r}: {told}") from None


def _read(record: Any, seconds: float) -> Completion:
    """A completion from whatever JSON the endpoint sent.

    Raises:
        ValueError: it holds no message, or a tool call without a name.
    """
    choice = _inside(record, "choices", 0)
    message = _inside(choice, "message")
    if not isinstance(message, dict):
        raise ValueError("the answer holds no message")
    calls = []
    for position, call in enumerate(message.get("tool_calls") or ()):
        name, arguments = _inside(call, "function", "name"), _inside(call, "function", "arguments")
        if not isinstance(name, str):
            raise ValueError("the answer holds a tool call without a name")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
        calls.append(RequestedCall(id=str(call.get("id") or f"call_{position}"), name=name, arguments=text))
    content, finish = message.get("content"), choice.get("finish_reason")
    return Completion(
        content=content if isinstance(content, str) else None,
        tool_calls=tuple(calls),
        finish_reason=finish if isinstance(finish, str) else None,
        usage=Usage(
            prompt_tokens=_count(_inside(record, "usage", "prompt_tokens")),
            completion_tokens=_count(_inside(record, "usage", "completion_tokens")),
        ),
        seconds=seconds,
    )


def _inside(value: Any, *path: str | int) -> Any:
    """What lies at a path of keys and positions; None where anything on the way is missing."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and len(value) > step else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _told(error: openai.APIStatusError) -> str:
    body = error.body
    message = body.get("message") if isinstance(body, dict) else None
    return f"{error.status_code} {message or error.message}"


def _retry_after(error: openai.APIStatusError) -> float | None:
    """Seconds that the endpoint asks to wait."""
    headers = error.response.headers
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
    return None
