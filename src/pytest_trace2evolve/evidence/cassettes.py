"""Cassettes: the answers of a whole run in one text file, which a later run plays back.

JSON lines in a fixed order, so that recording the same run again gives the same file and a change is a few
lines of a diff. Nothing in it depends on time, and it holds no request.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_trace2evolve.errors import CassetteError
from pytest_trace2evolve.records.answer import CASSETTE_FORMAT, CASSETTE_VERSION, Answer, CassetteHeader
from pytest_trace2evolve.utils.canonical import digest_text
from pytest_trace2evolve.utils.reading import RESULTS, complaint, parse_json, reported, text_of

_MEND = "restore it, or record it again with --t2e-record"


@dataclass(frozen=True)
class Cassette:
    """A cassette as its file holds it: `answers` by their keys."""

    path: Path
    header: CassetteHeader
    answers: Mapping[str, Answer] = field(repr=False)


def render(header: Mapping[str, Any], answers: Iterable[tuple[str, Answer]]) -> str:
    """The text of a cassette.

    Args:
        header: The fields of `CassetteHeader` that its answers do not give.
        answers: By their keys, in the order in which they are to stand.
    """
    lines = [_line({"key": key, **_kept(answer)}) for key, answer in answers]
    head = CassetteHeader.model_validate(
        {**header, "answers": len(lines), "digest": digest_text("\n".join(lines))}
    )
    return "\n".join([_line(head.model_dump(mode="json")), *lines, ""])


def read_cassette(path: Path) -> Cassette:
    """Read a cassette whole.

    Raises:
        CassetteError: it is missing, damaged, cut off, no cassette or of another version; names the file and
            the line.
    """
    if not os.path.lexists(path):
        raise CassetteError(f"cassette {path} does not exist; record it with --t2e-record")
    with reported(f"cassette {path}", CassetteError, _MEND):
        text = text_of(path, RESULTS)
    first, *lines = text.split("\n")
    header = _header(path, first)
    if not lines or lines.pop() != "":
        raise CassetteError(
            f"cassette {path}:{max(len(text.splitlines()), 1)}: cut off in the middle of a line; {_MEND}"
        )
    answers: dict[str, Answer] = {}
    for number, line in enumerate(lines, start=2):
        key, answer = _answer(path, number, line)
        if key in answers:
            raise CassetteError(f"cassette {path}:{number}: a second answer of key {key}; {_MEND}")
        answers[key] = answer
    if len(lines) != header.answers:
        raise CassetteError(
            f"cassette {path}:{len(lines) + 1}: ends after {len(lines)} answers of {header.answers}; {_MEND}"
        )
    if digest_text("\n".join(lines)) != header.digest:
        raise CassetteError(
            f"cassette {path}:1: its digest is not that of the lines below, which were changed; {_MEND}"
        )
    return Cassette(path, header, answers)


def _header(path: Path, line: str) -> CassetteHeader:
    record = _record(path, 1, line)
    if record.get("format") != CASSETTE_FORMAT:
        raise CassetteError(f"cassette {path}:1: is no cassette of --t2e-record")
    version = record.get("version")
    if version != CASSETTE_VERSION:
        raise CassetteError(
            f"cassette {path}:1: version {version} is not {CASSETTE_VERSION}, which this release reads; "
            "record it again with --t2e-record"
        )
    try:
        return CassetteHeader.model_validate(record)
    except ValidationError as error:
        raise CassetteError(f"cassette {path}:1: damaged at {complaint(error)}; {_MEND}") from None


def _answer(path: Path, number: int, line: str) -> tuple[str, Answer]:
    record = _record(path, number, line)
    key = record.pop("key", None)
    if not isinstance(key, str):
        raise CassetteError(f"cassette {path}:{number}: damaged at key: a text is missing; {_MEND}")
    try:
        return key, Answer.model_validate(record)
    except ValidationError as error:
        raise CassetteError(f"cassette {path}:{number}: damaged at {complaint(error)}; {_MEND}") from None


def _record(path: Path, number: int, line: str) -> dict[str, Any]:
    with reported(f"cassette {path}:{number}", CassetteError, _MEND):
        record = parse_json(line)
    if not isinstance(record, dict):
        raise CassetteError(f"cassette {path}:{number}: not a JSON object; {_MEND}")
    return record


def _kept(answer: Answer) -> dict[str, Any]:
    """An answer without what two recordings of one run would not share: how long it took, and where from."""
    return answer.model_dump(
        mode="json", exclude_defaults=True, exclude={"completion": {"seconds", "cached"}}
    )


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
