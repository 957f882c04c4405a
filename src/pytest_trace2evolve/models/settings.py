"""Settings of a model and its retries. This module imports no client library."""

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field, ValidationError

from pytest_trace2evolve.errors import EndpointError
from pytest_trace2evolve.models.prices import Price
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.utils.reading import first_problem
from pytest_trace2evolve.utils.secrets import remove_secret_fields

DEFAULT_ENDPOINT = "https://api.openai.com/v1"

CALL_TIMEOUT = 600.0
"""Default timeout of one attempt of a call, in seconds; the same as the default of the openai client."""

MAX_ANSWER_TOKENS = 16_384
"""Default limit of one answer in tokens, so that an endless answer of a slow endpoint ends."""

LIMIT_FIELDS = frozenset({"max_tokens", "max_completion_tokens"})
"""The fields of a request that limit the tokens of an answer. Some models reject the one, some the other."""

PositiveCount = Annotated[int, Field(ge=1, le=10**9, strict=True)]


@dataclass(frozen=True)
class Retries:
    """The settings for retries of failed requests.

    Attributes:
        attempts: Attempts of one completion, including the first.
        first_pause: Seconds before the second attempt, doubled for each further attempt. The pause is random,
            between half of this value and the full value.
        max_pause: Upper limit in seconds of the backoff and of the pause that an endpoint asks for.
    """

    attempts: int = 7
    first_pause: float = 0.5
    max_pause: float = 60.0

    def pause(self, attempt: int, retry_after: float | None) -> float:
        """Seconds to wait after failed attempt number `attempt`, given the endpoint's `Retry-After`."""
        backoff: float = min(self.max_pause, self.first_pause * 2.0 ** (attempt - 1)) * random.uniform(
            0.5, 1.0
        )
        if retry_after is None:
            return backoff
        return min(self.max_pause, max(retry_after, 0.0)) + backoff * 0.1


