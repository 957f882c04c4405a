"""Reads the JSON documents of a log: one, one per line, several in sequence, or members of a zip archive."""

import io
import re
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from pytest_trace2evolve.errors import LogError, MissingExtraError
from pytest_trace2evolve.importing.conversation import Damage
from pytest_trace2evolve.utils.optional import import_quietly
from pytest_trace2evolve.utils.reading import MAX_LINE_BYTES, MAX_RESULTS_BYTES, parse_json, read_bytes

REMEDY = "export it again, or name the format with --format"

MAX_MEMBERS = 100_000
MAX_EXPANSION = 200
"""Maximum number of expanded bytes per byte of a zip archive."""

_ZIP = b"PK\x03\x04"
_ZSTD = 93
"""The number of zstd among the compression methods of zip archives. Python supports it from 3.14 on."""

_LOCAL_HEADER = 30
_STARTS = re.compile(rb"(?m)^[{\[]")


@dataclass(frozen=True)
class Document:
    """A JSON value and its place in the file, such as `line 3` or the name of a member of an archive."""

    place: str
    value: Any


class _Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


def read_documents(path: Path) -> Iterator[Document | Damage]:
    """Yield the JSON documents of a log, and a `Damage` for each place without a valid document.

    Raises:
        LogError: the file cannot be read at all, is empty, is not JSON, or expands to too many bytes.
    """
    if path.is_dir():
        yield from _read_folder(path)
        return
    data = bytes(read_bytes(path, LogError, "name a log file", max_bytes=MAX_RESULTS_BYTES))
    if data.startswith(_ZIP):
        yield from _read_members(path, data)
        return
    if not data.strip():
        raise LogError(f"{path}: is empty; {REMEDY}")
    is_marked = data.startswith((b"\xff\xfe", b"\xfe\xff"))  # UTF-16, which the parser reports
    if b"\0" in data[:4096] and not is_marked and data.lstrip()[:1] not in (b"{", b"["):
        raise LogError(f"{path}: is binary, not JSON (byte 0 at position {data.index(0)}); {REMEDY}")
    data = data.removeprefix(b"\xef\xbb\xbf")
    yield from _parse_text(path, data)


def _read_folder(path: Path) -> Iterator[Document | Damage]:
    """Yield the documents of a results folder of τ²: the simulations in `simulations/*.json`."""
    files = sorted((path / "simulations").glob("*.json"))
    if not (path / "results.json").is_file() or not files:
        raise LogError(f"{path}: is a folder, but no results folder of tau2; name a log file")
    for file in files:
        try:
            value = parse_json(read_bytes(file, LogError, max_bytes=MAX_RESULTS_BYTES))
        except (LogError, ValueError) as error:
            yield Damage(f"simulations/{file.name}", _cause_text(error))
        else:
            yield Document(f"simulations/{file.name}", {"simulations": [value]})


def _parse_text(path: Path, data: bytes) -> Iterator[Document | Damage]:
    lines = data.split(b"\n")
    first = next(line for line in lines if line.strip())
    if sum(1 for line in lines if line.strip()) > 1 and _is_json(first):
        yield from _parse_pieces((f"line {number}", line) for number, line in enumerate(lines, 1))
        return
    try:
        yield Document("", parse_json(data))
    except ValueError as error:
        starts = [match.start() for match in _STARTS.finditer(data)]
        if len(starts) < 2 or not _is_sequence(data, starts):
            problem = _cause_text(error)
            raise LogError(f"{path}: {problem}; {REMEDY}") from None
        bounds = [*starts, len(data)]
        pieces = zip(starts, bounds[1:], strict=False)
        yield from _parse_pieces(
            (f"line {data.count(10, 0, start) + 1}", data[start:end]) for start, end in pieces
        )


def _is_sequence(data: bytes, starts: list[int]) -> bool:
    """Whether one of the first documents is JSON by itself. Each document begins at the start of a line."""
    return any(_is_json(data[start:end]) for start, end in pairwise(starts[:4]))


def _parse_pieces(pieces: Iterator[tuple[str, bytes]]) -> Iterator[Document | Damage]:
    for place, piece in pieces:
        if not piece.strip():
            continue
        if len(piece) > MAX_LINE_BYTES:
            yield Damage(place, f"is longer than {MAX_LINE_BYTES >> 20} MiB")
            continue
        try:
            yield Document(place, parse_json(piece))
        except ValueError as error:
            yield Damage(place, _cause_text(error))


def _is_json(data: bytes) -> bool:
    try:
        parse_json(data)
    except ValueError:
        return False
    return True


def _cause_text(error: Exception) -> str:
    return " ".join(str(error).split())


# ---- zip archives: the logs of Inspect


def _read_members(path: Path, data: bytes) -> Iterator[Document | Damage]:
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error) as error:
        raise LogError(f"{path}: damaged zip archive ({_cause_text(error)}); {REMEDY}") from None
    if len(members) > MAX_MEMBERS:
        raise LogError(f"{path}: has more than {MAX_MEMBERS:,} members; is it a log of Inspect?")
    names = {member.filename for member in members}
    if not any(name.startswith("samples/") for name in names):
        raise LogError(f"{path}: is a zip archive without samples/, so no log of Inspect; unpack it first")
    remaining_bytes = min(MAX_RESULTS_BYTES, MAX_EXPANSION * len(data) + (16 << 20))
    for member in members:
        if not (member.filename.startswith("samples/") and member.filename.endswith(".json")):
            continue
        try:
            content = _read_member(archive, data, member, remaining_bytes)
            remaining_bytes -= len(content)
            value = parse_json(content)
        except _TooLargeError:
            raise LogError(
                f"{path}: {member.filename} expands to more than {remaining_bytes >> 20} MiB; "
                "is it a log of Inspect?"
            ) from None
        except (zipfile.BadZipFile, OSError, ValueError, EOFError, RuntimeError, struct.error) as error:
            yield Damage(member.filename, _cause_text(error) or type(error).__name__)
        except Exception as error:  # `zlib.error` and zstandard's own class derive from Exception
            if type(error).__name__ not in ("error", "ZstdError"):
                raise
            yield Damage(member.filename, f"damaged compression ({_cause_text(error)})")
        else:
            yield Document(member.filename, value)


class _TooLargeError(Exception):
    pass


def _read_member(archive: zipfile.ZipFile, data: bytes, member: zipfile.ZipInfo, limit: int) -> bytes:
    if member.compress_type != _ZSTD:
        with archive.open(member) as file:
            return _read_bounded(file, limit)
    start = member.header_offset
    header = data[start : start + _LOCAL_HEADER]
    if len(header) < _LOCAL_HEADER:
        raise EOFError("the archive ends too early")
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    content_start = start + _LOCAL_HEADER + name_length + extra_length
    raw = data[content_start : content_start + member.compress_size]
    with _zstandard().ZstdDecompressor().stream_reader(io.BytesIO(raw), read_across_frames=True) as stream:
        content = _read_bounded(stream, limit)
    if len(content) != member.file_size:
        raise EOFError("the member ends too early")
    return content


def _read_bounded(file: _Readable, limit: int) -> bytes:
    content = file.read(limit + 1)
    if len(content) > limit:
        raise _TooLargeError
    return content


def _zstandard() -> Any:
    try:
        return import_quietly("zstandard")
    except ModuleNotFoundError:
        raise MissingExtraError(
            "this log of Inspect is compressed with zstd; run: pip install 'pytest-trace2evolve[inspect]'"
        ) from None
