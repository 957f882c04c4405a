"""Reads the JSON documents of a log: one, one per line, several in sequence, or members of a zip archive."""

import io
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_trace2evolve.errors import LogError
from pytest_trace2evolve.importing.conversation import Damage
from pytest_trace2evolve.utils.optional import require
from pytest_trace2evolve.utils.reading import MAX_LINE_BYTES, MAX_RESULTS_BYTES, parse_json, read_bytes

REMEDY = "export it again, or name the format with --format"

MAX_EXPANSION = 200
"""Maximum number of expanded bytes per byte of a zip archive."""

_ZSTD = 93
"""The number of zstd among the compression methods of zip archives. Python supports it from 3.14 on."""


@dataclass(frozen=True)
class Document:
    """A JSON value and its place in the file, such as `line 3` or the name of a member of an archive."""

    place: str
    value: Any


def read_documents(path: Path) -> Iterator[Document | Damage]:
    """Yield the JSON documents of a log, and a `Damage` for each later place without a valid document.

    Raises:
        LogError: the file cannot be read at all, is empty, is not JSON, or expands to too many bytes.
    """
    data = bytes(read_bytes(path, LogError, "name a log file", max_bytes=MAX_RESULTS_BYTES))
    if data.startswith(b"PK\x03\x04"):
        yield from _read_samples(path, data)
    elif not data.strip():
        raise LogError(f"{path}: is empty; {REMEDY}")
    else:
        yield from _parse_text(path, data.removeprefix(b"\xef\xbb\xbf"))


def _parse_text(path: Path, data: bytes) -> Iterator[Document | Damage]:
    """Yield the documents of a text: one in each line, or each beginning at the start of a line."""
    whole = _document("", data)
    if isinstance(whole, Document):
        yield whole
        return
    pieces = data.split(b"\n")
    if isinstance(_document("", pieces[0]), Damage):
        pieces = re.split(rb"\n(?=[{\[])", data)
    if isinstance(_document("", pieces[0]), Damage):
        raise LogError(f"{path}: {whole.cause}; {REMEDY}")
    number = 1
    for piece in pieces:
        if piece.strip():
            yield _document(f"line {number}", piece)
        number += 1 + piece.count(b"\n")


def _document(place: str, data: bytes) -> Document | Damage:
    if place and len(data) > MAX_LINE_BYTES:
        return Damage(place, f"is longer than {MAX_LINE_BYTES >> 20} MiB")
    try:
        return Document(place, parse_json(data))
    except ValueError as error:
        return Damage(place, _cause_text(error))


def _cause_text(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _read_samples(path: Path, data: bytes) -> Iterator[Document | Damage]:
    """Yield the samples of a zip archive, as Inspect writes it."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except Exception as error:  # a damaged archive may raise an error of any class
        raise LogError(f"{path}: damaged zip archive ({_cause_text(error)}); {REMEDY}") from None
    members = [member for member in archive.infolist() if member.filename.startswith("samples/")]
    if not members:
        raise LogError(f"{path}: is a zip archive without samples/, so no log of Inspect; unpack it first")
    if sys.version_info < (3, 14) and any(member.compress_type == _ZSTD for member in members):
        require("zipfile_zstd", extra="inspect")
    remaining_bytes = min(MAX_RESULTS_BYTES, MAX_EXPANSION * len(data) + (16 << 20))
    for member in members:
        try:
            with archive.open(member) as file:
                content = file.read(remaining_bytes + 1)
        except Exception as error:  # a damaged archive may raise an error of any class
            yield Damage(member.filename, _cause_text(error))
            continue
        if len(content) > remaining_bytes:
            limit = f"expands to more than {remaining_bytes >> 20} MiB; is it a log of Inspect?"
            raise LogError(f"{path}: {member.filename} {limit}")
        remaining_bytes -= len(content)
        yield replace(_document("", content), place=member.filename)
