"""Renders JSON values in canonical form, computes their digests, and yields the strings that they contain."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

DIGEST_LENGTH = 32
"""Number of hexadecimal digits kept of a SHA-256 digest: 128 bits, short enough to review in a lock file."""


def canonical_json(value: Any) -> str:
    """Render a JSON value with sorted keys, no spaces and finite numbers only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """Return the digest of a value's canonical JSON: the first 32 hexadecimal digits of its SHA-256."""
    return digest_text(canonical_json(value))


def digest_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]


def storable_text(text: str) -> str:
    """Return the text with unpaired surrogates, which UTF-8 cannot encode, written as escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def texts_in(value: object, *, include_names: bool = True) -> Iterator[str]:
    """Yield all strings in a JSON value, including field names unless `include_names` is false.

    A search in rendered JSON would miss strings with line breaks, which are escaped there.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            if include_names:
                yield name
            yield from texts_in(item, include_names=include_names)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item, include_names=include_names)


def is_deeper(value: object, levels: int) -> bool:
    """Return whether lists and objects in a JSON value nest deeper than `levels`, without recursion."""
    layer: list[Any] = [value]
    for _ in range(levels + 1):
        layer = [
            child
            for item in layer
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not layer:
            return False
    return True
