"""Reads files that a user, another tool or a stranger wrote.

Only regular files are opened. Size, expansion, nesting and numbers are bounded. Every failure is raised as
the caller's own error, in one line that names the file, the cause and the remedy. Readers share these
arguments:

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
from pytest_trace2evolve.utils.canonical import is_deeper

SETTINGS = 2 << 20
"""Maximum bytes of a TOML or Markdown file, or of other text that a person writes."""

RECORDS = 64 << 20
"""Maximum bytes of a JSON file with one record: a lock, a verdict, a manifest, the state of a run."""

RESULTS = 512 << 20
"""Maximum bytes of recorded results, a baseline, a cassette or a file of cases."""

COLUMNS = 4 << 30
"""Maximum bytes of a baseline that is read in blocks."""

LINE = 8 << 20
"""Maximum bytes of one line of a file that is read line by line."""

MAX_DEPTH = 100
"""Maximum levels of nesting in TOML. The JSON parser stops at 200."""

MAX_INTEGER = 1 << 63
"""The bound of TOML integers, which have 64 bits; the parser of the standard library accepts larger ones."""

_MAX_EXPANSION = 100
"""Maximum number of expanded bytes per compressed byte; real results have 10 to 30."""

_SMALL = 16 << 20
"""Bytes of content up to which parsing needs at most about 500 MB of memory, whatever the content."""

_CHUNK = 1 << 20
_MAX_MEMBERS = 1_000
_MAX_DOTS = 1_000
"""Maximum number of dots in a TOML key, because the parser's time grows with the square of this number."""

_ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_LARGE_EXPONENT = re.compile(rb"\d[eE]\+?\d{3,}(?:[\s,\]}]|$)")
_MANY_DIGITS = re.compile(rb"\d{200}")
"""Every text with a number that overflows matches one of these two patterns, and few other texts do. Two
searches take half the time of one combined search."""

