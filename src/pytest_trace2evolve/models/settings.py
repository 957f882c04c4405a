"""Which model a simulation talks to, and how patiently. No client is imported here."""

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

from pytest_trace2evolve.errors import EndpointError
from pytest_trace2evolve.models.prices import Price
from pytest_trace2evolve.utils.secrets import without_secrets

CALL_TIMEOUT = 600.0
"""Seconds after which one try of a call is given up, where nothing else is said; the openai client's own."""


@dataclass(frozen=True)
class Retries:
    """How failed requests are tried again.

    Attributes:
        attempts: Tries of one completion, the first included.
        first: Seconds before the second try; doubled for each further one, then drawn from the upper half.
        longest: Seconds that a pause lasts at most, whatever the endpoint asks for.
    """

    attempts: int = 7
    first: float = 0.5
    longest: float = 60.0

    def pause(self, tried: int, asked: float | None) -> float:
        """Seconds before the next try, after `tried` tries; `asked` is the endpoint's `Retry-After`."""
        backoff: float = min(self.longest, self.first * 2.0 ** (tried - 1)) * random.uniform(0.5, 1.0)
        return backoff if asked is None else min(self.longest, max(asked, 0.0)) + backoff * 0.1


@dataclass(frozen=True)
class ModelSettings:
    """Which model, where, and how it is asked.

    Attributes:
        model: Its name at the endpoint.
        base_url: The endpoint; None takes `OPENAI_BASE_URL` or OpenAI's own; empty is none at all, as where a
            cassette was recorded without one.
        key_var: The environment variable that holds the key.
        temperature: None leaves it out of the request, as some models demand.
        seed: Sent with each request, plus the trial's number; None sends none.
        timeout: Seconds after which one try of a call is given up.
        price: What it costs; None where that is not known.
        folder: Where the model lies, where a local server of this run answers for it; None elsewhere.
        adapter: The LoRA adapter that it talks with there.
        weights: Digest of that folder, and of the adapter's behind a plus sign: recorded instead of an
            address that changes with each run.
        token: What that server asks for; None until it has been started.
        url_option, timeout_option: The options that set `base_url` and `timeout`, for messages; empty if the
            command has none.
    """

    model: str
    base_url: str | None = field(default=None, repr=False)
    key_var: str = "OPENAI_API_KEY"
    temperature: float | None = 0.0
    seed: int | None = None
    reasoning_effort: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    timeout: float = CALL_TIMEOUT
    max_connections: int = 64
    retries: Retries = Retries()
    price: Price | None = None
    folder: Path | None = None
    adapter: Path | None = None
    weights: str | None = None
    token: str | None = field(default=None, repr=False)
    # They name no other model and change no trace: two settings that differ only here are the same.
    url_option: str = field(default="", repr=False, compare=False)
    timeout_option: str = field(default="", repr=False, compare=False)

    def served(self, base_url: str, token: str) -> Self:
        """The same, asked at a local server."""
        return replace(self, base_url=base_url, token=token)

    @property
    def base_weights(self) -> str:
        """Digest of the model's folder alone; empty where there is none."""
        return (self.weights or "").partition("+")[0]

    def key(self) -> str:
        """The key.

        Raises:
            EndpointError: the variable that should hold it is empty.
        """
        key = self.token or os.environ.get(self.key_var)
        if not key:
            raise EndpointError(
                f"model {self.model!r} needs a key: set {self.key_var} (any text for a local server)"
            )
        return key

    def require_url(self) -> None:
        """See that the endpoint, where one is named, is a URL that can be asked.

        Raises:
            EndpointError: it is none.
        """
        url = self.endpoint()
        if not url:
            return
        try:
            parts = urlsplit(url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fits = False
        if not fits:
            raise self.bad_url()

    def bad_url(self) -> EndpointError:
        """The error about a base URL; it does not quote it, since a password may be in it."""
        source = "OPENAI_BASE_URL" if self.base_url is None else self.url_option or "it"
        return EndpointError(
            f"the base URL of model {self.model!r} is no http:// or https:// URL with a host: check {source}"
        )

    def recorded(self) -> dict[str, object]:
        """What evidence keeps of the settings: nothing secret, and nothing that changes no trace."""
        kept: dict[str, object] = {
            "temperature": self.temperature,
            "seed": self.seed,
            "reasoning_effort": self.reasoning_effort,
            "extra_body": without_secrets(self.extra_body) or None,
            "endpoint": None if self.weights else without_credentials(self.endpoint()) or None,
            "weights": self.weights,
        }
        return {key: value for key, value in kept.items() if value is not None}

    def endpoint(self) -> str | None:
        """Where the model is asked: as said, else by OPENAI_BASE_URL; None is the client's own."""
        return os.environ.get("OPENAI_BASE_URL") if self.base_url is None else self.base_url

    @classmethod
    def from_recorded(cls, model: str | None, recorded: Mapping[str, object]) -> Self:
        """The settings that `recorded` gave, to record the same again; not to ask anybody with.

        Raises:
            ValueError: a value is not of its kind; says which.
        """
        if not model:
            raise ValueError("model: a name is missing")
        return cls(
            model=model,
            base_url=_kind(recorded, "endpoint", str) or "",
            temperature=_kind(recorded, "temperature", float, int),
            seed=_kind(recorded, "seed", int),
            reasoning_effort=_kind(recorded, "reasoning_effort", str),
            extra_body=_kind(recorded, "extra_body", dict) or {},
            weights=_kind(recorded, "weights", str),
        )


def _kind(recorded: Mapping[str, object], name: str, *kinds: type) -> Any:
    value = recorded.get(name)
    if value is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
        raise ValueError(f"{name}: not a {kinds[0].__name__}")
    return value


def without_credentials(url: str | None) -> str | None:
    """A URL without the user name and password that it may hold, and without its query."""
    if url is None:
        return None
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
