"""Candidates: what a change claims and the instruction that it adds to the agent's prompt.

A candidate is one Markdown file: front matter between two lines of `---`, then the instruction text.
The front matter is a small part of YAML: `key: text`, `key: [a, b]`, lists of `- item` lines, and
indented lines that continue a text.
"""

import difflib
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError, model_validator

from pytest_trace2evolve._canonical import digest_text
from pytest_trace2evolve.errors import CandidateError
from pytest_trace2evolve.records.base import Record, complaint
from pytest_trace2evolve.records.evidence import CandidateRef

DEFAULT_CANDIDATE = "v0"
"""The candidate of a run that names none."""

CandidateId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


def _iso_day(value: object) -> object:
    """pydantic would take a bare number for seconds since 1970."""
    if isinstance(value, str) and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", value):
        raise ValueError("a day is written YYYY-MM-DD")
    return value


class Candidate(Record):
    """One candidate.

    Attributes:
        id: Its name; the file is `<id>.md`.
        parent: The candidate it was made from; None for a root.
        hypothesis: What it is meant to change, and why that should help.
        frozen_at: The day after which its text may not change.
        informed_by: Evidence its author had seen, as `suite::split` or `suite::split::task`.
        instruction: The text added after the policy in the agent's prompt; may be empty.
    """

    id: CandidateId
    parent: CandidateId | None = None
    hypothesis: str = ""
    frozen_at: Annotated[date | None, BeforeValidator(_iso_day)] = None
    informed_by: tuple[Annotated[str, Field(pattern=r"^[^:\s][^:]*::[^:].*$")], ...] = ()
    instruction: str = ""

    @model_validator(mode="after")
    def _not_its_own_parent(self) -> Self:
        if self.parent == self.id:
            raise ValueError("a candidate cannot be its own parent")
        return self

    @property
    def digest(self) -> str:
        """Identifies the candidate: what it tells the agent, and nothing else."""
        return digest_text(self.instruction)

    def ref(self) -> CandidateRef:
        """The part of a candidate that evidence carries."""
        return CandidateRef(id=self.id, digest=self.digest, parent=self.parent, informed_by=self.informed_by)

    def saw(self, suite: str, split: str) -> bool:
        """Whether its author had seen anything of a split when the candidate was frozen."""
        place = f"{suite}::{split}"
        return any(seen == place or seen.startswith(place + "::") for seen in self.informed_by)


class Candidates:
    """All candidates of a folder, read when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, Candidate] = {}

    def __getitem__(self, name: str) -> Candidate:
        """A candidate by its id.

        Raises:
            CandidateError: it is unknown (the message names the nearest) or its file is broken.
        """
        if name not in self._read:
            path = self._folder / f"{name}.md"
            if name not in self:
                raise CandidateError(self._unknown(name))
            self._read[name] = read_candidate(path)
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(path.stem for path in self._folder.glob("*.md")))

    def lineage(self, name: str) -> list[Candidate]:
        """A candidate and its ancestors, nearest first.

        Raises:
            CandidateError: an ancestor is unknown, or the lineage turns in a circle.
        """
        chain = [self[name]]
        while (parent := chain[-1].parent) is not None:
            if parent in {candidate.id for candidate in chain}:
                names = " → ".join([*(candidate.id for candidate in chain), parent])
                raise CandidateError(f"{self._folder}: the parents turn in a circle: {names}")
            if parent not in self:
                raise CandidateError(f"{self._folder / chain[-1].id}.md: {self._unknown(parent, 'parent')}")
            chain.append(self[parent])
        return chain

    def _unknown(self, name: str, what: str = "candidate") -> str:
        known = list(self)
        if not known:
            return f"unknown {what} {name!r}; {self._folder} holds no candidates"
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:8]
        return f"unknown {what} {name!r}; nearest are {', '.join(near)} in {self._folder}"


def read_candidate(path: Path) -> Candidate:
    """Read one candidate's file.

    Raises:
        CandidateError: the file cannot be read or its front matter is broken; names file, place and mend.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CandidateError(f"{path}: cannot be read: {error}") from None
    return parse_candidate(text, path)


def parse_candidate(text: str, path: Path) -> Candidate:
    """A candidate from its file's text, as it is or as it was.

    Raises:
        CandidateError: its front matter is broken; names file, place and mend.
    """
    fields, instruction = _split(path, text)
    if "instruction" in fields:
        raise CandidateError(f"{path}: instruction: is the text below the front matter, not a part of it")
    try:
        candidate = Candidate.model_validate({**fields, "instruction": instruction})
    except ValidationError as error:
        raise CandidateError(f"{path}: {complaint(error, 'front matter')}") from None
    if candidate.id != path.stem:
        raise CandidateError(
            f"{path}: its id is {candidate.id!r}; name the file {candidate.id}.md or mend the id"
        )
    return candidate


def _split(path: Path, text: str) -> tuple[dict[str, object], str]:
    # Not `splitlines`, which also ends a line at form feeds and other signs that Markdown keeps.
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[0].strip() != "---":
        raise CandidateError(f"{path}: line 1 must be '---', the start of the front matter")
    ends = [number for number, line in enumerate(lines[1:], start=1) if line.strip() == "---"]
    if not ends:
        raise CandidateError(
            f"{path}: the front matter is not closed; put '---' on a line of its own after it"
        )
    return _front_matter(path, lines[1 : ends[0]]), "\n".join(lines[ends[0] + 1 :]).strip()


def _front_matter(path: Path, lines: list[str]) -> dict[str, object]:
    fields: dict[str, object] = {}
    key = ""
    for number, line in enumerate(lines, start=2):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if key and (line[0].isspace() or line.startswith("- ")):
            fields[key] = _continued(fields[key], line.strip())
            continue
        match = re.match(r"^([A-Za-z_]+)\s*:(?:\s+(.*))?$", line)
        if match is None:
            raise CandidateError(f"{path}: line {number} is not 'key: value': {line.strip()!r}")
        key = match.group(1)
        if key in fields:
            raise CandidateError(f"{path}: line {number} gives {key!r} a second time")
        fields[key] = _value((match.group(2) or "").strip())
    return fields


def _continued(value: object, line: str) -> object:
    if line.startswith("- ") and not isinstance(value, str):
        items = list(value) if isinstance(value, list) else []
        return [*items, _unquoted(line[2:].strip())]
    return f"{value} {line}".strip() if isinstance(value, str) else line


def _value(text: str) -> object:
    if text in ("", "null", "~", ">", "|", ">-", "|-"):
        return None
    if text.startswith("[") and text.endswith("]"):
        return [_unquoted(item.strip()) for item in text[1:-1].split(",") if item.strip()]
    return _unquoted(text)


def _unquoted(text: str) -> str:
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text
