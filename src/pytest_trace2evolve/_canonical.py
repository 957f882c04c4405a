"""Stable JSON text and digests: equal content gives equal text, whatever order it was written in."""

import hashlib
import json
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
