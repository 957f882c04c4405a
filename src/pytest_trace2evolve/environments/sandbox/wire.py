"""The lines between parent and child, as the parent makes and reads them: JSON in, only JSON out."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

_WORDS = 300


class NonsenseError(Exception):
    """A line is no JSON object of finite numbers and whole characters."""


class Json(NamedTuple):
    """A value that is JSON text already: a record's own, or one that is sent again and again.

    Attributes:
        text: The text. It is sent as it stands, without line breaks.
    """

    text: str


def request_line(head: Mapping[str, Any], arguments: Sequence[Any] = ()) -> bytes:
    """A request.

    Raises:
        TypeError: an argument has no JSON form.
        ValueError: a number is not finite, or a `Json` has line breaks.
    """
    parts = [one.text if isinstance(one, Json) else _encode(one) for one in arguments]
    told = ",".join(parts)
    if "\n" in told:
        raise ValueError("JSON text with a line break in it; write it without")
    line = f'{_encode(head)[:-1]},"arguments":[{told}]}}\n'
    return line.encode("utf-8")


def decoded(line: bytes) -> dict[str, Any]:
    """The object in a line.

    Raises:
        NonsenseError: there is none, a number is not finite, or a text has no UTF-8 form.
    """
    try:
        found = _decode(line.decode("utf-8"))
        if b"\\ud" in line or b"\\uD" in line:
            # Perhaps half of a character: nobody could write the text down later.
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise NonsenseError(plain(str(error))) from None
    if not isinstance(found, dict):
        raise NonsenseError("it is no object")
    return found


def plain(text: str) -> str:
    """A text of hostile origin as part of a message: one line, no control characters, not too long."""
    line = " ".join(text.split())
    shown = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in line[:_WORDS])
    return f"{shown} …" if len(line) > _WORDS else shown


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no finite number")


def _finite(text: str) -> float:
    """A number with a point or an exponent: one beyond all floats would be read as infinity."""
    number = float(text)
    if number in (math.inf, -math.inf):
        raise ValueError(f"{text[:20]} is no finite number")
    return number


# A circle is found by its depth: to keep book of every list on the way costs a tenth.
_encode = json.JSONEncoder(check_circular=False, allow_nan=False, separators=(",", ":")).encode
_decode = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite).decode
