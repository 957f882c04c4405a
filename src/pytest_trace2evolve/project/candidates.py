"""Candidates: what a change claims and the instruction that it adds to the agent's prompt.

A candidate is one Markdown file: front matter between two lines of `---`, then the instruction text.
The front matter is a small part of YAML: `key: text`, `key: [a, b]`, lists of `- item` lines, and
indented lines that continue a text.

`v6+precondition_verification` has no file: it is candidate `v6`, talking with an adapter of the project.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError, model_validator

from pytest_trace2evolve.errors import AdapterError, CandidateError, shortened, similar
from pytest_trace2evolve.project.adapters import Adapter, Adapters
from pytest_trace2evolve.records.base import Record
from pytest_trace2evolve.records.evidence import CandidateRef
from pytest_trace2evolve.utils.canonical import digest, digest_text
from pytest_trace2evolve.utils.reading import complaint, read_text

DEFAULT_CANDIDATE = "v0"
"""The candidate of a run that names none."""

WITH = "+"
"""Between a candidate's id and the adapter that it talks with: `v6+precondition_verification`."""

ROUTED = "routed"
"""In the place of an adapter's name: for each task the base model chooses a promoted adapter, or none."""

CandidateId = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(\+[a-z][a-z0-9]*(_[a-z0-9]+)*)?$")
]


Change = Literal["agent", "model", "parameters"]
"""What a candidate may change besides its instruction."""


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
        changes: What it changes besides the instruction: `agent` (the implementation), `model`, `parameters`.
            A run in which one of these differs from the baseline is refused unless the change is named here.
        instruction: The text added after the policy in the agent's prompt; may be empty.
        weights: Digest of the adapters that it talks with; empty where there are none, as in every file.
    """

    id: CandidateId
    parent: CandidateId | None = None
    hypothesis: str = ""
    frozen_at: Annotated[date | None, BeforeValidator(_iso_day)] = None
    informed_by: tuple[Annotated[str, Field(pattern=r"^[^:\s][^:]*::[^:].*$")], ...] = ()
    changes: tuple[Change, ...] = ()
    instruction: str = ""
    weights: str = ""

    @model_validator(mode="after")
    def _not_its_own_parent(self) -> Self:
        if self.parent == self.id:
            raise ValueError("a candidate cannot be its own parent")
        if bool(self.adapter) != bool(self.weights):
            raise ValueError(f"{WITH!r} in an id names an adapter, and no file makes one: choose another id")
        return self

    @property
    def adapter(self) -> str:
        """Name of the adapter that it talks with, or `ROUTED`; empty where there is none."""
        return self.id.partition(WITH)[2]

    @property
    def digest(self) -> str:
        """Identifies the candidate: its instruction, the changes it declares, and the adapters' weights."""
        text = digest_text(self.instruction)
        if self.changes:
            text = digest([text, {"changes": sorted(set(self.changes))}])
        return digest([text, self.weights]) if self.weights else text

    @property
    def declares(self) -> frozenset[str]:
        """The changes that it declares. With an adapter it is another model, without a word in a file."""
        return frozenset(self.changes) | ({"model"} if self.weights else set())

    def talking_with(self, name: str, adapters: Sequence[Adapter]) -> "Candidate":
        """This candidate with an adapter, or with several to be routed to: a child of its own.

        It is frozen on the day when both its text and its adapters were.

        Raises:
            AdapterError: weights cannot be read.
        """
        days = [self.frozen_at, *(one.trained_on for one in adapters)]
        known = [day for day in days if day is not None]
        seen = (*self.informed_by, *(place for one in adapters for place in one.manifest.informed_by))
        return Candidate(
            id=f"{self.id}{WITH}{name}",
            parent=self.id,
            hypothesis=f"{', '.join(one.manifest.capability for one in adapters)}: what was missing, trained",
            frozen_at=max(known) if len(known) == len(days) else None,
            informed_by=tuple(dict.fromkeys(seen)),
            changes=self.changes,
            instruction=self.instruction,
            weights=digest({one.name: one.digest for one in adapters}),
        )

    def ref(self) -> CandidateRef:
        """The part of a candidate that evidence carries."""
        return CandidateRef(id=self.id, digest=self.digest, parent=self.parent, informed_by=self.informed_by)

    def saw(self, suite: str, split: str) -> bool:
        """Whether its author had seen anything of a split when the candidate was frozen."""
        place = f"{suite}::{split}"
        return any(seen == place or seen.startswith(place + "::") for seen in self.informed_by)


