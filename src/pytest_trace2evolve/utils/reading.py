"""Reads files that a user, another tool or a stranger wrote.

Only regular files are opened. Size, expansion, nesting and numbers are bounded, and every failure is one line
that names the file, the cause and the remedy, raised as the caller's own error.

Every reader takes the same arguments:

    path: The file.
    error: The class to raise, one of `errors`.
    remedy: What the user should do; may be empty.
    limit: The largest size in bytes, after expansion.
"""

import contextlib
import errno
import io
import json
import math
import os
import re
import stat
import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import pydantic_core
from pydantic import BaseModel, ValidationError

from pytest_trace2evolve.errors import Trace2EvolveError, shortened

SETTINGS = 2 << 20
"""Bytes of a TOML or Markdown file, or of another text that a person writes."""

RECORDS = 64 << 20
"""Bytes of a JSON file with one record: a lock, a verdict, a manifest, the state of a run."""

RESULTS = 512 << 20
"""Bytes of recorded results, a baseline, a cassette or a file of cases."""

COLUMNS = 4 << 30
"""Bytes of a baseline that is read a stretch at a time."""

LINE = 8 << 20
"""Bytes of one line of a file that is read line by line."""

MAX_DEPTH = 100
"""Levels of nesting of TOML. The JSON parser stops at 200."""

MAX_INTEGER = 1 << 63
"""TOML integers have 64 bits; the parser of the standard library takes any."""

_RATIO = 100
"""Expanded bytes for each compressed one; real results have 10 to 30."""

_SMALL = 16 << 20
"""Bytes up to which no content can need more than some 500 MB of memory once it is parsed."""

_CHUNK = 1 << 20
_MEMBERS = 1_000
_DOTS = 1_000
"""Dots of one TOML key: the parser's time grows with their square."""

_ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_LARGE_NUMBER = re.compile(rb"\d[eE]\+?\d{2}|\d{300}")
_MARKS = {
    b"\xef\xbb\xbf": "starts with a byte order mark; save it as UTF-8 without one",
    b"\xff\xfe": "cannot be read: UTF-16, not UTF-8; save it as UTF-8",
    b"\xfe\xff": "cannot be read: UTF-16, not UTF-8; save it as UTF-8",
}
_TOLD = (
    ("recursion limit exceeded", "nested more than 200 levels deep"),
    ("number out of range", "a number of more than 4,300 digits"),
)
"""What the JSON parser says, in words that need no knowledge of it."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}

_Record = TypeVar("_Record", bound=BaseModel)


@contextlib.contextmanager
def reported(place: object, error: type[Trace2EvolveError], remedy: str = "") -> Iterator[None]:
    """Raise every failure to read or decode as `error`, in one line; errors of this package pass through.

    Args:
        place: The file or option, as the message names it.
    """
    try:
        yield
    except (OSError, ValueError, OverflowError, RecursionError, MemoryError, EOFError, zlib.error) as failure:
        raise error(_message(place, cause_of(failure), remedy)) from None


def open_regular(path: Path, limit: int | None = None) -> io.BufferedReader:
    """Open a regular file; a FIFO or a device is closed again without waiting for it.

    Raises:
        OSError: the file cannot be opened or is not a regular file.
        ValueError: the file is larger than `limit` bytes, or the path cannot be one.
    """
    flags = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"))
    handle = os.open(path, os.O_RDONLY | flags)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
            raise OSError(errno.EINVAL, f"{kind}, not a regular file", str(path))
        if limit is not None and found.st_size > limit:
            raise ValueError(_too_large(limit))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def check_regular(path: Path, error: type[Trace2EvolveError], remedy: str = "") -> None:
    """Check a file that a library opens by its name: it exists and is a regular file."""
    with reported(path, error, remedy), open_regular(path):
        pass


def read_bytes(
    path: Path, error: type[Trace2EvolveError], remedy: str = "", *, limit: int = RECORDS
) -> bytes | bytearray:
    """The content of a file; of a gzip file its expanded content."""
    with reported(path, error, remedy), open_regular(path, limit) as file:
        data = _all(file, limit)
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        return _expanded(data, limit)
    except (EOFError, zlib.error) as failure:
        cause = f"damaged gzip ({failure})"
    except ValueError as failure:
        cause = str(failure)
    raise error(_message(path, cause, remedy or "fetch the file again"))


def read_text(path: Path, error: type[Trace2EvolveError], remedy: str = "", *, limit: int = SETTINGS) -> str:
    """The text of a UTF-8 file, each end of a line as one new line."""
    with reported(path, error, remedy):
        return text_of(path, limit)


def text_of(path: Path, limit: int = SETTINGS) -> str:
    """The text of a UTF-8 file, each end of a line as one new line.

    Raises:
        OSError: the file cannot be opened or is not a regular file.
        ValueError: the file is larger than `limit` bytes or not text.
    """
    with open_regular(path, limit) as file:
        data = _all(file, limit)
    return _text(data).replace("\r\n", "\n").replace("\r", "\n")


def read_lines(path: Path, error: type[Trace2EvolveError], remedy: str = "") -> Iterator[str]:
    """The lines of a UTF-8 file as they are asked for, each with its end; a byte order mark is left out.

    Only a new line ends a line: other separators may be part of a text.
    """
    number = 0
    with reported(path, error, remedy), open_regular(path, RESULTS) as file:
        while line := file.readline(LINE + 1):
            number += 1
            if len(line) > LINE:
                raise ValueError(f"line {number} is longer than {LINE >> 20} MiB")
            yield _text(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)


def read_toml(path: Path, error: type[Trace2EvolveError], remedy: str = "") -> dict[str, Any]:
    """The tables of a TOML file, without NaN and infinity."""
    text = read_text(path, error, remedy)
    with reported(path, error, remedy):
        table = parse_toml(text)
        if (
            place := _first(table, lambda one: isinstance(one, float) and not math.isfinite(one))
        ) is not None:
            raise ValueError(f"{place}: is not a finite number")
        return table


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text.

    Raises:
        ValueError: the text is not TOML, is nested too deeply, or has a number of more than 64 bits.
    """
    too_deep = ValueError(f"not valid TOML: nested more than {MAX_DEPTH} levels deep")
    for line in text.splitlines():
        if line.count(".") > _DOTS:
            parts = line.split("=")
            keys = parts if line.lstrip().startswith("[") else parts[:-1]
            if any(part.count(".") > _DOTS for part in keys):
                raise too_deep
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise too_deep from None
    except ValueError as failure:
        # Python's own message about the digits of an integer names a setting of the interpreter.
        cause = failure if isinstance(failure, tomllib.TOMLDecodeError) else "a number has too many digits"
        raise ValueError(f"not valid TOML: {cause}") from None
    if _deeper(table, MAX_DEPTH):
        raise too_deep
    if (place := _first(table, lambda one: type(one) is int and abs(one) > MAX_INTEGER)) is not None:
        raise ValueError(f"not valid TOML: {place}: a number has more than 64 bits")
    if "\\u0000" in text or "\\U00000000" in text:
        place = _first(table, lambda one: "\0" in (one if isinstance(one, str) else "".join(_names(one))))
        if place is not None:
            raise ValueError(f"not valid TOML: {place}: holds the character NUL; remove it")
    return table


