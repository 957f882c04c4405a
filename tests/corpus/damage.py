"""Damaged forms of a valid file. Each is made where it is needed: nothing large is stored."""

import gzip
import json
import os
import random
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Write = Callable[[Path], None]


@dataclass(frozen=True)
class Damage:
    """One way to damage a file.

    Attributes:
        name: Names it in a test's id.
        write: Makes the damaged file at a path where nothing is.
        refused: Whether every reader must reject the file; else it may be read too.
    """

    name: str
    write: Write
    refused: bool = True


def damages(kind: str, valid: bytes, seeds: int) -> Iterator[Damage]:
    """Damaged forms of a file.

    Args:
        kind: `json`, `jsonl`, `toml`, `markdown`, `weights` or `text`.
        valid: The content of the valid file.
        seeds: How many random changes of one of its values.
    """
    yield from _not_a_file()
    for name, content in _bytes(valid).items():
        yield Damage(name, _writer(content))
    if kind in ("json", "jsonl"):
        for name, content in _json().items():
            yield Damage(name, _writer(content))
    if kind == "toml":
        for name, content in _toml(valid.decode()).items():
            yield Damage(name, _writer(content))
    if kind == "weights":
        for name, content in _weights(valid).items():
            yield Damage(name, _writer(content))
    for seed in range(seeds):
        yield Damage(f"changed-{seed}", _writer(_changed(kind, valid, seed)), refused=False)


def _writer(content: bytes) -> Write:
    return lambda path: _write(path, content)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(6 << 30)


def _unreadable(path: Path) -> None:
    path.write_bytes(b"{}")
    path.chmod(0)


def _not_a_file() -> Iterator[Damage]:
    yield Damage("folder", Path.mkdir)
    yield Damage("fifo", os.mkfifo)
    yield Damage("device", lambda path: path.symlink_to("/dev/zero"))
    yield Damage("null-device", lambda path: path.symlink_to("/dev/null"))
    yield Damage("loop", lambda path: path.symlink_to(path.name))
    yield Damage("endless", lambda path: path.symlink_to("/proc/self/pagemap"))
    yield Damage("sparse", _sparse)
    if os.geteuid():
        yield Damage("unreadable", _unreadable)


@cache
def bomb() -> bytes:
    """6 MB of gzip that expand to 6 GB, in one member for each 10 MB."""
    return gzip.compress(b" " * (10 << 20), 9) * 600


@cache
def single_bomb() -> bytes:
    """A gzip file of one member that expands to 100 MB."""
    return gzip.compress(b" " * (100 << 20), 6)


def _bytes(valid: bytes) -> dict[str, bytes]:
    return {
        "cut-off": valid[: len(valid) // 2].rstrip(b"\n\r ]}-"),
        "no-text": b"\x00\xff\xfe" * 100,
        "nul": valid[:1] + b"\0" + valid[1:],
        "utf-16": valid.decode(errors="replace").encode("utf-16"),
        "latin-1": b'{"\xe9": "\xe9\xff"}' + valid[:20],
        "half-surrogate": b'"\xed\xa0\x80"\n' + valid,
        "nested": b"[" * 100_000,
        "objects": b'{"a":' * 100_000,
        "digits": b"9" * 5_000,
        "long-line": b'"' + b"x" * (9 << 20),
        "bomb": bomb(),
        "one-bomb": single_bomb(),
        "cut-gzip": gzip.compress(valid)[:-9],
        "no-gzip": b"\x1f\x8b\x08" + b"\x00" * 50,
    }


def _json() -> dict[str, bytes]:
    return {
        "empty": b"",
        "list": b"[]",
        "number": b"3",
        "null": b"null",
        "empty-object": b"{}",
        "nan": b'{"a": NaN}',
        "infinite": b'{"a": 1e999}',
        "surrogate": b'{"a": "\\ud800"}',
        "two-values": b"{}{}",
        "trailing": b'{"a": 1,}',
        "comment": b'{"a": 1} // one',
        "single-quotes": b"{'a': 1}",
        "tiny-values": b"[" + b"[]," * 9_000_000 + b"0]",
        "control": b'{"a": "\x1b[31m"}',
        "unknown-field": b'{"\\u001b]8;;x": {"\\u0000": []}}',
        "long-name": b'{"' + b"n" * 100_000 + b'": 1}',
        "open": b'{"a": "' + b"x" * 100_000,
        "many-names": b"{" + b"".join(b'"%d":0,' % number for number in range(100_000)) + b'"99999":0}',
    }


def _toml(valid: str) -> dict[str, bytes]:
    first = valid.split("\n", 1)[0].encode() or b"a = 1"
    return {
        "arrays": b"hostile = " + b"[" * 100_000,
        "tables": b"hostile = " + b"{a=" * 50_000,
        "dots": b"a." * 200_000 + b"a = 1",
        "dotted-table": b"[" + b"a." * 200_000 + b"a]",
        "levels": b"a." * 500 + b"a = 1",
        "digits-of-value": b"hostile = " + b"9" * 5_000,
        "hex": b"hostile = 0x" + b"f" * 100_000,
        "65-bits": b"hostile = 18446744073709551616",
        "nan": valid.encode() + b"\n[hostile]\na = nan",
        "infinite": valid.encode() + b"\n[hostile]\na = -inf",
        "twice": first + b"\n" + first if b"=" in first else b"a = 1\na = 1",
        "surrogate": b'hostile = "\\ud800"',
        "escaped-nul": b'hostile = "\\u0000"',
        "nul-name": b'"a\\u0000b" = 1',
        "raw-control": b'hostile = "\x1b[31m"',
        "no-value": b"hostile =",
        "date": b"hostile = 2026-13-45",
        "long-name": b"n" * 100_000 + b" = 1",
        "conflict": b"<<<<<<< ours\n" + valid.encode(),
        "mark": b"\xef\xbb\xbf" + valid.encode(),
    }


def _weights(valid: bytes) -> dict[str, bytes]:
    def headed(header: object, rest: bytes = b"") -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + rest

    def tensor(**changes: object) -> dict[str, object]:
        return {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changes}}

    return {
        "empty": b"",
        "seven-bytes": b"\0" * 7,
        "huge-header": struct.pack("<Q", 1 << 62) + b"{}",
        "no-object": headed([1, 2]),
        "no-tensors": headed({"a": 1}),
        "deep-header": headed(b'{"a":' * 10_000),
        "digits-of-offset": headed(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,' + b"9" * 5_000 + b"]}}"
        ),
        "text-offsets": headed(tensor(data_offsets=["0", "4"]), b"\0" * 4),
        "infinite-offsets": headed(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,1e999]}}'),
        "negative-shape": headed(tensor(shape=[-1]), b"\0" * 4),
        "no-shape": headed(tensor(shape=None), b"\0" * 4),
        "overlap": headed(
            {**tensor(), "b": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]}}, b"\0" * 6
        ),
        "short": headed(tensor(), b"\0" * 3),
        "twice": headed(b'{"a":{},"a":{}}'),
        "surrogate": headed(b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"\0" * 4),
    }


VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1 << 63,
    -(1 << 70),
    10**400,
    1.5,
    -1e30,
    1e308,
    5e-324,
    "",
    "x" * 100_000,
    "\u202e\x1b[31m::error::",
    "\x00",
    "../../../../etc/passwd",
    "a/" * 3_000,
    "🙂" * 5_000,
    [],
    {},
    [[]] * 10_000,
    {"a": {"a": {"a": []}}},
    "nested",
)
"""What takes the place of a value; `nested` stands for 150 lists around it."""


def _changed(kind: str, valid: bytes, seed: int) -> bytes:
    """The file with one value changed, removed or given twice; which and how follows from the seed."""
    draw = random.Random(f"{kind} {seed}")
    if kind == "json":
        return _changed_json(valid, draw)
    if kind == "jsonl":
        lines = valid.splitlines(keepends=True)
        place = draw.randrange(len(lines))
        lines[place] = _changed_json(lines[place], draw) + b"\n"
        return b"".join(lines)
    if kind == "weights":
        place = draw.randrange(min(len(valid), 2_000))
        return valid[:place] + bytes([draw.randrange(256)]) + valid[place + 1 :]
    return _changed_text(valid.decode(), draw).encode("utf-8", "surrogatepass")


def _changed_json(text: bytes, draw: random.Random) -> bytes:
    record = json.loads(text)
    places = list(_places(record))
    holder, key = draw.choice(places) if places else ({"a": record}, "a")
    how = draw.choice(("value", "value", "value", "value", "remove", "twice", "add"))
    if how == "remove":
        del holder[key]
    elif how == "twice" and isinstance(holder, list):
        holder.append(holder[key])
    elif how == "add" and isinstance(holder, dict):
        holder["hostile"] = draw.choice(VALUES)
    else:
        value = draw.choice(VALUES)
        if value == "nested":
            value = holder[key]
            for _ in range(150):
                value = [value]
        holder[key] = value
    return json.dumps(record).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _changed_text(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    with_value = [place for place, line in enumerate(lines) if re.match(r"^[A-Za-z_]+\s*[=:]", line)] or [0]
    place = draw.choice(with_value)
    name, sign, _ = re.split(r"([=:])", f"{lines[place]}=", maxsplit=1)
    values = (
        *(repr(item).replace("'", '"') for item in VALUES),
        "[" * 90 + "]" * 90,
        "0x" + "f" * 20,
        "'''",
        "-",
    )
    how = draw.choice(("value", "value", "value", "remove", "twice", "enlarge"))
    if how == "remove":
        del lines[place]
    elif how == "twice":
        lines.insert(place, lines[place])
    elif how == "enlarge":
        lines[place:place] = [lines[place].replace(name, f"{name}x{number}", 1) for number in range(3_000)]
    else:
        lines[place] = f"{name}{sign} {draw.choice(values)}"
    return "\n".join(lines)
