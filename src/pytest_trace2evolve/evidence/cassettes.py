"""Cassettes: the answers of a whole run in one text file, which a later run plays back.

A cassette holds JSON lines in a fixed order, so the same answers give the same file, and a change shows as a
few lines in a diff. The content does not depend on time, and requests are not stored.
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
from pytest_trace2evolve.utils.reading import (
    MAX_RESULTS_BYTES,
    convert_failures,
    first_problem,
    load_text,
    parse_json,
)

CASSETTE_FORMAT = "trace2evolve-cassette"
CASSETTE_VERSION = 1
"""Version of the format, including the keys of answers. Files of other versions are rejected."""

_REMEDY = "restore it, or record it again with --t2e-record"

_RecordT = TypeVar("_RecordT", bound=Record)


class CassetteHeader(Record):
    """The first line of a cassette: the settings of the recorded run, and the digest of the lines below.

    `partial` gives the reason if the cassette may not hold the whole run. `scripts` says whether the
    customers of synthetic cases followed their scripts.
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

    @property
    def agent_name(self) -> str:
        """The name of the recorded agent; empty if it is not recorded."""
        return self.header.agent.implementation or ""


def render_cassette(header: Mapping[str, Any], answers: Iterable[tuple[str, Answer]]) -> str:
    """Render a cassette from its answers and the header fields that do not follow from them."""
    # The duration and the source of an answer differ between two recordings of one run.
    excluded = {"completion": {"seconds", "cached"}, "http": {"seconds"}}
    lines = [
        _render_line({"key": key, **answer.model_dump(mode="json", exclude_defaults=True, exclude=excluded)})
        for key, answer in answers
    ]
    full_header = CassetteHeader.model_validate(
        {**header, "answers": len(lines), "digest": digest_text("\n".join(lines))}
    )
    return "\n".join([_render_line(full_header.model_dump(mode="json")), *lines, ""])


def _render_line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_cassette(path: Path) -> Cassette:
    """Read a whole cassette. Any damage raises a `CassetteError` that names the line."""
    if not os.path.lexists(path):
        raise CassetteError(f"cassette {path} does not exist; record it with --t2e-record")
    with convert_failures(f"cassette {path}", CassetteError, _REMEDY):
        text = load_text(path, MAX_RESULTS_BYTES)
    header_line, *lines = text.split("\n")
    header = _parse_header(path, header_line)
    if not lines or lines.pop() != "":
        raise _damage_error(path, max(len(text.splitlines()), 1), "is cut off in the middle of a line")
    answers: dict[str, Answer] = {}
    for number, line in enumerate(lines, start=2):
        record = _parse_line(path, number, line)
        key = record.pop("key", None)
        if not isinstance(key, str):
            raise _damage_error(path, number, "damaged at key: expected a text")
        if key in answers:
            raise _damage_error(path, number, f"has a second answer for key {key}")
        answers[key] = _validate_record(path, number, Answer, record)
    if len(lines) != header.answers:
        raise _damage_error(path, len(lines) + 1, f"ends after {len(lines)} of {header.answers} answers")
    if digest_text("\n".join(lines)) != header.digest:
        raise _damage_error(path, 1, "the lines below were changed: their digest is not the recorded one")
    return Cassette(path, header, answers)


def _parse_header(path: Path, text: str) -> CassetteHeader:
    record = _parse_line(path, 1, text)
    if record.get("format") != CASSETTE_FORMAT:
        raise CassetteError(f"cassette {path}:1: is not a cassette of --t2e-record")
    version = record.get("version")
    if version != CASSETTE_VERSION:
        raise CassetteError(
            f"cassette {path}:1: has version {version}, but this release reads version {CASSETTE_VERSION}; "
            "record it again with --t2e-record"
        )
    return _validate_record(path, 1, CassetteHeader, record)


def _parse_line(path: Path, number: int, text: str) -> dict[str, Any]:
    with convert_failures(f"cassette {path}:{number}", CassetteError, _REMEDY):
        record = parse_json(text)
    if not isinstance(record, dict):
        raise _damage_error(path, number, "is not a JSON object")
    return record


def _validate_record(
    path: Path, number: int, record_type: type[_RecordT], record: dict[str, Any]
) -> _RecordT:
    try:
        return record_type.model_validate(record)
    except ValidationError as error:
        raise _damage_error(path, number, f"damaged at {first_problem(error)}") from None


def _damage_error(path: Path, number: int, problem: str) -> CassetteError:
    return CassetteError(f"cassette {path}:{number}: {problem}; {_REMEDY}")