def read_json(
    path: Path,
    error: type[Trace2EvolveError],
    remedy: str = "",
    *,
    limit: int = RECORDS,
    unique: bool = False,
    nul: bool = True,
) -> Any:
    """The value of a JSON file, plain or gzipped; see `parse_json`."""
    data = read_bytes(path, error, remedy, limit=limit)
    with reported(path, error, remedy):
        return parse_json(data, unique=unique, nul=nul)


def read_record(
    path: Path, kind: type[_Record], error: type[Trace2EvolveError], remedy: str = "", *, limit: int = RECORDS
) -> _Record:
    """The record of a JSON file, by the rules of its class; no name may occur twice in an object."""
    data = read_bytes(path, error, remedy, limit=limit)
    with reported(path, error, remedy):
        parse_json(data, unique=True)
        return kind.model_validate_json(data)


def parse_json(data: str | bytes | bytearray, *, unique: bool = False, nul: bool = True) -> Any:
    """The value of a JSON text.

    Numbers must be finite and have at most 4,300 digits, nesting ends at 200 levels, and surrogates come in
    pairs.

    Args:
        data: The text, UTF-8 where it is bytes.
        unique: Whether an object that gives a name twice is rejected; else the last value counts.
        nul: Whether texts may hold the character NUL, as those of models may.

    Raises:
        ValueError: the text breaks one of these rules; says which and where.
    """
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")  # half a character is rejected by the parser
    _check_mark(data)
    _check_values(data)
    try:
        # Without the cache: texts of results hardly repeat, and it would be kept.
        value = pydantic_core.from_json(data, allow_inf_nan=False)
    except ValueError as failure:
        told = str(failure)
        for theirs, ours in _TOLD:
            told = told.replace(theirs, ours)
        raise ValueError(f"not valid JSON with finite numbers: {told}") from None
    # 1e999 is valid JSON and no finite number; only a file with such digits is worth walking through.
    if _LARGE_NUMBER.search(data):
        place = _first(value, lambda one: isinstance(one, float) and not math.isfinite(one))
        if place is not None:
            raise ValueError(f"not valid JSON with finite numbers: {place} is not finite")
    if not nul and b"\\u0000" in data and _ESCAPED_NUL.search(data):
        raise ValueError("holds the character NUL; remove it")
    if unique:
        json.loads(data, object_pairs_hook=_refuse_second)
    return value


