"""Secrets in texts: what counts as one, and how it is taken out before anything keeps or shows the text.

An endpoint may echo a key wherever it likes: in an answer, an error, a header that a client library logs. So
the value itself is looked for, in every form in which it travels.
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
"""What stands in a text where a secret stood."""

_SECRET_NAME = re.compile(r"key(?!word)|token(?!i[sz])|secret|passw|authorization|credential", re.IGNORECASE)

_SHORTEST = 6
"""Characters of the shortest value looked for: `none` or `x` is what a local server is given for a key."""

_CLIENT_LOGGERS = ("openai", "httpx", "httpcore")
"""How the names of the client libraries' loggers begin."""

_LATE_LOGGERS = (
    "httpx2",
    *(f"httpcore2.{part}" for part in ("connection", "http11", "http2", "proxy", "socks")),
)
"""Loggers that may be made later, the last five at the first request: a filter reaches none below its own."""


class Secrets:
    """Values that nothing may show.

    Answers are measured, so a value is taken out of them only where it cannot be an ordinary word: with 8
    characters or more and something other than letters, or with 16 or more. Errors and logs lose it always.
    """

    def __init__(self, values: Iterable[str]) -> None:
        found = {value for value in values if len(value) >= _SHORTEST}
        self._forms = _forms(found)
        self._answer_forms = _forms({value for value in found if not _could_be_a_word(value)})

    @classmethod
    def of(cls, url: str | None, key: str | None, body: Mapping[str, Any] | None = None) -> Self:
        """The secrets of one endpoint: its key, those in its URL, those in what is sent with each request."""
        return cls([*([key] if key else []), *_in_url(url), *_named_in(body or {})])

    def out_of(self, text: str) -> str:
        """A text for people (an error, a line of a log) without any secret."""
        return _without(text, self._forms)

    def out_of_answer(self, value: Any) -> Any:
        """JSON that an endpoint sent, without any secret; JSON inside its strings too."""
        if not self._answer_forms:
            return value
        if isinstance(value, str):
            return self._out_of_string(value)
        if isinstance(value, list):
            return [self.out_of_answer(one) for one in value]
        if isinstance(value, dict):
            return {self._out_of_string(name): self.out_of_answer(one) for name, one in value.items()}
        return value

    def _out_of_string(self, text: str) -> str:
        clean = _without(text, self._answer_forms)
        # Arguments of a tool call are JSON in a string, where a letter can hide in an escape, and where a
        # secret that is cut out of the text can take a part of an escape with it.
        if "\\" in text:
            try:
                inner = json.loads(text)
                if isinstance(inner, dict | list) and (cleaned := self.out_of_answer(inner)) != inner:
                    return json.dumps(cleaned)
            except (ValueError, RecursionError):
                return clean
        return clean

    def guard_logs(self) -> Callable[[], None]:
        """Keep the secrets out of what the client libraries log; returns what ends that."""
        guard = _Guard(self)
        known = [name for name in logging.root.manager.loggerDict if name.startswith(_CLIENT_LOGGERS)]
        loggers = [logging.getLogger(name) for name in {*known, *_LATE_LOGGERS}]
        for logger in loggers:
            logger.addFilter(guard)

        def end() -> None:
            for logger in loggers:
                logger.removeFilter(guard)

        return end


class _Guard(logging.Filter):
    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self._secrets = secrets

    def filter(self, record: logging.LogRecord) -> bool:
        told = record.getMessage()
        if (clean := self._secrets.out_of(told)) != told:
            record.msg, record.args = clean, ()
        if record.exc_info:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            record.exc_info = None
        if record.exc_text:  # another model's guard may have put it there
            record.exc_text = self._secrets.out_of(record.exc_text)
        return True


def without_secrets(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request's fields with those removed whose names say that they hold a secret; numbers are none."""
    return {name: REMOVED if _hides(name, value) else _inside(value) for name, value in body.items()}


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return without_secrets(value)
    return [_inside(one) for one in value] if isinstance(value, list) else value


def _hides(name: str, value: Any) -> bool:
    return isinstance(value, str | list | dict) and _SECRET_NAME.search(name) is not None


def _named_in(value: Any) -> list[str]:
    """The texts that `without_secrets` removes."""
    if isinstance(value, list):
        return [text for one in value for text in _named_in(one)]
    if not isinstance(value, Mapping):
        return []
    return [
        text for name, one in value.items() for text in (_texts(one) if _hides(name, one) else _named_in(one))
    ]


def _texts(value: Any) -> list[str]:
    """All texts in a value, and of `Bearer …` the token alone too."""
    if isinstance(value, str):
        return [value, value.rpartition(" ")[2]]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in inner for text in _texts(one)]


def _in_url(url: str | None) -> list[str]:
    if url is None:
        return []
    parts = urlsplit(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    basic = base64.b64encode(f"{user}:{password}".encode()).decode() if user or password else ""
    # A user name alone is a token; beside a password it is a name.
    return [password or user, basic, *(value for _, value in parse_qsl(parts.query))]


def _could_be_a_word(value: str) -> bool:
    return len(value) < 8 or (value.isalpha() and len(value) < 16)


def _forms(values: Iterable[str]) -> tuple[str, ...]:
    """Every form in which the values travel, the longest first."""
    forms: set[str] = set()
    for value in values:
        escaped = (json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
        logged = (repr(value)[1:-1], repr(value.encode("utf-8", "surrogatepass"))[2:-1])
        forms |= {value, *escaped, *logged, quote(value, safe="", errors="surrogatepass")}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def _without(text: str, forms: Iterable[str]) -> str:
    for form in forms:
        if form in text:
            text = text.replace(form, REMOVED)
    return text