_BYTE_ORDER_MARKS = {
    b"\xef\xbb\xbf": "starts with a byte order mark; save it as UTF-8 without one",
    b"\xff\xfe": "cannot be read: UTF-16, not UTF-8; save it as UTF-8",
    b"\xfe\xff": "cannot be read: UTF-16, not UTF-8; save it as UTF-8",
}
_PARSER_MESSAGES = {
    "recursion limit exceeded": "nested more than 200 levels deep",
    "number out of range": "a number of more than 4,300 digits",
}
_FILE_TYPES = {
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


def cause_of(failure: BaseException) -> str:
    """Return the reason why a file cannot be read, for a message."""
    if isinstance(failure, ValidationError):
        return f"damaged at {problem_in(failure)}"
    if isinstance(failure, OSError):
        return f"cannot be read: {failure.strerror or failure}"
    if isinstance(failure, RecursionError):
        return "is nested too deeply"
    if isinstance(failure, MemoryError):
        return "cannot be read: not enough memory"
    return str(failure) or type(failure).__name__


def problem_in(error: ValidationError, whole: str = "file") -> str:
    """Return pydantic's first problem in one line: its place, its cause and a short value.

    Args:
        whole: The name of the place if the problem concerns the whole record.
    """
    first = error.errors(include_url=False)[0]
    place = shortened(".".join(str(part) for part in first["loc"]), 200) or whole
    value = "" if isinstance(first["input"], dict | list) else f", not {shortened(repr(first['input']), 200)}"
    return f"{place}: {shortened(first['msg'], 400)}{value}"


def _message(place: object, cause: str, remedy: str) -> str:
    text = f"{shortened(str(place), 600)}: {shortened(' '.join(cause.split()), 800)}"
    return f"{text}; {remedy}" if remedy else text


def open_regular(path: Path, limit: int | None = None) -> io.BufferedReader:
    """Open a regular file; does not wait for a FIFO or a device.

    Raises:
        OSError: the file cannot be opened or is not a regular file.
        ValueError: the file is larger than `limit` bytes, or the path contains NUL.
    """
    flags = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"))
    handle = os.open(path, os.O_RDONLY | flags)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            kind = _FILE_TYPES.get(stat.S_IFMT(found.st_mode), "no file")
            raise OSError(errno.EINVAL, f"{kind}, not a regular file", str(path))
        if limit is not None and found.st_size > limit:
            raise ValueError(_too_large(limit))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _too_large(limit: int) -> str:
    return f"is larger than {limit >> 20} MiB"


def check_regular(path: Path, error: type[Trace2EvolveError], remedy: str = "") -> None:
    """Check that a file exists and is a regular file, before a library opens the file by its name."""
    with reported(path, error, remedy), open_regular(path):
        pass


def read_bytes(
    path: Path, error: type[Trace2EvolveError], remedy: str = "", *, limit: int = RECORDS
) -> bytes | bytearray:
    """Return the content of a file; gzip files are expanded."""
    with reported(path, error, remedy), open_regular(path, limit) as file:
        data = _read_all(file, limit)
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        return _expanded(data, limit)
    except (EOFError, zlib.error) as failure:
        cause = f"damaged gzip ({failure})"
    except ValueError as failure:
        cause = str(failure)
    raise error(_message(path, cause, remedy or "fetch the file again"))


def _read_all(file: BinaryIO, limit: int) -> bytes:
    """Read the rest of a file, even if the file is larger than the system reports."""
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
    for _ in range(_MAX_MEMBERS):
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            piece: bytes | memoryview = view[place : place + _CHUNK]
            if not piece:
                raise EOFError("it ends too early")
            place += len(piece)
            while True:
                more = member.decompress(piece, _CHUNK)
                found += more
                allowed = min(limit, max(_SMALL, _MAX_EXPANSION * place))
                if len(found) > allowed:
                    raise ValueError(f"expands to more than {allowed >> 20} MiB; is it a file of this kind?")
                piece = member.unconsumed_tail
                if member.eof or (not piece and len(more) < _CHUNK):
                    break
        place -= len(member.unused_data)
        if not bytes(view[place : place + _CHUNK]).strip(b"\0"):
            return found  # the end, or padding
    raise ValueError(f"has more than {_MAX_MEMBERS} gzip members; compress it again as one")


def read_text(path: Path, error: type[Trace2EvolveError], remedy: str = "", *, limit: int = SETTINGS) -> str:
    """Return the text of a UTF-8 file, with `\\n` for every line ending."""
    with reported(path, error, remedy):
        return text_of(path, limit)


def text_of(path: Path, limit: int = SETTINGS) -> str:
    """Return the same text as `read_text`, but raise built-in errors.

    Raises:
        OSError: the file cannot be opened or is not a regular file.
        ValueError: the file is larger than `limit` bytes or is not text.
    """
    with open_regular(path, limit) as file:
        data = _read_all(file, limit)
    return _decoded(data).replace("\r\n", "\n").replace("\r", "\n")


def read_lines(path: Path, error: type[Trace2EvolveError], remedy: str = "") -> Iterator[str]:
    """Yield the lines of a UTF-8 file with their line endings, without a byte order mark.

    Only `\\n` ends a line, because other separators may be part of a text.
    """
    number = 0
    with reported(path, error, remedy), open_regular(path, RESULTS) as file:
        while line := file.readline(LINE + 1):
            number += 1
            if len(line) > LINE:
                raise ValueError(f"line {number} is longer than {LINE >> 20} MiB")
            yield _decoded(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)


def _decoded(data: bytes) -> str:
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
    for mark, problem in _BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            raise ValueError(problem)


def read_toml(path: Path, error: type[Trace2EvolveError], remedy: str = "") -> dict[str, Any]:
    """Return the tables of a TOML file; rejects NaN and infinity. See `parse_toml`."""
    text = read_text(path, error, remedy)
    with reported(path, error, remedy):
        table = parse_toml(text)
        if problem := _first_problem(table, _finiteness_problem):
            raise ValueError(problem)
        return table


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text.

    Raises:
        ValueError: the text is not TOML, is nested too deeply, or has a number of more than 64 bits.
    """
    too_deep = ValueError(f"not valid TOML: nested more than {MAX_DEPTH} levels deep")
    for line in text.splitlines():
        if line.count(".") > _MAX_DOTS:
            parts = line.split("=")
            keys = parts if line.lstrip().startswith("[") else parts[:-1]
            if any(part.count(".") > _MAX_DOTS for part in keys):
                raise too_deep
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise too_deep from None
    except ValueError as failure:
        # Python's own message about the digits of an integer names a setting of the interpreter.
        cause = failure if isinstance(failure, tomllib.TOMLDecodeError) else "a number has too many digits"
        raise ValueError(f"not valid TOML: {cause}") from None
    if is_deeper(table, MAX_DEPTH):
        raise too_deep
    if problem := _first_problem(table, _toml_problem):
        raise ValueError(f"not valid TOML: {problem}")
    return table


def _toml_problem(value: object) -> str:
    if type(value) is int and abs(value) > MAX_INTEGER:
        return "a number has more than 64 bits"
    texts = value if isinstance(value, dict) else [value] if isinstance(value, str) else []
    return "holds the character NUL; remove it" if any("\0" in text for text in texts) else ""


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
    """The record of a JSON file, validated by its class; no name may occur twice in an object."""
    data = read_bytes(path, error, remedy, limit=limit)
    with reported(path, error, remedy):
        parse_json(data, unique=True)
        return kind.model_validate_json(data)


def parse_json(data: str | bytes | bytearray, *, unique: bool = False, nul: bool = True) -> Any:
    """The value of a JSON text.

    Numbers must be finite and have at most 4,300 digits. Nesting is limited to 200 levels, and surrogates
    must be paired.

    Args:
        data: The text, UTF-8 if it is bytes.
        unique: Whether to reject an object that repeats a name; otherwise the last value counts.
        nul: Whether texts may hold the character NUL, as texts from models may.

    Raises:
        ValueError: the text breaks one of these rules; the message says which and where.
    """
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")  # the parser rejects an unpaired surrogate
    _check_mark(data)
    _check_number_of_values(data)
    try:
        # Without the cache: texts of results hardly repeat, and it would be kept.
        value = pydantic_core.from_json(data, allow_inf_nan=False)
    except ValueError as failure:
        problem = str(failure)
        for theirs, ours in _PARSER_MESSAGES.items():
            problem = problem.replace(theirs, ours)
        raise ValueError(f"not valid JSON with finite numbers: {problem}") from None
    # The parser reads 1e999 as infinity, so the values are checked, but only if the text has such numbers.
    may_overflow = _LARGE_EXPONENT.search(data) or _MANY_DIGITS.search(data)
    if may_overflow and (problem := _first_problem(value, _finiteness_problem)):
        raise ValueError(f"not valid JSON with finite numbers: {problem}")
    if not nul and b"\\u0000" in data and _ESCAPED_NUL.search(data):
        raise ValueError("holds the character NUL; remove it")
    if unique:
        json.loads(data, object_pairs_hook=_check_unique)
    return value


def _check_number_of_values(data: bytes | bytearray) -> None:
    """Reject a large text of tiny values, which would take thirty times its size once parsed."""
    if len(data) <= _SMALL:
        return
    containers = data.count(b"{") + data.count(b"[")
    if containers > max(2_000_000, len(data) // 32) or data.count(b",") > max(4_000_000, len(data) // 8):
        raise ValueError("holds too many values for its size; is it a file of this kind?")


def _finiteness_problem(value: object) -> str:
    return "is not a finite number" if isinstance(value, float) and not math.isfinite(value) else ""


def _check_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        left = dict.fromkeys(found)
        twice = next(name for name, _ in pairs if left.pop(name, name) is not None)
        raise ValueError(f"the name {shortened(repr(twice), 80)} occurs twice in one object; remove one")
    return found


def _first_problem(value: object, problem_of: Callable[[Any], str], place: str = "") -> str:
    """Return the place and the first problem in a value of bounded nesting, or an empty text."""
    if problem := problem_of(value):
        return f"{place or 'file'}: {problem}"
    items: Iterable[tuple[object, Any]] = ()
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in items:
        name = shortened(str(key), 80)
        if problem := _first_problem(child, problem_of, f"{place}.{name}" if place else name):
            return problem
    return ""