class Candidates:
    """All candidates of a folder, read when first asked for.

    Args:
        folder: Where their files lie.
        adapters: What they can talk with, as `v6+NAME` and `v6+routed`; these are known and not listed.
    """

    def __init__(self, folder: Path, adapters: Adapters | None = None) -> None:
        self._folder = folder
        self._adapters = adapters
        self._read: dict[str, Candidate] = {}

    def __getitem__(self, name: str) -> Candidate:
        """A candidate by its id.

        Raises:
            CandidateError: it is unknown (the message names the nearest) or its file is broken.
            AdapterError: the adapter that it names is unknown or damaged, or none is promoted to route to.
        """
        text, _, adapter = name.partition(WITH)
        if adapter:
            return self[text].talking_with(adapter, self._named(adapter))
        if name not in self._read:
            path = self._folder / f"{name}.md"
            if name not in self:
                raise CandidateError(self._unknown(name))
            self._read[name] = read_candidate(path)
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        text, _, adapter = str(name).partition(WITH)
        if not adapter or self._adapters is None:
            return name in list(self)
        return text in list(self) and (adapter == ROUTED or adapter in list(self._adapters))

    def _named(self, adapter: str) -> Sequence[Adapter]:
        if self._adapters is None:
            raise CandidateError(f"{WITH}{adapter}: the candidates of {self._folder} have no adapters")
        if adapter != ROUTED:
            return [self._adapters[adapter]]
        if routed := self._adapters.routed():
            return routed
        raise AdapterError(
            f"{WITH}{ROUTED}: no adapter in {self._adapters.folder} is promoted, and only promoted ones are "
            "routed to; train one and put it through the gate (trace2evolve evolve)"
        )

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
        near = similar(name, known, most=3) or known[:8]
        return f"unknown {what} {name!r}; nearest are {', '.join(near)} in {self._folder}"


def source_of(name: str) -> str:
    """Where a person looks for what makes a candidate: its file, and the adapter that it talks with."""
    text, _, adapter = name.partition(WITH)
    return f"candidates/{text}.md" + (f" or adapters/{adapter}" if adapter else "")


def read_candidate(path: Path) -> Candidate:
    """Read one candidate's file.

    Raises:
        CandidateError: the file cannot be read or its front matter is broken; names file, place and mend.
    """
    return parse_candidate(read_text(path, CandidateError), path)


def parse_candidate(text: str, path: Path) -> Candidate:
    """A candidate from its file's text, as it is or as it was.

    Raises:
        CandidateError: its front matter is broken; names file, place and mend.
    """
    fields, instruction = _split(path, text)
    for own, why in _NOT_WRITTEN.items():
        if own in fields:
            raise CandidateError(f"{path}: {own}: {why}")
    try:
        candidate = Candidate.model_validate({**fields, "instruction": instruction})
    except ValidationError as error:
        raise CandidateError(f"{path}: {complaint(error, 'front matter')}") from None
    if candidate.id != path.stem:
        raise CandidateError(
            f"{path}: its id is {candidate.id!r}; name the file {candidate.id}.md or mend the id"
        )
    return candidate


_NOT_WRITTEN = {
    "instruction": "is the text below the front matter, not a part of it",
    "weights": "follow from an adapter, which stands behind a candidate's id: v6+NAME",
}
"""Fields of a candidate that its front matter may not give."""


_MOST_LINES = 2_000
"""Lines of front matter."""


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
    if ends[0] > _MOST_LINES:
        raise CandidateError(f"{path}: the front matter has more than {_MOST_LINES} lines; shorten it")
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
            told = shortened(repr(line.strip()), 200)
            raise CandidateError(f"{path}: line {number} is not 'key: value': {told}")
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
