"""Reads files that a user, another tool or a stranger wrote.

Only regular files are opened. Size, expansion, nesting and numbers are bounded. Every failure is raised as
the caller's own error, in one line that names the file, the cause and the remedy. Readers share these
arguments:

    path: The file.
    error: The class to raise, one of `errors`.
    remedy: What the user should do; may be empty.
    max_bytes: Maximum size in bytes, after decompression.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, BinaryIO, TypeVar, Union, get_args, get_origin

import pydantic_core
from pydantic import BaseModel, ValidationError

from pytest_trace2evolve.errors import Trace2EvolveError, shorten, similar_names
from pytest_trace2evolve.utils.canonical import is_deeper

MAX_SETTINGS_BYTES = 2 << 20
"""Maximum bytes of a TOML or Markdown file, or of other text that a person writes."""

MAX_RECORD_BYTES = 64 << 20
"""Maximum bytes of a JSON file with one record: a lock, a verdict, a manifest, the state of a run."""

MAX_RESULTS_BYTES = 512 << 20
"""Maximum bytes of recorded results, a baseline, a cassette or a file of cases."""

MAX_LINE_BYTES = 8 << 20
"""Maximum bytes of one line of a file that is read line by line."""

MIN_SIMILARITY = 0.6
"""The minimum similarity at which an unknown key counts as a misspelled known key."""

MAX_DEPTH = 100
"""Maximum levels of nesting in TOML. The JSON parser stops at 200."""

MAX_INTEGER = 1 << 63
"""The bound of TOML integers, which have 64 bits; the parser of the standard library accepts larger ones."""

_MAX_EXPANSION_RATIO = 100
"""Maximum number of expanded bytes per compressed byte; real results have 10 to 30."""

_SMALL_BYTES = 16 << 20
"""Maximum bytes of content for which parsing needs at most about 500 MB of memory for any content."""

_CHUNK_BYTES = 1 << 20
_MAX_MEMBERS = 1_000
_MAX_DOTS = 1_000
"""Maximum number of dots in a TOML key, because the parser's time grows with the square of this number."""

_ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NUMBER_SHAPE = bytes.maketrans(b"123456789E", b"000000000e")
_LARGE_EXPONENT = re.compile(rb"0e\+?000+(?:[\s,\]}]|$)")
_MANY_DIGITS = b"0" * 200
"""Every text with a number that overflows contains this or `_LARGE_EXPONENT`, once `_NUMBER_SHAPE` has made
its digits equal, and few other texts do. Searches for fixed bytes take a tenth of the time of others."""

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

_RecordT = TypeVar("_RecordT", bound=BaseModel)


@contextlib.contextmanager
def convert_failures(source: object, error: type[Trace2EvolveError], remedy: str = "") -> Iterator[None]:
    """Raise every failure to read or decode as `error`, in one line; errors of this package pass through.

    Args:
        source: The file or option, as the message names it.
    """
    try:
        yield
    except (OSError, ValueError, OverflowError, RecursionError, MemoryError, EOFError, zlib.error) as failure:
        raise error(_error_message(source, describe_failure(failure), remedy)) from None


def describe_failure(failure: BaseException) -> str:
    """Return the reason why a file cannot be read, for a message."""
    if isinstance(failure, ValidationError):
        return f"damaged at {first_problem(failure)}"
    if isinstance(failure, OSError):
        return f"cannot be read: {failure.strerror or failure}"
    if isinstance(failure, RecursionError):
        return "is nested too deeply"
    if isinstance(failure, MemoryError):
        return "cannot be read: not enough memory"
    return str(failure) or type(failure).__name__


def first_problem(error: ValidationError, record_name: str = "file") -> str:
    """Return pydantic's first problem in one line: its location, its cause and a shortened value.

    An unknown key that resembles a missing key comes first, because it is probably a misspelling of that key.

    Args:
        record_name: The location to report if the problem concerns the whole record.
    """
    problem = main_problem(error)
    place = problem["loc"]
    if problem["type"] == "extra_forbidden":
        *outer, name = place
        remedy = _key_remedy(str(name), known_keys(error.title, outer))
        start = f"{shorten('.'.join(map(str, outer)), 200)}: " if outer else ""
        return f"{start}unknown key {shorten(repr(name), 200)}; {remedy}"
    location = shorten(".".join(str(part) for part in place), 200) or record_name
    value = (
        "" if isinstance(problem["input"], dict | list) else f", not {shorten(repr(problem['input']), 200)}"
    )
    if problem["type"] in ("tuple_type", "list_type"):
        return f"{location}: must be a list{value}"
    return f"{location}: {shorten(problem['msg'], 400)}{value}"


