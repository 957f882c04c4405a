"""Cassettes: the answers of a whole run in one text file, which a later run plays back.

A cassette holds JSON lines in a fixed order, so recording the same run again gives the same file, and a
change is a few lines of a diff. No content depends on time, and no request is stored.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from pytest_trace2evolve.errors import CassetteError
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.completion import Answer
from pytest_trace2evolve.records.evidence import CandidateRef, Settings
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.reading import RESULTS, parse_json, problem_in, reported, text_of

CASSETTE_FORMAT = "trace2evolve-cassette"
CASSETTE_VERSION = 1
"""Version of the format, including the keys of answers. Files of other versions are rejected."""

_REMEDY = "restore it, or record it again with --t2e-record"

_Record = TypeVar("_Record", bound=Record)


class CassetteHeader(Record):
    """The first line of a cassette: the settings of the recorded run, and the digest of the lines below.

    `partial` gives the reason if the cassette may not hold the whole run. `scripts` is whether the customers
    of synthetic cases followed their scripts.
    """

    format: str = CASSETTE_FORMAT
    version: int = CASSETTE_VERSION
    answers: int = Field(ge=0)
    digest: str
    partial: str = ""
    candidate: CandidateRef
    suites: dict[str, str]
    agent: Settings
    user: Settings
    scripts: bool = True


@dataclass(frozen=True)
class Cassette:
    """The content of a cassette file, with its answers by key."""

    path: Path
    header: CassetteHeader
    answers: Mapping[str, Answer] = field(repr=False)


def render(header: Mapping[str, Any], answers: Iterable[tuple[str, Answer]]) -> str:
    """The text of a cassette, given its answers and the header fields that do not follow from them."""
    # The duration and the source of an answer differ between two recordings of one run.
    left_out = {"completion": {"seconds", "cached"}}
    lines = [
        _line({"key": key, **answer.model_dump(mode="json", exclude_defaults=True, exclude=left_out)})
        for key, answer in answers
    ]
    head = CassetteHeader.model_validate(
        {**header, "answers": len(lines), "digest": digest_text("\n".join(lines))}
    )
    return "\n".join([_line(head.model_dump(mode="json")), *lines, ""])


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_cassette(path: Path) -> Cassette:
    """Read a whole cassette. Any damage raises a `CassetteError` that names the line."""
    if not os.path.lexists(path):
        raise CassetteError(f"cassette {path} does not exist; record it with --t2e-record")
    with reported(f"cassette {path}", CassetteError, _REMEDY):
        text = text_of(path, RESULTS)
    first, *lines = text.split("\n")
    header = _parsed_header(path, first)
    if not lines or lines.pop() != "":
        raise _damaged(path, max(len(text.splitlines()), 1), "cut off in the middle of a line")
    answers: dict[str, Answer] = {}
    for number, line in enumerate(lines, start=2):
        record = _parsed(path, number, line)
        key = record.pop("key", None)
        if not isinstance(key, str):
            raise _damaged(path, number, "damaged at key: a text is missing")
        if key in answers:
            raise _damaged(path, number, f"a second answer of key {key}")
        answers[key] = _validated(path, number, Answer, record)
    if len(lines) != header.answers:
        raise _damaged(path, len(lines) + 1, f"ends after {len(lines)} answers of {header.answers}")
    if digest_text("\n".join(lines)) != header.digest:
        raise _damaged(path, 1, "its digest is not that of the lines below, which were changed")
    return Cassette(path, header, answers)


def _parsed_header(path: Path, line: str) -> CassetteHeader:
    record = _parsed(path, 1, line)
    if record.get("format") != CASSETTE_FORMAT:
        raise CassetteError(f"cassette {path}:1: is no cassette of --t2e-record")
    version = record.get("version")
    if version != CASSETTE_VERSION:
        raise CassetteError(
            f"cassette {path}:1: version {version} is not {CASSETTE_VERSION}, which this release reads; "
            "record it again with --t2e-record"
        )
    return _validated(path, 1, CassetteHeader, record)


def _parsed(path: Path, number: int, line: str) -> dict[str, Any]:
    with reported(f"cassette {path}:{number}", CassetteError, _REMEDY):
        record = parse_json(line)
    if not isinstance(record, dict):
        raise _damaged(path, number, "not a JSON object")
    return record


def _validated(path: Path, number: int, kind: type[_Record], record: dict[str, Any]) -> _Record:
    try:
        return kind.model_validate(record)
    except ValidationError as error:
        raise _damaged(path, number, f"damaged at {problem_in(error)}") from None


def _damaged(path: Path, number: int, problem: str) -> CassetteError:
    return CassetteError(f"cassette {path}:{number}: {problem}; {_REMEDY}")
