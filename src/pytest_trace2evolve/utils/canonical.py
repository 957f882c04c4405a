"""JSON values: stable text and digests, equal for equal content in whatever order, and the texts in them."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

DIGEST_LENGTH = 32
"""Hexadecimal digits kept of a SHA-256: 128 bits, short enough for a reviewable lock file."""


def canonical_json(value: Any) -> str:
    """Render JSON-like `value` with sorted keys, no spaces and finite numbers only.

    Raises:
        ValueError: a number is not finite.
        TypeError: a value has no JSON form.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """Digest of the canonical JSON of `value`: the first 32 hexadecimal digits of its SHA-256."""
    return digest_text(canonical_json(value))


def digest_text(text: str) -> str:
    """Digest of a text as it stands."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]


def texts_in(value: object, *, names: bool = True) -> Iterator[str]:
    """All texts in a JSON value, names of fields too unless told otherwise.

    Rendered as JSON instead, a new line in a text would end in a letter.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, one in value.items():
            if names:
                yield name
            yield from texts_in(one, names=names)
    elif isinstance(value, list):
        for one in value:
            yield from texts_in(one, names=names)
