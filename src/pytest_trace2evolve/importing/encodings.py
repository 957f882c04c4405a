"""Decodes texts within texts: JSON, Python literals, JSON escapes, URL encoding and HTML entities."""

import ast
import functools
import html
import json
import re
import unicodedata
from typing import Any
from urllib.parse import unquote_plus

from pytest_trace2evolve.utils.reading import parse_json

MAX_LITERAL = 100_000
"""Maximum number of characters of a text that is parsed as a Python literal, as in a logged `str(dict)`."""

PERCENT_ENCODED = re.compile(r"""[^\s"'<>%]{0,500}(?:%[0-9A-Fa-f]{2}[^\s"'<>%]{0,500})+""")
_ESCAPE = re.compile(r"(?:\\u[0-9a-fA-F]{4})+|\\/")


def inner_json(text: str) -> Any:
    """Return the object or list that a text holds as JSON; None if it holds none."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict | list) else None


def inner_value(text: str) -> Any:
    """Return the object or list that a text holds as JSON or as a Python literal; None if it holds none."""
    json_value = inner_json(text)
    if json_value is not None or text.lstrip()[:1] not in ("{", "[") or len(text) > MAX_LITERAL:
        return json_value
    try:
        value = ast.literal_eval(text.strip())
        return json.loads(json.dumps(value, default=str)) if isinstance(value, dict | list) else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def without_escapes(text: str) -> str:
    """Return a text with its JSON escapes of characters and slashes decoded."""
    return _ESCAPE.sub(_decode_escape, text) if "\\" in text else text


def decoded_forms(text: str) -> list[str]:
    """Return a text and its forms without JSON escapes, URL encoding or HTML entities, if they differ."""
    forms = [text]
    forms.append(without_escapes(text))
    if "%" in text:
        forms.append(PERCENT_ENCODED.sub(lambda match: unquoted(match[0]), text))
    if "&" in text:
        forms.append(html.unescape(text))
    return [form for index, form in enumerate(forms) if index == 0 or form != text]


def _decode_escape(match: re.Match[str]) -> str:
    try:
        return str(json.loads(f'"{match[0]}"')).encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    except ValueError:
        return match[0]


def unquoted(text: str) -> str:
    return unquote_plus(text if "=" in text else text.replace("+", "%2B"))


@functools.lru_cache(maxsize=10_000)
def phrase_pattern(phrase: str) -> re.Pattern[str]:
    """Return a pattern that matches a phrase in any case and spacing."""
    words = [re.escape(word) for word in unicodedata.normalize("NFC", phrase).split()]
    pattern = r"\s+".join(words)
    if phrase.lower() != phrase.upper() or any(map(str.isdigit, phrase)):
        pattern = rf"(?<![^\W_]){pattern}(?![^\W_])"
    return re.compile(pattern, re.IGNORECASE)
