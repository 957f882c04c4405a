"""Removes secrets from texts before anything stores or shows them.

An endpoint may echo a key anywhere: in an answer, an error, or a header that a client library logs. Texts are
therefore searched for the value itself, in every form in which it may appear.
"""

import base64
import json
import logging
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

REMOVED = "[removed]"
"""Replaces a secret."""

_SECRET_NAME = re.compile(r"key(?!word)|token(?!i[sz])|secret|passw|authorization|credential", re.IGNORECASE)

_SHORTEST = 6
"""Minimum characters of a secret, because the key of a local server is often just `none` or `x`."""

_CLIENT_LOGGERS = ("openai", "httpx", "httpcore")
"""Prefixes of the client libraries' loggers."""

_LATE_LOGGERS = (
    "httpx2",
    *(f"httpcore2.{part}" for part in ("connection", "http11", "http2", "proxy", "socks")),
)
"""Loggers that may only be created at the first request; each is listed, as filters skip child loggers."""


class Secrets:
    """Values that must not be shown.

    Answers are measured, so a value is removed from an answer only if the value cannot be an ordinary word.
    Such a value has 16 characters or more, or 8 or more that are not all letters. From errors and logs, every
    value is removed.
    """

    def __init__(self, values: Iterable[str]) -> None:
        found = {value for value in values if len(value) >= _SHORTEST}
        self._forms = _forms(found)
        self._answer_forms = _forms({value for value in found if not _may_be_a_word(value)})

    @classmethod
    def of(cls, url: str | None, key: str | None, body: Mapping[str, Any] | None = None) -> Self:
        """The secrets of an endpoint: its key, those in its URL, and those sent with each request."""
        return cls([*([key] if key else []), *_secrets_in_url(url), *_secrets_in(body or {})])

    def out_of(self, text: str) -> str:
        """Remove the secrets from an error or a log line."""
        return _without(text, self._forms)

    def out_of_answer(self, value: Any) -> Any:
        """Remove the secrets from an endpoint's JSON value, including those in JSON inside its strings."""
        if not self._answer_forms:
            return value
        if isinstance(value, str):
            return self._out_of_string(value)
        if isinstance(value, list):
            return [self.out_of_answer(item) for item in value]
        if isinstance(value, dict):
            return {self._out_of_string(name): self.out_of_answer(item) for name, item in value.items()}
        return value

    def _out_of_string(self, text: str) -> str:
        clean = _without(text, self._answer_forms)
        # The arguments of a tool call are JSON in a string. In this JSON an escape can hide a letter of the
        # secret, and cutting the secret out can split an escape.
        if "\\" in text:
            try:
                inner = json.loads(text)
                if isinstance(inner, dict | list) and (cleaned := self.out_of_answer(inner)) != inner:
                    return json.dumps(cleaned)
            except (ValueError, RecursionError):
                return clean
        return clean

    def guard_logs(self) -> Callable[[], None]:
        """Remove the secrets from the client libraries' logs; returns a function that ends the removal."""
        guard = _LogGuard(self)
        existing = [name for name in logging.root.manager.loggerDict if name.startswith(_CLIENT_LOGGERS)]
        loggers = [logging.getLogger(name) for name in {*existing, *_LATE_LOGGERS}]
        for logger in loggers:
            logger.addFilter(guard)

        def end() -> None:
            for logger in loggers:
                logger.removeFilter(guard)

        return end


class _LogGuard(logging.Filter):
    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self._secrets = secrets

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if (clean := self._secrets.out_of(message)) != message:
            record.msg, record.args = clean, ()
        if record.exc_info:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            record.exc_info = None
        if record.exc_text:  # perhaps set by another model's guard
            record.exc_text = self._secrets.out_of(record.exc_text)
        return True


def without_secrets(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's fields, with `REMOVED` for fields whose names mark a secret; numbers stay."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, dict):
            return without_secrets(value)
        return [cleaned(item) for item in value] if isinstance(value, list) else value

    return {name: REMOVED if _is_secret(name, value) else cleaned(value) for name, value in body.items()}


def _is_secret(name: str, value: Any) -> bool:
    return isinstance(value, str | list | dict) and _SECRET_NAME.search(name) is not None


def _secrets_in(value: Any) -> list[str]:
    """The texts that `without_secrets` removes."""
    if isinstance(value, list):
        return [text for item in value for text in _secrets_in(item)]
    if not isinstance(value, Mapping):
        return []
    return [
        text
        for name, item in value.items()
        for text in (_texts(item) if _is_secret(name, item) else _secrets_in(item))
    ]


def _texts(value: Any) -> list[str]:
    """All texts in a value, and the bare token of `Bearer …`."""
    if isinstance(value, str):
        return [value, value.rpartition(" ")[2]]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in inner for text in _texts(item)]


def _secrets_in_url(url: str | None) -> list[str]:
    if url is None:
        return []
    parts = urlsplit(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    basic = base64.b64encode(f"{user}:{password}".encode()).decode() if user or password else ""
    # A user name without a password is a token.
    return [password or user, basic, *(value for _, value in parse_qsl(parts.query))]


def _may_be_a_word(value: str) -> bool:
    return len(value) < 8 or (value.isalpha() and len(value) < 16)


def _forms(values: Iterable[str]) -> tuple[str, ...]:
    """Return every form in which the values may appear, the longest first."""
    forms: set[str] = set()
    for value in values:
        escaped = (json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
        logged = (repr(value)[1:-1], repr(value.encode("utf-8", "surrogatepass"))[2:-1])
        forms |= {value, *escaped, *logged, quote(value, safe="", errors="surrogatepass")}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def _without(text: str, forms: Iterable[str]) -> str:
    for form in forms:
        text = text.replace(form, REMOVED)
    return text