class ModelParameters(Record):
    """Fields of a request by their names in the API; a parameter that is None keeps the value of the run.

    Without the fields that this package sets itself or cannot read the answers to, such as `n` and `stream`.
    """

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    reasoning_effort: str | None = None
    extra_body: dict[str, object] | None = None
    seed: Annotated[int, Field(strict=True)] | None = None
    max_tokens: PositiveCount | None = None
    max_completion_tokens: PositiveCount | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    stop: str | Annotated[list[str], Field(min_length=1, max_length=4)] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, object] | None = None
    parallel_tool_calls: Annotated[bool, Field(strict=True)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, object] | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    store: Annotated[bool, Field(strict=True)] | None = None
    metadata: dict[str, str] | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The parameters that are set."""
        return self.model_dump(mode="json", exclude_none=True)


@dataclass(frozen=True)
class ModelSettings:
    """A model, its endpoint and its parameters.

    Attributes:
        model: The model's name at the endpoint.
        base_url: The endpoint; None means `OPENAI_BASE_URL` or OpenAI's own endpoint; empty means no endpoint
            (for a cassette that was recorded without an endpoint).
        api_key_env: The environment variable that holds the key.
        temperature: The sampling temperature; None omits it from the request, as some models require.
        seed: The seed, to which the trial's number is added in each request; None sends no seed.
        parameters: Further fields of `ModelParameters`.
        max_answer_tokens: Limit of an answer in tokens if `parameters` and `extra_body` set none; None sends
            none. It is neither recorded nor part of the keys of stored answers.
        timeout: Seconds of one attempt of a call.
        price: The model's price; None if unknown.
        folder: The model's folder if a local server of this run serves the model, else None.
        adapter: The folder of the LoRA adapter that the local server applies.
        weights: Digest of the folder, followed by `+` and the adapter's digest if there is an adapter. It is
            recorded instead of a local server's address, which changes with each run.
        token: The local server's token; None until the server has been started.
        allows_ignored_tools: Whether the run continues if the endpoint ignores the tools.
        url_option, timeout_option: The options that set `base_url` and `timeout`, for error messages; empty
            if the command has none.
    """

    model: str
    base_url: str | None = field(default=None, repr=False)
    api_key_env: str = "OPENAI_API_KEY"
    temperature: float | None = 0.0
    seed: int | None = None
    reasoning_effort: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = CALL_TIMEOUT
    max_connections: int = 64
    retries: Retries = Retries()
    price: Price | None = None
    folder: Path | None = None
    adapter: Path | None = None
    weights: str | None = None
    token: str | None = field(default=None, repr=False)
    # These fields change no trace, so settings that differ only in them are equal.
    url_option: str = field(default="", repr=False, compare=False)
    timeout_option: str = field(default="", repr=False, compare=False)
    allows_ignored_tools: bool = field(default=False, compare=False)
    max_answer_tokens: int | None = field(default=None, compare=False)

    def with_parameters(self, given: Mapping[str, Any]) -> Self:
        """Return the settings with the parameters that a candidate sets."""
        own = {name: value for name, value in given.items() if name in _OWN_FIELDS}
        others = {name: value for name, value in given.items() if name not in _OWN_FIELDS}
        dropped = LIMIT_FIELDS if LIMIT_FIELDS & given.keys() else frozenset()
        kept = {name: value for name, value in self.parameters.items() if name not in dropped}
        return replace(self, **own, parameters={**kept, **others})

    @property
    def default_limit(self) -> int | None:
        """The limit of an answer in tokens that is added to requests; None if they contain one."""
        given = LIMIT_FIELDS & {*self.parameters, *self.extra_body}
        return None if given or self.weights else self.max_answer_tokens

    @property
    def answer_limit(self) -> int | None:
        """The limit of an answer in tokens; None if it is not known."""
        given = self.parameters
        limit: int | None = given.get("max_completion_tokens") or given.get("max_tokens")
        return limit or self.default_limit

    def with_server(self, base_url: str, token: str) -> Self:
        """Return the settings with the address and the token of a local server."""
        return replace(self, base_url=base_url, token=token)

    @property
    def base_weights(self) -> str:
        """Digest of the model's folder without its adapter; empty if there is none."""
        return (self.weights or "").partition("+")[0]

    def key(self) -> str:
        """Return the API key.

        Raises:
            EndpointError: the environment variable that should hold the key is missing or empty.
        """
        key = self.token or os.environ.get(self.api_key_env)
        if not key:
            raise EndpointError(
                f"model {self.model!r} needs a key: set {self.api_key_env} (any text for a local server)"
            )
        return key

    def endpoint(self) -> str | None:
        """Return `base_url`, else OPENAI_BASE_URL; None means the client's default."""
        return os.environ.get("OPENAI_BASE_URL") if self.base_url is None else self.base_url

    def require_url(self) -> None:
        """Raise `EndpointError` if a base URL is set but invalid."""
        url = self.endpoint()
        if not url:
            return
        try:
            parts = urlsplit(url)
            is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_valid = False
        if not is_valid:
            raise self.url_error()

    def url_error(self) -> EndpointError:
        """Return the error for an invalid base URL; it omits the URL, which may contain a password."""
        source = "OPENAI_BASE_URL" if self.base_url is None else self.url_option or "it"
        return EndpointError(
            f"the base URL of model {self.model!r} is not an http:// or https:// URL with a host; "
            f"check {source}"
        )

    def to_record(self) -> dict[str, object]:
        """Return the settings that evidence records: all that can change a trace, without secrets."""
        values: dict[str, object] = {
            **self.parameters,
            "temperature": self.temperature,
            "seed": self.seed,
            "reasoning_effort": self.reasoning_effort,
            "extra_body": remove_secret_fields(self.extra_body) or None,
            "endpoint": None if self.weights else without_credentials(self.endpoint()) or None,
            "weights": self.weights,
        }
        return {key: value for key, value in values.items() if value is not None}

    @classmethod
    def from_record(cls, model: str | None, record: Mapping[str, object]) -> Self:
        """Restore settings from the result of `to_record`; they are not meant for sending requests.

        Raises:
            ValueError: the model's name is missing, or a value has the wrong type (the message says which).
        """
        if not model:
            raise ValueError("model: missing name")

        def read_typed(name: str, *types: type) -> Any:
            value = record.get(name)
            if value is not None and (not isinstance(value, types) or isinstance(value, bool)):
                raise ValueError(f"{name}: not a {types[0].__name__}")
            return value

        names = ModelParameters.model_fields.keys() - _OWN_FIELDS
        try:
            parameters = ModelParameters.model_validate({name: record.get(name) for name in names}).given
        except ValidationError as error:
            raise ValueError(first_problem(error)) from None
        return cls(
            model=model,
            base_url=read_typed("endpoint", str) or "",
            temperature=read_typed("temperature", float, int),
            seed=read_typed("seed", int),
            reasoning_effort=read_typed("reasoning_effort", str),
            extra_body=read_typed("extra_body", dict) or {},
            parameters=parameters,
            weights=read_typed("weights", str),
        )


_OWN_FIELDS = frozenset({"temperature", "seed", "reasoning_effort", "extra_body"})
"""The parameters that are fields of `ModelSettings`."""


def without_credentials(url: str | None) -> str | None:
    """Return a URL without its user name, password, query and fragment."""
    if url is None:
        return None
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