def main_problem(error: ValidationError) -> pydantic_core.ErrorDetails:
    """Return the problem of a validation that `first_problem` reports."""
    first, *others = error.errors(include_url=False)
    if first["type"] == "missing":
        for problem in others:
            name = problem["loc"][-1]
            if problem["type"] == "extra_forbidden" and similar_names(
                str(name), [str(first["loc"][-1])], max_names=1, cutoff=MIN_SIMILARITY
            ):
                return problem
    return first


def _key_remedy(name: str, known_names: Sequence[str]) -> str:
    similar = similar_names(name, known_names, max_names=1, cutoff=MIN_SIMILARITY)
    if similar:
        return f"did you mean {similar[0]!r}?"
    return f"known are {', '.join(known_names)}" if known_names else "remove it"


def known_keys(title: str, location: Sequence[int | str]) -> list[str]:
    """Return the keys of the record at a location in the model whose class has the name `title`."""
    models = [model for model in _subclasses(BaseModel) if model.__name__ == title]
    types: list[Any] = [*models]
    for part in location:
        types = [inner for hint in types for inner in _types_inside(hint, part)]
    records = {record for hint in types for record in _records_in(hint)}
    names = {field.alias or name for record in records for name, field in record.model_fields.items()}
    return sorted(names.union(*(getattr(record, "SHORT_KEYS", ()) for record in records)))