def _all(file: BinaryIO, limit: int) -> bytes:
    """What is left of a file, as large as the system says or not."""
    data = file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)
    rest = bytearray()
    while len(data) + len(rest) <= limit and (more := file.read(_CHUNK)):
        rest += more
    if len(data) + len(rest) > limit:
        raise ValueError(_too_large(limit))
    return data + rest if rest else data


def _expanded(data: bytes, limit: int) -> bytearray:
    """The content of a gzip file of one or more members."""
    found = bytearray()
    view = memoryview(data)
    place = 0
    for _ in range(_MEMBERS):
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            piece: bytes | memoryview = view[place : place + _CHUNK]
            if not piece:
                raise EOFError("it ends too early")
            place += len(piece)
            while True:
                more = member.decompress(piece, _CHUNK)
                found += more
                allowed = min(limit, max(_SMALL, _RATIO * place))
                if len(found) > allowed:
                    raise ValueError(f"expands to more than {allowed >> 20} MiB; is it a file of this kind?")
                piece = member.unconsumed_tail
                if member.eof or (not piece and len(more) < _CHUNK):
                    break
        place -= len(member.unused_data)
        if not bytes(view[place : place + _CHUNK]).strip(b"\0"):
            return found  # the end, or padding
    raise ValueError(f"has more than {_MEMBERS} gzip members; compress it again as one")


def _text(data: bytes) -> str:
    _check_mark(data)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as failure:
        byte = failure.object[failure.start]
        raise ValueError(
            f"cannot be read: not UTF-8 (byte 0x{byte:02x} at position {failure.start})"
        ) from None
    if "\0" in text:
        raise ValueError("holds the character NUL; remove it")
    return text


def _check_mark(data: bytes | bytearray) -> None:
    for mark, told in _MARKS.items():
        if data.startswith(mark):
            raise ValueError(told)


def _check_values(data: bytes | bytearray) -> None:
    """Reject a large text of tiny values, which would take thirty times its size once it is parsed."""
    if len(data) <= _SMALL:
        return
    containers = data.count(b"{") + data.count(b"[")
    if containers > max(2_000_000, len(data) // 32) or data.count(b",") > max(4_000_000, len(data) // 8):
        raise ValueError("holds too many values for its size; is it a file of this kind?")


def _refuse_second(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        left = dict.fromkeys(found)
        twice = next(name for name, _ in pairs if left.pop(name, name) is not None)
        raise ValueError(f"the name {shortened(repr(twice), 80)} occurs twice in one object; remove one")
    return found


def _children(value: object) -> Iterable[tuple[object, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _names(value: object) -> Iterable[str]:
    return value if isinstance(value, dict) else ()


def _first(value: object, wrong: Callable[[Any], bool]) -> str | None:
    """The place of the first value of which something is true; None without one.

    The nesting of `value` is bounded, so that the recursion is.
    """
    if wrong(value):
        return "file"
    return _below(value, wrong)


def _below(value: object, wrong: Callable[[Any], bool]) -> str | None:
    for key, child in _children(value):
        if wrong(child):
            return shortened(str(key), 80)
        if isinstance(child, dict | list) and (found := _below(child, wrong)) is not None:
            return f"{shortened(str(key), 80)}.{found}"
    return None


def _deeper(value: object, levels: int) -> bool:
    """Whether a value is nested more than so many levels deep, found without recursion."""
    layer = [value]
    for _ in range(levels):
        layer = [child for one in layer for _, child in _children(one) if isinstance(child, dict | list)]
        if not layer:
            return False
    return True


def _too_large(limit: int) -> str:
    return f"is larger than {limit >> 20} MiB"


def cause_of(failure: BaseException) -> str:
    """Why a file cannot be read, as a message says it."""
    if isinstance(failure, ValidationError):
        return f"damaged at {complaint(failure)}"
    if isinstance(failure, OSError):
        return f"cannot be read: {failure.strerror or failure}"
    if isinstance(failure, RecursionError):
        return "is nested too deeply"
    if isinstance(failure, MemoryError):
        return "cannot be read: not enough memory"
    return str(failure) or type(failure).__name__


def _message(place: object, cause: str, remedy: str) -> str:
    told = f"{shortened(str(place), 600)}: {shortened(' '.join(cause.split()), 800)}"
    return f"{told}; {remedy}" if remedy else told


def complaint(error: ValidationError, whole: str = "file") -> str:
    """The first thing that pydantic complains of, in one line: place, cause and, where it is short, value.

    Args:
        error: What validation raised.
        whole: What to call the place where the complaint is about the record itself.
    """
    first = error.errors(include_url=False)[0]
    place = shortened(".".join(str(part) for part in first["loc"]), 200) or whole
    given = "" if isinstance(first["input"], dict | list) else f", not {shortened(repr(first['input']), 200)}"
    return f"{place}: {shortened(first['msg'], 400)}{given}"
