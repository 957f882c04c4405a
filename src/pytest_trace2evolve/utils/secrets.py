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

REMOVAL_MARK = "[removed]"
"""The text that replaces a secret."""

_SECRET_NAME = re.compile(r"key(?!word)|token(?!i[sz])|secret|passw|authorization|credential", re.IGNORECASE)

_MIN_LENGTH = 6
"""Minimum length of a secret, because the key of a local server is often just `none` or `x`."""

_CLIENT_LOGGER = "aiohttp.client"
"""The only logger that the client library uses for requests."""


class Secrets:
    """Values that must not be shown.

    Answers are evaluated, so a value is removed from an answer only if it cannot be an ordinary word. Such
    a value has 16 characters or more, or 8 or more that are not all letters. From errors and logs, every
    value is removed.
    """

    def __init__(self, values: Iterable[str]) -> None:
        secrets = {value for value in values if len(value) >= _MIN_LENGTH}
        self._forms = _written_forms(secrets)
        self._answer_forms = _written_forms({value for value in secrets if not _may_be_word(value)})

    @classmethod
    def of_endpoint(cls, url: str | None, key: str | None, body: Mapping[str, Any] | None = None) -> Self:
        """Return the secrets of an endpoint: its key, and the secrets in its URL and in each request."""
        return cls([*([key] if key else []), *_find_url_secrets(url), *_find_secrets(body or {})])

    def remove_from(self, text: str) -> str:
        """Remove the secrets from an error or a log line."""
        return _remove_forms(text, self._forms)

    def remove_from_answer(self, value: Any) -> Any:
        """Remove the secrets from an endpoint's JSON value, including those in JSON inside its strings."""
        if not self._answer_forms:
            return value
        if isinstance(value, str):
            return self._remove_from_string(value)
        if isinstance(value, list):
            return [self.remove_from_answer(item) for item in value]
        if isinstance(value, dict):
            return {
                self._remove_from_string(name): self.remove_from_answer(item) for name, item in value.items()
            }
        return value

    def _remove_from_string(self, text: str) -> str:
        redacted = _remove_forms(text, self._answer_forms)
        # The arguments of a tool call are JSON in a string. In this JSON an escape can hide a letter of the
        # secret, and cutting the secret out can split an escape.
        if "\\" in text:
            try:
                parsed = json.loads(text)
                if (
                    isinstance(parsed, dict | list)
                    and (redacted_value := self.remove_from_answer(parsed)) != parsed
                ):
                    return json.dumps(redacted_value)
            except (ValueError, RecursionError):
                return redacted
        return redacted

    def filter_logs(self) -> Callable[[], None]:
        """Remove the secrets from the client libraries' logs, and return a function that ends the removal."""
        secret_filter = _SecretFilter(self)
        logger = logging.getLogger(_CLIENT_LOGGER)
        logger.addFilter(secret_filter)
        return lambda: logger.removeFilter(secret_filter)


class _SecretFilter(logging.Filter):
    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self._secrets = secrets

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if (clean := self._secrets.remove_from(message)) != message:
            record.msg, record.args = clean, ()
        if record.exc_info:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            record.exc_info = None
        if record.exc_text:  # perhaps set by the filter of another model
            record.exc_text = self._secrets.remove_from(record.exc_text)
        return True


def remove_secret_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's fields, with `REMOVAL_MARK` for fields whose names mark a secret; numbers stay."""

    def clean_value(value: Any) -> Any:
        if isinstance(value, dict):
            return remove_secret_fields(value)
        return [clean_value(item) for item in value] if isinstance(value, list) else value

    return {
        name: REMOVAL_MARK if _is_secret(name, value) else clean_value(value) for name, value in body.items()
    }


def _is_secret(name: str, value: Any) -> bool:
    return isinstance(value, str | list | dict) and _SECRET_NAME.search(name) is not None


def _find_secrets(value: Any) -> list[str]:
    """Return the texts that `remove_secret_fields` removes."""
    if isinstance(value, list):
        return [text for item in value for text in _find_secrets(item)]
    if not isinstance(value, Mapping):
        return []
    return [
        text
        for name, item in value.items()
        for text in (_list_texts(item) if _is_secret(name, item) else _find_secrets(item))
    ]


def _list_texts(value: Any) -> list[str]:
    """Return all texts in a value, and the bare token of `Bearer …`."""
    if isinstance(value, str):
        return [value, value.rpartition(" ")[2]]
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in children for text in _list_texts(item)]


def _find_url_secrets(url: str | None) -> list[str]:
    if url is None:
        return []
    parts = urlsplit(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    basic_token = base64.b64encode(f"{user}:{password}".encode()).decode() if user or password else ""
    # A user name without a password is a token.
    return [password or user, basic_token, *(value for _, value in parse_qsl(parts.query))]


def _may_be_word(value: str) -> bool:
    return len(value) < 8 or (value.isalpha() and len(value) < 16)


def _written_forms(values: Iterable[str]) -> tuple[str, ...]:
    """Return every form in which the values may appear, the longest first."""
    forms: set[str] = set()
    for value in values:
        json_forms = (json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
        repr_forms = (repr(value)[1:-1], repr(value.encode("utf-8", "surrogatepass"))[2:-1])
        forms |= {value, *json_forms, *repr_forms, quote(value, safe="", errors="surrogatepass")}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def _remove_forms(text: str, forms: Iterable[str]) -> str:
    for form in forms:
        text = text.replace(form, REMOVAL_MARK)
    return text