def _subclasses(cls: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _records_in(hint: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a value of a type hint can be, without the items of collections."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        yield hint
    elif get_origin(hint) is Annotated:
        yield from _records_in(get_args(hint)[0])
    elif get_origin(hint) in (Union, UnionType):
        for choice in get_args(hint):
            yield from _records_in(choice)


def _types_inside(hint: Any, part: int | str) -> Iterator[Any]:
    """Yield the type hints of a part of a value: a field, an item, or a choice of a union named by `part`."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        fields = hint.model_fields.items()
        yield from (field.annotation for name, field in fields if part in (name, field.alias))
    elif get_origin(hint) is Annotated:
        yield from _types_inside(get_args(hint)[0], part)
    elif get_origin(hint) in (Union, UnionType):
        for choice in get_args(hint):
            yield from [choice] if getattr(choice, "__name__", None) == part else _types_inside(choice, part)
    elif arguments := get_args(hint):
        yield arguments[-1] if isinstance(part, str) else arguments[0]  # the values of a mapping, or items


def _error_message(source: object, cause: str, remedy: str) -> str:
    text = f"{shorten(str(source), 600)}: {shorten(' '.join(cause.split()), 800)}"
    return f"{text}; {remedy}" if remedy else text


def open_regular(path: Path, max_bytes: int | None = None) -> io.BufferedReader:
    """Open a regular file; does not wait for a FIFO or a device.

    Raises:
        OSError: the file cannot be opened or is not a regular file.
        ValueError: the file is larger than `max_bytes` bytes, or the path contains NUL.
    """
    flags = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"))
    handle = os.open(path, os.O_RDONLY | flags)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            file_type = _FILE_TYPES.get(stat.S_IFMT(status.st_mode), "no file")
            raise OSError(errno.EINVAL, f"{file_type}, not a regular file", str(path))
        if max_bytes is not None and status.st_size > max_bytes:
            raise ValueError(_too_large_message(max_bytes))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _too_large_message(max_bytes: int) -> str:
    return f"is larger than {max_bytes >> 20} MiB"


def check_regular(path: Path, error: type[Trace2EvolveError], remedy: str = "") -> None:
    """Check that a file exists and is a regular file, before a library opens the file by its name."""
    with convert_failures(path, error, remedy), open_regular(path):
        pass


def read_bytes(
    path: Path, error: type[Trace2EvolveError], remedy: str = "", *, max_bytes: int = MAX_RECORD_BYTES
) -> bytes | bytearray:
    """Return the content of a file; gzip files are expanded."""
    with convert_failures(path, error, remedy), open_regular(path, max_bytes) as file:
        data = _read_all(file, max_bytes)
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        return _expand_gzip(data, max_bytes)
    except (EOFError, zlib.error) as failure:
        cause = f"damaged gzip ({failure})"
    except ValueError as failure:
        cause = str(failure)
    raise error(_error_message(path, cause, remedy or "fetch the file again"))


def _read_all(file: BinaryIO, max_bytes: int) -> bytes:
    """Read the rest of a file, even if the file is larger than the system reports."""
    data = file.read(min(os.fstat(file.fileno()).st_size, max_bytes) + 1)
    rest = bytearray()
    while len(data) + len(rest) <= max_bytes and (chunk := file.read(_CHUNK_BYTES)):
        rest += chunk
    if len(data) + len(rest) > max_bytes:
        raise ValueError(_too_large_message(max_bytes))
    return data + rest if rest else data


def _expand_gzip(data: bytes, max_bytes: int) -> bytearray:
    """Return the content of a gzip file of one or more members."""
    content = bytearray()
    view = memoryview(data)
    position = 0
    for _ in range(_MAX_MEMBERS):
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            piece: bytes | memoryview = view[position : position + _CHUNK_BYTES]
            if not piece:
                raise EOFError("it ends too early")
            position += len(piece)
            while True:
                chunk = member.decompress(piece, _CHUNK_BYTES)
                content += chunk
                max_length = min(max_bytes, max(_SMALL_BYTES, _MAX_EXPANSION_RATIO * position))
                if len(content) > max_length:
                    raise ValueError(
                        f"expands to more than {max_length >> 20} MiB; check that it is the right file"
                    )
                piece = member.unconsumed_tail
                if member.eof or (not piece and len(chunk) < _CHUNK_BYTES):
                    break
        position -= len(member.unused_data)
        if not bytes(view[position : position + _CHUNK_BYTES]).strip(b"\0"):
            return content  # the end, or padding
    raise ValueError(f"has more than {_MAX_MEMBERS} gzip members; compress it again as one")


def read_text(
    path: Path, error: type[Trace2EvolveError], remedy: str = "", *, max_bytes: int = MAX_SETTINGS_BYTES
) -> str:
    """Return the text of a UTF-8 file, with `\\n` for every line ending."""
    with convert_failures(path, error, remedy):
        return load_text(path, max_bytes)


def load_text(path: Path, max_bytes: int = MAX_SETTINGS_BYTES) -> str:
    """Return the same text as `read_text`, but raise built-in errors.

    Raises:
        OSError: the file cannot be opened or is not a regular file.
        ValueError: the file is larger than `max_bytes` bytes or is not text.
    """
    with open_regular(path, max_bytes) as file:
        data = _read_all(file, max_bytes)
    return _decode(data).replace("\r\n", "\n").replace("\r", "\n")


def read_lines(path: Path, error: type[Trace2EvolveError], remedy: str = "") -> Iterator[str]:
    """Yield the lines of a UTF-8 file with their line endings, without a byte order mark.

    Only `\\n` ends a line, because other separators may be part of a text.
    """
    number = 0
    with convert_failures(path, error, remedy), open_regular(path, MAX_RESULTS_BYTES) as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"line {number} is longer than {MAX_LINE_BYTES >> 20} MiB")
            yield _decode(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)


def _decode(data: bytes) -> str:
    _check_byte_order_mark(data)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as failure:
        byte = failure.object[failure.start]
        raise ValueError(
            f"cannot be read: not UTF-8 (byte 0x{byte:02x} at position {failure.start})"
        ) from None
    if "\0" in text:
        raise ValueError("contains the character NUL; remove it")
    return text


def _check_byte_order_mark(data: bytes | bytearray) -> None:
    for mark, problem in _BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            raise ValueError(problem)


def read_toml(path: Path, error: type[Trace2EvolveError], remedy: str = "") -> dict[str, Any]:
    """Return the tables of a TOML file; rejects NaN and infinity. See `parse_toml`."""
    text = read_text(path, error, remedy)
    with convert_failures(path, error, remedy):
        table = parse_toml(text)
        if problem := _find_problem(table, _finiteness_problem):
            raise ValueError(problem)
        return table


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        ValueError: the text is not TOML, is nested too deeply, or has a number of more than 64 bits.
    """
    too_deep_error = ValueError(f"not valid TOML: nested more than {MAX_DEPTH} levels deep")
    for line in text.splitlines():
        if line.count(".") > _MAX_DOTS:
            parts = line.split("=")
            keys = parts if line.lstrip().startswith("[") else parts[:-1]
            if any(part.count(".") > _MAX_DOTS for part in keys):
                raise too_deep_error
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise too_deep_error from None
    except ValueError as failure:
        # Python's own message about the digits of an integer names a setting of the interpreter.
        cause = failure if isinstance(failure, tomllib.TOMLDecodeError) else "a number has too many digits"
        raise ValueError(f"not valid TOML: {cause}") from None
    if is_deeper(table, MAX_DEPTH):
        raise too_deep_error
    if problem := _find_problem(table, _toml_problem):
        raise ValueError(f"not valid TOML: {problem}")
    return table


def _toml_problem(value: object) -> str:
    if type(value) is int and abs(value) > MAX_INTEGER:
        return "a number has more than 64 bits"
    texts = value if isinstance(value, dict) else [value] if isinstance(value, str) else []
    return "contains the character NUL; remove it" if any("\0" in text for text in texts) else ""


def read_json(
    path: Path,
    error: type[Trace2EvolveError],
    remedy: str = "",
    *,
    max_bytes: int = MAX_RECORD_BYTES,
    require_unique: bool = False,
    allow_nul: bool = True,
) -> Any:
    """Return the value of a JSON file, plain or gzipped; see `parse_json`."""
    data = read_bytes(path, error, remedy, max_bytes=max_bytes)
    with convert_failures(path, error, remedy):
        return parse_json(data, require_unique=require_unique, allow_nul=allow_nul)


def read_record(
    path: Path,
    record_type: type[_RecordT],
    error: type[Trace2EvolveError],
    remedy: str = "",
    *,
    max_bytes: int = MAX_RECORD_BYTES,
) -> _RecordT:
    """Return the record of a JSON file, validated by its class; no name may occur twice in an object."""
    data = read_bytes(path, error, remedy, max_bytes=max_bytes)
    with convert_failures(path, error, remedy):
        parse_json(data, require_unique=True)
        return record_type.model_validate_json(data)


def parse_json(data: str | bytes | bytearray, *, require_unique: bool = False, allow_nul: bool = True) -> Any:
    """Return the value of a JSON text.

    Numbers must be finite and have at most 4,300 digits. Nesting is limited to 200 levels, and surrogates
    must be paired.

    Args:
        data: The text; bytes must be UTF-8.
        require_unique: Whether to reject an object that repeats a name; otherwise the last value counts.
        allow_nul: Whether texts may contain the character NUL, as texts from models do.

    Raises:
        ValueError: the text breaks one of these rules; the message says which and where.
    """
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")  # the parser rejects an unpaired surrogate
    _check_byte_order_mark(data)
    check_number_of_values(data)
    try:
        value = pydantic_core.from_json(data, allow_inf_nan=False)
    except ValueError as failure:
        problem = str(failure)
        for parser_message, message in _PARSER_MESSAGES.items():
            problem = problem.replace(parser_message, message)
        raise ValueError(f"not valid JSON with finite numbers: {problem}") from None
    # The parser reads 1e999 as infinity, so the values are checked, but only if the text has such numbers.
    shape = data.translate(_NUMBER_SHAPE)
    may_overflow = _MANY_DIGITS in shape or _LARGE_EXPONENT.search(shape)
    if may_overflow and (problem := _find_problem(value, _finiteness_problem)):
        raise ValueError(f"not valid JSON with finite numbers: {problem}")
    if not allow_nul and b"\\u0000" in data and _ESCAPED_NUL.search(data):
        raise ValueError("contains the character NUL; remove it")
    if require_unique:
        json.loads(data, object_pairs_hook=_check_unique_names)
    return value


def check_number_of_values(data: bytes | bytearray) -> None:
    """Reject a large text of tiny values, which would take thirty times its size in memory."""
    if len(data) <= _SMALL_BYTES:
        return
    containers = data.count(b"{") + data.count(b"[")
    if containers > max(2_000_000, len(data) // 32) or data.count(b",") > max(4_000_000, len(data) // 8):
        raise ValueError("contains too many values for its size; check that it is the right file")


def _finiteness_problem(value: object) -> str:
    return "is not a finite number" if isinstance(value, float) and not math.isfinite(value) else ""


def _check_unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        remaining = dict.fromkeys(values)
        duplicate = next(name for name, _ in pairs if remaining.pop(name, name) is not None)
        raise ValueError(f"the name {shorten(repr(duplicate), 80)} occurs twice in one object; remove one")
    return values


def _find_problem(value: object, describe_problem: Callable[[Any], str], location: str = "") -> str:
    """Return the first problem in a value of bounded nesting, with its location, or an empty text."""
    if problem := describe_problem(value):
        return f"{location or 'file'}: {problem}"
    items: Iterable[tuple[object, Any]] = ()
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in items:
        name = shorten(str(key), 80)
        if problem := _find_problem(child, describe_problem, f"{location}.{name}" if location else name):
            return problem
    return ""
